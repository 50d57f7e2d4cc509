"""Models for generation without an export: the methods of their modules."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from hatch_lower.model import Model
from hatch_lower.runtime.loaded import LoadedModel
from hatch_lower.runtime.torch_arrays import ARRAYS


def loaded(model: Model, assets: Mapping[str, Path] | None = None) -> LoadedModel:
    """Return a model whose methods are those of the module, with the signatures of the exported methods."""

    def method(name: str) -> Callable[..., Any]:
        def call(**arguments: Any) -> Any:
            with torch.no_grad():
                return getattr(model.module, name)(**arguments)

        kind = inspect.Parameter.KEYWORD_ONLY
        parameters = [inspect.Parameter(each, kind) for each in model.methods[name].kwargs]
        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return call

    runnable: Any = SimpleNamespace(methods={name: method(name) for name in model.methods}, arrays=ARRAYS)
    provenance: Any = SimpleNamespace(name="net", assets=assets or {}, arrays="torch")
    return LoadedModel(runnable, provenance)
