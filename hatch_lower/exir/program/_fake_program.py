"""Programs without weights: to look at and to tag, where tensors must neither be copied nor changed."""

from __future__ import annotations

import torch
from torch.export import ExportedProgram

from hatch_lower.errors import EdgeError
from hatch_lower.exir.graph.surgery import copy_program
from hatch_lower.runtime.torch_private.programs import mode_of_fakes


class FakeModeError(EdgeError, AssertionError):
    """The inputs of a program have no fake tensors as their values."""


def get_fake_program(real_exported_program: ExportedProgram) -> ExportedProgram:
    """Return a copy of a program whose parameters and persistent buffers are fake tensors with fixed sizes.

    The other tensors (lifted constants, buffers that are not persistent) are the program's own. A program without
    fake tensors as its inputs' values is a `FakeModeError`, which is an `AssertionError`.
    """
    # `to_backend` does not need it: it gives partitioners a copy that shares tensors
    values = tuple(node.meta.get("val") for node in real_exported_program.graph.find_nodes(op="placeholder"))
    mode = mode_of_fakes(values)
    if mode is None:
        raise FakeModeError(
            "the inputs of the program have no fake tensors, which say what mode others belong to",
            found=", ".join(type(value).__name__ for value in values) or "no inputs",
            hint="pass a program as `torch.export.export` or `to_edge` returns it",
        )
    program = copy_program(real_exported_program)
    for name, tensor in program.state_dict.items():
        if isinstance(tensor, torch.Tensor):
            program.state_dict[name] = mode.from_tensor(tensor, static_shapes=True)
    return program


def update_to_real_program(fake_exported_program: ExportedProgram, real_exported_program: ExportedProgram) -> None:
    """Put a program's own parameters and persistent buffers in the place of fake ones, in place and without copies."""
    fake_exported_program.state_dict.update(real_exported_program.state_dict)
