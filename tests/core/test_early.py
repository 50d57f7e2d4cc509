"""Settings that cannot do are refused before torch is imported, as far as the table tells."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

from hatch_lower.backends.early import LIBRARIES, OWN, early_requirements, refuse_missing_tools, refuse_unmet_early
from hatch_lower.config.settings import Recipe, Settings
from hatch_lower.config.tables import BackendChoice
from hatch_lower.errors import BackendError, ConfigError
from hatch_lower.runtime.torch_reasons import NUMPY, PLAN_READER, TORCH


def settings_of(recipe: Recipe, dependencies: tuple[str, ...] = ()) -> Settings:
    return Settings(Path("/project"), "net", "1", (), (recipe,), dependencies=dependencies)


def early(recipe: Recipe, dependencies: tuple[str, ...]) -> None:
    refuse_unmet_early(settings_of(recipe, dependencies))


@pytest.mark.parametrize("backend", ["openvino", "onnxruntime", "executorch", "reference", "aoti"])
def test_a_backend_of_the_table_is_checked_before_torch_is_imported(backend: str) -> None:
    recipe = Recipe("default", (BackendChoice(backend),))
    early(recipe, ("hatch-lower>=0.1", "numpy", "openvino", "onnxruntime", "executorch", "torch"))
    with pytest.raises(ConfigError, match="do not imply the requirements of its lowered"):
        early(recipe, ("hatch-lower>=0.1", "pillow"))
    early(Recipe("default", (BackendChoice("somebodys"),)), ("hatch-lower>=0.1",))


def test_a_provider_of_onnxruntime_decides_on_its_distribution() -> None:
    for cuda in ("CUDAExecutionProvider", {"name": "CUDAExecutionProvider", "device-id": 1}):
        for providers in ([cuda], [cuda, "CPUExecutionProvider"], ["CPUExecutionProvider", cuda]):
            choice = BackendChoice("onnxruntime", {"providers": providers})
            assert "onnxruntime-gpu>=1.23,<2" in early_requirements(Recipe("default", (choice,)))


@pytest.mark.torch
@pytest.mark.parametrize("backend", sorted(OWN))
def test_the_early_requirements_are_those_of_the_backend(backend: str) -> None:
    from hatch_lower.exir.backend.registry import find_backend
    from hatch_lower.runtime.selection import DelegateKinds

    early = {*early_requirements(Recipe("default", (BackendChoice(backend),)))}
    arrays = {NUMPY} if DelegateKinds().on_numpy([backend]) else {TORCH} if backend not in ("aoti", "cuda") else set()
    assert early == {PLAN_READER, *find_backend(backend).requirements({}), *arrays}


def test_the_early_check_imports_no_torch(modules_after: Callable[[str], set[str]]) -> None:
    assert "torch" not in modules_after("import hatch_lower.backends.early")


def test_a_missing_compiler_is_refused_early(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings = settings_of(Recipe("default", (BackendChoice("aoti"),)))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BackendError, match=r"no C\+\+ compiler was found"):
        refuse_missing_tools(settings)
    (tmp_path / "g++").touch(mode=0o755)
    refuse_missing_tools(settings)


@pytest.mark.parametrize("backend", sorted(LIBRARIES))
def test_a_missing_library_is_refused_early(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    settings = settings_of(Recipe("default", (BackendChoice(backend),)))
    for module in LIBRARIES[backend]:
        pytest.importorskip(module)
    refuse_missing_tools(settings)
    module = LIBRARIES[backend][-1]
    found = importlib.util.find_spec
    monkeypatch.setattr("hatch_lower.backends.early.find_spec", lambda name: None if name == module else found(name))
    with pytest.raises(BackendError, match=f"the backend `{backend}` needs libraries that are not installed") as caught:
        refuse_missing_tools(settings)
    assert caught.value.found == f"there is no module `{module}`"
    assert f"hatch-lower[{backend}]" in caught.value.hint
