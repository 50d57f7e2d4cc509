"""A small program of the kit: a module, the compared calls, and the symbolic sizes."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

# dtypes of the kit's programs
DTYPES: Mapping[str, torch.dtype] = {
    name: getattr(torch, name)
    for name in (
        *("float32", "float64", "float16", "bfloat16", "bool"),
        *("int8", "uint8", "int16", "int32", "int64", "complex64"),
    )
}


class Fault(Exception):  # noqa: N818 - it says what a backend got wrong, not what went wrong here
    """A fault of the backend under test."""


class NotClaimedError(Exception):
    """The backend leaves a program to other backends, or a check finds no object to examine."""


class Data:
    # always the same numbers: they are drawn from a seed that the name of the program gives
    def __init__(self, name: str) -> None:
        self._generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))

    def draw(self, *shape: int, dtype: torch.dtype = torch.float32, low: float = -3, high: float = 3) -> Tensor:
        # evenly distributed; unsigned numbers and Booleans are as near to that as can be
        drawn = torch.rand(shape, generator=self._generator, dtype=torch.float64) * (high - low) + low
        if dtype is torch.bool:
            return drawn > (low + high) / 2
        if dtype is torch.uint8:
            drawn = drawn.abs()
        if dtype.is_complex:
            return torch.complex(drawn, drawn.flip(0)).to(dtype)
        return drawn.to(dtype)

    def indices(self, limit: int, *shape: int) -> Tensor:
        return torch.randint(limit, shape, generator=self._generator)


class KitModule(torch.nn.Module):
    """A module of the kit; its attributes are the arguments of `module`."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


Make = Callable[[Data], KitModule]
Calls = Callable[[Data], tuple[tuple[object, ...], ...]]


def module(forward: Callable[..., object], /, **state: Any) -> KitModule:
    """Return a module with the given `forward(self, …)`; a tensor whose name begins with `buffer` becomes a buffer."""
    program: KitModule = type("Program", (KitModule,), {"forward": forward})()
    for name, value in state.items():
        if name.startswith("buffer"):
            program.register_buffer(name, value)
        else:
            setattr(program, name, value)
    return program.eval()


def plain_maker(forward: Callable[..., object]) -> Make:
    return lambda data: module(forward)


def weighted(forward: Callable[..., object], low: float = -3, high: float = 3, **shapes: tuple[int, ...]) -> Make:
    """Return a function that makes a module with a parameter of each shape."""
    return lambda data: module(
        forward, **{name: torch.nn.Parameter(data.draw(*shape, low=low, high=high)) for name, shape in shapes.items()}
    )


def twice(make: Callable[[Data], tuple[object, ...]]) -> Calls:
    return lambda data: (make(data), make(data))


def sizes(*calls: tuple[tuple[int, ...], ...], **drawing: Any) -> Calls:
    """Return a function that draws the arguments of a call for each tuple of shapes."""
    return lambda data: tuple(tuple(data.draw(*shape, **drawing) for shape in shapes) for shapes in calls)


def drawn(*shapes: tuple[int, ...], calls: int = 2, **drawing: object) -> Calls:
    """Return a function that draws tensors of these shapes for each call; `drawing` goes to `Data.draw`."""
    return sizes(*[shapes] * calls, **drawing)


@dataclass(frozen=True, slots=True)
class Case:
    # group and name, `operators/float32 arithmetic`
    name: str
    # returns the module, each time a new module with the same contents
    make: Make
    # returns the arguments of each call; the first call's arguments are the example for export
    calls: Calls
    # in the form of `torch.export.export`
    dynamic: Any = None

    def module(self) -> KitModule:
        return self.make(Data(self.name))

    def arguments(self) -> tuple[tuple[Any, ...], ...]:
        return self.calls(Data(f"{self.name} arguments"))
