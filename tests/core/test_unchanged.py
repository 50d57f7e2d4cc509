"""Level 1: which stored result still holds, and what is said if none does."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from hatch_lower.cache.entry import RemoteCache
from hatch_lower.cache.key import ManifestKey
from hatch_lower.cache.remote import open_remote
from hatch_lower.cache.store import Store, open_store
from hatch_lower.canonical import digest_of, sha256_bytes
from hatch_lower.config.settings import ModelSettings, Recipe, Settings
from hatch_lower.config.tables import BackendChoice, BenchTable, CacheSettings
from hatch_lower.driver.context import ProjectView
from hatch_lower.driver.environment import FIXED
from hatch_lower.driver.inputs import present
from hatch_lower.driver.inputs.record import RecordedInputs, mark_of, secret, shareable
from hatch_lower.driver.lookup import ResultLookup, remember, roots_of
from hatch_lower.driver.sources import KnownSource, keep_source
from hatch_lower.format.manifest import FileEntry, MethodEntry, ModelEntry, RecipeEntry
from hatch_lower.format.record import ModelReport
from hatch_lower.format.results import MethodRow, PayloadFile

KEY = {"model": "digits", "schema": 1}


class Project:
    """A project with one file that its export reads, and a cache."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "project"
        self.root.mkdir(parents=True)
        self.weights = self.root / "weights.bin"
        self.weights.write_bytes(b"one")
        self.environment: dict[str, str] = {"HOME": str(folder), "PATH": "", **FIXED}
        self.search_path: tuple[Path, ...] = (self.root,)
        self.warnings: list[str] = []
        self.remote: Callable[[Callable[[str], None]], RemoteCache | None] = lambda warn: None
        self.made = 0

    def store(self, mode: str = "on") -> Store:
        given = {"HATCH_LOWER_CACHE_DIR": str(self.folder / "cache"), "HATCH_LOWER_CACHE": mode}
        return open_store(given, self.warnings.append, self.remote(self.warnings.append))

    def unchanged(self, mode: str = "on") -> ResultLookup:
        roots = roots_of(self.root, self.search_path, self.environment, (self.folder / "work",))
        return ResultLookup(self.store(mode), roots, self.environment)

    def inputs(self, **others: Any) -> RecordedInputs:
        given: dict[str, Any] = {field.name: {} for field in fields(RecordedInputs)}
        given |= {
            "absent": (),
            "unknown": (),
            "accelerators": None,
            "files": {"project/weights.bin": sha256_bytes(self.weights.read_bytes())},
        }
        return RecordedInputs(**{**given, **others})

    def report(self, text: bytes) -> ModelReport:
        """Return the report of a model whose plan is `text`."""
        self.made += 1
        source = self.folder / f"made{self.made}"
        source.write_bytes(text)
        entry = FileEntry("digits/default.json", len(text), sha256_bytes(text))
        recipe = RecipeEntry(entry, entry, (), ("aoti",), ("torch==2.13.*",), None, {"forward": MethodEntry(3, 2, 1)})
        return ModelReport(
            model="digits",
            manifest=ModelEntry(("default",), None, None, {"default": recipe}),
            files=(PayloadFile(entry.path, source, entry.size, entry.sha256),),
            rows=(MethodRow("digits", "default", "forward", 3, 2, 1, 10, 1.5, 0, "a note"),),
            native=(source,),
            tools={"gcc": "13"},
            torch="2.13.0",
        )

    def remember(self, text: bytes, **others: Any) -> ModelReport:
        report = self.report(text)
        remember(self.store(), KEY, self.inputs(**others), report, None)
        return report


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def plan_of(project: Project, mode: str = "on") -> bytes | None:
    """Return the plan of the result that still holds."""
    result = project.unchanged(mode).look_up(KEY).result
    return None if result is None else result.files[0].source.read_bytes()


def test_a_result_holds_while_nothing_has_changed(project: Project) -> None:
    assert plan_of(project) is None
    report = project.remember(b"plan")
    known = project.unchanged().look_up(KEY)
    result = known.result
    assert result is not None
    blob = project.store().blob_path(report.files[0].sha256)
    assert result.files == (replace(report.files[0], source=blob),)
    assert result.native == (blob,)
    assert result.rows == (replace(report.rows[0], level=1, seconds=0.0, reused=1, note=""),)
    assert (result.tools, result.torch) == (report.tools, report.torch)
    assert result.entry["recipes"]["default"]["requirements"] == ["torch==2.13.*"]
    whole = known.report
    assert whole is not None
    assert whole.manifest == report.manifest
    assert known.changes == ()


def test_a_changed_input_is_named(project: Project) -> None:
    project.remember(b"plan")
    project.weights.write_bytes(b"two")
    known = project.unchanged().look_up(KEY)
    assert (known.result, known.report) == (None, None)
    assert [change.text() for change in known.changes] == ["input weights.bin"]


def test_a_result_without_a_comparison_holds_while_the_machine_has_the_same_accelerators(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.remember(b"compared")
    project.remember(b"not compared", accelerators="")
    assert plan_of(project) == b"not compared"
    monkeypatch.setattr(present, "find_accelerators", lambda: "nvidia0 (0a1b2c3d)")
    assert plan_of(project) == b"compared"
    project.weights.write_bytes(b"two")
    project.remember(b"not compared", accelerators="")
    project.weights.write_bytes(b"three")
    project.remember(b"not compared", accelerators="")
    (change,) = project.unchanged().look_up(KEY).changes
    assert change.text() == "accelerators of the machine: none → nvidia0 (0a1b2c3d)"


def test_the_nearest_of_the_earlier_results_is_compared_with(project: Project) -> None:
    project.remember(b"near")
    project.remember(b"far", absent=("project/gone",), looks={"project/other": "folder"})
    project.weights.write_bytes(b"two")
    (project.root / "gone").touch()
    assert [change.subject for change in project.unchanged().look_up(KEY).changes] == ["project/weights.bin"]


def test_several_states_are_known(project: Project) -> None:
    states = [b"one", b"two", b"three"]
    for state in states:
        project.weights.write_bytes(state)
        project.remember(b"plan of " + state)
    for state in states:
        project.weights.write_bytes(state)
        assert plan_of(project) == b"plan of " + state


def test_the_newest_result_for_the_same_inputs_counts(project: Project) -> None:
    project.remember(b"old")
    project.remember(b"new")
    assert plan_of(project) == b"new"
    record = json.loads(project.store().record_path(digest_of(KEY)).read_bytes())
    assert len(record["value"]["entries"]) == 1


def test_the_oldest_states_are_forgotten(project: Project) -> None:
    for number in range(18):
        project.weights.write_bytes(str(number).encode())
        project.remember(b"plan")
    found = []
    for number in range(18):
        project.weights.write_bytes(str(number).encode())
        found.append(plan_of(project) is not None)
    assert found == [False] * 2 + [True] * 16


def test_what_is_not_known_completely_is_not_remembered(project: Project) -> None:
    project.remember(b"plan", unknown=("a subprocess ran: git",))
    assert plan_of(project) is None
    assert not project.store().record_path(digest_of(KEY)).exists()


@pytest.mark.parametrize(("mode", "found"), [("on", True), ("read-only", True), ("frozen", True), ("refresh", False)])
def test_the_modes_of_the_cache(project: Project, mode: str, found: bool) -> None:
    project.remember(b"plan")
    assert (plan_of(project, mode) is not None) == found
    project.weights.write_bytes(b"two")
    assert plan_of(project, mode) is None, "frozen leaves it to the child to say what is missing"


@pytest.mark.parametrize("mode", ["read-only", "frozen", "off"])
def test_nothing_is_remembered_where_nothing_is_written(project: Project, mode: str) -> None:
    remember(project.store(mode), KEY, project.inputs(), project.report(b"plan"), None)
    assert plan_of(project, mode) is None
    assert not (project.folder / "cache").exists()


@pytest.mark.parametrize("what", ["blob gone", "blob damaged", "report gone", "record damaged", "another form"])
def test_a_damaged_cache_is_a_miss(project: Project, what: str) -> None:
    report = project.remember(b"plan")
    store = project.store()
    blob, record = store.blob_path(report.files[0].sha256), store.record_path(digest_of(KEY))
    entry = json.loads(record.read_bytes())["value"]["entries"][0]
    if what == "blob gone":
        blob.unlink()
    elif what == "blob damaged":
        blob.write_bytes(b"nalp")
    elif what == "report gone":
        store.record_path(entry["report"]).unlink()
    elif what == "record damaged":
        record.write_bytes(record.read_bytes().replace(b"weights.bin", b"weights.bit"))
    else:
        store.put(digest_of(KEY), {}, {"entries": [{**entry, "inputs": {"files": []}}]})
    assert plan_of(project) is None
    project.remember(b"plan")
    assert plan_of(project) == b"plan"


def test_a_checkout_elsewhere_has_the_same_inputs(project: Project, tmp_path: Path) -> None:
    project.remember(b"plan")
    other = Project(tmp_path / "other")
    other.folder = project.folder
    assert plan_of(other) == b"plan"


@pytest.mark.parametrize(("declared", "found"), [(("MODEL_*",), True), ((), False)])
def test_a_result_of_another_machine_is_known(tmp_path: Path, declared: tuple[str, ...], found: bool) -> None:
    environment = {
        "HATCH_LOWER_REMOTE_CACHE": (tmp_path / "shared").as_uri(),
        "HATCH_LOWER_REMOTE_PUSH": "1",
        "HATCH_LOWER_PUBLIC_KEYS": "any",
    }
    there, here = Project(tmp_path / "there"), Project(tmp_path / "here")
    for project in (there, here):
        project.remote = lambda warn: open_remote(environment, CacheSettings(), warn)
        project.environment["MODEL_SIZE"] = "3"
    marks = {"MODEL_SIZE": mark_of(secret(there.store().directory), "MODEL_SIZE", "3"), "MODEL_NAME": ""}
    inputs = there.inputs(environment=marks)
    shared = shareable(inputs, declared, there.environment, secret(there.store().directory))
    remember(there.store(), KEY, inputs, there.report(b"plan"), shared)
    assert plan_of(there) == b"plan"
    assert (plan_of(here) == b"plan") == found
    assert here.warnings == there.warnings == []
    here.remote = lambda warn: None
    assert (plan_of(here) == b"plan") == found, "what was found is kept here"
    here.environment["MODEL_SIZE"] = "4"
    assert plan_of(here) is None


MODEL = ModelSettings("digits", "digits.model:export", "digits", ("default",))
SETTINGS = Settings(Path(), "digits", "1.0", (MODEL,), (Recipe("default"), Recipe("other")))
VIEW = ProjectView("Name: digits\n", "", (), (), ("digits",), ())


def key_of(
    project: Project,
    model: Mapping[str, Any] = {},
    settings: Mapping[str, Any] = {},
    view: Mapping[str, Any] = {},
) -> ManifestKey:
    """Return the key of a model, with some fields of what it is made of replaced."""
    return project.unchanged().key_of(
        replace(SETTINGS, root=project.root, **settings),
        replace(MODEL, **model),
        replace(VIEW, **view),
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"model": {"name": "other"}},
        {"model": {"export": "digits.model:other"}},
        {"model": {"package": "other"}},
        {"model": {"recipes": ("default", "other")}},
        {"model": {"weights": ("https://example.org/model.safetensors",)}},
        {"model": {"weights": ("file",)}},
        {"model": {"verify_inputs": "samples.safetensors"}},
        {"settings": {"name": "other"}},
        {"settings": {"recipes": (Recipe("default", rtol=1.0), Recipe("other"))}},
        {"settings": {"recipes": (Recipe("default", (BackendChoice("null", {"a": 1}),)), Recipe("other"))}},
        {"settings": {"check_bytes": 0}},
        {"settings": {"inputs": ("*.bin",)}},
        {"settings": {"strict": True}},
        {"view": {"entry_points": "[console_scripts]\n"}},
        {"view": {"import_roots": (Path("/elsewhere"),)}},
        {"view": {"links": (("digits", Path("/elsewhere")),)}},
        {"view": {"later_hooks": ("vcs",)}},
    ],
    ids=str,
)
def test_what_an_export_is_given_has_its_own_results(project: Project, changes: dict[str, Any]) -> None:
    assert key_of(project, **changes).digest() != key_of(project).digest()


def test_the_order_of_the_recipes_has_its_own_results(project: Project) -> None:
    both = {"recipes": ("default", "other")}
    turned = key_of(project, both, {"recipes": SETTINGS.recipes[::-1]})
    assert turned.digest() != key_of(project, both).digest()


@pytest.mark.parametrize(
    "changes",
    [
        {"settings": {"jobs": 4}},
        {"settings": {"timeout": 1}},
        {"settings": {"pass_env": ("HF_*",)}},
        {"settings": {"version": "1.1"}},
        {"view": {"metadata": "Name: digits\nLicense: MIT\n"}},
        {"settings": {"editable": "eager"}},
        {"settings": {"runtime_requirements": "off"}},
        {"settings": {"order": "measured"}},
        {"settings": {"bench": BenchTable(max_call_ratio=2.0, sizes=({"batch": 32},))}},
        {"settings": {"recipes": (Recipe("default"), Recipe("other", rtol=1.0))}},
        {"view": {"packages": ("digits", "more")}},
    ],
    ids=str,
)
def test_what_changes_no_export_has_the_same_results(project: Project, changes: dict[str, Any]) -> None:
    assert key_of(project, **changes).digest() == key_of(project).digest()


@pytest.mark.parametrize(
    ("name", "value", "counts"),
    [
        ("PYTHONOPTIMIZE", "1", True),
        ("PYTHONPATH", "/elsewhere", False),
        ("PYTHONNOUSERSITE", "1", False),
        ("OMP_NUM_THREADS", "4", True),
        ("CXX", "clang++", True),
        ("LD_LIBRARY_PATH", "/elsewhere", True),
        ("MODEL_SIZE", "3", False),
        ("PATH", "/elsewhere", False),
        ("HOME", "/elsewhere", False),
    ],
)
def test_variables_that_count_without_being_read(project: Project, name: str, value: str, counts: bool) -> None:
    backends = (Recipe("default", (BackendChoice("aoti"),)),)
    settings = replace(SETTINGS, root=project.root, recipes=backends)

    def digest() -> str:
        return project.unchanged().key_of(settings, MODEL, VIEW).digest()

    before = digest()
    project.environment[name] = value
    assert (digest() != before) == counts


def test_a_compiler_counts_only_where_there_is_a_backend(project: Project) -> None:
    before = key_of(project).digest()
    project.environment["CXX"] = "clang++"
    assert key_of(project).digest() == before


def test_another_backend_of_a_name_in_a_recipe_counts(project: Project) -> None:
    site = project.folder / "site-packages"
    project.search_path = (project.root, site)
    recipes = {"recipes": (Recipe("default", (BackendChoice("null"),)),)}
    before = key_of(project, settings=recipes).digest()
    rows = [("plain", "console_scripts", "reference"), ("other", "hatch_lower.delegates", "somebodys")]
    for name, group, backend in [*rows, ("lowering", "hatch_lower.delegates", "null")]:
        information = site / f"{name}-1.0.dist-info"
        information.mkdir(parents=True)
        (information / "entry_points.txt").write_text(f"[{group}]\n{backend} = b:c\n")
        assert (key_of(project, settings=recipes).digest() != before) == (name == "lowering")


def test_another_file_of_weights_has_its_own_results(project: Project) -> None:
    path = project.folder / "model.safetensors"
    digests = []
    for content in (b"1", b"1", b"2", None):
        path.unlink() if content is None else path.write_bytes(content)
        digests.append(key_of(project, {"weights": (path.as_uri(),)}).digest())
    assert [digests.index(digest) for digest in digests] == [0, 0, 2, 3]


def test_what_a_url_had_is_believed_until_it_is_known_to_have_something_else(project: Project) -> None:
    url = "https://example.org/model.safetensors"
    digests = []
    for sha256 in ("a" * 64, "a" * 64, "b" * 64):
        keep_source(url, KnownSource(1, sha256, "stamp"), project.store())
        digests.append(key_of(project, {"weights": (url,)}).digest())
    assert [digests.index(digest) for digest in digests] == [0, 0, 2]


@pytest.mark.parametrize("field", [field.name for field in fields(ManifestKey)])
def test_every_field_of_the_key_is_hashed(project: Project, field: str) -> None:
    key = key_of(project)
    other: Any = {field: ["another value"]}
    assert replace(key, **other).digest() != key.digest()
