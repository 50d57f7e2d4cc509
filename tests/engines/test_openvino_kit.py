"""The kit on the openvino backend: a part of it, and all of it in a long run."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from support.effort import LONG
from support.kit import CHECKS, SHORT

from hatch_lower.backends.testing import Exports, backend_tests, trial_names

if find_spec("openvino") is None:
    pytest.skip("OpenVINO is not installed", allow_module_level=True)

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings(r"ignore:.isinstance\(treespec, LeafSpec\):FutureWarning"),
]

EXPORTS = Exports()

ALL = [name for name in trial_names() if not name.startswith("values/odd numbers")]
"""All but what differs from eager by default: with `finite-only = false`, nothing does."""

QUICK = [
    *(name for name in SHORT if not name.startswith("values/odd numbers")),
    *("operators/embedding", "operators/selection float32", "operators/conversion from bool", *CHECKS),
]

test_kit = backend_tests(
    "openvino",
    {"threads": 1},
    variations={"threads": [2], "device": ["AUTO"], "exclude": [["aten.mul.Tensor"]], "finite-only": [False]},
    packed_copies=1,  # kernels that want another layout make a copy of their weights
    only=ALL if LONG else QUICK,
    exports=EXPORTS,
)

test_kit_for_all_numbers = backend_tests(
    "openvino",
    {"finite-only": False},
    packed_copies=1,
    only="*" if LONG else [name for name in SHORT if name.startswith("values/")],
    exports=EXPORTS,
)
