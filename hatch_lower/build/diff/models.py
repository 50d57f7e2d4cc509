"""What differs between two distributions with lowered models: programs, weights, settings, tools, sizes.

Each side is first written down as one document of facts, and the two documents are compared; then tensors, native code
and graphs that differ are looked into. Nothing of what is compared is run.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement

from hatch_lower.build.contents import (
    SBOM,
    Contents,
    find_contents,
    metadata_text,
)
from hatch_lower.build.diff.changes import Change, changes
from hatch_lower.build.diff.native import compare_libraries, read_library
from hatch_lower.build.diff.operators import Comparison
from hatch_lower.build.diff.tensors import compare_numbers, read_tensor_file
from hatch_lower.errors import ProgramError
from hatch_lower.format.arguments import Argument, ConstantName, Special, Value
from hatch_lower.format.debug_map import MethodDebug
from hatch_lower.format.graph import OpCall
from hatch_lower.format.manifest import FileEntry, ModelEntry, RecipeEntry
from hatch_lower.format.plan import MethodPlan, Plan
from hatch_lower.format.signature import signature_text
from hatch_lower.format.tree import tree_text

Facts = dict[str, Any]
MOST_LINES = 40
"""Lines that are said of one graph or library."""


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two that are compared."""

    title: str
    models: Mapping[str, Contents]
    plans: Mapping[tuple[str, str], Plan]  # by model and recipe
    requirements: Mapping[str, str]
    components: Mapping[str, str]  # of the SBOM, name to version

    def entry(self, model: str) -> ModelEntry:
        return self.models[model].manifest.models[model]


def read_side(target: str | Path) -> Side:
    found = find_contents(target)
    models = {name: contents for contents in found for name in contents.models}
    plans = {
        (name, recipe): contents.plan(entry)
        for name, contents in models.items()
        for recipe, entry in contents.manifest.models[name].recipes.items()
    }
    packed = isinstance(target, str) or not target.is_dir()  # a folder has no metadata
    metadata, sbom = (metadata_text(target, name) or "" if packed else "" for name in ("METADATA", SBOM))
    title = f"{found[0].manifest.distribution} {found[0].manifest.version} ({target})"
    requires = HeaderParser().parsestr(metadata).get_all("Requires-Dist", [])
    return Side(title, models, plans, by_requirement(map(str, requires)), components_of(sbom, str(target)))


def by_requirement(texts: Iterator[str] | Sequence[str]) -> dict[str, str]:
    """Return requirements by what they are of, so that another version is a change and not two."""
    named: dict[str, str] = {}
    for text in texts:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            named[text] = text
            continue
        about = replace_specifier(requirement)
        named[about if about not in named else text] = str(requirement.specifier) or requirement.url or "any version"
    return named


def replace_specifier(requirement: Requirement) -> str:
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    return f"{requirement.name}{extras}" + (f"; {requirement.marker}" if requirement.marker else "")


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


def compare_models(first: Side, second: Side) -> list[Change]:
    """Return what differs; nothing if every packaged file of the models has the same contents."""
    names = dict(zip(second.models, first.models, strict=True)) if len(first.models) == len(second.models) == 1 else {}
    return [
        replace(change, lines=tuple(itertools.islice(details(first, second, names, change.place), MOST_LINES)))
        for change in changes((), facts_of(first, {}), facts_of(second, names))
    ]


def facts_of(side: Side, names: Mapping[str, str]) -> Facts:
    """Return what is compared of one side, as JSON."""
    manifests = [contents.manifest for contents in side.models.values()]
    tools = {f"{name}": version for manifest in manifests for name, version in manifest.tools.items()}
    return {
        "distribution": {"name": manifests[0].distribution, "version": manifests[0].version},
        "tools": {"hatch-lower": manifests[0].hatch_lower, "torch": manifests[0].torch, **tools},
        "requirements": side.requirements,
        "components": side.components,
        "models": {names.get(name, name): model_facts(side, name) for name in side.models},
    }


def model_facts(side: Side, name: str) -> Facts:
    contents, entry = side.models[name], side.entry(name)
    plans = {recipe: side.plans[name, recipe] for recipe in entry.order}
    shared = {
        "weights": entry.constants,
        "check data": entry.check,
        **{f"asset {k}": v for k, v in entry.assets.items()},
    }
    first = plans[entry.order[0]]
    return {
        "name": name,
        "order": list(entry.order),
        "methods": {
            method: {"signature": signature_text(method, plan), "outputs": tree_text(plan.outputs, lambda: "tensor")}
            for method, plan in first.methods.items()
        },
        "tensors": {tensor: facts for plan in plans.values() for tensor, facts in tensor_facts(plan).items()},
        "files": {label: file_facts(contents, file) for label, file in shared.items() if file is not None},
        "recipes": {
            recipe: recipe_facts(contents, entry.recipes[recipe], plan, entry) for recipe, plan in plans.items()
        },
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


def file_facts(contents: Contents, file: FileEntry) -> Facts:
    contents.map(file)
    return {"size": file.size, "sha256": file.sha256}


def recipe_facts(contents: Contents, recipe: RecipeEntry, plan: Plan, model: ModelEntry) -> Facts:
    debug = contents.debug(recipe)
    files = {label: file_facts(contents, file) for label, file in recipe_files(recipe, plan).items()}
    return {
        "backends": list(recipe.backends),
        "requirements": by_requirement(recipe.requirements),
        "target": recipe.target and asdict(recipe.target),
        "imports": list(recipe.imports),
        "size": sum(file["size"] for file in files.values()),
        "files": files,
        "methods": {
            name: {
                **asdict(entry),
                "share": round(entry.delegated / entry.nodes, 4) if entry.nodes else 0.0,
                "operations": dict(Counter(o.op for o in debug.methods.get(name, MethodDebug()).handles.values())),
            }
            for name, entry in recipe.methods.items()
        },
    }


def recipe_files(recipe: RecipeEntry, plan: Plan) -> dict[str, FileEntry]:
    labels = {file.file: f"data {name}" for delegate in plan.delegates for name, file in delegate.data.items()}
    labels |= {
        delegate.file: f"delegate {number} ({delegate.backend})" for number, delegate in enumerate(plan.delegates)
    }
    named = {labels.get(file.path, file.path): file for file in recipe.delegates}
    return {"plan": recipe.plan, "debug map": recipe.debug, **dict(sorted(named.items()))}


def details(first: Side, second: Side, names: Mapping[str, str], place: tuple[str, ...]) -> Iterator[str]:
    original = {new: old for old, new in names.items()}
    match place:
        case ("models", model, "tensors", name):
            yield from tensor_lines(first, second, model, original.get(model, model), name)
        case ("models", model, "recipes", recipe, "files", label):
            keys = (model, recipe), (original.get(model, model), recipe)
            if label == "plan":
                yield from graph_lines(first, second, *keys)
            elif label.startswith("delegate "):
                yield from native_lines(first, second, *keys, label)


def tensor_lines(first: Side, second: Side, model: str, counterpart: str, name: str) -> Iterator[str]:
    """Yield by how much the numbers of a tensor differ, if there are as many on both sides."""
    left, right = stored_tensor(first, model, name), stored_tensor(second, counterpart, name)
    if left is None or right is None or left[0] != right[0] or len(left[1]) != len(right[1]):
        return
    if left[1] != right[1]:
        yield compare_numbers(*left, right[1]).text()


def stored_tensor(side: Side, model: str, name: str) -> tuple[str, memoryview] | None:
    entry = side.entry(model)
    plans = (side.plans[model, recipe] for recipe in entry.order)
    keys = [plan.storages[plan.constants[name].storage].key for plan in plans if name in plan.constants]
    if not keys or entry.constants is None:
        return None
    file = read_tensor_file(side.models[model].map(entry.constants))
    if file is None or keys[0] not in file.entries:
        return None
    return file.entries[keys[0]]["dtype"], file.contents(keys[0])


def native_lines(first: Side, second: Side, one: tuple[str, str], other: tuple[str, str], label: str) -> Iterator[str]:
    libraries = []
    for side, (model, recipe) in ((first, one), (second, other)):
        contents, entry = side.models[model], side.entry(model).recipes[recipe]
        file = recipe_files(entry, side.plans[model, recipe]).get(label)
        libraries.append(None if file is None else read_library(contents.map(file)))
    if libraries[0] is not None and libraries[1] is not None:
        for found in compare_libraries("", libraries[0], libraries[1], {}):
            sides = f": {found.first} → {found.second}" if found.first or found.second else ""
            yield f"{found.place}{sides}"
            yield from (f"  {line}" for line in found.lines)


def graph_lines(first: Side, second: Side, one: tuple[str, str], other: tuple[str, str]) -> Iterator[str]:
    sides: list[tuple[Mapping[str, MethodPlan], Mapping[str, MethodDebug]]] = []
    delegated: list[dict[str, int]] = []
    for side, key in ((first, one), (second, other)):
        delegated.append({name: entry.delegated for name, entry in side.entry(key[0]).recipes[key[1]].methods.items()})
        debug = side.models[key[0]].debug(side.entry(key[0]).recipes[key[1]])
        sides.append((side.plans[key].methods, debug.methods))
    (old, old_debug), (new, new_debug) = sides
    for name in sorted(old.keys() & new.keys()):
        # the arguments of what one side delegates are not known: to show the other side's would look like a change
        alike = delegated[0][name] == delegated[1][name]
        rows, sources = operations(old[name], old_debug.get(name, MethodDebug()), arguments=alike)
        new_rows, new_sources = operations(new[name], new_debug.get(name, MethodDebug()), arguments=alike)
        compared = Comparison(rows, new_rows, sources, new_sources)
        operators, checks = compared.operator_lines()
        prefix = f"{name}: " if len(old) > 1 or len(new) > 1 else ""
        yield from (f"{prefix}{line}" for line in [*operators, *checks] or compared.edge_lines([]))


def operations(plan: MethodPlan, debug: MethodDebug, *, arguments: bool) -> tuple[list[Any], list[str]]:
    """Return the operations of a method in their order, those in delegates too, and where they come from.

    The debug map knows all of them; the plan knows the arguments of those that it runs itself.
    """
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
        named = {} if call is None else {name: argument_json(value, places) for name, value in call.kwargs}
        namespace, _, name = origin.op.partition(".")
        rows.append(["call_function", f":::{namespace}::{name}", given, named, None])
        sources.append(origin.source)
    return rows, sources


def argument_json(value: Argument, places: Mapping[int, int]) -> object:
    """Return an argument of a plan as the canonical form of a graph has it; `places` are those of values by slot."""
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
