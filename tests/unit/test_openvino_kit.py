"""The kit on the openvino backend: a part of it, and all of it with `HATCH_LOWER_TEST_THOROUGH=1`."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest

from hatch_lower.backends.testing import Exports, backend_tests, trial_names

if find_spec("openvino") is None:
    pytest.skip("OpenVINO is not installed", allow_module_level=True)

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings(r"ignore:.isinstance\(treespec, LeafSpec\):FutureWarning"),
]

THOROUGH = "HATCH_LOWER_TEST_THOROUGH" in os.environ
EXPORTS = Exports()

ALL = [name for name in trial_names() if not name.startswith("values/odd numbers")]
"""All but what differs from eager by default: with `finite-only = false`, nothing does."""

QUICK = [
    *("operators/perceptron", "operators/attention", "operators/fused", "operators/embedding"),
    *("operators/products float32", "operators/selection float32", "operators/conversion from bool"),
    *("shapes/*", "symbolic sizes/*", "outputs/*", "aliases/*", "constants/*", "state/*"),
    *("control flow/cond", "control flow/while_loop", "control flow/sizes from data"),
    *(name for name in trial_names("checks/*") if "processes" not in name),
]
"""Other operators and dtypes, and other processes, have tests of their own."""

test_kit = backend_tests(
    "openvino",
    {"threads": 1},
    variations={"threads": [2], "device": ["AUTO"], "exclude": [["aten.mul.Tensor"]], "finite-only": [False]},
    packed_copies=1,  # kernels that want another layout make a copy of their weights
    only=ALL if THOROUGH else QUICK,
    exports=EXPORTS,
)

test_kit_for_all_numbers = backend_tests(
    "openvino",
    {"finite-only": False},
    packed_copies=1,
    only="*" if THOROUGH else "values/*",
    exports=EXPORTS,
)
