"""Instructions of a load and of a call, counted by `perf stat`.

A child process loads the recipe and calls its methods with the packaged check inputs, after a warm-up, with a single
thread, a fixed hash seed, and fixed addresses if the system allows that. The cost of counting an empty range is
subtracted. With a longer path to the folder, or other environment variables, a load differs by 0.3 % and a call by up
to 0.8 %.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from hatch_lower.cli.measure.figures import ChildFigures, FigureSubject, thread_variables
from hatch_lower.cli.measure.temporary import work_folder
from hatch_lower.errors import LowerError, ProcessError
from hatch_lower.format.plan import read_plan
from hatch_lower.frozen import Frozen
from hatch_lower.runtime.files import PackagedFolder

REQUEST = "request.json"
ANSWER = "answer.json"
FIFOS = ("control", "answers")
PERF_OUTPUT = "perf.csv"
FOLDER = "lowered"  # a link, so that the path of the unpacked wheel does not change the count
# Parts of a request
NOTHING = "nothing"
LOAD = "load"
CALL = "call "  # a method's name follows
PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")
PROBE_SECONDS = 30.0
LIMIT_SECONDS = 300.0
NOT_STARTED = 126  # an exit status
EVENT = "instructions:u"
FIXED = {
    **thread_variables(1),
    "PYTHONHASHSEED": "0",
    "PYTHONSAFEPATH": "1",  # the name of the work folder differs each time
}


class Counter(Frozen):
    program: str  # `perf`
    environment: Mapping[str, str]  # of the counted processes
    prefix: tuple[str, ...] = ()  # runs a command at fixed addresses


def find_counter(environment: Mapping[str, str]) -> Counter | str:
    """Return the machine's counter, or the reason why instructions cannot be counted."""
    program = shutil.which("perf", path=environment.get("PATH"))
    if program is None:
        return "perf is not installed"
    with work_folder() as work:
        output = work / PERF_OUTPUT
        status, said = run_counted(
            [program, "stat", "-x,", "-e", EVENT, "-o", str(output), "true"], environment, PROBE_SECONDS
        )
        number = perf_number(output) if status == 0 else perf_refusal(said)
    if isinstance(number, str):
        return f"perf: {number}"
    _, usage = run_counted([program, "stat", "-h"], environment, PROBE_SECONDS)
    if "fifo:" not in usage:
        return "perf is too old: `perf stat` has no option `--control=fifo:…`"
    return Counter(program, environment, fixed_addresses(environment))


def perf_number(output: Path) -> int | str:
    """Return the sum in a file of `perf stat -x,`, or the reason why the file has no number."""
    # A processor with two kinds of cores has a line for each kind
    rows = [line.split(",") for line in output.read_text().splitlines() if "instructions" in line]
    numbers = [int(row[0]) for row in rows if row[0].isdigit()]
    if not sum(numbers):
        return next((row[0].strip("<>") for row in rows if not row[0].isdigit()), "the count is 0")
    if any(row[0].isdigit() and len(row) > 4 and row[4] != "100.00" for row in rows):
        return "another process uses the counter at the same time"
    return sum(numbers)


def perf_refusal(said: str) -> str:
    if "permi" not in said.lower() and "perf_event_paranoid" not in said:
        return last_line(said)
    with suppress(OSError):
        return f"not permitted (perf_event_paranoid = {PARANOID.read_text().strip()})"
    return "not permitted"


def fixed_addresses(environment: Mapping[str, str]) -> tuple[str, ...]:
    program = shutil.which("setarch", path=environment.get("PATH"))
    if program is None or run_counted([program, "-R", "true"], environment, PROBE_SECONDS)[0] != 0:
        return ()  # containers forbid fixed addresses by default
    return (program, "-R")


def count_instructions(
    counter: Counter, folder: PackagedFolder, recipe: FigureSubject, imports: Sequence[str]
) -> ChildFigures:
    """Count the instructions of a load of a recipe, and of a call of each method.

    A part whose process exceeds the limit has no count. `imports` are modules that the project's settings name.
    """
    subjects = {LOAD: recipe}
    try:
        file = folder.manifest.models[recipe.model].recipes[recipe.recipe].plan
        methods = read_plan(folder.read(file), str(folder.path / file.path)).methods
    except LowerError as error:
        return ChildFigures({}, {recipe: error.what})
    subjects |= {f"{CALL}{method}": replace(recipe, method=method) for method in methods}
    request = {"installed": folder.installed, "model": recipe.model, "recipe": recipe.recipe, "imports": list(imports)}
    # the load comes last: the earlier processes have written the bytecode of its imports
    parts = [*(part for part in subjects if part != LOAD), NOTHING, LOAD]
    numbers: dict[str, float] = {}
    reasons: dict[str, str] = {}
    for part in parts:
        number = count_part(counter, folder.path.resolve(), {**request, "part": part})
        if isinstance(number, str):
            reasons[part] = number
        else:
            numbers[part] = number
    if NOTHING not in numbers:
        return ChildFigures({}, {subject: reasons.get(part, reasons[NOTHING]) for part, subject in subjects.items()})
    base = numbers.pop(NOTHING)
    figures = {
        subjects[part]: {"load-instructions" if part == LOAD else "call-instructions": max(0, number - base)}
        for part, number in numbers.items()
    }
    return ChildFigures(figures, {subjects[part]: reason for part, reason in reasons.items() if part != NOTHING})


def count_part(counter: Counter, folder: Path, request: Mapping[str, object]) -> float | str:
    """Run a child process; return the instructions of a range of a part, or the reason for their absence."""
    with work_folder() as work:
        (work / REQUEST).write_text(json.dumps(request), encoding="utf-8")
        (work / FOLDER).symlink_to(folder)
        for name in FIFOS:
            os.mkfifo(work / name)
        control = f"--control=fifo:{','.join(str(work / name) for name in FIFOS)}"
        options = ["stat", "-x,", "-e", EVENT, "-o", str(work / PERF_OUTPUT), "--delay=-1", control, "--"]
        command = [*counter.prefix, counter.program, *options]
        command += [sys.executable, "-m", "hatch_lower.cli.measure.counted_child"]
        status, said = run_counted(command, {**counter.environment, **FIXED}, LIMIT_SECONDS, work)
        answer: dict[str, Any] = {"ranges": 0, "reason": ""}
        with suppress(FileNotFoundError):
            answer = json.loads((work / ANSWER).read_text(encoding="utf-8"))
        if answer["reason"] or not answer["ranges"]:
            return answer["reason"] or exit_reason(status, said)
        try:
            number = perf_number(work / PERF_OUTPUT)
        except (OSError, ValueError) as error:  # the disk is full, for example
            return f"perf left no numbers: {error}"
        return number if isinstance(number, str) else number / answer["ranges"]


def exit_reason(status: int | None, said: str) -> str:
    if status is None:
        return f"the process took longer than {LIMIT_SECONDS:g} seconds"
    if status < 0:  # Popen's representation of a signal
        return f"the process was ended by signal {-status}"
    return last_line(said) or f"the process ended with status {status}"


def last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def run_counted(
    command: Sequence[str], environment: Mapping[str, str], limit_seconds: float, work: Path | None = None
) -> tuple[int | None, str]:
    """Return a command's status (`None` after the limit, 126 if the command cannot be started) and its output."""
    # imported here, because the child imports this module and needs few imports
    from hatch_lower.cli.measure.command import run_limited

    try:
        return run_limited(command, "the counter", work, environment, limit_seconds)
    except ProcessError as error:  # no program, or no memory for another process
        return NOT_STARTED, error.found
