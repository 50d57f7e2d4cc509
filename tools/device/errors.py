"""Wrong inputs and lack of memory, each case in a process of its own: `python -m device.errors [CASE]`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any

import torch

from device.cases import CASES
from device.stand import Stand, difference, installed, open_stand, shortened
from hatch_lower import CallError, InputError, LowerError, ProgramError

SECONDS = 60
Facts = dict[str, object]


def refused(kind: type[LowerError], call: Callable[[], object]) -> Facts:
    """Call a function that has to raise an error of a kind, and return the error's words."""
    try:
        call()
    except LowerError as error:
        return {"ok": isinstance(error, kind), "what": error.what, "found": error.found, "hint": error.hint}
    return {"ok": False, "error": "no error was raised"}


def goes_on(stand: Stand, model: Any, name: str, facts: Facts) -> Facts:
    """Add to the facts whether the model computes right numbers after an error."""
    inputs = stand.inputs(CASES[name].inputs())
    largest, is_right = difference(model(*inputs), stand.module(name)(*inputs))
    return {**facts, "ok": bool(facts["ok"]) and is_right, "difference_after": largest}


def wrong_device(stand: Stand) -> Facts:
    model = stand.load("mlp")
    return goes_on(stand, model, "mlp", refused(InputError, lambda: model(*CASES["mlp"].inputs())))


def wrong_dtype(stand: Stand) -> Facts:
    model, (given,) = stand.load("mlp"), stand.inputs(CASES["mlp"].inputs())
    return goes_on(stand, model, "mlp", refused(InputError, lambda: model(given.half())))


def wrong_rows(stand: Stand) -> Facts:
    model, (given,) = stand.load("mlp"), stand.inputs(CASES["mlp"].inputs())
    return goes_on(stand, model, "mlp", refused(InputError, lambda: model(given[:4])))


def too_many_rows(stand: Stand) -> Facts:
    model = stand.load("mlp_dynamic")
    return goes_on(
        stand, model, "mlp_dynamic", refused(InputError, lambda: model(torch.ones(5000, 64).to(stand.device)))
    )


def strides(stand: Stand) -> Facts:
    model, (given,) = stand.load("mlp"), stand.inputs(CASES["mlp"].inputs())
    other = given.t().contiguous().t()
    largest, is_right = difference(model(other), stand.module("mlp")(given))
    return {"ok": is_right, "difference": largest}


def odd_offset(stand: Stand) -> Facts:
    model, (given,) = stand.load("mlp"), stand.inputs(CASES["mlp"].inputs())
    block = torch.empty(given.numel() + 1, device=stand.device)
    block[1:] = given.flatten()
    largest, is_right = difference(model(block[1:].view_as(given)), stand.module("mlp")(given))
    return {"ok": is_right, "difference": largest}


def absent_gpu(stand: Stand) -> Facts:
    import hatch_lower

    return refused(ProgramError, lambda: hatch_lower.load("mlp", recipe="gpu", device="cuda:99"))


def memory_of_a_call(stand: Stand) -> Facts:
    name = "vit_fp16"
    model, inputs = stand.load(name), stand.inputs(CASES[name].inputs())
    model(*inputs)
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(torch.cuda.memory_reserved() / total)
    facts = refused(CallError, lambda: model(*inputs))
    torch.cuda.set_per_process_memory_fraction(1.0)
    return goes_on(stand, model, name, facts)


def memory_of_a_load(stand: Stand) -> Facts:
    name = "vit_fp16"
    torch.cuda.set_per_process_memory_fraction(1e-5)
    facts = refused(LowerError, lambda: stand.load(name))
    torch.cuda.set_per_process_memory_fraction(1.0)
    return goes_on(stand, stand.load(name), name, facts)


def fork(stand: Stand) -> Facts:
    model, inputs = stand.load("mlp"), stand.inputs(CASES["mlp"].inputs())
    model(*inputs)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, json.dumps(refused(CallError, lambda: model(*inputs))).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        facts: Facts = json.loads(pipe.read() or b'{"ok": false, "error": "the child has ended without an answer"}')
    os.waitpid(child, 0)
    return goes_on(stand, model, "mlp", facts)


ON_GPU = (wrong_device, absent_gpu, memory_of_a_call, memory_of_a_load, fork)
ANYWHERE = (wrong_dtype, wrong_rows, too_many_rows, strides, odd_offset)
ERRORS: Mapping[str, Callable[[Stand], Facts]] = MappingProxyType(
    {case.__name__: case for case in (*ANYWHERE, *ON_GPU)}
)


def try_alone(name: str) -> Facts:
    command = [sys.executable, "-W", "ignore", "-m", "device.errors", name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return {"ok": False, "error": f"no end after {SECONDS} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    facts: Facts = json.loads(lines[-1]) if lines else {"ok": False}
    if done.returncode or not lines:
        facts |= {"ok": False, "status": done.returncode, "error": shortened(done.stderr)}
    return facts


def main() -> None:
    stand = open_stand("errors")
    if len(sys.argv) > 1:
        print(json.dumps(ERRORS[sys.argv[1]](stand)), flush=True)
        return
    there = {"mlp", "mlp_dynamic", "vit_fp16"} <= set(installed())
    names = [name for name, case in ERRORS.items() if stand.on_gpu or case in ANYWHERE]
    if not there:
        stand.record("", ok=False, error="the wheels of mlp, mlp_dynamic and vit_fp16 are not installed")
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for name, facts in zip(names, pool.map(try_alone, names), strict=True):
            stand.record(name, **facts)


if __name__ == "__main__":
    main()
