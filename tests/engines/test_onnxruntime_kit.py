"""The kit on the onnxruntime backend: a part of it, and all of it in a long run."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from support.effort import LONG
from support.kit import CHECKS, SHORT

from hatch_lower.backends.testing import Exports, backend_tests, trial_names

pytest.importorskip("onnxscript")
if find_spec("onnxruntime") is None:
    pytest.skip("ONNX Runtime is not installed", allow_module_level=True)

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings(r"ignore:.isinstance\(treespec, LeafSpec\):FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

QUICK = [*SHORT, "operators/embedding", "operators/selection float32", *CHECKS]
QUICK_FINITE = ["operators/pooling *", "operators/extremes float32", "operators/ordering float32"]
EXPORTS = Exports()

test_kit = backend_tests(
    "onnxruntime",
    {"finite-only": False},
    variations={
        "finite-only": [True],
        "threads": [3],
        "providers": [["CUDAExecutionProvider", "CPUExecutionProvider"]],
        "exclude": [["aten.add.Tensor", "aten.mul.Tensor"]],
    },
    packed_copies=1,  # ONNX Runtime packs the weights of matrix products
    only="*" if LONG else QUICK,
    exports=EXPORTS,
)

test_kit_for_finite_numbers = backend_tests(
    "onnxruntime",
    packed_copies=1,
    only=[name for name in trial_names() if not name.startswith("values/odd numbers")] if LONG else QUICK_FINITE,
    exports=EXPORTS,
)
