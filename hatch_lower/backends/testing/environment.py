"""Does a backend use anything of its environment: variables, the home folder, the network?"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from hatch_lower.backends.testing.bench import Bench
from hatch_lower.backends.testing.case import Case, Fault
from hatch_lower.backends.testing.comparison import difference_of, eager_calls
from hatch_lower.backends.testing.probes import probe
from hatch_lower.exir.lowering.preprocess import Request
from hatch_lower.pipeline.environment_reads import EnvironmentReads

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


def refuse_other_result(bench: Bench, request: Request, known: Sequence[tuple[str, str]], what: str) -> None:
    ((key, digest),) = known
    if bench.results([request]) != known and bench.keyed([request])[0][0] == key:
        raise Fault(f"{what} changes the result and not the key: name it in `fingerprint` (before: {digest[:8]})")


def run_once(bench: Bench, case: Case) -> str:
    loaded = bench.load(bench.save(bench.lowered(case)))
    if not bench.subject.computes:
        return ""
    (call, *_) = eager_calls(case.module(), case.arguments()[:1])
    return difference_of(bench, loaded, call)


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
