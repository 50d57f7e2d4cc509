"""Exports of SEW for even and odd numbers of frames.

The encoder of SEW halves the number of frames and then doubles the number again. The encoder adds the missing frame of
an odd number, and the export of this branch would refuse even numbers. Here frames are added without a branch, also
zero frames.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor

ENCODERS = ("SEWEncoder", "SEWDEncoder")  # classes of transformers


@contextmanager
def frames_padded(module: torch.nn.Module) -> Iterator[None]:
    """Let the encoders of SEW in a model add frames without a branch."""
    hooks = [hook for part in module.modules() if type(part).__name__ in ENCODERS for hook in padding_hooks(part)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def padding_hooks(encoder: Any) -> list[Any]:
    """Register hooks of an encoder: the result of the part `upsample` gets as many frames as the encoder's input."""
    from torch.nn.functional import pad

    frames: list[int] = []

    def count(_: object, args: tuple[Tensor, ...], kwargs: dict[str, Any]) -> None:
        frames[:] = [(args[0] if args else kwargs["hidden_states"]).shape[1]]

    def padded(_: object, args: object, found: Tensor) -> Tensor:
        return pad(found, (0, 0, 0, frames[0] - found.shape[1]))

    return [
        encoder.register_forward_pre_hook(count, with_kwargs=True),
        encoder.upsample.register_forward_hook(padded),
    ]
