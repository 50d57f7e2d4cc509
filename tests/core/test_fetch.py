"""`hatch_lower.fetch` and `hatch-lower fetch`: from web servers, a hub and files, into caches and folders."""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from fsspec.registry import _registry as OPENED  # noqa: N812
from support.lowered import floats, install
from support.weights import COMMIT, Served, checkpoint, served, write_outside

import hatch_lower
from hatch_lower.canonical import sha256_bytes
from hatch_lower.cli.entry import main
from hatch_lower.errors import FetchError, InputError, LowerError, ProgramError
from hatch_lower.runtime.obtain import Fetched, progress_line
from hatch_lower.runtime.origins import DownloadLimits, netrc_headers
from hatch_lower.runtime.sources import file_name

FILE = checkpoint({"layer.weight": floats(1, 2, 3, 4), "layer.bias": floats(10, 20, 30, 40)})
OTHER = checkpoint({"layer.weight": floats(1, 2, 3, 4), "layer.bias": floats(10, 20, 30, 41)})
SIZE = len(FILE.data)
NAME = file_name(sha256_bytes(FILE.data))
HUB_PATH = f"/org/name/resolve/{COMMIT}/model.safetensors"
HUB_URL = f"hf://org/name@{COMMIT}/model.safetensors"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the only folder of weights."""
    for name in ("HATCH_LOWER_FETCH", "HF_HUB_OFFLINE", "HF_HUB_CACHE", "HF_ENDPOINT", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HATCH_LOWER_WEIGHTS", str(tmp_path / "cache"))
    monkeypatch.setattr("hatch_lower.runtime.obtain.LIMITS", DownloadLimits(silence=5.0))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "no token"))
    monkeypatch.setenv("NETRC", str(tmp_path / "no netrc"))
    return tmp_path / "cache"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """Return a server that has the checkpoint, as a file and as the hub does."""
    with served({"/model.safetensors": FILE.data, HUB_PATH: FILE.data}) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


def lowered(tmp_path: Path, url: str) -> Path:
    return write_outside(tmp_path / "digits" / "_lowered", {url: FILE})


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(main, ["fetch", *arguments])
    return done.exit_code, done.output


def refused(action: Callable[[], object], kind: type[LowerError] = FetchError) -> str:
    with pytest.raises(kind) as caught:
        action()
    return str(caught.value)


def test_what_is_fetched_is_here_the_next_time(tmp_path: Path, cache: Path, server: Served) -> None:
    url = f"{server.url}/model.safetensors"
    folder = lowered(tmp_path, url)
    (first,), (again,) = hatch_lower.fetch(folder), hatch_lower.fetch(folder / "digits")
    assert first == Fetched(url, cache / NAME, len(FILE.data), is_new=True)
    assert (again.path, again.is_new, server.asked()) == (first.path, False, [""])
    assert first.path.read_bytes() == FILE.data


def test_other_contents_that_are_here_are_replaced(tmp_path: Path, cache: Path, server: Served) -> None:
    folder = lowered(tmp_path, f"{server.url}/model.safetensors")
    cache.mkdir()
    (cache / NAME).write_bytes(OTHER.data)
    (file,) = hatch_lower.fetch(folder)
    assert (file.is_new, file.path.read_bytes()) == (True, FILE.data)


@pytest.mark.parametrize("place", ["another folder", "the hub's cache"])
def test_what_load_would_take_is_replaced_though_a_good_copy_is_here(
    tmp_path: Path, cache: Path, server: Served, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    pytest.importorskip("huggingface_hub")
    folder, image = lowered(tmp_path, HUB_URL), tmp_path / "image"
    hatch_lower.fetch(folder, image if place == "another folder" else None)
    monkeypatch.setenv("HATCH_LOWER_WEIGHTS", os.pathsep.join([str(cache), str(image)]))
    cache.mkdir()
    (cache / NAME).write_bytes(OTHER.data)
    (file,) = hatch_lower.fetch(folder)
    assert (file.is_new, file.path, file.path.read_bytes()) == (True, cache / NAME, FILE.data)
    assert hatch_lower.load(folder, verify=True)


def test_another_checkpoint_of_the_same_shape_is_refused(tmp_path: Path, cache: Path, server: Served) -> None:
    folder = lowered(tmp_path, f"{server.url}/model.safetensors")
    server.files["/model.safetensors"] = OTHER.data
    assert "other contents: the sha256" in refused(lambda: hatch_lower.fetch(folder))
    assert list(cache.iterdir()) == []


def test_installed_models_by_name_and_all_of_a_distribution(
    tmp_path: Path, server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    write_outside(site / "digits" / "_lowered", {f"{server.url}/model.safetensors": FILE})
    install(site, "digits", {"hatch_lower.models": {"digits": "digits.model:export"}})
    monkeypatch.syspath_prepend(site)
    for name in ("digits", "digits:digits"):
        (file,) = hatch_lower.fetch(name)
        assert file.size == len(FILE.data)
        assert run(name, "--json")[0] == 0
    assert "there is no installed model `digit`" in refused(lambda: hatch_lower.fetch("digit"), ProgramError)
    assert "`fetch` takes the name" in refused(lambda: hatch_lower.fetch(3), InputError)  # type: ignore[arg-type]


def test_the_command_says_what_it_did(tmp_path: Path, cache: Path, server: Served) -> None:
    url = f"{server.url}/model.safetensors"
    folder = lowered(tmp_path, url)
    status, text = run(str(folder))
    assert (status, text.splitlines()[1].split()) == (0, [url, str(SIZE), "B", "fetched", str(cache / NAME)])
    assert text.splitlines()[-1] == f"1 file, 1 fetched ({SIZE} B)"
    status, text = run(str(folder))
    assert (status, text.splitlines()[-1]) == (0, "1 file, 0 fetched (0 B)")
    assert "here already" in text
    report = {"url": url, "path": str(cache / NAME), "size": SIZE, "fetched": False}
    assert json.loads(run(str(folder), "--json")[1]) == [report]


def test_the_command_fails_with_status_1(tmp_path: Path, server: Served) -> None:
    folder = lowered(tmp_path, f"{server.url}/gone.safetensors")
    status, text = run(str(folder))
    assert status == 1
    assert "error: the weights are not available there" in text
    assert run(str(folder), "--model", "other")[0] == 1


def test_a_model_with_all_weights_in_the_wheel(tmp_path: Path) -> None:
    folder = write_outside(tmp_path / "_lowered", {}, inside={"w": floats(1, 2, 3, 4)})
    assert run(str(folder)) == (0, "nothing to fetch: all weights are in the wheel\n")


def test_a_folder_for_another_machine(
    tmp_path: Path, cache: Path, server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{server.url}/model.safetensors"
    folder, image = lowered(tmp_path, url), tmp_path / "image"
    status, text = run(str(folder), "--to", str(image))
    assert (status, text.splitlines()[-1]) == (0, f"where the models run, set HATCH_LOWER_WEIGHTS to {image}")
    assert ([path.name for path in image.iterdir()], cache.exists()) == ([NAME], False)
    monkeypatch.setenv("HATCH_LOWER_WEIGHTS", os.pathsep.join([str(cache), str(image)]))
    (file,) = hatch_lower.fetch(folder)
    assert (file.is_new, file.path) == (False, image / NAME)


def test_a_folder_for_another_machine_is_filled_from_the_cache(tmp_path: Path, server: Served) -> None:
    folder = lowered(tmp_path, f"{server.url}/model.safetensors")
    hatch_lower.fetch(folder)
    server.files.clear()
    (file,) = hatch_lower.fetch(folder, tmp_path / "image")
    assert (file.is_new, file.path) == (True, tmp_path / "image" / NAME)


@pytest.mark.parametrize("place", ["file", "folder", "url", "folder url", "file url"])
def test_another_place_with_the_same_bytes(tmp_path: Path, cache: Path, server: Served, place: str) -> None:
    folder = lowered(tmp_path, f"{server.url}/gone/model.safetensors")
    mirror = tmp_path / "a mirror"
    mirror.mkdir()
    (mirror / "model.safetensors").write_bytes(FILE.data)
    origin = {
        "file": str(mirror / "model.safetensors"),
        "folder": str(mirror),
        "url": f"{server.url}/model.safetensors",
        "folder url": f"{server.url}/",
        "file url": (mirror / "model.safetensors").as_uri(),
    }[place]
    assert run(str(folder), "--from", origin)[0] == 0
    assert (cache / NAME).read_bytes() == FILE.data


def test_a_folder_of_any_name_is_another_place(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = lowered(tmp_path, "https://example.org/model.safetensors")
    odd = tmp_path / "reference::a ?#%3A\x1b\xa0\n"
    odd.mkdir()
    (odd / "model.safetensors").write_bytes(FILE.data)
    assert hatch_lower.fetch(folder, origins=[str(odd)])[0].is_new
    monkeypatch.setenv("HATCH_LOWER_WEIGHTS", str(odd / "cache"))
    assert hatch_lower.fetch(folder, origins=[str(odd / "model.safetensors")])[0].is_new
    assert hatch_lower.fetch(folder, tmp_path / "image")[0].is_new


def test_another_place_has_to_have_the_same_bytes(tmp_path: Path, server: Served) -> None:
    folder = lowered(tmp_path, f"{server.url}/model.safetensors")
    moved = tmp_path / "sharded"
    moved.mkdir()
    (moved / "model-00001-of-00002.safetensors").write_bytes(FILE.data[:100])
    (moved / "model.safetensors").write_bytes(OTHER.data)
    for origin, found in [
        (moved, "other contents"),
        (moved / "model-00001-of-00002.safetensors", f"a file of 100 bytes instead of {SIZE}"),
        (moved / "gone.safetensors", "the file does not exist"),
        (tmp_path, "the file does not exist"),
    ]:
        assert found in refused(lambda origin=origin: hatch_lower.fetch(folder, origins=[str(origin)]))  # type: ignore[misc]


def test_weights_whose_place_nobody_has_said(tmp_path: Path, server: Served) -> None:
    folder = lowered(tmp_path, "digits-weights.safetensors")
    text = refused(lambda: hatch_lower.fetch(folder))
    assert text.startswith("the wheel lists the weights without a URL\n  where: digits-weights.safetensors")
    assert hatch_lower.fetch(folder, origins=[f"{server.url}/model.safetensors"])[0].is_new


def test_several_files_are_told_apart_by_their_names(tmp_path: Path, server: Served) -> None:
    second = checkpoint({"more": floats(7, 7, 7, 7)})
    folder = write_outside(tmp_path / "_lowered", {"one.safetensors": FILE, "two.safetensors": second})
    server.files |= {"/a/one.safetensors": FILE.data, "/b/two.safetensors": second.data}
    origins = [f"{server.url}/b/two.safetensors", f"{server.url}/a/one.safetensors"]
    text = refused(lambda: hatch_lower.fetch(folder, origins=origins[:1]))
    assert text.startswith("the wheel lists the weights without a URL\n  where: one.safetensors")
    text = refused(lambda: hatch_lower.fetch(folder, origins=[*origins, f"{server.url}/model.safetensors"]))
    assert text.startswith(f"no file of weights has the name of a given place\n  where: {server.url}/model.safetensors")
    assert "found: the files are called one.safetensors, two.safetensors" in text
    assert [file.is_new for file in hatch_lower.fetch(folder, origins=origins)] == [True, True]


def test_a_file_that_has_not_moved_is_fetched_from_its_own_place(tmp_path: Path, server: Served) -> None:
    second = checkpoint({"more": floats(7, 7, 7, 7)})
    gone = f"{server.url}/gone/two.safetensors"
    folder = write_outside(tmp_path / "_lowered", {f"{server.url}/model.safetensors": FILE, gone: second})
    server.files["/two.safetensors"] = second.data
    assert len(hatch_lower.fetch(folder, origins=[f"{server.url}/two.safetensors"])) == 2


def test_a_machine_that_is_offline_takes_files_alone(
    tmp_path: Path, server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = lowered(tmp_path, f"{server.url}/model.safetensors")
    monkeypatch.setenv("HATCH_LOWER_FETCH", "never")
    text = refused(lambda: hatch_lower.fetch(folder))
    assert text.endswith(
        "to do: fetch the weights on a machine with a network, `--to` a folder, and name a copy of the folder in"
        " `HATCH_LOWER_WEIGHTS` here"
    )
    assert server.requests == []
    (tmp_path / "model.safetensors").write_bytes(FILE.data)
    assert hatch_lower.fetch(folder, origins=[str(tmp_path / "model.safetensors")])[0].is_new


def test_a_file_of_the_hub_goes_into_its_own_cache(tmp_path: Path, cache: Path, server: Served) -> None:
    pytest.importorskip("huggingface_hub")
    folder = lowered(tmp_path, HUB_URL)
    (file,) = hatch_lower.fetch(folder)
    place = tmp_path / "hub" / "hub" / "models--org--name" / "snapshots" / COMMIT / "model.safetensors"
    assert (file.path, file.is_new, place.read_bytes(), cache.exists()) == (place, True, FILE.data, False)
    count = len(server.requests)
    assert not hatch_lower.fetch(folder)[0].is_new
    assert len(server.requests) == count
    place.resolve().write_bytes(OTHER.data)  # damaged
    assert hatch_lower.fetch(folder)[0].is_new
    assert place.read_bytes() == FILE.data


def test_a_file_of_the_hub_replaces_what_load_would_take(tmp_path: Path, cache: Path, server: Served) -> None:
    pytest.importorskip("huggingface_hub")
    cache.mkdir()
    (cache / NAME).write_bytes(OTHER.data)
    (file,) = hatch_lower.fetch(lowered(tmp_path, HUB_URL))
    assert (file.path, file.path.read_bytes()) == (cache / NAME, FILE.data)


def test_a_file_of_the_hub_for_another_machine_is_not_in_its_cache(
    tmp_path: Path, server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("huggingface_hub")
    monkeypatch.setenv("HF_TOKEN", "secret")
    folder = lowered(tmp_path, HUB_URL)
    (file,) = hatch_lower.fetch(folder, tmp_path / "image")
    assert (file.path.read_bytes(), (tmp_path / "hub").exists()) == (FILE.data, False)
    assert server.requests[-1][2]["Authorization"] == "Bearer secret"


def test_a_hub_that_lies_or_has_no_such_file(tmp_path: Path, server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("huggingface_hub")
    folder = lowered(tmp_path, HUB_URL)
    server.files[HUB_PATH] = OTHER.data
    assert f"other contents than {SIZE} bytes with the sha256" in refused(lambda: hatch_lower.fetch(folder))
    server.files.clear()
    text = refused(lambda: hatch_lower.fetch(lowered(tmp_path / "other", HUB_URL.replace("name", "gone"))))
    assert text.startswith("the weights are not available there")
    assert "NotFoundError: 404" in text
    server.files[HUB_PATH.replace("name", "gone")] = FILE.data
    monkeypatch.setattr("huggingface_hub.hf_hub_download", disconnected)
    text = refused(lambda: hatch_lower.fetch(lowered(tmp_path / "third", HUB_URL.replace("name", "gone"))))
    assert text.startswith("a download of weights broke off")


def disconnected(*arguments: Any, **named: Any) -> str:
    raise ConnectionError("the server is gone")


def test_a_hub_without_its_library(tmp_path: Path, server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    folder = lowered(tmp_path, HUB_URL)
    assert 'to do: install it: pip install "hatch-lower[fetch]"' in refused(lambda: hatch_lower.fetch(folder))


@pytest.mark.parametrize(
    ("url", "missing", "hint"),
    [
        ("az://weights/model.safetensors", "fsspec", 'install it: pip install "hatch-lower[fetch]"'),
        ("s3://bucket/model.safetensors", "fsspec", 'install it: pip install "hatch-lower[s3]"'),
        ("s3://bucket/model.safetensors", "s3fs", 'install it: pip install "hatch-lower[s3]"'),
        ("gs://weights/model.safetensors", "gcsfs", "install the packages that fsspec needs for this URL scheme"),
    ],
)
def test_a_url_without_what_opens_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, missing: str, hint: str
) -> None:
    # another test in this process may have opened a URL of this kind
    monkeypatch.delitem(OPENED, url.partition(":")[0], raising=False)
    for name in (missing, f"{missing}.core"):
        monkeypatch.setitem(sys.modules, name, None)
    folder = lowered(tmp_path, url)
    assert f"to do: {hint}" in refused(lambda: hatch_lower.fetch(folder))


def test_credentials_of_netrc_are_for_https(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "netrc"
    path.write_text("machine example.org login me password secret\n")
    path.chmod(0o600)
    monkeypatch.setenv("NETRC", str(path))
    basic = base64.b64encode(b"me:secret").decode()
    assert netrc_headers("https://example.org/model") == {"Authorization": f"Basic {basic}"}
    assert netrc_headers("http://example.org/model") == netrc_headers("https://example.com/model") == {}


def test_an_unknown_way_to_fetch_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HATCH_LOWER_FETCH", "1")
    folder = lowered(tmp_path, "https://example.org/model.safetensors")
    assert "to do: use one of `ask`, `always`, `never`" in refused(lambda: hatch_lower.fetch(folder))


class Terminal:
    """A stream that may be a terminal."""

    def __init__(self, *, is_one: bool) -> None:
        self.is_one, self.text = is_one, ""

    def isatty(self) -> bool:
        """Return whether it is one."""
        return self.is_one

    def write(self, text: str) -> None:
        """Keep a text."""
        self.text += text

    def flush(self) -> None:
        """Do nothing."""


def test_progress_is_shown_on_a_terminal_alone() -> None:
    pipe: Any = Terminal(is_one=False)
    with progress_line(pipe, "model.safetensors", 1 << 20) as show:
        show(1 << 19)
    assert pipe.text == ""
    terminal: Any = Terminal(is_one=True)
    with progress_line(terminal, "model.safetensors", 1 << 20) as show:
        show(1 << 19)  # too soon after the first line
    assert terminal.text == "\r\x1b[2K  fetch  model.safetensors: 0 B of 1.00 MiB\r\x1b[2K"
