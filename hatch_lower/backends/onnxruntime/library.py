"""ONNX Runtime's library, imported on demand and without its telemetry; the distributions of its builds."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from threading import Lock
from typing import Any

CPU = "CPUExecutionProvider"
# the distribution whose build of ONNX Runtime has an execution provider; the CPU's provider is in each build
DISTRIBUTIONS: Mapping[str, str] = {
    "CUDAExecutionProvider": "onnxruntime-gpu",
    "TensorrtExecutionProvider": "onnxruntime-gpu",
    "DmlExecutionProvider": "onnxruntime-directml",
    "OpenVINOExecutionProvider": "onnxruntime-openvino",
}

# ONNX Runtime reads older models for ever; 1.23 is the oldest with which the way that weights are mapped was tried
RANGE = ">=1.23,<2"
SWITCH = "ORT_DISABLE_TELEMETRY"
IMPORTING = Lock()


def import_onnxruntime() -> Any:
    # Importing ONNX Runtime starts threads that send messages to its vendor, and writes a number of the machine and a
    # database below the user's cache folder. A build and a loaded model prevent both with the library's switch, which
    # is read at import. A user's own setting of the switch stays, and so does an earlier import.
    with IMPORTING:  # two simultaneous loads could restore each other's switch wrongly, or leave the switch set
        chosen = SWITCH in os.environ
        os.environ.setdefault(SWITCH, "1")
        try:
            import onnxruntime
        finally:
            if not chosen:
                del os.environ[SWITCH]
    return onnxruntime


def requirement(providers: Iterable[str]) -> str:
    """Return the distribution whose build of ONNX Runtime has all execution providers, with its range."""
    return next((DISTRIBUTIONS[name] for name in providers if name in DISTRIBUTIONS), "onnxruntime") + RANGE
