"""What each entrance imports, looked at in fresh interpreters: imports are architecture."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Modules = Callable[[str], set[str]]
COMPILE_HALVES = ("exir", "pipeline", "build", "hatch", "cli")


def test_importing_the_package_imports_nothing_else(modules_after: Modules) -> None:
    modules = modules_after("import hatch_lower")
    assert {name for name in modules if name.startswith("hatch_lower")} == {"hatch_lower"}
    assert not modules & {"torch", "click", "hatchling", "difflib"}


def test_declaring_a_model_does_not_import_torch(modules_after: Modules) -> None:
    assert "torch" not in modules_after(
        "import hatch_lower; hatch_lower.Model, hatch_lower.Method, hatch_lower.LowerError"
    )


def test_registering_the_hook_is_light(modules_after: Modules) -> None:
    modules = modules_after("import hatch_lower.hatch.hooks as hooks; hooks.hatch_register_build_hook")
    assert not modules & {
        "torch",
        "click",
        "hatch_lower.build.build",
        "hatch_lower.config.settings",
        "importlib.metadata",
    }


def test_the_hook_itself_does_not_import_torch(modules_after: Modules) -> None:
    modules = modules_after("import hatch_lower.hatch.hooks as hooks; hooks.hatch_register_build_hook()")
    assert "hatchling" in modules
    assert not modules & {"torch", "click"}


def test_the_command_line_does_not_import_torch(modules_after: Modules) -> None:
    modules = modules_after("import hatch_lower.cli")
    assert not modules & {"torch", "hatchling"}


@pytest.mark.torch
def test_the_runtime_imports_no_compile_half(modules_after: Modules) -> None:
    code = "import hatch_lower.runtime.load, hatch_lower.runtime.executor, hatch_lower.runtime.delegates"
    modules = modules_after(code)
    heads = {".".join(name.split(".")[:2]) for name in modules}
    assert not heads & {f"hatch_lower.{name}" for name in COMPILE_HALVES}
    compilers = {"hatchling", "click", "torch._dynamo", "torch._inductor", "torch.export"}
    assert not (modules - modules_after("import torch")) & compilers


@pytest.mark.torch
@pytest.mark.parametrize("backend", ["aoti", "null", "reference"])
def test_a_run_half_imports_no_compile_half(modules_after: Modules, backend: str) -> None:
    modules = modules_after(f"import hatch_lower.backends.{backend}.run")
    heads = {".".join(name.split(".")[:2]) for name in modules}
    assert not heads & {f"hatch_lower.{name}" for name in COMPILE_HALVES}
    assert f"hatch_lower.backends.{backend}.compile" not in modules
    assert not modules & {"hatchling", "click", "torch._inductor"}
