"""What a short run tries of the kit for backends on an engine: some of every group of programs, and the checks."""

from __future__ import annotations

from hatch_lower.backends.testing import trial_names

CHECKS = [name for name in trial_names("checks/*") if not name.endswith("in other processes")]
"""All checks but one that starts processes: the tests of each engine have one that says more."""

SHORT = [
    *("operators/perceptron", "operators/fused", "operators/functions float32", "operators/attention"),
    *("limits/wrapping int32", "limits/summing int32", "limits/multiplying int32", "limits/counting"),
    *("shapes/views", "shapes/empty tensors", "symbolic sizes/two", "symbolic sizes/empty batch"),
    *("values/odd numbers in arithmetic", "values/odd numbers in functions"),
    *("outputs/several", "outputs/nested", "aliases/views of results", "aliases/input returned"),
    *("constants/every kind", "constants/tied", "state/counted", "state/replaced", "control flow/cond"),
    "resizing/nearest to any size",
]
"""Programs: every group has at least one of which engines took something else for granted."""
