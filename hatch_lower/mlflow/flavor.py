"""A wheel as a model of MLflow: the wheel itself, its digest, its requirements and the signature of a method."""

from __future__ import annotations

import shutil
import sys
import tempfile
import weakref
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from hatch_lower import __version__
from hatch_lower.canonical import is_file_of, sha256_file
from hatch_lower.driver.contents import OpenedModel, find_contents, metadata_text, unpack_models
from hatch_lower.driver.new_folder import folder_in_place
from hatch_lower.driver.opened_wheel import open_wheel
from hatch_lower.driver.whole_wheel import refuse_changed_wheel
from hatch_lower.errors import ProgramError, nearest
from hatch_lower.format.codec import Damage, reader_of
from hatch_lower.frozen import Frozen
from hatch_lower.mlflow.library import import_mlflow, mlflow_answers
from hatch_lower.runtime.load import load
from hatch_lower.runtime.loaded import LoadedModel
from hatch_lower.runtime.serving.tensors import served_inputs

FLAVOR, VERSION_FIELD = "hatch_lower", "hatch_lower_version"
PYTHON_ENV, REQUIREMENTS = "python_env.yaml", "requirements.txt"


class SavedModel(Frozen):
    """The entry of the flavor in MLflow's file `MLmodel`."""

    wheel: str  # file name
    sha256: str
    model: str
    method: str
    recipe: str | None

    def validate(self) -> None:
        if not self.wheel.endswith(".whl") or Path(self.wheel).name != self.wheel:
            raise Damage(f"{self.wheel!r:.80} instead of a file name of a wheel")


def log_model(
    wheel: str | Path,
    name: str,
    *,
    model: str | None = None,
    method: str = "forward",
    recipe: str | None = None,
    **options: Any,
) -> Any:
    """Log a wheel as a model of the active run, and register the model if `registered_model_name` is given.

    Args:
        wheel: the path of a wheel with lowered models.
        name: the name of the logged model.
        model: the model in the wheel, if there are several.
        method: the method that `predict` calls.
        recipe: the recipe to load; by default the first in load order that can run.
        options: as for `mlflow.models.Model.log`: `registered_model_name`, `metadata`, `params`, `tags`, `step`.

    Returns:
        MLflow's `ModelInfo`.

    Raises:
        ProcessError: if MLflow is not installed.
        ProgramError: if the wheel cannot be read, or has no such model, method or recipe, or if servers do not have the
            dtype of a tensor.
        FetchError: if MLflow's server or store does not take the model.
    """
    mlflow = import_mlflow()
    signature_for(choose_in_wheel(Path(wheel), model, method, recipe), method)  # refused before a run is made
    with mlflow_answers(f"model `{name}`"):
        return mlflow.models.Model.log(
            None, sys.modules[__name__], name=name, wheel=wheel, model=model, method=method, recipe=recipe, **options
        )


def save_model(
    wheel: str | Path,
    path: str | Path,
    mlflow_model: Any = None,
    *,
    model: str | None = None,
    method: str = "forward",
    recipe: str | None = None,
) -> None:
    """Write a wheel as a folder in MLflow's format. The arguments and errors are those of `log_model`."""
    mlflow, wheel = import_mlflow(), Path(wheel)
    opened = choose_in_wheel(wheel, model, method, recipe)
    saved = SavedModel(wheel.name, sha256_file(wheel), opened.name, method, recipe)
    mlflow_model = mlflow.models.Model() if mlflow_model is None else mlflow_model
    mlflow_model.signature = signature_for(opened, method)
    mlflow.pyfunc.add_to_model(mlflow_model, loader_module="hatch_lower.mlflow", python_env=PYTHON_ENV)
    mlflow_model.add_flavor(FLAVOR, **{VERSION_FIELD: __version__}, **vars(saved))
    with folder_in_place(Path(path), "model for MLflow", "path") as folder:
        shutil.copyfile(wheel, folder / wheel.name)
        (folder / REQUIREMENTS).write_text("".join(f"{line}\n" for line in requirements_of(wheel)), encoding="utf-8")
        version = ".".join(map(str, sys.version_info[:3]))
        (folder / PYTHON_ENV).write_text(f"python: {version}\ndependencies:\n- -r {REQUIREMENTS}\n", encoding="utf-8")
        mlflow_model.save(str(folder / "MLmodel"))


def signature_for(opened: OpenedModel, method: str) -> Any:
    """Return the `ModelSignature` of the tensors that a method takes: names, NumPy dtypes, and shapes."""
    import numpy as np
    from mlflow.models import ModelSignature
    from mlflow.types import Schema, TensorSpec

    plan = next(iter(opened.recipes.values())).plan.methods[method]
    where = f"model `{opened.name}`, method `{method}`"
    inputs = served_inputs(plan, where)
    if not inputs:
        raise ProgramError(
            "MLflow has no models without inputs",
            where=where,
            found="no tensor among the arguments",
            hint="give the argument `method`, or export a method that takes a tensor",
        )
    return ModelSignature(inputs=Schema([TensorSpec(np.dtype(each.dtype), each.shape, each.name) for each in inputs]))


def load_model(address: str) -> LoadedModel:
    """Load a model by MLflow's address: `models:/digits/1`, `runs:/…`, or a folder of `save_model`.

    Raises:
        FetchError: if MLflow's server or store does not give the model.
        ProgramError: if the model is no wheel of hatch-lower, was changed since, or cannot run here.
    """
    mlflow = import_mlflow()
    with mlflow_answers(address):
        path = mlflow.artifacts.download_artifacts(artifact_uri=address)
    return open_saved(Path(path))[0]


def open_saved(path: Path) -> tuple[LoadedModel, str]:
    """Return the model of a folder, and the method that `predict` calls."""
    saved = read_saved(path)
    wheel = path / saved.wheel
    if not wheel.is_file() or not is_file_of(wheel, wheel.stat().st_size, saved.sha256):
        raise ProgramError(
            "the wheel of the model is not the wheel that was logged",
            where=str(wheel),
            found="another sha256" if wheel.is_file() else "no such file",
            hint="log the model again from its wheel",
        )
    work = tempfile.TemporaryDirectory(prefix="hatch-lower-")
    try:
        unpacked = unpack_models(wheel, Path(work.name))
        folders = {name: folder.path for _, folder, models in unpacked for name in models}
        if saved.model not in folders:
            raise missing_name("model", saved.model, folders, str(wheel))
        loaded = load(folders[saved.model] / saved.model, recipe=saved.recipe)
        if saved.method not in loaded.methods:
            raise missing_name("method", saved.method, loaded.methods, str(wheel))
    except BaseException:
        work.cleanup()
        raise
    weakref.finalize(loaded, work.cleanup)  # a loaded model maps its files
    return loaded, saved.method


def read_saved(path: Path) -> SavedModel:
    """Return the flavor's entry of a folder; raise `ProgramError` for a folder of another form."""
    mlflow = import_mlflow()
    try:
        entry = mlflow.models.Model.load(str(path)).flavors[FLAVOR]
        saved: SavedModel = reader_of(SavedModel)({name: entry[name] for name in entry if name != VERSION_FIELD})
    except Damage as damage:
        found = f"{damage.path}: {damage.found}".lstrip(".: ")
    except Exception as error:  # MLflow raises anything for a damaged file
        found = f"{type(error).__name__}: {error}"
    else:
        return saved
    raise ProgramError(
        "the model of MLflow is no wheel of hatch-lower",
        where=str(path / "MLmodel"),
        found=f"no flavor `{FLAVOR}`, or a damaged one: {found:.400}",
        hint="log the model with `hatch_lower.mlflow.log_model`",
    )


def choose_in_wheel(wheel: Path, model: str | None, method: str, recipe: str | None) -> OpenedModel:
    """Return a model of a wheel that has the method and the recipe; the model may be left out if there is only one."""
    found = {name: contents for contents in find_contents(wheel) for name in contents.models}
    name = model if model is not None or len(found) != 1 else min(found)
    if name is None or name not in found:
        raise missing_name("model", name or "", found, str(wheel))
    opened = found[name].model(name)
    where = f"{wheel.name}: model `{name}`"
    if recipe is not None and recipe not in opened.recipes:
        raise missing_name("recipe", recipe, opened.recipes, where)
    methods = next(iter(opened.recipes.values())).plan.methods
    if method not in methods:
        raise missing_name("method", method, methods, where)
    refuse_changed_wheel(open_wheel(wheel))
    return opened


def missing_name(noun: str, name: str, known: Any, where: str) -> ProgramError:
    return ProgramError(
        f"there is no such {noun}" if name else f"there are several {noun}s",
        where=where,
        found=nearest(name, known),
        hint=f"give the argument `{noun}`",
    )


def requirements_of(wheel: Path) -> list[str]:
    """Return MLflow, and the requirements of a wheel without extras: MLflow serves the model in such an environment."""
    lines = HeaderParser().parsestr(metadata_text(wheel, "METADATA") or "").get_all("Requires-Dist") or []
    needed = [Requirement(line) for line in lines]
    chosen = [each for each in needed if each.marker is None or each.marker.evaluate({"extra": ""})]
    has_mlflow = any(canonicalize_name(each.name) == "mlflow" for each in chosen)
    own = [] if has_mlflow else [f"mlflow=={import_mlflow().__version__}"]
    return [*own, *map(str, chosen)]
