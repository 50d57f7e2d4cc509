"""Models of editable installs with `editable = "eager"`, which run the module itself, and copies of modules for
which `copy.deepcopy` fails or loses ties between tensors.
"""

import copy
import functools
import importlib
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType, ModuleType
from typing import Any

import torch

from hatch_lower.errors import ProgramError
from hatch_lower.model import Method, Model
from hatch_lower.runtime.torch_arrays import same_bits

# objects that Python cannot copy and that hold no state of a model
SHARED = (type(threading.Lock()), type(threading.RLock()), ModuleType, threading.local, torch.Generator)
ATOMS = (str, bytes, int, float, complex, type, type(None))


def copy_module(module: torch.nn.Module, shared: Mapping[int, object] = MappingProxyType({})) -> torch.nn.Module:
    """Return a copy of a module; the objects of `shared`, by id, are not copied."""
    memo: dict[int, Any] = dict(shared)
    for value in list_held_objects(module):
        if id(value) in memo:
            continue
        if isinstance(value, SHARED):
            memo[id(value)] = value
        elif type(value) is torch.nn.Parameter or (type(value) is torch.Tensor and not value.is_leaf):
            memo[id(value)] = copy_tensor(value, memo)
    copied: torch.nn.Module = copy.deepcopy(module, memo)
    return copied


def copy_tensor(tensor: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
    # torch refuses to copy a tensor computed with gradients (the weight of the old `weight_norm`). It also copies a
    # parameter without preserving shared memory with a buffer that is a view of the parameter.
    content: torch.Tensor = copy.deepcopy(tensor.detach(), memo)
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(content, requires_grad=tensor.requires_grad)
    content.__dict__.update(copy.deepcopy(tensor.__dict__, memo))
    return content


def list_held_objects(module: torch.nn.Module) -> Iterator[object]:
    """Yield every object that a module refers to, through containers and attributes, once."""
    seen: set[int] = set()
    pending: list[object] = [module]
    while pending:
        value = pending.pop()
        if id(value) in seen or isinstance(value, ATOMS):
            continue
        seen.add(id(value))
        yield value
        if isinstance(value, Mapping):
            pending += [*value.keys(), *value.values()]
        elif isinstance(value, (list, tuple, set, frozenset)):
            pending += value
        elif not isinstance(value, (torch.Tensor, *SHARED)):
            pending += getattr(value, "__dict__", {}).values()


class EagerModel:
    """The methods of the modules that an entry point returned, called without gradients."""

    def __init__(self, modules: Mapping[str, tuple[torch.nn.Module, str]]) -> None:
        self._modules = modules
        self._buffers = [(buffer, buffer.clone()) for module, _ in modules.values() for buffer in module.buffers()]
        self._methods = {name: without_gradients(getattr(*bound)) for name, bound in modules.items()}

    @property
    def methods(self) -> Mapping[str, Callable[..., object]]:
        return MappingProxyType(self._methods)

    def clone(self) -> "EagerModel":
        copies = {id(module): copy_module(module) for module, _ in self._modules.values()}
        return EagerModel(
            {name: (copies[id(module)], attribute) for name, (module, attribute) in self._modules.items()}
        )

    def reset(self) -> None:
        with torch.no_grad():
            for buffer, content in self._buffers:
                buffer.copy_(content)

    def has_changed(self) -> bool:
        return not all(same_bits(buffer, content) for buffer, content in self._buffers)

    def signature(self, name: str) -> str:
        return f"{name}{inspect.signature(self._methods[name])}"


def make_eager(name: str, export: str) -> EagerModel:
    module, _, attributes = export.partition(":")
    try:
        owner: Any = importlib.import_module(module)
        value = functools.reduce(getattr, attributes.split("."), owner)()
        if (modules := modules_of(value)) is not None:
            return EagerModel(modules)
    except Exception as error:
        raise ProgramError(
            f"the entry point of model `{name}` failed",
            where=export,
            found=f"{type(error).__name__}: {error}",
            hint='the model runs eagerly, as the project is installed editable with `editable = "eager"`',
        ) from error
    raise ProgramError(
        f"the entry point of model `{name}` returns no model",
        where=export,
        found=type(value).__name__,
        hint="return a `hatch_lower.Model`, `(module, example_args)`, an `ExportedProgram`, or a dict of programs",
    )


def modules_of(value: Any) -> dict[str, tuple[torch.nn.Module, str]] | None:
    """Return module and attribute of each method in an entry point's result; `None` for an unknown type."""
    if isinstance(value, Model):
        methods: Mapping[str, Method] = value.methods
        return {name: (value.module, method.attribute or name) for name, method in methods.items()}
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], torch.nn.Module):
        return {"forward": (value[0], "forward")}
    programs = value if isinstance(value, dict) else {"forward": value}
    # not `isinstance`, which would need to import torch.export
    if programs and all(type(program).__name__ == "ExportedProgram" for program in programs.values()):
        return {name: (program.module(), "forward") for name, program in programs.items()}
    return None


def without_gradients(function: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(function)
    def run(*args: object, **kwargs: object) -> object:
        try:
            with torch.no_grad():
                return function(*args, **kwargs)
        except RuntimeError as error:
            # the method computes gradients itself, which fails under `no_grad`: retry with gradients
            if "does not require grad" not in str(error):
                raise
        with torch.enable_grad():
            return function(*args, **kwargs)

    return run
