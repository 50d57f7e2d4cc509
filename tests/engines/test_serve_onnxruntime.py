"""`hatch-lower serve-files` with the backend onnxruntime: the methods and files for Triton's own backend."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from support.exports import Workshop, packaged, settings_of, write_folder, write_wheel
from support.loading import load_folder

from hatch_lower.cli.entry import main
from hatch_lower.config.settings import Recipe
from hatch_lower.config.tables import BackendChoice

pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")

import onnx
import onnxruntime

from hatch_lower.backends.onnxruntime.model_file import FILE_MARK, offset_mark
from hatch_lower.backends.onnxruntime.standalone import has_integer_products, rename_graph, write_standalone

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

SOURCE = """\
import torch
from hatch_lower import Method, Model


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(8, 16), torch.nn.Linear(16, 3)
        self.table = torch.nn.Embedding(10, 8)

    def forward(self, image, kinds, *, scale=2.0):
        rows = self.last(torch.relu(self.first(image + self.table(kinds).sum(1)))) * scale
        return {"scores": rows, "best": rows.argmax(1, keepdim=True)}

    def fixed(self, image):
        return self.first(image)

    def chosen(self, image):
        return torch.cond(image.sum() > 0, lambda x: x * 2, lambda x: x - 1, (image,))

    def long(self, image):
        return image.cumsum(0)

    def flat(self, image):
        return self.first(image).sum(1)

    def unused(self, image, other):
        return image * 2

    def empty(self, image, none):
        return self.first(image), none * 2

    def same(self, image):
        return image, image * 2


def export():
    torch.manual_seed(3)
    rows, length = torch.export.Dim("rows", min=1, max=64), torch.export.Dim("length", min=2, max=64)
    image = torch.linspace(-1, 1, 24).reshape(3, 8)
    dynamic = {"image": {0: rows}}
    return Model(Net().eval(), {
        "forward": Method(
            (image, torch.tensor([[1, 5], [9, 0], [3, 3]])), {"scale": 2.0},
            dynamic_shapes={"image": {0: rows}, "kinds": {0: rows}, "scale": None},
        ),
        "fixed": Method((image,)),
        "chosen": Method((image,)),
        "long": Method((image,), dynamic_shapes={"image": {0: length}}),
        "flat": Method((image,), dynamic_shapes=dynamic),
        "unused": Method((image, image)),
        "same": Method((image,)),
        "empty": Method((image, torch.zeros(2, 0))),
    })
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Return the files of the folder `_lowered` of the model."""
    recipe = Recipe("default", (BackendChoice("onnxruntime"),))
    return packaged(Workshop(tmp_path_factory.mktemp("shop")), SOURCE, settings_of(recipe))


@pytest.fixture(scope="module")
def written(files: Mapping[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Return a model repository, and the printed rows by model."""
    folder = tmp_path_factory.mktemp("server") / "models"
    wheel = write_wheel(tmp_path_factory.mktemp("dist") / "net-1.0-py3-none-any.whl", files)
    done = CliRunner().invoke(main, ["serve-files", str(wheel), "--format", "triton", "--to", str(folder), "--json"])
    assert done.exit_code == 0, done.output
    return folder, {row["model"]: row for row in json.loads(done.output)}


def session(folder: Path, model: str) -> Any:
    return onnxruntime.InferenceSession(str(folder / model / "1" / "model.onnx"), providers=["CPUExecutionProvider"])


def test_a_method_that_the_engine_computes_whole_needs_no_python(written: tuple[Path, dict[str, Any]]) -> None:
    folder, rows = written
    found = {name: (row["backend"], row["reason"]) for name, row in rows.items()}
    several = "the method has {} instructions, and a server's backend runs one delegate"
    assert found["net"] == ("onnxruntime", "")
    assert found["net_fixed"] == ("onnxruntime", "")
    assert found["net_chosen"][0] == "python"
    assert found["net_chosen"][1].startswith(several.partition("{}")[0])
    assert found["net_long"] == ("python", "the runtime checks dynamic sizes, which the server does not")
    assert found["net_flat"] == ("python", "a tensor has no dimensions besides the batch's")
    assert found["net_empty"] == ("python", "a tensor has the size 0, which Triton does not know")
    other = "inputs or outputs of the method are not those of the delegate"
    assert (found["net_unused"], found["net_same"]) == (("python", other), ("python", other))
    assert sorted(path.name for path in (folder / "net" / "1").iterdir()) == ["model.onnx", "model.onnx.data"]
    assert sorted(path.name for path in (folder / "net_long" / "1").iterdir()) == ["method.json", "model.py"]


def test_the_written_model_is_valid_and_has_the_methods_names(written: tuple[Path, dict[str, Any]]) -> None:
    path = written[0] / "net" / "1" / "model.onnx"
    onnx.checker.check_model(str(path), full_check=True)
    graph = onnx.load(str(path), load_external_data=False).graph
    assert sorted(value.name for value in graph.input) == ["image", "kinds"]
    assert [value.name for value in graph.output] == ["scores", "best"]
    places = {entry.value for each in graph.initializer for entry in each.external_data if entry.key == "location"}
    assert places == {"model.onnx.data"}


@pytest.mark.parametrize("rows", [1, 2, 64])
def test_plain_onnxruntime_gives_the_packaged_numbers(
    written: tuple[Path, dict[str, Any]], files: Mapping[str, bytes], tmp_path: Path, rows: int
) -> None:
    numbers = np.random.default_rng(rows)
    image = numbers.standard_normal((rows, 8), np.float32)
    kinds = numbers.integers(0, 10, (rows, 2))
    scores, best = session(written[0], "net").run(["scores", "best"], {"image": image, "kinds": kinds})
    expected = load_folder(write_folder(tmp_path / "net", files), arrays="numpy")(image, kinds, scale=2.0)
    np.testing.assert_allclose(scores, expected["scores"], rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(best, expected["best"])


def test_an_index_out_of_range_is_an_error_of_the_written_model_too(written: tuple[Path, dict[str, Any]]) -> None:
    given = {"image": np.zeros((1, 8), np.float32), "kinds": np.array([[0, 10]])}
    with pytest.raises(Exception, match="out of data bounds"):
        session(written[0], "net").run(None, given)


def test_the_configuration_chooses_the_backend_and_the_processor(written: tuple[Path, dict[str, Any]]) -> None:
    lines = (written[0] / "net" / "config.pbtxt").read_text().splitlines()
    assert 'backend: "onnxruntime"' in lines
    assert "max_batch_size: 64" in lines
    assert "instance_group [ { count: 1 kind: KIND_CPU } ]" in lines


def test_a_written_model_with_other_numbers_is_not_served(
    files: Mapping[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hatch_lower.backends.onnxruntime import standalone

    write = standalone.write_standalone

    def write_wrong(folder: Path, model: bytes, names: Any, weights: Mapping[int, Any]) -> None:
        write(folder, model, names, {at: array + 1 for at, array in weights.items()})

    monkeypatch.setattr(standalone, "write_standalone", write_wrong)
    wheel = write_wheel(tmp_path / "net-1.0-py3-none-any.whl", files)
    folder = tmp_path / "models"
    arguments = ["serve-files", str(wheel), "--format", "triton", "--to", str(folder), "--method", "fixed", "--json"]
    (row,) = json.loads(CliRunner().invoke(main, arguments).output)
    assert row["backend"] == "python"
    assert row["reason"].startswith("`output` without the settings of the run half: largest absolute error")
    assert sorted(path.name for path in (folder / "net_fixed" / "1").iterdir()) == ["method.json", "model.py"]


def of_nodes(nodes: list[Any], opset: int = 20) -> Any:
    floats = {name: onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in ("x0", "y0")}
    chosen = onnx.helper.make_tensor_value_info("x1", onnx.TensorProto.BOOL, [])
    graph = onnx.helper.make_graph(nodes, "graph", [floats["x0"], chosen], [floats["y0"]])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=10)


def test_values_of_graphs_inside_the_graph_are_renamed_too() -> None:
    def branch(name: str, operator: str) -> Any:
        # reads a value of the graph around it, and an inner value has the public name of an input
        nodes = [onnx.helper.make_node(operator, ["v0"], ["image"]), onnx.helper.make_node("Neg", ["image"], [name])]
        result = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2])
        return onnx.helper.make_graph(nodes, name, [], [result])

    branches = {"then_branch": branch("a", "Relu"), "else_branch": branch("b", "Abs")}
    model = of_nodes(
        [onnx.helper.make_node("Neg", ["x0"], ["v0"]), onnx.helper.make_node("If", ["x1"], ["y0"], **branches)]
    )
    before = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    rename_graph(model.graph, {"x0": "image", "x1": "chosen", "y0": "output"})
    after = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    x = np.array([1.0, -2.0], np.float32)
    for chosen, expected in ((True, [-0.0, -2.0]), (False, [-1.0, -2.0])):
        assert before.run(None, {"x0": x, "x1": np.array(chosen)})[0].tolist() == expected
        assert after.run(["output"], {"image": x, "chosen": np.array(chosen)})[0].tolist() == expected


@pytest.mark.parametrize(
    ("operator", "found"), [("DynamicQuantizeLinear", True), ("MatMulInteger", True), ("Relu", False)]
)
def test_a_model_with_products_of_integers_is_told_by_its_operators(operator: str, found: bool) -> None:
    model = of_nodes([onnx.helper.make_node(operator, ["x0"], ["y0"])])
    assert has_integer_products(model.SerializeToString()) is found


def test_weights_in_any_layout_lie_beside_the_model(tmp_path: Path) -> None:
    transposed = np.arange(6, dtype=np.float32).reshape(2, 3).T
    model = of_nodes([onnx.helper.make_node("ReduceSum", ["w0"], ["y0"], keepdims=0)])
    weight = onnx.TensorProto(name="w0", data_type=onnx.TensorProto.FLOAT, dims=[3, 2], data_location=1)
    for key, value in (("location", FILE_MARK), ("offset", str(offset_mark(0))), ("length", "24")):
        weight.external_data.add(key=key, value=value)
    model.graph.initializer.append(weight)
    write_standalone(tmp_path, model.SerializeToString(), {"x0": "x", "x1": "chosen", "y0": "sum"}, {0: transposed})
    assert (tmp_path / "model.onnx.data").read_bytes() == np.ascontiguousarray(transposed).tobytes()
    (found,) = onnx.load(str(tmp_path / "model.onnx")).graph.initializer
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(found), transposed)
    assert found.name == "inner/w0"


def test_the_library_that_writes_models_is_named_where_it_is_missing(
    files: Mapping[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    wheel = write_wheel(tmp_path / "dist" / "net-1.0-py3-none-any.whl", files)
    arguments = ["serve-files", str(wheel), "--format", "triton", "--to", str(tmp_path / "models"), "--method", "fixed"]
    done = CliRunner().invoke(main, arguments)
    assert (done.exit_code, done.output) == (
        1,
        "error: this command needs the package `onnx`, which is not installed\n"
        '  to do: install it: pip install "hatch-lower[onnxruntime]"\n',
    )
    assert [path.name for path in tmp_path.iterdir()] == ["dist"]


def test_the_readme_names_the_reason_for_each_backend(written: tuple[Path, dict[str, Any]]) -> None:
    folder, rows = written
    table = [line.split("|") for line in (folder / "README.md").read_text().splitlines() if line.startswith("| `")]
    found = {cells[1].strip(" `"): (cells[2].strip(" `"), cells[4].strip()) for cells in table}
    assert found == {name: (row["backend"], row["reason"]) for name, row in rows.items()}
