"""Entry points: the accepted forms, and a whole sentence for everything else."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from hatch_lower.errors import EntryPointError
from hatch_lower.model import Method, Model
from hatch_lower.pipeline.discover import EntryPoint, discover, without_connection

pytestmark = pytest.mark.torch

ACCEPTED = (
    "return a `hatch_lower.Model`, a tuple `(module, example_args)`, a `torch.export.ExportedProgram`,"
    " a dict of method name to `ExportedProgram`, or an `ExportedModel` of transformers' `DynamoExporter`"
)


class Package:
    """A package `shop` with one module, `shop.model`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "shop").mkdir()
        (root / "shop" / "__init__.py").touch()

    def find(self, code: str, export: str = "shop.model:export", later_hooks: tuple[str, ...] = ()) -> object:
        """Write the module and discover an entry point."""
        head = "import torch\nfrom hatch_lower.model import Method, Model\nlinear = torch.nn.Linear(2, 3)\n"
        (self.root / "shop" / "model.py").write_text(head + code)
        return discover(EntryPoint("clerk", export, self.root, (self.root,), later_hooks))

    def refuse(self, code: str, export: str = "shop.model:export", later_hooks: tuple[str, ...] = ()) -> str:
        """Return the message of the error."""
        with pytest.raises(EntryPointError) as caught:
            self.find(code, export, later_hooks)
        return str(caught.value)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Package]:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield Package(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "shop"]:
        del sys.modules[name]


def test_a_model(package: Package) -> None:
    found = package.find("def export():\n    return Model(linear, {'forward': Method((torch.ones(1, 2),))})\n")
    assert isinstance(found, Model)
    assert list(found.methods) == ["forward"]


def test_a_module_and_its_arguments(package: Package) -> None:
    found = package.find("def export():\n    return linear, (torch.ones(1, 2),)\n")
    assert isinstance(found, Model)
    assert isinstance(found.methods["forward"], Method)
    assert torch.equal(found.methods["forward"].args[0], torch.ones(1, 2))


def test_an_exported_program(package: Package) -> None:
    found = package.find("def export():\n    return torch.export.export(linear, (torch.ones(1, 2),))\n")
    assert isinstance(found, dict)
    assert list(found) == ["forward"]


def test_a_dict_of_exported_programs(package: Package) -> None:
    found = package.find("def export():\n    return {'run': torch.export.export(linear, (torch.ones(1, 2),))}\n")
    assert isinstance(found, dict)
    assert list(found) == ["run"]


def test_a_dotted_attribute_with_extras(package: Package) -> None:
    code = "class Models:\n    @staticmethod\n    def small():\n        return linear, (torch.ones(1, 2),)\n"
    assert isinstance(package.find(code, "shop.model:Models.small [extra]"), Model)


def test_a_reference_without_a_colon(package: Package) -> None:
    assert package.refuse("", "shop.model") == (
        "an entry point is written `module:attribute`\n  where: entry point `clerk = shop.model`\n  found: `shop.model`"
    )


def test_a_missing_module(package: Package) -> None:
    assert package.refuse("", "shop.modle:export") == (
        "there is no module `shop.modle`\n"
        "  where: entry point `clerk = shop.modle:export`\n"
        "  found: looked in `.`\n"
        "  to do: did you mean `shop.model`? known: `shop.model`"
    )


def test_a_missing_package(package: Package) -> None:
    assert package.refuse("", "shopp:export") == (
        "there is no module `shopp`\n"
        "  where: entry point `clerk = shopp:export`\n"
        "  found: looked in `.`\n"
        "  to do: did you mean `shop`? known: `shop`"
    )


def test_a_missing_module_that_a_later_hook_writes(package: Package) -> None:
    assert package.refuse("from shop import _version\nimport shop._version", later_hooks=("vcs",)) == (
        "importing `shop.model` failed\n"
        "  where: entry point `clerk = shop.model:export`, shop/model.py:4\n"
        "  found: ImportError: cannot import name '_version' from 'shop'"
        f" ({package.root}/shop/__init__.py)\n"
        "  to do: build hook `vcs` runs after `lower` and may write the missing file; list the hook before `lower` in"
        " pyproject.toml"
    )
    assert package.refuse("import shop._version", later_hooks=("vcs", "custom")).endswith(
        "\n  to do: build hooks `vcs`, `custom` run after `lower` and may write the missing file; list these hooks"
        " before `lower` in pyproject.toml"
    )


def test_a_missing_library(package: Package) -> None:
    assert package.refuse("import nowhere_to_be_found") == (
        "importing `shop.model` failed: there is no module `nowhere_to_be_found`\n"
        "  where: entry point `clerk = shop.model:export`, shop/model.py:4\n"
        "  to do: if `nowhere_to_be_found` is a library, add the library to `[build-system] requires`"
    )


def test_an_import_that_raises(package: Package) -> None:
    assert package.refuse("1 / 0") == (
        "importing `shop.model` failed\n"
        "  where: entry point `clerk = shop.model:export`, shop/model.py:4\n"
        "  found: ZeroDivisionError: division by zero"
    )


def test_a_syntax_error(package: Package) -> None:
    message = package.refuse("\n\ndef export(:\n")
    assert message.startswith("importing `shop.model` failed\n")
    assert "  where: entry point `clerk = shop.model:export`, shop/model.py:6\n" in message


def test_a_missing_attribute(package: Package) -> None:
    assert package.refuse("def exports():\n    pass\ndef other():\n    pass\n") == (
        "`shop.model` has no attribute `export`\n"
        "  where: entry point `clerk = shop.model:export`\n"
        "  to do: did you mean `exports`? known: `exports`, `other`"
    )


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("42", "42"),
        ("linear", "a value of type `Linear`"),
        ("Model(linear, {})", "a value of type `Model`"),
    ],
)
def test_an_attribute_that_is_no_function(package: Package, value: str, found: str) -> None:
    assert package.refuse(f"export = {value}") == (
        "an entry point must be a function without arguments\n"
        "  where: entry point `clerk = shop.model:export`\n"
        f"  found: `shop.model:export` is {found}\n"
        f"  to do: define a function that builds the model; {ACCEPTED}"
    )


def test_a_function_that_needs_arguments(package: Package) -> None:
    assert package.refuse("def export(size):\n    pass\n") == (
        "an entry point must be callable without arguments\n"
        "  where: entry point `clerk = shop.model:export`\n"
        "  found: `shop.model:export(size)`: missing a required argument: 'size'\n"
        "  to do: give the parameters defaults, or wrap the function in a function without arguments"
    )


def test_a_function_that_raises_in_a_library(package: Package) -> None:
    assert package.refuse("def export():\n    return torch.ones(2) @ torch.ones(3)\n") == (
        "the entry point failed\n"
        "  where: entry point `clerk = shop.model:export`, shop/model.py:5\n"
        "  found: RuntimeError: inconsistent tensor size, expected tensor [2] and src [3] to have the same number of"
        " elements, but got 2 and 3 elements respectively"
    )


def test_a_function_that_exits(package: Package) -> None:
    assert package.refuse("def export():\n    raise SystemExit(3)\n") == (
        "the entry point failed\n"
        "  where: entry point `clerk = shop.model:export`, shop/model.py:5\n"
        "  found: SystemExit: 3"
    )


def test_memory_that_ran_out_is_not_the_entry_points_fault(package: Package) -> None:
    with pytest.raises(MemoryError):
        package.find("def export():\n    raise RuntimeError('DefaultCPUAllocator: can\\'t allocate memory')\n")


@pytest.mark.parametrize(
    ("value", "found", "hint"),
    [
        ("42", "42", ACCEPTED),
        ("None", "None", ACCEPTED),
        ("{}", "an empty `dict`", ACCEPTED),
        ("(1, 2, 3)", "a `tuple` of `int`, `int`, `int`", ACCEPTED),
        (
            "linear",
            "a value of type `Linear`",
            f"a module alone lacks example inputs; {ACCEPTED}",
        ),
        (
            "linear, torch.ones(1, 2)",
            "a `tuple` of `Linear`, `Tensor`",
            "`example_args` must be a tuple: `(module, (tensor,))`",
        ),
    ],
)
def test_a_function_that_returns_something_else(package: Package, value: str, found: str, hint: str) -> None:
    assert package.refuse(f"def export():\n    return {value}\n") == (
        "the entry point returned a value that cannot be exported\n"
        "  where: entry point `clerk = shop.model:export`\n"
        f"  found: {found}\n"
        f"  to do: {hint}"
    )


@pytest.mark.parametrize(
    ("value", "part", "found", "hint"),
    [
        ("Model(42, {})", "`Model.module`", "42", "give `Model` a `torch.nn.Module`"),
        ("Model(linear, {})", "`Model.methods`", "an empty `dict`", "give `Model` a dict of method name to `Method`"),
        (
            "Model(linear, {'forward': (1,)})",
            "method `forward`",
            "a `tuple` of `int`",
            "give `Model` a dict of method name to `Method`",
        ),
        (
            "Model(linear, {'forward': Method(torch.ones(1))})",
            "method `forward`, `args`",
            "a value of type `Tensor`",
            "write a tuple: `Method(args=(tensor,))`",
        ),
        (
            "Model(linear, {'forward': Method(kwargs=(1,))})",
            "method `forward`, `kwargs`",
            "a `tuple` of `int`",
            "write a dict: `Method(kwargs={...})`",
        ),
    ],
)
def test_a_model_whose_fields_are_wrong(package: Package, value: str, part: str, found: str, hint: str) -> None:
    assert package.refuse(f"def export():\n    return {value}\n") == (
        "the entry point returned a value that cannot be exported\n"
        f"  where: entry point `clerk = shop.model:export`, {part}\n"
        f"  found: {found}\n"
        f"  to do: {hint}"
    )


def test_weights_that_are_missing(package: Package) -> None:
    code = "from pathlib import Path\ndef export():\n    Path(__file__).with_name('clerk.safetensors').read_bytes()\n"
    assert package.refuse(code) == (
        "the entry point failed\n"
        "  where: entry point `clerk = shop.model:export`, shop/model.py:6\n"
        "  found: FileNotFoundError: [Errno 2] No such file or directory:"
        f" '{package.root}/shop/clerk.safetensors'\n"
        "  to do: `shop/clerk.safetensors` is missing; an sdist leaves out the files that git ignores: if the wheel is"
        " built from an sdist, name the hook's table `[tool.hatch.build.hooks.lower]`, which sdists read too, and write"
        ' `inputs = ["shop/clerk.safetensors"]` there'
    )


def test_weights_that_safetensors_does_not_find(package: Package) -> None:
    code = (
        "from pathlib import Path\nfrom safetensors.torch import load_file\n"
        "def export():\n    load_file(Path(__file__).with_name('clerk.safetensors'))\n"
    )
    assert '`inputs = ["shop/clerk.safetensors"]`' in package.refuse(code)


def test_a_missing_file_outside_of_the_project_is_not_an_input(package: Package) -> None:
    message = package.refuse("def export():\n    open('/nowhere/clerk.safetensors')\n")
    assert "inputs" not in message


@pytest.mark.parametrize(
    "load", ["load_file(path)", "load_file(str(path))", "torch.load(path)"], ids=["safetensors", "text", "torch"]
)
def test_weights_that_are_a_git_lfs_pointer(package: Package, load: str) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
    (package.root / "shop" / "clerk.safetensors").write_text(pointer)
    message = package.refuse(
        "from pathlib import Path\nfrom safetensors.torch import load_file\n"
        f"def export():\n    path = Path(__file__).with_name('clerk.safetensors')\n    {load}\n"
    )
    assert "  where: entry point `clerk = shop.model:export`, shop/model.py:8\n" in message
    assert message.endswith(
        "\n  to do: `shop/clerk.safetensors` is a Git LFS pointer, not the file itself; run `git lfs pull`"
    )


def test_an_error_that_a_library_raises_of_missing_modules(package: Package) -> None:
    assert package.refuse('raise ModuleNotFoundError("this model needs flash_attn")') == (
        "importing `shop.model` failed\n"
        "  where: entry point `clerk = shop.model:export`, shop/model.py:4\n"
        "  found: ModuleNotFoundError: this model needs flash_attn"
    )


@pytest.mark.parametrize(
    ("statement", "hint"),
    [
        ('raise AssertionError("Torch not compiled with CUDA enabled")', "models are lowered on the CPU"),
        ('linear.load_state_dict({"module.weight": linear.weight})', "were saved from `DataParallel`"),
        ('raise OSError("no files") from ConnectionError("refused")', "download the files before the build"),
    ],
)
def test_errors_that_are_met_often(package: Package, statement: str, hint: str) -> None:
    assert hint in package.refuse(f"def export():\n    {statement}")


def test_a_server_without_an_address_is_told_to_its_library_once(monkeypatch: pytest.MonkeyPatch) -> None:
    constants = SimpleNamespace(ENDPOINT="https://hub.invalid", HF_HUB_OFFLINE=False)
    monkeypatch.setitem(sys.modules, "huggingface_hub.constants", constants)
    for name in ("https_proxy", "http_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    with without_connection():
        assert constants.HF_HUB_OFFLINE
    assert not constants.HF_HUB_OFFLINE
