"""The kit on the onnxruntime backend: a part of it, and all of it with `HATCH_LOWER_TEST_THOROUGH=1`."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest

from hatch_lower.testing import backend_tests

pytest.importorskip("onnxscript")
if find_spec("onnxruntime") is None:
    pytest.skip("ONNX Runtime is not installed", allow_module_level=True)

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings(r"ignore:.isinstance\(treespec, LeafSpec\):FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

QUICK = [
    *("operators/*float32", "operators/attention", "operators/perceptron", "operators/embedding"),
    *("symbolic sizes/*", "values/*", "outputs/nested", "aliases/views of results", "constants/every kind", "checks/*"),
]

test_kit = backend_tests(
    "onnxruntime",
    variations={
        "threads": [3],
        "providers": [["CUDAExecutionProvider", "CPUExecutionProvider"]],
        "exclude": [["aten.add.Tensor", "aten.mul.Tensor"]],
    },
    packed_copies=1,  # ONNX Runtime packs the weights of matrix products
    only="*" if "HATCH_LOWER_TEST_THOROUGH" in os.environ else QUICK,
)
