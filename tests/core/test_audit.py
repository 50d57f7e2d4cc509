from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from hatch_lower.cache.store import Store
from hatch_lower.canonical import canonical_json, digest_of
from hatch_lower.cli.cache import audit_text
from hatch_lower.config.settings import ModelSettings, Recipe, Settings
from hatch_lower.driver.audit import (
    Audit,
    AuditExports,
    audit_results,
    folder_of_links,
    is_audited,
    stale_error,
    varied_environment,
)
from hatch_lower.driver.build import build
from hatch_lower.driver.context import BuildContext, ProjectView, build_context
from hatch_lower.driver.environment import child_environment
from hatch_lower.errors import CacheError
from hatch_lower.events import NullReporter
from hatch_lower.format.manifest import ModelEntry
from hatch_lower.format.record import FORMS, MethodRecord, ModelReport

MODELS = """
import os, time
import torch
from hatch_lower import Model, Method

PARTS = {"sin": torch.sin, "cos": torch.cos, "tan": torch.tan, "tanh": torch.tanh, "relu": torch.relu}


class Net(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)
        self.function = function

    def forward(self, x):
        return self.function(self.linear(x))


def model(function):
    return Model(Net(function).eval(), {"forward": Method((torch.zeros(1, 2),))})


def clock():
    now = time.time_ns()
    return model(lambda x: x * now)


def seeded():
    def apply(x):
        for name in frozenset(PARTS):
            x = PARTS[name](x)
        return x

    return model(apply)
"""


def settings_of(root: Path, *models: str) -> Settings:
    return Settings(
        root=root,
        name="shop-floor",
        version="1.5",
        models=tuple(ModelSettings(each, f"shop_floor:{each}", "shop_floor", ("default",)) for each in models),
        recipes=(Recipe("default", verify=False),),
        check_bytes=0,
        jobs=2,
    )


def view_of(root: Path) -> ProjectView:
    metadata = "Metadata-Version: 2.1\nName: shop-floor\nVersion: 1.5\n"
    return ProjectView(metadata, "", (root,), (), ("shop_floor",), ())


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HATCH_LOWER_CACHE_DIR", str(tmp_path / "cache"))
    root = tmp_path / "project"
    root.mkdir()
    (root / "shop_floor.py").write_text(MODELS)
    return root


@pytest.mark.torch
@pytest.mark.slow
def test_an_audit_finds_what_a_build_would_take_and_should_not(root: Path, tmp_path: Path) -> None:
    settings = settings_of(root, "clock", "seeded")
    store = Store(tmp_path / "cache" / "v1", "on", lambda line: None)
    for name in ("build", "first", "second", "third"):
        (tmp_path / name).mkdir()

    def context(work: str) -> BuildContext:
        return build_context(settings, view_of(root), tmp_path / work, store, NullReporter())

    assert audit_results(context("first")) == Audit((), (), ())
    build(context("build"))
    assert audit_results(context("second"), 0.0) == Audit(("clock", "seeded"), (), ())

    with pytest.raises(CacheError) as caught:
        audit_results(context("third"))
    error = caught.value
    assert error.what == "a build would take results that do not hold"
    assert error.where == str(root)
    assert "a clock" in error.hint
    (line,) = error.found.splitlines()  # `seeded` differs too, but not where the hash seed is that of a build
    assert line.startswith("clock.forward: aten.mul.Tensor other ")
    assert line.endswith(" (shop_floor.py:16)")


def test_a_sample_is_the_same_every_time_and_another_for_another_seed() -> None:
    keys = [digest_of(number) for number in range(400)]
    chosen = [key for key in keys if is_audited(key, 0.25, 0)]
    assert chosen == [key for key in keys if is_audited(key, 0.25, 0)]
    assert 60 < len(chosen) < 140
    assert chosen != [key for key in keys if is_audited(key, 0.25, 1)]
    assert all(is_audited(key, 1.0, 0) for key in keys)
    assert not any(is_audited(key, 0.0, 0) for key in keys)
    assert {key for key in keys if is_audited(key, 0.1, 0)} < set(chosen)


def test_another_folder_shows_the_same_files(tmp_path: Path) -> None:
    (tmp_path / "root" / "package").mkdir(parents=True)
    (tmp_path / "root" / "package" / "data.txt").write_text("1")
    (tmp_path / "root" / "scale.txt").write_text("2")
    folder = folder_of_links(tmp_path / "root", tmp_path / "elsewhere")
    assert (folder / "package" / "data.txt").read_text() == "1"
    assert (folder / "scale.txt").read_text() == "2"
    assert sorted(each.name for each in folder.iterdir()) == ["package", "scale.txt"]


def test_hash_seed_and_locale_are_others_and_nothing_else_is(tmp_path: Path) -> None:
    plain = child_environment({"HOME": str(tmp_path)}, (), ["/site"], tmp_path)
    varied = varied_environment(plain, 0)
    assert {name for name in varied if varied[name] != plain.get(name)} == {"PYTHONHASHSEED", "LC_ALL", "LANG"}
    assert 0 < int(varied["PYTHONHASHSEED"]) <= 4_294_967_295
    assert varied_environment(plain, 1)["PYTHONHASHSEED"] != varied["PYTHONHASHSEED"]


def report(methods: Mapping[str, MethodRecord], sharing: str = "s") -> ModelReport:
    return ModelReport("digits", ModelEntry((), None, None, {}), (), methods=methods, key={"sharing": sharing})


def record(graph: str = "g", form: str = "", **state: str) -> MethodRecord:
    return MethodRecord(graph, "n", "e", state or {"weight": "1"}, form)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"forward": record()}, {"forward": record()}, []),
        ({"forward": record()}, {"forward": record("h")}, ["forward: the exported graph"]),
        ({"forward": record()}, {"forward": record(weight="2")}, ["forward: weights only: the one tensor"]),
        ({"forward": record()}, {"embed": record()}, ["forward: the method is gone", "embed: the method is new"]),
        ({}, {"forward": record()}, []),
        ({"forward": record()}, {}, []),
    ],
)
def test_what_differs_between_two_exports(
    tmp_path: Path, before: dict[str, MethodRecord], after: dict[str, MethodRecord], expected: list[str]
) -> None:
    store = Store(tmp_path / "v1", "on", lambda line: None)
    exports = AuditExports({"digits": report(after)}, tmp_path, store)
    assert exports.differences(report(before)) == expected


def test_memory_that_is_shared_otherwise_is_a_difference(tmp_path: Path) -> None:
    store = Store(tmp_path / "v1", "on", lambda line: None)
    exports = AuditExports({"digits": report({"forward": record()}, "other")}, tmp_path, store)
    assert exports.differences(report({"forward": record()})) == ["which tensors share memory"]


def test_forms_are_found_in_the_cache_and_in_the_new_export(tmp_path: Path) -> None:
    store = Store(tmp_path / "v1", "on", lambda line: None)
    exports = AuditExports({}, tmp_path / "work", store)
    fresh = Store(tmp_path / "work" / "models" / "digits" / FORMS, "on", lambda line: None)
    old, new = canonical_json("old"), canonical_json("new")
    read = exports.reader("digits")
    assert [read(store.put_blob(old)), read(fresh.put_blob(new)), read("0" * 64)] == [old, new, None]


def test_the_error_tells_a_stale_result_from_one_that_builds_fix() -> None:
    clamp, inputs = "forward: aten.clamp max 6.0 → 1.0 (digits/model.py:31)", "forward: example inputs"
    stale = {"digits": [clamp], "seeded": [inputs], "tiny": [inputs]}
    assert str(stale_error(stale, {"digits": [clamp], "seeded": [], "tiny": [inputs]}, Path("/project"))) == (
        "a build would take results that do not hold\n"
        "  where: /project\n"
        "  found: digits.forward: aten.clamp max 6.0 → 1.0 (digits/model.py:31)\n"
        "    tiny.forward: example inputs\n"
        "  to do: the export depends on something that cannot be recorded: a clock, random numbers of the system, the"
        " network; read it from a file of the project instead, and build once with `HATCH_LOWER_CACHE=refresh`"
    )
    assert str(stale_error({"tiny": [inputs]}, {"tiny": []}, Path("/project"))) == (
        "an export comes out otherwise with another hash seed, working directory or locale\n"
        "  where: /project\n"
        "  found: tiny.forward: example inputs\n"
        "  to do: builds fix all three, so stored results hold; but give sets an order, and use no absolute paths"
    )


@pytest.mark.parametrize(
    ("done", "text"),
    [
        (Audit((), (), ()), "nothing to audit: no valid stored result for 3 models"),
        (Audit(("a",), ("a",), ()), "of 1 stored result, 1 model exported to the same result"),
        (Audit(("a", "b"), ("a", "b"), ()), "of 2 stored results, 2 models exported to the same result"),
        (
            Audit(("a", "b", "c"), ("a",), ("b",)),
            "of 3 stored results, 1 model exported to the same result; `b` cannot be compared; 1 not in the sample",
        ),
    ],
)
def test_what_an_audit_says(done: Audit, text: str) -> None:
    assert audit_text(done, 3) == text
