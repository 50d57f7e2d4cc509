"""Models through delegates against the engine by itself with what they have loaded, and the table of all backends.

The table in docs/engines.md is rewritten by `python benchmarks/scripts/engine_table.py docs/engines.md`.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.scenarios import only, unpack

HERE = Path(__file__).parent
ENGINES = ("openvino", "onnxruntime", "executorch")
sys.path.insert(0, str(HERE / "scripts"))

from engine_table import WRITTEN, set_backends  # noqa: E402
from needed import link_needed  # noqa: E402

STRICT = '{ name = "%s", finite-only = false }'
CALLS = {"bert": (3, 9), "resnet": (5, 11), "mlp": (1000, 15)}
TITLES = {"bert": "BERT-base 1x128", "resnet": "ResNet-18", "mlp": "MLP"}
pytestmark = pytest.mark.benchmark(group="engines")


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the wheels lie unpacked that were built already."""
    return tmp_path_factory.mktemp("unpacked")


@pytest.fixture
def site(bench: Any, unpacked: Path) -> Callable[..., Path]:
    """Returns where the wheel of a model with one engine lies unpacked; built once."""

    def find(name: str, engine: str, *, strict: bool = False) -> Path:
        folder = unpacked / f"{name}-{engine}{'-strict' if strict else ''}"
        if not folder.exists():
            project = bench.project(name)
            set_backends(project.root, [engine], {engine: STRICT % engine} if strict else WRITTEN)
            project.build(environment={"BERT_METHODS": "forward", "HF_HUB_OFFLINE": "1"}).check()
            unpack(only(project.dist, "*.whl"), folder)
        return folder

    return find


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", CALLS)
def test_a_call(bench: Any, site: Any, name: str, engine: str) -> None:
    compare_calls(bench, site(name, engine), name, engine)


def test_a_call_of_two_partitions(bench: Any, site: Any) -> None:
    # its pool of greatest elements stays between them
    compare_calls(bench, site("resnet", "onnxruntime", strict=True), "resnet", "onnxruntime")


def compare_calls(bench: Any, folder: Path, name: str, engine: str) -> None:
    """Measure and report calls of a wheel's model, and of the engine itself."""
    reports: list[dict[str, float]] = []
    calls = [str(each) for each in CALLS[name]]

    def once() -> None:
        reports.append(bench.script("engine_call.py", folder, name, engine, *calls))

    # from process to process the ratio varies more than within one
    bench.benchmark.pedantic(once, rounds=5)
    times = sorted(reports, key=lambda each: each["lowered"] / each["direct"])[2]
    over, ratio = times["lowered"] - times["direct"], times["lowered"] / times["direct"]
    unit, factor = ("us", 1e6) if name == "mlp" else ("ms", 1e3)
    told = f"{over * 1e6:+.1f} us" if name == "mlp" else f"{ratio:.3f}"
    bench.report(
        f"one call, {TITLES[name]}, {engine} ({times['partitions']:.0f} partitions)",
        f"{times['lowered'] * factor:.1f} {unit}, direct {times['direct'] * factor:.1f} {unit} = {told}",
        "<= direct + 15 us" if name == "mlp" else "<= 1.03",
        ratio=ratio,
        over=over,
        **times,
    )


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", CALLS)
def test_loading(bench: Any, site: Any, name: str, engine: str) -> None:
    folder = site(name, engine)
    path = link_needed(folder, bench.folder / "needed")
    variables = {"PYTHONPATH": os.pathsep.join(path)}

    def once() -> None:
        reports.append(bench.script("engine_load.py", folder, name, engine, environment=variables, isolated=True))

    reports: list[dict[str, float]] = []
    bench.benchmark.pedantic(once, rounds=15, warmup_rounds=1)  # the files are read once, and modules compiled
    lowered, direct = (statistics.median(each[key] for each in reports[1:]) for key in ("seconds", "direct"))
    # finding and checking the files costs the same for each model: an engine that loads in 2 ms leaves no ratio for it
    small = name == "mlp"
    told = f"{(lowered - direct) * 1e3:+.1f} ms" if small else f"{lowered / direct:.3f}"
    bench.report(
        f"load() of {TITLES[name]}, {engine}",
        f"{lowered * 1e3:.1f} ms / {direct * 1e3:.1f} ms of it in the delegates = {told}",
        "<= direct + 5 ms" if small else "<= 1.1",
        lowered=lowered,
        direct=direct,
        ratio=lowered / direct,
        over=lowered - direct,
    )
