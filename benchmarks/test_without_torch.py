"""A wheel where torch is not installed, beside the same wheel with torch and beside the engine alone."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support.scenarios import only, unpack
from support.venv import REPOSITORY, VirtualEnvironment, child_environment, make_environment

HERE = Path(__file__).parent
TORCH = "torch==2.13.*"
# of the words' table, of which a call reads 128 rows of 30,522, nothing else is in memory; `forward` has no pooler
USED_PARAMETERS = 109_482_240 - (30_522 - 128) * 768 - 590_592
BYTES_EACH = 4
pytestmark = pytest.mark.benchmark(group="without torch")


@dataclass(frozen=True, slots=True)
class Started:
    """What came of processes that were started for one result each."""

    seconds: list[float] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    results: set[str] = field(default_factory=set)

    def add(self, command: Sequence[str | Path]) -> None:
        """Start one, and wait for its result."""
        begin = time.perf_counter()
        with subprocess.Popen(
            [str(word) for word in command], stdout=subprocess.PIPE, env=child_environment()
        ) as child:
            assert child.stdout is not None
            line = child.stdout.readline()
            self.seconds.append(time.perf_counter() - begin)
        found = json.loads(line)
        self.memory.append(found["memory"])
        self.results.add(found["sha256"])


@pytest.fixture(scope="module")
def environments(tmp_path_factory: pytest.TempPathFactory) -> dict[str, VirtualEnvironment]:
    """Environments with what the wheel requires: one of them with torch as well."""
    found = {}
    for name, more in {"without": (), "with": (TORCH,)}.items():
        found[name] = make_environment(tmp_path_factory.mktemp(name) / "env")
        found[name].install(str(REPOSITORY), "numpy", "onnxruntime>=1.23,<2", *more)
    return found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Any], Path]:
    """Returns where the wheel of a BERT for `onnxruntime` lies unpacked."""
    folder = tmp_path_factory.mktemp("site")

    def find(bench: Any) -> Path:
        if not any(folder.iterdir()):
            project = bench.project("bert")
            table = project.root / "pyproject.toml"
            text = table.read_text().replace('"aoti"', '"onnxruntime"')
            table.write_text(text.replace('>=0.1", "torch==2.13.*"', '>=0.1", "numpy>=1.26", "onnxruntime>=1.23,<2"'))
            project.build(environment={"BERT_METHODS": "forward", "HF_HUB_OFFLINE": "1"}).check()
            unpack(only(project.dist, "*.whl"), folder)
        return folder

    return find


def test_the_first_result_of_a_process(bench: Any, site: Any, environments: Any) -> None:
    by_hand = bench.folder / "bert.onnx"
    bench.script("onnx_by_hand.py", HERE / "projects" / "bert", "bert", by_hand)
    script = HERE / "scripts" / "first_result.py"
    lowered = [script, "lowered", site(bench), "bert"]
    without = environments["without"].python
    commands: dict[str, list[str | Path]] = {
        "without": [without, *lowered],
        "with": [environments["with"].python, *lowered],
        "by hand": [without, script, "by_hand", by_hand],
    }
    found = {way: Started() for way in commands}

    def once() -> None:
        for way, command in commands.items():
            found[way].add(command)

    bench.benchmark.pedantic(once, rounds=7, warmup_rounds=1)
    assert found["without"].results == found["with"].results  # bit for bit
    seconds = {way: statistics.median(each.seconds[1:]) for way, each in found.items()}
    limit = 1.1 * seconds["by hand"] + 0.03
    bench.report(
        "process start to first result, BERT, without torch / with torch",
        f"{seconds['without']:.2f} s / {seconds['with']:.2f} s = {seconds['without'] / seconds['with']:.2f}",
        "<= 0.35",
        ratio=seconds["without"] / seconds["with"],
    )
    bench.report(
        "process start to first result, BERT, without torch, beside ONNX Runtime by hand",
        f"{seconds['without']:.2f} s, by hand {seconds['by hand']:.2f} s",
        f"<= 1.1 x by hand + 30 ms = {limit:.2f} s",
        by_hand=seconds["by hand"],
    )
    memory = {way: statistics.median(each.memory[1:]) - USED_PARAMETERS * BYTES_EACH for way, each in found.items()}
    bench.report(
        "memory after the first result beyond the weights, without torch / with torch",
        f"{memory['without'] / 1e6:.0f} MB / {memory['with'] / 1e6:.0f} MB = {memory['without'] / memory['with']:.2f},"
        f" by hand {memory['by hand'] / 1e6:.0f} MB",
        "<= 0.3",
        ratio=memory["without"] / memory["with"],
    )


def test_the_size_of_an_installation(bench: Any, environments: Any) -> None:
    sizes = bench.benchmark.pedantic(
        lambda: {name: size_of(only(each.path / "lib", "python*")) for name, each in environments.items()}
    )
    bench.report(
        "installed size without torch / with its CPU build",
        f"{sizes['without'] / 1e6:.0f} MB / {sizes['with'] / 1e6:.0f} MB = {sizes['without'] / sizes['with']:.2f}",
        "<= 0.25",
        **sizes,
    )


def size_of(folder: Path) -> int:
    """Return the bytes of all files below a folder, but for pip, which runs nothing."""
    files = (Path(root) / name for root, _, names in os.walk(folder) for name in names)
    return sum(path.lstat().st_size for path in files if "pip" not in path.parts)
