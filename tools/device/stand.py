"""The place of a run: the device, installed models, the clock, and the file of results, a line of JSON for each."""

from __future__ import annotations

import importlib.metadata
import json
import os
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import hatch_lower
from device.cases import CASES, Inputs
from hatch_lower.runtime.loaded import LoadedModel

# largest difference from eager, divided by 1 + the number
ALLOWED = {torch.float64: 1e-4, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 4e-2}
WARM_UP, EVENTS, ROUNDS = 10, 50, 3
MEBIBYTE = 1 << 20


@dataclass(frozen=True, slots=True)
class Stand:
    device: str  # `cuda`, or `cpu` for a trial of the steps on a machine without a GPU
    results: Path
    step: str

    @property
    def on_gpu(self) -> bool:
        return self.device != "cpu"

    @property
    def recipe(self) -> str:
        return "gpu" if self.on_gpu else "portable"

    def record(self, model: str, **facts: object) -> None:
        line = json.dumps({"step": self.step, "model": model, **facts})
        print(line, flush=True)
        with self.results.open("a") as file:
            file.write(line + "\n")

    @contextmanager
    def attempt(self, model: str) -> Iterator[None]:
        """Record an error as a result: the next model is tried all the same."""
        try:
            yield
        except Exception as error:
            self.record(model, ok=False, error=f"{type(error).__name__}: {error}"[:600])

    def load(self, name: str, recipe: str = "") -> LoadedModel:
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)  # another recipe would be taken
            return hatch_lower.load(name, recipe=recipe or self.recipe, device=self.device)

    def inputs(self, given: Inputs) -> Inputs:
        return tuple(tensor.to(self.device) for tensor in given)

    def module(self, name: str) -> nn.Module:
        return CASES[name].module().to(self.device)

    def synchronize(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize()

    def used(self) -> int:
        """Return the bytes of the GPU's memory that are not free; 0 on the CPU."""
        if not self.on_gpu:
            return 0
        free, total = torch.cuda.mem_get_info()
        return total - free

    def time_call(self, call: Callable[[], object]) -> dict[str, float]:
        """Return milliseconds of a call: the median by events, and the least of loops of calls without a pause."""
        loop = 100 if self.on_gpu else 2
        for _ in range(WARM_UP if self.on_gpu else 1):
            call()
        rounds = []
        for _ in range(ROUNDS):
            self.synchronize()
            began = time.perf_counter()
            for _ in range(loop):
                call()
            self.synchronize()
            rounds.append((time.perf_counter() - began) / loop * 1e3)
        return {"events_ms": round(self._median(call), 4), "loop_ms": round(min(rounds), 4)}

    def _median(self, call: Callable[[], object]) -> float:
        times = []
        for _ in range(EVENTS if self.on_gpu else 3):
            if self.on_gpu:
                event: Any = torch.cuda.Event
                begin, end = event(enable_timing=True), event(enable_timing=True)
                begin.record()
                call()
                end.record()
                end.synchronize()
                times.append(float(begin.elapsed_time(end)))
            else:
                began = time.perf_counter()
                call()
                times.append((time.perf_counter() - began) * 1e3)
        return statistics.median(times)


def open_stand(step: str) -> Stand:
    """Return the place of a step's run, with the roundings of products and convolutions that the limits are for."""
    torch.set_grad_enabled(False)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    folder = Path(os.environ.get("OUT", "/tmp/out"))
    folder.mkdir(parents=True, exist_ok=True)
    return Stand(os.environ.get("HATCH_LOWER_STAND", "cuda"), folder / "results.jsonl", step)


def installed() -> list[str]:
    """Return the names of the models whose wheels are installed, small models first."""
    points = importlib.metadata.entry_points(group=hatch_lower.MODEL_GROUP)
    there = {point.name for point in points}
    return [name for name in CASES if name in there]


def flat(outputs: object) -> list[Tensor]:
    return [outputs] if isinstance(outputs, Tensor) else list(outputs)  # type: ignore[call-overload]


def difference(found: object, expected: object) -> tuple[float, bool]:
    """Return the largest difference, divided by 1 + the number, and whether every output is within its limit."""
    ours, eager = flat(found), flat(expected)
    if [(one.shape, one.dtype, one.device) for one in ours] != [(one.shape, one.dtype, one.device) for one in eager]:
        raise ValueError(f"outputs differ in kind: {described(ours)} instead of {described(eager)}")
    largest, is_right = 0.0, True
    for one, other in zip(ours, eager, strict=True):
        if one.is_floating_point():
            distance = ((one.double() - other.double()).abs() / (1 + other.double().abs())).max().item()
        else:
            distance = float((one != other).sum().item())
        largest = max(largest, distance)
        is_right = is_right and distance <= ALLOWED.get(one.dtype, 0.0)  # false for NaN
    return largest, is_right


def described(tensors: Sequence[Tensor]) -> list[str]:
    return [f"{tuple(tensor.shape)} {tensor.dtype} on {tensor.device}" for tensor in tensors]


def shortened(text: str) -> str:
    """Return the first and the last words of a process's output."""
    text = text.strip()
    return text if len(text) <= 800 else f"{text[:300]} … {text[-500:]}"


def mebibytes(count: int) -> float:
    return round(count / MEBIBYTE, 2)
