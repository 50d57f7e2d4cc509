"""`load`: finding installed models, choosing a recipe, and refusing every file that is not what was built."""

from __future__ import annotations

import copy
import gc
import importlib
import importlib.metadata
import json
import os
import pickle
import platform
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from support.loading import load_folder
from support.lowered import file_entry, floats, install, lowered_model, safetensors_bytes, write_lowered
from support.plans import (
    Doubling,
    c,
    call,
    constant,
    delegate_entry,
    method,
    op,
    plan_value,
    python,
    tensor_input,
    v,
)

from hatch_lower.canonical import canonical_json, sha256_bytes
from hatch_lower.errors import InputError, LowerError, ProgramError, UnavailableError
from hatch_lower.runtime import load_order
from hatch_lower.runtime.check import check_packaged_model
from hatch_lower.runtime.delegates import Delegate, DelegateBlob
from hatch_lower.runtime.files import PackagedFolder
from hatch_lower.runtime.installed import find_model, read_field
from hatch_lower.runtime.load import load
from hatch_lower.runtime.loaded import RESERVED_METHOD_NAMES, LoadedModel
from hatch_lower.runtime.selection import DelegateKinds, requirement_reason
from hatch_lower.runtime.torch_private.operators import REGISTERED_BY

pytestmark = pytest.mark.torch

VECTOR = tensor_input(4)
BLOB = "digits/delegates/blob.bin"
AGAIN = "install the distribution again; if that does not help, build its wheel again"
TENSORS = {"w": floats(1, 2, 3, 4), "count": floats(0)}
CONSTANTS: dict[str, Any] = {
    "storages": [("w", "float32", 4), ("count", "float32", 1)],
    "constants": {"w": constant(0, 4), "count": constant(1, 1, mutable=True)},
}


def portable_plan() -> dict[str, Any]:
    counting = [op("aten.add.Tensor", c("count"), 1, out=1)]
    return plan_value(
        {
            "forward": method([VECTOR], [op("aten.mul.Tensor", v(0), c("w"), out=1)], v(1)),
            "embed": method([VECTOR], counting, v(1), mutations=[("count", v(1))]),
        },
        **CONSTANTS,
    )


def delegated_plan() -> dict[str, Any]:
    body = [call(0, [v(0)], [VECTOR], 1), python("getitem", v(1), 0, out=2)]
    return plan_value(forward=method([VECTOR], body, v(2)), delegates=[delegate_entry("doubling", "w")], **CONSTANTS)


ISA = "armv8-a" if platform.machine() == "aarch64" else "x86-64-v2"
TARGET = {"system": platform.system(), "machine": platform.machine(), "isa": ISA}


def portable_model(folder: Path, name: str = "digits", **fields: Any) -> dict[str, Any]:
    return lowered_model(folder, name, {"portable": {"plan": portable_plan(), **fields}}, tensors=TENSORS)


def both_recipes(folder: Path, **fields: Any) -> dict[str, Any]:
    default = {"plan": delegated_plan(), "blobs": {BLOB: b"code"}, **fields}
    recipes = {"portable": {"plan": portable_plan()}, "default": default}
    return lowered_model(folder, "digits", recipes, tensors=TENSORS, order=["default", "portable"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "digits" / "_lowered"
    return write_lowered(folder, {"digits": both_recipes(folder)})


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(site)
    return site


def installed(site: Path, distribution: str = "digits", name: str = "digits", *, declared: bool = True) -> Path:
    folder = site / distribution / "_lowered"
    write_lowered(folder, {name: portable_model(folder, name)}, distribution)
    install(site, distribution, {"hatch_lower.models": {name: f"{distribution}.model:export"}} if declared else {})
    return folder


def load_here(folder: Path, **fields: Any) -> LoadedModel:
    return load_folder(folder, "digits", delegates={"doubling": Doubling}, **fields)


# what a loaded model is


def test_a_model_and_its_methods(site: Path) -> None:
    installed(site)
    model = load("digits")
    value = torch.ones(4)
    assert model(value).tolist() == model.forward(value).tolist() == [1, 2, 3, 4]
    assert model["forward"](value).tolist() == [1, 2, 3, 4]
    assert [model.embed(value).item(), model["embed"](value).item()] == [1, 2]
    assert list(model.methods) == ["embed", "forward"]
    assert (model.name, model.recipe, model.recipes) == ("digits", "portable", ("portable",))
    assert repr(model) == "<LoadedModel `digits`, recipe `portable`: embed, forward>"
    assert model.signature("forward") == "forward(x0: float32[4])"
    assert model.debug_map("forward").undelegated == ()


def test_what_a_model_does_not_have(site: Path) -> None:
    installed(site)
    model = load("digits")
    with pytest.raises(AttributeError) as missing:
        model.embd  # noqa: B018
    assert str(missing.value) == (
        "model `digits` has no attribute or method `embd`; did you mean `embed`? known: `embed`, `forward`"
    )
    for ask in (lambda: model["embd"], lambda: model.signature("embd"), lambda: model.debug_map("embd")):
        with pytest.raises(InputError) as caught:
            ask()
        assert str(caught.value) == (
            "model `digits` has no method `embd`\n"
            "  found: did you mean `embed`? known: `embed`, `forward`\n"
            "  to do: name a method of the model"
        )


def test_a_model_without_forward(tmp_path: Path) -> None:
    plan = plan_value({"encode": method([VECTOR], [], v(0))})
    folder = write_lowered(tmp_path, {"digits": lowered_model(tmp_path, "digits", {"default": {"plan": plan}})})
    model = load_here(folder)
    assert torch.equal(model.encode(torch.ones(4)), torch.ones(4))
    with pytest.raises(InputError, match="model `digits` has no method `forward`"):
        model(torch.ones(4))


def test_clones_own_their_state(folder: Path) -> None:
    model = load_here(folder, recipe="portable")
    model.embed(torch.ones(4))
    clones = [model.clone(), copy.deepcopy(model)]
    assert [each.embed(torch.ones(4)).item() for each in (*clones, model)] == [2, 2, 2]
    model.reset()
    assert [each.embed(torch.ones(4)).item() for each in (*clones, model)] == [3, 3, 1]


def test_recipes_share_the_mapped_constants(folder: Path) -> None:
    model = load_here(folder)
    other = model.in_recipe("portable")
    assert (model.recipe, other.recipe) == ("default", "portable")
    pointers = {each._runnable._constants["w"].data_ptr() for each in (model, model.clone(), other)}  # type: ignore[attr-defined]
    assert len(pointers) == 1
    with pytest.raises(ProgramError, match="model `digits` has no recipe `portabel`"):
        model.in_recipe("portabel")


def test_names_that_no_method_can_have() -> None:
    assert {"clone", "reset", "methods", "recipe", "debug_map", "__call__", "_call"} <= RESERVED_METHOD_NAMES
    assert "forward" not in RESERVED_METHOD_NAMES


def test_constants_are_mapped_and_private(folder: Path) -> None:
    path = folder / "digits/constants.safetensors"
    before = path.read_bytes()
    model = load_here(folder, recipe="portable")
    constants = model._runnable._constants  # type: ignore[attr-defined]
    constants["w"].fill_(9)
    assert path.read_bytes() == before
    assert load_here(folder, recipe="portable")(torch.ones(4)).tolist() == [1, 2, 3, 4]


def test_threads_may_call_one_model(folder: Path) -> None:
    model = load_here(folder, recipe="portable")
    threads = [threading.Thread(target=lambda: [model.embed(torch.ones(4)) for _ in range(50)]) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert model.embed(torch.ones(4)).item() == 201


# by name and by path


def test_a_model_of_a_distribution(site: Path) -> None:
    installed(site, "zahlen")
    assert load("zahlen:digits")(torch.ones(4)).tolist() == [1, 2, 3, 4]
    with pytest.raises(ProgramError, match="there is no installed model `zahlen:digit`"):
        load("zahlen:digit")
    with pytest.raises(ProgramError) as caught:
        load("zahl:digits")
    assert str(caught.value).startswith(
        "there is no installed distribution `zahl`\n  where: the name `zahl:digits`\n  found: "
    )


def test_a_model_without_an_entry_point(site: Path) -> None:
    installed(site, declared=False)
    assert load("digits").recipe == "portable"
    assert load("digits:digits").recipe == "portable"


def test_an_unknown_name_lists_what_is_installed(site: Path) -> None:
    installed(site)
    installed(site, "second", "letters", declared=False)
    with pytest.raises(ProgramError) as caught:
        load("digit")
    error = caught.value
    assert (error.what, error.hint) == (
        "there is no installed model `digit`",
        "install the distribution with the model",
    )
    assert error.found.startswith("did you mean `digits`? known: ")
    assert {"`digits`", "`letters`"} <= set(error.found.removeprefix("did you mean `digits`? known: ").split(", "))


def test_a_text_is_never_a_path(site: Path) -> None:
    folder = installed(site)
    with pytest.raises(ProgramError) as caught:
        load(str(folder))
    assert caught.value.hint == "pass a `pathlib.Path` to load from a folder; a text is a model's name"


def test_fields_of_what_is_installed_are_those_that_importlib_reads() -> None:
    found = list(importlib.metadata.distributions())
    assert len(found) > 10
    for each in found:
        assert (read_field(each, "Name"), read_field(each, "Version")) == (each.name, each.version)


@pytest.mark.parametrize(
    "text",
    [
        "Metadata-Version: 2.1\nNAME: spelled\nVersion: 1.0\n\nName: in the description",
        "Metadata-Version: 2.1\nName:spelled \nVersion: 1.0",
    ],
)
def test_a_field_however_it_is_spelled(tmp_path: Path, text: str) -> None:
    (tmp_path / "METADATA").write_text(text)
    assert read_field(importlib.metadata.Distribution.at(tmp_path), "Name") == "spelled"


def test_a_field_that_is_not_there(tmp_path: Path, site: Path) -> None:
    (tmp_path / "METADATA").write_text("Metadata-Version: 2.1\n\nName: in the description")
    assert read_field(importlib.metadata.Distribution.at(tmp_path), "Name") == ""
    (site / "broken-1.0.dist-info").mkdir()
    assert requirement_reason("broken>=1", "manifest.json") == "it needs broken>=1, which is not installed"


def test_the_first_of_a_distribution_that_is_on_the_path_twice(site: Path, tmp_path: Path) -> None:
    installed(site)
    second = tmp_path / "second"
    second.mkdir()
    sys.path.append(str(second))  # the fixture takes it away
    installed(second)
    for path in (second / "digits").rglob("*.*"):
        path.unlink()
    assert load("digits")(torch.ones(4)).tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("declared", [True, False])
def test_one_name_in_two_distributions(site: Path, declared: bool) -> None:
    installed(site, declared=declared)
    installed(site, "second", declared=declared)
    with pytest.raises(ProgramError) as caught:
        load("digits")
    assert str(caught.value) == (
        "more than one installed distribution has a model `digits`\n"
        "  found: `digits:digits`, `second:digits`\n"
        '  to do: name the distribution: load("digits:digits")'
    )
    assert load("second:digits").recipe == "portable"


@pytest.mark.parametrize("name", ["digits", "digits:digits"])
def test_a_wheel_that_was_built_without_the_hook(site: Path, name: str) -> None:
    (site / "digits").mkdir()
    install(site, "digits", {"hatch_lower.models": {"digits": "digits.model:export"}})
    with pytest.raises(ProgramError) as caught:
        load(name)
    assert str(caught.value) == (
        "the distribution `digits` was built without lowered models\n"
        "  where: model `digits`\n"
        "  to do: build the wheel again with the build hook `lower`, and without HATCH_BUILD_NO_HOOKS"
    )


def test_a_wheel_whose_build_was_killed_before_the_payload_was_in_it(site: Path) -> None:
    (site / "digits").mkdir()
    install(site, "digits", {"hatch_lower.models": {"digits": "digits.model:export"}})
    record = next(site.glob("digits-*.dist-info/RECORD"))
    record.write_text(record.read_text() + f"{record.parent.name}/sboms/hatch-lower.cdx.json,,\n")
    with pytest.raises(ProgramError) as caught:
        load("digits")
    assert str(caught.value) == (
        "the distribution `digits` is incomplete: the lowered models are missing\n"
        "  where: model `digits`\n"
        "  to do: the build was interrupted: build the wheel again"
    )


def test_another_distribution_that_is_damaged(site: Path) -> None:
    installed(site, declared=False)
    other = installed(site, "second", "letters", declared=False)
    (other / "manifest.json").write_bytes(b"{")
    assert load("digits").name == "digits"
    with pytest.raises(ProgramError) as caught:
        load("letters")
    assert caught.value.found.endswith("; the lowered models of `second` cannot be read")


def test_folders(folder: Path) -> None:
    portable = folder.parent / "one"
    write_lowered(portable, {"digits": portable_model(portable)})
    for path in (portable, portable / "digits"):
        assert load(path).recipe == "portable"
    write_lowered(portable, {"a": portable_model(portable, "a"), "b": portable_model(portable, "b")})
    assert load(portable / "b").name == "b"
    with pytest.raises(ProgramError) as caught:
        load(portable)
    assert str(caught.value) == (
        "the folder does not hold a single model\n"
        f"  where: {portable}\n"
        "  found: known: `a`, `b`\n"
        "  to do: choose a model: name the installed model, or pass the path of the model's own folder inside this"
        " folder"
    )


@pytest.mark.parametrize(
    ("place", "found"),
    [
        ("none", "the path does not exist"),
        ("empty", "no `manifest.json` of hatch-lower"),
        ("other", "no `manifest.json` of hatch-lower"),
        ("text.json", "no `manifest.json` of hatch-lower"),
    ],
)
def test_a_folder_of_something_else(tmp_path: Path, place: str, found: str) -> None:
    for name in ("empty", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "text.json").write_text("{}")
    (tmp_path / "other" / "manifest.json").write_text('{"name": "a web application", "start_url": "."}')
    with pytest.raises(ProgramError) as caught:
        load(tmp_path / place)
    assert str(caught.value) == (
        "this is no folder of lowered models\n"
        f"  where: {tmp_path / place}\n"
        f"  found: {found}\n"
        "  to do: name the folder `_lowered` of an unpacked wheel, or a model's folder inside `_lowered`"
    )


def test_a_folder_of_ours_that_is_damaged_says_so(folder: Path) -> None:
    (folder / "manifest.json").write_bytes((folder / "manifest.json").read_bytes()[:-9])
    with pytest.raises(ProgramError, match="a packaged program file is damaged"):
        load(folder)
    (folder / "manifest.json").unlink()
    with pytest.raises(ProgramError, match="a packaged program file is missing"):
        load(folder)


# an editable install


def make_editable(site: Path, project: Path) -> None:
    """Make the installed model one of an editable install whose export read `src/a.py` and `src/b.py`."""
    sources = {}
    for name in ("src/a.py", "src/b.py"):
        path = project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
        sources[name] = [path.stat().st_mtime_ns, sha256_bytes(name.encode())]
    folder = installed(site)
    (folder / "sources.json").write_bytes(canonical_json({"schema": 1, "models": {"digits": sources}}))
    origin = {"url": project.as_uri(), "dir_info": {"editable": True}}
    (site / "digits-1.0.dist-info" / "direct_url.json").write_text(json.dumps(origin))


@pytest.mark.parametrize("change", ["edited", "gone"])
def test_sources_that_changed_since_they_were_lowered_are_said(site: Path, tmp_path: Path, change: str) -> None:
    make_editable(site, tmp_path / "project")
    source = tmp_path / "project" / "src" / "b.py"
    if change == "gone":
        source.unlink()
    else:
        source.write_text("other")
    text = (
        'model `digits` was lowered before `src/b.py` changed: install the project again, or set `editable = "eager"`'
    )
    with pytest.warns(RuntimeWarning) as warned:
        load("digits")
    assert [(str(each.message), each.filename) for each in warned] == [(text, __file__)]
    found = find_model("digits").source
    assert isinstance(found, PackagedFolder)
    rows = [row for row in check_packaged_model(found, "digits") if row.status == "stale"]
    assert [(row.detail, row.is_wrong) for row in rows] == [(text, True)]


def test_sources_with_another_time_and_the_same_contents_are_the_same(site: Path, tmp_path: Path) -> None:
    make_editable(site, tmp_path / "project")
    os.utime(tmp_path / "project" / "src" / "a.py", (1, 1))
    load("digits")


def test_sources_are_read_of_an_editable_install_only(site: Path, tmp_path: Path) -> None:
    make_editable(site, tmp_path / "project")
    (tmp_path / "project" / "src" / "a.py").unlink()
    (site / "digits-1.0.dist-info" / "direct_url.json").unlink()
    load("digits")


# in another process


def test_an_installed_model_is_sent_to_another_process_by_its_name(site: Path) -> None:
    installed(site, "shop", "digits")
    sent = pickle.dumps(load("digits", recipe="portable"))
    assert b"shop:digits" in sent
    assert str(site).encode() not in sent
    assert len(sent) < 300, "neither weights nor code"
    code = (
        "import pickle, sys; sys.path.insert(0, sys.argv[1]); model = pickle.loads(bytes.fromhex(sys.argv[2]));"
        "import torch; print(model.name, model.recipe, model(torch.ones(4)).tolist())"
    )
    done = subprocess.run([sys.executable, "-c", code, str(site), sent.hex()], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("digits portable [1.0, 2.0, 3.0, 4.0]\n", "")


def test_a_model_of_a_folder_is_sent_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_lowered(tmp_path / "one", {"digits": portable_model(tmp_path / "one")})
    monkeypatch.chdir(tmp_path)
    sent = pickle.dumps(load(Path("one")))
    monkeypatch.chdir(tmp_path / "one")
    assert pickle.loads(sent).name == "digits"
    assert copy.copy(load(tmp_path / "one")).name == "digits"


def test_state_that_calls_have_changed_is_not_lost_on_the_way(site: Path) -> None:
    installed(site)
    model = load("digits")
    pickle.dumps(model)
    model.embed(torch.ones(4))
    for each in (model, model.clone()):
        with pytest.raises(ProgramError) as caught:
            pickle.dumps(each)
        assert str(caught.value) == (
            "model `digits` cannot be sent to another process\n"
            "  found: state that calls may have changed; only the packaged state can be sent\n"
            "  to do: send the model before the first call or after `reset()`, or call `load` in the other process"
        )
    model.reset()
    pickle.dumps(model)


@pytest.mark.parametrize("name", [3, None, b"digits"])
def test_what_is_neither_a_name_nor_a_path(name: Any) -> None:
    with pytest.raises(InputError, match="`load` takes the name of an installed model, or a path object"):
        load(name)


# modules that a program needs


def test_modules_that_register_operators_are_imported_for_an_installed_model(site: Path) -> None:
    (site / "other_operators.py").write_text("")
    folder = site / "digits" / "_lowered"
    write_lowered(folder, {"digits": portable_model(folder, imports=["other_operators"])})
    install(site, "digits", {"hatch_lower.models": {"digits": "digits.model:export"}})
    with pytest.raises(ProgramError) as caught:
        load(folder)
    assert str(caught.value) == (
        "the program needs a module that is not imported\n"
        f"  where: {folder / 'manifest.json'}\n"
        "  found: `other_operators`\n"
        "  to do: run `import other_operators` before loading; a program from a folder does not import anything itself"
    )
    load("digits")
    assert sys.modules.pop("other_operators").__file__ == str(site / "other_operators.py")
    (site / "other_operators.py").write_text("raise ValueError('no')")
    importlib.invalidate_caches()
    with pytest.raises(ProgramError, match="a module that the program needs cannot be imported") as caught:
        load("digits")
    assert "found: `other_operators`: ValueError: no" in str(caught.value)


@pytest.mark.parametrize("namespace", REGISTERED_BY)
def test_operators_of_torchs_own_libraries_need_no_import(namespace: str) -> None:
    importlib.import_module(REGISTERED_BY[namespace])
    assert any(name.startswith(f"{namespace}::") for name in torch._C._dispatch_get_all_op_names())


# choosing a recipe


def test_the_first_recipe_that_can_run(folder: Path) -> None:
    assert load_here(folder).recipe == "default"
    assert load_here(folder)(torch.ones(4)).tolist() == [2.0] * 4


def test_the_fastest_measured_recipe_is_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(seconds: float) -> list[dict[str, Any]]:
        calls = [{"method": "forward", "sizes": {}, "seconds": seconds}]
        return [{"level": ISA, "threads": 1, "calls": calls}]

    monkeypatch.setattr(load_order, "levels_here", lambda _: (ISA,))
    recipes = {
        "default": {"plan": delegated_plan(), "blobs": {BLOB: b"code"}, "measured": measured(2e-3)},
        "portable": {"plan": portable_plan(), "measured": measured(1e-3)},
    }
    model = lowered_model(tmp_path, "digits", recipes, tensors=TENSORS, order=["default", "portable"])
    loaded = load_here(write_lowered(tmp_path, {"digits": model}))
    assert (loaded.recipe, loaded.recipes) == ("portable", ("portable", "default"))
    assert load_here(tmp_path, recipe="default").recipe == "default"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"requirements": ["torch==1.0.*"]}, f"it needs torch==1.0.*, and {torch.__version__} is installed"),
        ({"requirements": ["hatch-lower>=99"]}, "it needs hatch-lower>=99, and 0.1.0 is installed"),
        ({"requirements": ["no-such-package>=1"]}, "it needs no-such-package>=1, which is not installed"),
        (
            {"backends": ["dubling"]},
            "the delegate `dubling` is not installed; did you mean `doubling`? known: `doubling`",
        ),
        (
            {"target": {"system": "Linux", "machine": "z80", "isa": "z80"}},
            "it was compiled for Linux on z80, and this is ",
        ),
    ],
)
def test_falling_to_another_recipe_is_said_aloud(tmp_path: Path, fields: dict[str, Any], reason: str) -> None:
    folder = write_lowered(tmp_path, {"digits": both_recipes(tmp_path, **fields)})
    with pytest.warns(RuntimeWarning) as warned:
        assert load_here(folder).recipe == "portable"
    message = f"model `digits` runs recipe `portable` because `default` cannot run here: {reason}"
    assert str(warned[0].message).startswith(message)
    with pytest.raises(ProgramError) as caught:
        load_here(folder, recipe="default")
    assert str(caught.value).startswith(
        f"recipe `default` of model `digits` cannot run here\n  found: `default`: {reason}"
    )
    assert load_here(folder, recipe="portable").recipe == "portable"


class Deviceless(Doubling):
    """Finds when it is loaded that its device is not here."""

    @classmethod
    def load(cls, blob: DelegateBlob, constants: Sequence[Any]) -> Delegate:
        raise UnavailableError("no `GPU` here", where="file", found="CPU only", hint="install a driver")


def test_a_recipe_whose_device_is_missing_gives_way_to_the_next_one_aloud(folder: Path) -> None:
    kinds: dict[str, type[Delegate]] = {"doubling": Deviceless}
    reason = "no `GPU` here: CPU only; install a driver"
    with pytest.warns(RuntimeWarning) as warned:
        loaded = load_folder(folder, "digits", delegates=kinds)
    assert loaded.recipe == "portable"
    assert loaded(torch.ones(4)).tolist() == [1.0, 2.0, 3.0, 4.0]
    (warning,) = warned
    message = f"model `digits` runs recipe `portable` because `default` cannot run here: {reason}"
    assert (str(warning.message), warning.filename) == (message, __file__)
    for load_default in (
        lambda: load_folder(folder, "digits", "default", delegates=kinds),
        lambda: loaded.in_recipe("default"),
    ):
        with pytest.raises(UnavailableError) as caught:
            load_default()
        assert str(caught.value) == (
            "recipe `default` of model `digits` cannot run here\n"
            f"  found: `default`: {reason}\n"
            "  to do: install the named packages, or another wheel of the distribution"
        )


def test_no_recipe_that_can_run(tmp_path: Path) -> None:
    model = both_recipes(tmp_path, requirements=["torch==1.0.*"])
    model["recipes"]["portable"]["requirements"] = ["torch>=1.0; python_version > '3'", "no-such-package"]
    with pytest.raises(ProgramError) as caught:
        load_here(write_lowered(tmp_path, {"digits": model}))
    assert str(caught.value) == (
        "model `digits` cannot run here\n"
        f"  found: `default`: it needs torch==1.0.*, and {torch.__version__} is installed\n"
        "    `portable`: it needs no-such-package, which is not installed\n"
        "  to do: install the named packages, or another wheel of the distribution"
    )


def test_an_unknown_recipe(folder: Path) -> None:
    with pytest.raises(ProgramError) as caught:
        load_here(folder, recipe="defalt")
    assert str(caught.value) == (
        "model `digits` has no recipe `defalt`\n"
        "  found: did you mean `default`? known: `default`, `portable`\n"
        "  to do: name a known recipe"
    )


def test_delegates_come_from_entry_points(site: Path) -> None:
    folder = site / "digits" / "_lowered"
    write_lowered(folder, {"digits": both_recipes(folder)})
    install(
        site,
        "digits",
        {
            "hatch_lower.models": {"digits": "digits:export"},
            "hatch_lower.delegates": {"doubling": "support.plans:Doubling"},
        },
    )
    assert load("digits")(torch.ones(4)).tolist() == [2.0] * 4


def test_the_name_of_a_shipped_delegate_means_the_shipped_one(site: Path) -> None:
    install(site, "other", {"hatch_lower.delegates": {"reference": "support.plans:Doubling"}})
    assert DelegateKinds().load("reference").__module__ == "hatch_lower.backends.reference.run"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("no_such_module:Delegate", "the delegate `doubling` cannot be imported"),
        ("support.plans:product", "the delegate `doubling` is no `Delegate`"),
    ],
)
def test_delegates_that_cannot_be_used(site: Path, value: str, message: str) -> None:
    folder = site / "digits" / "_lowered"
    write_lowered(folder, {"digits": both_recipes(folder)})
    install(site, "digits", {"hatch_lower.delegates": {"doubling": value}})
    with pytest.raises(ProgramError, match=message):
        load("digits")


# the library of arrays


def numpy_model(folder: Path) -> dict[str, Any]:
    """Write a model of which one recipe needs torch, and the next one does not."""
    turned = plan_value(forward=method([VECTOR], [op("aten.view.default", v(0), [2, 2], out=1)], v(1)))
    recipes = {"default": {"plan": portable_plan()}, "lean": {"plan": turned}}
    return lowered_model(folder, "digits", recipes, tensors=TENSORS, order=["default", "lean"])


@pytest.fixture
def lean(tmp_path: Path) -> Path:
    return write_lowered(tmp_path / "digits" / "_lowered", {"digits": numpy_model(tmp_path / "digits" / "_lowered")})


def test_a_model_takes_and_returns_arrays_of_the_library_that_is_asked_for(lean: Path) -> None:
    values = numpy.arange(4, dtype=numpy.float32)
    assert load(lean).arrays == load(lean, arrays="torch").arrays == "torch"
    assert torch.equal(load(lean, recipe="lean")(torch.from_numpy(values)), torch.from_numpy(values).view(2, 2))
    with pytest.warns(RuntimeWarning, match="runs recipe `lean` because `default` cannot run here: it needs `arrays="):
        model = load(lean, arrays="numpy")
    assert (model.arrays, model.recipe) == ("numpy", "lean")
    for each in (
        model,
        model.clone(),
        copy.deepcopy(model),
        model.in_recipe("lean"),
        pickle.loads(pickle.dumps(model)),
    ):
        assert each.arrays == "numpy"
        result = each(values)
        assert type(result) is numpy.ndarray
        assert numpy.array_equal(result, values.reshape(2, 2))
    with pytest.raises(ProgramError, match="recipe `default` of model `digits` cannot run here") as caught:
        load(lean, recipe="default", arrays="numpy")
    assert caught.value.found == '`default`: it needs `arrays="torch"`: `aten.add.Tensor`'


def test_an_unknown_library_of_arrays_is_refused(lean: Path) -> None:
    with pytest.raises(InputError) as caught:
        load(lean, arrays="jax")
    assert str(caught.value) == (
        '`arrays` is "torch" or "numpy"\n'
        "  found: 'jax'\n"
        "  to do: omit `arrays`: then models take and return tensors if torch is installed, else NumPy's arrays"
    )


@pytest.mark.parametrize(
    ("hidden", "asked", "found"),
    [
        (["torch", "numpy"], None, "neither torch nor NumPy"),
        (["torch"], "torch", "no module `torch`"),
        (["numpy"], "numpy", "no module `numpy`"),
    ],
)
def test_a_library_of_arrays_that_is_not_installed_is_named(
    lean: Path, monkeypatch: pytest.MonkeyPatch, hidden: list[str], asked: str | None, found: str
) -> None:
    for name in hidden:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ProgramError, match=f"arrays of {asked or 'numpy'} here, which is not installed") as caught:
        load(lean, arrays=asked)
    assert caught.value.found == found


# eager models of editable installs


def write_eager(site: Path, source: str, **models: str) -> None:
    package = site / "eager_digits"
    (package / "_lowered").mkdir(parents=True)
    (package / "__init__.py").write_text(source)
    (package / "_lowered" / "eager.json").write_bytes(canonical_json({"schema": 1, "models": models}))
    install(site, "eager-digits")


EAGER = """
import torch, hatch_lower

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
    def forward(self, x, *, scale=2):
        self.count += 1
        return x * scale + self.count
    def embed(self, x):
        return x.requires_grad_()

def export():
    return hatch_lower.Model(Net(), {"forward": hatch_lower.Method(), "vector": hatch_lower.Method(attribute="embed")})

def pair():
    return Net(), (torch.ones(4),)

def programs():
    return {"forward": torch.export.export(Net(), (torch.ones(4),))}

def nothing():
    return None

def failing():
    raise RuntimeError("no weights")
"""


@pytest.fixture
def eager(site: Path) -> Iterator[Path]:
    names = ("export", "pair", "programs", "nothing", "failing", "missing")
    write_eager(site, EAGER, **{name: f"eager_digits:{name}" for name in names})
    yield site
    sys.modules.pop("eager_digits", None)


def test_an_eager_model_has_its_assets(eager: Path) -> None:
    folder = eager / "eager_digits" / "_lowered"
    listed = {"export": {"labels.txt": "export/assets/labels.txt"}}
    models = {"export": "eager_digits:export", "pair": "eager_digits:pair"}
    (folder / "eager.json").write_bytes(canonical_json({"schema": 1, "models": models, "assets": listed}))
    assert dict(load("export").assets) == {"labels.txt": folder / "export/assets/labels.txt"}
    assert dict(load("pair").assets) == {}


def test_an_eager_model_takes_tensors_alone(eager: Path) -> None:
    with pytest.raises(ProgramError, match="model `export` runs eagerly and has no method that takes NumPy's arrays"):
        load("export", arrays="numpy")


def test_an_eager_model(eager: Path) -> None:
    model = load("export")
    assert (model.recipe, model.name, list(model.methods)) == ("eager", "export", ["forward", "vector"])
    assert model(torch.ones(1)).item() == 3
    assert model(torch.ones(1), scale=4).item() == 6
    other = model.clone()
    model.reset()
    assert (model(torch.ones(1)).item(), other(torch.ones(1)).item()) == (3, 5)
    assert model.signature("forward") == "forward(x, *, scale=2)"
    assert load("export", recipe="eager").recipe == "eager"
    with pytest.raises(ProgramError, match="model `export` runs eagerly and has no debug map"):
        model.debug_map("forward")
    with pytest.raises(ProgramError, match="model `export` runs eagerly and has no recipe `default`"):
        load("export", recipe="default")


def test_a_model_that_was_not_lowered_in_time_says_so_at_each_load(eager: Path) -> None:
    document = {"schema": 2, "models": {"pair": "eager_digits:pair"}, "reason": "its programs were not known"}
    (eager / "eager_digits" / "_lowered" / "eager.json").write_bytes(canonical_json(document))
    for _ in range(2):
        with pytest.warns(RuntimeWarning, match="model `pair` runs eagerly, for its programs were not known: build"):
            assert load("pair").recipe == "eager"


@pytest.mark.parametrize("name", ["pair", "programs"])
def test_other_eager_exports(eager: Path, name: str) -> None:
    assert load(name)(torch.ones(4)).tolist() == [3.0] * 4


@pytest.mark.parametrize(
    ("name", "what", "found"),
    [
        ("nothing", "the entry point of model `nothing` returns no model", "NoneType"),
        ("failing", "the entry point of model `failing` failed", "RuntimeError: no weights"),
        (
            "missing",
            "the entry point of model `missing` failed",
            "AttributeError: module 'eager_digits' has no attribute 'missing'",
        ),
    ],
)
def test_eager_entry_points_that_fail(eager: Path, name: str, what: str, found: str) -> None:
    with pytest.raises(ProgramError) as caught:
        load(name)
    assert (caught.value.what, caught.value.found) == (what, found)


# damage


def rewrite_manifest(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = folder / "manifest.json"
    value = json.loads(path.read_bytes())
    change(value["models"]["digits"])
    path.write_bytes(canonical_json(value))


FILES = [
    "manifest.json",
    "digits/default.json",
    "digits/default.debug.json",
    "digits/constants.safetensors",
    "digits/check.safetensors",
    "digits/delegates/blob.bin",
    "digits/portable.json",
]


def test_a_model_has_its_assets(folder: Path) -> None:
    assert dict(load_here(folder).assets) == {}
    entry = file_entry(folder, "digits/assets/words/labels.txt", b"zero")
    rewrite_manifest(folder, lambda model: model.update(assets={"words/labels.txt": entry}))
    path = folder / "digits/assets/words/labels.txt"
    assert dict(load_here(folder).assets) == {"words/labels.txt": path}
    path.write_bytes(b"none")
    with pytest.raises(ProgramError, match="the one that the manifest lists"):
        load_here(folder, verify=True)
    path.unlink()
    with pytest.raises(ProgramError, match="a packaged program file is missing"):
        load_here(folder)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(ProgramError) as caught:
        load_here(folder)
    assert str(caught.value) == (f"a packaged program file is missing\n  where: {folder / name}\n  to do: {AGAIN}")


@pytest.mark.parametrize("name", FILES[1:])
def test_a_file_of_another_size(folder: Path, name: str) -> None:
    size = (folder / name).stat().st_size
    (folder / name).write_bytes((folder / name).read_bytes() + b" ")
    with pytest.raises(ProgramError) as caught:
        load_here(folder)
    assert str(caught.value) == (
        "a packaged program file is not the one that the manifest lists\n"
        f"  where: {folder / name}\n"
        f"  found: {size + 1} bytes, where the manifest says {size}\n"
        f"  to do: {AGAIN}"
    )


@pytest.mark.parametrize("name", ["digits/default.json", "digits/default.debug.json", "digits/delegates/blob.bin"])
def test_every_flipped_byte_of_a_digested_file(folder: Path, name: str) -> None:
    data = (folder / name).read_bytes()
    for index in range(len(data)):
        damaged = bytearray(data)
        damaged[index] ^= 1 << index % 8
        (folder / name).write_bytes(damaged)
        with pytest.raises(ProgramError, match="another sha256 than the manifest says"):
            load_here(folder)


@pytest.mark.parametrize("name", FILES)
def test_every_truncation(folder: Path, name: str) -> None:
    data = (folder / name).read_bytes()
    step = max(1, len(data) // 100)
    for end in range(0, len(data) - 1, step):
        (folder / name).write_bytes(data[:end])
        with pytest.raises(ProgramError):
            load_here(folder)


def test_every_flipped_byte_of_the_manifest(folder: Path) -> None:
    data = (folder / "manifest.json").read_bytes()
    value = torch.ones(4)
    for index in range(len(data)):
        damaged = bytearray(data)
        damaged[index] ^= 1 << index % 7
        (folder / "manifest.json").write_bytes(damaged)
        try:
            model = load_here(folder, recipe="portable")
        except LowerError:
            continue
        assert model(value).tolist() == [1, 2, 3, 4]


def test_every_flipped_byte_of_the_constants(folder: Path) -> None:
    path = folder / "digits/constants.safetensors"
    data = path.read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    for index in range(len(data)):
        damaged = bytearray(data)
        damaged[index] ^= 1 << index % 8
        path.write_bytes(damaged)
        with pytest.raises(ProgramError, match=r"another sha256|does not fit"):
            load_here(folder, verify=index >= begin)


def test_tensors_are_compared_only_when_asked(folder: Path) -> None:
    path = folder / "digits/constants.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    load_here(folder)
    with pytest.raises(ProgramError, match="another sha256 than the manifest says"):
        load_here(folder, verify=True)


def test_the_installed_manifest_is_compared_with_record(site: Path) -> None:
    folder = installed(site)
    rewrite_manifest(folder, lambda model: model.update(check=None))
    with pytest.raises(ProgramError) as caught:
        load("digits")
    assert str(caught.value) == (
        "a packaged program file is not the one that the manifest lists\n"
        f"  where: {folder / 'manifest.json'}\n"
        "  found: another sha256 than the RECORD of the installed distribution says\n"
        f"  to do: {AGAIN}"
    )


@pytest.mark.parametrize("name", ["manifest.json", "digits/default.json", "digits/default.debug.json"])
def test_a_newer_schema(folder: Path, name: str) -> None:
    value = json.loads((folder / name).read_bytes())
    value["schema"] += 1
    data = canonical_json(value)
    (folder / name).write_bytes(data)

    def change(model: dict[str, Any]) -> None:
        key = "debug" if "debug" in name else "plan"
        model["recipes"]["default"][key].update(size=len(data), sha256=sha256_bytes(data))

    if name != "manifest.json":
        rewrite_manifest(folder, change)
    with pytest.raises(ProgramError, match="needs a newer hatch-lower"):
        load_here(folder).debug_map("forward")


def test_files_outside_the_folder(folder: Path, tmp_path: Path) -> None:
    path = folder / "digits/default.json"
    outside = tmp_path / "outside.json"
    outside.write_bytes(path.read_bytes())
    path.unlink()
    path.symlink_to(outside)
    with pytest.raises(ProgramError) as caught:
        load_here(folder)
    assert caught.value.found == f"a link out of the folder `{folder}`"
    path.unlink()
    path.symlink_to(path)
    with pytest.raises(ProgramError, match="cannot be read"):
        load_here(folder)


def test_links_within_the_folder(folder: Path) -> None:
    (folder / "digits/default.json").rename(folder / "digits/moved.json")
    (folder / "digits/default.json").symlink_to("moved.json")
    (folder / "digits").rename(folder / "moved")
    (folder / "digits").symlink_to("moved", target_is_directory=True)
    assert load_here(folder)(torch.ones(4)).tolist() == [2, 2, 2, 2]


@pytest.mark.parametrize("name", FILES)
def test_what_is_no_regular_file(folder: Path, name: str) -> None:
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(ProgramError, match="no regular file"):
        load_here(folder)
    (folder / name).unlink()
    (folder / name).mkdir()
    with pytest.raises(ProgramError, match=r"no regular file|cannot be read"):
        load_here(folder)


def test_a_delegate_that_the_manifest_does_not_list(folder: Path) -> None:
    rewrite_manifest(folder, lambda model: model["recipes"]["default"].update(delegates=[]))
    with pytest.raises(
        ProgramError, match=r"the delegate's file 'digits/delegates/blob\.bin', which the manifest lacks"
    ):
        load_here(folder)


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"backends": []}, "the backends `doubling`, where the manifest says none"),
        ({"target": TARGET}, "the machine any, where the manifest says {system} {machine}, {isa}"),
        ({"methods": {}}, "the methods `forward`, where the manifest says none"),
    ],
)
def test_a_plan_that_the_manifest_contradicts(tmp_path: Path, fields: dict[str, Any], found: str) -> None:
    """The manifest decides whether a recipe can run here, and what `inspect` shows; the plan decides what runs."""
    folder = write_lowered(tmp_path, {"digits": both_recipes(tmp_path, **fields)})
    with pytest.raises(ProgramError) as caught:
        load_here(folder)
    assert str(caught.value) == (
        "the plan and the manifest contradict each other\n"
        f"  where: {folder / 'digits/default.json'}\n"
        f"  found: {found.format(**TARGET)}\n"
        "  to do: install the distribution again; if that does not help, build its wheel again"
    )


def test_native_code_that_the_manifest_conceals_is_not_loaded(tmp_path: Path) -> None:
    plan = delegated_plan()
    plan["delegates"][0]["target"] = TARGET
    fields = {"plan": plan, "blobs": {BLOB: b"code"}, "backends": [], "target": None}
    folder = write_lowered(
        tmp_path, {"digits": lowered_model(tmp_path, "digits", {"portable": fields}, tensors=TENSORS)}
    )
    with pytest.raises(ProgramError, match="the plan and the manifest contradict each other"):
        load_here(folder, recipe="portable")


def test_constants_that_the_manifest_does_not_list(folder: Path) -> None:
    rewrite_manifest(folder, lambda model: model.update(constants=None))
    with pytest.raises(ProgramError, match="no constants file, which the plan of recipe `default` needs"):
        load_here(folder)


HEADER = json.loads(safetensors_bytes(TENSORS)[8:].split(b"}}")[0] + b"}}")


@pytest.mark.parametrize(
    ("header", "found"),
    [
        ({}, "the file does not contain the tensor"),
        ([], "a list of 0 instead of an object"),
        ({**HEADER, "w": None}, "None instead of an object"),
        (
            {**HEADER, "w": {**HEADER["w"], "dtype": "I32"}},
            "a tensor of another dtype or shape than the plan's float32[4]",
        ),
        (
            {**HEADER, "w": {**HEADER["w"], "shape": [2, 2]}},
            "a tensor of another dtype or shape than the plan's float32[4]",
        ),
        ({**HEADER, "w": {**HEADER["w"], "data_offsets": [0, 15]}}, "15 bytes for 4 elements of float32"),
        ({**HEADER, "w": {**HEADER["w"], "data_offsets": [8, 24]}}, "the bytes 8 to 24 of 20"),
        ({**HEADER, "w": {**HEADER["w"], "data_offsets": [-4, 12]}}, f"-4 instead of an integer from 0 to {2**63 - 1}"),
        ({**HEADER, "w": {**HEADER["w"], "data_offsets": [16, 0]}}, "-16 bytes for 4 elements of float32"),
    ],
)
def test_a_constants_file_that_does_not_fit_the_plan(folder: Path, header: Any, found: str) -> None:
    text = json.dumps(header).encode()
    data = len(text).to_bytes(8, "little") + text + b"\0" * 20
    (folder / "digits/constants.safetensors").write_bytes(data)
    digests = {"size": len(data), "sha256": sha256_bytes(data), "header_sha256": sha256_bytes(data[: 8 + len(text)])}
    rewrite_manifest(folder, lambda model: model["constants"].update(digests))
    with pytest.raises(ProgramError) as caught:
        load_here(folder)
    assert caught.value.found == found


@pytest.mark.parametrize("data", [b"", b"\0" * 7, b"\xff" * 8, b"\xff" * 64, (2).to_bytes(8, "little") + b"{"])
def test_a_constants_file_without_a_header(folder: Path, data: bytes) -> None:
    (folder / "digits/constants.safetensors").write_bytes(data)
    rewrite_manifest(folder, lambda model: model["constants"].update(size=len(data)))
    with pytest.raises(ProgramError):
        load_here(folder)


def test_garbage_collection_is_left_as_it_was(folder: Path) -> None:
    for switch in (gc.disable, gc.enable):
        switch()
        expected = gc.isenabled()
        load_here(folder)
        assert gc.isenabled() is expected
