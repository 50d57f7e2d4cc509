"""What must hold of a backend whatever it computes: the checks beside the programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from hatch_lower.testing.bench import Bench
from hatch_lower.testing.case import Case
from hatch_lower.testing.determinism import check_elsewhere, check_twice
from hatch_lower.testing.handles import check_handles
from hatch_lower.testing.instances import check_instances, check_results_are_kept, check_threads
from hatch_lower.testing.keys import check_constants, check_options, check_unknown_option
from hatch_lower.testing.mapped import check_bound, check_mapped
from hatch_lower.testing.partitioning import check_graph_is_left, check_linear
from hatch_lower.testing.refusing import check_delegate_refuses, check_runtime_refuses

__all__ = ["CHECKS", "Check"]

Check = Callable[[Bench, Sequence[Case]], str]
"""Takes the bench and the selected programs; returns what it looked at, or raises `Fault` or `NotClaimedError`."""

CHECKS: Mapping[str, Check] = MappingProxyType(
    {
        "checks/the partitioner leaves the program as it was": check_graph_is_left,
        "checks/the partitioner is linear": check_linear,
        "checks/bytes are the same twice": check_twice,
        "checks/bytes are the same in other processes": check_elsewhere,
        "checks/every debug handle is accounted for": check_handles,
        "checks/every constant is in result or key": check_constants,
        "checks/every option is in result or key": check_options,
        "checks/unknown options are refused": check_unknown_option,
        "checks/wrong inputs do not reach the delegate": check_runtime_refuses,
        "checks/the delegate refuses wrong inputs": check_delegate_refuses,
        "checks/weights are bound and not copied": check_bound,
        "checks/weights stay mapped": check_mapped,
        "checks/results are kept": check_results_are_kept,
        "checks/clones and others beside it": check_instances,
        "checks/calls from threads": check_threads,
    }
)
"""Name to check, in the order of the report."""
