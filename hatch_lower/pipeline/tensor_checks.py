"""Checks of a model's tensors: on the CPU, unchanged by the export, shared by the methods."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.export import ExportedProgram

from hatch_lower.errors import CaptureError
from hatch_lower.runtime.torch_arrays import ARRAYS, same_bits
from hatch_lower.runtime.torch_private import trees
from hatch_lower.runtime.torch_private.programs import FakeTensor
from hatch_lower.runtime.torch_private.tensors import own_tensors, version_of


def check_memory(model: str, method: str, tensors: Mapping[str, object]) -> None:
    """Refuse tensors that are not dense tensors in the CPU's memory."""
    where = f"model `{model}`, method `{method}`" if method else f"model `{model}`"
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            continue
        if tensor.layout is not torch.strided:
            raise CaptureError(
                f"`{name}` has the layout `{tensor.layout}`; models are lowered with dense tensors",
                where=where,
                hint="make the tensor dense: `.to_dense()`, or pass its indices and values as two tensors",
            )
        if tensor.device.type != "cpu":
            raise CaptureError(
                f"`{name}` is on the device `{tensor.device}`; models are lowered on the CPU",
                where=where,
                hint="load the weights before exporting; `to_empty` alone leaves weights unset"
                if tensor.device.type == "meta"
                else "move the module and its example inputs: `.cpu()`",
            )


def tensors_of(value: object) -> dict[str, torch.Tensor]:
    leaves, _ = trees.tree_flatten_with_path(value)
    return {path_text(path): leaf for path, leaf in leaves if isinstance(leaf, torch.Tensor)}


def path_text(path: trees.KeyPath) -> str:
    first, *rest = path
    return f"{getattr(first, 'key', first)}{trees.keystr(tuple(rest))}"


def tensor_versions(module: torch.nn.Module) -> dict[str, tuple[torch.Tensor, int]]:
    # includes plain attributes, which an exported program cannot change
    versions: dict[str, tuple[torch.Tensor, int]] = {}
    for prefix, child in module.named_modules():
        for store in own_tensors(child):
            for name, value in store.items():
                if isinstance(value, torch.Tensor) and not value.is_inference():
                    versions[f"{prefix}.{name}" if prefix else name] = (value, version_of(value))
    return versions


def check_unchanged(
    model: str, name: str, module: torch.nn.Module, before: Mapping[str, tuple[torch.Tensor, int]]
) -> None:
    after = tensor_versions(module)
    buffers = {id(buffer) for buffer in module.buffers()}
    for key, (tensor, version) in before.items():
        now = after.get(key)
        if now is not None and now[0] is tensor and now[1] == version:
            continue
        if id(tensor) in buffers:
            what = f"method `{name}` changes the buffer `{key}` through an object that is not a module"
            hint = "export the method with `Method(…, strict=True)`, which recognizes the buffer"
        else:
            what = f"method `{name}` changes `{key}`, which is not a buffer"
            hint = f"register the tensor with `register_buffer`, so that a loaded model can keep its state: `{key}`"
        raise CaptureError(what, where=f"model `{model}`", hint=hint)


def check_no_fakes(model: str, name: str, module: torch.nn.Module) -> None:
    # if a method stores a result in the module, the export leaves a tensor without contents there
    for prefix, child in module.named_modules():
        for attribute, value in vars(child).items():
            if any(isinstance(leaf, FakeTensor) for leaf in trees.tree_leaves(value)):
                key = f"{prefix}.{attribute}" if prefix else attribute
                raise CaptureError(
                    f"method `{name}` stores a computed tensor in `{key}`, which a program cannot do",
                    where=f"model `{model}`",
                    hint="return the tensor, or if later calls need the value, register a buffer and copy into the"
                    f' buffer: `self.register_buffer("{attribute.lstrip("_")}", …)`',
                )


def share_tensors(model: str, programs: Mapping[str, ExportedProgram]) -> None:
    # methods of a module share tensors from the start; separately exported programs are joined if the tensors are equal
    owners: dict[str, tuple[str, torch.Tensor]] = {}
    for method, program in programs.items():
        buffers = set(program.graph_signature.inputs_to_buffers.values())
        for store in (program.state_dict, program.constants):
            for name, tensor in store.items():
                if not isinstance(tensor, torch.Tensor) or (store is program.constants and name not in buffers):
                    continue
                owner, known = owners.setdefault(name, (method, tensor))
                if known is tensor:
                    continue
                if not same_tensor(known, tensor):
                    raise CaptureError(
                        f"methods `{owner}` and `{method}` have different tensors under the name `{name}`",
                        where=f"model `{model}`",
                        found=f"{ARRAYS.describe(known)} and {ARRAYS.describe(tensor)}",
                        hint="export both methods from the same module, or declare two models",
                    )
                store[name] = known


def same_tensor(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    if (tensor.dtype, tensor.shape, tensor.stride()) != (other.dtype, other.shape, other.stride()):
        return False
    return tensor.data_ptr() == other.data_ptr() or same_bits(tensor, other)
