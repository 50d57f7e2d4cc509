"""Are a backend's results the same each time, here, in other processes, and with another environment? `python -m
hatch_lower.backends.testing.determinism` is such a process: it reads the backend and the programs to lower on its
standard input, and writes digests of partitions and results, all as JSON.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from hatch_lower.backends.testing.bench import Bench, Exports, KitBackend, probe, sample
from hatch_lower.backends.testing.case import Case, Fault
from hatch_lower.backends.testing.comparison import difference_from_eager, eager_calls
from hatch_lower.backends.testing.programs import all_cases
from hatch_lower.exir.graph.canonical import structure_digest
from hatch_lower.exir.lowering.preprocess import PreprocessRequest
from hatch_lower.pipeline.environment_reads import EnvironmentReads

SEEDS = ("1", "2")
LIMIT = 900  # seconds after which another process is given up


def partition_digests(bench: Bench, cases: Sequence[Case]) -> dict[str, list[list[str]]]:
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
    first, second = partition_digests(bench, chosen), partition_digests(bench, chosen)
    compare_digests(first, second, "the second time")
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
    here = partition_digests(bench, chosen)
    with tempfile.TemporaryDirectory(prefix="hatch-lower-kit-") as folder:
        running = [start_child(seed, folder) for seed in SEEDS]
        answers = [ask(process, question) for process in running]
    for seed, answer in zip(SEEDS, answers, strict=True):
        compare_digests(here, answer, f"in a process with PYTHONHASHSEED={seed} in another directory")
    return f"{len(chosen)} programs in {len(SEEDS)} processes"


def start_child(seed: str, folder: str) -> subprocess.Popen[str]:
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


def compare_digests(here: Mapping[str, Any], there: Mapping[str, Any], where: str) -> None:
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
        bench = Bench(KitBackend(question["backend"], question["options"]), Path(folder), Exports())
        digests = partition_digests(bench, [case for case in all_cases() if case.name in wanted])
    sys.stdout.write(f"\n{json.dumps(digests)}\n")


if __name__ == "__main__":
    main()


NETWORK = frozenset({"socket.connect", "socket.sendto", "socket.getaddrinfo", "socket.gethostbyname"})
FILES = frozenset({"open", "os.listdir", "os.scandir"})
HOMES = ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME")
# new values of variables that the backend's own code reads; the second if the first is already set
VALUES = ("1", "0")


def check_environment(bench: Bench, cases: Sequence[Case]) -> str:
    """Lower and run a program under another home folder, and then with other values of the variables that were read."""
    case = probe(bench, cases, "operators/perceptron", "operators/fused")
    request = bench.requests(bench.edge(case))[0]
    here = bench.results([request])
    with (
        tempfile.TemporaryDirectory(prefix="hatch-lower-kit-") as home,
        patch.dict(os.environ, dict.fromkeys(HOMES, home)),
    ):
        with variables_read(own_code(bench)) as names, heard() as events:
            refuse_other_result(bench, request, here, "another home folder")
            run_once(bench, case)
        refuse_events(events, home)
    changed = {name: VALUES[os.environ.get(name) == VALUES[0]] for name in sorted(names - {*HOMES, "PATH"})}
    if changed:
        what = ", ".join(f"`{name}={value}`" for name, value in changed.items())
        with patch.dict(os.environ, changed):
            refuse_other_result(bench, request, here, what)
            if difference := run_once(bench, case):
                raise Fault(f"with {what} the backend computes another result: {difference}")
    return f"{len(changed)} variables are read" if changed else ""


def refuse_other_result(bench: Bench, request: PreprocessRequest, known: Sequence[tuple[str, str]], what: str) -> None:
    ((key, digest),) = known
    if bench.results([request]) != known and bench.keyed([request])[0][0] == key:
        raise Fault(f"{what} changes the result and not the key: name it in `fingerprint` (before: {digest[:8]})")


def run_once(bench: Bench, case: Case) -> str:
    loaded = bench.load(bench.save(bench.lowered(case)))
    if not bench.subject.computes:
        return ""
    (call, *_) = eager_calls(case.module(), case.arguments()[:1])
    return difference_from_eager(bench, loaded, call)


def own_code(bench: Bench) -> Callable[[str], bool]:
    # a source file belongs to the backend if it lies in the folder of one of its halves' modules
    files = [sys.modules[half.__module__].__file__ or "" for half in (bench.backend, bench.delegate())]
    folders = tuple(f"{os.path.dirname(file)}{os.sep}" for file in files)
    return lambda path: path.startswith(folders)


@contextmanager
def variables_read(is_own: Callable[[str], bool]) -> Iterator[set[str]]:
    """Give the names of variables that a backend's own code reads in the block; complete after the block."""
    names: set[str] = set()
    reads = EnvironmentReads(is_own, lambda name: None)
    reads.start()
    try:
        yield names
    finally:
        reads.stop()
        names |= {name for name, own in reads.names.items() if own}


@contextmanager
def heard() -> Iterator[list[tuple[str, object]]]:
    # an audit hook cannot be removed: afterwards the hook does nothing
    events: list[tuple[str, object]] = []
    active = True

    def hear(event: str, arguments: tuple[object, ...]) -> None:
        if active and (event in NETWORK or event in FILES):
            events.append((event, arguments[event.startswith("socket.connect") or event == "socket.sendto"]))

    sys.addaudithook(hear)
    try:
        yield events
    finally:
        active = False


def refuse_events(events: Sequence[tuple[str, object]], home: str) -> None:
    folders = [home, os.path.expanduser("~")]
    code = [*filter(None, sys.path), sys.prefix, sys.base_prefix, os.getcwd(), tempfile.gettempdir()]
    for event, argument in events:
        if event in NETWORK:
            raise Fault(f"the backend uses the network: {argument}")
        if not isinstance(argument, (str, bytes, os.PathLike)):
            continue
        path = Path(os.path.abspath(os.fsdecode(argument)))
        if path.is_relative_to(home) or (
            any(map(path.is_relative_to, folders)) and not any(map(path.is_relative_to, code))
        ):
            raise Fault(f"the backend reads the home folder: {path}")
