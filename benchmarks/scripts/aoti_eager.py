"""Calls of models by `aoti` beside eager calls, in three commands:

- `table PATH [MODEL …]` lowers and times models, with one thread and two, with all instructions of the processor and
  with those of AVX2. A table replaces the text between the lines `<!-- aoti -->` and `<!-- /aoti -->` of the file. The
  command takes twenty minutes on a quiet machine.
- `lower FOLDER MODEL [OPTIONS]` writes a lowered model; the options of the backend are JSON.
- `time FOLDER MODEL THREADS ROUNDS [freezing]` prints the figures of a lowered model as JSON.

`time` calls the lowered model and the eager module in a single process. The two take turns, so that the ratio of a turn
is the same under changing load of the machine; the ratio is the median of all turns. With `freezing`, the module from
`torch.compile` with inductor's setting `freezing` takes a turn, too.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from eager_models import TITLES, make

SHORTEST = 0.02  # seconds of a turn
ROUNDS = 15
AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
COLUMNS = [(threads, isa) for isa in ({}, AVX2) for threads in (1, 2)]
MARKED = re.compile(r"(?<=<!-- aoti -->\n).*?(?=<!-- /aoti -->)", re.DOTALL)
HEAD = (
    "| call ÷ eager | eager ms, 1 / 2 threads | 1 thread | 2 threads | AVX2, 1 thread | AVX2, 2 | load ms | MB |\n"
    "|---|--:|--:|--:|--:|--:|--:|--:|\n"
)


def write_table(path: Path, models: list[str]) -> None:
    """Measure models, and write a row for each into the file."""
    text = path.read_text()
    if len(MARKED.findall(text)) != 1:
        raise SystemExit(f"{path} must have the lines `<!-- aoti -->` and `<!-- /aoti -->` once")
    rows = []
    for name in models:
        with tempfile.TemporaryDirectory() as folder:
            run("lower", folder, name)
            found = [
                json.loads(run("time", folder, name, str(threads), str(ROUNDS), **isa)) for threads, isa in COLUMNS
            ]
        rows.append(row(TITLES[name], found))
        print(rows[-1], end="", file=sys.stderr, flush=True)
    path.write_text(MARKED.sub(lambda match: HEAD + "".join(rows), text))


def run(*words: str, **variables: str) -> str:
    """Run a command of this script in a process of its own; return the last line of its output."""
    # threads that wait in a loop would take the time of other processes
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive", "HF_HUB_OFFLINE": "1", **variables}
    command = [sys.executable, __file__, *words]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.splitlines()[-1] if done.stdout else ""


def row(title: str, found: list[dict[str, Any]]) -> str:
    """Return a line of the table."""
    eager = " / ".join(f"{each['ms']['eager']:.0f}" for each in found[:2])
    ratios = " | ".join(f"{each['ratio']['aoti']:.2f}" for each in found)
    return f"| {title} | {eager} | {ratios} | {found[0]['load']} | {found[0]['memory']} |\n"


def lower(folder: Path, name: str, options: str = "{}") -> None:
    """Write a lowered model into a folder."""
    from hatch_lower.backends.aoti.compile import AotiBackend
    from hatch_lower.exir.program._program import to_edge_transform_and_lower
    from hatch_lower.pipeline.save import save_program

    model, inputs = make(name)
    program = torch.export.export(model, inputs, strict=False)
    partitioner = AotiBackend.partitioner(json.loads(options))
    save_program(to_edge_transform_and_lower(program, partitioner=[partitioner]).to_executorch(), folder)


def frozen(model: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> Callable[[], Any]:
    """Return a call of the module that `torch.compile` makes with freezing."""
    from torch._inductor import config

    config.freezing = True
    compiled = torch.compile(model)
    compiled(*inputs)
    return lambda: compiled(*inputs)


def measure(folder: Path, name: str, rounds: int, *ways: str) -> dict[str, object]:
    """Return milliseconds of a call, ratios to an eager call, milliseconds of load, and megabytes of private memory."""
    import hatch_lower

    model, inputs = make(name)
    before, begin = private_bytes(), time.perf_counter()
    loaded = hatch_lower.load(folder)
    load = time.perf_counter() - begin
    found = loaded(*inputs)
    memory = private_bytes() - before
    torch.testing.assert_close(found, model(*inputs), rtol=1e-2, atol=1e-3)
    calls: dict[str, Callable[[], Any]] = {"eager": lambda: model(*inputs), "aoti": lambda: loaded(*inputs)}
    calls |= {"freezing": frozen(model, inputs)} if "freezing" in ways else {}
    times: dict[str, list[float]] = {way: [] for way in calls}
    for number in range(rounds + 1):
        for way in calls if number % 2 else reversed(calls):
            seconds = turn(calls[way])
            times[way] += [seconds] if number else []
    pairs = {way: [mine / eager for mine, eager in zip(times[way], times["eager"], strict=True)] for way in calls}
    return {
        "ms": {way: round(statistics.median(values) * 1e3, 3) for way, values in times.items()},
        "ratio": {way: round(statistics.median(values), 3) for way, values in pairs.items()},
        "load": round(load * 1e3),
        "memory": round(memory / 1e6),
    }


def turn(call: Callable[[], Any]) -> float:
    """Return the mean seconds of calls, after a call that fills the caches."""
    call()
    begin, count = time.perf_counter(), 0
    while (passed := time.perf_counter() - begin) < SHORTEST:
        call()
        count += 1
    return passed / count


def private_bytes() -> int:
    """Return the bytes of this process's memory that belong to no file."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_Dirty:"))


if __name__ == "__main__":
    command, place, *rest = sys.argv[1:]
    torch.set_grad_enabled(False)
    if command == "table":
        write_table(Path(place), rest or list(TITLES))
    elif command == "lower":
        lower(Path(place), *rest)
    else:
        model_name, thread_count, round_count, *further = rest
        torch.set_num_threads(int(thread_count))
        print(json.dumps(measure(Path(place), model_name, int(round_count), *further)))
