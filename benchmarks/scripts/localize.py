"""`localize.py [--json FILE] [--seconds N] [NAME …]`: seed faults into engines, and see whether `localize` finds them.

Each case is a process of its own: a model, an engine, and a fault of one operation (`tests/support/seeded.py`), or one
that is there only when two operations are lowered together. The table says what was found, whether that is the
operation and the line of the fault, how many parts were lowered, how long it took, and the most memory of the process
while it looked, as a multiple of what it took to lower the model and to call it once. Seconds of processors are those
of this process and of the compilers that it started; on a busy machine `--seconds` allows more than the two
minutes that users get.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

from support.seeded import Fault, Place, seeded  # noqa: E402

if TYPE_CHECKING:
    from hatch_lower.pipeline.model_build import BuildInputs, BuiltRecipe, Services

SECONDS = "120"
LINEAR, CONVOLUTION = ("linear", "addmm", "mm"), ("conv2d", "convolution")
TRANSPOSED = ("conv_transpose2d", "convolution")
SOFTMAX, GELU = ("softmax", "_softmax"), ("gelu",)
NORM = ("layer_norm", "native_layer_norm")
BERT, DECODER = "bert.encoder.layer", "layers"


@dataclass(frozen=True)
class Case:
    model: str
    engine: str
    fault: Fault
    op: str  # the exported operation that is to be found

    @property
    def name(self) -> str:
        beside = f" beside {self.fault.beside.module}" if self.fault.beside else ""
        return f"{self.model}, {self.engine}: {self.op} of {self.fault.at.module}{beside}, {self.fault.change}"


def wrong(change: str, module: str, names: Sequence[str], op: str = "") -> tuple[Fault, str]:
    return Fault(Place.of(module, *names), change), op or names[0]


def pair(module: str, names: Sequence[str], other: str, others: Sequence[str]) -> tuple[Fault, str]:
    return Fault(Place.of(module, *names), "double", Place.of(other, *others)), names[0]


# of each model, one for each engine, and one more
FAULTS = {
    "bert": [
        wrong("double", f"{BERT}.1.intermediate.dense", LINEAR),
        wrong("clip", f"{BERT}.0.output.dense", LINEAR),
        wrong("square", f"{BERT}.1.attention.output.LayerNorm", NORM),
        wrong("double", f"{BERT}.0.intermediate.intermediate_act_fn", GELU),
        wrong("squash", f"{BERT}.0.attention.self.value", LINEAR),
        wrong("double", f"{BERT}.1.output.dense", LINEAR),
    ],
    "resnet": [
        wrong("double", "body.4.body.0", CONVOLUTION),
        wrong("clip", "last", LINEAR),
        wrong("squash", "body.7.body.3", CONVOLUTION),
        wrong("double", "body.11.body.0", CONVOLUTION),
        wrong("clip", "body.9.body.3", CONVOLUTION),
        wrong("squash", "body.8.beside.0", CONVOLUTION),
    ],
    "unet": [
        wrong("double", "up.0", TRANSPOSED),
        wrong("double", "middle.second", CONVOLUTION),
        wrong("squash", "joined.1.first", CONVOLUTION),
        wrong("double", "down.1.second", CONVOLUTION),
        wrong("square", "head", CONVOLUTION),
        wrong("double", "joined.0.second", CONVOLUTION),
    ],
    "decoder": [
        wrong("double", f"{DECODER}.0.attention", SOFTMAX),
        wrong("clip", f"{DECODER}.1.attention.key", LINEAR),
        wrong("double", f"{DECODER}.1", GELU),
        wrong("squash", f"{DECODER}.0.narrow", LINEAR),
        wrong("squash", f"{DECODER}.1.attention", SOFTMAX),
        wrong("double", f"{DECODER}.1.attention.value", LINEAR),
    ],
}
ENGINES = ("reference", "onnxruntime", "openvino", "executorch", "aoti")
MORE = ("aoti", "onnxruntime", "openvino", "executorch")  # for the last fault of each model
TOGETHER = [
    (
        "bert",
        "onnxruntime",
        pair(f"{BERT}.1.intermediate.dense", LINEAR, f"{BERT}.1.intermediate.intermediate_act_fn", GELU),
    ),
    ("resnet", "openvino", pair("body.7.body.3", CONVOLUTION, "body.7.body.0", CONVOLUTION)),
    ("unet", "executorch", pair("middle.second", CONVOLUTION, "middle.first", CONVOLUTION)),
    ("decoder", "reference", pair(f"{DECODER}.0.narrow", LINEAR, f"{DECODER}.0.wide", LINEAR)),
]


def cases() -> list[Case]:
    """Return the 24 cases with one wrong operation, then those that need two."""
    found = [
        Case(model, engine, fault, op)
        for model, faults in FAULTS.items()
        for engine, (fault, op) in zip(ENGINES, faults, strict=False)
    ]
    found += [Case(model, engine, *faults[-1]) for (model, faults), engine in zip(FAULTS.items(), MORE, strict=True)]
    return found + [Case(model, engine, *both) for model, engine, both in TOGETHER]


@contextmanager
def watched() -> Iterator[list[int]]:
    """Look at this process's memory that is no page of a file, all the while; yield a list with the most of it."""
    most, ended = [0], threading.Event()

    def look() -> None:
        while not ended.wait(0.005):
            rows = [line.split() for line in Path("/proc/self/status").read_text().splitlines()]
            most[0] = max(most[0], sum(int(row[1]) * 1024 for row in rows if row[0] in ("RssAnon:", "RssShmem:")))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield most
    finally:
        ended.set()
        thread.join()


def run_once(inputs: BuildInputs, services: Services, lowered: BuiltRecipe) -> None:
    """Load and call what was lowered, as a build does that compares it with eager."""
    from hatch_lower.pipeline.emit.delegates import names_in_constants
    from hatch_lower.pipeline.model_build import place_of
    from hatch_lower.pipeline.verify import load_program

    services.packager.write_storages(
        lowered.emitted.storages, names_in_constants([(lowered.emitted.plan, lowered.emitted.storages)])
    )
    _, executor = load_program(services.packager, lowered, place_of(inputs.model.name, lowered.recipe))
    executor.methods["forward"](*inputs.source.methods[0].args)


def processor_seconds() -> float:
    return sum(os.times()[:4])


def run(case: Case, limit: float) -> dict[str, Any]:
    """Lower a model with a fault in this process, and look for it."""
    import torch
    from localize_models import MODELS

    from hatch_lower.cache.store import open_store
    from hatch_lower.config.settings import ModelSettings, Recipe, Settings
    from hatch_lower.config.tables import BackendChoice
    from hatch_lower.events import NullReporter
    from hatch_lower.pipeline.capture import capture_model
    from hatch_lower.pipeline.emit.sources import SourceRoots
    from hatch_lower.pipeline.heal import Attempt, localize_model
    from hatch_lower.pipeline.localize.finding import Localization, finding_lines
    from hatch_lower.pipeline.lower_model import lower_recipe, start_build

    options = {"portable-operators": True} if case.engine == "executorch" else {}
    recipe = Recipe("default", (BackendChoice(case.engine, options),), verify=False)
    model = ModelSettings(case.model, "localize_models:export", case.model, ("default",))
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        settings = Settings(work, case.model, "1", (model,), (recipe,), check_bytes=0)
        store = open_store({"HATCH_LOWER_CACHE": "on", "HATCH_LOWER_CACHE_DIR": str(work / "cache")}, print)
        source = capture_model(case.model, MODELS[case.model](), NullReporter())
        sources = SourceRoots([Path(entry) for entry in sys.path if entry])
        inputs, services = start_build(settings, model, source, work, NullReporter(), store)
        origins = [
            sources.origin(node, str(node.target))
            for node in source.methods[0].program.graph.nodes
            if node.op == "call_function"
        ]
        wanted = [
            origin for origin in origins if origin.module == case.fault.at.module and origin.op.split(".")[1] == case.op
        ]
        assert len(wanted) == 1, (case, wanted)
        with seeded(case.fault) as changed:
            with watched() as lowering:
                began = time.monotonic()
                lowered = lower_recipe(inputs, services, recipe, Attempt())
                lowered_seconds = time.monotonic() - began
                run_once(inputs, services, lowered)
            assert changed, f"{case}: the fault is in no partition"
            with watched() as looking:
                began, busy = time.monotonic(), processor_seconds()
                found = localize_model(inputs, services, lowered, Localization(limit))
                seconds, busy = time.monotonic() - began, processor_seconds() - busy
    finding = found.findings[0]
    named = [(operation.op, operation.module, operation.source) for operation in finding.operations]
    expected = (wanted[0].op, wanted[0].module, wanted[0].source)
    if case.fault.beside is None:
        is_right = finding.verdict == "operation" and named == [expected]
    else:
        modules = {module for _, module, _ in named}
        is_right = finding.verdict == "together" and {case.fault.at.module, case.fault.beside.module} <= modules
    return {
        "case": case.name,
        "model": case.model,
        "engine": case.engine,
        "together": case.fault.beside is not None,
        "verdict": finding.verdict,
        "found": list(finding_lines(finding)),
        "operations": len(named),
        "expected": list(expected),
        "right": is_right,
        "lowerings": finding.lowerings,
        "seconds": round(seconds, 1),
        "processor": round(busy, 1),
        "memory": round(looking[0] / lowering[0], 2),
        "lowered_seconds": round(lowered_seconds, 1),
        "torch": torch.__version__,
    }


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["--run"]:
        warnings.simplefilter("ignore")
        print(json.dumps(run(cases()[int(arguments[1])], float(arguments[2]))))
        return
    path = Path(arguments.pop(1)) if arguments[:1] == ["--json"] else None
    arguments = arguments[path is not None :]
    limit = arguments.pop(1) if arguments[:1] == ["--seconds"] else SECONDS
    names = [argument for argument in arguments if argument != "--seconds"]
    rows = []
    print("| case | found | | parts | s | of processors | memory |\n|---|---|---|--:|--:|--:|--:|")
    for number, case in enumerate(cases()):
        if names and not any(name in case.name for name in names):
            continue
        command = [sys.executable, str(Path(__file__)), "--run", str(number), limit]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"| {case.name} | failed: {done.stderr.strip().splitlines()[-1:]} | | | | | |", flush=True)
            continue
        row = json.loads(done.stdout.splitlines()[-1])
        rows.append(row)
        if path is not None:
            path.write_text(json.dumps(rows, indent=1) + "\n")
        said = "right" if row["right"] else "**wrong**"
        cells = [case.name, row["found"][0].partition(": its")[0], said]
        cells += [row[name] for name in ("lowerings", "seconds", "processor", "memory")]
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)
    for together in (False, True):
        kind = [row for row in rows if row["together"] is together]
        print(
            f"{'two operations' if together else 'one operation'}: {sum(row['right'] for row in kind)} of {len(kind)}"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
