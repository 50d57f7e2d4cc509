"""A model's card as CycloneDX has it. The library writes no model cards, so this is JSON of the specification."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hatch_lower.config.card import Card
from hatch_lower.format.inputs import input_text
from hatch_lower.format.plan import MethodPlan
from hatch_lower.format.tree import leaf_paths, tree_text


def dataset_ref(model: str, position: int) -> str:
    return f"dataset:{model}/{position}"


def model_card(
    model: str, card: Card, architecture: str, methods: Mapping[str, MethodPlan], outputs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the `modelCard` of a model's component."""
    parameters = {
        "approach": {"type": card.approach} if card.approach else None,
        "task": card.task,
        "architectureFamily": card.family,
        "modelArchitecture": architecture,
        "datasets": [{"ref": dataset_ref(model, position)} for position in range(len(card.datasets))],
        "inputs": [{"format": text} for name, plan in methods.items() for text in input_formats(name, plan)],
        "outputs": [{"format": output_format(name, plan, outputs.get(name))} for name, plan in methods.items()],
    }
    considerations = {
        "useCases": list(card.intended_uses),
        "technicalLimitations": list(card.limitations),
        "ethicalConsiderations": [{"name": text} for text in card.ethical_considerations],
    }
    return given({"modelParameters": given(parameters), "considerations": given(considerations)})


def given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value}


def input_formats(method: str, plan: MethodPlan) -> Iterator[str]:
    paths = [path for parameter in plan.parameters for path in leaf_paths(parameter.tree, parameter.name)]
    for path, each in zip(paths, plan.inputs, strict=True):
        yield f"{method}: {path}: {input_text(each, plan.symbols)}"


def output_format(method: str, plan: MethodPlan, outputs: Any) -> str:
    leaves = iter(outputs or ())
    return f"{method}: {tree_text(plan.outputs, lambda: next(leaves, 'tensor'))}"
