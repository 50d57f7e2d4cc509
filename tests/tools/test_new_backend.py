"""`hatch-lower new-backend`: what it writes, and what it refuses."""

from __future__ import annotations

import ast
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from click.testing import CliRunner

from hatch_lower.cli.main import main
from hatch_lower.cli.new_backend import TEMPLATE, render

DOCUMENTED = Path(__file__).parents[2] / "docs" / "demo_backend"


def files_below(folder: Path) -> dict[str, str]:
    """Return path to text of all files of a folder but those that tools leave."""
    return {
        path.relative_to(folder).as_posix(): path.read_text("utf-8")
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not {"__pycache__", ".pytest_cache", ".ruff_cache"} & set(path.parts)
    }


def test_the_template_is_the_backend_of_the_documentation() -> None:
    assert render("demo") == files_below(DOCUMENTED)


def test_every_file_of_the_template_is_written() -> None:
    assert len(render("demo")) == len([each for each in TEMPLATE.iterdir() if each.suffix == ".in"])


def test_a_new_backend_has_its_own_names(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    done = CliRunner().invoke(main, ["new-backend", "my_engine", "--directory", str(folder)])
    assert done.exit_code == 0, done.output
    assert sorted(files_below(folder)) == [
        "README.md",
        "my_engine_backend/__init__.py",
        "my_engine_backend/compile.py",
        "my_engine_backend/run.py",
        "pyproject.toml",
        "tests/test_my_engine.py",
    ]
    following, warning = done.output.splitlines()[-2:]
    assert following == f'next: cd {folder} && pip install -e ".[test]" && pytest'
    assert "takes minutes" in warning
    assert [Path(line).is_file() for line in done.output.splitlines()[:6]] == [True] * 6
    text = "\n".join(files_below(folder).values())
    assert "demo" not in text.lower()
    assert 'my_engine = "my_engine_backend.compile:MyEngineBackend"' in text
    assert 'my_engine = "my_engine_backend.run:MyEngineDelegate"' in text
    assert 'name = "my-engine-backend"' in text
    for path in folder.rglob("*.py"):
        ast.parse(path.read_text("utf-8"))


def test_the_folder_is_named_after_the_distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(main, ["new-backend", "my_engine"]).exit_code == 0
    assert (tmp_path / "my-engine-backend" / "pyproject.toml").is_file()


def test_a_folder_with_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = CliRunner().invoke(main, ["new-backend", "engine", "--directory", str(tmp_path)])
    assert done.exit_code == 1
    assert done.stderr == (
        "error: the folder for the new backend has other files\n"
        f"  where: {tmp_path}\n"
        "  to do: name a new folder with `--directory`\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = CliRunner().invoke(main, ["new-backend", "engine", "--directory", str(tmp_path / "file" / "new")])
    assert done.exit_code == 1
    assert done.stderr == (
        f"error: the new backend cannot be written\n  where: {tmp_path}/file\n  found: File exists\n"
    )


def test_nothing_is_left_of_a_backend_that_cannot_be_written_whole(tmp_path: Path) -> None:
    name = "long" * 70
    done = CliRunner().invoke(main, ["new-backend", name, "--directory", str(tmp_path / "new")])
    assert done.exit_code == 1
    assert done.stderr.startswith("error: the new backend cannot be written\n  where: ")
    assert done.stderr.endswith(f"{name}_backend\n  found: File name too long\n")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["", "My", "my-engine", "1st", "a__b", "_a", "a_", "a.b", "a b", "../a", "class", "é"])
def test_names_that_are_none_are_refused(name: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["new-backend", name, "--directory", str(tmp_path / "new")])
    assert done.exit_code == 1
    assert done.stderr == (
        "error: the name of the backend is not allowed\n"
        f"  found: `{name}`\n"
        "  to do: use lower-case letters and digits, with single underscores between words: `my_engine`\n"
    )
    assert not (tmp_path / "new").exists()


def test_the_id_of_an_installed_backend_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    declared = EntryPoint("tape", "tape.compile:TapeBackend", "hatch_lower.backends")

    def entry_points(group: str, name: str) -> list[EntryPoint]:
        return [declared] if (group, name) == (declared.group, declared.name) else []

    monkeypatch.setattr("importlib.metadata.entry_points", entry_points)
    done = CliRunner().invoke(main, ["new-backend", "tape", "--directory", str(tmp_path / "new")])
    assert done.exit_code == 1
    assert done.stderr == (
        "error: there is a backend `tape` already\n"
        "  where: entry points `hatch_lower.backends`\n"
        "  found: `tape.compile:TapeBackend`\n"
        "  to do: choose another name: two backends with the same id cannot be installed together\n"
    )
