"""Sources of weights in a build: asked for once, believed while nothing changes, and downloaded again if they have."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.lowered import floats
from support.weights import COMMIT, Served, checkpoint, served

from hatch_lower.cache.stats import StatCache
from hatch_lower.cache.store import Store
from hatch_lower.canonical import sha256_bytes
from hatch_lower.config.settings import ModelSettings
from hatch_lower.driver.sources import file_path, known_digest, known_source, record_key, urls_of
from hatch_lower.driver.weight_sources import obtain
from hatch_lower.errors import CacheError, FetchError, PackageError
from hatch_lower.pipeline.checkpoint import LocalSource, named_in_wheel
from hatch_lower.runtime.download import private_part

FIRST = checkpoint({"weight": floats(*range(64))}).data
SECOND = checkpoint({"weight": floats(*range(1, 65))}).data
PATH = "/model.safetensors"


@dataclass
class Builder:
    """A machine that builds: its cache, and the folder for downloads."""

    folder: Path
    notes: list[str] = field(default_factory=list)
    mode: str = "on"

    @property
    def store(self) -> Store:
        return Store(self.folder / "cache", self.mode, self.notes.append)

    @property
    def stats(self) -> StatCache:
        return StatCache(self.folder / "stats.json")

    def obtain(self, url: str) -> LocalSource:
        return obtain(url, self.store, self.stats, self.notes.append)

    def known(self, url: str) -> str:
        return known_digest(url, self.store, self.stats)


@pytest.fixture
def builder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Builder:
    monkeypatch.setenv("HATCH_LOWER_WEIGHTS", str(tmp_path / "weights"))
    for name in ("HATCH_LOWER_FETCH", "HF_HUB_OFFLINE", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return Builder(tmp_path)


@pytest.fixture
def server() -> Iterator[Served]:
    with served({PATH: FIRST}) as running:
        yield running


def test_a_source_is_downloaded_once(builder: Builder, server: Served) -> None:
    url = server.url + PATH
    assert builder.known(url) == ""
    source = builder.obtain(url)
    assert source == LocalSource(url, len(FIRST), sha256_bytes(FIRST), source.path)
    assert source.path.read_bytes() == FIRST
    assert os.listdir(builder.folder / "weights") == [f"{source.sha256}.safetensors"]
    assert builder.known(url) == source.sha256
    assert builder.obtain(url) == source
    assert server.asked() == ["", f"bytes={len(FIRST) - 1}-"]


def test_a_source_that_has_changed_is_downloaded_again(builder: Builder, server: Served) -> None:
    url = server.url + PATH
    builder.obtain(url)
    server.files[PATH] = SECOND
    assert builder.obtain(url).path.read_bytes() == SECOND
    assert builder.known(url) == sha256_bytes(SECOND)
    assert builder.notes == []


@pytest.mark.parametrize("has_ranges", [True, False])
def test_a_server_without_stamps_or_ranges_is_believed_as_far_as_it_says(
    builder: Builder, server: Served, has_ranges: bool
) -> None:
    server.has_ranges, server.has_tags = has_ranges, not has_ranges
    url = server.url + PATH
    for data in (FIRST, FIRST, SECOND):
        server.files[PATH] = data
        assert builder.obtain(url).sha256 == sha256_bytes(data)


def test_a_copy_that_was_lost_or_damaged_is_downloaded_again(builder: Builder, server: Served) -> None:
    url = server.url + PATH
    path = builder.obtain(url).path
    path.unlink()
    assert builder.obtain(url).path.read_bytes() == FIRST
    path.write_bytes(bytes(len(FIRST)))
    assert builder.obtain(url).path.read_bytes() == FIRST


@pytest.mark.parametrize("offline", [True, False])
def test_a_server_that_cannot_be_asked_is_believed_and_that_is_said(
    builder: Builder, monkeypatch: pytest.MonkeyPatch, offline: bool
) -> None:
    with served({PATH: FIRST}) as running:
        url = running.url + PATH
        source = builder.obtain(url)
        if offline:
            monkeypatch.setenv("HATCH_LOWER_FETCH", "never")
            assert builder.obtain(url) == source
            assert running.asked() == [""]
    if not offline:
        assert builder.obtain(url) == source
    (note,) = builder.notes
    assert note.startswith(f"{url} ")
    assert "asked whether it has changed" in note


def test_what_a_killed_build_has_left_goes(builder: Builder, server: Served) -> None:
    folder = builder.folder / "weights"
    folder.mkdir()
    (folder / "new.0123456789abcdef.part").write_bytes(FIRST[:100])
    with private_part(folder / "new") as part:  # of a build that runs
        path = builder.obtain(server.url + PATH).path
        assert sorted(folder.iterdir()) == sorted([path, part.path])


def test_a_file_that_is_cut_short_is_not_kept(builder: Builder, server: Served) -> None:
    url = server.url + PATH
    server.files[PATH] = FIRST[:-1]
    with pytest.raises(PackageError, match="not a safetensors file"):
        builder.obtain(url)
    assert os.listdir(builder.folder / "weights") == []
    assert builder.known(url) == ""


def test_a_source_that_is_gone_is_an_error(builder: Builder, server: Served) -> None:
    url = server.url + PATH
    builder.obtain(url)
    del server.files[PATH]
    with pytest.raises(FetchError) as caught:
        builder.obtain(url)
    assert str(caught.value) == (
        "the weights are not available there\n"
        f"  where: {url}\n"
        "  found: the answer was 404 Not Found\n"
        "  to do: correct `weights` of the build hook `lower`"
    )
    assert builder.known(url) == sha256_bytes(FIRST)


def test_a_file_of_this_machine_is_where_it_is(builder: Builder) -> None:
    path = builder.folder / "my model.safetensors"
    path.write_bytes(FIRST)
    url = path.as_uri()
    assert builder.obtain(url) == LocalSource(url, len(FIRST), sha256_bytes(FIRST), path)
    path.write_bytes(SECOND)
    assert builder.obtain(url).sha256 == builder.known(url) == sha256_bytes(SECOND)
    path.unlink()
    assert builder.known(url) == ""
    with pytest.raises(FetchError, match="a file of weights cannot be read"):
        builder.obtain(url)


def test_a_wheel_has_the_name_of_a_file_of_this_machine_and_no_path(tmp_path: Path) -> None:
    def local(url: str, number: int) -> LocalSource:
        return LocalSource(url, 8, f"{number:064x}", file_path(url))

    folder = tmp_path.as_uri()
    sources = [
        local("https://example.org/model.safetensors", 0),
        *(local(f"{folder}/{name}", 1 + i) for i, name in enumerate(("a.safetensors", "b%20c.safetensors", "model"))),
        *(local(f"{folder}/{name}/same.safetensors", 4 + i) for i, name in enumerate(("vae", "text"))),
    ]
    named = named_in_wheel(sources)
    digests = [f"{number:064x}.safetensors" for number in range(2, 6)]
    assert [source.url for source in named] == ["https://example.org/model.safetensors", "a.safetensors", *digests]
    assert [source.path for source in named] == [source.path for source in sources]
    assert [source.where for source in named[:2]] == [sources[0].url, str(tmp_path / "a.safetensors")]


def test_a_commit_of_the_hub_is_asked_for_once(
    builder: Builder, server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("huggingface_hub")
    server.files[f"/org/name/resolve/{COMMIT}/model.safetensors"] = FIRST
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setenv("HF_HUB_CACHE", str(builder.folder / "hub"))
    url = f"hf://org/name@{COMMIT}/model.safetensors"
    source = builder.obtain(url)
    assert source.path.read_bytes() == FIRST
    assert source.path.is_relative_to(builder.folder / "hub")
    count = len(server.requests)
    assert builder.obtain(url) == source
    assert len(server.requests) == count


def test_a_frozen_cache_asks_no_server(builder: Builder, server: Served) -> None:
    url = server.url + PATH
    builder.mode = "frozen"
    with pytest.raises(CacheError, match="does not know the contents of a source of weights"):
        builder.obtain(url)
    builder.mode = "on"
    source = builder.obtain(url)
    builder.mode = "frozen"
    assert builder.obtain(url) == source
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "value",
    [
        *(None, [], {"size": "many", "sha256": "0" * 64, "stamp": ""}, {"size": 1, "sha256": "", "stamp": ""}),
        *({"size": 1, "sha256": f"../{'0' * 61}", "stamp": ""}, {"size": -1, "sha256": "0" * 64, "stamp": ""}),
    ],
)
def test_a_record_of_another_form_says_nothing(builder: Builder, value: object) -> None:
    url = "https://example.org/model.safetensors"
    builder.store.put(record_key(url), {}, value)
    assert known_source(url, builder.store) is None


def test_urls_are_those_of_all_models_once() -> None:
    models = [
        ModelSettings("a", "a:b", "a", (), weights=("https://a/1", "https://a/2")),
        ModelSettings("b", "a:b", "a", (), weights=("file",)),
        ModelSettings("c", "a:b", "a", (), weights=("https://a/2", "https://a/3")),
    ]
    assert urls_of(models) == ("https://a/1", "https://a/2", "https://a/3")
