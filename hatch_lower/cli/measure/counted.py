"""Instructions of a load and of a call, counted by perf, or by valgrind's callgrind where a machine has no counters.

A child process loads the recipe and calls its methods with the packaged check inputs, after a warm-up, with one thread,
a fixed hash seed, and fixed addresses where the system allows that. What counting nothing costs is taken off.

What remains: of five runs below callgrind, those of a perceptron of three layers differed by 0 (`aoti`) and by 0.06 %
(`reference`) in a call, and by 4 and 130 millionths in a load. With a longer path to the folder, or other variables in
the environment, a load differs by 0.3 % and a call by up to 0.8 %. Numbers of perf and of callgrind do not compare: the
processor that valgrind imitates has no AVX-512, so other kernels run.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from hatch_lower.cli.measure.figures import Found, Subject, thread_variables
from hatch_lower.cli.measure.temporary import work_folder
from hatch_lower.errors import LowerError, ProcessError
from hatch_lower.format.plan import read_plan
from hatch_lower.frozen import Frozen
from hatch_lower.runtime.files import PackagedFolder

REQUEST = "request.json"
ANSWER = "answer.json"
FIFOS = ("control", "answers")
PERF_OUTPUT = "perf.csv"
DUMP = "dump"
VGDB = "vgdb"
FOLDER = "lowered"  # a link: where a wheel was unpacked must not change what is counted
# Parts of a request
NOTHING = "nothing"
LOAD = "load"
CALL = "call "  # the method's name follows
PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")
PROBE_SECONDS = 30.0
LIMIT_SECONDS = 300.0
NOT_STARTED = 126  # an exit status
EVENT = "instructions:u"
FIXED = {
    **thread_variables(1),
    "PYTHONHASHSEED": "0",
    "PYTHONSAFEPATH": "1",  # the work folder has another name each time: it is no part of what is counted
}


class Counter(Frozen):
    tool: Literal["perf", "callgrind"]
    program: str  # `perf` or `valgrind`
    vgdb: str = ""
    prefix: tuple[str, ...] = ()  # what runs a command at addresses that are not random


def find_counter(environment: Mapping[str, str], *, slow: bool = True) -> Counter | str:
    """Return what can count instructions here, or why nothing can; without `slow` only what takes seconds."""
    perf = find_perf(environment)
    if isinstance(perf, Counter):
        return perf
    if not slow:
        return f"perf: {perf}; callgrind, which takes minutes, counts with `--tier counted` only"
    callgrind = find_callgrind(environment)
    return callgrind if isinstance(callgrind, Counter) else f"perf: {perf}; valgrind: {callgrind}"


def find_perf(environment: Mapping[str, str]) -> Counter | str:
    program = shutil.which("perf", path=environment.get("PATH"))
    if program is None:
        return "not installed"
    with work_folder() as work:
        output = work / PERF_OUTPUT
        status, said = run([program, "stat", "-x,", "-e", EVENT, "-o", str(output), "true"], environment, PROBE_SECONDS)
        number = perf_number(output) if status == 0 else perf_refusal(said)
    if isinstance(number, str):
        return number
    _, usage = run([program, "stat", "-h"], environment, PROBE_SECONDS)
    if "fifo:" not in usage:
        return "too old: `perf stat` has no option `--control=fifo:…`"
    return Counter("perf", program, prefix=fixed_addresses(environment))


def perf_number(output: Path) -> int | str:
    """Return the sum of what `perf stat -x,` counted, or why that is no number."""
    # A processor with cores of two kinds has a line for each of them
    rows = [line.split(",") for line in output.read_text().splitlines() if "instructions" in line]
    numbers = [int(row[0]) for row in rows if row[0].isdigit()]
    if not sum(numbers):
        return next((row[0].strip("<>") for row in rows if not row[0].isdigit()), "it counts nothing")
    if any(row[0].isdigit() and len(row) > 4 and row[4] != "100.00" for row in rows):
        return "others use the counter at the same time"
    return sum(numbers)


def perf_refusal(said: str) -> str:
    if "permi" not in said.lower() and "perf_event_paranoid" not in said:
        return last_line(said)
    with suppress(OSError):
        return f"not permitted (perf_event_paranoid = {PARANOID.read_text().strip()})"
    return "not permitted"


def find_callgrind(environment: Mapping[str, str]) -> Counter | str:
    program, vgdb = (shutil.which(name, path=environment.get("PATH")) for name in ("valgrind", "vgdb"))
    if program is None:
        return "not installed"
    if vgdb is None:
        return "its program `vgdb` is not installed"
    status, said = run(
        [program, "--tool=callgrind", "--callgrind-out-file=/dev/null", "true"], environment, PROBE_SECONDS
    )
    return Counter("callgrind", program, vgdb, fixed_addresses(environment)) if status == 0 else last_line(said)


def fixed_addresses(environment: Mapping[str, str]) -> tuple[str, ...]:
    program = shutil.which("setarch", path=environment.get("PATH"))
    if program is None or run([program, "-R", "true"], environment, PROBE_SECONDS)[0] != 0:
        return ()  # containers forbid it by default
    return (program, "-R")


def count(
    counter: Counter,
    folder: PackagedFolder,
    model: str,
    recipe: str,
    environment: Mapping[str, str],
    limit_seconds: float = LIMIT_SECONDS,
    imports: Sequence[str] = (),
) -> Found:
    """Count the instructions of a load of a recipe, and of a call of each of its methods.

    What takes a process longer than the limit is not counted; `imports` are modules that the project's settings name.
    """
    subjects = {LOAD: Subject(model, recipe)}
    try:
        file = folder.manifest.models[model].recipes[recipe].plan
        methods = read_plan(folder.read(file), str(folder.path / file.path)).methods
    except LowerError as error:
        return Found({}, {subjects[LOAD]: error.what})
    subjects |= {f"{CALL}{method}": Subject(model, recipe, method) for method in methods}
    request = {"installed": folder.installed, "model": model, "recipe": recipe, "imports": list(imports)}
    numbers: dict[str, float] = {}
    reasons: dict[str, str] = {}
    # Callgrind tells the ranges of one process apart, perf knows but their sum. The load comes last: the processes
    # before it have written the bytecode of what it imports
    calls = [part for part in subjects if part != LOAD]
    groups = [calls, [NOTHING, LOAD]] if counter.tool == "callgrind" else [[part] for part in (*calls, NOTHING, LOAD)]
    for parts in groups:
        found, wrong = count_parts(counter, folder.path.resolve(), request, parts, environment, limit_seconds)
        numbers |= found
        reasons |= wrong
    if NOTHING not in numbers:
        return Found({}, {subject: reasons.get(part, reasons[NOTHING]) for part, subject in subjects.items()})
    base = numbers.pop(NOTHING)
    figures = {
        subjects[part]: {"load-instructions" if part == LOAD else "call-instructions": max(0, number - base)}
        for part, number in numbers.items()
    }
    return Found(figures, {subjects[part]: reason for part, reason in reasons.items() if part != NOTHING})


def count_parts(
    counter: Counter,
    folder: Path,
    request: Mapping[str, object],
    parts: Sequence[str],
    environment: Mapping[str, str],
    limit_seconds: float,
) -> tuple[dict[str, float], dict[str, str]]:
    """Run a child process; return the instructions of a range of each part, and why others could not be counted."""
    with work_folder() as work:
        text = json.dumps({**request, "parts": parts, "tool": counter.tool, "vgdb": counter.vgdb})
        (work / REQUEST).write_text(text, encoding="utf-8")
        (work / FOLDER).symlink_to(folder)
        command = [*counter.prefix, counter.program, *tool_options(counter, work)]
        command += [sys.executable, "-m", "hatch_lower.cli.measure.counted_child"]
        status, said = run(command, {**environment, **FIXED}, limit_seconds, work)
        answer: dict[str, Any] = {"ranges": {}, "reasons": {}}
        with suppress(FileNotFoundError):
            answer = json.loads((work / ANSWER).read_text(encoding="utf-8"))
        general = answer["reasons"].get("") or exit_reason(counter, status, said, limit_seconds)
        numbers: dict[str, float] = {}
        reasons: dict[str, str] = {}
        for part in parts:
            ranges, reason = answer["ranges"].get(part), answer["reasons"].get(part, general)
            number = reason if ranges is None else range_number(counter, work, ranges)
            if isinstance(number, str):
                reasons[part] = number
            else:
                numbers[part] = number
        return numbers, reasons


def tool_options(counter: Counter, work: Path) -> list[str]:
    if counter.tool == "perf":
        for name in FIFOS:
            os.mkfifo(work / name)
        control = f"--control=fifo:{','.join(str(work / name) for name in FIFOS)}"
        return ["stat", "-x,", "-e", EVENT, "-o", str(work / PERF_OUTPUT), "--delay=-1", control, "--"]
    return ["--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={work / DUMP}", f"--vgdb-prefix={VGDB}"]


def range_number(counter: Counter, work: Path, ranges: Sequence[int]) -> float | str:
    try:
        if counter.tool == "callgrind":
            return statistics.median(dump_number(work / f"{DUMP}.{position}") for position in ranges)
        number = perf_number(work / PERF_OUTPUT)
        return number if isinstance(number, str) else number / len(ranges)
    except (OSError, ValueError) as error:  # no space, for instance
        return f"{counter.tool} left no numbers: {error}"


def dump_number(dump: Path) -> int:
    (total,) = (line for line in dump.read_text(encoding="utf-8").splitlines() if line.startswith("totals: "))
    return int(total.split()[1])


def exit_reason(counter: Counter, status: int | None, said: str, limit_seconds: float) -> str:
    if status is None:
        return f"it took longer than {limit_seconds:g} seconds"
    if counter.tool == "callgrind" and (status == -signal.SIGILL or "SIGILL" in said):
        return "valgrind does not know an instruction that it needs (it has no AVX-512)"
    if status < 0:  # Popen's way to name a signal
        return f"the process was ended by signal {-status}"
    return last_line(said) or f"the process ended with status {status}"


def last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def run(
    command: Sequence[str], environment: Mapping[str, str], limit_seconds: float, work: Path | None = None
) -> tuple[int | None, str]:
    """Return a command's status and what it said: `None` if it took too long, a shell's if it cannot be started."""
    # not above: the child, which imports this module, is to import no more than it must
    from hatch_lower.cli.measure.command import run_limited

    try:
        return run_limited(command, "what counts", work, environment, limit_seconds)
    except ProcessError as error:  # no program, or no memory for another process
        return NOT_STARTED, error.found
