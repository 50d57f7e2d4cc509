"""Files that are packaged with a model: how they are found and called, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from hatch_lower.canonical import sha256_bytes
from hatch_lower.config.settings import ModelSettings, Settings
from hatch_lower.driver.sources import find_assets, with_assets
from hatch_lower.errors import ConfigError
from hatch_lower.format.manifest import FileEntry, Manifest, ModelEntry, model_json, write_manifest
from hatch_lower.format.results import ModelResult, package_manifest

ENTRY = ModelEntry(("default",), None, None, {})


def settings(root: Path, *patterns: str) -> Settings:
    model = ModelSettings("words", "words.model:export", "words", ("default",), patterns)
    return Settings(root, "words", "1.0", (model,), ())


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for path in ("words/tokenizer/vocab.json", "words/tokenizer/merges/en.txt", "labels.txt"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(path)
    return tmp_path


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        ((), {}),
        (("labels.txt",), {"labels.txt": "labels.txt"}),
        (("words/tokenizer/*",), {"vocab.json": "words/tokenizer/vocab.json"}),
        (("words/tokenizer/vocab.json",), {"vocab.json": "words/tokenizer/vocab.json"}),
        (
            ("words/**/*", "labels.txt"),
            {
                "tokenizer/vocab.json": "words/tokenizer/vocab.json",
                "tokenizer/merges/en.txt": "words/tokenizer/merges/en.txt",
                "labels.txt": "labels.txt",
            },
        ),
    ],
)
def test_an_asset_is_named_below_the_folder_of_its_pattern(
    project: Path, patterns: tuple[str, ...], names: dict[str, str]
) -> None:
    found = find_assets(settings(project, *patterns))
    assert found == {"words": {name: project / path for name, path in names.items()}}


def test_a_file_that_two_patterns_match_is_packaged_once(project: Path) -> None:
    assert list(find_assets(settings(project, "labels.txt", "*.txt"))["words"]) == ["labels.txt"]


def test_wrong_assets_are_refused_all_at_once(project: Path) -> None:
    (project / "other").mkdir()
    (project / "other" / "Labels.txt").touch()
    (project / "other" / "a:b").touch()
    with pytest.raises(ConfigError) as caught:
        find_assets(settings(project, "tokenizer/*", "labels.txt", "other/*"))
    assert str(caught.value) == (
        "the assets of a model are not as its table says\n"
        "  found: `tokenizer/*` in the `assets` of model `words` matches no file\n"
        "    `other/*` in the `assets` of model `words` matches `other/Labels.txt`, whose name `labels.txt` has\n"
        "    `other/*` in the `assets` of model `words` matches 'a:b', which not every system can have as a file name\n"
        "  to do: write patterns relative to the project, such as"
        ' `assets = ["tokenizer/*.json", "labels.txt"]`'
    )


@pytest.mark.parametrize("pattern", ["*.txt", "gone.txt"])
def test_a_dangling_link_among_assets_is_refused(project: Path, pattern: str) -> None:
    (project / "gone.txt").symlink_to("nowhere.txt")
    with pytest.raises(ConfigError) as caught:
        find_assets(settings(project, pattern))
    assert caught.value.found == (
        f"`{pattern}` in the `assets` of model `words` matches `gone.txt`, a link to `nowhere.txt`, which is not there"
    )


def test_assets_are_in_the_manifest_and_among_the_files(project: Path) -> None:
    result = ModelResult("words", model_json(ENTRY), (), (), (), {}, "2.13.0")
    assert with_assets(result, {}) is result
    packed = with_assets(result, {"labels.txt": project / "labels.txt"})
    (file,) = packed.files
    assert (file.path, file.source, file.size) == ("words/assets/labels.txt", project / "labels.txt", 10)

    data = package_manifest("words", "1.0", "0.1.0", "2.13.0", {}, {"words": {**packed.entry, "order": ["a"]}})
    entry = ModelEntry(("a",), None, None, {}, {"labels.txt": FileEntry(file.path, 10, sha256_bytes(b"labels.txt"))})
    assert write_manifest(Manifest("words", "1.0", "0.1.0", "2.13.0", {}, {"words": entry})) == data


def test_a_model_without_assets_says_nothing_of_them() -> None:
    assert "assets" not in model_json(ENTRY)


def test_a_pointer_of_git_lfs_is_no_asset(project: Path) -> None:
    (project / "labels.txt").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    with pytest.raises(ConfigError) as caught:
        find_assets(settings(project, "*.txt"))
    assert caught.value.found == (
        "`*.txt` in the `assets` of model `words` matches `labels.txt`, a Git LFS pointer, not the file itself:"
        " run `git lfs pull`"
    )
