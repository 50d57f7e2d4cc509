"""Checks of a module before the export, for faults that torch.export reports unclearly or does not notice."""

from __future__ import annotations

import traceback
from pathlib import Path

import torch
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import is_lazy

from hatch_lower.errors import CaptureError
from hatch_lower.pipeline.tensor_checks import check_memory
from hatch_lower.runtime.torch_private.tensors import own_tensors

TRANSFORMATIONS = frozenset({"apis.py", "eager_transforms.py", "vmap.py"})  # torch's files of `torch.func`


def check_module(model: str, module: torch.nn.Module) -> None:
    """Refuse a module with parameters without contents, compiled TorchScript, or memory outside of the CPU."""
    for path, child in module.named_modules():
        check_script(model, path, child)
        check_initialized(model, path, child)
    check_memory(model, "", {**dict(module.named_parameters()), **dict(module.named_buffers())})


def check_attributes(model: str, module: torch.nn.Module) -> None:
    """Refuse tensors of other devices and layouts among the plain attributes of a module, after a failed export."""
    for path, child in module.named_modules():
        named = {f"{path}.{name}" if path else name: value for name, value in vars(child).items()}
        check_memory(model, "", named)


def check_script(model: str, path: str, module: torch.nn.Module) -> None:
    if any(kind.__name__ == "ScriptModule" for kind in type(module).__mro__):
        name = f"`{path}`" if path else "the module"
        raise CaptureError(
            f"{name} is TorchScript, whose Python code torch.export cannot see",
            where=f"model `{model}`",
            found=f"a `{type(module).__name__}` of `{module.original_name}`",
            hint="export the original module, before `torch.jit.script` or `torch.jit.trace`; from a file"
            " load the weights alone: `net.load_state_dict(torch.jit.load(path).state_dict())`",
        )


def check_initialized(model: str, path: str, module: torch.nn.Module) -> None:
    for store in own_tensors(module):
        for name, value in store.items():
            if not isinstance(value, torch.Tensor) or not is_lazy(value):
                continue
            found = f"an `{type(value).__name__}`"
            hint = f"give the tensor contents before the entry point returns the module: `{name}.materialize(shape)`"
            if isinstance(module, LazyModuleMixin):
                found = f"a `{type(module).__name__}` that was never called"
                hint = "call the module once in the entry point, before the return: `module(*example_args)`"
            full = f"{path}.{name}" if path else name
            what = f"`{full}` has no shape and no contents yet"
            raise CaptureError(what, where=f"model `{model}`", found=found, hint=hint)


def hint_on_gradients(error: BaseException) -> str:
    """Return a hint if torch.export failed while tracing derivatives, else an empty string."""
    frames = (Path(frame.filename) for frame in traceback.extract_tb(error.__traceback__))
    traced = any(frame.name in TRANSFORMATIONS and "_functorch" in frame.parts for frame in frames)
    if traced or "functorch tensor" in str(error) or "fake tensor in the exported program" in str(error):
        return (
            "derivatives of `torch.func`, and gradients through operators that keep their result (`tanh`, `exp`), are"
            " supported for inputs of fixed sizes: leave `dynamic_shapes` out, or write the derivative as operators"
        )
    return ""
