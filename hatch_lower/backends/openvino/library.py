"""The OpenVINO library, imported on demand and without its telemetry."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from threading import Lock
from typing import Any

INSTALL = 'install it: `pip install "hatch-lower[openvino]"`'
CPU = "CPU"
# The format and its opsets are kept readable by later releases; a new year's release may drop deprecated parts
REQUIREMENT = "openvino>=2026.0,<2027"
TELEMETRY = "openvino_telemetry"
# Limits oneDNN to older instructions, as in builds. OpenVINO's own kernels then mix instruction sets: MVN, which
# computes norms of layers and groups, crashes on a processor with AVX-512 for sizes that are no multiple of 16.
ONEDNN = "ONEDNN_MAX_CPU_ISA"
IMPORTING = Lock()


def import_openvino() -> Any:
    # Importing OpenVINO sends a message to its vendor and writes into the home folder, if its telemetry package is
    # found. A build and a loaded model must not, so the package is hidden meanwhile; the library has its own fallback.
    with IMPORTING, hidden(TELEMETRY):
        return importlib.import_module("openvino")


@contextmanager
def hidden(name: str) -> Iterator[None]:
    """Let a module that nobody has imported yet be missing, as long as the context lasts."""
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[name]


@cache
def engine_of_integers() -> Any:
    # A processor without instructions for sums of products of 8-bit integers sums them in 16 bits, which overflow.
    # There the same models are computed in floating point.
    if not sums_integers():
        engine().set_property("CPU", {"LP_TRANSFORMS_MODE": "NO"})
    return engine()


@cache
def sums_integers() -> bool:
    openvino = import_openvino()
    opset, count = openvino.opset13, 64
    given = openvino.op.Parameter(openvino.Type.f32, openvino.Shape([1, count]))
    bounds = [opset.constant(bound, dtype=openvino.Type.f32) for bound in (0, 255, 0, 255)]
    activation = opset.convert(opset.convert(opset.fake_quantize(given, *bounds, 256), "u8"), "f32")
    weight = opset.convert(opset.constant([[127] * count] * 16, dtype=openvino.Type.i8), "f32")
    half = opset.constant(0.5, dtype=openvino.Type.f32)
    product = opset.matmul(opset.multiply(activation, half), opset.multiply(weight, half), False, True)
    model = engine().compile_model(
        openvino.Model([product], [given], "probe"), "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )
    greatest = openvino.Tensor(openvino.Type.f32, openvino.Shape([1, count]))
    greatest.data[:] = 255
    return bool((model([greatest])[0] == 255 * 127 * count / 4).all())


def missing_devices(device: str) -> list[str]:
    """Return the devices that a recipe's `device` names and OpenVINO lacks here; `AUTO` names choices only."""
    kind, names = named_devices(device)
    if device == CPU or kind == "AUTO":
        return []
    present = {bare_name(name) for name in engine().available_devices}
    return [name for name in names if name not in present]


def named_devices(device: str) -> tuple[str, list[str]]:
    """Return the form of a recipe's `device` (`AUTO`, `HETERO`, `MULTI`, `BATCH`, or empty), and the devices in it."""
    form, _, listed = device.partition(":")
    if not listed:
        return ("AUTO", []) if device == "AUTO" else ("", [bare_name(device)])
    # `AUTO:-GPU` leaves a device out
    return form, [bare_name(name) for name in listed.split(",") if not name.startswith("-")]


def bare_name(name: str) -> str:
    # `GPU.0` is the only GPU too, which is listed as `GPU`; `CPU(4)` is the CPU with a size of a batch, and `(CPU)` the
    # CPU until another device is ready
    return name.strip("()").partition("(")[0].removesuffix(".0")


def elsewhere_reason(device: str, running: Sequence[str]) -> str:
    """Return the difference between a recipe's `device` and the devices of a compiled model, or an empty text."""
    form, names = named_devices(device)
    present = {bare_name(name) for name in running}
    wanted = {"": set(names), "BATCH": set(names), "MULTI": set(names), "HETERO": set(names[:1])}.get(form, set())
    if names and (wanted - present or present - set(names)):
        return f"OpenVINO computes on {', '.join(sorted(present)) or 'no device'} instead of `{device}`"
    return ""


def passed_over(device: str, running: Sequence[str]) -> str:
    """Return the first device in a list of `AUTO` if OpenVINO has chosen another, or an empty text."""
    form, names = named_devices(device)
    first = names[0] if form == "AUTO" and names else ""
    return first if first not in map(bare_name, running) else ""


@cache
def engine() -> Any:
    # a single core in the process: the plugins of devices are loaded once
    core = import_openvino().Core()
    with suppress(RuntimeError), without_variable(ONEDNN):  # of an OpenVINO without the plugin of the CPU
        core.get_property(CPU, "OPTIMIZATION_CAPABILITIES")  # the plugin reads the variable once, here
    return core


@contextmanager
def without_variable(name: str) -> Iterator[None]:
    value = os.environ.pop(name, None)
    try:
        yield
    finally:
        if value is not None:
            os.environ[name] = value
