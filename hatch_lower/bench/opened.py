"""Models in the measuring process: their plans and check inputs are read, and then they are loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hatch_lower.format.plan import MethodPlan, read_plan
from hatch_lower.runtime.files import MANIFEST, PackagedFolder, open_folder

if TYPE_CHECKING:
    from hatch_lower.runtime.timing import Timing


def refusal(path: Path, model: str, recipe: str) -> str | None:
    from hatch_lower.runtime.selection import DelegateKinds, refusal_reason

    entry = open_folder(path).manifest.models[model].recipes[recipe]
    return refusal_reason(entry, DelegateKinds(), str(path / MANIFEST))


@dataclass(frozen=True, slots=True)
class Opened:
    """A model whose plan and check inputs have been read, but which is not loaded."""

    folder: PackagedFolder
    methods: Mapping[str, MethodPlan]
    tensors: Mapping[str, Any]
    has_state: bool  # in a delegate

    def changes(self, method: str) -> bool:
        """Return whether a call may change its inputs, or state."""
        plan = self.methods[method]
        return bool(plan.input_mutations or plan.mutations or self.has_state)


def open_model(path: str, model: str, recipe: str) -> Opened:
    from hatch_lower.runtime.check import read_tensors
    from hatch_lower.runtime.executor import holds_state
    from hatch_lower.runtime.torch_arrays import ARRAYS

    folder = open_folder(Path(path))
    entry = folder.manifest.models[model]
    files = entry.recipes[recipe]
    plan = read_plan(folder.read(files.plan), str(folder.path / files.plan.path))
    return Opened(folder, plan.methods, read_tensors(folder, entry, ARRAYS), any(map(holds_state, plan.delegates)))


def load(opened: Opened, request: Mapping[str, Any], timing: Timing | None = None) -> Any:
    from hatch_lower.runtime.load import load_model
    from hatch_lower.runtime.requirements import import_modules
    from hatch_lower.runtime.selection import DelegateKinds

    import_modules(request["imports"], str(opened.folder.path / MANIFEST), installed=True)
    return load_model(opened.folder, request["model"], request["recipe"], DelegateKinds(timing=timing), verify=False)


def check_tensors(request: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the packaged check inputs with which every side is called."""
    found = (open_model(path, request["model"], request["recipe"]).tensors for path in request["inputs"])
    return next((tensors for tensors in found if tensors), {})
