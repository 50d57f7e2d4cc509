"""Are a backend's results the same each time, here and in other processes?

`python -m hatch_lower.backends.testing.determinism` is such a process: it reads the backend and the programs to lower
on its standard input, and writes digests of partitions and results, all as JSON.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hatch_lower.backends.testing.bench import Bench, Exports, Subject
from hatch_lower.backends.testing.case import Case, Fault
from hatch_lower.backends.testing.probes import sample
from hatch_lower.backends.testing.programs import all_cases
from hatch_lower.exir.graph.canonical import structure_digest

SEEDS = ("1", "2")
LIMIT = 900  # seconds after which another process is given up


def digests_of(bench: Bench, cases: Sequence[Case]) -> dict[str, list[list[str]]]:
    """Return the digests of each partition and of its result, lowered now, by program."""
    digests = {}
    for case in cases:
        requests = bench.requests(bench.edge(case))
        partitions = [structure_digest(request.local.program) for request in requests]
        results = [digest for _, digest in bench.results(requests)]
        digests[case.name] = [list(pair) for pair in zip(partitions, results, strict=True)]
    return digests


def check_twice(bench: Bench, cases: Sequence[Case]) -> str:
    chosen = sample(bench, cases)
    first, second = digests_of(bench, chosen), digests_of(bench, chosen)
    compare(first, second, "the second time")
    return f"{len(chosen)} programs"


def check_elsewhere(bench: Bench, cases: Sequence[Case]) -> str:
    """Lower programs in processes with other hash seeds and working directories."""
    chosen = sample(bench, cases)
    subject = bench.subject
    question = {
        "backend": subject.backend_id,
        "module": bench.backend.__module__,
        "options": dict(subject.options),
        "programs": [case.name for case in chosen],
    }
    here = digests_of(bench, chosen)
    with tempfile.TemporaryDirectory(prefix="hatch-lower-kit-") as folder:
        running = [start(seed, folder) for seed in SEEDS]
        answers = [ask(process, question) for process in running]
    for seed, answer in zip(SEEDS, answers, strict=True):
        compare(here, answer, f"in a process with PYTHONHASHSEED={seed} in another directory")
    return f"{len(chosen)} programs in {len(SEEDS)} processes"


def start(seed: str, folder: str) -> subprocess.Popen[str]:
    path = os.pathsep.join(os.path.abspath(folder) for folder in sys.path)
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path, "TMPDIR": folder}
    command = [sys.executable, "-m", __spec__.name]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment, cwd=folder, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def ask(process: subprocess.Popen[str], question: Mapping[str, object]) -> dict[str, object]:
    try:
        answer, said = process.communicate(json.dumps(question), timeout=LIMIT)
    except subprocess.TimeoutExpired as error:
        process.kill()
        process.communicate()
        raise Fault(f"lowering in another process takes more than {LIMIT} seconds") from error
    if process.returncode:
        raise Fault(f"lowering fails in another process: {(said.strip().splitlines() or ['no output'])[-1]:.300}")
    digests: dict[str, object] = json.loads(answer.strip().splitlines()[-1])
    return digests


def compare(here: Mapping[str, Any], there: Mapping[str, Any], where: str) -> None:
    for name, partitions in here.items():
        if [digest for digest, _ in partitions] != [digest for digest, _ in there[name]]:
            raise Fault(f"other partitions {where}: `{name}`")
        if partitions != there[name]:
            raise Fault(f"equal partitions give other bytes or facts {where}: `{name}`")


def main() -> None:
    question: dict[str, Any] = json.load(sys.stdin)
    importlib.import_module(question["module"])  # a backend without an entry point is known once defined
    wanted = set(question["programs"])
    with tempfile.TemporaryDirectory(prefix="hatch-lower-kit-") as folder:
        bench = Bench(Subject(question["backend"], question["options"]), Path(folder), Exports())
        digests = digests_of(bench, [case for case in all_cases() if case.name in wanted])
    sys.stdout.write(f"\n{json.dumps(digests)}\n")


if __name__ == "__main__":
    main()
