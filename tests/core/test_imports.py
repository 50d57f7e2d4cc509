"""What each entrance imports, looked at in fresh interpreters: imports are architecture."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.lowered import lowered_model, write_lowered
from support.plans import call, delegate_entry, method, op, plan_value, python, tensor_input, v
from support.without_torch import run_without_torch, save_engine

Modules = Callable[[str], set[str]]
BLOB = "net/delegates/blob.bin"
COMPILE_HALVES = ("exir", "pipeline", "driver", "hatch", "cli")


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
        "hatch_lower.driver.build",
        "hatch_lower.config.settings",
        "importlib.metadata",
    }


def test_the_hook_itself_does_not_import_torch(modules_after: Modules) -> None:
    modules = modules_after("import hatch_lower.hatch.hooks as hooks; hooks.hatch_register_build_hook()")
    assert "hatchling" in modules
    assert not modules & {"torch", "click"}


def test_a_local_build_imports_no_engine_and_nothing_that_spreads_units(modules_after: Modules) -> None:
    modules = modules_after("import hatch_lower.driver.build, hatch_lower.driver.executor, hatch_lower.hatch.plugin")
    assert "hatch_lower.driver.build" in modules
    assert not {name for name in modules if name.startswith("hatch_lower.driver.spread")}
    assert not modules & {"dask", "distributed", "ray", "concurrent.futures.process", "multiprocessing"}


def test_the_scheduler_and_the_choice_of_an_executor_import_no_engine_and_no_torch(modules_after: Modules) -> None:
    modules = modules_after(
        "import hatch_lower.driver.spread.spread; from hatch_lower.driver.spread.executors.choose import opener"
    )
    assert not modules & {"dask", "distributed", "ray", "torch"}


def test_the_command_line_does_not_import_torch(modules_after: Modules) -> None:
    modules = modules_after("import hatch_lower.cli.entry")
    assert not modules & {"torch", "hatchling"}


@pytest.mark.torch
def test_the_runtime_imports_no_compile_half(modules_after: Modules) -> None:
    names = ("load", "executor", "delegates", "torch_private.inductor", "torch_private.unimported")
    modules = modules_after("\n".join(f"import hatch_lower.runtime.{name}" for name in names))
    heads = {".".join(name.split(".")[:2]) for name in modules}
    assert not heads & {f"hatch_lower.{name}" for name in COMPILE_HALVES}
    compilers = {"hatchling", "click", "torch._dynamo", "torch._inductor", "torch.export", "torch.fx", "sympy"}
    assert not (modules - modules_after("import torch")) & compilers


@pytest.mark.torch
@pytest.mark.parametrize("backend", ["aoti", "null", "reference"])
def test_a_run_half_imports_no_compile_half(modules_after: Modules, backend: str) -> None:
    modules = modules_after(f"import hatch_lower.backends.{backend}.run")
    heads = {".".join(name.split(".")[:2]) for name in modules}
    assert not heads & {f"hatch_lower.{name}" for name in COMPILE_HALVES}
    assert f"hatch_lower.backends.{backend}.compile" not in modules
    assert not modules & {"hatchling", "click", "torch._inductor"}


@pytest.mark.parametrize("module", ["load", "executor", "delegates", "numpy_arrays"])
def test_the_runtime_does_not_import_torch(modules_after: Modules, module: str) -> None:
    assert "torch" not in modules_after(f"import hatch_lower.runtime.{module}")


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_the_run_half_of_an_engine_does_not_import_torch(modules_after: Modules, engine: str) -> None:
    assert "torch" not in modules_after(f"import hatch_lower.backends.{engine}.run")


def make_network() -> Any:
    """Return a network with weights, a table of indices, two outputs and state."""
    import torch
    from torch import nn

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.table = nn.Embedding(11, 16)
            self.inner = nn.Linear(16, 16)
            self.norm = nn.LayerNorm(16)
            self.register_buffer("seen", torch.zeros(16))

        def forward(self, x: torch.Tensor, at: torch.Tensor) -> dict[str, torch.Tensor]:
            hidden = nn.functional.gelu(self.norm(self.inner(x))) + self.table(at)
            self.seen.copy_(self.seen + hidden.sum((0, 1)))
            return {"hidden": hidden.transpose(0, 1), "seen": self.seen + 1}

    return Network()


@pytest.mark.torch
@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_a_program_of_an_engine_computes_the_same_where_torch_cannot_be_imported(engine: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript" if engine == "onnxruntime" else engine)
    import numpy
    import torch

    import hatch_lower

    rows = {0: torch.export.Dim("rows", min=1, max=9)}
    x, at = torch.randn(3, 4, 16), torch.tensor([1, 3, 10, 0])
    shapes = {"x": rows, "at": None}
    folder = save_engine(engine, tmp_path / "program", make_network(), x, at, dynamic_shapes=shapes)
    expected = []
    model = hatch_lower.load(folder)
    assert model.arrays == "torch"
    inputs = [torch.randn(count, 4, 16) for count in (3, 1, 9)]
    for number, given in enumerate(inputs):
        numpy.save(tmp_path / f"x{number}.npy", given.numpy())
        found = model(given, at)
        expected.append({name: array_text(value.numpy()) for name, value in found.items()})
    code = """
        import json
        from pathlib import Path
        import numpy
        import hatch_lower

        def text(array):
            assert type(array) is numpy.ndarray
            return [str(array.dtype), list(array.shape), array.tobytes().hex()]

        folder, count, data = sys.argv[1:]
        model = hatch_lower.load(Path(folder))
        assert model.arrays == "numpy"
        at = numpy.array([1, 3, 10, 0])
        found = []
        for number in range(int(count)):
            outputs = model(numpy.load(f"{data}/x{number}.npy"), at)
            found.append({name: text(value) for name, value in outputs.items()})
        print(json.dumps(found))
    """
    assert json.loads(run_without_torch(code, folder, len(inputs), tmp_path)) == expected


def array_text(array: Any) -> list[object]:
    return [str(array.dtype), list(array.shape), array.tobytes().hex()]


@pytest.mark.torch
def test_without_torch_the_next_recipe_stands_in_for_one_that_needs_it(tmp_path: Path) -> None:
    vector = tensor_input(4)
    adding = plan_value(forward=method([vector], [op("aten.add.Tensor", v(0), v(0), out=1)], v(1)))
    viewing = plan_value(forward=method([vector], [op("aten.view.default", v(0), [2, 2], out=1)], v(1)))
    folder = tmp_path / "_lowered"
    body = [call(0, [v(0)], [vector], 1), python("getitem", v(1), 0, out=2)]
    native = plan_value(forward=method([vector], body, v(2)), delegates=[delegate_entry("aoti", file=BLOB)])
    recipes = {
        "default": {"plan": adding},
        "native": {"plan": native, "blobs": {BLOB: b"code"}},
        "lean": {"plan": viewing},
    }
    write_lowered(folder, {"net": lowered_model(folder, "net", recipes, order=["default", "native", "lean"])})
    code = """
        import warnings
        from pathlib import Path
        import numpy
        import hatch_lower

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = hatch_lower.load(Path(sys.argv[1]))
        print(*(each.message for each in caught))
        print(model.recipe, model(numpy.arange(4, dtype="float32")).tolist())
        for arrays in ({}, {"arrays": "torch"}):
            try:
                hatch_lower.load(Path(sys.argv[1]), recipe="default", **arrays)
            except hatch_lower.ProgramError as error:
                print(error)
    """
    assert run_without_torch(code, folder) == (
        "model `net` runs recipe `lean` because `default` cannot run here: it needs torch, which is not installed:"
        " `aten.add.Tensor`; `native` cannot run here: it needs torch, which is not installed: the delegate `aoti`\n"
        "lean [[0.0, 1.0], [2.0, 3.0]]\n"
        "recipe `default` of model `net` cannot run here\n"
        "  found: `default`: it needs torch, which is not installed: `aten.add.Tensor`\n"
        "  to do: install the named packages, or another wheel of the distribution\n"
        "a model takes and returns arrays of torch here, which is not installed\n"
        "  found: no module `torch`\n"
        '  to do: install torch, or load the model with `arrays="numpy"`\n'
    )
