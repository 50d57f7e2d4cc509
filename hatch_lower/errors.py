"""Every error that hatch-lower shows to users.

Code raises an error where the facts are known; only the hook and the command line turn errors into text and an exit
status. Errors travel from the build's child process to the parent as JSON, so all fields are text.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Iterable, Iterator

# failures of the machine, not of the code that meets the failure
REFUSALS = frozenset(
    getattr(errno, name)
    for name in ("ENOSPC", "EDQUOT", "EFBIG", "EROFS", "EACCES", "EPERM", "EIO", "EMFILE", "ENFILE", "ENOLCK")
    if hasattr(errno, name)
)


# the dynamic linker's words for lack of memory: its error has no number
NO_ROOM_TO_MAP = "failed to map segment from shared object"
# messages for lack of memory: of Python, torch, C++, C, the dynamic linker, Rust, OpenBLAS, ONNX Runtime
NO_MEMORY = re.compile(
    r"\bMemoryError\b|\bout of memory\b|\bnot enough memory\b|\bbad_alloc\b|\bDefaultCPUAllocator: "
    r"|\bcan't start new thread\b|\bmemory allocation\b.*\bfailed\b"
    r"|\b(?:failed to|can't|cannot) allocate (?:\d+ bytes of )?memory\b|" + NO_ROOM_TO_MAP,
    re.I,
)
MORE_MEMORY = "give the process more memory, or a higher limit (`ulimit -v`): this file is not at fault"


class LowerError(Exception):
    """The base of all errors: a problem, its place, the value found there, and advice.

    `what` is the problem, in a sentence without a final full stop. `where` is a dotted TOML key, entry point, method,
    file, or the model's own source line. `found` is the offending value or the underlying tool's own words. `hint` is
    the next step for the reader.
    """

    def __init__(self, what: str, *, where: str = "", found: str = "", hint: str = "") -> None:
        super().__init__(what, where, found, hint)
        self.what = what
        self.where = where
        self.found = found
        self.hint = hint

    def __str__(self) -> str:
        rows = [("where", self.where), ("found", self.found), ("to do", self.hint)]
        lines = [f"{name}: {indented(text)}" for name, text in rows if text]
        # parts of the text may come from a server, a wheel or a worker, and must not control the reader's terminal
        return printable_lines("\n  ".join([self.what, *lines]))

    def to_json(self) -> dict[str, str]:
        """Return the fields and the class name, so that another process can raise the error again."""
        fields = {name: getattr(self, name) for name in ("what", "where", "found", "hint")}
        return {"error": type(self).__name__, **fields}


class ConfigError(LowerError):
    """The hook's table in `pyproject.toml` is wrong; the error lists every problem."""


class EntryPointError(LowerError):
    """A model's entry point is missing, fails, or returns an object that is not a model."""


class CaptureError(LowerError):
    """`torch.export` could not capture a method."""


class EdgeError(LowerError):
    """A program could not be converted to the edge dialect, or breaks the rules of the dialect."""


class PartitionError(LowerError, RuntimeError, AssertionError):
    """A partitioner returned an invalid partition; ExecuTorch raises `RuntimeError` or `AssertionError` for this."""


class BackendError(LowerError, NotImplementedError):
    """A backend is unknown, cannot be loaded, or failed to lower a partition; also a `RuntimeError`."""


class AnswerError(BackendError):
    """A backend broke the contract: it changed the weights, or returned an object that is not a result."""


class OperationError(BackendError):
    """A backend cannot lower one operation of a partition."""

    node: object = None  # the operation, in the program that the backend received
    stack: str = ""  # of the call in the model's code, as torch recorded it


class VerificationError(LowerError):
    """A lowered method computes other values than the eager module."""


class PackageError(LowerError):
    """The payload could not be put into the wheel."""


class CacheError(LowerError):
    """The cache cannot serve the build, or its mode forbids a needed operation."""


class ProcessError(LowerError):
    """The build's child process crashed, ran out of memory or time."""


class ExecutorError(LowerError):
    """The executor of a build is not available, or no worker of the executor can make a unit of the build."""


class DebugError(LowerError):
    """A delegate debug map was built from contradictory entries."""


class ProgramError(LowerError):
    """A packaged program is missing, damaged, from a newer version, or cannot run on this machine."""


class AbsentWeightsError(ProgramError):
    """Weights outside the wheel are not on this machine; the wheel itself may be whole."""


class UnavailableError(ProgramError):
    """The device or execution provider that a recipe computes on is missing or does not start on this machine.

    `what` names the device and no fact of the machine: a build that cannot compare a recipe packages the text.
    """


class SampleError(LowerError):
    """A file of real inputs cannot be read, or does not fit the methods that are called with the inputs."""


class FetchError(LowerError):
    """Weights outside the wheel, or the page of an index, cannot be fetched: no file, other contents, no connection."""


class InputError(LowerError, TypeError):
    """A loaded method was called with arguments that do not fit the exported method."""


class EmptyError(InputError):
    """A call would pass an empty tensor to a delegate that cannot compute empty tensors."""


class HiddenVariableError(LowerError):
    """An export reads an environment variable that is set outside, but that the build does not pass to the export."""


class CallError(LowerError, RuntimeError):
    """A delegate failed in a call, for instance for an index out of range; the model can be called again."""


class IndexRangeError(CallError, IndexError):
    """An index of a call is out of range: a token that is not in the vocabulary, for instance."""

    position: int | None = None  # of the input that has the index, among the inputs of the method or delegate
    least: int = 0
    rows: int = 0  # of the table


def printable(text: str) -> str:
    """Return a text with every control character escaped as in JSON: `\\u001b`."""
    if text.isprintable():
        return text
    # escaped as in JSON, so a JSON document keeps its meaning
    return "".join(character if character.isprintable() else json.dumps(character)[1:-1] for character in text)


def printable_lines(text: str) -> str:
    return text if text.isprintable() else "\n".join(printable(line.expandtabs(4)) for line in text.split("\n"))


def indented(text: str) -> str:
    return text.strip().replace("\n", "\n    ")


def kinds_of(base: type[LowerError]) -> Iterator[type[LowerError]]:
    for kind in base.__subclasses__():
        yield kind
        yield from kinds_of(kind)


def error_from_json(fields: dict[str, str]) -> LowerError:
    kinds = {kind.__name__: kind for kind in kinds_of(LowerError)}
    # the other process may have a class that this process lacks
    kind = kinds.get(fields.get("error", ""), LowerError)
    return kind(fields["what"], where=fields["where"], found=fields["found"], hint=fields["hint"])


def refused_error(error: BaseException, where: str) -> ProcessError | None:
    """Return the error for a file that the system refuses, as for lack of space; `None` for any other exception."""
    if not isinstance(error, OSError) or error.errno not in REFUSALS:
        return None
    return ProcessError(
        "the system refused a file",
        where=str(error.filename or where),
        found=error.strerror or str(error),
        hint=reading_hint(
            error.strerror or str(error),
            "make room there, or give this user the permission; `TMPDIR` names the folder of a build's own files",
        ),
    )


def reading_hint(found: str, usual: str) -> str:
    """Return advice for an unreadable file: `usual`, unless `found` reports too many open files or lack of memory."""
    # an engine's error has only the text of the system's error
    texts = [os.strerror(number) for number in (errno.EMFILE, errno.ENFILE)]
    if any(text in found for text in texts):
        return "close open files of this process, or raise the limit (`ulimit -n`): this file is not at fault"
    if any(text in found for text in (os.strerror(errno.ENOMEM), NO_ROOM_TO_MAP)):
        return MORE_MEMORY
    return usual


def nearest(name: str, known: Iterable[str]) -> str:
    """Return "did you mean `x`? known: `a`, `b`" for a name that is not among `known`."""
    import difflib  # not needed by a build without mistakes

    names = sorted(known)
    listed = ", ".join(f"`{candidate}`" for candidate in names) or "none"
    match = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean `{match[0]}`? known: {listed}" if match else f"known: {listed}"


def extra_hint(extra: str) -> str:
    name = f'"hatch-lower[{extra}]"'
    # most builds run in an isolated environment, which `pip install` does not reach
    return f"let `[build-system] requires` name {name}; for a build without isolation: pip install {name}"


def by_hand_hint(metric: str, model: str, recipe: str = "") -> str:
    """Return the command that calls a metric, `module:function`, with an installed model."""
    module, _, function = metric.partition(":")
    loaded = f"'{model}', recipe='{recipe}'" if recipe else f"'{model}'"
    call = f"import hatch_lower, {module}; print({module}.{function}(hatch_lower.load({loaded})))"
    build = "build without `metric` and `max-drop`, install the wheel"
    return f'call the metric by hand: {build}, and run `python -c "{call}"`'


def size_text(size: int) -> str:
    """Return a number of bytes with three significant digits: `412 B`, `38.1 KiB`, `1.25 GiB`."""
    value, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1000:
            break
        value, unit = value / 1024, larger
    if unit == "B":
        return f"{size} B"
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} {unit}"
