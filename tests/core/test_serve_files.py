"""`hatch-lower serve-files`: Triton's model repository with the Python backend, a KServe service, refusals."""

from __future__ import annotations

import asyncio
import json
import runpy
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from support.exports import Workshop, packaged, settings_of, write_folder, write_wheel
from support.lowered import install
from support.triton import UTILS, TritonModel

import hatch_lower
from hatch_lower.cli.entry import main
from hatch_lower.cli.serve.describe import another_row
from hatch_lower.cli.serve.triton import config_tensor_lines
from hatch_lower.config.settings import Recipe
from hatch_lower.errors import ProgramError
from hatch_lower.format.served import FACTS, ServedTensor, read_served
from hatch_lower.runtime.serving.method import is_same_version

pytestmark = pytest.mark.torch

SOURCE = """\
import torch
from hatch_lower import Method, Model


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)
        self.table = torch.nn.Embedding(10, 4)
        self.register_buffer("count", torch.zeros(1))

    def forward(self, image, kinds, *, scale=2.0):
        rows = self.linear(image + self.table(kinds)) * scale
        return {"scores": rows, "best": rows.argmax(1)}

    def mixed(self, image):
        return image - image.mean(0)

    def total(self, image):
        return image.sum(), image.shape[0]

    def counted(self, image):
        self.count.add_(1)
        return image + self.count

    def halves(self, image):
        return image * 2

    def alike(self, image):
        return image + 1

    def looked_up(self, kinds):
        return None, self.table(kinds), "text", kinds.shape[0]

    def rising(self, image):
        return self.table(((image[:, 3:] - image[:, :1]) * 30).long()).sum(1)

    def scaled(self, image, factor):
        return image * factor

    def binned(self, image):
        return self.table((image * 9).long()).sum(1)

    def nothing(self, image):
        return {"loss": None}


def export():
    torch.manual_seed(3)
    rows = torch.export.Dim("rows", min=1, max=64)
    image = torch.linspace(0, 1, 12).reshape(3, 4)
    dynamic = {"image": {0: rows}}
    return Model(Net().eval(), {
        "forward": Method(
            (image, torch.tensor([1, 5, 9])), {"scale": 2.0},
            dynamic_shapes={"image": {0: rows}, "kinds": {0: rows}, "scale": None},
        ),
        "mixed": Method((image,), dynamic_shapes=dynamic),
        "total": Method((image,), dynamic_shapes=dynamic),
        "counted": Method((image,)),
        "halves": Method((image.to(torch.bfloat16),)),
        "alike": Method((torch.ones(2, 4, dtype=torch.int64),), dynamic_shapes=dynamic),
        "looked_up": Method((torch.tensor([1, 5, 9]),), dynamic_shapes={"kinds": {0: rows}}),
        "nothing": Method((image,)),
        "binned": Method((image.flip(0),), dynamic_shapes=dynamic),
        "rising": Method((image[:1].repeat(2, 1),), dynamic_shapes=dynamic),
        "scaled": Method((image, 7), dynamic_shapes={"image": None, "factor": torch.export.Dim.DYNAMIC}),
    })
"""
SERVED = ("forward", "mixed", "total", "alike", "looked_up", "binned", "rising")
NAMES = ["net", "net_alike", "net_binned", "net_looked_up", "net_mixed", "net_rising", "net_total"]
METHODS = [argument for name in SERVED for argument in ("--method", name)]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Return the files of the folder `_lowered` of the model."""
    return packaged(Workshop(tmp_path_factory.mktemp("shop")), SOURCE, settings_of(Recipe("portable")))


@pytest.fixture(scope="module")
def wheel(files: Mapping[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_wheel(tmp_path_factory.mktemp("dist") / "net-1.0-py3-none-any.whl", files)


@pytest.fixture(scope="module")
def triton(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """Return a model repository, and the rows that the command printed."""
    folder = tmp_path_factory.mktemp("server") / "models"
    done = run(wheel, "--format", "triton", "--to", str(folder), "--json", *METHODS)
    return folder, json.loads(done)


@pytest.fixture
def installed(files: Mapping[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the wheel in a folder on the path, and the stand-in for Triton's module."""
    write_folder(tmp_path / "net" / "_lowered", files)
    install(tmp_path, "net")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, UTILS.__name__, UTILS)


def run(wheel: Path, *arguments: str, status: int = 0) -> str:
    done = CliRunner().invoke(main, ["serve-files", str(wheel), *arguments])
    assert done.exit_code == status, done.output
    return done.output


def test_each_method_is_a_model_of_its_own(triton: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, rows = triton
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", *NAMES]
    assert sorted(row["model"] for row in rows) == NAMES
    assert {row["backend"] for row in rows} == {"python"}


def test_only_methods_whose_rows_are_apart_take_joined_requests(triton: tuple[Path, list[dict[str, Any]]]) -> None:
    found = {row["model"]: (row["batch"], row["not_batched"]) for row in triton[1]}
    assert found == {
        "net": (64, ""),
        "net_looked_up": (0, "an output has no dimensions"),
        "net_binned": (64, ""),
        "net_rising": (0, "a call with other rows fails: IndexRangeError: an index is out of range"),
        "net_mixed": (0, "rows of a call influence each other in the output `output`"),
        "net_total": (0, "an output has no dimensions"),
        "net_alike": (0, "the example inputs are too alike to tell whether rows of a call influence each other"),
    }


@pytest.mark.parametrize(
    ("rows", "other"),
    [([1, 5, 9], [5]), ([[1, 2], [1, 2]], [[2, 1]]), ([4], [4]), ([True, False], [False])],
    ids=["the next row", "the same row again", "one row", "truth values"],
)
def test_another_row_is_the_next_row_or_another_order(rows: list[Any], other: list[Any]) -> None:
    assert another_row(np.array(rows), np.random.default_rng(0)).tolist() == other
    assert another_row(np.array(rows, np.float32), None).tolist() == other


def test_a_size_of_0_is_any_size_for_triton() -> None:
    lines = list(config_tensor_lines("input", [ServedTensor("image", "float32", (2, 0))], has_batch=False))
    assert lines[3] == "  dims: [ 2, -1 ]"


def test_the_configuration_names_tensors_dtypes_and_shapes(triton: tuple[Path, list[dict[str, Any]]]) -> None:
    text = (triton[0] / "net" / "config.pbtxt").read_text()
    assert text.splitlines()[1:] == [
        *('name: "net"', 'backend: "python"', "max_batch_size: 64"),
        *("input {", '  name: "image"', "  data_type: TYPE_FP32", "  dims: [ 4 ]", "}"),
        *("input {", '  name: "kinds"', "  data_type: TYPE_INT64", "  dims: [ 1 ]", "}"),
        *("output {", '  name: "scores"', "  data_type: TYPE_FP32", "  dims: [ 3 ]", "}"),
        *("output {", '  name: "best"', "  data_type: TYPE_INT64", "  dims: [ 1 ]", "}"),
        *("dynamic_batching { }", "instance_group [ { count: 1 kind: KIND_CPU } ]"),
    ]


@pytest.mark.parametrize("name", NAMES)
def test_tritons_own_parser_takes_each_configuration(triton: tuple[Path, list[dict[str, Any]]], name: str) -> None:
    pytest.importorskip("grpc")
    config = pytest.importorskip("tritonclient.grpc.model_config_pb2")
    text_format = pytest.importorskip("google.protobuf.text_format")
    found = text_format.Parse((triton[0] / name / "config.pbtxt").read_text(), config.ModelConfig())
    served = read_served((triton[0] / name / "1" / FACTS).read_bytes(), name)
    assert (found.name, found.backend, found.max_batch_size) == (name, "python", served.batch)
    assert [each.name for each in found.input] == [each.name for each in served.inputs]
    assert found.HasField("dynamic_batching") == bool(served.batch)
    # Triton refuses a tensor without dimensions
    assert all(each.dims for each in (*found.input, *found.output))


@pytest.mark.usefixtures("installed")
def test_the_python_backend_returns_what_load_returns(triton: tuple[Path, list[dict[str, Any]]]) -> None:
    numbers = np.random.default_rng(0)
    requests = [
        {"image": numbers.random((rows, 4), np.float32), "kinds": numbers.integers(0, 10, (rows, 1))}
        for rows in (1, 3, 2)
    ]
    model = hatch_lower.load("net:net", arrays="torch")
    outputs = TritonModel(triton[0] / "net" / "1").execute(requests)
    import torch

    for request, found in zip(requests, outputs, strict=True):
        image, kinds = torch.from_numpy(request["image"]), torch.from_numpy(request["kinds"][:, 0])
        expected = model(image, kinds, scale=2.0)
        assert isinstance(found, dict)
        np.testing.assert_allclose(found["scores"], expected["scores"].numpy(), rtol=1e-6)
        np.testing.assert_array_equal(found["best"], expected["best"].numpy()[:, None])


@pytest.mark.usefixtures("installed")
def test_numbers_and_tensors_without_dimensions_have_one(triton: tuple[Path, list[dict[str, Any]]]) -> None:
    (found,) = TritonModel(triton[0] / "net_total" / "1").execute([{"image": np.ones((5, 4), np.float32)}])
    assert isinstance(found, dict)
    assert {name: (array.tolist(), array.dtype.name) for name, array in found.items()} == {
        "output_0": ([20.0], "float32"),
        "output_1": ([5], "int64"),
    }


@pytest.mark.usefixtures("installed")
def test_outputs_that_are_none_or_texts_are_left_out(triton: tuple[Path, list[dict[str, Any]]]) -> None:
    (found,) = TritonModel(triton[0] / "net_looked_up" / "1").execute([{"kinds": np.array([3, 4])}])
    assert isinstance(found, dict)
    assert {name: array.shape for name, array in found.items()} == {"output_1": (2, 4), "output_3": (1,)}


@pytest.mark.usefixtures("installed")
def test_a_bad_request_of_a_batch_is_an_error_of_that_request(triton: tuple[Path, list[dict[str, Any]]]) -> None:
    good = {"image": np.ones((1, 4), np.float32), "kinds": np.array([[2]])}
    bad = {**good, "kinds": np.array([[10]])}
    first, second, third = TritonModel(triton[0] / "net" / "1").execute([good, bad, good])
    assert isinstance(second, str)
    assert isinstance(first, dict)
    assert isinstance(third, dict)
    assert first["scores"].tolist() == third["scores"].tolist()


@pytest.mark.usefixtures("installed")
def test_another_version_of_the_distribution_is_refused(
    triton: tuple[Path, list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: "1.1")
    with pytest.raises(ProgramError) as caught:
        TritonModel(triton[0] / "net" / "1")
    assert str(caught.value) == (
        "the server's files are for `net` 1.0\n  found: 1.1\n"
        "  to do: run `pip install net==1.0` in the server's Python, or write the files again"
    )


@pytest.mark.usefixtures("installed")
def test_an_instance_on_a_gpu_loads_the_model_there(
    triton: tuple[Path, list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    load = hatch_lower.load
    monkeypatch.setattr(
        hatch_lower, "load", lambda *given, device, **named: (asked.append(device), load(*given, **named))[1]
    )
    TritonModel(triton[0] / "net" / "1")
    TritonModel(triton[0] / "net" / "1", "GPU")
    assert asked == [None, "cuda:3"]


def test_a_kserve_folder_has_a_server_its_image_and_the_service(wheel: Path, tmp_path: Path) -> None:
    folder = tmp_path / "service"
    output = run(wheel, "--format", "kserve", "--to", str(folder), *METHODS)
    assert "7 models in" in output
    found = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    methods = [f"models/{name}/{FACTS}" for name in NAMES]
    assert found == ["Dockerfile", "README.md", "inference-service.yaml", *methods, wheel.name, "server.py"]
    assert (folder / wheel.name).read_bytes() == wheel.read_bytes()
    yaml = pytest.importorskip("yaml")
    service = yaml.safe_load((folder / "inference-service.yaml").read_text())
    (container,) = service["spec"]["predictor"]["containers"]
    assert (service["kind"], container["image"]) == ("InferenceService", "net:1.0")
    assert container["ports"] == [{"containerPort": 8080, "protocol": "TCP"}]


def test_a_method_is_served_of_each_model_that_has_it(files: Mapping[str, bytes], tmp_path: Path) -> None:
    manifest = json.loads(files["manifest.json"])
    (recipe,) = (other := json.loads(files["manifest.json"])["models"]["net"])["recipes"].values()
    recipe["methods"] = {"counted": recipe["methods"]["counted"]}
    manifest["models"]["other"] = other
    wheel = write_wheel(
        tmp_path / "net-1.0-py3-none-any.whl", {**files, "manifest.json": json.dumps(manifest).encode()}
    )
    run(wheel, "--format", "triton", "--to", str(tmp_path / "models"), "--method", "forward")
    assert sorted(path.name for path in (tmp_path / "models").iterdir()) == ["README.md", "net"]


def test_a_cluster_allows_the_names_in_its_files(files: Mapping[str, bytes], tmp_path: Path) -> None:
    manifest = {**json.loads(files["manifest.json"]), "distribution": "3d-net", "version": "1!2.0+cpu"}
    wheel = write_wheel(
        tmp_path / "3d_net-1!2.0+cpu-py3-none-any.whl", {**files, "manifest.json": json.dumps(manifest).encode()}
    )
    run(wheel, "--format", "kserve", "--to", str(tmp_path / "service"), "--method", "forward")
    text = (tmp_path / "service" / "inference-service.yaml").read_text()
    assert '\n  name: "model-3d-net"\n' in text
    assert '\n        image: "model-3d-net:1-2.0-cpu"\n' in text


@pytest.mark.parametrize(
    ("found", "version", "same"),
    [("2024.01", "2024.1", True), ("1.0-RC1", "1.0rc1", True), ("1.1", "1.0", False), ("none", "1.0", False)],
)
def test_versions_are_compared_as_versions(found: str, version: str, same: bool) -> None:
    assert is_same_version(found, version) == same


@pytest.mark.usefixtures("installed")
def test_the_written_server_answers(wheel: Path, tmp_path: Path) -> None:
    folder = tmp_path / "service"
    run(wheel, "--format", "kserve", "--to", str(folder), "--method", "forward")
    app = runpy.run_path(str(folder / "server.py"))["app"]
    app.load()
    tensors = [("image", "FP32", [1, 4], [0.0] * 4), ("kinds", "INT64", [1], [3])]
    inputs = [dict(zip(("name", "datatype", "shape", "data"), each, strict=True)) for each in tensors]
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": json.dumps({"inputs": inputs}).encode()}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app({"type": "http", "method": "POST", "path": "/v2/models/net/infer"}, receive, send))
    outputs = {each["name"]: each["data"] for each in json.loads(sent[1]["body"])["outputs"]}
    import torch

    expected = hatch_lower.load("net:net", arrays="torch")(torch.zeros(1, 4), torch.tensor([3]), scale=2.0)
    np.testing.assert_allclose(outputs["scores"], expected["scores"][0].numpy(), rtol=1e-6)
    assert outputs["best"] == expected["best"].tolist()


REFUSALS = {
    ("--method", "counted"): (
        "the method changes state, which all clients of a server would share\n"
        "  where: model `net`, method `counted`\n  found: `count`\n"
        "  to do: choose other methods with `--method`, or another model with `--model`; or export a method that takes "
        "the state and returns it"
    ),
    ("--method", "halves"): (
        "servers have no dtype for bfloat16\n  where: model `net`, method `halves`, input `image`\n"
        "  found: they have bool, int8, int16, int32, int64, uint8, uint16, uint32, uint64, float16, float32, float64\n"
        "  to do: export a method that takes and returns tensors of these dtypes"
    ),
    ("--method", "nothing"): (
        "the method returns no tensor and no number\n  where: model `net`, method `nothing`\n"
        "  found: no outputs, or only `None` and texts\n"
        "  to do: choose other methods with `--method`, or another model with `--model`"
    ),
    ("--method", "scaled"): (
        "the method cannot be described to a server without its example inputs\n"
        "  where: model `net`, method `scaled`\n  found: its input 2 is an integer, which is not packaged\n"
        "  to do: export a method that takes the integer as a tensor, or for one value"
    ),
    (
        "--method",
        "forwards",
    ): "there is no such method\n  where: net-1.0-py3-none-any.whl\n  found: did you mean `forward`? known: ",
    (
        "--model",
        "nets",
    ): "there is no such model\n  where: net-1.0-py3-none-any.whl\n  found: did you mean `net`? known: `net`",
    ("--recipe", "fast"): "there is no such recipe\n  where: model `net`\n  found: known: `portable`",
}


@pytest.mark.parametrize("arguments", REFUSALS, ids=lambda arguments: arguments[1])
def test_what_cannot_be_served_is_refused_and_nothing_is_written(
    wheel: Path, tmp_path: Path, arguments: tuple[str, str]
) -> None:
    output = run(wheel, "--format", "triton", "--to", str(tmp_path / "models"), *arguments, status=1)
    assert output.startswith(f"error: {REFUSALS[arguments]}")
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_format_is_refused_by_name(wheel: Path, tmp_path: Path) -> None:
    output = run(wheel, "--format", "torchserve", "--to", str(tmp_path / "models"), status=2)
    assert "'torchserve' is not one of 'triton', 'kserve'" in output


def test_folders_above_are_made_with_the_files_only(wheel: Path, tmp_path: Path) -> None:
    folder = tmp_path / "one" / "two" / "models"
    run(wheel, "--format", "triton", "--to", str(folder), "--method", "counted", status=1)
    assert list(tmp_path.iterdir()) == []
    run(wheel, "--format", "triton", "--to", str(folder), "--method", "forward")
    assert (folder / "net" / "config.pbtxt").is_file()


def test_a_file_name_with_other_characters_is_refused(wheel: Path, tmp_path: Path) -> None:
    odd = tmp_path / "net-1.0-py3-none-any run.whl"
    odd.write_bytes(wheel.read_bytes())
    output = run(odd, "--format", "kserve", "--to", str(tmp_path / "service"), status=1)
    assert "found: other characters than in the name of a wheel: 'net-1.0-py3-none-any run.whl'" in output


def test_a_missing_path_and_a_variant_are_refused(wheel: Path, tmp_path: Path) -> None:
    variant = tmp_path / "net-1.0-py3-none-any-null.whl"
    variant.write_bytes(wheel.read_bytes())
    for path, found in ((tmp_path / "dist", "there is no such file"), (variant, "Invalid build number: py3 in")):
        output = run(path, "--format", "kserve", "--to", str(tmp_path / "service"), status=1)
        assert f"found: {found}" in output
        assert "to do: name a wheel without a variant's label, or a folder with wheels such as `dist/`" in output


def test_a_folder_with_files_is_not_touched(wheel: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    output = run(wheel, "--format", "triton", "--to", str(tmp_path), status=1)
    assert output == (
        f"error: the folder for the server's files has other files\n  where: {tmp_path}\n"
        "  to do: name a new folder with `--to`\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_an_empty_folder_is_taken(wheel: Path, tmp_path: Path) -> None:
    run(wheel, "--format", "triton", "--to", str(tmp_path), "--method", "forward")
    assert (tmp_path / "net" / "config.pbtxt").is_file()


def test_files_are_written_from_a_wheel_alone(files: Mapping[str, bytes], tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "net", files)
    output = run(folder, "--format", "triton", "--to", str(tmp_path / "models"), status=1)
    assert output.startswith("error: the files for a server are written from a wheel\n")


def test_a_folder_without_wheels_is_named_as_such(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "pyproject.toml").touch()
    (tmp_path / "dist").mkdir()
    for name, found in (("dist", "a folder without wheels"), ("project", "the folder of a project")):
        output = run(tmp_path / name, "--format", "triton", "--to", str(tmp_path / "models"), status=1)
        assert f"  where: {tmp_path / name}\n  found: {found}\n  to do: name a wheel" in output


def test_a_name_that_servers_do_not_allow_is_refused(files: Mapping[str, bytes], tmp_path: Path) -> None:
    manifest = json.loads(files["manifest.json"])
    manifest["models"] = {"my net": manifest["models"]["net"]}
    renamed = {**files, "manifest.json": json.dumps(manifest).encode()}
    wheel = write_wheel(tmp_path / "net-1.0-py3-none-any.whl", renamed)
    output = run(wheel, "--format", "triton", "--to", str(tmp_path / "models"), "--method", "forward", status=1)
    assert output == (
        "error: the name of a model is not allowed in a server\n  found: `my net`\n  to do: begin the name with a"
        " letter of ASCII or a digit, and use only letters, digits, `_`, `.` and `-`\n"
    )


def test_a_model_without_check_inputs_is_refused(tmp_path: Path, files: Mapping[str, bytes]) -> None:
    manifest = json.loads(files["manifest.json"])
    manifest["models"]["net"]["check"] = None
    wheel = write_wheel(
        tmp_path / "net-1.0-py3-none-any.whl", {**files, "manifest.json": json.dumps(manifest).encode()}
    )
    output = run(wheel, "--format", "kserve", "--to", str(tmp_path / "models"), "--method", "forward", status=1)
    assert "the method cannot be described to a server without its example inputs" in output
    assert "build the wheel with a larger `check-megabytes`" in output
