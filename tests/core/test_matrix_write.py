"""The requirement that `hatch-lower check --matrix --write` narrows."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from hatch_lower.cli.matrix.engines import METADATA, RECIPES, Engine
from hatch_lower.cli.matrix.rows import MatrixRow, TriedEngine
from hatch_lower.cli.matrix.write import narrowed_range, narrowed_text, read_project_file, write_narrowed
from hatch_lower.errors import ConfigError

PROJECT = """\
# the project
[project]
name = "net"
version = "1.0"
dependencies = [
  "hatch-lower>=0.1",
  # the engine
  "onnxruntime>=1.23,<2",   # a range
]

[tool.other]
onnxruntime = "stays"
"""
ENGINE = Engine("onnxruntime", SpecifierSet(">=1.23,<2"), METADATA, (), ())


def versions(text: str) -> dict[Version, bool | None]:
    """Return verdicts from versions, each with `-` for a failure and `?` for no trial."""
    marks = {"-": False, "?": None}
    return {Version(word.rstrip("-?")): marks.get(word[-1], True) for word in text.split()}


@pytest.mark.parametrize(
    ("allowed", "tried", "expected"),
    [
        (">=1.23,<2", "1.23.0 1.23.2 1.24.4 1.25.1", ">=1.23,<1.26"),  # a newer version has not passed
        (">=1.23", "1.23.0 1.24.4", ">=1.23,<1.25"),
        (">=1.23,<1.25", "1.23.0 1.24.4", None),
        ("==1.24.*", "1.24.0 1.24.4", None),
        ("~=1.23", "1.23.0 1.24.4", "~=1.23,<1.25"),
        (">=1.23,<2", "1.23.0 1.24.4- 1.25.1 1.26.0", ">=1.23,!=1.24.*,<1.27"),
        (">=1.23,<2", "1.23.0- 1.23.2- 1.24.4 1.25.1", ">=1.24.4,<1.26"),
        (">=1.23,<2", "1.23.0- 1.23.2 1.24.4", ">=1.23.2,<1.25"),
        (">=1.23,<2", "1.23.0 1.23.2- 1.24.4", ">=1.24.4,<1.25"),  # a minor version fails with its newest release
        (">=1.23,<2", "1.23.0 1.24.4 1.25.1- 1.26.0-", ">=1.23,<1.25"),
        (">1.22,!=1.24.1,<=2", "1.23.0 1.24.4 1.25.1-", ">1.22,!=1.24.1,<1.25"),
        (">=1.23,<2", "1.23.0? 1.24.4 1.25.1?", ">=1.23,<1.26"),  # versions that cannot be installed here stay
        (">=1.23,<2", "1.23.0 1.24.4- 1.25.1?", ">=1.23,<1.24"),
        ("", "1.23.0 1.24.4", "<1.25"),
    ],
)
def test_a_range_is_narrowed_to_versions_that_passed(allowed: str, tried: str, expected: str | None) -> None:
    assert narrowed_range(SpecifierSet(allowed), versions(tried)) == expected


def test_without_a_version_that_passed_there_is_no_range() -> None:
    with pytest.raises(ConfigError, match="no version passed") as caught:
        narrowed_range(SpecifierSet(">=1.23"), versions("1.23.0- 1.24.1?"))
    assert caught.value.found == "1.23.0, 1.24.1"


def test_the_name_the_extras_and_the_marker_of_a_requirement_stay() -> None:
    text = "OnnxRuntime[x] >=1.23 ; python_version < '4'"
    assert narrowed_text(text, versions("1.23.0 1.24.4")) == "OnnxRuntime[x]>=1.23,<1.25 ; python_version < '4'"


def project(folder: Path, text: str = PROJECT) -> Path:
    (folder / "pyproject.toml").write_text(text)
    return folder


def tried_engine(*passed: str, wrong: tuple[str, ...] = ()) -> TriedEngine:
    rows = [MatrixRow("onnxruntime", Version(text), "passed", "net", "default", "forward") for text in passed]
    rows += [MatrixRow("onnxruntime", Version(text), "wrong number", "net", "default", "forward") for text in wrong]
    return TriedEngine(ENGINE, tuple(rows))


def test_the_file_changes_in_the_requirement_alone(tmp_path: Path) -> None:
    file = read_project_file(project(tmp_path), "Net", [ENGINE])
    (change,) = write_narrowed(file, [tried_engine("1.23.0", "1.25.1", wrong=("1.24.4",))])
    assert (change.before, change.after) == ("onnxruntime>=1.23,<2", "onnxruntime>=1.23,!=1.24.*,<1.26")
    written = (tmp_path / "pyproject.toml").read_text()
    assert written == PROJECT.replace("onnxruntime>=1.23,<2", change.after)


def test_the_requirement_of_an_extra_is_narrowed_there(tmp_path: Path) -> None:
    text = PROJECT.replace("  # the engine\n", "").replace('  "onnxruntime>=1.23,<2",   # a range\n', "")
    text = text.replace("[tool", '[project.optional-dependencies]\nfast = ["onnxruntime>=1.23,<2"] # why\n\n[tool')
    file = read_project_file(project(tmp_path, text), "net", [ENGINE])
    (change,) = write_narrowed(file, [tried_engine("1.23.0")])
    assert change.place == ("optional-dependencies", "fast")
    assert 'fast = ["onnxruntime>=1.23,<1.24"] # why' in (tmp_path / "pyproject.toml").read_text()


def test_a_range_of_passed_versions_leaves_the_file(tmp_path: Path) -> None:
    file = read_project_file(project(tmp_path, PROJECT.replace("<2", "<1.24")), "net", [ENGINE])
    before = (tmp_path / "pyproject.toml").stat()
    assert write_narrowed(file, [tried_engine("1.23.0")]) == []
    assert (tmp_path / "pyproject.toml").stat() == before


def test_a_file_that_changed_since_the_check_began_is_kept(tmp_path: Path) -> None:
    file = read_project_file(project(tmp_path), "net", [ENGINE])
    project(tmp_path, PROJECT + "# later\n")
    with pytest.raises(ConfigError, match="has changed since the check began"):
        write_narrowed(file, [tried_engine("1.23.0")])
    assert (tmp_path / "pyproject.toml").read_text().endswith("# later\n")
    (tmp_path / "pyproject.toml").unlink()
    with pytest.raises(ConfigError, match="has changed since the check began"):
        write_narrowed(file, [tried_engine("1.23.0")])


def refused(folder: Path, text: str, engine: Engine = ENGINE) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        read_project_file(project(folder, text), "net", [engine])
    return caught.value


def test_a_folder_without_a_project_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no project to write") as caught:
        read_project_file(tmp_path, "net", [ENGINE])
    assert caught.value.hint == "run this in the project's folder, or name that with `--root`"


def test_a_damaged_file_and_another_project_are_errors(tmp_path: Path) -> None:
    assert refused(tmp_path, "[project").what == "the project's file cannot be read"
    error = refused(tmp_path, PROJECT.replace('"net"', '"other"'))
    assert (error.what, error.found) == (
        "the wheel is not the wheel of this project",
        "a project `other`, and a wheel of `net`",
    )
    assert refused(tmp_path, "").found == "a project ``, and a wheel of `net`"


def test_a_requirement_from_elsewhere_is_refused_with_its_origin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from packaging.requirements import Requirement

    plain = PROJECT.replace('  "onnxruntime>=1.23,<2",   # a range\n', "")
    only_recipes = Engine("onnxruntime", SpecifierSet(">=1.23,<2"), RECIPES, (), ())
    monkeypatch.setattr(
        "hatch_lower.cli.matrix.write.own_requirements", lambda extras: [Requirement(each) for each in extras]
    )
    origins = {
        "the extra in `hatch-lower[onnxruntime]>=0.1`, from the metadata of hatch-lower": refused(
            tmp_path, plain.replace("hatch-lower>=0.1", "hatch-lower[onnxruntime]>=0.1")
        ),
        "`dependencies` is dynamic, and a metadata hook or another file has the list": refused(
            tmp_path, '[project]\nname = "net"\ndynamic = ["dependencies"]\n'
        ),
        "the build has added it (`runtime-requirements`), or the wheel was built from other settings": refused(
            tmp_path, plain
        ),
        "only the wheel's recipes have it": refused(tmp_path, plain, only_recipes),
    }
    for origin, error in origins.items():
        assert error.found == f"`onnxruntime>=1.23,<2`: {origin}"
        assert error.hint == ('let `[project] dependencies` contain "onnxruntime>=1.23,<2", and build the wheel again')


def test_a_form_that_cannot_be_edited_is_refused_with_the_lines_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tomlkit

    file = read_project_file(project(tmp_path), "net", [ENGINE])
    monkeypatch.setattr(tomlkit, "dumps", lambda document: PROJECT)
    with pytest.raises(ConfigError, match="a form that cannot be edited") as caught:
        write_narrowed(file, [tried_engine("1.23.0")])
    assert caught.value.hint == 'write these requirements:\n"onnxruntime>=1.23,<1.24"'
    assert tomllib.loads((tmp_path / "pyproject.toml").read_text()) == tomllib.loads(PROJECT)
