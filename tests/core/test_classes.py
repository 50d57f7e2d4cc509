"""Classes of containers: from which files they come, and how their objects are made."""

from __future__ import annotations

import functools
import importlib
import json
import sys
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from support.lowered import install

from hatch_lower.format.tree import Container, Leaf
from hatch_lower.runtime import classes
from hatch_lower.runtime.classes import NoClassError, find_maker, find_owner
from hatch_lower.runtime.containers import Record, choose_builder, replaced_in

pytestmark = pytest.mark.torch


@pytest.fixture
def pooled() -> Any:
    """A class of outputs of transformers."""
    return pytest.importorskip("transformers.modeling_outputs").BaseModelOutputWithPooling


SHAPES = """
from collections import OrderedDict, namedtuple
from dataclasses import dataclass, field
from typing import NamedTuple

RAN = []

class Corner(NamedTuple):
    x: object
    y: object

class Loud(namedtuple("Loud", "x y")):
    def __new__(cls, *values):
        RAN.append("Loud")

@dataclass
class Pair:
    left: object
    right: object = None
    notes: list = field(default_factory=list)

    class Inner(NamedTuple):
        z: object

@dataclass(frozen=True, slots=True)
class Frozen:
    left: object
    right: object = 3

class Ordered(OrderedDict):
    pass

@dataclass
class Ready:
    left: object
    right: object
    def __post_init__(self):
        RAN.append("Ready")

@dataclass
class Own:
    left: object
    right: object
    def __init__(self, left, right):
        RAN.append("Own")

@dataclass
class Made:
    left: object
    right: object
    def __new__(cls, *values):
        RAN.append("Made")

@dataclass
class Setting:
    left: object
    right: object
    def __setattr__(self, name, value):
        RAN.append("Setting")

@dataclass
class Leaving:
    left: object
    right: object
    def __del__(self):
        RAN.append("Leaving")

@dataclass
class Computed:
    left: object
    right: object = None
    @property
    def left(self): return 1
    @left.setter
    def left(self, value): RAN.append("Computed")

@dataclass
class Factory:
    left: object
    right: object
    other: object = field(default_factory=lambda: RAN.append("Factory"))

@dataclass
class Fewer:
    left: object

class Filling(dict):
    def __setitem__(self, key, value):
        RAN.append("Filling")

class Plain:
    pass
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "site"
    (folder / "shapes" / "inner").mkdir(parents=True)
    (folder / "shapes" / "__init__.py").write_text(SHAPES)
    (folder / "shapes" / "__main__.py").write_text(SHAPES)
    (folder / "shapes" / "inner" / "__init__.py").write_text(SHAPES)
    (folder / "beside").mkdir()
    (folder / "beside" / "__init__.py").write_text(SHAPES)
    install(folder, "shapes")
    before = set(sys.modules)
    monkeypatch.syspath_prepend(folder)
    yield folder
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("shapes", "beside", "planted"):
            del sys.modules[name]


def container(type_name: str, owner: str = "shapes", *, kind: str = "object", keys: str = "left right") -> Container:
    names = tuple(keys.split())
    return Container(kind, (Leaf(),) * len(names), names, type_name, owner)


def reason_against(each: Container) -> str:
    with pytest.raises(NoClassError) as caught:
        find_maker(each)
    return str(caught.value)


# whose they are


def test_a_class_of_an_installed_distribution_is_found(site: Path) -> None:
    make = find_maker(container("shapes.inner:Pair"))
    assert type(make(1, 2)) is importlib.import_module("shapes.inner").Pair


@pytest.mark.parametrize(
    ("type_name", "owner", "reason"),
    [
        ("beside:Pair", "shapes", "the distribution `shapes` has no module `beside`"),
        ("beside:Pair", "", "no installed distribution defined the class at the export"),
        ("beside:Pair", "beside", "the distribution `beside` is not installed"),
        ("beside:Pair", "../x", "the distribution `../x` is not installed"),
        ("shapes.none:Pair", "shapes", "the distribution `shapes` has no module `shapes.none`"),
        ("shapes.__main__:Pair", "shapes", "the distribution `shapes` has no module `shapes.__main__`"),
        ("unittest.__main__:Pair", "torch", "the distribution `torch` has no module `unittest.__main__`"),
        ("subprocess:Popen", "torch", "the distribution `torch` has no module `subprocess`"),
    ],
)
def test_a_module_that_the_distribution_did_not_install_is_not_imported(
    site: Path, type_name: str, owner: str, reason: str
) -> None:
    assert reason_against(container(type_name, owner)) == reason
    assert {"beside", "shapes", "shapes.__main__", "unittest.__main__"}.isdisjoint(sys.modules)


@pytest.mark.parametrize("inner", ["copied", "linked"])
def test_a_package_that_hides_the_installed_one_is_not_imported(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inner: str
) -> None:
    planted = tmp_path / "here" / "shapes"
    planted.mkdir(parents=True)
    (planted / "__init__.py").write_text("raise SystemExit('planted')")
    if inner == "linked":
        (planted / "inner").symlink_to(site / "shapes" / "inner", target_is_directory=True)
    monkeypatch.syspath_prepend(planted.parent)
    for module in ("shapes", "shapes.inner"):
        assert reason_against(container(f"{module}:Pair")) == f"the distribution `shapes` has no module `{module}`"


def test_a_class_is_taken_from_the_module_itself(site: Path) -> None:
    """A module may import something when it is asked for a name that it does not hold."""
    (site / "shapes" / "inner" / "__init__.py").write_text("def __getattr__(name):\n    raise SystemExit(name)")
    assert reason_against(container("shapes.inner:Pair")) == "`shapes.inner` has no class `Pair`"


def test_a_module_that_fails_is_no_error(site: Path) -> None:
    (site / "shapes" / "inner" / "__init__.py").write_text("1 / 0")
    assert reason_against(container("shapes.inner:Pair")) == "`shapes.inner` cannot be imported: ZeroDivisionError"


def load(name: str) -> Any:
    return importlib.import_module(name).Pair


def test_the_owner_of_a_class_is_who_installed_its_file(site: Path) -> None:
    assert find_owner(load("shapes")) == "shapes"
    assert find_owner(load("beside")) == ""
    assert find_owner(torch.return_types.max) == "torch"
    assert find_owner(OrderedDict) == find_owner(dict) == ""


def test_a_namespace_package_is_of_those_who_have_modules_in_it(site: Path) -> None:
    (site / "shapes" / "__init__.py").unlink()
    install(site, "shapes")
    assert find_owner(load("shapes.inner")) == "shapes"
    assert find_maker(container("shapes.inner:Pair"))(1, 2) == load("shapes.inner")(1, 2)


def test_a_distribution_without_record_has_the_modules_that_it_names(site: Path) -> None:
    information = site / "shapes-1.0.dist-info"
    (information / "RECORD").unlink()
    assert find_owner(load("shapes")) == ""
    (information / "top_level.txt").write_text("shapes\n")
    assert find_owner(load("shapes")) == "shapes"
    assert find_owner(load("beside")) == ""


def make_editable(site: Path, project: Path, **fields: Any) -> None:
    information = site / "shapes-1.0.dist-info"
    (information / "RECORD").write_text("_shapes.pth,,\nshapes/_lowered/manifest.json,,\n")
    origin = {"url": project.as_uri(), "dir_info": {"editable": True}, **fields}
    (information / "direct_url.json").write_text(json.dumps(origin))


def test_an_editable_install_has_its_packages_in_the_projects_folder(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "my project"
    (project / "src").mkdir(parents=True)
    for name in ("shapes", "beside"):
        (site / name).rename(project / "src" / name)
    monkeypatch.syspath_prepend(project / "src")
    make_editable(site, project)
    assert find_owner(load("shapes.inner")) == "shapes"
    assert find_owner(load("beside")) == "", "a folder that somebody put into the project is not the distribution's"
    make_editable(site, project, dir_info={})
    assert find_owner(load("shapes.inner")) == ""
    make_editable(site, tmp_path / "elsewhere")
    assert find_owner(load("shapes.inner")) == ""


@pytest.mark.parametrize("origin", ["{", "[]", '{"url": 1, "dir_info": {"editable": true}}', '{"url": "x:"}'])
def test_an_origin_that_nobody_can_read_is_none(site: Path, origin: str) -> None:
    (site / "shapes-1.0.dist-info" / "direct_url.json").write_text(origin)
    assert find_owner(load("shapes")) == "shapes"


# how their objects are made


@pytest.fixture
def shapes(site: Path) -> ModuleType:
    return importlib.import_module("shapes")


def test_an_object_is_what_its_constructor_would_have_made(shapes: Any) -> None:
    assert find_maker(container("shapes:Pair"))(1, 2) == shapes.Pair(1, 2)
    assert find_maker(container("shapes:Pair", keys="left"))(1) == shapes.Pair(1)
    assert find_maker(container("shapes:Frozen", keys="left"))(1) == shapes.Frozen(1)
    assert find_maker(container("shapes:Ordered", keys="b a"))(1, 2) == shapes.Ordered(b=1, a=2)
    corner = find_maker(container("shapes:Corner", kind="namedtuple", keys="x y"))(1, 2)
    assert (type(corner), corner) == (shapes.Corner, shapes.Corner(1, 2))
    inner = find_maker(container("shapes:Pair.Inner", kind="namedtuple", keys="z"))(1)
    assert (type(inner), inner) == (shapes.Pair.Inner, shapes.Pair.Inner(1))


def test_two_objects_share_no_default(shapes: Any) -> None:
    make = find_maker(container("shapes:Pair", keys="left"))
    assert make(1).notes is not make(1).notes


def test_an_ordered_dictionary_needs_no_distribution() -> None:
    made = find_maker(container("collections:OrderedDict", ""))(1, 2)
    assert (type(made), made) == (OrderedDict, OrderedDict(left=1, right=2))


def test_a_result_of_torch_is_made() -> None:
    made = find_maker(container("torch.return_types:max", "torch", kind="namedtuple", keys="values indices"))(1, 2)
    assert (type(made), made.indices) == (torch.return_types.max, 2)


def test_an_output_of_transformers_is_what_its_constructor_would_have_made(pooled: Any) -> None:
    name = "transformers.modeling_outputs:BaseModelOutputWithPooling"
    keys = "pooler_output last_hidden_state"
    made = find_maker(container(name, "transformers", keys=keys))(torch.ones(1), torch.ones(2))
    expected = pooled(torch.ones(2), torch.ones(1))
    assert list(made) == list(expected)
    assert vars(made).keys() == vars(expected).keys()
    assert made.hidden_states is None
    assert len(made.to_tuple()) == 2
    made.pooler_output = torch.zeros(1)
    assert made["pooler_output"] is made.pooler_output


def test_a_class_of_transformers_is_found_after_its_models_were_imported(
    pooled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    transformers: Any = sys.modules["transformers"]
    # the import of any model writes the package's folder as a `Path`
    monkeypatch.setattr(transformers.__spec__, "submodule_search_locations", [Path(transformers.__path__[0])])
    assert find_owner(pooled) == "transformers"
    name = "transformers.modeling_outputs:BaseModelOutputWithPooling"
    made = find_maker(container(name, "transformers", keys="pooler_output"))(torch.ones(1))
    assert type(made) is pooled


def test_a_constructor_that_others_than_transformers_wrap_is_one_of_its_own() -> None:
    generic = pytest.importorskip("transformers.utils.generic")

    @dataclass
    class Output(generic.ModelOutput):  # type: ignore[name-defined,misc]
        state: torch.Tensor | None = None

    assert classes.reason_against(Output, ["state"]) == ""
    made = Output.__init__

    @functools.wraps(made)
    def doing_more(self: Output, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)

    type.__setattr__(Output, "__init__", doing_more)
    assert classes.reason_against(Output, ["state"]) == "defines `__init__`"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Ready", "defines `__post_init__`"),
        ("Own", "defines `__init__`"),
        ("Made", "defines `__new__`"),
        ("Setting", "defines `__setattr__`"),
        ("Leaving", "defines `__del__`"),
        ("Computed", "computes a field on assignment"),
        ("Factory", "has other fields"),
        ("Fewer", "has other fields"),
        ("Filling", "defines `__setitem__`"),
        ("Plain", "is neither a dataclass nor a dictionary"),
    ],
)
def test_a_class_that_does_more_than_hold_fields_is_a_mapping(shapes: Any, name: str, reason: str) -> None:
    each = container(f"shapes:{name}")
    assert reason_against(each) == f"the class {reason}"
    assert list(replaced_in(Container("tuple", (each, None, Leaf())))) == [(name, f"the class {reason}")]
    made = choose_builder(each)(1, 2)
    assert isinstance(made, Record)
    assert (made.left, made["right"]) == (1, 2)
    assert shapes.RAN == []


def test_a_named_tuple_is_made_without_its_constructor(shapes: Any) -> None:
    made = find_maker(container("shapes:Loud", kind="namedtuple", keys="x y"))(1, 2)
    assert (type(made), tuple(made), shapes.RAN) == (shapes.Loud, (1, 2), [])


@pytest.mark.parametrize(("name", "reason"), [("Corner", "has other fields"), ("Pair", "is no named tuple")])
def test_a_named_tuple_of_other_fields_is_made_anew(shapes: Any, name: str, reason: str) -> None:
    each = container(f"shapes:{name}", kind="namedtuple", keys="x z")
    assert reason_against(each) == f"the class {reason}"
    made = choose_builder(each)(1, 2)
    assert (type(made).__name__, made.z) == (name, 2)
