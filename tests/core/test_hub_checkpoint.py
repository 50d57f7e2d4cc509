"""Checkpoints of the Hugging Face hub by commit, with a stand-in for the hub, or its cache alone."""

from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.plugin.manager import PluginManager
from support.weights import COMMIT, Served, hub_answers, served

from hatch_lower.cache.store import Store, open_store
from hatch_lower.config.checkpoint import CheckpointFolder, HubCommit, absolute_export, checkpoint_of
from hatch_lower.config.settings import Metadata, Settings, read_settings
from hatch_lower.driver.checkpoints import link_checkpoint, obtain_checkpoints
from hatch_lower.driver.lookup import open_stats
from hatch_lower.driver.sources import checkpoint_place, find_assets, urls_of
from hatch_lower.driver.weight_sources import obtain
from hatch_lower.errors import ConfigError, EntryPointError, FetchError, LowerError, ProgramError
from hatch_lower.events import Event
from hatch_lower.hatch import hooks
from hatch_lower.hatch.editable import write_eager
from hatch_lower.runtime.eager import make_eager

SOURCE = f"org/name@{COMMIT}"
FILES = {
    "config.json": b'{"architectures": ["BertForMaskedLM"]}',
    "tokenizer.json": b"{}",
    "LICENSE": b"Apache-2.0",
    "model.safetensors": b"weights",
    "README.md": b"a card",
    "pytorch_model.bin": b"a pickle",
    "training_args.bin": b"another",
    "onnx/model.onnx": b"an engine's file",
    "modeling_own.py": b"code",
}
NEEDED = ["LICENSE", "config.json", "model.safetensors", "tokenizer.json"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the hub's cache, which is empty."""
    for name in ("HATCH_LOWER_FETCH", "HF_HUB_OFFLINE", "HF_HUB_CACHE", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HATCH_LOWER_CACHE_DIR", str(tmp_path / "kept"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "no token"))
    return tmp_path / "hub" / "hub" / "models--org--name"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """Return a hub with one commit."""
    pytest.importorskip("huggingface_hub")
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)
    with served(hub_answers(FILES)) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


class Kept:
    """Keeps the details of events."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def report(self, event: Event) -> None:
        if event.state in ("end", "note"):
            self.lines.append(event.detail)


def settings(root: Path, source: str = SOURCE, library: str = "transformers", **more: Any) -> Settings:
    models = {"models": {"net": {library: source, **more}}}
    return read_settings(models, Metadata("net", "1.0", {}), root=root, packages=["net"], regular=["net"])


def store_in(root: Path, mode: str = "on") -> Store:
    return open_store({"HATCH_LOWER_CACHE_DIR": str(root / "kept"), "HATCH_LOWER_CACHE": mode}, lambda line: None)


def obtained(root: Path, given: Settings | None = None, mode: str = "on") -> list[str]:
    """Return the lines of a build that obtains the checkpoints."""
    kept = Kept()
    obtain_checkpoints(root, (given or settings(root)).models, store_in(root, mode), kept)
    return kept.lines


def refused(root: Path, kind: type[LowerError] = FetchError, given: Settings | None = None, mode: str = "on") -> Any:
    with pytest.raises(kind) as caught:
        obtained(root, given, mode)
    assert caught.value.where.startswith("model `net`, `transformers = ")
    return caught.value


def snapshot(root: Path, given: Settings | None = None) -> list[str]:
    (model,) = (given or settings(root)).models
    checkpoint = checkpoint_of(model.export)
    assert checkpoint is not None
    place = checkpoint_place(checkpoint, root)
    return sorted(path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file())


# The setting


def test_only_the_digits_of_a_commit_name_the_hub() -> None:
    assert CheckpointFolder(SOURCE).hub == HubCommit("org/name", COMMIT)
    for folder in ("org/name", "org/name@main", f"org/name@{COMMIT[:8]}", f"name@{COMMIT}", f"a/b/c@{COMMIT}"):
        assert CheckpointFolder(folder).hub is None
    export = CheckpointFolder(SOURCE, "fill-mask", trusts_code=True).export
    assert checkpoint_of(export) == CheckpointFolder(SOURCE, "fill-mask", trusts_code=True)
    assert absolute_export(export, Path("/project")) == export


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("org/name", "no folder `org/name` in the project"),
        ("org/name@main", "no folder `org/name@main` in the project, and `main` is not the 40 hexadecimal digits of a"),
        (f"org/name@{COMMIT[:8]}", f"and `{COMMIT[:8]}` is not the 40 hexadecimal digits of a commit"),
    ],
)
@pytest.mark.parametrize("library", ["transformers", "sentence-transformers"])
def test_a_name_without_a_commit_is_refused(source: str, found: str, library: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="neither a folder of the project nor a commit") as error:
        obtained(tmp_path, settings(tmp_path, source, library))
    assert error.value.where == f'model `net`, `{library} = "{source}"`'
    assert found in error.value.found
    assert "git ls-remote https://huggingface.co/org/name" in error.value.hint


def test_a_folder_with_the_name_of_a_repository_stays_a_folder(tmp_path: Path) -> None:
    (tmp_path / "org" / "name").mkdir(parents=True)
    (tmp_path / "org" / "name" / "config.json").write_text("{}")
    given = settings(tmp_path, "org/name")
    assert obtained(tmp_path, given) == []
    assert find_assets(given) == {"net": {"config.json": tmp_path / "org" / "name" / "config.json"}}


# The download


def test_the_files_of_a_build_are_downloaded_without_pickles(server: Served, tmp_path: Path) -> None:
    assert obtained(tmp_path) == [f"{SOURCE}: 4 files"]
    assert snapshot(tmp_path) == NEEDED
    assets = find_assets(settings(tmp_path))["net"]
    assert {name: path.read_bytes() for name, path in assets.items()} == {
        name: FILES[name] for name in NEEDED if name != "model.safetensors"
    }


def test_a_second_build_asks_nobody(server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    obtained(tmp_path)
    asked = len(server.requests)
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    assert obtained(tmp_path) == []
    assert len(server.requests) == asked


def test_another_cache_of_builds_downloads_no_file_again(server: Served, tmp_path: Path) -> None:
    obtained(tmp_path)
    before = [path for command, path, _ in server.requests if command == "GET" and "/resolve/" in path]
    shutil.rmtree(tmp_path / "kept")
    obtained(tmp_path)
    after = [path for command, path, _ in server.requests if command == "GET" and "/resolve/" in path]
    assert after == before


def test_a_file_that_another_program_left_out_is_downloaded(server: Served, tmp_path: Path, cache: Path) -> None:
    obtained(tmp_path)
    (cache / "snapshots" / COMMIT / "tokenizer.json").unlink()
    obtained(tmp_path)
    assert snapshot(tmp_path) == NEEDED


def test_a_damaged_file_in_the_cache_is_replaced(server: Served, tmp_path: Path, cache: Path) -> None:
    obtained(tmp_path)
    (cache / "snapshots" / COMMIT / "model.safetensors").resolve().write_bytes(b"damaged")
    obtained(tmp_path)
    assert (cache / "snapshots" / COMMIT / "model.safetensors").read_bytes() == b"weights"


def test_the_parts_of_the_index_are_the_weights(server: Served, tmp_path: Path) -> None:
    index = json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}).encode()
    parts = {"model-1.safetensors": b"1", "model-2.safetensors": b"2", "model.safetensors.index.json": index}
    server.files.clear()
    server.files.update(hub_answers({"config.json": b"{}", "consolidated.safetensors": b"3", **parts}))
    obtained(tmp_path)
    assert snapshot(tmp_path) == ["config.json", *sorted(parts)]


def test_the_parts_of_an_encoder_are_downloaded(server: Served, tmp_path: Path) -> None:
    files = {
        "modules.json": b'[{"path": "", "type": "a"}, {"path": "1_Pooling", "type": "b"}, {"path": "../x"}]',
        "config.json": b"{}",
        "model.safetensors": b"1",
        "1_Pooling/config.json": b"{}",
        "2_Other/config.json": b"{}",
    }
    server.files.clear()
    server.files.update(hub_answers(files))
    given = settings(tmp_path, library="sentence-transformers")
    obtained(tmp_path, given)
    assert snapshot(tmp_path, given) == ["1_Pooling/config.json", "config.json", "model.safetensors", "modules.json"]


def test_a_checkpoint_of_timm_is_downloaded(server: Served, tmp_path: Path) -> None:
    server.files.clear()
    server.files.update(hub_answers({**FILES, "config.json": b'{"architecture": "resnet18"}'}))
    given = settings(tmp_path, library="timm")
    obtained(tmp_path, given)
    assert snapshot(tmp_path, given) == NEEDED
    # another cache of builds, which does not know the commit
    assert refused(tmp_path / "other", EntryPointError).hint == "declare the folder with `timm`"


def test_code_is_downloaded_where_the_setting_trusts_it(server: Served, tmp_path: Path) -> None:
    given = settings(tmp_path, SOURCE, "transformers", **{"trust-remote-code": True})
    obtained(tmp_path, given)
    assert snapshot(tmp_path, given) == sorted([*NEEDED, "modeling_own.py"])


def test_paths_that_lead_out_of_the_folder_are_not_downloaded(server: Served, tmp_path: Path) -> None:
    server.files.clear()
    server.files.update(hub_answers({**FILES, "../LICENSE": b"bad", "a/../../config.json": b"bad"}))
    obtained(tmp_path)
    assert snapshot(tmp_path) == NEEDED


def test_an_export_sees_the_needed_files_alone(server: Served, tmp_path: Path, cache: Path) -> None:
    obtained(tmp_path)
    (cache / "snapshots" / COMMIT / "README.md").write_text("of another program")
    (model,) = settings(tmp_path).models
    linked = link_checkpoint(model, tmp_path / "work")
    assert linked is not None
    assert {path.name: path.read_bytes() for path in linked.iterdir()} == {name: FILES[name] for name in NEEDED}
    (folder,) = settings(tmp_path, "models/net").models
    assert link_checkpoint(folder, tmp_path / "other") is None


def test_weights_that_stay_on_the_hub_are_downloaded_once(server: Served, tmp_path: Path) -> None:
    given = settings(tmp_path, weights="hub")
    obtained(tmp_path, given)
    (url,) = urls_of(given.models)
    assert url == f"hf://{SOURCE}/model.safetensors"
    store = store_in(tmp_path)
    source = obtain(url, store, open_stats(store), lambda line: None)
    assert source.path.read_bytes() == FILES["model.safetensors"]
    path = f"/org/name/resolve/{COMMIT}/model.safetensors"
    assert [command for command, asked, _ in server.requests if asked == path].count("GET") == 1


def test_weights_in_parts_stay_on_the_hub_without_other_files(server: Served, tmp_path: Path, cache: Path) -> None:
    index = json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}).encode()
    parts = {"model-1.safetensors": b"1", "model-2.safetensors": b"2", "model.safetensors.index.json": index}
    server.files.update(hub_answers({"config.json": b"{}", **parts}))
    given = settings(tmp_path, weights="hub")
    obtained(tmp_path, given)
    (cache / "snapshots" / COMMIT / "consolidated.safetensors").write_bytes(b"of another program")
    assert urls_of(given.models) == tuple(f"hf://{SOURCE}/model-{number}.safetensors" for number in (1, 2))


@pytest.mark.parametrize("place", ["model", "top"])
def test_weights_of_another_model_cannot_stay_on_the_hub(place: str, tmp_path: Path) -> None:
    model: dict[str, Any] = {"transformers": "models/net"}
    table: dict[str, Any] = {"models": {"net": model}}
    (model if place == "model" else table)["weights"] = "hub"
    with pytest.raises(ConfigError) as error:
        read_settings(table, Metadata("net", "1.0", {}), root=tmp_path, packages=["net"], regular=["net"])
    assert '`weights` is `"hub"`, and the model `net` is no checkpoint of the hub' in error.value.found


# Refusals


def test_code_is_refused_before_the_download_of_weights(server: Served, tmp_path: Path) -> None:
    server.files.clear()
    server.files.update(hub_answers({**FILES, "config.json": b'{"auto_map": {"AutoModel": "modeling_own.Net"}}'}))
    assert "brings code of its own" in refused(tmp_path, EntryPointError).what
    assert "model.safetensors" not in snapshot(tmp_path)


def test_a_hub_out_of_reach_is_named(tmp_path: Path, server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert "the hub does not answer (ConnectError: " in refused(tmp_path).found


@pytest.mark.parametrize(
    ("refusal", "what", "hint"),
    [
        (
            (404, "RevisionNotFound"),
            "the repository has no such commit",
            "git ls-remote https://huggingface.co/org/name",
        ),
        ((404, "RepoNotFound"), "the hub has no such repository", "for a private repository log in"),
        ((401, "RepoNotFound"), "the hub has no such repository", "for a private repository log in"),
        (
            (403, "GatedRepo"),
            "without consent to its conditions",
            "accept the conditions on https://huggingface.co/org/",
        ),
        ((400, ""), "the hub's answer is not that of a hub", "`HF_ENDPOINT`"),
    ],
)
def test_a_refusal_of_the_hub_is_explained(
    refusal: tuple[int, str], what: str, hint: str, server: Served, tmp_path: Path
) -> None:
    server.refusal = refusal
    error = refused(tmp_path)
    assert what in error.what
    assert hint in error.hint


@pytest.mark.parametrize("answer", [b"<html>", b"{}", b'[{"type": "file"}]', b'["a"]', b"\xff"])
def test_a_damaged_list_of_files_is_refused(answer: bytes, server: Served, tmp_path: Path) -> None:
    (tree,) = (path for path in server.files if path.startswith("/api/"))
    server.files[tree] = answer
    assert refused(tmp_path, LowerError).what


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_other_contents_than_listed_are_refused(name: str, server: Served, tmp_path: Path) -> None:
    path = f"/org/name/resolve/{COMMIT}/{name}"
    server.files[path] = bytes(reversed(server.files[path]))
    error = refused(tmp_path)
    assert error.what == "a file of the checkpoint has other contents than the hub's list says"
    assert error.found == f"`{name}`"


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"pytorch_model.bin": b"a"}, "pickled weights alone: `pytorch_model.bin`"),
        ({}, "no file `*.safetensors` in the repository"),
        (
            {"model.safetensors.index.json": b'{"weight_map": {"a": "model-1.safetensors"}}'},
            "no file `model-1.safetensors` in the repository",
        ),
    ],
)
def test_a_repository_without_safetensors_is_refused(
    files: dict[str, bytes], found: str, server: Served, tmp_path: Path
) -> None:
    server.files.clear()
    server.files.update(hub_answers({"config.json": b"{}", **files}))
    error = refused(tmp_path, EntryPointError)
    assert (error.what, error.found) == ("a checkpoint must have its weights in safetensors files", found)


def test_credentials_are_in_no_message(server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("HF_ENDPOINT", server.url.replace("//", "//user:hf_secret@"))
    server.refusal = (403, "GatedRepo")
    error = refused(tmp_path)
    assert "hf_secret" not in str(error)
    assert not [path for path in (tmp_path / "kept").rglob("*") if path.is_file() and b"hf_secret" in path.read_bytes()]


# Without an answer


def test_a_hub_that_is_down_is_named_with_the_missing_files(server: Served, tmp_path: Path, cache: Path) -> None:
    server.refusal = (503, "")
    error = refused(tmp_path)
    assert error.what == "the checkpoint is not on this machine, and the hub cannot be asked"
    assert "the hub does not answer (HfHubHTTPError: " in error.found
    assert f"no file `config.json`, `*.safetensors` in {cache / 'snapshots' / COMMIT}" in error.found
    assert "`HF_HUB_CACHE`" in error.hint


def test_the_cache_is_used_where_the_hub_is_down(server: Served, tmp_path: Path) -> None:
    obtained(tmp_path)
    shutil.rmtree(tmp_path / "kept")
    server.refusal = (503, "")
    (note, done) = obtained(tmp_path)
    assert note.startswith(f"{SOURCE}: the hub was not asked for missing files, because the hub does not answer")
    assert done == f"{SOURCE}: 0 files"


@pytest.mark.parametrize("variable", ["HF_HUB_OFFLINE", "HATCH_LOWER_FETCH", "frozen"])
def test_no_connection_is_opened_where_the_environment_forbids_it(
    variable: str, server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mode = "frozen" if variable == "frozen" else "on"
    if mode == "on":
        monkeypatch.setenv(variable, "1" if variable == "HF_HUB_OFFLINE" else "never")
    assert "is set; no file `config.json`" in refused(tmp_path, mode=mode).found
    assert server.requests == []
    for name in ("HF_HUB_OFFLINE", "HATCH_LOWER_FETCH"):
        monkeypatch.delenv(name, raising=False)
    obtained(tmp_path)
    shutil.rmtree(tmp_path / "kept")
    if mode == "on":
        monkeypatch.setenv(variable, "1" if variable == "HF_HUB_OFFLINE" else "never")
    asked = len(server.requests)
    assert "the hub was not asked for missing files" in obtained(tmp_path, mode=mode)[0]
    assert len(server.requests) == asked


def test_a_missing_part_is_named_where_the_hub_is_down(server: Served, tmp_path: Path, cache: Path) -> None:
    obtained(tmp_path)
    (cache / "snapshots" / COMMIT / "model.safetensors").unlink()
    server.refusal = (503, "")
    assert "no file `*.safetensors` in" in refused(tmp_path).found


def test_a_missing_library_names_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    error = refused(tmp_path, EntryPointError)
    assert error.hint == 'add "hatch-lower[transformers]" to `[build-system] requires`'


# Distributions and editable installs


@pytest.mark.parametrize("trusted", [False, True])
def test_a_source_distribution_has_the_files_of_a_folder_and_not_of_the_hub(trusted: bool, tmp_path: Path) -> None:
    table = "[tool.hatch.build.hooks.lower.models.{}]\ntransformers = '{}'\ntrust-remote-code = {}\n"
    models = table.format("near", "models/near", str(trusted).lower()) + table.format("far", SOURCE, "true")
    (tmp_path / "pyproject.toml").write_text(
        f"[project]\nname = 'net'\nversion = '1'\n[tool.hatch.build.targets.sdist]\nonly-include = ['net']\n{models}"
    )
    for name in ("net/__init__.py", "models/near/config.json", "models/near/modeling_own.py", "models/near/parts/a.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    plugins = PluginManager()
    plugins.initialize()
    plugins.initialized = True
    plugins.manager.register(hooks, name="lower")
    (archive,) = SdistBuilder(str(tmp_path), plugin_manager=plugins).build()
    with tarfile.open(archive) as opened:
        names = {name.removeprefix("net-1/") for name in opened.getnames() if "/models/" in name}
    code = {"models/near/modeling_own.py", "models/near/parts/a.py"} if trusted else set()
    assert names == {"models/near/config.json", *code}


def test_an_editable_install_has_the_assets_of_the_hub(server: Served, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    files = write_eager(settings(tmp_path), tmp_path / "work")
    names = {file.path for file in files}
    assert {f"net/_lowered/net/assets/{name}" for name in ("LICENSE", "config.json", "tokenizer.json")} < names
    (document,) = (json.loads(file.source.read_text()) for file in files if file.path.endswith("eager.json"))
    assert document["models"] == {"net": f"transformers:{SOURCE}"}


def test_an_editable_install_runs_the_module_in_the_cache_of_the_hub(cache: Path) -> None:
    pytest.importorskip("transformers.exporters")
    with pytest.raises(ProgramError, match="the entry point of model `net` failed") as error:
        make_eager("net", f"transformers:{SOURCE}")
    assert f"the folder holds no checkpoint of transformers\n  where: transformers:{SOURCE}" in error.value.found
    assert str(cache / "snapshots" / COMMIT / "config.json") in error.value.found
