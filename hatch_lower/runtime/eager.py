"""Models of an editable install with `editable = "eager"`: the entry point is imported and the module itself runs."""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch

from hatch_lower.errors import ProgramError
from hatch_lower.model import Method, Model


class EagerModel:
    """The methods of the modules that an entry point returned, called without gradients."""

    def __init__(self, modules: Mapping[str, tuple[torch.nn.Module, str]]) -> None:
        self._modules = modules
        self._buffers = [(buffer, buffer.clone()) for module, _ in modules.values() for buffer in module.buffers()]
        self._methods = {name: without_gradients(getattr(*each)) for name, each in modules.items()}

    @property
    def methods(self) -> Mapping[str, Callable[..., Any]]:
        """The methods by name."""
        return MappingProxyType(self._methods)

    def clone(self) -> EagerModel:
        """Return another instance over deep copies of the modules."""
        return EagerModel(copy.deepcopy(dict(self._modules)))

    def reset(self) -> None:
        """Return the buffers to what they were when the entry point returned the modules."""
        with torch.no_grad():
            for buffer, content in self._buffers:
                buffer.copy_(content)

    def has_changed(self) -> bool:
        """Return whether a buffer differs from what the entry point returned; NaN counts as a difference."""
        return not all(torch.equal(buffer, content) for buffer, content in self._buffers)

    def signature(self, name: str) -> str:
        """Return a method's Python signature."""
        return f"{name}{inspect.signature(self._methods[name])}"


def make_eager(name: str, export: str) -> EagerModel:
    """Return the eager model of an entry point `module:attribute`.

    Raises:
        ProgramError: if the entry point cannot be imported, fails, or returns something else than a model.
    """
    module, _, attributes = export.partition(":")
    try:
        owner: Any = importlib.import_module(module)
        value = functools.reduce(getattr, attributes.split("."), owner)()
        modules = modules_of(value)
        if modules is not None:
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
        hint="return a `hatch_lower.Model`, `(module, example_args)`, an `ExportedProgram`, or a dict of them",
    )


def modules_of(value: Any) -> dict[str, tuple[torch.nn.Module, str]] | None:
    """Return the module and attribute of each method that an entry point's result stands for; `None` for others."""
    if isinstance(value, Model):
        methods: Mapping[str, Method] = value.methods
        return {name: (value.module, each.attribute or name) for name, each in methods.items()}
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], torch.nn.Module):
        return {"forward": (value[0], "forward")}
    programs = value if isinstance(value, dict) else {"forward": value}
    # not `isinstance`: torch.export is not imported here, and is there already if one was made
    if programs and all(type(each).__name__ == "ExportedProgram" for each in programs.values()):
        return {name: (each.module(), "forward") for name, each in programs.items()}
    return None


def without_gradients(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that runs without gradients, as a lowered method does."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with torch.no_grad():
            return function(*args, **kwargs)

    return run
