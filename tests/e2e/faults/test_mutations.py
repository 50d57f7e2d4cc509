"""The mutation matrix: a project whose export reads in every way, built once; then one thing is changed at a time.

Each change that matters is noticed by a look-up alone, in the right words and no others; when it is taken back, the
stored result holds again. What does not matter is not noticed. `support.mutations` has the project and its look-ups.
"""

from __future__ import annotations

import compileall
import dataclasses
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.effort import LONG
from support.mutations import (
    LookUps,
    World,
    entries_of,
    install,
    make_world,
    write_archive,
    write_array,
    write_native,
    write_table,
)

from hatch_lower.config.tables import HookTable, toml_key
from hatch_lower.driver.inputs.preload import built_library

pytestmark = [pytest.mark.isolated, pytest.mark.slow]

Mutation = Callable[[World], object]
DATA = "many_inputs/data"
WHEEL = "[tool.hatch.build.targets.wheel]"
LATER_HOOK = """
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

class Hook(BuildHookInterface):
    pass
"""
PASSED = 'pass-env = ["MANY_*"]'


@pytest.fixture(scope="session")  # tests of this module may run apart, where two processes share the work
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The project, built once."""
    if built_library(tmp_path_factory.mktemp("library")) is None:
        pytest.skip("without the preloaded library this export's inputs are not known completely")
    with LookUps() as look_ups:
        world = make_world(tmp_path_factory.mktemp("mutations"), look_ups)
        done = world.project.build(environment=world.environment()).check()
        assert "not reusable without an export" not in done.output
        yield world


def write(path: str, content: str | bytes = "other\n") -> Mutation:
    """Write a file of the project, with other contents if it is there."""

    def mutate(world: World) -> None:
        file = world.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        data = content.encode() if isinstance(content, str) else content
        assert not file.is_file() or file.read_bytes() != data
        file.write_bytes(data)

    return mutate


def beside(path: str, text: str) -> Mutation:
    """Write a file on the search path."""

    def mutate(world: World) -> None:
        (world.beside / path).parent.mkdir(exist_ok=True)
        (world.beside / path).write_text(text)

    return mutate


def edit(path: str, old: str, new: str) -> Mutation:
    """Replace the only occurrence of a text in a file of the project."""
    return lambda world: world.project.edit(path, old, new)


def rename(path: str, old: str, new: str) -> Mutation:
    """Replace every occurrence of a name in a file of the project."""

    def mutate(world: World) -> None:
        text = (world.root / path).read_text()
        assert old in text
        assert new not in text
        (world.root / path).write_text(text.replace(old, new))

    return mutate


def table(old: str, new: str) -> Mutation:
    """Replace a text in pyproject.toml."""
    return edit("pyproject.toml", old, new)


def setting(text: str) -> Mutation:
    """Add a setting to the hook's table."""
    return table(PASSED, f"{PASSED}\n{text}")


def with_card(world: World) -> None:
    """Give the model a card."""
    write("card.json", "{}")(world)
    setting('models.many.card = "card.json"')(world)


def remove(path: str) -> Mutation:
    """Remove a file or folder of the project."""
    return lambda world: (
        shutil.rmtree(world.root / path) if (world.root / path).is_dir() else (world.root / path).unlink()
    )


def variable(name: str, value: str) -> Mutation:
    """Set a variable; an empty value removes it."""
    return lambda world: world.variables.update({name: value})


def tensors(path: str, name: str) -> Mutation:
    """Write other values of the same size."""

    def mutate(world: World) -> None:
        from safetensors.torch import load_file, save_file

        save_file({name: load_file(world.root / path)[name] * 2}, world.root / path)

    return mutate


def saved(world: World) -> None:
    """Write another state."""
    import torch

    torch.save({"bias": torch.zeros(3)}, world.data / "state.pt")


def array(world: World) -> None:
    """Write another number, if it was read."""
    pytest.importorskip("numpy", reason="without NumPy the export reads no array")
    write_array(world.data / "array.npy", 2)


def rewrite_in_place(world: World) -> None:
    """Change one byte; size and time stay."""
    file = world.data / "opened.txt"
    before = file.stat()
    file.write_text("oPened\n")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def retarget(world: World) -> None:
    """Let the link lead elsewhere."""
    (world.data / "linked.txt").unlink()
    (world.data / "linked.txt").symlink_to("path.txt")


def resolve_elsewhere(world: World) -> None:
    """Let the link that was followed before the file was opened lead elsewhere."""
    (world.data / "current").unlink()
    (world.data / "current").symlink_to("second")


def become_folder(path: str) -> Mutation:
    """Put a folder in the place of a data file."""
    return lambda world: ((world.data / path).unlink(), (world.data / path).mkdir())


def become_package(world: World) -> None:
    """A module becomes a package with the same code."""
    layers = world.root / "many_inputs" / "layers"
    (layers / "scale").mkdir()
    (layers / "scale.py").rename(layers / "scale" / "__init__.py")


def uninstall(world: World) -> None:
    """Remove a distribution."""
    for path in (world.beside / "installed").glob("fake_asked*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def first_cat(world: World) -> None:
    """Put another command before the one that was run."""
    path = world.beside / "bin" / "cat"
    path.write_text("#!/bin/sh\necho other\n")
    path.chmod(0o755)


def later_hook(world: World) -> None:
    """Declare another hook."""
    write("hooks/later.py", LATER_HOOK)(world)
    with (world.root / "pyproject.toml").open("a") as file:
        file.write('\n[tool.hatch.build.targets.wheel.hooks.custom]\npath = "hooks/later.py"\n')


def installed(name: str, version: str, number: int | None = None) -> Mutation:
    """Install a distribution, which may have a module of its name with a number."""
    files = {} if number is None else {f"{name.replace('-', '_')}.py": f"NUMBER = {number}\n"}
    return lambda world: install(world.beside / "installed", name, version, files)


def backend(name: str) -> Mutation:
    """Install a distribution that brings a backend of a name."""
    points = f"[hatch_lower.backends]\n{name} = fake_backend:Backend\n"
    files = {"fake_backend-1.0.dist-info/entry_points.txt": points}
    return lambda world: install(world.beside / "installed", "fake-backend", "1.0", files)


def every_mode(world: World) -> None:
    """Take all but the owner's rights away."""
    for path in sorted(world.root.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o700 if path.is_dir() else 0o600)


def every_time(world: World) -> None:
    """Touch every file."""
    for path in sorted(world.root.rglob("*")):
        os.utime(path)


def other_keys(world: World) -> None:
    """Write the settings in another order."""
    lines = 'backends = ["null"]\nverify = false        # the null backend computes nothing\n'
    table(lines, "")(world)
    setting("verify = false\nbackends = ['null']")(world)
    table('name = "many-inputs"\nversion = "1.0"', 'version = "1.0"\nname = "many-inputs"')(world)


def same_contents(link: str) -> Mutation:
    """Let a link to `target.txt` lead to a copy of that."""

    def mutate(world: World) -> None:
        shutil.copyfile(world.data / "target.txt", world.data / "copy.txt")
        (world.data / link).unlink()
        (world.data / link).symlink_to("copy.txt")

    return mutate


def made_again(world: World) -> None:
    """Write a file again as it was."""
    content = (world.data / "opened.txt").read_bytes()
    (world.data / "opened.txt").unlink()
    (world.data / "opened.txt").write_bytes(content)


def compiled(world: World) -> None:
    """Compile all modules, as an import does."""
    assert compileall.compile_dir(world.root, quiet=1)
    assert list(world.root.rglob("*.pyc"))


def other_home(world: World) -> None:
    """Build as a user with another home folder."""
    (world.beside / "home").mkdir()
    world.variables["HOME"] = str(world.beside / "home")


NOTICED: dict[str, tuple[Mutation, list[str]]] = {
    # the project's own modules
    "code": (edit("many_inputs/layers/scale.py", "2.0", "3.0"), ["many_inputs/layers/scale.py"]),
    "comment": (edit("many_inputs/readers.py", "def table", "# A comment.\ndef table"), ["many_inputs/readers.py"]),
    "variable of a function": (rename("many_inputs/model.py", "product", "result"), ["many_inputs/model.py"]),
    "initial module of the package": (write("many_inputs/__init__.py"), ["many_inputs/__init__.py"]),
    "initial module of the subpackage": (write("many_inputs/layers/__init__.py"), ["many_inputs/layers/__init__.py"]),
    "module is gone": (
        remove("many_inputs/layers/scale.py"),
        ["many_inputs/layers/scale.py is gone", "modules in many_inputs/layers"],
    ),
    "module becomes a package": (
        become_package,
        ["many_inputs/layers/scale.py is gone", "modules in many_inputs/layers"],
    ),
    "package before a module": (write("many_inputs/readers/__init__.py", ""), ["modules in many_inputs"]),
    "native module before a module": (write("many_inputs/layers/scale.abi3.so", ""), ["modules in many_inputs/layers"]),
    "new module in a package": (write("many_inputs/more.py", ""), ["modules in many_inputs"]),
    # modules that were found elsewhere or nowhere
    "optional module in the project": (
        write("digits_extra.py", ""),
        ["new module digits_extra", "modules in the project's folder"],
    ),
    "optional module, compiled, in the project": (
        write("digits_extra.pyc", ""),
        ["new module digits_extra", "modules in the project's folder"],
    ),
    "optional module on the search path": (beside("editable/digits_extra.py", ""), ["new module digits_extra"]),
    "optional module is installed": (installed("digits-extra", "1.0", 1), ["new module digits_extra"]),
    "standard library shadowed": (
        write("colorsys.py", ""),
        ["new module colorsys shadows the standard library's", "modules in the project's folder"],
    ),
    "standard library shadowed by a package": (
        write("colorsys/__init__.py", ""),
        ["new module colorsys shadows the standard library's", "modules in the project's folder"],
    ),
    "standard library shadowed on the search path": (
        beside("editable/colorsys.py", ""),
        ["new module colorsys shadows the standard library's"],
    ),
    "distribution shadowed": (
        write("fake_installed.py", ""),
        ["new module fake_installed shadows that of fake-installed", "modules in the project's folder"],
    ),
    "torch shadowed": (
        write("torch.py", ""),
        ["new module torch shadows that of torch", "modules in the project's folder"],
    ),
    "loose module": (beside("editable/loose.py", "NUMBER = 2\n"), ["loose.py"]),
    "loose module shadowed": (beside("installed/loose.py", "NUMBER = 2\n"), ["loose.py"]),
    "loose module shadowed by a package": (
        beside("installed/loose/__init__.py", "NUMBER = 1\n"),
        ["module loose: loose.py → loose"],
    ),
    "archive": (lambda world: write_archive(world.archive, "NUMBER = 2\n"), ["input ARCHIVE", "module zipped"]),
    "module of the archive shadowed": (
        beside("editable/zipped.py", "NUMBER = 1\n"),
        ["module zipped: an archive → zipped.py"],
    ),
    "archive is gone": (lambda world: world.archive.unlink(), ["input ARCHIVE is gone", "module zipped is gone"]),
    "portion of a namespace": (beside("portion/many_space/there.py", "NUMBER = 2\n"), ["many_space/there.py"]),
    "another portion of a namespace": (
        beside("editable/many_space/more.py", ""),
        [
            "module many_space: many_space + site/many_space → "
            "many_space + site/many_space + BESIDE/portion/many_space",
            "modules in many_space",
        ],
    ),
    "namespace becomes a package": (
        write("many_space/__init__.py", ""),
        [
            "module many_space: many_space + site/many_space → many_space",
            "modules in the project's folder",
            "modules in many_space",
        ],
    ),
    "module hidden in a namespace": (write("many_space/there.py", "NUMBER = 1\n"), ["modules in many_space"]),
    # data files by their readers
    "importlib.resources": (write(f"{DATA}/resource.txt"), ["input many_inputs/data/resource.txt"]),
    "open": (write(f"{DATA}/opened.txt"), ["input many_inputs/data/opened.txt"]),
    "same size and time": (rewrite_in_place, ["input many_inputs/data/opened.txt"]),
    "pathlib": (write(f"{DATA}/path.txt"), ["input many_inputs/data/path.txt"]),
    "os.open": (write(f"{DATA}/descriptor.txt"), ["input many_inputs/data/descriptor.txt"]),
    "numpy.load": (array, ["input many_inputs/data/array.npy"]),
    "torch.load": (saved, ["input many_inputs/data/state.pt"]),
    "safetensors load_file, the weights": (
        tensors(f"{DATA}/weights.safetensors", "weight"),
        ["input many_inputs/data/weights.safetensors"],
    ),
    "safetensors safe_open": (
        tensors(f"{DATA}/tensors.safetensors", "bias"),
        ["input many_inputs/data/tensors.safetensors"],
    ),
    "torch.from_file": (write(f"{DATA}/raw.bin", bytes([1] * 16)), ["input many_inputs/data/raw.bin"]),
    "sqlite3": (
        lambda w: write_table(w.data / "table.sqlite", "update numbers set number = 2"),
        ["input many_inputs/data/table.sqlite"],
    ),
    "sqlite3, a journal to be read": (
        write(f"{DATA}/table.sqlite-wal"),
        ["new file many_inputs/data/table.sqlite-wal"],
    ),
    "ctypes": (lambda world: write_native(world.data / "native.so", 2), ["input many_inputs/data/native.so"]),
    "target of a link": (
        write(f"{DATA}/target.txt", "TARGET\n"),
        ["input many_inputs/data/linked.txt", "input many_inputs/data/named.txt"],
    ),
    "link to elsewhere": (retarget, ["input many_inputs/data/linked.txt"]),
    "link to a folder that was resolved": (
        resolve_elsewhere,
        ["many_inputs/data/current: folder through first → folder through second"],
    ),
    "name of a link's target": (
        same_contents("named.txt"),
        ["many_inputs/data/named.txt: file of 7 bytes through target.txt → file of 7 bytes through copy.txt"],
    ),
    "link is gone": (remove(f"{DATA}/linked.txt"), ["input many_inputs/data/linked.txt is gone"]),
    "file is gone": (remove(f"{DATA}/opened.txt"), ["input many_inputs/data/opened.txt is gone"]),
    "declared input": (write("declared/one.csv"), ["input declared/one.csv"]),
    "another declared input": (write("declared/two.csv"), ["files that match declared/*.csv"]),
    # folders, and looks without reading
    "os.listdir": (write(f"{DATA}/listed/b.txt"), ["files in many_inputs/data/listed"]),
    "os.listdir, one is gone": (remove(f"{DATA}/listed/a.txt"), ["files in many_inputs/data/listed"]),
    "folder is gone": (remove(f"{DATA}/listed"), ["many_inputs/data/listed is gone"]),
    "glob": (write(f"{DATA}/globbed/b.txt"), ["files in many_inputs/data/globbed"]),
    "os.scandir": (write(f"{DATA}/scanned/b.txt"), ["files in many_inputs/data/scanned"]),
    "os.scandir, a file becomes a folder": (become_folder("scanned/a.txt"), ["files in many_inputs/data/scanned"]),
    "missing file": (write(f"{DATA}/missing.txt"), ["new file many_inputs/data/missing.txt"]),
    "missing file is a folder": (write(f"{DATA}/missing.txt/a"), ["new folder many_inputs/data/missing.txt"]),
    "os.path.getsize": (write(f"{DATA}/sized.bin"), ["many_inputs/data/sized.bin: file of 11 bytes → file of 6 bytes"]),
    "file becomes a folder": (become_folder("sized.bin"), ["many_inputs/data/sized.bin: file of 11 bytes → folder"]),
    # the environment
    "variable": (variable("MANY_SET", "2"), ["variable MANY_SET"]),
    "variable is removed": (variable("MANY_SET", ""), ["variable MANY_SET is no longer set"]),
    "variable is set": (variable("MANY_UNSET", "1"), ["variable MANY_UNSET is set now"]),
    "variable in C": (variable("MANY_C", "2"), ["variable MANY_C"]),
    "variable in C is set": (variable("MANY_C_UNSET", "1"), ["variable MANY_C_UNSET is set now"]),
    "secret's value": (variable("MANY_TOKEN", "2"), ["variable MANY_TOKEN"]),
    "secret is removed": (variable("MANY_TOKEN", ""), ["variable MANY_TOKEN is no longer set"]),
    "user": (variable("USER", "another"), ["variable USER"]),
    "variable of the interpreter": (variable("PYTHONOPTIMIZE", "1"), ["variable PYTHONOPTIMIZE"]),
    "variable of compilers": (variable("CXX", "c++"), ["variable CXX"]),
    # distributions
    "version of a distribution with a module": (installed("fake-installed", "1.1", 1), ["fake-installed 1.0 → 1.1"]),
    "version of a distribution that was asked for": (installed("fake-asked", "2.1"), ["fake-asked 2.0 → 2.1"]),
    "other files of a distribution": (
        installed("fake-installed", "1.0", 2),
        ["fake-installed 1.0: other files or metadata"],
    ),
    "distribution is gone": (uninstall, ["fake-asked 2.0 is no longer installed"]),
    "distribution that was not there": (installed("fake-absent", "3.0"), ["fake-absent 3.0 was installed"]),
    "backend": (backend("null"), ["backends of fake-backend none → 1.0"]),
    # the project
    "name": (table('name = "many-inputs"', 'name = "many-outputs"'), ['distribution "many-inputs" → "many-outputs"']),
    "entry point": (
        table("model:export", "model:export_half"),
        [
            "the project's entry points",
            'export "many_inputs.model:export" → "many_inputs.model:export_half"',
        ],
    ),
    "another entry point": (
        table(WHEEL, f'[project.scripts]\nmany = "many_inputs:main"\n\n{WHEEL}'),
        ["the project's entry points"],
    ),
    "import root": (table(WHEEL, f'[tool.hatch.build]\ndev-mode-dirs = ["many_space"]\n\n{WHEEL}'), ["import roots"]),
    "rewritten path": (
        table(WHEEL, f'{WHEEL}\nsources = {{ "many_inputs" = "many/inputs" }}'),
        ["import roots", 'package "many_inputs" → "many.inputs"'],
    ),
    "later hook": (later_hook, ["later build hooks"]),
}


SETTINGS: dict[str, tuple[Mutation, list[str]]] = {
    "backends": (
        table('backends = ["null"]', 'backends = ["reference"]'),
        ["recipe default, backend null removed", "recipe default, backend reference added"],
    ),
    "recipes": (
        setting("recipes.quick.rtol = 0.5"),
        ["recipe quick added"],
    ),
    "models": (
        setting('models.many.recipes = ["default"]'),
        ["recipe portable removed"],
    ),
    "package": (setting('package = "many_inputs.layers"'), ['package "many_inputs" → "many_inputs.layers"']),
    "verify": (table("verify = false ", "verify = true "), ["recipe default: verify false → true"]),
    "imports": (
        setting('imports = ["json"]'),
        ['recipe default: imports [] → ["json"]', 'recipe portable: imports [] → ["json"]'],
    ),
    "weights": (setting('weights = "file"'), ["weights in a file beside the wheel"]),
    "rtol": (setting("rtol = 0.5"), ["recipe default: rtol 0.0001 → 0.5", "recipe portable: rtol 0.0001 → 0.5"]),
    "atol": (setting("atol = 0.5"), ["recipe default: atol 1e-05 → 0.5", "recipe portable: atol 1e-05 → 0.5"]),
    "check-megabytes": (setting("check-megabytes = 0.5"), ["check 1000000 → 500000"]),
    "on-mismatch": (
        setting('on-mismatch = "fail"'),
        [
            'recipe default: on-mismatch "leave-out" → "fail"',
            'recipe portable: on-mismatch "leave-out" → "fail"',
        ],
    ),
    "inputs": (table("declared/*.csv", "declared/*"), ['inputs ["declared/*.csv"] → ["declared/*"]']),
    "strict": (setting("strict = true"), ["strict false → true"]),
}
"""Settings that shape the result: a change of each, and what is said."""

NOTICED_BY_SHELL: dict[str, tuple[Mutation, list[str]]] = {
    "code": (edit("many_inputs/shell.py", "torch.relu", "torch.sigmoid"), ["many_inputs/shell.py"]),
    "file": (write(f"{DATA}/shown.txt"), ["input many_inputs/data/shown.txt"]),
    "folder": (write(f"{DATA}/shown/b.txt"), ["files in many_inputs/data/shown"]),
    "variable": (variable("MANY_SHELL", "2"), ["variable MANY_SHELL"]),
    "another variable": (variable("MANY_SET", "2"), ["variable MANY_SET"]),
    "command": (first_cat, ["new file BESIDE/bin/cat", "command cat"]),
}
"""What the program that an export starts reads; it may read any variable."""

SETTINGS_WITHOUT_EFFECT: dict[str, Mutation] = {
    "runtime-requirements": setting('runtime-requirements = "off"'),
    "editable": setting('editable = "skip"'),
    "jobs": setting("jobs = 2"),
    "keep-weights": setting("keep-weights = true"),
    "executor": setting('executor = "dask"'),
    "timeout": setting("timeout = 60"),
    "torch-free": setting("torch-free = true"),
    "cache": setting('cache.public-keys = ["AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="]'),
    "bench": setting("bench.max-call-ratio = 1.1"),
    "pass-env": table("MANY_*", "MANY*"),
    "order": setting('order = "measured"'),  # of measured times, which are in no key
    "variants": setting("variants = true"),  # the parent divides the result
}
"""Settings that shape no result."""

NOT_NOTICED: dict[str, Mutation] = {
    # files
    "README in the project": write("README.md"),
    "README beside a module": write("many_inputs/README.md"),
    "file beside data": write(f"{DATA}/unread.txt"),
    "hidden file": write(".editorconfig"),
    "hidden folder in a package": write("many_inputs/.hidden/file"),
    "what was built": write("dist/many_inputs-0.9-py3-none-any.whl"),
    "folder of tests": write("tests/test_many.py"),
    "folder that hides nothing": write("colorsys/notes.txt"),
    "times": every_time,
    "modes": every_mode,
    "compiled modules": compiled,
    "a file written again": made_again,
    "contents of a listed file": write(f"{DATA}/listed/a.txt"),
    "contents of a file whose size was asked": write(f"{DATA}/sized.bin", "9876543210\n"),
    "link to the same contents": same_contents("linked.txt"),
    "unread module that a package hides": write("many_inputs/layers.py", "other = 1\n"),
    "declared by no glob": write("declared/notes.md"),
    # what is installed
    "backend that no recipe names": backend("fake"),
    "unrelated distribution": installed("fake-unrelated", "1.0", 1),
    "unrelated module on the search path": beside("editable/unrelated.py", ""),
    "same module in an earlier entry": beside("installed/loose.py", "NUMBER = 1\n"),
    # pyproject.toml
    "comment in pyproject.toml": table(WHEEL, f"# A comment.\n{WHEEL}"),
    "order of keys": other_keys,
    "table of another tool": table(WHEEL, f"[tool.other]\nsize = 1\n\n{WHEEL}"),
    "card of a model": with_card,
    "build requirement": table('"hatchling", ', '"hatchling>=1", '),
    "version": table('version = "1.0"', 'version = "1.1"'),
    "summary": table("Its export reads", "It reads"),
    "dependency": table('"hatch-lower>=0.1"', '"hatch-lower>=0.1", "click"'),
    # the environment
    "home": other_home,
    "variable that is passed and not read": variable("MANY_UNREAD", "1"),
    "variable that is not passed": variable("OTHER", "1"),
    "language": variable("LC_ALL", "de_DE.UTF-8"),
    "time zone": variable("TZ", "Asia/Tokyo"),
    "hash seed": variable("PYTHONHASHSEED", "7"),
    "threads": variable("OMP_NUM_THREADS", "7"),
    "later command of the same name": lambda world: world.variables.update(
        PATH=f"{world.environment()['PATH']}{os.pathsep}{world.beside / 'editable'}"
    ),
    **{f"setting {name}": mutation for name, mutation in SETTINGS_WITHOUT_EFFECT.items()},
}


@pytest.mark.parametrize("kind", [*NOTICED, *(f"setting {name}" for name in SETTINGS)])
def test_a_change_is_noticed_alone_and_named(world: World, kind: str) -> None:
    mutate, says = {**NOTICED, **{f"setting {name}": each for name, each in SETTINGS.items()}}[kind]
    with world.restored():
        mutate(world)
        assert world.changes() == world.spelled(says)
    # were it not taken back, the next test, or `test_a_build_agrees`, would see it beside its own change
    assert not LONG or world.changes() is None, "it is taken back"


@pytest.mark.parametrize("kind", NOTICED_BY_SHELL)
def test_a_change_of_what_a_program_reads_is_noticed(world: World, kind: str) -> None:
    mutate, says = NOTICED_BY_SHELL[kind]
    with world.restored():
        mutate(world)
        assert world.changes("shell") == world.spelled(says)
        assert kind in ("another variable", "command") or world.changes() is None
    assert world.changes("shell") is None, "it is taken back"


@pytest.mark.parametrize("kind", NOT_NOTICED)
def test_what_does_not_matter_is_not_noticed(world: World, kind: str) -> None:
    before = entries_of(world.root, world.beside), dict(world.variables)
    with world.restored():
        NOT_NOTICED[kind](world)
        assert (entries_of(world.root, world.beside), world.variables) != before, "something has changed"
        assert world.changes() is None


def test_every_setting_is_in_one_of_the_tables() -> None:
    names = {toml_key(field.name) for field in dataclasses.fields(HookTable)}
    assert names == {*SETTINGS, *SETTINGS_WITHOUT_EFFECT}
    assert not {*SETTINGS} & {*SETTINGS_WITHOUT_EFFECT}


def test_a_build_agrees(world: World) -> None:
    done = world.project.build(environment={**world.environment(), "HATCH_LOWER_CACHE": "frozen"}).check()
    rows = [line for line in done.output.splitlines() if line.startswith(("many   ", "shell  "))]
    assert len(rows) == 4, done.output
    assert all(row.endswith("unchanged, not compared") for row in rows)


def test_another_working_directory_is_no_change(world: World) -> None:
    assert world.changes(folder=world.beside) is None


def test_a_checkout_and_an_environment_elsewhere_are_no_change(world: World, tmp_path: Path) -> None:
    moved = world.moved(tmp_path / "another place")
    assert moved.changes() is None
    moved.project.edit("many_inputs/model.py", "0.5", "0.25")
    assert moved.changes() == ["many_inputs/model.py"]
    assert world.changes() is None


def test_a_change_of_the_source_alone_costs_an_export_and_nothing_else(world: World) -> None:
    """Lines move, and a variable has another name."""
    comment = edit("many_inputs/model.py", "class Many(", "# A comment that moves every line below it.\nclass Many(")
    name = rename("many_inputs/model.py", "product", "result")
    with world.restored():
        comment(world)
        name(world)
        assert world.changes() == ["many_inputs/model.py"]
        done = world.project.build(environment={**world.environment(), "HATCH_LOWER_CACHE": "frozen"}).check()
        rows = [line for line in done.output.splitlines() if line.startswith("many   ")]
        assert len(rows) == 2, done.output
        assert all(row.endswith("same graph, not compared") for row in rows)
        assert "why many: many_inputs/model.py" in done.output.splitlines()
