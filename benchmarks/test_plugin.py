"""The plugin of pytest: what it adds to a call that it times, and to a run that does not use it."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from support.venv import run

SCRIPTS = Path(__file__).parent / "scripts"


@pytest.mark.benchmark(group="plugin")
def test_a_call_against_timeit(bench: Any) -> None:
    project = bench.project("mlp")
    test = shutil.copy(SCRIPTS / "timed_by_plugin.py", bench.folder / "test_call.py")
    report = bench.folder / "report.json"
    options = ["-p", "no:cacheprovider", "--benchmark-disable-gc", f"--benchmark-json={report}"]
    command = [sys.executable, "-m", "pytest", "-q", f"--hatch-lower-root={project.root}", *options, test]
    variables = {"OMP_NUM_THREADS": "1", "HATCH_LOWER_CACHE_DIR": str(project.cache)}
    bench.benchmark.pedantic(
        lambda: run(command, cwd=bench.folder, environment=variables, timeout=3600).check(), rounds=1
    )
    for entry in json.loads(report.read_text())["benchmarks"]:
        by_timeit = entry["extra_info"]["timeit"]
        ratios = {key: entry["stats"][key] / by_timeit[key] for key in ("min", "median")}
        bench.report(
            f"one call by the plugin, {entry['param']}",
            f"{entry['stats']['min'] * 1e6:.2f} us, of timeit's min {ratios['min']:.4f}, median {ratios['median']:.4f}",
            "within 1 % of timeit",
            **ratios,
        )


@pytest.mark.benchmark(group="plugin")
def test_a_run_that_does_not_use_it(bench: Any) -> None:
    code = "import pytest, time; begin = time.perf_counter(); import hatch_lower.cli.measure.pytest_plugin; "
    code += "print(time.perf_counter() - begin)"
    times: list[float] = []

    def once() -> None:
        done = run([sys.executable, "-c", code], cwd=bench.folder, timeout=60).check()
        times.append(float(done.stdout))

    bench.benchmark.pedantic(once, rounds=10, warmup_rounds=1)
    bench.report("import of the plugin", f"{min(times) * 1e3:.1f} ms", "a few ms", seconds=min(times))
