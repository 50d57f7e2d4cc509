"""Engines used directly, as their manuals say, on the very bytes that lie in a wheel; nothing of ours is imported."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

__all__ = ["ENGINES", "open_all"]

Call = Callable[[Sequence[Any]], Any]


def open_all(site: Path, name: str, engine: str) -> dict[str, Call]:
    """Load every partition of a model that one engine runs; return the calls by the file's name.

    Args:
        site: where the wheel lies unpacked.
        name: of the model, and of its package.
        engine: the backend's name.
    """
    lowered = site / name / "_lowered"
    plan = json.loads((lowered / name / "default.json").read_text())
    delegates = plan["delegates"]
    data = {key: lowered / entry["file"] for each in delegates for key, entry in each.get("data", {}).items()}
    opened = ENGINES[engine]
    return {Path(each["file"]).name: opened(lowered / each["file"], each["info"], data) for each in delegates}


def open_openvino(path: Path, info: dict[str, Any], data: dict[str, Path]) -> Call:
    import numpy
    import openvino

    name = info["constants"]
    constants = numpy.memmap(data[name], numpy.uint8, "c") if name else numpy.zeros(1, numpy.uint8)
    core = openvino.Core()
    model = core.read_model(path.read_bytes(), openvino.Tensor(constants, shared_memory=True))
    settings = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY", "ENABLE_CPU_PINNING": False}
    compiled = core.compile_model(model, "CPU", settings)
    places = range(len(info["passed"]))
    kept = constants  # kernels read them where they are

    def call(inputs: Sequence[Any]) -> Any:
        assert kept is not None
        return compiled([inputs[info["passed"][place]].numpy() for place in places], share_inputs=True)

    return call


def open_onnxruntime(path: Path, info: dict[str, Any], data: dict[str, Path]) -> Call:
    import onnxruntime
    import torch

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.inter_op_num_threads = 1
    options.use_deterministic_compute = True
    if info["weights"]:
        folder = str(data[info["weights"][0]].parent)
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
    session = onnxruntime.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])

    def call(inputs: Sequence[Any]) -> Any:
        return session.run(None, {f"x{place}": inputs[place].numpy() for place in info["inputs"]})

    return call


def open_executorch(path: Path, info: dict[str, Any], data: dict[str, Path]) -> Call:
    from executorch.extension.pybindings import _portable_lib

    program = _portable_lib._load_program(str(path))
    method = program.load_method("forward")
    kept = program

    def call(inputs: Sequence[Any]) -> Any:
        assert kept
        return method.call([inputs[place].contiguous() for place in info["passed"]], True)  # it takes no other

    return call


ENGINES = {"openvino": open_openvino, "onnxruntime": open_onnxruntime, "executorch": open_executorch}
