"""Checks of a module around the export, for faults that torch.export reports unclearly or does not notice: its
tensors, and Python values that a method changes.
"""

from __future__ import annotations

import copy
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import is_lazy

from hatch_lower.errors import CaptureError
from hatch_lower.runtime.module_copy import copy_module
from hatch_lower.runtime.torch_arrays import ARRAYS, same_bits
from hatch_lower.runtime.torch_private import tensors as trees
from hatch_lower.runtime.torch_private.programs import FakeTensor
from hatch_lower.runtime.torch_private.tensors import own_tensors, read_change_counter


def check_tensor_memory(model: str, method: str, tensors: Mapping[str, object]) -> None:
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


def named_tensors_in(value: object) -> dict[str, torch.Tensor]:
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
                    versions[f"{prefix}.{name}" if prefix else name] = (value, read_change_counter(value))
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


TRANSFORMATIONS = frozenset({"apis.py", "eager_transforms.py", "vmap.py"})  # torch's files of `torch.func`


def check_module(model: str, module: torch.nn.Module) -> None:
    """Refuse a module with parameters without contents, compiled TorchScript, or memory outside of the CPU."""
    for path, child in module.named_modules():
        check_script(model, path, child)
        check_initialized(model, path, child)
    check_tensor_memory(model, "", {**dict(module.named_parameters()), **dict(module.named_buffers())})


def check_attributes(model: str, module: torch.nn.Module) -> None:
    """Refuse tensors of other devices and layouts among the plain attributes of a module, after a failed export."""
    for path, child in module.named_modules():
        named = {f"{path}.{name}" if path else name: value for name, value in vars(child).items()}
        check_tensor_memory(model, "", named)


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


# words of torch about tensors of derivatives; the last: of torch 2.11 and 2.12
OF_DERIVATIVES = ("functorch tensor", "fake tensor in the exported program", "Expected FakeTensor, got <class 'torch.T")


def hint_on_gradients(error: BaseException) -> str:
    """Return a hint if torch.export failed while tracing derivatives, else an empty string."""
    frames = (Path(frame.filename) for frame in traceback.extract_tb(error.__traceback__))
    traced = any(frame.name in TRANSFORMATIONS and "_functorch" in frame.parts for frame in frames)
    if traced or any(words in str(error) for words in OF_DERIVATIVES):
        return (
            "derivatives and some vectorized maps of `torch.func`, and gradients through operators that keep their"
            " result (`tanh`, `exp`), are supported for inputs of fixed sizes: leave `dynamic_shapes` out, or write the"
            " derivative or the map as operators"
        )
    return ""


SIMPLE = (bool, int, float, str, type(None))


@dataclass(slots=True)
class AttributeChange:
    module: torch.nn.Module
    attribute: str
    before: object
    after: object


@contextmanager
def noted_changes(found: dict[tuple[int, str], AttributeChange]) -> Iterator[None]:
    """Note in `found` the numbers and strings among modules' attributes that change inside the context."""
    # needed because torch.export restores all attributes
    assign = torch.nn.Module.__setattr__

    def noting(self: torch.nn.Module, name: str, value: Any) -> None:
        old = vars(self).get(name, noting)
        if isinstance(old, SIMPLE) and isinstance(value, SIMPLE):
            found.setdefault((id(self), name), AttributeChange(self, name, old, value)).after = value
        assign(self, name, value)

    torch.nn.Module.__setattr__ = noting  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.nn.Module.__setattr__ = assign  # type: ignore[method-assign]


def refuse_counting(
    where: str, method: str, module: torch.nn.Module, changes: Iterable[AttributeChange], same_again: Callable[[], bool]
) -> None:
    """Refuse a method if another export, made with the changed values, gives other results."""
    own = set(map(id, module.modules()))  # excludes torch's own modules
    changed = [change for change in changes if id(change.module) in own and change.before != change.after]
    if not changed:
        return
    try:
        for change in changed:
            setattr(change.module, change.attribute, change.after)
        depends = not same_again()
    except Exception:  # the method fails with the changed values; no evidence about the example's call
        depends = False
    finally:
        for change in changed:
            setattr(change.module, change.attribute, change.before)
    if not depends:
        return
    first = changed[0]
    name = next((path for path, child in module.named_modules() if child is first.module), "")
    raise CaptureError(
        f"method `{method}` changes `{name}.{first.attribute}`, a Python value that influences the results"
        if name
        else f"method `{method}` changes `{first.attribute}`, a Python value that influences the results",
        where=where,
        found=f"{first.before!r} before a call and {first.after!r} after the call; a program keeps the first value",
        hint=f'keep the value in a buffer, and change the buffer in place: `self.register_buffer("{first.attribute}",'
        f" torch.tensor({first.before!r}))`, `self.{first.attribute}.add_(1)`",
    )


def same_results(
    first: ExportedProgram, second: ExportedProgram, args: tuple[object, ...], kwargs: Mapping[str, object]
) -> bool:
    """Return whether two exported programs agree on a second call, which starts from the first program's state."""
    one, other = copy_module(first.module()), copy_module(second.module())

    def call(module: torch.nn.Module) -> list[object]:
        given, named = copy.deepcopy((args, dict(kwargs)))
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(0)
            return trees.tree_leaves(module(*given, **named))

    call(one)
    state = {**dict(one.named_parameters()), **dict(one.named_buffers())}
    with torch.no_grad():
        for name, tensor in (*other.named_parameters(), *other.named_buffers()):
            tensor.copy_(state[name])
    return all(is_same_attribute(*pair) for pair in zip(call(one), call(other), strict=True))


def is_same_attribute(one: object, other: object) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.shape == other.shape and torch.allclose(one, other, equal_nan=True)
    return bool(one == other)
