"""Facts about the models of a wheel as JSON values, for `inspect` and the report page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from hatch_lower.format.constants import Storage
from hatch_lower.format.debug_map import MethodDebug, Origin
from hatch_lower.format.graph import DelegateCall, walk
from hatch_lower.format.manifest import MethodEntry
from hatch_lower.format.plan import MethodPlan, Plan, input_texts, signature_text
from hatch_lower.format.tree import tree_text
from hatch_lower.format.weights import Weights, is_aligned

Facts = dict[str, Any]


def outside_reports(weights: Weights, storages: Mapping[str, Storage]) -> list[Facts]:
    reports = []
    for position, source in enumerate(weights.sources):
        spans = {key: span for key, span in weights.spans.items() if span.source == position}
        sizes = {key: span.end - span.begin for key, span in spans.items()}
        copied = [key for key, span in spans.items() if key in storages and not is_aligned(storages[key], span)]
        facts = {"tensors": len(spans), "used": sum(sizes.values()), "copied": sum(sizes[key] for key in copied)}
        reports.append({**asdict(source), **facts})
    return reports


def method_facts(name: str, method: MethodPlan) -> Facts:
    return {
        "signature": signature_text(name, method),
        "inputs": input_texts(method),
        "symbols": {symbol.name: {"min": symbol.min, "max": symbol.max} for symbol in method.symbols.values()},
        "outputs": tree_text(method.outputs, lambda: "tensor"),
    }


def delegate_reports(plan: Plan, method: MethodPlan, sizes: Mapping[str, int]) -> list[Facts]:
    calls = Counter(each.delegate for _, each in walk(method.graph) if isinstance(each, DelegateCall))
    return [
        {
            "backend": delegate.backend,
            "file": delegate.file,
            "size": sizes.get(delegate.file, 0),
            "constants": len(delegate.constants),
            "data": {name: {"file": data.file, "size": data.size} for name, data in delegate.data.items()},
            "calls": calls[index],
        }
        for index, delegate in enumerate(plan.delegates)
        if index in calls
    ]


def left_out_reports(entry: MethodEntry, debug: MethodDebug) -> list[Facts]:
    """Return the operations that a build left out of a backend's partitions, with their source lines."""
    rows = []
    for each in entry.left_out:
        origin = debug.handles.get(each.handle, Origin(""))
        rows.append({**asdict(origin), "backend": each.backend, "place": each.place, "reason": each.reason})
    return rows


def undelegated_reports(debug: MethodDebug) -> list[Facts]:
    rows = []
    for node in debug.undelegated:
        origin = debug.handles.get(node.handle)
        module, source = (origin.module, origin.source) if origin else ("", "")
        rows.append({"node": node.name, "op": node.op, "module": module, "source": source, "reason": node.reason})
    return rows
