"""Comparing two distributions with lowered models: programs, weights, settings, tools, sizes.

Each side becomes a document of facts. The documents are compared leaf by leaf; changed tensors and graphs get details.
Nothing is run.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

from hatch_lower.config.requirements import read_requirement
from hatch_lower.driver.contents import SBOM, OpenedModel, OpenedRecipe, WheelModels, find_contents, metadata_text
from hatch_lower.driver.diff.difference import DocumentChange, document_changes
from hatch_lower.driver.diff.forms import OperatorComparison
from hatch_lower.driver.diff.tensors import compare_numbers, read_tensor_file
from hatch_lower.errors import ProgramError
from hatch_lower.format.arguments import Argument, ConstantName, Special, Value
from hatch_lower.format.debug_map import MethodDebug
from hatch_lower.format.graph import OpCall
from hatch_lower.format.manifest import FileEntry
from hatch_lower.format.plan import MethodPlan, Plan, signature_text
from hatch_lower.format.tree import tree_text
from hatch_lower.frozen import Frozen

Facts = dict[str, object]
MOST_LINES = 40  # of details of a graph


class ComparedModels(Frozen):
    title: str
    models: Mapping[str, OpenedModel]
    requirements: Mapping[str, str]
    components: Mapping[str, str]  # name to version, from the SBOM


def read_side(target: str | Path) -> ComparedModels:
    folders = find_contents(target)
    packed = isinstance(target, str) or not target.is_dir()  # a folder has no metadata
    metadata, sbom = (metadata_text(target, name) or "" if packed else "" for name in ("METADATA", SBOM))
    title = f"{folders[0].manifest.distribution} {folders[0].manifest.version} ({target})"
    requires = HeaderParser().parsestr(metadata).get_all("Requires-Dist", [])
    components = components_of(sbom, str(target))
    return replace(
        models_of_folders(title, folders), requirements=by_requirement(map(str, requires)), components=components
    )


def models_of_folders(title: str, folders: Sequence[WheelModels]) -> ComparedModels:
    """Return the models in folders, without requirements and components, which are in a distribution's metadata."""
    return ComparedModels(
        title, {name: contents.model(name) for contents in folders for name in contents.models}, {}, {}
    )


def by_requirement(texts: Iterator[str] | Sequence[str]) -> dict[str, str]:
    """Return requirements by project, extras and marker, so that another version is a single change."""
    named: dict[str, str] = {}
    for text in texts:
        requirement = read_requirement(text)
        if requirement is None:
            named[text] = text
            continue
        extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
        about = f"{requirement.name}{extras}" + (f"; {requirement.marker}" if requirement.marker else "")
        named[about if about not in named else text] = str(requirement.specifier) or requirement.url or "any version"
    return named


def components_of(sbom: str, where: str) -> dict[str, str]:
    if not sbom:
        return {}
    try:
        document = json.loads(sbom)
        listed = [*document.get("components", []), *document["metadata"].get("tools", {}).get("components", [])]
        return {f"{item['type']} {item['name']}": str(item["version"]) for item in listed if "version" in item}
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        found = f"{type(error).__name__}: {error}"
        raise ProgramError("the SBOM cannot be read", where=where, found=found, hint="build the wheel again") from error


def compare_models(first: ComparedModels, second: ComparedModels) -> list[DocumentChange]:
    """Return the differences; none if every packaged file of the models has the same contents."""
    if len(first.models) == len(second.models) == 1:  # single models are compared under any name
        second = replace(second, models=dict(zip(first.models, second.models.values(), strict=True)))
    return [
        replace(change, lines=tuple(itertools.islice(details(first, second, change.place), MOST_LINES)))
        for change in document_changes((), distribution_facts(first), distribution_facts(second))
    ]


def distribution_facts(side: ComparedModels) -> Facts:
    manifests = [model.contents.manifest for model in side.models.values()]
    tools = {name: version for manifest in manifests for name, version in manifest.tools.items()}
    return {
        "distribution": {"name": manifests[0].distribution, "version": manifests[0].version},
        "tools": {"hatch-lower": manifests[0].hatch_lower, "torch": manifests[0].torch, **tools},
        "requirements": side.requirements,
        "components": side.components,
        "models": {name: model_facts(model) for name, model in side.models.items()},
    }


def model_facts(model: OpenedModel) -> Facts:
    entry, plans = model.entry, [recipe.plan for recipe in model.recipes.values()]
    assets = {f"asset {name}": file for name, file in entry.assets.items()}
    shared = {"weights": entry.constants, "places of weights": entry.weights, "check data": entry.check, **assets}
    weights = model.contents.weights(model.name)
    return {
        "name": model.name,
        "order": list(entry.order),
        "methods": {
            method: {"signature": signature_text(method, plan), "outputs": tree_text(plan.outputs, lambda: "tensor")}
            for method, plan in plans[0].methods.items()
        },
        "tensors": {name: facts for plan in plans for name, facts in tensor_facts(plan).items()},
        "files": {label: file_facts(model.contents, file) for label, file in shared.items() if file is not None},
        "sources of weights": {source.url: source.sha256 for source in weights.sources} if weights else {},
        "recipes": {name: recipe_facts(model.contents, recipe) for name, recipe in model.recipes.items()},
    }


def tensor_facts(plan: Plan) -> dict[str, Facts]:
    return {
        name: {
            "dtype": constant.dtype,
            "shape": list(constant.shape),
            "mutable": constant.mutable,
            "layout": [list(constant.stride), constant.offset],
            "sha256": plan.storages[constant.storage].key,
        }
        for name, constant in plan.constants.items()
    }


def file_facts(contents: WheelModels, file: FileEntry) -> Facts:
    contents.map(file)  # refuses a file with another digest
    return {"size": file.size, "sha256": file.sha256}


def recipe_facts(contents: WheelModels, recipe: OpenedRecipe) -> Facts:
    entry = recipe.entry
    files = {label: file_facts(contents, file) for label, file in recipe.files().items()}
    return {
        **recipe.facts(),
        "requirements": by_requirement(entry.requirements),
        "imports": list(entry.imports),
        "files": files,
        "methods": {
            name: {
                **asdict(method),
                "share": round(method.delegated / method.nodes, 4) if method.nodes else 0.0,
                "operations": dict(Counter(origin.op for origin in recipe.method_debug(name).handles.values())),
            }
            for name, method in entry.methods.items()
        },
    }


def details(first: ComparedModels, second: ComparedModels, place: Sequence[str]) -> Iterator[str]:
    if place[:1] != ("models",) or len(place) < 4:
        return
    models = first.models[place[1]], second.models[place[1]]
    match place[2:]:
        case ("tensors", name):
            yield from tensor_lines(*models, name)
        case ("recipes", recipe, "files", "plan"):
            yield from graph_lines(models[0].recipes[recipe], models[1].recipes[recipe])


def tensor_lines(first: OpenedModel, second: OpenedModel, name: str) -> Iterator[str]:
    """Yield the size of a tensor's change, if both sides have equally many numbers."""
    left, right = stored_tensor(first, name), stored_tensor(second, name)
    if left is None or right is None or left[0] != right[0] or len(left[1]) != len(right[1]):
        return
    if left[1] != right[1]:
        yield compare_numbers(*left, right[1]).text()


def stored_tensor(model: OpenedModel, name: str) -> tuple[str, memoryview] | None:
    """Return dtype and bytes of a constant's storage, or `None` if the wheel lacks the storage."""
    plans = (recipe.plan for recipe in model.recipes.values())
    keys = [plan.storages[plan.constants[name].storage].key for plan in plans if name in plan.constants]
    if not keys or model.entry.constants is None:
        return None
    file = read_tensor_file(model.contents.map(model.entry.constants))
    if file is None or keys[0] not in file.entries:
        return None
    return file.entries[keys[0]].dtype, file.contents(keys[0])


def graph_lines(first: OpenedRecipe, second: OpenedRecipe) -> Iterator[str]:
    old, new = first.plan.methods, second.plan.methods
    for name in sorted(old.keys() & new.keys()):
        # arguments of delegated operations are unknown: a side with arguments would look changed
        alike = first.entry.methods[name].delegated == second.entry.methods[name].delegated
        before = method_operations(old[name], first.method_debug(name), arguments=alike)
        after = method_operations(new[name], second.method_debug(name), arguments=alike)
        compared = OperatorComparison(before, after, {})
        operators, checks = compared.operator_lines()
        prefix = f"{name}: " if len(old) > 1 or len(new) > 1 else ""
        yield from (f"{prefix}{line}" for line in [*operators, *checks] or compared.edge_lines([]))


def method_operations(plan: MethodPlan, debug: MethodDebug, *, arguments: bool) -> tuple[list[Any], list[str]]:
    """Return the operations of a method in order, with those of delegates, and their source lines."""
    # the debug map has all operations; the plan has the arguments of the operations that no delegate runs
    calls: dict[int, OpCall] = {}
    for number, instruction in enumerate(plan.graph.instructions):
        handles = debug.instructions.get(str(number), ())
        if arguments and isinstance(instruction, OpCall) and len(handles) == 1:
            calls[handles[0]] = instruction
    order = sorted(debug.handles)
    places = {calls[handle].out: position for position, handle in enumerate(order) if handle in calls}
    rows: list[Any] = []
    sources: list[str] = []
    for handle in order:
        call, origin = calls.get(handle), debug.handles[handle]
        given = ["list", [] if call is None else [argument_json(value, places) for value in call.args]]
        named = {} if call is None else {name: argument_json(value, places) for name, value in call.kwargs.items()}
        namespace, _, name = origin.op.partition(".")
        rows.append(["call_function", f":::{namespace}::{name}", given, named, None])
        sources.append(origin.source)
    return rows, sources


def argument_json(value: Argument, places: Mapping[int, int]) -> object:
    """Return an argument of a plan in the canonical form of a graph; `places` maps a slot to a position."""
    match value:
        case Value(slot):
            return ["node", places.get(slot)]
        case ConstantName(name):
            return ["constant", name]
        case Special(kind, name):
            return [kind, name]
        case tuple():
            return ["list", [argument_json(item, places) for item in value]]
        case bool() | str() | None:
            return value
        case int():
            return ["int", str(value)]
        case float():
            return ["float", value.hex()]
        case _:
            return ["complex", value.real.hex(), value.imag.hex()]
