"""Steps of the device checks inside a single process: `python -m device.steps STEP`.

Each step writes lines of JSON to `$OUT/results.jsonl`; `HATCH_LOWER_STAND=cpu` tries the steps without a GPU.
"""

from __future__ import annotations

import gc
import json
import mmap
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

import torch

from device.cases import CASES, Case, Inputs
from device.projects import obtain_weights
from device.stand import Stand, difference, flat, installed, mebibytes, open_stand, shortened
from hatch_lower.runtime.loaded import LoadedModel

CHECKED = ("mlp", "unet", "attention_bf16", "decoder", "bert")
CHECK_SECONDS = 60


def tell_versions(stand: Stand) -> None:
    import triton

    backends: Any = torch.backends

    facts: dict[str, object] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": torch.version.cuda,
        "cudnn": backends.cudnn.version(),
        "python_header": Path(sysconfig.get_path("include"), "Python.h").is_file(),
        "headers": Path(os.environ.get("CUDA_HOME", "/"), "include", "cuda.h").is_file(),
        "processors": os.cpu_count(),
    }
    for program in ("g++", "nvcc", "nvidia-smi"):
        option = "-L" if program == "nvidia-smi" else "--version"
        path = shutil.which(program)
        done = subprocess.run([path, option], capture_output=True, text=True, check=False) if path else None
        facts[program] = (done.stdout.strip().splitlines() or [""])[-1 if program == "nvcc" else 0] if done else ""
    if stand.on_gpu:
        facts["gpu"] = torch.cuda.get_device_name()
        facts["capability"] = torch.cuda.get_device_capability()
    stand.record("", ok=torch.cuda.is_available() or not stand.on_gpu, **facts)


def write_all_weights(stand: Stand) -> None:
    obtain_weights(Path(os.environ["HATCH_LOWER_WEIGHTS"]), installed())
    stand.record("", ok=True)


def compare_all(stand: Stand) -> None:
    for name in installed():
        with stand.attempt(name):
            compare(stand, name, stand.recipe)


def compare_portable(stand: Stand) -> None:
    for name in (name for name in installed() if CASES[name].eager_on_gpu):
        with stand.attempt(name):
            compare(stand, name, "portable")


def compare(stand: Stand, name: str, recipe: str) -> None:
    """Compare a model with eager on the same device, with all its sizes or positions."""
    case = CASES[name]
    began = time.perf_counter()
    model = stand.load(name, recipe)
    stand.synchronize()
    loaded = time.perf_counter() - began
    eager = stand.module(name) if case.eager_on_gpu else case.module()
    inputs = stand.inputs(case.inputs())
    began = time.perf_counter()
    model(*inputs)
    stand.synchronize()
    facts: dict[str, object] = {
        "recipe": model.recipe,
        "device": model.device,
        "load_ms": round(loaded * 1e3, 1),
        "first_ms": round((time.perf_counter() - began) * 1e3, 1),
    }
    if case.has_state:
        largest, is_right = compare_positions(stand, model, eager)
    else:
        results = [
            difference(model[method](*stand.inputs(given)), expected(stand, case, getattr(eager, method), given))
            for method in case.methods
            for given in (case.inputs(), *case.more())
        ]
        largest, is_right = max(largest for largest, _ in results), all(right for _, right in results)
    stand.record(name, ok=is_right, difference=largest, **facts)


def expected(stand: Stand, case: Case, method: Callable[..., object], given: Inputs) -> list[torch.Tensor]:
    """Return eager's outputs, on the device of the run."""
    outputs = method(*(stand.inputs(given) if case.eager_on_gpu else given))
    return [output.to(stand.device) for output in flat(outputs)]


def compare_positions(stand: Stand, model: LoadedModel, eager: torch.nn.Module) -> tuple[float, bool]:
    """Compare all positions of the decoder, beginning with an empty cache."""
    model.reset()
    largest, is_right = 0.0, True
    for position in range(256):
        word = torch.tensor([[position * 7 % 1000]], device=stand.device)
        place = torch.tensor([position], device=stand.device)
        found, right = difference(model(word, place), eager(word, place))
        largest, is_right = max(largest, found), is_right and right
    return largest, is_right


def time_all(stand: Stand) -> None:
    """Time calls beside eager's, in one process."""
    for name in (name for name in installed() if CASES[name].eager_on_gpu):
        with stand.attempt(name):
            inputs = stand.inputs(CASES[name].inputs())
            model, eager = stand.load(name), stand.module(name)
            ours, theirs = stand.time_call(partial(model, *inputs)), stand.time_call(partial(eager, *inputs))
            ratios = {f"{key.removesuffix('_ms')}_ratio": round(ours[key] / theirs[key], 3) for key in ours}
            stand.record(name, ok=True, ours=ours, eager=theirs, **ratios)
            gc.collect()


def time_fixed_cost(stand: Stand) -> None:
    """Time a call of a small model beside a call of the container's runner alone."""
    import hatch_lower.backends.aoti.run
    import hatch_lower.backends.cuda.run

    module: Any = hatch_lower.backends.cuda.run if stand.on_gpu else hatch_lower.backends.aoti.run
    name = "open_cuda_library" if stand.on_gpu else "open_library"
    runners: list[Any] = []
    opened = getattr(module, name)

    def keep(*given: object) -> Any:
        runners.append(opened(*given))
        return runners[-1]

    with patch.object(module, name, keep):
        model = stand.load("mlp", "gpu" if stand.on_gpu else "cpu")
    inputs = stand.inputs(CASES["mlp"].inputs())
    calls: dict[str, Callable[[], object]] = {
        "runner": lambda: runners[0].run(list(inputs)),
        "model": lambda: model(*inputs),
    }
    times = dict.fromkeys(calls, float("inf"))
    for _ in range(5):
        for label, call in calls.items():
            stand.synchronize()
            began = time.perf_counter()
            for _ in range(1000):
                call()
            times[label] = min(times[label], (time.perf_counter() - began) * 1e3)  # microseconds of a call
            stand.synchronize()
    cost = times["model"] - times["runner"]
    stand.record(
        "mlp", ok=cost <= 15, fixed_us=round(cost, 2), **{f"{key}_us": round(t, 2) for key, t in times.items()}
    )


def time_load(stand: Stand) -> None:
    """Time the load of a large model, and a copy of its weights alone, from the mapped file."""
    name = "bert" if "bert" in installed() else "bert_dynamic"
    torch.zeros(1, device=stand.device)
    folder = Path(os.environ["HATCH_LOWER_WEIGHTS"])
    size = sum(tensor.nbytes for tensor in CASES[name].weights().values())
    (path,) = (path for path in folder.iterdir() if 0 <= path.stat().st_size - size < 1 << 16)
    loads, copies = [], []
    for _ in range(4):
        began = time.perf_counter()
        model = stand.load(name)
        stand.synchronize()
        loads.append((time.perf_counter() - began) * 1e3)
        del model
        gc.collect()
        began = time.perf_counter()
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as mapped:
            block = torch.frombuffer(mapped, dtype=torch.uint8)
            copied = block.to(stand.device, copy=True)
            stand.synchronize()
            copies.append((time.perf_counter() - began) * 1e3)
            del block, copied
    beyond = min(loads[1:]) - min(copies[1:])
    times = {"load_ms": [round(t, 1) for t in loads], "copy_ms": [round(t, 1) for t in copies]}
    stand.record(name, ok=beyond <= 150, megabytes=round(size / 1e6, 1), beyond_ms=round(beyond, 1), **times)


def measure_memory(stand: Stand) -> None:
    """Measure the GPU's memory after a load, two methods, a clone and calls of all, beside the size of the weights."""
    name = "bert" if "bert" in installed() else "bert_dynamic"
    case = CASES[name]
    size = sum(tensor.nbytes for tensor in case.weights().values())
    warm = torch.ones(64, 64, device=stand.device)
    torch.mm(warm, warm)  # cuBLAS takes its memory now
    stand.synchronize()
    used, allocated = stand.used(), allocated_bytes(stand)
    model = stand.load(name)
    loaded, inputs = allocated_bytes(stand), stand.inputs(case.inputs())
    twin = model.clone()
    for method in case.methods:
        model[method](*inputs)
        twin[method](*inputs)
    stand.synchronize()
    ratio = (allocated_bytes(stand) - allocated) / size
    stand.record(
        name,
        ok=not stand.on_gpu or 1 <= ratio <= 1.1,
        weights_mib=mebibytes(size),
        after_load_mib=mebibytes(loaded - allocated),
        after_calls_ratio=round(ratio, 4),
        taken_from_the_gpu_mib=mebibytes(stand.used() - used),
    )


def allocated_bytes(stand: Stand) -> int:
    return torch.cuda.memory_allocated() if stand.on_gpu else 0


def call_from_threads(stand: Stand) -> None:
    """Call a model 10,000 times from eight threads on two streams, in rounds, and look whether memory grows."""
    model, eager = stand.load("mlp"), stand.module("mlp")
    (given,) = stand.inputs(CASES["mlp"].inputs())
    stream_class: Any = torch.cuda.Stream
    streams = [stream_class() if stand.on_gpu else None for _ in range(2)]
    expected = [eager(given + index) for index in range(8)]
    wrong: list[tuple[int, int]] = []
    calls = 1250 if stand.on_gpu else 125

    def call(index: int) -> None:
        stream: Any = streams[index % 2]
        torch.set_grad_enabled(False)
        stand.synchronize()
        with torch.cuda.stream(stream) if stream is not None else nullcontext():
            own = given + index
            for count in range(calls):
                found = model(own)
                if count % 50 == 0 and not difference(found, expected[index])[1]:
                    wrong.append((index, count))

    rounds = []
    for _ in range(4):
        used, began = stand.used(), time.perf_counter()
        threads = [threading.Thread(target=call, args=(index,)) for index in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        stand.synchronize()
        rounds.append((round(time.perf_counter() - began, 2), mebibytes(stand.used() - used)))
    # the first rounds fill cuBLAS's workspaces, of which each thread and stream has its own
    stand.record("mlp", ok=not wrong, calls=8 * calls, wrong=wrong[:5], seconds_and_grown_mib=rounds)


def run_ptx(stand: Stand) -> None:
    """Run recipes with machine code for sm_80 alone: a later GPU compiles the PTX."""
    for name in (name for name in ("mlp", "unet") if name in installed()):
        with stand.attempt(name):
            compare(stand, name, "ptx" if stand.on_gpu else "portable")


def run_onnx(stand: Stand) -> None:
    """Run recipes of ONNX Runtime for CUDA, or record why they do not run."""
    import onnxruntime

    providers = onnxruntime.get_available_providers()
    stand.record("", ok=True, version=onnxruntime.__version__, providers=providers)
    for name in (name for name in ("mlp", "unet") if name in installed()):
        try:
            compare(stand, name, "onnx" if stand.on_gpu else "portable")
        except Exception as error:
            # a reason is right where the provider is missing
            stand.record(
                name, ok="CUDAExecutionProvider" not in providers, error=f"{type(error).__name__}: {error}"[:600]
            )


def check_installed(stand: Stand) -> None:
    """Compare models with their packaged outputs by the command `hatch-lower check`, several at once."""

    def check(name: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "hatch_lower", "check", name, "--recipe", stand.recipe, "--json"]
        return subprocess.run(command, capture_output=True, text=True, timeout=CHECK_SECONDS, check=False)

    names = [name for name in CHECKED if name in installed()]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for name, done in zip(names, pool.map(check, names), strict=True):
            facts: dict[str, object] = {"status": done.returncode}
            if done.returncode:
                facts["error"] = shortened(done.stderr or done.stdout)
            else:
                facts["rows"] = json.loads(done.stdout)
            stand.record(name, ok=done.returncode == 0, **facts)


STEPS: Mapping[str, Callable[[Stand], None]] = MappingProxyType(
    {
        "versions": tell_versions,
        "weights": write_all_weights,
        "compare": compare_all,
        "portable": compare_portable,
        "check": check_installed,
        "speed": time_all,
        "fixed": time_fixed_cost,
        "load": time_load,
        "memory": measure_memory,
        "threads": call_from_threads,
        "ptx": run_ptx,
        "onnx": run_onnx,
    }
)


def main() -> None:
    step = sys.argv[1]
    stand = open_stand(step)
    with stand.attempt(""):
        STEPS[step](stand)


if __name__ == "__main__":
    main()
