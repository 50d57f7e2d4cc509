"""A small model in a file of its own, exported and lowered in this process: tests edit it and build again."""

from __future__ import annotations

import os
import sys
import types
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from hatch_lower.cache.key import ExportKey
from hatch_lower.cache.store import Store, open_store
from hatch_lower.config.settings import ModelSettings, Recipe, Settings
from hatch_lower.config.tables import BackendChoice
from hatch_lower.events import Event
from hatch_lower.format.manifest import Manifest, write_manifest
from hatch_lower.format.record import ModelReport
from hatch_lower.pipeline.capture import CapturedModel, capture_model
from hatch_lower.pipeline.check_data import example_tensors
from hatch_lower.pipeline.checkpoint import LocalSource
from hatch_lower.pipeline.emit.constants import SpanDigests
from hatch_lower.pipeline.export_key import describe_export
from hatch_lower.pipeline.lower_model import lower_model, start_build
from hatch_lower.pipeline.model_build import BuildInputs, ConvertedModel
from hatch_lower.pipeline.real_inputs import RealInputs
from support.kept_events import Events

SOURCE = """\
import torch
from hatch_lower import Method, Model


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        return torch.relu(self.linear(x))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()
        self.register_buffer("count", torch.zeros(()))
        self.table = torch.arange(4.0)

    def forward(self, image, *, scale=2.0):
        hidden = torch.clamp(self.block(image) * scale, 0, 600)
        self.count.add_(1)
        return {"out": hidden + self.table + torch.tensor([1.0, 2.0, 3.0, 4.0]), "count": self.count.clone()}

    def embed(self, image):
        return self.block(image).sum(1)


def export():
    torch.manual_seed(3)
    rows = torch.export.Dim("rows", min=2, max=64)
    images = torch.linspace(0, 1, 12).reshape(3, 4)
    forward = Method((images,), {"scale": 2.0}, dynamic_shapes={"image": {0: rows}, "scale": None})
    return Model(Net().eval(), {"forward": forward, "embed": Method((images,))})
"""

LAST_LINE = "hidden = torch.clamp(self.block(image) * scale, 0, 600)"
BRANCHING = SOURCE.replace(
    LAST_LINE,
    f"{LAST_LINE}\n        hidden = torch.cond(hidden.sum() > 0, lambda h: h * 2, lambda h: h - 1, (hidden,))",
)
"""With control flow, which costs several times as much to export."""


def settings_of(
    *recipes: Recipe,
    name: str = "net",
    check: bool = True,
    order: tuple[str, ...] | None = None,
    weights: tuple[str, ...] = (),
) -> Settings:
    """Return settings with one model; without recipes it has one for the `reference` backend, and a portable one."""
    given = recipes or (Recipe("default", (BackendChoice("reference"),)), Recipe("portable"))
    if order is not None:
        given = tuple(sorted(given, key=lambda recipe: order.index(recipe.name)))
    names = tuple(recipe.name for recipe in given)
    model = ModelSettings(name, "net:export", "net", names, weights=weights)
    return Settings(Path("/nowhere"), "net", "1.0", (model,), given, check_bytes=1_000_000 if check else 0)


@dataclass
class Workshop:
    """A folder with the model's source, and the cache of its builds.

    Args:
        folder: an empty folder, which is on `sys.path`.
    """

    folder: Path
    count: int = 0

    def capture(self, source: str = SOURCE, edits: Mapping[str, str] | None = None, name: str = "net") -> CapturedModel:
        """Return what the source exports, after some replacements in it; each must have one place."""
        for old, new in (edits or {}).items():
            assert source.count(old) == 1, f"{old!r} is there {source.count(old)} times"
            source = source.replace(old, new)
        path = self.folder / "net.py"
        path.write_text(source)
        module = types.ModuleType("net")
        sys.modules["net"] = module
        try:
            exec(compile(source, str(path), "exec"), module.__dict__)
            return capture_model(name, module.export(), Events(), roots=(self.folder,))
        finally:
            del sys.modules["net"]

    def build(
        self, source: CapturedModel, settings: Settings | None = None, sources: Sequence[LocalSource] = ()
    ) -> tuple[ModelReport, Events]:
        """Lower a captured model; the cache is in the folder that `HATCH_LOWER_CACHE_DIR` names."""
        self.count += 1
        events = Events()
        used = settings or settings_of()
        folder = self.folder / f"build-{self.count}"
        folder.mkdir()
        store = open_store(os.environ, lambda line: events.report(Event("cache", "note", source.name, detail=line)))
        return lower_model(*start_build(used, used.models[0], source, folder, events, store, None, sources)), events


def key_of(
    source: CapturedModel,
    settings: Settings | None = None,
    sources: Sequence[LocalSource] = (),
    real: Mapping[str, RealInputs] = {},
    converted: Mapping[str, ConvertedModel] = {},
) -> ExportKey:
    """Return the key of a captured model; nothing is stored."""
    used = settings or settings_of()
    store = Store(Path("/nowhere"), "off", print)
    compared = used.check_bytes or any(recipe.verify for recipe in used.recipes)
    examples = example_tensors(source) if compared else None
    inputs = BuildInputs(used, used.models[0], source, {}, examples, tuple(sources), real, converted)
    return describe_export(inputs, store, SpanDigests()).key


def files_of(report: ModelReport) -> dict[str, bytes]:
    """Return the contents of a report's files by path; each is what the report says."""
    return {file.path: file.source.read_bytes() for file in report.files}


def packaged_report(report: ModelReport, name: str = "net") -> dict[str, bytes]:
    """Return the files of a `_lowered` folder with a report's model."""
    manifest = Manifest("net", "1.0", "0.1.0", "2.13.0", {}, {name: report.manifest})
    return {"manifest.json": write_manifest(manifest), **files_of(report)}


def packaged(
    shop: Workshop, source: str = SOURCE, settings: Settings | None = None, *, name: str = "net"
) -> dict[str, bytes]:
    """Return the files of a `_lowered` folder with what a source exports, as a model of a name; nothing is cached."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HATCH_LOWER_CACHE", "off")
        report, _ = shop.build(shop.capture(source), settings)
    return packaged_report(report, name)


def write_folder(folder: Path, files: Mapping[str, bytes]) -> Path:
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    return folder


def write_wheel(path: Path, files: Mapping[str, bytes], **metadata: str) -> Path:
    """Write a wheel with a `_lowered` folder, and metadata by the names of their files (`entry_points_txt`)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(f"net/_lowered/{name}", data)
        for name, text in metadata.items():
            archive.writestr(f"net-1.0.dist-info/{name.replace('_txt', '.txt')}", text)
    return path


NET_PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "net"
version = "1.0"

[project.entry-points."hatch_lower.models"]
net = "net.model:export"

[tool.hatch.build.targets.wheel.hooks.lower.recipes.portable]
backends = []

[tool.hatch.build.targets.wheel.hooks.lower.bench]
"""
"""A project with the model of `SOURCE`, to which settings of benchmarks can be added."""
