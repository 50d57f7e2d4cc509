"""`lower_memory.py heavy|shared|retained ours|executorch`: what lowering needs beyond the weights, as JSON.

`heavy`: 1 GiB of weights, two methods that share them, 8 partitions each, everything delegated. `shared`: a weight of
64 MiB with 32 users in two partitions. `retained`: what stays of ten models of 64 MiB each after `del`.
"""

from __future__ import annotations

import gc
import json
import logging
import sys
import warnings
import weakref
from pathlib import Path
from typing import Any

import torch

warnings.simplefilter("ignore")
logging.disable(logging.WARNING)
case, side = sys.argv[1:]

if side == "ours":
    from hatch_lower.exir.backend.backend_api import MethodProgramsPartitionerSpec, to_backend
    from hatch_lower.exir.backend.backend_details import BackendDetails, PreprocessResult
    from hatch_lower.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
    from hatch_lower.exir.backend.utils import tag_constant_data
    from hatch_lower.exir.program._program import to_edge
else:
    from executorch.exir import to_edge
    from executorch.exir.backend.backend_api import MethodProgramsPartitionerSpec, to_backend
    from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
    from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
    from executorch.exir.backend.utils import tag_constant_data


class Empty(BackendDetails):
    @staticmethod
    def preprocess(edge_program: Any, compile_specs: Any) -> Any:
        return PreprocessResult(b"")


class Parts(Partitioner):
    """Divides all operations into equal partitions, each with its constants."""

    def __init__(self, partitions: int) -> None:
        super().__init__()
        self.partitions = partitions

    def partition(self, exported_program: Any) -> Any:
        nodes = [node for node in exported_program.graph.nodes if node.op == "call_function"]
        tags = {}
        for index, node in enumerate(nodes):
            tag = f"part_{index * self.partitions // len(nodes)}"
            node.meta["delegation_tag"] = tag
            tags[tag] = DelegationSpec("Empty", [])
        tag_constant_data(exported_program)
        return PartitionResult(exported_program, tags)


class Products(torch.nn.Module):
    """Matrix products and relu by turns, with a weight for each or one for all."""

    def __init__(self, count: int, size: int, shared: bool = False) -> None:
        super().__init__()
        self.users = count
        weights = 1 if shared else count
        self.weights = torch.nn.ParameterList(torch.full((size, size), 1.0 + index) for index in range(weights))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for index in range(self.users):
            x = torch.relu(torch.mm(x, self.weights[index % len(self.weights)]))
        return x


class Second(torch.nn.Module):
    """Another method of the same weights."""

    def __init__(self, first: Products) -> None:
        super().__init__()
        self.weights = first.weights

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for weight in self.weights:
            x = torch.tanh(torch.mm(x, weight))
        return x


def resident(key: str) -> int:
    """Return `VmRSS` or `VmHWM` in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:"))


def edge_programs(methods: dict[str, torch.nn.Module], size: int) -> dict[str, Any]:
    """Return the edge programs of a model's methods."""
    made = {}
    for name, module in methods.items():
        manager = to_edge(torch.export.export(module.eval(), (torch.ones(1, size),), strict=False))
        made[name] = manager.exported_program()
    return made


def lower(programs: dict[str, Any], partitions: int) -> dict[str, Any]:
    """Lower all methods at once."""
    return to_backend(MethodProgramsPartitionerSpec(programs, {name: Parts(partitions) for name in programs}))


def peak_ratio(methods: dict[str, torch.nn.Module], size: int, partitions: int) -> dict[str, float]:
    """Return the peak of lowering, less what was there before without the weights, by the size of the weights."""
    weights = sum(each.numel() * 4 for each in next(iter(methods.values())).parameters())
    programs = edge_programs(methods, size)
    lower(edge_programs({"forward": Products(2, 4)}, 4), 2)
    gc.collect()
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    lowered = lower(programs, partitions)
    peak = resident("VmHWM")
    modules = [child for each in lowered.values() for child in each.graph_module.children()]
    assert len(modules) == partitions * len(methods), len(modules)
    return {"before": before, "peak": peak, "weights": weights, "ratio": (peak - before + weights) / weights}


def retained(models: int) -> dict[str, int]:
    """Return how many weights live on, and how much memory is used more, after some models were lowered."""
    kept: list[Any] = []
    before = 0
    for index in range(models + 1):
        module = Products(4, 2048)
        kept += [weakref.ref(each) for each in module.parameters()] if index else []
        lowered = lower(edge_programs({"forward": module}, 2048), 2)
        del module, lowered
        gc.collect()
        before = before or resident("VmRSS")
    return {
        "alive": sum(each() is not None for each in kept),
        "weights": len(kept),
        "more": resident("VmRSS") - before,
    }


if case == "heavy":
    first = Products(64, 2048)
    report: dict[str, Any] = peak_ratio({"forward": first, "second": Second(first)}, 2048, 8)
elif case == "shared":
    report = peak_ratio({"forward": Products(32, 4096, shared=True)}, 4096, 2)
else:
    report = retained(10)
print(json.dumps(report))
