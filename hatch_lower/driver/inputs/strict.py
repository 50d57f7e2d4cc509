"""`strict = true`: the files that the code of an export may read, and the error of another read.

| may be read | |
|---|---|
| the system, the interpreter, installed distributions | whole folders |
| folders of this build and of the cache | whole folders |
| the import roots | source files and native modules; all folders can be listed |
| declared `inputs` | the files that match |
| the model's `verify-inputs` | its files |

So other data in the project has to be declared, also inside a package of the project.

The kernel refuses all other reads. With Landlock (Linux 5.13) a process without privileges gives up rights for good,
for itself and its subprocesses: here, the right to open files for reading and folders for listing outside of the
places above. Writing, executing and `stat` are not restricted.

`Watch` records an export in the child process, with pauses. Variables of the user that an unnoticed read would make
an input are hidden from the model.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
import struct
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from hatch_lower.cache.entry import Keep, Record, RemoteCache
from hatch_lower.cache.store import Store
from hatch_lower.config.checkpoint import checkpoint_of
from hatch_lower.config.settings import Recipe, is_sample_file
from hatch_lower.driver.inputs.collect import collect
from hatch_lower.driver.inputs.log import read_log
from hatch_lower.driver.inputs.present import Present
from hatch_lower.driver.inputs.record import RecordedInputs, secret
from hatch_lower.driver.inputs.recorder import Recorder
from hatch_lower.driver.lookup import open_stats, roots_of
from hatch_lower.driver.protocol import ChildRequest
from hatch_lower.errors import EntryPointError, HiddenVariableError, LowerError, ProcessError
from hatch_lower.events import Event, Reporter
from hatch_lower.huggingface.checkpoint import checkpoint_files
from hatch_lower.pipeline.exceptions import describe_exception, is_out_of_memory

MODULES = (".py", *EXTENSION_SUFFIXES)
LEFT_OUT = frozenset({"__pycache__", "site-packages", "dist-packages"})
SYSTEM_NAMES = ("bin", "dev", "etc", "gnu/store", "lib", "lib32", "lib64", "nix/store", "proc", "sbin", "sys", "usr")
# folders without which no program starts; their files are no model's inputs
READABLE_SYSTEM = tuple(Path("/", name) for name in SYSTEM_NAMES)
# the same numbers on every architecture
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
CREATE_RULESET_VERSION = 1
RULE_PATH_BENEATH = 1
READ_FILE, READ_DIR = 1 << 2, 1 << 3
# The option of `prctl` that the kernel requires before a process without privileges restricts itself
SET_NO_NEW_PRIVS = 38


def refuse_undeclared(request: ChildRequest, cache: Path) -> None:
    settings = request.settings
    project = (settings.root, *request.import_roots)
    whole = [*READABLE_SYSTEM, Path(sys.base_prefix), Path(sys.prefix), request.work or request.folder, cache]
    whole += [Path(entry) for entry in sys.path if entry]
    allowed = [folder for folder in whole if not holds_project(folder, project)]
    files = [*source_files(request), *sample_files(request), *(source.path for source in request.sources)]
    # a folder that matches stands for all files below
    files += (path for pattern in settings.inputs for path in settings.root.glob(pattern))
    if not restrict_reads([*allowed, *files], listable=project):
        raise ProcessError(
            "undeclared reads cannot be refused here",
            where="`strict` of the build hook `lower`",
            found="the kernel has no Landlock, or does not let this process use it",
            hint="build on Linux 5.13 or newer, or set `strict = false`",
        )


def undeclared_read(request: ChildRequest, error: BaseException) -> EntryPointError | None:
    """Return the error that names the undeclared file that the code could not read; `None` for other errors."""
    denied = [path for path in denied_paths(error, request.log) if not LEFT_OUT & set(Path(path).parts)]
    if not denied:
        return None
    path = Path(denied[0])
    hint = "let the export read files of the project only, or set `strict = false`"
    if path.is_relative_to(request.settings.root):
        inputs = [*request.settings.inputs, path.relative_to(request.settings.root).as_posix()]
        listed = ", ".join(f'"{pattern}"' for pattern in inputs)
        hint = f"declare it in the table of the build hook `lower`: inputs = [{listed}]"
    return EntryPointError(
        "the export read a file that is not declared, and `strict` is set",
        where=f"model `{request.model}`",
        found=str(path),
        hint=hint,
    )


def holds_project(folder: Path, project: tuple[Path, ...]) -> bool:
    """Return whether all that is in a folder being readable would make the project's own files so."""
    related = any(root.is_relative_to(folder) or folder.is_relative_to(root) for root in project)
    return related and not LEFT_OUT & set(folder.parts)


def source_files(request: ChildRequest) -> Iterator[Path]:
    for root in request.import_roots:
        for folder, folders, names in os.walk(root, followlinks=request.work in root.parents):
            folders[:] = [name for name in folders if name not in LEFT_OUT and not name.startswith(".")]
            yield from (Path(folder, name) for name in names if name.endswith(MODULES))


def sample_files(request: ChildRequest) -> Iterator[Path]:
    (model,) = (model for model in request.settings.models if model.name == request.model)
    yield from (request.settings.root / file for file in (model.verify_inputs, model.calibrate) if is_sample_file(file))
    if (checkpoint := checkpoint_of(model.export)) is not None:
        place = request.checkpoint or request.settings.root / checkpoint.folder
        yield from checkpoint_files(place, code=checkpoint.trusts_code)


def is_available() -> bool:
    """Return whether this kernel has Landlock and permits its use."""
    return sys.platform == "linux" and system_call(CREATE_RULESET, None, 0, CREATE_RULESET_VERSION) >= 1


def restrict_reads(allowed: Sequence[Path], listable: Sequence[Path] = ()) -> bool:
    """Restrict the reads of this thread and of its later threads and processes; return `False` without Landlock."""
    # Existing threads are not restricted, so this call comes before torch is imported. The restriction cannot be
    # undone.
    handled = struct.pack("=Q", READ_FILE | READ_DIR)
    rules = system_call(CREATE_RULESET, handled, len(handled), 0) if is_available() else -1
    if rules < 0:
        return False
    try:
        for path in allowed:
            allow(rules, path, READ_FILE | READ_DIR)
        for path in listable:
            allow(rules, path, READ_DIR)
        library = ctypes.CDLL(None, use_errno=True)
        return library.prctl(SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 and system_call(RESTRICT_SELF, rules, 0) == 0
    finally:
        os.close(rules)


def allow(rules: int, path: Path, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # a missing path stays forbidden if it appears later
    try:
        # a file has no right to be listed, and the kernel refuses a rule with the right
        rights &= READ_FILE | (READ_DIR if stat.S_ISDIR(os.fstat(descriptor).st_mode) else 0)
        system_call(ADD_RULE, rules, RULE_PATH_BENEATH, struct.pack("=Qi", rights, descriptor), 0)
    finally:
        os.close(descriptor)


def system_call(number: int, *arguments: int | bytes | None) -> int:
    """Call the kernel; the result is negative if the kernel refuses."""
    library = ctypes.CDLL(None, use_errno=True)
    library.syscall.restype = ctypes.c_long
    converted = [ctypes.c_long(argument) if isinstance(argument, int) else argument for argument in arguments]
    return int(library.syscall(ctypes.c_long(number), *converted))


def denied_paths(error: BaseException, log: Path | None) -> tuple[str, ...]:
    """Return the paths that could not be read, as far as an error or the preloaded library's log names them."""
    named = dict.fromkeys(os.fsdecode(path) for cause in error_chain(error) for path in refused_paths(cause))
    if not named and log is not None:  # the log also has refused reads of native code that did no harm
        named = dict.fromkeys(read_log(log).denied)
    return tuple(named)


def error_chain(first: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    left = [first]
    while left:
        error = left.pop()
        if id(error) not in seen:
            seen.add(id(error))
            yield error
            left += [cause for cause in (error.__context__, error.__cause__) if cause is not None]


def refused_paths(error: BaseException) -> Iterator[str | bytes]:
    if isinstance(error, PermissionError):
        yield from (path for path in (error.filename, error.filename2) if isinstance(path, str | bytes))


# Stages in which backends run, or the distribution of a class is looked up: the key covers their reads. In the stage
# `gate` the metric reads the inputs again that the stage `metric` has noted.
UNWATCHED = frozenset({"lookup", "compile", "package", "compare", "gate"})


class Watch:
    """The notes of an export; no notes are taken for a request whose result is not kept."""

    def __init__(self, request: ChildRequest, store: Store) -> None:
        self._request = request
        self._store = store
        self._began = time.time_ns()
        self.environment = dict(os.environ)
        self.recorder = Recorder((request.settings.root, *request.import_roots), request.log)
        self.recorder.start()

    def inputs(self) -> RecordedInputs:
        self.recorder.stop()
        request, store = self._request, self._store
        ignored = (request.work or request.folder, store.directory)
        roots = roots_of(request.settings.root, request.recorded_path, self.environment, ignored)
        stats = open_stats(store)
        model = next(model for model in request.settings.models if model.name == request.model)
        recipes = [recipe for recipe in request.settings.recipes if recipe.name in model.recipes]
        observations, globs = self.recorder.observations(), request.settings.inputs
        present = Present(roots, observations.environment, secret(store.directory), stats, request.project)
        inputs = collect(observations, present, began_ns=self._began, globs=globs, tools=tools_of(recipes))
        stats.save()  # the next build compares the digests of these files
        return inputs


class PausingReporter:
    """Passes events on, and pauses the notes while hatch-lower and the backends read inputs that are in the key."""

    def __init__(self, reporter: Reporter, recorder: Recorder) -> None:
        self._reporter = reporter
        self._recorder = recorder
        self._pause = contextlib.ExitStack()

    def report(self, event: Event) -> None:
        """Pass an event on. The time after a stage belongs to the stage until the next stage starts."""
        if event.state == "start":
            self._pause.close()
            if event.stage in UNWATCHED:
                self._pause.enter_context(self._recorder.unwatched())
        self._reporter.report(event)


class PausingRemote:
    """A shared cache that pauses the notes during its own reads, which are no inputs of the export."""

    def __init__(self, remote: RemoteCache, recorder: Recorder) -> None:
        self._remote = remote
        self._recorder = recorder

    def fetch(self, key: str, keep: Keep) -> Record | None:
        with self._recorder.unwatched():
            return self._remote.fetch(key, keep)

    def offer(self, key: str, record: Record, blobs: Mapping[str, Path]) -> bool:
        with self._recorder.unwatched():
            return self._remote.offer(key, record, blobs)


def tools_of(recipes: Sequence[Recipe]) -> list[str]:
    """Return the commands on which the blobs of the recipes' backends depend."""
    from hatch_lower.exir.backend.registry import find_backend  # by now torch has been imported
    from hatch_lower.pipeline.sandbox import backend_guard

    tools: set[str] = set()
    for recipe in recipes:
        for choice in recipe.backends:
            with backend_guard(choice.name, f"recipe `{recipe.name}`"):
                tools.update(find_backend(choice.name).tools(choice.options))
    return sorted(tools)


@contextmanager
def hidden_refused(model: str, hidden: Sequence[str], passed: Sequence[str], reads: Recorder) -> Iterator[None]:
    """Refuse a model that has asked for a hidden variable, whether or not the code inside the block fails."""
    try:
        yield
    except HiddenVariableError:
        raise
    except Exception as error:
        if not is_out_of_memory(error):
            refuse_hidden(model, hidden, passed, reads, error)
        raise
    refuse_hidden(model, hidden, passed, reads)


def refuse_hidden(
    model: str, hidden: Sequence[str], passed: Sequence[str], reads: Recorder, cause: Exception | None = None
) -> None:
    names = reads.asked_of(hidden)
    if not names:
        return
    listed = ", ".join(f'"{name}"' for name in dict.fromkeys((*passed, *names)))
    raise HiddenVariableError(
        "the export asked for variables that are set for this build, and that a build does not pass on",
        where=f"model `{model}`",
        found=", ".join(f"`{name}`" for name in names) + ("" if cause is None else f"; then {failure_text(cause)}"),
        hint=f"write `pass-env = [{listed}]` in the hook's table, or unset variables that the model does not need",
    ) from cause


def failure_text(error: Exception) -> str:
    text = error.found or error.what if isinstance(error, LowerError) else describe_exception(error)
    return text.splitlines()[0] if text else type(error).__name__
