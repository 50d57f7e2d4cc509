"""`gate.py A.whl B.whl RUNS LIMIT BUDGET BUSY`: how often the gate calls A's calls slower than B's beyond a limit.

The two may be the same wheel: then each such verdict is a false alarm. BUSY processes keep cores busy meanwhile. The
last line is JSON: the number of runs by their worst verdict, the median of a run's seconds, the ratios and intervals.
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

from hatch_lower.cli.measure import gate, timed
from hatch_lower.cli.measure.figures import ChildFigures
from hatch_lower.cli.measure.gate import Task, measure_sides
from hatch_lower.cli.measure.side import open_side
from hatch_lower.config.tables import BenchTable

BUSY = "while True: sum(range(10**6))"
WORST = ["better", "same", "not decided", "worse"]


def main(first: str, second: str, runs: str, limit: str, budget: str, busy: str) -> None:
    """Print what came of all runs."""
    timed.load_works = lambda works: []  # calls only
    gate.is_timed = lambda *_: True  # equal sides, too
    gate.measure_errors = lambda *_: ChildFigures({}, {})
    load = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(int(busy))]
    said: Counter[str] = Counter()
    ratios, seconds = [], []
    try:
        with ExitStack() as stack:
            sides = [stack.enter_context(open_side(Path(wheel))) for wheel in (first, second)]
            table = BenchTable(max_call_ratio=float(limit))
            task = Task(*sides, table, budget=float(budget), environment=os.environ)
            for _ in range(int(runs)):
                begin = time.perf_counter()
                rows = [row for row in measure_sides(task, lambda line: None).rows if row.metric == "call-seconds"]
                seconds.append(time.perf_counter() - begin)
                said.update([max((row.outcome for row in rows), key=WORST.index)])
                ratios.append([(row.ratio.low, row.ratio.value, row.ratio.high) for row in rows if row.ratio])
                print(f"{dict(said)} {seconds[-1]:.1f} s {ratios[-1]}", file=sys.stderr, flush=True)
    finally:
        for process in load:
            process.kill()
    print(json.dumps({"said": said, "seconds": statistics.median(seconds), "ratios": ratios}))


if __name__ == "__main__":
    main(*sys.argv[1:])
