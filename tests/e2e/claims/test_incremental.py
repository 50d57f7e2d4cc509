"""It is incremental: what has not changed is not done again, and what has changed is.

An interpreter that starts writes what it runs into a file: so it is seen whether a build exported.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from support.scenarios import Project, copy_project, only, sha256, tree
from support.shared import Shared

from hatch_lower.driver.inputs.strict import is_available

pytestmark = [pytest.mark.isolated, pytest.mark.slow]

FROZEN = {"HATCH_LOWER_CACHE": "frozen"}
WITNESS = """
import atexit, sys
def write(word):
    with open({log!r}, "a") as file:
        file.write(word + "\\n")
write("worker" if "hatch_lower.driver.worker" in sys.orig_argv else "other")
heavy = ("torch", "hatch_lower.driver.process", "hatch_lower.format.manifest", "elftools", "concurrent.futures")
atexit.register(lambda: [write(name) for name in heavy if name in sys.modules])
"""
READING = """
from pathlib import Path
from safetensors.torch import load_file
SCALE = load_file(Path(__file__).with_name("scale.safetensors"))["scale"]
"""


@dataclass(frozen=True, slots=True)
class Witnessed:
    """Builds of a project of which it is known what they started."""

    project: Project
    witness: Path
    log: Path

    def wheel(self, environment: Mapping[str, str] | None = None) -> str:
        """Build and return the wheel's digest."""
        self.log.unlink(missing_ok=True)
        return sha256(self.project.wheel({"PYTHONPATH": str(self.witness), **(environment or {})}))

    def started(self) -> list[str]:
        """Return what the last build started, and what it imported that a build of what is known does without."""
        return self.log.read_text().split()


def watch(project: Project, folder: Path) -> Witnessed:
    """Return a project that is built with a witness, which lies in a folder."""
    witness = folder / "witness"
    witness.mkdir()
    (witness / "sitecustomize.py").write_text(WITNESS.format(log=str(folder / "started")))
    return Witnessed(project, witness, folder / "started")


@pytest.fixture
def tiny(project: Callable[[str], Project], tmp_path: Path) -> Witnessed:
    """The scenario `tiny`, with an empty cache."""
    return watch(project("tiny"), tmp_path)


@pytest.fixture
def known_tiny(known: Callable[[str], Project], tmp_path: Path) -> Witnessed:
    """The scenario `tiny`, which was built elsewhere with this cache, and then here."""
    scenario = known("tiny")
    scenario.wheel()
    return watch(scenario, tmp_path)


KNOWN = ["other"]


def test_a_build_of_what_is_known_starts_nothing_and_imports_no_torch(
    known_tiny: Witnessed, built: Callable[[str], Path]
) -> None:
    tiny, first = known_tiny, sha256(built("tiny"))
    made = tree(tiny.project.cache)
    assert tiny.wheel() == first
    assert tiny.started() == KNOWN
    assert tiny.wheel(FROZEN) == first
    assert tiny.started() == KNOWN
    assert set(tree(tiny.project.cache)) == set(made), "nothing piles up"


@pytest.mark.parametrize("mode", ["refresh", "off"])
def test_a_build_that_is_told_to_exports_what_is_known(
    known_tiny: Witnessed, built: Callable[[str], Path], mode: str
) -> None:
    assert known_tiny.wheel({"HATCH_LOWER_CACHE": mode}) == sha256(built("tiny"))
    assert "worker" in known_tiny.started()


def test_what_no_export_reads_is_no_change(known_tiny: Witnessed) -> None:
    tiny = known_tiny
    root = tiny.project.root
    (root / "README.md").write_text("# Tiny\n")
    (root / "tiny" / "notes.md").write_text("beside the module\n")
    os.utime(root / "tiny" / "model.py", (1_000_000_000, 1_000_000_000))
    tiny.project.edit("pyproject.toml", 'name = "tiny"\nversion = "1.0"', 'version = "1.0"\nname = "tiny"')
    tiny.wheel()
    assert tiny.started() == KNOWN


def test_a_comment_costs_one_export_and_nothing_else(known_tiny: Witnessed) -> None:
    tiny = known_tiny
    first = tiny.wheel()
    before = (tiny.project.root / "tiny" / "model.py").read_text()
    tiny.project.edit("tiny/model.py", "class Tiny(", "# A comment that moves every line below it.\nclass Tiny(")
    moved = tiny.wheel()
    assert "worker" in tiny.started()
    assert moved != first, "the debug map names the new lines"
    assert tiny.wheel() == moved
    assert tiny.started() == KNOWN
    (tiny.project.root / "tiny" / "model.py").write_text(before)
    assert tiny.wheel() == first, "both states are known"
    assert tiny.started() == KNOWN


def test_a_checkout_elsewhere_by_another_user_is_known(known_tiny: Witnessed, tmp_path: Path) -> None:
    tiny = known_tiny
    first = tiny.wheel()
    elsewhere = tmp_path / "another place" / "checkout"
    shutil.copytree(tiny.project.root, elsewhere, copy_function=shutil.copyfile)
    for path in elsewhere.rglob("*"):
        path.chmod(0o777 if path.is_dir() else 0o666)
    (tmp_path / "home").mkdir()
    moved = replace(tiny, project=replace(tiny.project, root=elsewhere))
    assert moved.wheel({"HOME": str(tmp_path / "home"), "USER": "another"}) == first
    # the history of the new folder is written, which takes some imports, once
    assert not {"worker", "torch"} & set(moved.started())
    assert moved.wheel({"HOME": str(tmp_path / "home"), "USER": "another"}) == first
    assert moved.started() == KNOWN


@pytest.fixture
def reading(shared: Shared) -> Project:
    """The scenario `tiny` with weights and variables that its export reads, built once in the run."""
    folder = shared.once("reading", build_reading)
    return Project(folder / "tiny", folder / "dist", folder / "cache")


def build_reading(folder: Path) -> None:
    import torch
    from safetensors.torch import save_file

    project = copy_project("tiny", folder)
    save_file({"scale": torch.ones(3)}, project.root / "tiny" / "scale.safetensors")
    project.edit("tiny/model.py", "import torch\n", f"import os\nimport torch\n{READING}\nos.getenv('TINY_SIZE')\n")
    project.edit("tiny/model.py", "torch.relu(x)", "torch.relu(x) * SCALE")
    project.edit("pyproject.toml", 'backends = ["null"]', 'backends = ["null"]\npass-env = ["TINY_SIZE"]')
    project.wheel({"TINY_NAME": "a"})


@pytest.mark.parametrize(
    ("what", "noticed"),
    [
        ("weights", True),
        ("touched weights", False),
        pytest.param("shadowing module", True, marks=pytest.mark.long),  # as `test_mutations` sees by look-ups
        pytest.param("setting", True, marks=pytest.mark.long),
        pytest.param("variable", True, marks=pytest.mark.long),
        ("variable not read", False),
    ],
)
def test_a_change_is_noticed(reading: Project, tmp_path: Path, what: str, noticed: bool) -> None:
    import torch
    from safetensors.torch import save_file

    root, cache = tmp_path / "tiny", tmp_path / "cache"
    shutil.copytree(reading.root, root)
    shutil.copytree(reading.cache, cache)
    tiny = watch(Project(root, tmp_path / "dist", cache), tmp_path)
    environment = {"TINY_NAME": "a"}
    weights = root / "tiny" / "scale.safetensors"
    if what == "weights":
        save_file({"scale": torch.full((3,), 2.0)}, weights)
    elif what == "touched weights":
        os.utime(weights)
    elif what == "shadowing module":
        (root / "safetensors.py").write_text("from json import *\n")
    elif what == "setting":
        tiny.project.edit("pyproject.toml", "verify = false ", "verify = false\nseed = 5 ")
    elif what == "variable":
        environment["TINY_SIZE"] = "3"
    else:
        environment["TINY_NAME"] = "b"
    done = tiny.project.build(environment={"PYTHONPATH": str(tiny.witness), **environment})
    assert ("worker" in tiny.started()[1:]) == noticed, done.output


def test_a_subprocess_that_cannot_be_watched_and_a_clock_that_was_read_are_said(tiny: Witnessed) -> None:
    code = "import subprocess, time\nimport torch\nsubprocess.run(['true'], env={})\nSTARTED = time.time()\n"
    tiny.project.edit("tiny/model.py", "import torch\n", code)
    for _ in range(2):
        done = tiny.project.build(environment={"PYTHONPATH": str(tiny.witness)}).check()
        said = [line for line in done.stderr.splitlines() if "not reusable without an export" in line]
        assert ["/true" in line for line in said] == [True]
        (said,) = [line for line in done.stderr.splitlines() if "stay until another input changes" in line]
        assert said.endswith("tiny/model.py:8 time.time"), said
        assert tiny.log.read_text().split().count("worker") > 0
        tiny.log.unlink()


def test_undeclared_inputs_are_refused_where_that_is_asked_for(tiny: Witnessed) -> None:
    import torch
    from safetensors.torch import save_file

    save_file({"scale": torch.ones(3)}, tiny.project.root / "tiny" / "scale.safetensors")
    tiny.project.edit("tiny/model.py", "import torch\n", f"import torch\n{READING}")
    tiny.project.edit("tiny/model.py", "torch.relu(x)", "torch.relu(x) * SCALE")
    tiny.project.edit("pyproject.toml", 'backends = ["null"]', 'backends = ["null"]\nstrict = true')
    done = tiny.project.build()
    if "undeclared reads cannot be refused here" in done.stderr:
        pytest.skip("this kernel has no Landlock")
    assert done.status != 0
    assert "the export read a file that is not declared, and `strict` is set" in done.stderr
    assert 'inputs = ["tiny/scale.safetensors"]' in done.stderr
    declared = 'strict = true\ninputs = ["tiny/scale.safetensors"]'
    tiny.project.edit("pyproject.toml", "strict = true", declared)
    first = tiny.wheel()
    assert tiny.wheel() == first
    assert tiny.started() == KNOWN


SAMPLES = """
from pathlib import Path
import torch
def samples(method):
    yield (torch.full((2, 3), float(Path("number.txt").read_text())),)
"""


@pytest.mark.parametrize(
    ("source", "settings"),
    [
        pytest.param("samples.safetensors", "strict = true", marks=pytest.mark.long),
        ("tiny.data:samples", 'inputs = ["number.txt"]\nstrict = true'),
    ],
)
def test_other_real_inputs_are_compared_and_the_same_are_not(tiny: Witnessed, source: str, settings: str) -> None:
    import torch
    from safetensors.torch import save_file

    root = tiny.project.root
    (root / "tiny" / "data.py").write_text(SAMPLES)

    def give(value: float) -> None:
        save_file({"x": torch.full((2, 3), value)}, root / "samples.safetensors")
        (root / "number.txt").write_text(str(value))

    give(1.0)
    if not is_available():
        settings = settings.replace("strict = true", "")
    given = f'backends = ["reference"]\n{settings}\nmodels.tiny.verify-inputs = "{source}"'
    tiny.project.edit("pyproject.toml", 'backends = ["null"]', given)
    tiny.project.edit("pyproject.toml", "verify = false ", "verify = true ")
    first = tiny.wheel()
    assert "worker" in tiny.started()
    assert tiny.wheel() == first
    assert tiny.started() == KNOWN
    give(2.0)
    assert tiny.wheel() == first
    assert "worker" in tiny.started()
    give(1.0)
    assert tiny.wheel() == first
    assert tiny.started() == KNOWN, "what was verified with them once"


def test_a_damaged_file_of_the_cache_is_made_again(known_tiny: Witnessed) -> None:
    tiny = known_tiny
    first = tiny.wheel()
    for blob in (tiny.project.cache / "v1" / "blobs").rglob("*"):
        if blob.is_file():
            blob.write_bytes(blob.read_bytes()[:-1] + b"?")
    assert tiny.wheel() == first
    assert "worker" in tiny.started()
    assert tiny.wheel() == first
    assert tiny.started() == KNOWN


def test_a_second_build_calls_no_preprocess(known: Callable[[str], Project], built: Callable[[str], Path]) -> None:
    assert sha256(known("mixed").wheel(FROZEN)) == sha256(built("mixed"))


def test_moving_code_costs_no_preprocess(known: Callable[[str], Project], built: Callable[[str], Path]) -> None:
    scenario = known("mixed")
    first = sha256(built("mixed"))
    scenario.edit("mixed/model.py", "class Mixed(", "# A comment that moves every line below it.\n\n\nclass Mixed(")
    assert sha256(scenario.wheel(FROZEN)) != first, "the debug map names the new lines"


def test_new_weights_on_the_same_graph_cost_no_compilation(
    known: Callable[[str], Project], built: Callable[[str], Path]
) -> None:
    scenario = known("mixed")
    first = sha256(built("mixed"))
    scenario.edit("mixed/model.py", "torch.manual_seed(3)", "torch.manual_seed(4)")
    done = scenario.build().check()
    rows = [line for line in done.stderr.splitlines() if line.startswith("mixed ")]
    assert rows
    assert all(row.endswith(("reused", "nothing to lower")) for row in rows), done.stderr
    assert sha256(only(scenario.dist, "*.whl")) != first


def test_a_changed_graph_is_a_miss_that_frozen_reports(known: Callable[[str], Project]) -> None:
    scenario = known("mixed")
    entries = tree(scenario.cache)
    scenario.edit("mixed/model.py", "functional.gelu", "functional.silu")
    done = scenario.build(environment=FROZEN)
    assert done.status != 0
    assert "frozen" in done.stderr
    assert scenario.left_behind() == []
    assert entries.items() <= tree(scenario.cache).items()


def test_an_empty_cache_that_is_frozen_fails(project: Callable[[str], Project]) -> None:
    scenario = project("tiny")
    done = scenario.build(environment=FROZEN)
    assert done.status != 0
    assert "frozen" in done.stderr
    assert scenario.left_behind() == []
