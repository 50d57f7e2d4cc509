"""Models in `_lowered` folders, with given delegates."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hatch_lower.runtime.arrays import find_arrays
from hatch_lower.runtime.delegates import Delegate
from hatch_lower.runtime.files import open_folder
from hatch_lower.runtime.load import load_in_folder
from hatch_lower.runtime.loaded import LoadedModel
from hatch_lower.runtime.selection import DelegateKinds


def load_folder(
    folder: Path,
    model: str | None = None,
    recipe: str | None = None,
    *,
    delegates: Mapping[str, type[Delegate]] | None = None,
    verify: bool = False,
    checks_outputs: bool = False,
    arrays: str | None = None,
    device: str | None = None,
) -> LoadedModel:
    """Load a model from a `_lowered` folder; `delegates`, if given, replace the installed delegates."""
    # `checks_outputs`: compare dtypes, shapes and strides of delegates' outputs with the plan, not only their number
    kinds = DelegateKinds(delegates, checks_outputs=checks_outputs)
    return load_in_folder(open_folder(folder), model, recipe, kinds, verify, find_arrays(arrays), device=device)
