"""Programs with fake weights, to inspect and tag without copying or changing tensors."""

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
    # `to_backend` gives partitioners a copy that shares tensors instead
    values = tuple(node.meta.get("val") for node in real_exported_program.graph.find_nodes(op="placeholder"))
    mode = mode_of_fakes(values)
    if mode is None:
        raise FakeModeError(
            "the inputs of the program have no fake tensors, so the mode for other tensors is unknown",
            found=", ".join(type(value).__name__ for value in values) or "no inputs",
            hint="pass a program as `torch.export.export` or `to_edge` returns it",
        )
    program = copy_program(real_exported_program)
    for name, tensor in program.state_dict.items():
        if isinstance(tensor, torch.Tensor):
            program.state_dict[name] = mode.from_tensor(tensor, static_shapes=True)
    return program


def update_to_real_program(fake_exported_program: ExportedProgram, real_exported_program: ExportedProgram) -> None:
    """Replace fake parameters and persistent buffers by a program's own, in place and without copies."""
    fake_exported_program.state_dict.update(real_exported_program.state_dict)
