"""Run half of the `executorch` backend: ExecuTorch's runtime on the mapped file. Imports no compiler."""

from __future__ import annotations

import sys
import threading
import warnings
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from torch import Tensor, empty

from hatch_lower.backends.call_map import CallMap, facts_read, read_call_map, require
from hatch_lower.errors import NO_MEMORY, ProgramError, reading_hint
from hatch_lower.runtime.delegates import Delegate, DelegateBlob

OF_THE_CALL = "error: 0x12"  # ExecuTorch's number for arguments that a kernel refuses
OTHERS = ("executorch.runtime", "executorch.extension.pybindings.portable_lib")  # other modules that load programs


class ThreadPool:
    # A program keeps using the threads that existed at its load: changing them while a program exists ends the process.
    # So all programs are loaded here.
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users: weakref.WeakSet[object] = weakref.WeakSet()

    def load(
        self, library: Any, program: Path, weights: Path | None, threads: int | None = None, *, is_timed: bool = False
    ) -> Any:
        with self._lock:
            if threads is not None:
                self._resize(library, threads)
            files = str(program), None if weights is None else str(weights)
            loaded = library._load_for_executorch(*files, **({"enable_etdump": True} if is_timed else {}))
            self._users.add(loaded)
        return loaded

    def _resize(self, library: Any, threads: int) -> None:
        present = library._threadpool_get_thread_count()
        if present == threads:
            return
        if len(self._users) or any(name in sys.modules for name in OTHERS):
            warnings.warn(
                f"ExecuTorch runs with {present} threads instead of {threads}: its pool belongs to the process, and a "
                "program that was loaded before uses it",
                RuntimeWarning,
                stacklevel=4,
            )
            return
        library._unsafe_reset_threadpool(threads)


class ExecutorchDelegate(Delegate):
    without_elements: ClassVar[str] = "refuse"  # XNNPACK ends the process, or never returns
    timed: ClassVar[str] = "hatch_lower.backends.executorch.timed:load_timed"
    # a class attribute, as ExecuTorch's pool is the process's: all programs share it
    pool: ClassVar[ThreadPool] = ThreadPool()

    def __init__(self, path: Path, module: Any, call: CallMap) -> None:
        self._path = path
        self._module = module
        self._call = module.forward
        self._map = call

    @classmethod
    def load(cls, blob: DelegateBlob, constants: Sequence[Tensor]) -> ExecutorchDelegate:
        return cls(*cls.open(blob, is_timed=False))

    @classmethod
    def open(cls, blob: DelegateBlob, *, is_timed: bool) -> tuple[Path, Any, CallMap]:
        """Return the file, the loaded program, and the map from calls to calls of the program."""
        info, library = read_info(blob), runtime(blob)
        weights = None if info.weights is None else blob.data_places[info.weights].path
        try:
            module = cls.pool.load(library, blob.path, weights, info.threads, is_timed=is_timed)
        except RuntimeError as error:
            raise unusable_program(blob.path, error) from error
        return blob.path, module, info.call

    def run(self, inputs: list[Tensor]) -> Sequence[object]:
        # the results are the caller's own memory; the library lets calls from several threads take turns
        given = [operand(value) for value in self._map.select(inputs)]
        try:
            results = self._call(given, True)  # the first call packs the weights into XNNPACK's layout
        except RuntimeError as error:
            if is_of_the_call(error) or NO_MEMORY.search(str(error)):
                raise
            raise unusable_program(self._path, error) from error
        return self._map.arrange(inputs, results)


def is_of_the_call(error: RuntimeError) -> bool:
    return str(error).endswith(OF_THE_CALL)


def unusable_program(path: Path, error: RuntimeError) -> ProgramError:
    found = str(error)
    try:
        with path.open("rb"), path.open("rb"):  # as many as the library has open at once, which tells no reason
            pass
    except OSError as reason:
        found += f": {reason.strerror}"
    return ProgramError(
        "a partition of the backend `executorch` cannot be loaded or run",
        where=str(path),
        found=found,
        hint=reading_hint(found, "install the package again, or the version of ExecuTorch that it requires"),
    )


def operand(value: Tensor | int) -> Tensor:
    if isinstance(value, int):  # a method takes no numbers: a size goes in as that of a tensor without elements
        return empty((value, 0))
    # a tensor without elements is contiguous for any strides, and ExecuTorch ends the process for some
    return value.detach().contiguous() if value.numel() else empty(value.shape, dtype=value.dtype)


def extension() -> Any:
    """Return ExecuTorch's extension module; its Python wrappers import more of ExecuTorch, and warn."""
    try:
        from executorch.extension.pybindings import _C  # its name since 1.5
    except ImportError:
        from executorch.extension.pybindings import _portable_lib

        return _portable_lib
    return _C


def runtime(blob: DelegateBlob) -> object:
    try:
        return extension()
    except ImportError as error:
        raise ProgramError(
            "a partition of the backend `executorch` needs ExecuTorch's runtime, which is not installed",
            where=blob.path.name,
            found=str(error),
            hint='pip install "hatch-lower[executorch]"',
        ) from error


class ExecutorchFacts(NamedTuple):
    # map from a call of the partition to a call of the method
    call: CallMap
    # threads of the pool; `None`: unchanged
    threads: int | None
    # name of one of its weights in the constants file; `None`: it has no weights there
    weights: str | None


def read_info(blob: DelegateBlob) -> ExecutorchFacts:
    with facts_read(blob, "executorch") as info:
        facts = ExecutorchFacts(read_call_map(info, ExecutorchDelegate.arrays), info["threads"], info["weights"])
        known = facts.threads is None or (isinstance(facts.threads, int) and facts.threads >= 1)
        require(known, f"{facts.threads!r} threads")
        require(facts.weights is None or facts.weights in blob.data_places, f"weights {facts.weights!r:.80}")
        return facts
