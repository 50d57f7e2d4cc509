"""`hatch_lower.mlflow`: wheels in MLflow's stores, its servers and its registry."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest
import torch
from support.lowered import lowered_model, write_lowered
from support.plans import method, op, parameter, plan_value, tensor_input, v
from support.sides import record_members

import hatch_lower.mlflow
from hatch_lower.errors import FetchError, InputError, ProcessError, ProgramError

pytestmark = pytest.mark.filterwarnings("default")  # MLflow warns of its own code

SECONDS = 120.0
X = np.array([1.0, 2.0], np.float32)


@pytest.fixture
def mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return MLflow with a store of its own: a database, and a folder for files."""
    try:
        import mlflow
    except ModuleNotFoundError:
        pytest.skip("MLflow is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    yield mlflow
    while mlflow.active_run():
        mlflow.end_run()
    mlflow.set_tracking_uri(None)


def wheel_of(folder: Path, dtype: str = "float32", tree: Any = "*", more: Any = MappingProxyType({})) -> Path:
    """Write a wheel whose method `forward` doubles `x0`, and whose method `pair` also returns `x0`.

    Both are specialized for the value 3 of a further argument.
    """
    double = [op("aten.add.Tensor", v(0), v(0), out=2)]
    inputs = [tensor_input(2, dtype=dtype), {"kind": "literal", "value": 3}]
    parameters = [parameter("x0", tree), parameter("times")]
    named = {"dict": [["same", "*"], ["twice", "*"]]}
    methods = {
        "forward": method(inputs, double, v(2), parameters=parameters),
        "pair": method(inputs, double, v(0), v(2), parameters=parameters, tree=named),
        **more,
    }
    plan = plan_value(methods)
    made = folder / "made/digits/_lowered"
    write_lowered(made, {"double": lowered_model(made, "double", {"default": {"plan": plan}})})
    path = folder / "digits-1.0-py3-none-any.whl"
    lines = ["Metadata-Version: 2.4", "Name: digits", "Version: 1.0", "Requires-Dist: torch>=2.13"]
    lines += ["Requires-Dist: spare; extra == 'more'", ""]
    with ZipFile(path, "w") as archive:
        for file in sorted(made.rglob("*")):
            if file.is_file():
                archive.write(file, file.relative_to(folder / "made"))
        archive.writestr("digits-1.0.dist-info/RECORD", "")
    return record_members(path, {"digits-1.0.dist-info/METADATA": "\n".join(lines).encode()})


def test_a_logged_wheel_computes_the_same_by_each_way_to_load(tmp_path: Path, mlflow: Any) -> None:
    with mlflow.start_run():
        info = hatch_lower.mlflow.log_model(wheel_of(tmp_path), "double", registered_model_name="double")
    for address in (info.model_uri, "models:/double/1"):
        assert mlflow.pyfunc.load_model(address).predict({"x0": X}).tolist() == [2, 4]
        assert hatch_lower.mlflow.load_model(address)(torch.from_numpy(X), 3).tolist() == [2, 4]


def test_several_outputs_are_arrays_by_name(tmp_path: Path, mlflow: Any) -> None:
    hatch_lower.mlflow.save_model(wheel_of(tmp_path), tmp_path / "saved", method="pair")
    found = mlflow.pyfunc.load_model(str(tmp_path / "saved")).predict({"x0": X})
    assert {name: array.tolist() for name, array in found.items()} == {"same": [1, 2], "twice": [2, 4]}


def test_the_folder_names_what_a_server_needs(tmp_path: Path, mlflow: Any) -> None:
    saved = tmp_path / "saved"
    hatch_lower.mlflow.save_model(wheel_of(tmp_path), saved)
    names = ["MLmodel", "digits-1.0-py3-none-any.whl", "python_env.yaml", "requirements.txt"]
    assert sorted(path.name for path in saved.iterdir()) == names
    # a server's environment needs MLflow, too
    assert (saved / "requirements.txt").read_text() == f"mlflow=={mlflow.__version__}\ntorch>=2.13\n"
    signature = mlflow.models.Model.load(str(saved)).signature
    assert signature.inputs.to_dict() == [
        {"name": "x0", "type": "tensor", "tensor-spec": {"dtype": "float32", "shape": (2,)}}
    ]


def test_an_input_of_another_dtype_is_refused(tmp_path: Path, mlflow: Any) -> None:
    hatch_lower.mlflow.save_model(wheel_of(tmp_path), tmp_path / "saved")
    loaded = mlflow.pyfunc.load_model(str(tmp_path / "saved"))
    with pytest.raises(mlflow.exceptions.MlflowException, match="float64"):
        loaded.predict({"x0": X.astype(np.float64)})
    with pytest.raises(InputError, match="MLflow gives the model no arrays by name"):
        hatch_lower.mlflow._load_pyfunc(str(tmp_path / "saved")).predict(X)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"model": "triple"}, "there is no such model"),
        ({"method": "backward"}, "there is no such method"),
        ({"recipe": "fast"}, "there is no such recipe"),
    ],
)
def test_a_name_that_the_wheel_lacks_is_refused_before_a_run_is_made(
    tmp_path: Path, mlflow: Any, arguments: dict[str, str], what: str
) -> None:
    with pytest.raises(ProgramError, match=what):
        hatch_lower.mlflow.log_model(wheel_of(tmp_path), "double", **arguments)
    assert mlflow.active_run() is None
    with pytest.raises(ProgramError, match=what):
        hatch_lower.mlflow.save_model(wheel_of(tmp_path), tmp_path / "saved", **arguments)
    assert not (tmp_path / "saved").exists()


def test_a_dtype_that_numpy_lacks_is_refused_before_a_run_is_made(tmp_path: Path, mlflow: Any) -> None:
    wheel = wheel_of(tmp_path, "bfloat16")
    for store in (hatch_lower.mlflow.log_model, hatch_lower.mlflow.save_model):
        with pytest.raises(ProgramError, match="servers have no dtype for bfloat16"):
            store(wheel, str(tmp_path / "saved"))
    assert mlflow.active_run() is None
    assert not (tmp_path / "saved").exists()


def test_a_method_without_tensors_is_refused_before_a_run_is_made(tmp_path: Path, mlflow: Any) -> None:
    wheel = wheel_of(tmp_path, more={"count": method([{"kind": "literal", "value": 3}], [], v(0))})
    for store in (hatch_lower.mlflow.log_model, hatch_lower.mlflow.save_model):
        with pytest.raises(ProgramError, match="MLflow has no models without inputs"):
            store(wheel, str(tmp_path / "saved"), method="count")
    assert mlflow.active_run() is None


def test_tensors_in_containers_have_names_of_their_own(tmp_path: Path, mlflow: Any) -> None:
    hatch_lower.mlflow.save_model(wheel_of(tmp_path, tree={"list": ["*"]}), tmp_path / "saved")
    assert mlflow.pyfunc.load_model(str(tmp_path / "saved")).predict({"x0_0": X}).tolist() == [2, 4]


@pytest.mark.usefixtures("mlflow")
def test_a_wheel_with_other_bytes_is_refused(tmp_path: Path) -> None:
    hatch_lower.mlflow.save_model(wheel_of(tmp_path), tmp_path / "saved")
    stored = tmp_path / "saved/digits-1.0-py3-none-any.whl"
    stored.write_bytes(stored.read_bytes() + b"x")
    with pytest.raises(ProgramError, match="the wheel of the model is not the wheel that was logged"):
        hatch_lower.mlflow.load_model(str(tmp_path / "saved"))
    stored.unlink()
    with pytest.raises(ProgramError, match="no such file"):
        hatch_lower.mlflow.load_model(str(tmp_path / "saved"))


def test_a_model_of_another_flavor_is_refused(tmp_path: Path, mlflow: Any) -> None:
    model = mlflow.models.Model()
    mlflow.pyfunc.add_to_model(model, loader_module="others")
    (tmp_path / "other").mkdir()
    model.save(str(tmp_path / "other/MLmodel"))
    with pytest.raises(ProgramError, match="the model of MLflow is no wheel of hatch-lower"):
        hatch_lower.mlflow.load_model(str(tmp_path / "other"))


@pytest.mark.usefixtures("mlflow")
@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ("flavors:", "flavours:", "no flavor `hatch_lower`, or a damaged one"),
        ("  hatch_lower:", "  hatch_lower: [", "no flavor `hatch_lower`, or a damaged one"),
        ("sha256: ", "sha256: 1 #", "sha256: 1 instead of a string"),
        ("recipe: null", "recipe: 3", "recipe: 3 instead of a string"),
        ("wheel: ", "wheel: ../saved/", "instead of a file name of a wheel"),
        ("model: double", "model: triple", "there is no such model"),
        ("method: forward", "method: backward", "there is no such method"),
        ("recipe: null", "recipe: fast", "has no recipe `fast`"),
    ],
)
def test_a_damaged_entry_of_the_flavor_is_refused(tmp_path: Path, before: str, after: str, found: str) -> None:
    hatch_lower.mlflow.save_model(wheel_of(tmp_path), tmp_path / "saved")
    file = tmp_path / "saved/MLmodel"
    assert before in file.read_text()
    file.write_text(file.read_text().replace(before, after))
    for load in (hatch_lower.mlflow.load_model, hatch_lower.mlflow._load_pyfunc):
        with pytest.raises(ProgramError, match=found):
            load(str(tmp_path / "saved"))


def test_a_wheel_with_other_files_than_its_record_is_refused(tmp_path: Path, mlflow: Any) -> None:
    wheel = wheel_of(tmp_path)
    with ZipFile(wheel, "a") as archive:
        archive.writestr("digits/more.py", b"")
    for store in (hatch_lower.mlflow.log_model, hatch_lower.mlflow.save_model):
        with pytest.raises(ProgramError, match="which the RECORD does not list"):
            store(wheel, str(tmp_path / "saved"))
    assert mlflow.active_run() is None


def test_an_error_of_a_stores_own_library_is_said(mlflow: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: Any) -> None:
        raise RuntimeError("no credentials")

    monkeypatch.setattr(mlflow.artifacts, "download_artifacts", refuse)
    with pytest.raises(FetchError, match="RuntimeError: no credentials"):
        hatch_lower.mlflow.load_model("s3://models/digits")


def test_a_model_or_a_server_that_is_not_there_is_said(tmp_path: Path, mlflow: Any) -> None:
    with pytest.raises(FetchError, match="MLflow does not take or give the model"):
        hatch_lower.mlflow.load_model("models:/nothing/1")
    mlflow.set_tracking_uri("http://127.0.0.1:9")
    with pytest.raises(FetchError, match="MLflow does not take or give the model"):
        hatch_lower.mlflow.log_model(wheel_of(tmp_path), "double")


def test_without_mlflow_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(ProcessError, match=r"pip install \"hatch-lower\[mlflow\]\""):
        hatch_lower.mlflow.save_model(wheel_of(tmp_path), tmp_path / "saved")


@contextlib.contextmanager
def serving(*command: str, folder: Path) -> Iterator[str]:
    """Run a server of MLflow at a free port; give its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [sys.executable, "-m", "mlflow", *command, "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    # MLflow starts `uvicorn` by its name
    environment = {**os.environ, "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
    log = folder / "server.log"
    with (
        log.open("w") as file,
        subprocess.Popen(words, cwd=folder, env=environment, stdout=file, stderr=file) as process,
    ):
        try:
            for _ in range(int(SECONDS)):
                with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health") as answer:
                    if answer.status == 200:
                        break
                assert process.poll() is None, log.read_text()
                time.sleep(1)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


@pytest.mark.slow
@pytest.mark.parametrize("store", ["sqlite:///server.db", "file:server"])
def test_a_server_stores_the_wheel_and_another_server_answers_with_it(
    tmp_path: Path, mlflow: Any, monkeypatch: pytest.MonkeyPatch, store: str
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    command = ["server", "--backend-store-uri", store, "--artifacts-destination", "files"]
    with serving(*command, folder=tmp_path) as address:
        mlflow.set_tracking_uri(address)
        with mlflow.start_run():
            hatch_lower.mlflow.log_model(wheel_of(tmp_path), "double", registered_model_name="double")
        fetched = mlflow.artifacts.download_artifacts("models:/double/1", dst_path=str(tmp_path / "fetched"))
    with serving("models", "serve", "--model-uri", fetched, "--env-manager", "local", folder=tmp_path) as address:
        body = json.dumps({"inputs": {"x0": X.tolist()}}).encode()
        request = urllib.request.Request(f"{address}/invocations", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            assert json.loads(answer.read()) == {"predictions": [2, 4]}
