"""`hatch-lower reproduce`: what is other in the second build, what it leaves alone, and how it fails.

The projects here have no models: a build hook of their own writes what would leak into a wheel.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from support.processes import wait_for
from support.scenarios import only, tree
from support.venv import child_environment, run

from hatch_lower.cli.entry import main
from hatch_lower.driver.reproduce.rebuild import copy_tree, unpack_sdist
from hatch_lower.errors import ConfigError, PackageError

PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "plain"
version = "1.0"

[tool.hatch.build.targets.wheel]
artifacts = ["plain/made.txt"]

[tool.hatch.build.hooks.custom]
"""
HOOK = """\
import json, os, site, tempfile, time
from pathlib import Path
from hatchling.builders.hooks.plugin.interface import BuildHookInterface


def umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


class Hook(BuildHookInterface):
    def initialize(self, version, build_data):
        Path(self.root, "plain", "made.txt").write_text(str({expression}))
"""


def make_project(folder: Path, expression: str = "1") -> Path:
    """Write a project whose wheel has the value of an expression in it."""
    root = folder / "project"
    (root / "plain").mkdir(parents=True)
    (root / "pyproject.toml").write_text(PROJECT)
    (root / "hatch_build.py").write_text(HOOK.format(expression=expression))
    (root / "plain" / "__init__.py").write_text('"""Nothing."""\n')
    return root


def build(root: Path, target: str = "wheel", environment: Mapping[str, str] | None = None) -> Path:
    """Build into the project's `dist` and return what was made."""
    run([sys.executable, "-m", "hatchling", "build", "-t", target], cwd=root, environment=environment).check()
    return only(root / "dist", "*.whl" if target == "wheel" else "*.tar.gz")


def reproduce(wheel: Path, *arguments: str | Path) -> Result:
    """Run the command."""
    return CliRunner().invoke(main, ["reproduce", str(wheel), *map(str, arguments)])


def test_a_wheel_that_comes_out_the_same_is_one_line(tmp_path: Path) -> None:
    root = make_project(tmp_path)
    wheel = build(root)
    result = reproduce(wheel, "--project", root)
    assert result.exit_code == 0, result.output
    (line,) = result.stdout.splitlines()
    assert line == f"plain-1.0-py2.py3-none-any.whl is reproducible: sha256 {tree(root)['dist/' + wheel.name]}"
    assert result.stderr == f"building {wheel.name} again from {root}\n"


def test_the_project_and_its_wheels_stay_as_they_are(tmp_path: Path) -> None:
    root = make_project(tmp_path, "os.getcwd()")
    wheel = build(root)
    (root / "plain" / "made.txt").unlink()  # which the other build makes again, in its copy
    before, cores = tree(root), os.sched_getaffinity(0)
    assert reproduce(wheel, "--project", root).exit_code == 1
    assert tree(root) == before
    assert os.sched_getaffinity(0) == cores


def test_what_is_other_in_the_second_build(tmp_path: Path) -> None:
    expressions = {
        "folder": "os.getcwd()",
        "home": "os.path.expanduser('~')",
        "temporary": "tempfile.gettempdir()",
        "cache folder": "os.environ['HATCH_LOWER_CACHE_DIR']",
        "cache": "os.environ['HATCH_LOWER_CACHE']",
        "shared cache": "os.environ['HATCH_LOWER_REMOTE_CACHE']",
        "locale": "os.environ['LC_ALL']",
        "set": "list({'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'})",
        "threads": "os.environ['OMP_NUM_THREADS']",
        "time zone": "time.strftime('%H:%M', time.localtime(0))",
        "umask": "umask()",
        "user base": "os.environ.get('PYTHONUSERBASE', site.getuserbase())",
    }
    if len(os.sched_getaffinity(0)) > 1:
        expressions["cores"] = "len(os.sched_getaffinity(0))"
    environment = {
        "HATCH_LOWER_CACHE": "on",
        "HATCH_LOWER_CACHE_DIR": str(tmp_path / "cache"),
        "HATCH_LOWER_REMOTE_CACHE": "",
        "LC_ALL": "C.UTF-8",
        "OMP_NUM_THREADS": "2",
        "PYTHONHASHSEED": "1",
        "TZ": "UTC",
    }
    values = ", ".join(f"{name!r}: {expression}" for name, expression in expressions.items())
    root = make_project(tmp_path, f"json.dumps({{{values}}})")
    wheel = build(root, environment=environment)
    result = reproduce(wheel, "--project", root, "--json")
    assert result.exit_code == 1, result.output
    found = {each["place"].removeprefix("/"): each["reason"] for each in json.loads(result.stdout)["differences"]}
    assert set(found) == set(expressions) - {"user base"}  # packages there are tools of the build
    for name, variable in {"home": "HOME", "temporary": "TMPDIR", "cache folder": "HATCH_LOWER_CACHE_DIR"}.items():
        assert found[name].startswith(f"the rebuild's {variable} is in it")
    assert found["folder"].startswith("the rebuild's source folder is in it")
    assert "which follows the hash seed" in found["set"]


def test_variables_get_other_values_than_the_callers_whatever_these_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_project(tmp_path)
    wheel = build(root)
    names = ("TZ", "LC_ALL", "PYTHONHASHSEED", "OMP_NUM_THREADS")
    varied = []
    for _ in range(2):
        varied.append(json.loads(reproduce(wheel, "--project", root, "--json").stdout)["varied"])
        for name in names:
            monkeypatch.setenv(name, varied[-1][name])
    assert [name for name in names if varied[0][name] == varied[1][name]] == []


def test_the_date_that_the_user_has_set_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_project(tmp_path)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    wheel = build(root)
    assert reproduce(wheel, "--project", root).exit_code == 0
    monkeypatch.delenv("SOURCE_DATE_EPOCH")
    result = reproduce(wheel, "--project", root)
    assert result.exit_code == 1
    assert "2023-11-14 22:13:20" in result.stdout
    assert "SOURCE_DATE_EPOCH" in result.stdout


def test_json_has_both_digests_what_was_varied_and_every_difference(tmp_path: Path) -> None:
    root = make_project(tmp_path, "umask()")
    wheel = build(root)
    report = json.loads(reproduce(wheel, "--project", root, "--json").stdout)
    assert report["equal"] is False
    assert report["wheel"] == report["rebuilt"] == wheel.name
    assert report["sha256"] == tree(root)[f"dist/{wheel.name}"] != report["rebuilt_sha256"]
    assert {"TZ", "HOME", "umask", "source folder"} <= set(report["varied"])
    (found,) = report["differences"]
    assert found["member"] == "plain/made.txt"
    assert found["first"].startswith("2 bytes, sha256 ")


def test_text_for_people(tmp_path: Path) -> None:
    root = make_project(tmp_path, "os.getcwd()")
    wheel = build(root)
    lines = reproduce(wheel, "--project", root).stdout.splitlines()
    assert lines[0] == f"{wheel.name} is not reproducible: 1 file differs"
    assert lines[1] == "  in the wheel (-) and as rebuilt (+)"
    assert lines[3] == "plain/made.txt"
    assert lines[-1].startswith("  likely reason: the rebuild's source folder is in it")


def test_the_rebuilt_wheel_and_its_log_are_kept_where_asked(tmp_path: Path) -> None:
    root = make_project(tmp_path, "os.getcwd()")
    wheel = build(root)
    before = wheel.read_bytes()
    reproduce(wheel, "--project", root, "--keep", tmp_path / "new" / "kept")
    assert sorted(path.name for path in (tmp_path / "new" / "kept").iterdir()) == ["build.log", wheel.name]
    assert (tmp_path / "new" / "kept" / wheel.name).read_bytes() != before
    result = reproduce(wheel, "--project", root, "--keep", wheel.parent)
    assert result.exit_code == 1
    assert "the rebuilt wheel would overwrite the original" in result.stderr
    assert wheel.read_bytes() == before


def test_diffoscope_speaks_where_it_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "diffoscope").write_text('#!/bin/sh\necho "$3 $4" > "$2"\nexit 1\n')
    (programs / "diffoscope").chmod(0o755)
    root = make_project(tmp_path, "os.getcwd()")
    wheel = build(root)
    monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)
    assert reproduce(wheel, "--project", root, "--keep", tmp_path / "kept").exit_code == 1
    assert (tmp_path / "kept" / "diffoscope.txt").read_text() == f"{wheel} {tmp_path / 'kept' / wheel.name}\n"


def test_a_build_that_fails_says_why(tmp_path: Path) -> None:
    root = make_project(tmp_path)
    wheel = build(root)
    hook = root / "hatch_build.py"
    hook.write_text(HOOK.format(expression="open('/nowhere/weights.bin')"))
    result = reproduce(wheel, "--project", root)
    assert result.exit_code == 1
    assert "error: the wheel could not be built again" in result.stderr
    assert "No such file or directory: '/nowhere/weights.bin'" in result.stderr
    assert "`[build-system] requires`" in result.stderr


def test_a_folder_without_a_project(tmp_path: Path) -> None:
    root = make_project(tmp_path)
    wheel = build(root)
    result = reproduce(wheel, "--project", tmp_path)
    assert result.exit_code == 1
    assert "there is no project" in result.stderr
    assert "`--project`" in result.stderr
    assert reproduce(wheel, "--project", root, "--sdist", wheel).exit_code == 2


def test_from_a_source_distribution(tmp_path: Path) -> None:
    root = make_project(tmp_path)
    sdist, wheel = build(root, "sdist"), build(root)
    shutil.rmtree(root / "plain")  # the project is not looked at
    result = reproduce(wheel, "--sdist", sdist)
    assert result.exit_code == 0, result.output


def write_archive(path: Path, members: Mapping[str, str]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, text in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    return path


@pytest.mark.parametrize("name", ["../outside.txt", "/tmp/hatch-lower-outside.txt", "a/../../outside.txt"])
def test_a_source_distribution_that_leaves_its_folder_is_refused(name: str, tmp_path: Path) -> None:
    target = tmp_path / "work" / "target"
    archive = write_archive(tmp_path / "a.tar.gz", {"a/pyproject.toml": "", name: "x"})
    if name.startswith("/"):  # is taken as relative
        unpack_sdist(archive, target)
        assert (target / name[1:]).exists()
    else:
        with pytest.raises(PackageError, match="cannot be unpacked") as caught:
            unpack_sdist(archive, target)
        assert "OutsideDestination" in caught.value.found
    assert not [path for path in tmp_path.rglob("outside.txt") if not path.is_relative_to(target)]
    assert not Path("/tmp/hatch-lower-outside.txt").exists()


def test_archives_that_are_no_source_distribution(tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "a.tar.gz", {"a/setup.py": ""})
    with pytest.raises(PackageError, match="not a source distribution of a project") as caught:
        unpack_sdist(archive, tmp_path / "one")
    assert caught.value.found == "0 folders with a `pyproject.toml`"
    archive.write_bytes(archive.read_bytes()[:-20])
    for position, data in enumerate((archive.read_bytes(), b"", b"PK\3\4")):
        archive.write_bytes(data)
        with pytest.raises(PackageError, match="the source distribution cannot be unpacked"):
            unpack_sdist(archive, tmp_path / f"damaged-{position}")


def test_a_copy_has_the_sources_and_gits_data_and_no_caches(tmp_path: Path) -> None:
    root = make_project(tmp_path)
    kept = ["build/__init__.py", "plain/dist/x", "plain/build/x", ".git/HEAD", "weights/w.bin", "data/.hidden"]
    left = ["dist/x.whl", "plain/__pycache__/x.pyc", ".venv/bin/python", "env/pyvenv.cfg", "c/CACHEDIR.TAG", "c/x"]
    for name in [*kept, *left, ".ruff_cache/x"]:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    (root / "empty").mkdir()
    os.mkfifo(root / "pipe")
    copy_tree(root, tmp_path / "copy")
    assert tree(tmp_path / "copy") == {
        name: digest
        for name, digest in tree(root).items()
        if name in kept or name.startswith(("plain/__init", "pyp", "hatch"))
    }
    assert (tmp_path / "copy" / "empty").is_dir()
    shutil.rmtree(root / "build")
    (root / "build").mkdir()
    (root / "build" / "x").touch()
    copy_tree(root, tmp_path / "another")
    assert not (tmp_path / "another" / "build").exists()


def test_what_writes_to_a_copy_does_not_write_to_the_original(tmp_path: Path) -> None:
    root = make_project(tmp_path)
    (root / "inside").symlink_to("plain/__init__.py")
    (root / "absolute").symlink_to(root / "plain" / "__init__.py")
    (root / "folder").symlink_to(root / "plain")
    (tmp_path / "weights.bin").write_text("w")
    (root / "outside").symlink_to("../weights.bin")
    (root / "lost").symlink_to("nowhere")
    copy = tmp_path / "elsewhere" / "deeper" / "copy"
    copy_tree(root, copy)
    original = (root / "plain" / "__init__.py").read_text()
    for name in ("inside", "absolute", "folder/__init__.py", "plain/__init__.py"):
        with (copy / name).open("a") as file:
            file.write("changed")
    assert (root / "plain" / "__init__.py").read_text() == original
    assert (copy / "plain" / "__init__.py").read_text() == original + "changed" * 4
    assert (copy / "outside").read_text() == "w"
    assert os.readlink(copy / "lost") == "nowhere"


def test_a_copy_can_be_run_where_the_original_can_whatever_its_other_permissions(tmp_path: Path) -> None:
    root = make_project(tmp_path)
    (root / "run").touch()
    (root / "run").chmod(0o700)
    (root / "plain" / "__init__.py").chmod(0o444)
    before = os.umask(0o022)
    try:
        copy_tree(root, tmp_path / "copy")
    finally:
        os.umask(before)
    assert (tmp_path / "copy" / "run").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "copy" / "plain" / "__init__.py").stat().st_mode & 0o777 == 0o644


def test_sources_that_cannot_be_copied(tmp_path: Path) -> None:
    root = make_project(tmp_path)
    (tmp_path / "copy").mkdir()
    with pytest.raises(PackageError, match="the sources cannot be copied") as caught:
        copy_tree(root, tmp_path / "copy")
    assert "TMPDIR" in caught.value.hint
    with pytest.raises(ConfigError, match="there is no project"):
        copy_tree(tmp_path / "nowhere", tmp_path / "new")


def test_an_interruption_leaves_nothing(tmp_path: Path) -> None:
    root = make_project(tmp_path)
    wheel = build(root)
    (root / "hatch_build.py").write_text(
        HOOK.format(expression=f"(open({str(tmp_path / 'on')!r}, 'w'), time.sleep(99))")
    )
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", "from hatch_lower.cli.entry import main; main()", "reproduce", wheel, "--project", root],
        env=child_environment({"TMPDIR": str(temporary)}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    wait_for((tmp_path / "on").exists, "the hook slept", process)
    assert list(temporary.iterdir())
    os.killpg(process.pid, signal.SIGINT)
    output = process.communicate()[0]
    assert process.returncode == 128 + signal.SIGINT, output
    assert "hatch-lower: interrupted" in output
    assert list(temporary.iterdir()) == []
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
