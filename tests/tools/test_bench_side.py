"""What the two sides of a benchmark can be, and what they have in common. Nothing is run."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.lowered import install
from support.sides import PLAIN, Recipes, rewrite_schema, write_models, write_wheel

from hatch_lower.cli.arguments import target_of
from hatch_lower.cli.measure.side import comparable, open_side
from hatch_lower.cli.measure.temporary import work_folder
from hatch_lower.driver.signals import ending_on_signals, uninterrupted
from hatch_lower.errors import ProgramError

Method = tuple[str, str, str]
WHEEL = "digits-1.0-py3-none-any.whl"


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the folder for temporary files, which is empty after each test."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == []


def test_a_wheel_is_unpacked_while_it_is_looked_at(tmp_path: Path, temporary: Path) -> None:
    wheel = write_wheel(tmp_path / WHEEL, {"digits": PLAIN})
    with open_side(wheel) as side:
        assert (side.title, side.wheel, side.source, side.build) == (WHEEL, wheel, None, {})
        assert [each.place for each in side.contents] == [f"{WHEEL}: digits/_lowered"]
        folder = side.folders["digits"]
        assert (folder.path / "digits" / "default.json").is_file()
        assert folder.path.is_relative_to(temporary)
        assert not folder.installed


def test_a_wheel_goes_whatever_ends_the_block(tmp_path: Path, temporary: Path) -> None:
    wheel = write_wheel(tmp_path / WHEEL, {"digits": PLAIN})
    for error in (KeyboardInterrupt, SystemExit, ValueError):
        with pytest.raises(error), open_side(wheel):
            raise error
        assert list(temporary.iterdir()) == []


def test_a_folder_is_read_where_it_is(tmp_path: Path) -> None:
    write_models(tmp_path / "digits" / "_lowered", {"digits": PLAIN})
    write_models(tmp_path / "words" / "_lowered", {"words": PLAIN})
    (tmp_path / WHEEL).touch()  # what is unpacked here is meant, not the wheel beside it
    with open_side(tmp_path) as side:
        assert (side.title, side.wheel) == (str(tmp_path), None)
        assert {name: folder.path for name, folder in side.folders.items()} == {
            name: tmp_path / name / "_lowered" for name in ("digits", "words")
        }
    with open_side(tmp_path / "words" / "_lowered") as side:
        assert list(side.folders) == ["words"]


def test_an_installed_distribution_and_one_model_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site"
    write_models(site / "digits" / "_lowered", {"one": PLAIN, "two": PLAIN})
    points = {"hatch_lower.models": {"one": "digits:one", "two": "digits:two"}}
    install(site, "digits", points)
    monkeypatch.syspath_prepend(site)
    with open_side("digits") as side:
        assert side.title == "digits 1.0 (installed)"
        assert side.distributions == ("digits 1.0",)
        assert sorted(side.folders) == ["one", "two"]
        assert side.folders["one"].installed
        assert side.folders["one"].recorded is not None
    with open_side("digits:two") as side:
        assert list(side.folders) == ["two"]


def test_a_folder_of_wheels_means_the_newest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("digits-1.9", "digits-1.10", "digits-1.2", "nonsense"):
        os.utime(write_wheel(tmp_path / f"{name}-py3-none-any.whl", {"digits": PLAIN}), (100, 100))
    # of equal times the greatest version
    assert target_of(f"{tmp_path}/") == tmp_path / "digits-1.10-py3-none-any.whl"
    assert "digits-1.10-py3-none-any.whl is the newest of 3 wheels\n" in capsys.readouterr().err
    os.utime(tmp_path / "digits-1.2-py3-none-any.whl", (100, 101))
    assert target_of(f"{tmp_path}/") == tmp_path / "digits-1.2-py3-none-any.whl"


def test_a_folder_of_wheel_variants_means_the_wheel_without_a_label(tmp_path: Path) -> None:
    for time, label in enumerate(("", "-null", "-x86_64_v4")):
        os.utime(write_wheel(tmp_path / f"digits-1.0-py3-none-any{label}.whl", {"digits": PLAIN}), (time, time))
    assert target_of(f"{tmp_path}/") == tmp_path / "digits-1.0-py3-none-any.whl"
    (tmp_path / "digits-1.0-py3-none-any.whl").unlink()
    assert target_of(f"{tmp_path}/") == tmp_path / "digits-1.0-py3-none-any-x86_64_v4.whl"


def test_the_only_wheel_of_a_folder_is_taken_silently(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wheel = write_wheel(tmp_path / "dist" / WHEEL, {"digits": PLAIN})
    assert target_of(f"{tmp_path}/dist/") == wheel
    assert capsys.readouterr().err == ""
    write_models(tmp_path / "dist" / "_lowered", {"digits": PLAIN})
    assert target_of(f"{tmp_path}/dist/") == tmp_path / "dist"  # lowered models of its own are meant


def test_a_project_with_a_wheel_beside_its_file_is_a_project(tmp_path: Path) -> None:
    write_wheel(tmp_path / WHEEL, {"digits": PLAIN})
    (tmp_path / "pyproject.toml").touch()
    assert target_of(f"{tmp_path}/") == tmp_path


def test_two_models_of_one_name(tmp_path: Path) -> None:
    for version in ("new", "old"):
        write_models(tmp_path / version / "digits" / "_lowered", {"digits": PLAIN})
    with pytest.raises(ProgramError) as caught, open_side(tmp_path):
        pass
    places = [tmp_path / version / "digits" / "_lowered" for version in ("new", "old")]
    assert str(caught.value) == (
        "two models have the same name\n"
        f"  where: {tmp_path}\n"
        f"  found: `digits` in {places[0]} and in {places[1]}\n"
        "  to do: name a folder of a single model, or its wheel"
    )


def test_places_without_lowered_models(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match="there are no lowered models here"), open_side(tmp_path):
        pass
    with pytest.raises(ProgramError, match="the wheel cannot be read") as caught, open_side(tmp_path / WHEEL):
        pass
    assert "No such file" in caught.value.found
    with pytest.raises(ProgramError, match="there is no installed model `nothing-here`"), open_side("nothing-here"):
        pass


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    folder = write_models(tmp_path / "_lowered", {"digits": PLAIN})
    rewrite_schema(folder, 99)
    with pytest.raises(ProgramError) as caught, open_side(folder):
        pass
    assert "newer" in str(caught.value)
    assert "99" in caught.value.found


def common(tmp_path: Path, first: dict[str, Recipes], second: dict[str, Recipes]) -> tuple[list[Method], list[str]]:
    """Return what is comparable of two folders with these models."""
    folders = [write_models(tmp_path / name, models) for name, models in (("a", first), ("b", second))]
    with open_side(folders[0]) as one, open_side(folders[1]) as other:
        methods, lines = comparable(one, other)
        return [(each.model, each.recipe, each.method) for each in methods], lines


def test_equal_sides_have_everything_in_common(tmp_path: Path) -> None:
    models = {"digits": {"default": {"forward": 4, "embed": 2}, "portable": {"forward": 4}}, "words": PLAIN}
    methods = [
        ("digits", "default", "embed"),
        ("digits", "default", "forward"),
        ("digits", "portable", "forward"),
        ("words", "default", "forward"),
    ]
    assert common(tmp_path, models, models) == (methods, [])


def test_what_only_one_side_has_is_said_once(tmp_path: Path) -> None:
    first = {"digits": {"default": {"forward": 4, "embed": 2}, "portable": {"forward": 4}}, "words": PLAIN}
    second = {"digits": {"default": {"forward": 4, "encode": 2}, "fast": {"forward": 4}}, "faces": PLAIN}
    assert common(tmp_path, first, second) == (
        [("digits", "default", "forward")],
        [
            "model `words` is only in A",
            "model `faces` is only in B",
            "model `digits`: recipe `portable` is only in A",
            "model `digits`: recipe `fast` is only in B",
            "model `digits`, recipe `default`: method `embed` is only in A",
            "model `digits`, recipe `default`: method `encode` is only in B",
        ],
    )


def test_a_method_with_another_signature_is_not_compared(tmp_path: Path) -> None:
    first, second = ({"digits": {"default": {"forward": 4, "embed": size}}} for size in (2, 3))
    assert common(tmp_path, first, second) == (
        [("digits", "default", "forward")],
        [
            "model `digits`, recipe `default`: method `embed` is "
            "`embed(x0: float32[2])` in A, `embed(x0: float32[3])` in B"
        ],
    )


def test_sides_with_nothing_in_common(tmp_path: Path) -> None:
    with pytest.raises(ProgramError) as caught:
        common(tmp_path, {"digits": PLAIN}, {"words": PLAIN})
    assert str(caught.value) == (
        "A and B have no method in common\n"
        f"  where: {tmp_path / 'a'}, and {tmp_path / 'b'}\n"
        "  found: model `digits` is only in A\n"
        "    model `words` is only in B\n"
        "  to do: compare two versions of the same models"
    )


def test_a_folder_that_a_killed_benchmark_left_goes_and_one_in_use_stays(temporary: Path) -> None:
    abandoned = temporary / "hatch-lower-bench-abandoned"
    (abandoned / "deep").mkdir(parents=True)
    with work_folder() as outer, work_folder() as inner:
        assert not abandoned.exists()
        assert outer.is_dir()
        assert inner.is_dir()


def test_sigterm_ends_a_block_as_an_exception_does(temporary: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as caught, work_folder(), work_folder():
        os.kill(os.getpid(), signal.SIGTERM)
    assert caught.value.code == 128 + signal.SIGTERM
    assert list(temporary.iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) is before


def test_who_handles_sigterm_keeps_it() -> None:
    before = signal.signal(signal.SIGTERM, lambda number, frame: None)
    try:
        with ending_on_signals():
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_what_is_undisturbed_is_not_interrupted() -> None:
    with uninterrupted():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
