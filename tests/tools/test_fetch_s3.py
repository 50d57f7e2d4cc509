"""Weights in an object store: S3, as `moto` plays it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.lowered import floats
from support.weights import checkpoint, write_outside

import hatch_lower
from hatch_lower.errors import FetchError

FILE = checkpoint({"layer.weight": floats(1, 2, 3, 4)})
OTHER = checkpoint({"layer.weight": floats(1, 2, 3, 5)})
KEY = "models/model.safetensors"
URL = f"s3://weights/{KEY}"


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a function that puts bytes under a key of the bucket `weights`."""
    pytest.importorskip("s3fs")
    boto3 = pytest.importorskip("boto3")
    server = pytest.importorskip("moto.server").ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    client = boto3.client("s3")
    client.create_bucket(Bucket="weights")
    yield lambda key, data: client.put_object(Bucket="weights", Key=key, Body=data)
    server.stop()


def test_weights_come_from_an_object_store(tmp_path: Path, bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HATCH_LOWER_WEIGHTS", str(tmp_path / "cache"))
    folder = write_outside(tmp_path / "_lowered", {URL: FILE})
    with pytest.raises(FetchError, match="the file does not exist"):
        hatch_lower.fetch(folder)
    bucket(KEY, OTHER.data)
    with pytest.raises(FetchError, match="other contents"):
        hatch_lower.fetch(folder)
    bucket(KEY, FILE.data)
    (file,) = hatch_lower.fetch(folder)
    assert file.path.read_bytes() == FILE.data
    assert [path.name for path in file.path.parent.iterdir()] == [file.path.name]
    part = file.path.rename(file.path.with_name(f"{file.path.name}.part"))
    part.write_bytes(FILE.data[:50])
    assert hatch_lower.fetch(folder)[0].path.read_bytes() == FILE.data
