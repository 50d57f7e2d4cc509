"""The open inference protocol: answers, and what is wrong with a request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.exports import Workshop, packaged, settings_of, write_folder
from support.lowered import install

import hatch_lower
from hatch_lower.config.settings import Recipe
from hatch_lower.errors import ProgramError
from hatch_lower.format.served import FACTS, ServedMethod, ServedTensor, write_served
from hatch_lower.runtime.serving import app as application
from hatch_lower.runtime.serving.app import InferenceApp

pytestmark = pytest.mark.torch

SOURCE = """\
import torch
from hatch_lower import Method, Model


class Net(torch.nn.Module):
    def forward(self, image, kinds):
        return image / kinds, kinds + 1


def export():
    return Model(Net().eval(), {"forward": Method((torch.ones(2, 2), torch.ones(2, 1, dtype=torch.int8)))})
"""
INPUTS = (ServedTensor("image", "float32", (2, 2)), ServedTensor("kinds", "int8", (2, 1)))
OUTPUTS = (ServedTensor("ratio", "float32", (2, 2)), ServedTensor("more", "int8", (2, 1)))
SERVED = ServedMethod("net", "net", "1.0", "net", "portable", "forward", INPUTS, OUTPUTS)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> InferenceApp:
    site = tmp_path_factory.mktemp("site")
    files = packaged(Workshop(tmp_path_factory.mktemp("shop")), SOURCE, settings_of(Recipe("portable")))
    write_folder(site / "net" / "_lowered", files)
    install(site, "net")
    write_folder(site / "models" / "net", {FACTS: write_served(SERVED)})
    app = InferenceApp(site / "models")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(site))
        app.load()
    return app


def ask(app: InferenceApp, method: str, path: str, *body: bytes) -> tuple[int, Any]:
    """Send a request, whose body comes in parts; return status and JSON of the answer."""
    sent = exchange(app, {"method": method, "path": path}, *body)
    return sent[0]["status"], json.loads(sent[1]["body"])


def exchange(app: InferenceApp, scope: Mapping[str, object], *body: bytes) -> list[Any]:
    sent: list[Any] = []
    parts = [
        {"type": "http.request", "body": part, "more_body": position + 1 < len(body)}
        for position, part in enumerate(body or (b"",))
    ]

    async def receive() -> Any:
        return parts.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app({"type": "http", **scope}, receive, send))
    return sent


def tensor(name: str, datatype: str, data: object, shape: object) -> dict[str, object]:
    return {"name": name, "datatype": datatype, "shape": shape, "data": data}


IMAGE, KINDS = tensor("image", "FP32", [1, 2, 3, 4], [2, 2]), tensor("kinds", "INT8", [[1], [2]], [2, 1])


def infer(app: InferenceApp, **request: object) -> tuple[int, Any]:
    return ask(app, "POST", "/v2/models/net/infer", json.dumps(request).encode())


def test_an_inference_returns_the_models_numbers(server: InferenceApp) -> None:
    assert infer(server, id="seven", inputs=[IMAGE, KINDS]) == (
        200,
        {
            "model_name": "net",
            "model_version": "1",
            "id": "seven",
            "outputs": [
                {"name": "ratio", "shape": [2, 2], "datatype": "FP32", "data": [1.0, 2.0, 1.5, 2.0]},
                {"name": "more", "shape": [2, 1], "datatype": "INT8", "data": [2, 3]},
            ],
        },
    )


def test_a_request_chooses_outputs_and_may_come_in_parts(server: InferenceApp) -> None:
    body = json.dumps({"inputs": [IMAGE, KINDS], "outputs": [{"name": "more"}]}).encode()
    status, found = ask(server, "POST", "/v2/models/net/versions/1/infer", body[:20], body[20:])
    assert (status, [each["name"] for each in found["outputs"]]) == (200, ["more"])


def test_the_metadata_has_names_datatypes_and_shapes(server: InferenceApp) -> None:
    assert ask(server, "GET", "/v2/models/net") == (
        200,
        {
            "name": "net",
            "versions": ["1"],
            "platform": "hatch-lower",
            "inputs": [
                {"name": "image", "datatype": "FP32", "shape": [2, 2]},
                {"name": "kinds", "datatype": "INT8", "shape": [2, 1]},
            ],
            "outputs": [
                {"name": "ratio", "datatype": "FP32", "shape": [2, 2]},
                {"name": "more", "datatype": "INT8", "shape": [2, 1]},
            ],
        },
    )
    metadata = {"name": "hatch-lower", "version": hatch_lower.__version__, "extensions": ["binary_tensor_data"]}
    assert ask(server, "GET", "/v2") == (200, metadata)


def test_a_server_is_ready_when_the_models_are_loaded(server: InferenceApp, tmp_path: Path) -> None:
    assert ask(server, "GET", "/v2/health/ready") == (200, {"ready": True})
    assert ask(server, "GET", "/v2/models/net/ready") == (200, {"name": "net", "ready": True})
    new = InferenceApp(tmp_path)
    assert ask(new, "GET", "/v2/health/live") == (200, {"live": True})
    assert ask(new, "GET", "/v2/health/ready") == (503, {"error": "the models are not loaded yet"})


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ('"shape":[2,2]', '"shape":[2,-2]', "-2 instead of a size"),
        ('"name":"kinds"', '"name":"image"', "two tensors with the same name"),
        ('"schema":1', '"schema":2', "schema 2; this hatch-lower reads schema 1"),
    ],
)
def test_a_damaged_description_is_an_error(tmp_path: Path, old: str, new: str, found: str) -> None:
    text = write_served(SERVED).decode()
    assert old in text
    write_folder(tmp_path / "net", {FACTS: text.replace(old, new).encode()})
    with pytest.raises(ProgramError) as caught:
        InferenceApp(tmp_path).load()
    assert found in str(caught.value)


def test_a_server_without_models_does_not_start(tmp_path: Path) -> None:
    sent: list[Any] = []
    messages = [{"type": "lifespan.startup"}]

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(InferenceApp(tmp_path)({"type": "lifespan"}, receive, send))
    assert sent[0]["type"] == "lifespan.startup.failed"
    assert sent[0]["message"].startswith("the server has no models")


@pytest.mark.parametrize(
    ("method", "path", "status", "text"),
    [
        ("GET", "/", 404, "there is no `/`"),
        ("GET", "/v2/models/net/versions/2", 404, "there is no `/v2/models/net/versions/2`"),
        ("GET", "/v2/models/other", 404, "there is no model `other`; there is net"),
        ("GET", "/v2/models/net/infer", 405, "the method is POST here, not GET"),
        ("POST", "/v2/models/net", 405, "the method is GET here, not POST"),
    ],
)
def test_another_path_or_method_is_refused(
    server: InferenceApp, method: str, path: str, status: int, text: str
) -> None:
    assert ask(server, method, path) == (status, {"error": text})


WRONG = {
    "no inputs": ({}, "`inputs` is a list of objects"),
    "a missing input": ({"inputs": [IMAGE]}, "model `net` takes the inputs `image`, `kinds`"),
    "an input twice": ({"inputs": [IMAGE, IMAGE]}, "each input is sent once"),
    "another output": ({"inputs": [IMAGE, KINDS], "outputs": [{"name": "less"}]}, "model `net` has no such output"),
    "an id": ({"inputs": [IMAGE, KINDS], "id": 7}, "`id` is a text"),
    "a name": ({"inputs": [{**IMAGE, "name": 1}]}, "`name` of a tensor is a text"),
    "a datatype": ({"inputs": [{**IMAGE, "datatype": "BYTES"}]}, "the `datatype` of `image` is one of BOOL, "),
    "a size": ({"inputs": [{**IMAGE, "shape": [2, -2]}]}, "the `shape` of `image` is a list of sizes"),
    "too few data": ({"inputs": [{**IMAGE, "data": [1]}]}, "the `data` of `image` do not fit its `shape`"),
    "rows of two lengths": ({"inputs": [{**IMAGE, "data": [[1], [2, 3]]}]}, "the `data` of `image` are no tensor"),
    "texts": ({"inputs": [{**IMAGE, "data": ["1"] * 4}]}, "the `data` of `image` are not of the datatype FP32"),
    "floats for integers": ({"inputs": [{**KINDS, "data": [1.5, 2]}]}, "the `data` of `kinds` are not of the datatype"),
    "great integers": (
        {"inputs": [{**KINDS, "data": [1, 200]}]},
        "the `data` of `kinds` are outside the range of INT8",
    ),
    "great floats": ({"inputs": [{**IMAGE, "data": [1, 1e39, 3, 4]}]}, "the `data` of `image` are outside the range"),
    "a great size": ({"inputs": [{**IMAGE, "data": [], "shape": [0, 1 << 70]}]}, "`image` is a list of sizes"),
    "no data": (
        {"inputs": [{"name": "image", "datatype": "FP32", "shape": [2, 2]}]},
        "the tensor `image` has either `data` or the parameter `binary_data_size`",
    ),
    "parameters": ({"inputs": [{**IMAGE, "parameters": [1]}]}, "`parameters` is an object"),
    "a form of outputs": (
        {"inputs": [IMAGE, KINDS], "parameters": {"binary_data_output": 1}},
        "`binary_data_output` is true or false",
    ),
    "another dtype": ({"inputs": [{**IMAGE, "datatype": "FP64"}, KINDS]}, "method `forward`"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_request_is_an_error_with_the_place(server: InferenceApp, name: str) -> None:
    request, text = WRONG[name]
    status, found = infer(server, **request)
    assert status == 400
    assert text in found["error"]


def test_an_infinite_number_is_one(server: InferenceApp) -> None:
    body = json.dumps({"inputs": [IMAGE, KINDS], "outputs": [{"name": "more"}]}).replace("4]", "Infinity]")
    assert ask(server, "POST", "/v2/models/net/infer", body.encode())[0] == 200


def test_any_failure_of_a_call_is_an_error_of_the_protocol(
    server: InferenceApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(given: object) -> None:
        raise IndexError("index out of range in self")

    monkeypatch.setattr(server._model("net"), "call", fail)
    error = {"error": "the call failed: IndexError: index out of range in self"}
    assert infer(server, inputs=[IMAGE, KINDS]) == (500, error)


@pytest.mark.parametrize("body", [b"", b"[]", b"\xff", b"[" * 100_000])
def test_a_request_that_is_no_object_is_an_error(server: InferenceApp, body: bytes) -> None:
    status, found = ask(server, "POST", "/v2/models/net/infer", body)
    assert (status, "JSON" in found["error"] or "object" in found["error"]) == (400, True)


def binary(name: str, array: np.ndarray[Any, Any], datatype: str, **changed: object) -> dict[str, object]:
    size = {"parameters": {"binary_data_size": array.nbytes}}
    return {"name": name, "datatype": datatype, "shape": list(array.shape), **size, **changed}


RATIO = np.array([[0, 2], [-3, 4]], "<f4")
ONES = np.zeros((2, 1), "i1")
BINARY = [binary("image", RATIO, "FP32"), binary("kinds", ONES, "INT8")]


def send_binary(app: InferenceApp, request: object, *arrays: np.ndarray[Any, Any], length: object = None) -> Any:
    """Send arrays behind a request; return status, JSON and the bytes behind."""
    text = json.dumps(request).encode()
    headers = [(b"inference-header-content-length", str(length or len(text)).encode())]
    scope = {"method": "POST", "path": "/v2/models/net/infer", "headers": headers}
    sent = exchange(app, scope, text, *(array.tobytes() for array in arrays))
    headers, body = dict(sent[0]["headers"]), sent[1]["body"]
    end = int(headers.get(b"inference-header-content-length", len(body)))
    assert int(headers[b"content-length"]) == len(body)
    return sent[0]["status"], json.loads(body[:end]), body[end:]


def test_tensors_may_be_bytes_behind_the_json(server: InferenceApp) -> None:
    request = {"inputs": BINARY, "parameters": {"binary_data_output": True}}
    status, found, behind = send_binary(server, request, RATIO, ONES)
    assert status == 200
    assert [each["parameters"]["binary_data_size"] for each in found["outputs"]] == [16, 2]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = RATIO / ONES
    assert behind == ratio.tobytes() + (ONES + 1).tobytes()
    assert not np.isfinite(ratio).all()


def test_each_tensor_chooses_its_form(server: InferenceApp) -> None:
    outputs = [{"name": "more", "parameters": {"binary_data": True}}, {"name": "ratio"}]
    request = {"inputs": [BINARY[0], KINDS], "outputs": outputs}
    status, found, behind = send_binary(server, request, RATIO)
    assert (status, behind) == (200, b"\x02\x03")
    assert [each.get("data") for each in found["outputs"]] == [None, [0.0, 2.0, -1.5, 2.0]]


@pytest.mark.parametrize(
    ("inputs", "arrays", "length", "said"),
    [
        (BINARY, [RATIO], None, "the binary data of `kinds` are not complete"),
        (BINARY, [RATIO, ONES, ONES], None, "bytes of no input follow the JSON"),
        ([BINARY[0], KINDS], [RATIO, ONES], 10**6, "`Inference-Header-Content-Length` is the number of bytes of"),
        ([BINARY[0], KINDS], [RATIO], "-3", "`Inference-Header-Content-Length` is the number of bytes of the JSON"),
        ([{**BINARY[0], "shape": [2, 3]}, KINDS], [RATIO], None, "the binary data of `image` have 24 bytes"),
        ([{**BINARY[0], "data": [1]}, KINDS], [RATIO], None, "has either `data` or the parameter `binary_data_size`"),
        ([binary("image", RATIO, "BOOL", shape=[16]), KINDS], [RATIO], None, "the binary data of `image` are 0 or 1"),
        ([binary("image", RATIO[:0], "FP32", shape=[0, 1 << 70]), KINDS], [], None, "`image` is a list of sizes"),
    ],
)
def test_wrong_binary_tensors_are_an_error(
    server: InferenceApp, inputs: object, arrays: list[Any], length: object, said: str
) -> None:
    status, found, behind = send_binary(server, {"inputs": inputs}, *arrays, length=length)
    assert (status, behind) == (400, b"")
    assert said in found["error"]


def test_numbers_that_json_lacks_are_an_error(server: InferenceApp) -> None:
    status, found = infer(server, inputs=[IMAGE, {**KINDS, "data": [0, 1]}])
    assert status == 500
    assert found["error"].startswith("the output `ratio` has numbers that JSON cannot express")


def test_a_request_that_is_too_large_is_refused(server: InferenceApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "MOST_BYTES", 10)
    assert infer(server, inputs=[IMAGE, KINDS]) == (413, {"error": "a request has at most 10 bytes"})


def test_requests_at_the_same_time_are_not_mixed_up(server: InferenceApp) -> None:
    async def each(number: int) -> list[float]:
        value = await asyncio.to_thread(
            server._model("net").call, {"image": np.full((2, 2), number, np.float32), "kinds": np.ones((2, 1), np.int8)}
        )
        return [float(value["ratio"][0, 0]), number]

    async def all_of() -> list[list[float]]:
        return await asyncio.gather(*map(each, range(200)))

    assert all(found == number for found, number in asyncio.run(all_of()))
