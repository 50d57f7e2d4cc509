"""Models of editable installs with `editable = "eager"`, which run the module itself."""

import functools
import importlib
import inspect
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from hatch_lower.config.checkpoint import checkpoint_of
from hatch_lower.errors import ProgramError
from hatch_lower.model import Method, Model
from hatch_lower.runtime.module_copy import copy_module
from hatch_lower.runtime.sources import HubFile, hub_path
from hatch_lower.runtime.torch_arrays import ARRAYS, TorchArrays, same_bits


class EagerModel:
    """The methods of the modules that an entry point returned, called without gradients.

    Args:
        modules: module and attribute of each method.
        examples: the positional and keyword arguments of each exported example, for the methods that have one: a
            method then has the signature of the packaged method.
    """

    def __init__(
        self,
        modules: Mapping[str, tuple[torch.nn.Module, str]],
        examples: Mapping[str, tuple[tuple[Any, ...], Mapping[str, Any]]] = MappingProxyType({}),
    ) -> None:
        self._modules, self._examples = modules, examples
        self._buffers = [(buffer, buffer.clone()) for module, _ in modules.values() for buffer in module.buffers()]
        turn = threading.RLock()  # a language model changes its layers during a call
        self._methods = {name: without_gradients(getattr(*bound), turn) for name, bound in modules.items()}
        for name, (args, kwargs) in examples.items():
            method: Any = self._methods[name]
            method.__signature__ = signature_of_example(inspect.signature(method), args, kwargs)

    @property
    def methods(self) -> Mapping[str, Callable[..., object]]:
        return MappingProxyType(self._methods)

    @property
    def examples(self) -> Mapping[str, tuple[tuple[Any, ...], Mapping[str, Any]]]:
        return self._examples

    @property
    def arrays(self) -> TorchArrays:
        return ARRAYS

    def clone(self) -> "EagerModel":
        copies = {id(module): copy_module(module) for module, _ in self._modules.values()}
        return EagerModel(
            {name: (copies[id(module)], attribute) for name, (module, attribute) in self._modules.items()},
            self._examples,
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
    try:
        value = exported_value(export)
        if (modules := modules_of(value)) is not None:
            return EagerModel(modules, examples_of(value))
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


def exported_value(export: str) -> Any:
    if (checkpoint := checkpoint_of(export)) is not None:
        from hatch_lower.huggingface.checkpoint import checkpoint_model

        if checkpoint.hub is not None:
            checkpoint = replace(checkpoint, folder=str(hub_path(HubFile(*checkpoint.hub, ""))))
        return checkpoint_model(checkpoint, Path(), export)
    module, _, attributes = export.partition(":")
    owner: Any = importlib.import_module(module)
    return functools.reduce(getattr, attributes.split("."), owner)()


def modules_of(value: Any) -> dict[str, tuple[torch.nn.Module, str]] | None:
    """Return module and attribute of each method in an entry point's result; `None` for an unknown type."""
    if isinstance(value, Model):
        methods: Mapping[str, Method] = value.methods
        return {name: (value.module, method.attribute or name) for name, method in methods.items()}
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], torch.nn.Module):
        return {"forward": (value[0], "forward")}
    value = programs_of_exporter(value)
    programs = value if isinstance(value, dict) else {"forward": value}
    # not `isinstance`, which would need to import torch.export
    if programs and all(type(program).__name__ == "ExportedProgram" for program in programs.values()):
        return {name: (program.module(), "forward") for name, program in programs.items()}
    return None


def examples_of(value: Any) -> dict[str, tuple[tuple[Any, ...], Mapping[str, Any]]]:
    """Return the example inputs in an entry point's result by method; none of a program, which is exported already."""
    if isinstance(value, Model):
        return {name: (method.args, method.kwargs) for name, method in value.methods.items()}
    if isinstance(value, tuple) and isinstance(value[1], tuple):
        return {"forward": (value[1], {})}
    return {}


def programs_of_exporter(value: Any) -> Any:
    """Return the programs of an `ExportedModel` of transformers by method; any other value as it is."""
    if (type(value).__module__.partition(".")[0], type(value).__name__) != ("transformers", "ExportedModel"):
        return value
    programs = {name: component.program for name, component in value.components.items()}
    return {"forward": programs["model"]} if programs.keys() == {"model"} else programs


def signature_of_example(
    signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> inspect.Signature:
    """Return a signature with the parameters that an example fills; `**options` becomes the names in the example."""
    try:
        filled = signature.bind(*args, **kwargs).arguments
    except TypeError:  # nothing is exported here, which would refuse the example
        return signature
    found = []
    for name in filled:
        parameter = signature.parameters[name]
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            own = signature.parameters.keys() - {name}
            found += [inspect.Parameter(each, inspect.Parameter.KEYWORD_ONLY) for each in kwargs if each not in own]
        else:
            found.append(parameter)
    return inspect.Signature(found)


def without_gradients(function: Callable[..., object], turn: threading.RLock) -> Callable[..., object]:
    """Return a function whose calls, and those of other functions with the same lock, wait for each other."""

    @functools.wraps(function)
    def run(*args: object, **kwargs: object) -> object:
        with turn:
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
