"""Run half of the `executorch` backend: ExecuTorch's runtime on the mapped file. It imports no compiler."""

from __future__ import annotations

import sys
import threading
import warnings
import weakref
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from torch import Tensor, contiguous_format

from hatch_lower.errors import ProgramError
from hatch_lower.runtime.delegates import Delegate, DelegateBlob, description_error

EXTRA = 'pip install "hatch-lower[executorch]"'
OTHERS = ("executorch.runtime", "executorch.extension.pybindings.portable_lib")
"""Modules by which others load programs."""


class Pool:
    """The threads that ExecuTorch computes with, and the programs that use them.

    A program keeps using the threads that there were when it was loaded: to change them while there is one ends the
    process. So the programs that are loaded have to be known.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._users: weakref.WeakSet[ExecutorchDelegate] = weakref.WeakSet()

    def add(self, user: ExecutorchDelegate) -> None:
        """Note a loaded program, until it is freed."""
        self._users.add(user)

    def resize(self, library: Any, threads: int) -> None:
        """Set the number of threads, or warn if a program is loaded that uses the present ones."""
        present = library._threadpool_get_thread_count()
        if present == threads:
            return
        if len(self._users) or any(name in sys.modules for name in OTHERS):
            warnings.warn(
                f"ExecuTorch runs with {present} threads instead of {threads}: its pool belongs to the process, and a "
                "program that was loaded before uses it",
                RuntimeWarning,
                stacklevel=3,
            )
            return
        library._unsafe_reset_threadpool(threads)


class ExecutorchDelegate(Delegate):
    """A loaded `.pte`.

    Args:
        program: holds the mapping of the file.
        method: its one method.
        info: how a call's inputs and outputs map to the method's.
    """

    # of the class, as ExecuTorch's pool is of the process: all programs share it
    _pool: ClassVar[Pool] = Pool()

    def __init__(self, program: Any, method: Any, info: CallInfo) -> None:
        self._program = program
        self._call = method.call
        self._passed = info.passed
        self._all = info.passed == list(range(info.given))
        self._orders = info.orders if any(order is not None for order in info.orders) else None

    @classmethod
    def load(cls, blob: DelegateBlob, constants: Sequence[Tensor]) -> ExecutorchDelegate:
        """Map the file and prepare its method, which packs the weights into XNNPACK's layout.

        Raises:
            ProgramError: if ExecuTorch is not installed, or refuses the file.
        """
        info = read_info(blob)
        with cls._pool.lock:
            library = runtime(blob)
            if info.threads is not None:
                cls._pool.resize(library, info.threads)
            try:
                program = library._load_program(str(blob.path))
                method = program.load_method("forward")
            except RuntimeError as error:
                raise ProgramError(
                    "a partition of the backend `executorch` cannot be loaded",
                    where=str(blob.path),
                    found=str(error),
                    hint="install the package again, or the version of ExecuTorch that it requires",
                ) from error
            delegate = cls(program, method, info)
            cls._pool.add(delegate)
        return delegate

    def run(self, inputs: list[Tensor]) -> Sequence[Any]:
        """Run; the results are the caller's own memory. Calls from several threads take turns."""
        given = inputs if self._all else [inputs[position] for position in self._passed]
        results: list[Tensor] = self._call([each.detach().contiguous() for each in given], True)
        if self._orders is None:
            return results
        return [
            result if order is None else in_order(result, order)
            for result, order in zip(results, self._orders, strict=True)
        ]


def in_order(tensor: Tensor, order: Sequence[int]) -> Tensor:
    """Return a contiguous tensor with its dimensions in another order in memory, outermost first."""
    back = sorted(range(len(order)), key=order.__getitem__)
    # not `contiguous()`, which leaves an empty tensor as it is
    return tensor.permute(*order).clone(memory_format=contiguous_format).permute(*back)


def runtime(blob: DelegateBlob) -> Any:
    """Return ExecuTorch's extension module.

    The Python modules around it import more of ExecuTorch, and warn.

    Raises:
        ProgramError: if it is not installed.
    """
    try:
        from executorch.extension.pybindings import _portable_lib
    except ImportError as error:
        raise ProgramError(
            "a partition of the backend `executorch` needs ExecuTorch's runtime, which is not installed",
            where=blob.path.name,
            found=str(error),
            hint=EXTRA,
        ) from error
    return _portable_lib


# no dataclass: to generate its methods takes a millisecond of a process's first load
class CallInfo(NamedTuple):
    """How a call's inputs and outputs map to those of the method.

    Args:
        given: the number of inputs of a call.
        passed: the positions of those that the method gets.
        orders: of each output the order of its dimensions in memory, or `None` for a contiguous one.
        threads: of the pool; `None`: as it is.
    """

    given: int
    passed: list[int]
    orders: list[Any]
    threads: int | None


def read_info(blob: DelegateBlob) -> CallInfo:
    """Return the facts that the compile half wrote.

    Raises:
        ProgramError: if they are damaged.
    """
    info = blob.info
    problem = ""
    try:
        given, passed, orders, threads = (
            int(info["inputs"]),
            list(info["passed"]),
            list(info["orders"]),
            info["threads"],
        )
        if not all(isinstance(position, int) and 0 <= position < given for position in passed):
            problem = f"inputs {passed} of {given}"
        elif not all(order is None or sorted(order) == list(range(len(order))) for order in orders):
            problem = f"orders {orders}"
        elif threads is not None and (not isinstance(threads, int) or threads < 1):
            problem = f"{threads!r} threads"
    except (KeyError, TypeError, ValueError) as error:
        problem = f"{type(error).__name__}: {error}"
    if problem:
        raise description_error(blob, "executorch", problem)
    return CallInfo(given, passed, orders, threads)
