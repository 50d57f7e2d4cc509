"""The run half of a backend: loading and executing processed bytes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from hatch_lower.errors import ProgramError
from hatch_lower.format.constants import DataLayout

__all__ = ["Delegate", "DelegateBlob", "Place", "description_error"]


class Place(NamedTuple):
    """The place of a tensor in a file, without gaps and in the order of its dimensions."""

    path: Path
    offset: int  # bytes
    length: int  # bytes


@dataclass(frozen=True, slots=True)
class DelegateBlob:
    """The processed bytes of a delegate in the installed wheel, already checked against their digest.

    Args:
        path: the file; its name contains its digest, so a path never stands for two contents.
        info: the compile half's `PreprocessResult.info`.
        data: the named data of all delegates of the program, by name: read-only views of mapped files. A mapping lives
            as long as a view of it or a tensor made from a view (`torch.frombuffer`); pages are read on first use.
        layouts: by name, dtype, sizes and dim order of data that the compile half declared as tensors.
        data_places: by name, the place of the data, for engines that map files themselves: a file of its own named
            `<sha256 of its contents>.blob`, or the constants file, which is then an ExecuTorch `.ptd` file.
        places: for each constant passed to `load`, its place in the constants file, for engines that map files
            themselves; `None` if the program changes the constant, or if the constant has gaps or is in no file.
        device: the device of the program's arrays, which `run` takes and returns: `cpu` or `cuda:0`.
        computes_on: the device of the recipe, on which the delegate computes. Differs from `device` only if an engine
            takes arrays on the CPU and copies the arrays to a GPU and back by itself.
    """

    path: Path
    info: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, memoryview] = field(default_factory=dict)
    layouts: Mapping[str, DataLayout] = field(default_factory=dict)
    data_places: Mapping[str, Place] = field(default_factory=dict)
    places: Sequence[Place | None] = ()
    device: str = "cpu"
    computes_on: str = "cpu"


class Delegate(ABC):
    """A loaded blob, bound to constants."""

    # The library of the arrays that `load` and `run` take and return: "torch", or "numpy" for an engine that also runs
    # without torch. If the program uses the other library, the runtime converts without copying.
    # NumPy lacks bfloat16 and the 8-bit floats: arrays have the dtypes of `ml_dtypes` if installed, else raw (`V2`).
    arrays: ClassVar[str] = "torch"

    # Types of the devices on which the run half takes arrays. With `cuda`, `run` is given tensors of torch on a GPU
    # and returns tensors on the same GPU, whatever `arrays` says. With both, the engine also takes arrays on the CPU in
    # a recipe for `cuda`, and then copies the arrays to the GPU by itself.
    devices: ClassVar[tuple[str, ...]] = ("cpu",)

    # The device on which `load` is given constants in a program on a GPU: "device" is the program's; "host" is the CPU,
    # in the library `arrays`, for an engine that copies constants to the GPU by itself.
    constants_on: ClassVar[str] = "device"

    # Calls with tensors without elements: "run" passes every call to `run`; "skip" leaves out calls whose outputs all
    # have no elements; "refuse" leaves out the same calls, and refuses other calls with a tensor without elements.
    without_elements: ClassVar[str] = "run"

    # For `hatch-lower profile`: `module:function` of a function that is called like `load` and returns a
    # `TimedDelegate` of `runtime.timing`. If missing, or if its result is no `TimedDelegate`, `untimed` is the reason
    # why instructions are not measured.
    timed: ClassVar[str] = ""
    untimed: ClassVar[str] = "its run half does not measure them"

    @classmethod
    @abstractmethod
    def load(cls, blob: DelegateBlob, constants: Sequence[Any]) -> Delegate:
        """Load a blob.

        Args:
            blob: the bytes and the compile half's facts.
            constants: for a weight-free backend, the tensors to bind, in the order of the partition's parameter,
                buffer and constant placeholders, with the dtypes, shapes and strides of the lowered partition. Tensors
                that the program mutates are private to this instance and must be changed in place; all other tensors
                are shared and may be mapped read-only. Empty for other backends.

        Raises:
            ProgramError: if the blob cannot run here.
        """

    @abstractmethod
    def run(self, inputs: list[Any]) -> Sequence[Any]:
        """Run on `inputs` (dtype, shape, strides and device already checked); return the outputs in order.

        An output is a tensor, or for a symbolic or scalar output a Python number or a 0-d tensor. Number, dtypes,
        shapes and strides are the partition's (for a view with gaps, the strides of its clone). Each call checks the
        number of outputs; the build also checks dtypes, shapes and strides.
        """


def description_error(blob: DelegateBlob, backend: str, found: str) -> ProgramError:
    return ProgramError(
        f"the plan does not describe a partition of the backend `{backend}`",
        where=str(blob.path),
        found=found,
        hint="build the wheel again",
    )
