"""The needs of hatch-lower's own backends, in the build and in the wheel, known before torch is imported."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec

from hatch_lower.backends.aoti.program import find_program
from hatch_lower.backends.executorch import versions as executorch
from hatch_lower.backends.onnxruntime import library as onnxruntime
from hatch_lower.backends.openvino import library as openvino
from hatch_lower.config.requirements import requirements_to_add
from hatch_lower.config.settings import Recipe, Settings
from hatch_lower.errors import BackendError, extra_hint
from hatch_lower.runtime.torch_reasons import NUMPY, PLAN_READER, TORCH


def refuse_unmet_early(settings: Settings) -> None:
    """Raise `ConfigError` where the project's known dependencies fall short of the requirements of the hook's table.

    Backends of other distributions, known only to their code, are checked when torch is imported.
    """
    if settings.dependencies is not None:
        required = {recipe.name: early_requirements(recipe) for recipe in settings.recipes}
        requirements_to_add(settings.runtime_requirements, required, settings.dependencies, settings.extras)


def refuse_missing_tools(settings: Settings) -> None:
    """Raise `BackendError` where the compiler or a library of a recipe's backend is missing here."""
    for name in dict.fromkeys(choice.name for recipe in settings.recipes for choice in recipe.backends):
        if name == "aoti":
            find_program()
        missing = [module for module in LIBRARIES.get(name, ()) if find_spec(module) is None]
        if missing:
            raise BackendError(
                f"the backend `{name}` needs libraries that are not installed",
                found=", ".join(f"there is no module `{module}`" for module in missing),
                hint=extra_hint(name),
            )


def early_requirements(recipe: Recipe) -> tuple[str, ...]:
    known = [PLAN_READER]
    if recipe.imports:
        known.append(TORCH)
    for choice in recipe.backends:
        if choice.name in OWN:
            known += OWN[choice.name](choice.options)
    return tuple(dict.fromkeys(known))


def of_aoti(options: Mapping[str, object]) -> Sequence[str]:
    from hatch_lower.backends.aoti.versions import torch_requirement  # reads ELF files, and takes long to import

    try:
        return [torch_requirement(importlib.metadata.version("torch"), None)]
    except importlib.metadata.PackageNotFoundError:
        return [TORCH]


def of_onnxruntime(options: Mapping[str, object]) -> Sequence[str]:
    providers = options.get("providers", ())
    listed = providers if isinstance(providers, (list, tuple)) else ()
    # a wrong value is refused when the backend reads its options
    names = [provider.get("name") if isinstance(provider, Mapping) else provider for provider in listed]
    return [onnxruntime.requirement(map(str, names)), NUMPY]


OWN: Mapping[str, Callable[[Mapping[str, object]], Sequence[str]]] = {
    "aoti": of_aoti,
    "executorch": lambda options: [executorch.REQUIREMENT, TORCH],
    "onnxruntime": of_onnxruntime,
    "openvino": lambda options: [openvino.REQUIREMENT, NUMPY],
    "reference": lambda options: [TORCH],
}
# modules that a backend imports in the build
LIBRARIES: Mapping[str, Sequence[str]] = {
    "executorch": ["executorch"],
    "onnxruntime": ["onnx", "onnxscript", "onnxruntime"],
    "openvino": ["openvino"],
}
