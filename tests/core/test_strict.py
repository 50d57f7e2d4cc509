"""`strict = true`: what may be read, and how a read that may not is reported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hatch_lower.config.settings import ModelSettings, Recipe, Settings
from hatch_lower.driver.inputs.strict import holds_project, is_available, undeclared_read
from hatch_lower.driver.protocol import ChildRequest
from hatch_lower.format.codec import write_record

CODE = """
import json, sys
from pathlib import Path
from hatch_lower.format.codec import read_record
from hatch_lower.driver.protocol import ChildRequest
from hatch_lower.driver.inputs.strict import refuse_undeclared
request = read_record(ChildRequest, Path(sys.argv[1]))
refuse_undeclared(request, Path(sys.argv[2]))
root = request.settings.root
def can_read(path):
    try:
        path.read_bytes()
    except PermissionError:
        return False
    return True
read = {str(path.relative_to(root)): can_read(path) for path in sorted(root.rglob("*")) if path.is_file()}
sys.path.insert(0, str(root / "src"))
import digits.model
import xml.dom  # of the standard library, and not imported yet
print(json.dumps({**read, "work": can_read(request.work / "made"), "elsewhere": can_read(root.parent / "elsewhere")}))
"""


def make_request(folder: Path, *inputs: str) -> ChildRequest:
    root = folder / "project"
    declared = "data/samples.safetensors"  # by `verify-inputs`
    code = ("src/digits/__init__.py", "src/digits/model.py")
    for name in (*code, "src/digits/w.bin", "data/a/b.bin", "data/c.bin", declared):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("")
    (folder / "work").mkdir()
    (folder / "work" / "made").write_text("")
    (folder / "elsewhere").write_text("")
    models = (ModelSettings("digits", "digits.model:export", "digits", ("default",), verify_inputs=declared),)
    settings = Settings(root, "digits", "1", models, (Recipe("default"),), inputs=inputs, strict=True)
    roots = (root / "src",)
    return ChildRequest(settings, "digits", folder / "work", "lower", roots, roots, (), 3, work=folder / "work")


@pytest.mark.skipif(not is_available(), reason="this kernel has no Landlock")
@pytest.mark.parametrize(
    ("inputs", "readable"),
    [((), set()), (("src/digits/w.bin",), {"src/digits/w.bin"}), (("data/*",), {"data/a/b.bin", "data/c.bin"})],
)
def test_what_is_declared_can_be_read(tmp_path: Path, inputs: tuple[str, ...], readable: set[str]) -> None:
    write_record(tmp_path / "request.json", make_request(tmp_path, *inputs))
    command = [sys.executable, "-c", CODE, str(tmp_path / "request.json"), str(tmp_path / "cache")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = {name for name, can in json.loads(done.stdout).items() if can}
    samples = "data/samples.safetensors"
    assert found == {"src/digits/__init__.py", "src/digits/model.py", "work", samples, *readable}


def test_an_undeclared_file_of_the_project_is_named(tmp_path: Path) -> None:
    request = make_request(tmp_path, "data/*")
    error = ValueError("no weights")
    error.__cause__ = PermissionError(13, "Permission denied", str(request.settings.root / "src/digits/w.bin"))
    assert str(undeclared_read(request, error)) == (
        "the export read a file that is not declared, and `strict` is set\n"
        "  where: model `digits`\n"
        f"  found: {request.settings.root}/src/digits/w.bin\n"
        "  to do: declare it in the table of the build hook `lower`:"
        ' inputs = ["data/*", "src/digits/w.bin"]'
    )


def test_a_file_elsewhere_cannot_be_declared(tmp_path: Path) -> None:
    error = PermissionError(13, "Permission denied", str(tmp_path / "elsewhere"))
    found = undeclared_read(make_request(tmp_path), error)
    assert found is not None
    assert found.hint == "let the export read files of the project only, or set `strict = false`"


def test_other_errors_are_left_alone(tmp_path: Path) -> None:
    assert undeclared_read(make_request(tmp_path), ValueError("no weights")) is None


@pytest.mark.parametrize(
    ("folder", "held"),
    [
        ("/srv", True),
        ("/srv/project", True),
        ("/srv/project/src", True),
        ("/srv/project/.venv/lib/python3.11/site-packages", False),
        ("/usr/lib/python3", False),
    ],
)
def test_folders_that_would_make_the_project_readable(folder: str, held: bool) -> None:
    assert holds_project(Path(folder), (Path("/srv/project"),)) == held
