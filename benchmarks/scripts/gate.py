"""`gate.py A.whl B.whl RUNS LIMIT BUDGET BUSY`: how often the gate calls A slower than B beyond a limit.

The wheels may be the same file: then each such call is a false alarm. BUSY processes keep cores busy meanwhile. The last
line is JSON: the number of runs by what they said, the seconds of a run (median), and each run's ratio.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from hatch_lower.bench.gate import Task, run
from hatch_lower.bench.side import open_side
from hatch_lower.config.bench_tables import BenchTable

BUSY = "while True: sum(range(10**6))"


def main(first: str, second: str, runs: str, limit: str, budget: str, busy: str) -> None:
    table = BenchTable(max_call_ratio=float(limit))
    load = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(int(busy))]
    said: Counter[str] = Counter()
    ratios, seconds = [], []
    try:
        with ExitStack() as stack:
            sides = [stack.enter_context(open_side(Path(wheel))) for wheel in (first, second)]
            task = Task(*sides, table, budget=float(budget), time_equal=True, metrics=("call-seconds",), environment=os.environ)
            for _ in range(int(runs)):
                begin = time.perf_counter()
                result = run(task, lambda line: None)
                seconds.append(time.perf_counter() - begin)
                rows = [row for row in result.rows if row.metric == "call-seconds"]
                said.update([max((row.outcome for row in rows), key=["same", "better", "not decided", "worse"].index)])
                ratios.append([[row.ratio.low, row.ratio.value, row.ratio.high] for row in rows if row.ratio])
                print(f"{dict(said)} {seconds[-1]:.1f} s {ratios[-1]}", file=sys.stderr, flush=True)
    finally:
        for process in load:
            process.kill()
    print(json.dumps({"said": said, "seconds": statistics.median(seconds), "ratios": ratios}))


if __name__ == "__main__":
    main(*sys.argv[1:])
