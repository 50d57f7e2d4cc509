"""Models whose weights lie outside the wheel: loaded from files on this machine, and from nowhere else unless told."""

from __future__ import annotations

import json
import os
import socket
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from support.loading import load_folder
from support.lowered import file_entry, floats, lowered_model, write_lowered
from support.plans import c, call, constant, delegate_entry, method, op, plan_value, python, tensor_input, v
from support.weights import COMMIT, Checkpoint, checkpoint, key_of, served, source_of, write_outside

from hatch_lower.canonical import canonical_json, sha256_bytes
from hatch_lower.cli.entry import main
from hatch_lower.errors import FetchError, ProgramError
from hatch_lower.runtime.delegates import Delegate, DelegateBlob
from hatch_lower.runtime.fetch import fetch
from hatch_lower.runtime.load import load
from hatch_lower.runtime.sources import file_name, local_copy, weights_folders

pytestmark = pytest.mark.torch

ONES, TENS, HUNDREDS = floats(1, 2, 3, 4), floats(10, 20, 30, 40), floats(100, 200, 300, 400)
FILE = checkpoint({"layer.weight": ONES, "layer.bias": TENS})
SHIFTED = checkpoint({"layer.weight": ONES, "layer.bias": TENS}, shift=2)
URL = "https://example.org/model.safetensors"
HUB_URL = f"hf://org/name@{COMMIT}/model.safetensors"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the only folder of weights."""
    for name in ("HATCH_LOWER_FETCH", "HF_HUB_OFFLINE", "HF_HUB_CACHE", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HATCH_LOWER_WEIGHTS", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    return tmp_path / "cache"


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let whatever opens a connection fail in a way that nothing catches."""

    def refuse(*arguments: Any, **named: Any) -> None:
        raise AssertionError("a connection is opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def keep(folder: Path, file: Checkpoint, data: bytes | None = None) -> Path:
    """Put a checkpoint where `load` looks for it, or other bytes under its name."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / file_name(sha256_bytes(file.data))
    path.write_bytes(file.data if data is None else data)
    return path


def refused(action: Callable[[], object], kind: type[ProgramError] | type[FetchError] = ProgramError) -> str:
    with pytest.raises(kind) as caught:
        action()
    return str(caught.value)


@pytest.mark.parametrize("file", [FILE, SHIFTED], ids=["aligned", "not aligned"])
def test_a_model_runs_over_files_that_are_here(tmp_path: Path, cache: Path, no_network: None, file: Checkpoint) -> None:
    folder = write_outside(tmp_path / "_lowered", {URL: file})
    keep(cache, file)
    assert load(folder)(torch.zeros(4)).tolist() == [11, 22, 33, 44]
    assert load(folder, verify=True)(torch.zeros(4)).tolist() == [11, 22, 33, 44]


def test_storages_of_several_files_and_of_the_constants_file(tmp_path: Path, cache: Path, no_network: None) -> None:
    other = checkpoint({"again": floats(0.5, 0.5, 0.5, 0.5)})
    folder = write_outside(
        tmp_path / "_lowered", {URL: FILE, f"{URL}.2.safetensors": other}, inside={"folded": HUNDREDS}
    )
    keep(cache, FILE)
    keep(cache, other)
    assert load(folder)(torch.zeros(4)).tolist() == [111.5, 222.5, 333.5, 444.5]


def test_a_user_without_a_home_folder_has_to_name_the_folder_of_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HATCH_LOWER_WEIGHTS", raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    with pytest.raises(FetchError, match="there is no folder for weights") as caught:
        weights_folders()
    assert caught.value.hint == "name the folder of the weights in `HATCH_LOWER_WEIGHTS`"


def test_the_folders_of_the_variable_are_searched_in_order(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = source_of(URL, FILE.data)
    monkeypatch.setenv("HATCH_LOWER_WEIGHTS", os.pathsep.join([str(cache), "", str(tmp_path / "image")]))
    assert weights_folders() == [cache, tmp_path / "image"]
    assert local_copy(source) is None
    there = keep(tmp_path / "image", FILE)
    assert local_copy(source) == there
    keep(cache, FILE, b"of another size")
    assert local_copy(source) == there
    assert local_copy(source) != keep(cache, FILE)


def test_a_file_of_the_hub_is_found_in_its_own_cache(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = source_of(HUB_URL, FILE.data)
    for variable, folder in [
        ("HF_HUB_CACHE", tmp_path / "chosen"),
        ("HF_HOME", tmp_path / "home" / "hub"),
        ("XDG_CACHE_HOME", tmp_path / "xdg" / "huggingface" / "hub"),
    ]:
        for each in ("HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
            monkeypatch.delenv(each, raising=False)
        value = {"HF_HOME": tmp_path / "home", "XDG_CACHE_HOME": tmp_path / "xdg"}.get(variable, folder)
        monkeypatch.setenv(variable, str(value))
        path = folder / "models--org--name" / "snapshots" / COMMIT / "model.safetensors"
        path.parent.mkdir(parents=True)
        path.write_bytes(FILE.data)
        assert local_copy(source) == path


def test_loading_opens_no_connection_and_says_what_to_run(tmp_path: Path, cache: Path, no_network: None) -> None:
    folder = write_outside(tmp_path / "_lowered", {URL: FILE})
    path = cache / file_name(sha256_bytes(FILE.data))
    assert refused(lambda: load(folder)) == (
        f"weights of the model are not on this machine\n  where: {URL}\n"
        f"  found: no file of {len(FILE.data)} bytes at any of these paths:\n    {path}\n"
        f"    {cache / 'model.safetensors'}\n"
        f"  to do: run `hatch-lower fetch {folder}`; `HATCH_LOWER_WEIGHTS` names the folders to look into"
    )


@pytest.mark.parametrize(
    ("url", "places"),
    [
        (URL, ["model.safetensors"]),
        (f"{URL}?download=1", ["model.safetensors"]),
        (f"hf://org/name@{COMMIT}/unet/part.safetensors", ["unet/part.safetensors", "part.safetensors"]),
        ("digits-1.safetensors", ["digits-1.safetensors"]),
    ],
)
def test_a_file_is_found_under_its_published_name_in_a_named_folder(
    url: str, places: list[str], tmp_path: Path, cache: Path, no_network: None
) -> None:
    folder = write_outside(tmp_path / "_lowered", {url: FILE})
    for place in places:
        path = cache / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(FILE.data)
        assert local_copy(source_of(url, FILE.data)) == path
        assert load(folder)(torch.zeros(4)).tolist() == [11, 22, 33, 44]
        (fetched,) = fetch(folder)
        assert (fetched.path, fetched.is_new) == (path, False)
        # another model's file of the same size is not taken: a load would give wrong numbers
        path.write_bytes(checkpoint({"layer.weight": ONES, "layer.bias": HUNDREDS}).data)
        assert f"{path}, a file with another sha256" in refused(lambda: load(folder))
        path.unlink()


def test_a_file_named_by_its_digest_is_taken_first_and_unread(tmp_path: Path, cache: Path) -> None:
    there = keep(cache, FILE, bytes(len(FILE.data)))
    (cache / "model.safetensors").write_bytes(FILE.data)
    assert local_copy(source_of(URL, FILE.data)) == there


@pytest.mark.parametrize("name", ["", "..", ".", "%2E%2E", "a%00.safetensors"])
def test_a_name_that_leads_elsewhere_is_no_published_name(name: str, tmp_path: Path, cache: Path) -> None:
    cache.mkdir()
    assert local_copy(source_of(f"https://example.com/{name}", FILE.data)) is None


def test_the_usual_folder_has_files_named_by_digest_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HATCH_LOWER_WEIGHTS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (folder,) = weights_folders()
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(FILE.data)
    assert local_copy(source_of(URL, FILE.data)) is None


def test_weights_without_a_place_are_asked_for(tmp_path: Path, cache: Path, no_network: None) -> None:
    folder = write_outside(tmp_path / "_lowered", {"digits-1.safetensors": FILE})
    assert f"run `hatch-lower fetch {folder} --from URL`" in refused(lambda: load(folder))
    keep(cache, FILE)
    assert load(folder)(torch.zeros(4)).tolist() == [11, 22, 33, 44]


@pytest.mark.parametrize("way", ["argument", "variable"])
def test_loading_fetches_when_it_is_told(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    with served({"/model.safetensors": FILE.data}) as server:
        folder = write_outside(tmp_path / "_lowered", {f"{server.url}/model.safetensors": FILE})
        if way == "variable":
            monkeypatch.setenv("HATCH_LOWER_FETCH", "always")
        for _ in range(2):
            assert load(folder, fetch=way == "argument")(torch.zeros(4)).tolist() == [11, 22, 33, 44]
        assert server.asked() == [""]  # once
    monkeypatch.delenv("HATCH_LOWER_FETCH", raising=False)
    assert load(folder)(torch.zeros(4)).tolist() == [11, 22, 33, 44]


def test_an_offline_machine_fetches_nothing(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, no_network: None
) -> None:
    folder = write_outside(tmp_path / "_lowered", {URL: FILE})
    for variable, value in (("HATCH_LOWER_FETCH", "never"), ("HF_HUB_OFFLINE", "1")):
        with monkeypatch.context() as context:
            context.setenv(variable, value)
            text = refused(lambda: load(folder, fetch=True), FetchError)
            assert "no connection is to be opened" in text
            assert f"the environment variable `{variable}`" in text


@pytest.mark.parametrize("data", [FILE.data[:-1], FILE.data + b"more", b""], ids=["shorter", "longer", "empty"])
def test_a_file_of_another_size_is_none(tmp_path: Path, cache: Path, data: bytes) -> None:
    folder = write_outside(tmp_path / "_lowered", {URL: FILE})
    keep(cache, FILE, data)
    text = refused(lambda: load(folder))
    assert "at any of these paths" in text
    assert f"{file_name(sha256_bytes(FILE.data))}, a file of {len(data)} bytes" in text


def test_another_checkpoint_of_the_same_shape_is_found_by_verifying(tmp_path: Path, cache: Path) -> None:
    folder = write_outside(tmp_path / "_lowered", {URL: FILE})
    other = checkpoint({"layer.weight": ONES, "layer.bias": HUNDREDS})
    path = keep(cache, FILE, other.data)
    begin, end = FILE.spans["layer.bias"]
    fault = (
        f"a file of weights differs from the file that the wheel was built with\n  where: {path}\n"
        f"  found: other contents in the bytes {begin} to {end}\n"
        f"  to do: run `hatch-lower fetch {folder}`, which replaces the file from {URL}"
    )
    assert refused(lambda: load(folder, verify=True)) == fault
    rows = json.loads(CliRunner().invoke(main, ["check", str(folder), "--json"]).stdout)
    assert [(row["status"], row["detail"]) for row in rows] == [("damaged", fault)]


def test_a_flipped_byte_is_found_by_verifying_or_changes_nothing(tmp_path: Path, cache: Path) -> None:
    folder = write_outside(tmp_path / "_lowered", {URL: FILE})
    wrong = []
    for index in range(len(FILE.data)):
        keep(cache, FILE, FILE.data[:index] + bytes([FILE.data[index] ^ 1]) + FILE.data[index + 1 :])
        try:
            assert load(folder, verify=True)(torch.zeros(4)).tolist() == [11, 22, 33, 44]
        except ProgramError:
            wrong.append(index)
    assert len(wrong) == 32  # all that the model uses; the header of the file is not read


def test_a_check_calls_weights_that_are_not_here_absent(tmp_path: Path, cache: Path) -> None:
    folder = write_outside(tmp_path / "_lowered", {URL: FILE})
    done = CliRunner().invoke(main, ["check", str(folder), "--json"])
    (row,) = json.loads(done.stdout)
    assert (done.exit_code, row["status"]) == (1, "absent")
    assert "weights of the model are not on this machine" in row["detail"]
    lines = CliRunner().invoke(main, ["check", str(folder)]).stdout.splitlines()
    assert any(line.split() == ["digits", "absent"] for line in lines)
    assert f"  to do: run `hatch-lower fetch {folder}`" in "\n".join(lines)
    assert lines[-1] == "0 methods compared, 1 fault"


@pytest.fixture
def wheel(tmp_path: Path, cache: Path) -> Path:
    """Return a wheel without weights, at a path that a shell would take apart."""
    folder = write_outside(tmp_path / "digits" / "_lowered", {URL: FILE})
    path = tmp_path / "my wheels" / "digits-1.0-py3-none-any.whl"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as archive:
        for each in sorted(folder.rglob("*.*")):
            archive.write(each, each.relative_to(tmp_path))
    return path


def test_a_check_of_a_wheel_says_how_to_fetch_its_weights(wheel: Path) -> None:
    (row,) = json.loads(CliRunner().invoke(main, ["check", str(wheel), "--json"]).stdout)
    assert f"run `hatch-lower fetch '{wheel}'`" in row["detail"]


def test_a_measurement_of_a_wheel_says_how_to_fetch_its_weights(wheel: Path) -> None:
    from hatch_lower.cli.measure.errors import titled
    from hatch_lower.cli.measure.side import open_side

    def measure() -> None:
        with open_side(wheel) as side:
            place = side.folders["digits"].path
            # a child process reports by the folder, and names the wheel by its title
            text = titled(refused(lambda: load(place)), str(place), side.title)
            assert f"run `hatch-lower fetch {place}`" in text
            assert titled(f"a file of {place}/digits", str(place), side.title) == f"a file of {wheel.name}/digits"
            raise ProgramError("the weights are absent", found=text)

    assert f"run `hatch-lower fetch '{wheel}'`" in refused(measure)


def test_integers_are_compared_whenever_they_are_loaded(tmp_path: Path, cache: Path) -> None:
    numbers = (0).to_bytes(8, "little") + (2).to_bytes(8, "little")
    file = checkpoint({"positions": ("I64", 2, numbers)})
    key = key_of("int64", numbers)
    taken = method([tensor_input(4)], [op("aten.index_select.default", v(0), 0, c("rows"), out=1)], v(1))
    plan = plan_value(forward=taken, storages=[(key, "int64", 2)], constants={"rows": constant(0, 2, dtype="int64")})
    folder = tmp_path / "_lowered"
    model = lowered_model(folder, "digits", {"default": {"plan": plan}})
    weights = {"schema": 1, "sources": [source_json(URL, file)], "spans": {key: file.span("positions")}}
    model["weights"] = file_entry(folder, "digits/weights.json", canonical_json(weights))
    write_lowered(folder, {"digits": model})
    keep(cache, file)
    assert load(folder)(torch.arange(4.0)).tolist() == [0, 2]
    keep(cache, file, file.data.replace((2).to_bytes(8, "little"), (1 << 40).to_bytes(8, "little")))
    assert "found: different integers than in the build" in refused(lambda: load(folder))


def source_json(url: str, file: Checkpoint) -> dict[str, Any]:
    return {"url": url, "size": len(file.data), "sha256": sha256_bytes(file.data)}


def test_a_span_of_other_bytes_than_the_plan_asks_for_is_refused(tmp_path: Path, cache: Path) -> None:
    folder = write_outside(tmp_path / "_lowered", {URL: FILE})
    keep(cache, FILE)
    path = folder / "digits" / "weights.json"
    value = json.loads(path.read_bytes())
    first, second = value["spans"]
    for spans, found in [
        ({first: value["spans"][second], second: value["spans"][first]}, "another sha256 than that of the storage's"),
        ({second: value["spans"][second]}, "the storage is missing, and the model has no constants file"),
        ({first: {**value["spans"][first], "begin": 0}, second: value["spans"][second]}, "bytes for 4 elements"),
    ]:
        changed = canonical_json({**value, "spans": spans})
        manifest = json.loads((folder / "manifest.json").read_bytes())
        manifest["models"]["digits"]["weights"] = file_entry(folder, "digits/weights.json", changed)
        (folder / "manifest.json").write_bytes(canonical_json(manifest))
        assert found in refused(lambda: load(folder))


class Placed(Delegate):
    """Notes where its constants lie."""

    def __init__(self, blob: DelegateBlob) -> None:
        self.blob = blob

    @classmethod
    def load(cls, blob: DelegateBlob, constants: Any) -> Placed:
        """Return a new one."""
        for place, given in zip(blob.places, constants, strict=True):
            if place is not None:
                with place.path.open("rb") as file:
                    file.seek(place.offset)
                    assert file.read(place.length) == given.numpy().tobytes()
        cls.seen = blob.places
        return cls(blob)

    def run(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return the inputs."""
        return inputs


@pytest.mark.parametrize("file", [FILE, SHIFTED], ids=["aligned", "not aligned"])
def test_a_delegate_is_told_in_which_file_its_constants_lie(tmp_path: Path, cache: Path, file: Checkpoint) -> None:
    inside = key_of("float32", HUNDREDS[2])
    keys = {name: key_of("float32", file.data[begin:end]) for name, (begin, end) in file.spans.items()}
    storages = [(key, "float32", 4) for key in (*keys.values(), inside)]
    vector = tensor_input(4)
    plan = plan_value(
        forward=method([vector], [call(0, [v(0)], [vector], 1), python("getitem", v(1), 0, out=2)], v(2)),
        storages=storages,
        constants={name: constant(index, 4) for index, name in enumerate("abc")},
        delegates=[delegate_entry("placed", "a", "b", "c")],
    )
    folder = tmp_path / "_lowered"
    blobs = {"digits/delegates/blob.bin": b"code"}
    model = lowered_model(folder, "digits", {"default": {"plan": plan, "blobs": blobs}}, tensors={inside: HUNDREDS})
    spans = {key: file.span(name) for name, key in keys.items()}
    weights = {"schema": 1, "sources": [source_json(URL, file)], "spans": spans}
    model["weights"] = file_entry(folder, "digits/weights.json", canonical_json(weights))
    write_lowered(folder, {"digits": model})
    path = keep(cache, file)
    load_folder(folder, "digits", delegates={"placed": Placed})
    if file is SHIFTED:  # bound to a copy, in which they are aligned
        assert Placed.seen[:2] == (None, None)
    else:
        assert [place.path for place in Placed.seen[:2]] == [path, path]
    assert Placed.seen[2].path == folder / "digits" / "constants.safetensors"
