"""The run half of a backend: what loads processed bytes and executes them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from hatch_lower.errors import ProgramError
from hatch_lower.format.delegates import DataLayout

__all__ = ["Delegate", "DelegateBlob", "Place", "description_error"]


class Place(NamedTuple):
    """Where a tensor lies, without gaps and in the order of its dimensions."""

    path: Path
    offset: int  # bytes
    length: int  # bytes


@dataclass(frozen=True, slots=True)
class DelegateBlob:
    """One delegate's processed bytes in the installed wheel, already checked against its digest.

    Args:
        path: the file; its name holds its digest, so a path never stands for two contents.
        info: what the compile half put into `PreprocessResult.info`.
        data: the named data of all delegates of the program, by name: read-only views of mapped files. A mapping lives
            as long as a view of it, or what was made from one (`torch.frombuffer`); nothing is read before it is used.
        layouts: by name, how data is a tensor, where the compile half said so.
        data_places: by name, where it lies, for an engine that maps it itself: in a file of its own, called `<sha256 of
            its contents>.blob`, or in the constants file, which is a `.ptd` of ExecuTorch's then.
        places: of each constant that `load` is given, where it lies in the constants file, for an engine that maps it
            itself; `None` where it is changed by the program, has gaps, or is in no file.
    """

    path: Path
    info: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, memoryview] = field(default_factory=dict)
    layouts: Mapping[str, DataLayout] = field(default_factory=dict)
    data_places: Mapping[str, Place] = field(default_factory=dict)
    places: Sequence[Place | None] = ()


class Delegate(ABC):
    """One loaded blob, bound to one set of constants."""

    # The library whose arrays `load` and `run` are given and return: "torch", or "numpy" for an engine that runs where
    # torch is not installed. Where the program has others, the runtime converts them without a copy.
    # NumPy lacks bfloat16 and the 8-bit floats: they are those of `ml_dtypes` if that is installed, else raw (`V2`).
    arrays: ClassVar[str] = "torch"

    # What becomes of a call with tensors without elements: `run` gets it ("run"); it is left out where no output has
    # elements ("skip"); that, and it is refused where some tensor has none ("refuse").
    without_elements: ClassVar[str] = "run"

    # For `hatch-lower profile`: `module:function` of what loads a blob, called as `load`, as a `TimedDelegate` of
    # `runtime.timing`. Where there is none, or it returns another, `untimed` says why instructions are not measured.
    timed: ClassVar[str] = ""
    untimed: ClassVar[str] = "its run half does not measure them"

    @classmethod
    @abstractmethod
    def load(cls, blob: DelegateBlob, constants: Sequence[Any]) -> Delegate:
        """Load a blob.

        Args:
            blob: the bytes and the compile half's facts.
            constants: for a weight-free backend, the tensors to bind, in the order of the partition's parameter,
                buffer and constant placeholders, with the dtype, shape and strides that it was lowered for. Those that
                the program mutates are private to this instance and must be changed in place; the others are shared
                and may be mapped read-only. Empty for other backends.

        Raises:
            ProgramError: if the blob cannot run here.
        """

    @abstractmethod
    def run(self, inputs: list[Any]) -> Sequence[Any]:
        """Run on `inputs` (dtype, shape, strides and device already checked); return the outputs in order.

        An output is a tensor, or for a symbolic or scalar output a Python number or a 0-d tensor. There are as many as
        the partition has, each with its dtype, shape and strides (those of a clone, where it is a view with gaps): a
        call refuses another number, the build anything else.
        """


def description_error(blob: DelegateBlob, backend: str, found: str) -> ProgramError:
    return ProgramError(
        f"the plan does not describe a partition of the backend `{backend}`",
        where=str(blob.path),
        found=found,
        hint="build the wheel again",
    )
