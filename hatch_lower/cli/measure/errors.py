"""The largest error of each method against eager's packaged outputs, measured in a child process that imports torch.

`python -m hatch_lower.cli.measure.errors REQUEST` is the child. The child writes a line of JSON for each method, so
the parent knows the method that hangs or ends the process. Calls run on a single core with a single thread, because
the number of threads changes the order of sums. Other processors and versions of torch change the last digits of an
error, so errors are rounded.
"""

from __future__ import annotations

import json
import math
import os
import re
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hatch_lower.cli.measure.command import run_limited
from hatch_lower.cli.measure.figures import ChildFigures, FigureSubject, thread_variables
from hatch_lower.cli.measure.temporary import work_folder
from hatch_lower.driver.child_guards import end_with_parent
from hatch_lower.errors import LowerError, ProcessError, ProgramError, error_from_json
from hatch_lower.runtime.files import PackagedFolder, open_folder

NO_CHECK = "no packaged check inputs"
DIGITS = 2
TAIL = 2000  # characters of the child's output in a message
ROW = ("model", "recipe", "method", "status", "detail", "largest_error")  # reported fields of a check row
HINT = "`hatch-lower check` runs the same inputs, with output on the terminal"


def measure_errors(
    folders: Mapping[str, PackagedFolder], title: str, seconds: float, imports: Mapping[str, Sequence[str]] = {}
) -> ChildFigures:
    """Return the largest absolute error of each method of each recipe that can run here, to two digits.

    An error that is not a number is infinite. Messages call the folders `title`. The time limit is `seconds`. `imports`
    are, by recipe, the modules that the project's settings name; a program from a folder imports no modules itself.
    """
    skipped = {
        FigureSubject(name): NO_CHECK for name, folder in folders.items() if folder.manifest.models[name].check is None
    }
    folders = {name: folder for name, folder in folders.items() if FigureSubject(name) not in skipped}
    places = {name: str(folder.path.resolve()) for name, folder in folders.items()}
    models = {name: (places[name], folder.installed) for name, folder in folders.items()}
    request = {"models": models, "imports": sorted({module for modules in imports.values() for module in modules})}
    rows, ending, said = run_child(request, seconds) if models else ([], "", "")
    read = [{**row, "detail": titled(row["detail"], places[row["model"]], title)} for row in rows]
    for row in read:
        if row["status"] in ("fails", "damaged", "absent"):
            where = "/".join(part for part in (title, row["model"], row["recipe"], row["method"]) if part)
            raise ProgramError("a method cannot be compared with eager", where=where, found=row["detail"], hint=HINT)
    if ending:
        subject = next(unfinished_methods(folders, read), None)
        raise ProcessError(
            "the process that compares methods with eager did not end well",
            where=f"{title}, {'after the last method' if subject is None else f'`{subject}`, at load or call'}",
            found=f"{ending}{said and f'; output: {said}'}",
            hint=HINT,
        )
    figures: dict[FigureSubject, dict[str, float]] = {}
    for row in read:
        subject = FigureSubject(row["model"], row["recipe"], row["method"])
        if row["largest_error"] is None:
            skipped[subject] = row["detail"]
        else:
            # finite differences are within the tolerance, so the other difference is not finite
            largest = math.inf if row["status"] == "differs" else row["largest_error"]
            figures[subject] = {"error": float(f"{largest:.{DIGITS - 1}e}")}
    return ChildFigures(figures, skipped)


def titled(text: str, place: str, title: str) -> str:
    """Return a message that calls a folder by the title, except in a command, which a title does not fit."""
    return re.sub(rf"(?<!hatch-lower fetch ){re.escape(place)}", lambda _: title, text)


def unfinished_methods(folders: Mapping[str, PackagedFolder], rows: list[dict[str, Any]]) -> Iterator[FigureSubject]:
    """Yield the methods without a row, in the order of the child."""
    done = {FigureSubject(row["model"], row["recipe"], row["method"]) for row in rows if row["status"] != "stale"}
    for name in sorted(folders):
        model = folders[name].manifest.models[name]
        for recipe in model.order:
            for method in sorted(model.recipes[recipe].methods):
                subject = FigureSubject(name, recipe, method)
                if done.isdisjoint((FigureSubject(name), FigureSubject(name, recipe), subject)):
                    yield subject


def run_child(request: object, seconds: float) -> tuple[list[dict[str, Any]], str, str]:
    """Return the rows of the child, how the child ended (empty: normally), and the end of its output."""
    command = [sys.executable, "-m", "hatch_lower.cli.measure.errors", json.dumps(request)]
    environment = {**os.environ, **thread_variables(1)}
    # `-m` puts the work folder, which is empty, on the import path
    with work_folder() as work, tempfile.TemporaryFile() as lines:
        what = "the process that compares methods with eager"
        status, said = run_limited(command, what, work, environment, seconds, lines)
        ending = f"the process took more than {seconds:g} seconds" if status is None else ending_text(status)
        lines.seek(0)
        # a child that was killed may leave half a line
        rows = [json.loads(line) for line in lines if line.endswith(b"\n")]
    if rows and "error" in rows[-1]:
        raise error_from_json(rows[-1]["error"])
    return rows, ending, said[-TAIL:].strip()


def ending_text(status: int) -> str:
    if status >= 0:
        return f"the process ended with status {status}" if status else ""
    names = {number.value: number.name for number in signal.Signals}
    return f"the process was ended by {names.get(-status, f'signal {-status}')}"


def main() -> None:
    # output of libraries must not mix with the lines
    lines = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    end_with_parent()
    use_one_core()
    for row in error_rows(json.loads(sys.argv[1])):
        lines.write(f"{json.dumps(row)}\n")
        lines.flush()


def use_one_core() -> None:
    # some engines start a thread for each core regardless of the variables
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[os.getpid() % len(cores)]})  # parallel processes use different cores


def error_rows(request: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    from hatch_lower.runtime.check import check_packaged_model
    from hatch_lower.runtime.numbers import Tolerance
    from hatch_lower.runtime.selection import import_modules

    # no difference is too large, so that all outputs are compared
    tolerance = Tolerance(rtol=0.0, atol=math.inf)
    try:
        import_modules(request["imports"], "the project's `imports`", installed=True)
        for name, (path, installed) in sorted(request["models"].items()):
            opened = open_folder(Path(path))
            folder = PackagedFolder(opened.path, opened.manifest, None, installed)
            for row in check_packaged_model(folder, name, tolerance=tolerance):
                yield {name: getattr(row, name) for name in ROW}
    except LowerError as error:
        yield {"error": error.to_json()}


if __name__ == "__main__":
    main()
