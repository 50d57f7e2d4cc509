"""Each field of a key is needed: without it two situations with different results would share a key.

For each field there is a case that only this field tells apart. A field without one fails here; so does a new attribute
of what a key is made of, until it is in the key or on the list of those that are not.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.backends import RecordingWeightsBackend
from support.exports import key_of, settings_of
from support.kept_events import Events

import hatch_lower
from hatch_lower.cache.key import ExportKey, PartitionKey
from hatch_lower.config.settings import ModelSettings, Recipe, Settings
from hatch_lower.config.tables import BackendChoice
from hatch_lower.exir.backend.backend_api import to_backend
from hatch_lower.exir.backend.backend_details import BackendDetails
from hatch_lower.exir.backend.compile_spec_schema import CompileSpec
from hatch_lower.exir.backend.partitioner import DelegationSpec
from hatch_lower.exir.lowering import preprocess
from hatch_lower.exir.lowering.convert import to_edge
from hatch_lower.exir.lowering.extract import localize_program
from hatch_lower.exir.lowering.preprocess import PreprocessRequest
from hatch_lower.exir.lowering.preprocess import partition_key as key_of_partition
from hatch_lower.model import Method, Model
from hatch_lower.pipeline.capture import CapturedMethod, CapturedModel, capture_model
from hatch_lower.pipeline.checkpoint import LocalSource
from hatch_lower.pipeline.model_build import ConvertedModel
from hatch_lower.pipeline.random_inputs import InputCase
from hatch_lower.pipeline.real_inputs import RealInputs

pytestmark = pytest.mark.torch

PORTABLE = Recipe("portable", verify=False)
QUIET = settings_of(PORTABLE, check=False)
"""Settings with which eager is not run, so that it tells nothing apart."""


class Clamped(torch.nn.Module):
    def __init__(self, high: float = 6.0, weight: float = 1.0) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((3,), weight))
        self.high = high

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.clamp(x * self.weight, 0, self.high)


class Renamed(Clamped):
    def forward(self, other: torch.Tensor) -> torch.Tensor:
        return super().forward(other)


class Doubtful(Clamped):
    """Its export says less than it does."""

    factor = 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * 1 if torch.compiler.is_exporting() else super().forward(x) * self.factor


class Tables(torch.nn.Module):
    """Two methods with a constant each, which may overlap."""

    def __init__(self, shared: bool) -> None:
        super().__init__()
        self.first = torch.arange(8.0)
        self.second = self.first[2:6] if shared else self.first[2:6].clone()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.first

    def other(self, x: torch.Tensor) -> torch.Tensor:
        return x[:4] + self.second


def exported(module: torch.nn.Module, value: float = 0.5, **names: str) -> CapturedModel:
    size = 8 if isinstance(module, Tables) else 3
    methods = {
        name: Method((torch.full((size,), value),), attribute=attribute)
        for name, attribute in (names or {"forward": "forward"}).items()
    }
    return capture_model("net", Model(module.eval(), methods), Events())


def keys_of_backends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[ExportKey, ExportKey]:
    """Return keys before and after a backend's other module was edited."""
    package = tmp_path / "edited_backend"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from hatch_lower.exir.backend.backend_details import BackendDetails, PreprocessResult\n"
        "class EditedBackend(BackendDetails):\n"
        "    @staticmethod\n"
        "    def preprocess(edge_program, compile_specs):\n"
        "        return PreprocessResult()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    __import__("edited_backend")
    used = settings_of(Recipe("default", (BackendChoice("EditedBackend"),), verify=False), check=False)
    source = exported(Clamped())
    before = key_of(source, used)
    (package / "other.py").write_text("RULES = 1\n")
    after = key_of(source, used)
    del sys.modules["edited_backend"]
    return before, after


Case = Callable[[Path, pytest.MonkeyPatch], tuple[Any, Any]]


def patched(target: Any, name: str, value: Any, key: Callable[[], Any]) -> Case:
    """Return the case of a key before and after something of the surroundings is another."""

    def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
        before = key()
        monkeypatch.setattr(target, name, value)
        return before, key()

    return case


def two(first: Callable[[], Any], second: Callable[[], Any]) -> Case:
    return lambda tmp_path, monkeypatch: (first(), second())


def quiet(module: torch.nn.Module, value: float = 0.5, settings: Settings = QUIET, **names: str) -> ExportKey:
    return key_of(exported(module, value, **names), settings)


def eager_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[ExportKey, ExportKey]:
    module = Doubtful()
    before = quiet(module, settings=settings_of(PORTABLE))
    module.factor = 2
    return before, quiet(module, settings=settings_of(PORTABLE))


def other_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[ExportKey, ExportKey]:
    (tmp_path / "__init__.py").write_text("")
    before = quiet(Clamped())
    monkeypatch.setattr(hatch_lower, "__file__", str(tmp_path / "__init__.py"))
    return before, quiet(Clamped())


EXPORT_CASES: dict[str, Case] = {
    "model": two(
        lambda: quiet(Clamped()), lambda: quiet(Clamped(), settings=settings_of(PORTABLE, name="b", check=False))
    ),
    "methods": two(lambda: quiet(Clamped(), run="forward"), lambda: quiet(Clamped(), start="forward")),
    "graphs": two(lambda: quiet(Clamped(6.0)), lambda: quiet(Clamped(1.0))),
    "names": two(lambda: quiet(Clamped()), lambda: quiet(Renamed())),
    "examples": two(lambda: quiet(Clamped(), 0.5), lambda: quiet(Clamped(), 0.25)),
    "state": two(lambda: quiet(Clamped()), lambda: quiet(Clamped(weight=2.0))),
    "sharing": two(lambda: tables(shared=True), lambda: tables(shared=False)),
    "eager": eager_keys,
    "recipes": two(
        lambda: quiet(Clamped()),
        lambda: quiet(Clamped(), settings=settings_of(replace(PORTABLE, rtol=1.0), check=False)),
    ),
    "check": two(
        lambda: quiet(Clamped(), settings=settings_of(replace(PORTABLE, verify=True))),
        lambda: quiet(Clamped(), settings=settings_of(replace(PORTABLE, verify=True), check=False)),
    ),
    "weights": two(lambda: outside("a" * 64), lambda: outside("b" * 64)),
    "samples": two(lambda: real(0.5), lambda: real(0.25)),
    "converted": two(lambda: in_precision(1.0), lambda: in_precision(2.0)),
    "tools": keys_of_backends,
    "torch": patched(torch, "__version__", "2.99.0", lambda: quiet(Clamped())),
    "interpreter": patched(platform, "python_version", lambda: "3.99.0", lambda: quiet(Clamped())),
    "system": patched(torch.backends.cpu, "get_cpu_capability", lambda: "NONE", lambda: quiet(Clamped())),
    "code": other_code,
    "schema": patched(sys.modules["hatch_lower.pipeline.export_key"], "SCHEMA", (0,), lambda: quiet(Clamped())),
}


def outside(sha256: str) -> ExportKey:
    source = LocalSource("https://example.org/model.safetensors", 9, sha256, Path("model.safetensors"))
    return key_of(exported(Clamped()), settings_of(PORTABLE, check=False, weights=(source.url,)), [source])


def real(value: float) -> ExportKey:
    case = InputCase("a sample", (torch.full((3,), value),), {}, ("x",))
    return key_of(exported(Clamped()), QUIET, real={"forward": RealInputs("samples.safetensors", (case,))})


def in_precision(weight: float) -> ExportKey:
    """Return the key of a model whose conversion to a recipe's precision has a weight."""
    converted = ConvertedModel(exported(Clamped(weight=weight)))
    return key_of(exported(Clamped()), QUIET, converted={"portable": converted})


def test_the_name_of_a_file_beside_the_wheel_is_in_the_key() -> None:
    settings = settings_of(PORTABLE, check=False, weights=("file",))
    renamed = replace(settings, name="other")
    keys = [key_of(exported(Clamped()), used) for used in (QUIET, settings, renamed)]
    assert len({key.digest() for key in keys}) == 3


def tables(*, shared: bool) -> ExportKey:
    return quiet(Tables(shared), forward="forward", other="other")


@pytest.mark.parametrize("name", [field.name for field in fields(ExportKey)])
def test_each_field_of_an_export_key_tells_something_apart(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = EXPORT_CASES[name](tmp_path, monkeypatch)
    assert before.digest() != after.digest()
    assert replace(before, **{name: ""}).digest() == replace(after, **{name: ""}).digest(), "another field does it too"


class FingerprintedBackend(BackendDetails):
    """A backend for which a library counts."""

    library = "1.0"

    preprocess = staticmethod(RecordingWeightsBackend.preprocess)

    @classmethod
    def fingerprint(cls, compile_specs: Any) -> dict[str, str]:
        return {"library": cls.library}


def partition(
    module: torch.nn.Module | None = None,
    backend: str = "a",
    option: bytes = b"1",
    taken: type[BackendDetails] | None = None,
) -> PartitionKey:
    """Return the key of a module as one partition."""
    program = to_edge(exported(module or Clamped()).methods[0].program)
    request = PreprocessRequest(
        "forward",
        DelegationSpec(backend, [CompileSpec("option", option)]),
        taken or FingerprintedBackend,
        localize_program(program, weight_free=False),
    )
    return key_of_partition(request, {})


PARTITION_CASES: dict[str, Case] = {
    "graph": two(lambda: partition(Clamped(6.0)), lambda: partition(Clamped(1.0))),
    "state": two(lambda: partition(Clamped()), lambda: partition(Clamped(weight=2.0))),
    "backend": two(lambda: partition(backend="a"), lambda: partition(backend="b")),
    "fingerprint": patched(FingerprintedBackend, "library", "2.0", partition),
    "compile_specs": two(lambda: partition(option=b"1"), lambda: partition(option=b"2")),
    "torch": patched(torch, "__version__", "2.99.0", partition),
    "interpreter": patched(platform, "python_version", lambda: "3.99.0", partition),
    "system": patched(platform, "machine", lambda: "another", partition),
    "result_schema": patched(preprocess, "RESULT_SCHEMA", 0, partition),
}


@pytest.mark.parametrize("name", [field.name for field in fields(PartitionKey)])
def test_each_field_of_a_partition_key_tells_something_apart(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = PARTITION_CASES[name](tmp_path, monkeypatch)
    assert before.digest() != after.digest()
    assert replace(before, **{name: ""}).digest() == replace(after, **{name: ""}).digest(), "another field does it too"


def test_a_partition_with_a_lowered_module_in_it_is_found_again_in_no_call() -> None:
    lowered = to_backend("reference", to_edge(torch.export.export(Clamped(), (torch.ones(3),))), [])

    class Around(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lowered = lowered

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.lowered(x) + 1

    program = to_edge(torch.export.export(Around(), (torch.ones(3),)))
    spec = DelegationSpec("other", [])
    request = PreprocessRequest("forward", spec, FingerprintedBackend, localize_program(program, weight_free=False))
    assert key_of_partition(request, {}) != key_of_partition(request, {})
    assert partition() == partition()


IN_KEY: dict[type, dict[str, str]] = {
    CapturedModel: {"name": "model", "methods": "methods", "eager": "eager", "attributes": "eager"},
    CapturedMethod: {
        "name": "methods",
        "program": "graphs",
        "args": "examples",
        "kwargs": "examples",
        "has_examples": "examples",
        "parameters": "names",
        "dimensions": "names",
        "gradients": "eager",
    },
    Recipe: dict.fromkeys(
        ("name", "backends", "verify", "rtol", "atol", "imports", "on_mismatch", "without_device", "precision"),
        "recipes",
    ),
    BackendChoice: {"name": "recipes", "options": "recipes"},
    ModelSettings: {"name": "model", "recipes": "recipes", "weights": "weights", "verify_inputs": "samples"}
    | {"calibrate": "converted", "kept": "converted", "metric": "recipes"},
    Settings: {"recipes": "recipes", "check_bytes": "check"},
}
"""Class to attribute to the field of the key that it is in."""

NOT_IN_KEY: dict[type, dict[str, str]] = {
    Recipe: {"max_drop": "judges programs in each build, and shapes none"},
    CapturedMethod: {"narrowed": "lines for the reader; the ranges are in the program"},
    ModelSettings: {
        "max_drop": "judges programs in each build, and shapes none",
        "assets": "the parent packages them",
        "card": "is in the SBOM, which the parent writes",
        "export": "what the entry point makes is in the key, whatever its name",
        "package": "where the parent puts the files",
    },
    Settings: {
        "root": "files are named relative to it, in debug maps that are always made anew",
        "name": "is in the manifest, which the parent writes, and in `weights` where a file is called by it",
        "version": "is in the manifest, which the parent writes",
        "models": "each is a `ModelSettings`",
        "runtime_requirements": "the parent compares requirements",
        "dependencies": "the parent compares requirements",
        "editable": "the parent chooses what to build",
        "inputs": "what is read shows in the export",
        "pass_env": "what is read shows in the export; compilers are in the backend's fingerprint",
        "jobs": "models are lowered alike, side by side or not",
        "executor": "whoever makes a unit, it is the same",
        "timeout": "ends a build or does not",
        "strict": "refuses reads; what is read shows in the export",
        "cache": "where results are",
        "bench": "limits judge programs, and shape none",
        "keep_weights": "the parent packages them",
        "variants": "the parent divides the programs among wheels",
        "order": "the parent puts measured times into the manifest",
        "extras": "the parent compares requirements",
        "torch_free": "refuses programs, those of earlier builds too, and shapes none",
    },
}


@pytest.mark.parametrize("kind", IN_KEY)
def test_every_attribute_is_in_the_key_or_has_a_reason(kind: type) -> None:
    names = {field.name for field in fields(kind)}
    listed = [*IN_KEY[kind], *NOT_IN_KEY.get(kind, {})]
    assert names == set(listed)
    assert len(listed) == len(set(listed)), "both in the key and not"
    assert set(IN_KEY[kind].values()) <= {field.name for field in fields(ExportKey)}
