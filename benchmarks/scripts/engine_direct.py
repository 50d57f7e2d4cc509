"""Calls of the engines themselves, with what our delegates have loaded: nothing between arrays and engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["ENGINES"]

Call = Callable[[Sequence[Any]], Any]


def call_openvino(delegate: Any) -> Call:
    places = delegate._info.call.passed
    return lambda inputs: delegate._compiled([inputs[place] for place in places], share_inputs=True)


def call_onnxruntime(delegate: Any) -> Call:
    places = delegate._map.passed
    return lambda inputs: delegate._session.run(None, {f"x{place}": inputs[place] for place in places})


def call_executorch(delegate: Any) -> Call:
    places = delegate._map.passed
    # it takes no strides
    return lambda inputs: delegate._call([inputs[place].contiguous() for place in places], True)


ENGINES = {"openvino": call_openvino, "onnxruntime": call_onnxruntime, "executorch": call_executorch}
