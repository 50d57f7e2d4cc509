"""Models of editable installs: one that runs its module, and one whose sources have changed since it was lowered."""

import copy
import functools
import importlib
import importlib.metadata
import inspect
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from hatch_lower.canonical import sha256_file
from hatch_lower.errors import ProgramError
from hatch_lower.format.codec import decode_file
from hatch_lower.format.values import Digest
from hatch_lower.frozen import Frozen
from hatch_lower.model import Method, Model
from hatch_lower.runtime.classes import editable_folder
from hatch_lower.runtime.files import PackagedFolder, read_bytes


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
        return EagerModel(copy.deepcopy(dict(self._modules)))

    def reset(self) -> None:
        with torch.no_grad():
            for buffer, content in self._buffers:
                buffer.copy_(content)

    def has_changed(self) -> bool:
        return not all(torch.equal(buffer, content) for buffer, content in self._buffers)

    def signature(self, name: str) -> str:
        return f"{name}{inspect.signature(self._methods[name])}"


def make_eager(name: str, export: str) -> EagerModel:
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
        return {name: (value.module, method.attribute or name) for name, method in methods.items()}
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], torch.nn.Module):
        return {"forward": (value[0], "forward")}
    programs = value if isinstance(value, dict) else {"forward": value}
    # not `isinstance`: torch.export is not imported here, and is there already if one was made
    if programs and all(type(program).__name__ == "ExportedProgram" for program in programs.values()):
        return {name: (program.module(), "forward") for name, program in programs.items()}
    return None


def without_gradients(function: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(function)
    def run(*args: object, **kwargs: object) -> object:
        with torch.no_grad():
            return function(*args, **kwargs)

    return run


SOURCES = "sources.json"
SOURCES_SCHEMA = 1


class Sources(Frozen):
    """The files that exports read."""

    # model to the file's path below the project, its time in nanoseconds and digest
    models: Mapping[str, Mapping[str, tuple[int, Digest]]]


def changed_sources(folder: PackagedFolder, model: str) -> list[str]:
    """Return the files that the export of a model read and that have changed since; none for what is not editable."""
    path = folder.path / SOURCES
    if not folder.installed or not path.exists():
        return []
    try:
        root = editable_folder(importlib.metadata.distribution(folder.manifest.distribution))
    except importlib.metadata.PackageNotFoundError:
        root = None
    if root is None:
        return []
    sources = decode_file(Sources, read_bytes(path), SOURCES_SCHEMA, str(path)).models.get(model, {})
    return [name for name, (time, digest) in sources.items() if has_changed(Path(root, name), time, digest)]


def has_changed(path: Path, time: int, digest: str) -> bool:
    # contents are read only if the time is another one
    try:
        return path.stat().st_mtime_ns != time and sha256_file(path) != digest
    except OSError:
        return True


def stale_text(model: str, changed: list[str]) -> str:
    names = ", ".join(f"`{name}`" for name in changed[:3])
    more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
    return (
        f"model `{model}` was lowered before {names}{more} changed: install the project again, or set "
        '`editable = "eager"`'
    )


def warn_if_stale(folder: PackagedFolder, model: str) -> None:
    changed = changed_sources(folder, model)
    if changed:
        warnings.warn(stale_text(model, changed), RuntimeWarning, stacklevel=3)
