"""The data of the page, as a JSON document about a wheel, a folder or an installed distribution, with the texts of
source lines and whether the texts have changed since the build.
"""

from __future__ import annotations

import hashlib
import json
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from hatch_lower.cli.page.operations import (
    Facts,
    Operations,
    delegate_reports,
    method_facts,
    operations_of,
    outside_reports,
)
from hatch_lower.driver.contents import SBOM, OpenedModel, WheelModels, metadata_text
from hatch_lower.driver.diff.tensors import NAMES, read_tensor_file
from hatch_lower.driver.opened_wheel import open_wheel
from hatch_lower.errors import ProgramError
from hatch_lower.format.codec import Damage
from hatch_lower.format.manifest import FileEntry
from hatch_lower.format.plan import Plan
from hatch_lower.format.values import DTYPES, read_path
from hatch_lower.frozen import Frozen
from hatch_lower.runtime.classes import editable_folder

MOST_BYTES = 1 << 22  # of a file
WHOLE = 2000  # lines of a file that is shown whole; of longer files the lines around operations are shown
AROUND = 12

Look = Callable[[str], bytes | None]  # returns the contents at a relative path


class SourceText(Frozen):
    """A source file, or the shown parts of the file."""

    state: str  # `same` as in the build, `changed`, `unknown` without a digest, or `missing`
    place: str  # where the text was found, in words
    parts: tuple[tuple[int, str], ...]  # the number of a first line, and the lines from there on


def texts_of(
    named: Mapping[str, Iterable[int]], digests: Mapping[str, str], looks: Sequence[tuple[str, Look]]
) -> dict[str, SourceText]:
    """Return the texts of source files by path; `named` has the lines of operations."""
    return {path: source_text(path, set(lines), digests.get(path), looks) for path, lines in sorted(named.items())}


def source_text(path: str, lines: set[int], digest: str | None, looks: Sequence[tuple[str, Look]]) -> SourceText:
    found: tuple[str, bytes] | None = None
    if is_source(path):
        for place, look in looks:
            data = look(path)
            if data is None:
                continue
            if digest is None or hashlib.sha256(data).hexdigest() == digest:
                return SourceText("unknown" if digest is None else "same", place, source_parts(data, lines))
            found = found or (place, data)
    if found is None:
        return SourceText("missing", "", ())
    return SourceText("changed", found[0], source_parts(found[1], lines))


def is_source(path: str) -> bool:
    # anybody may have written the path, and other people get the page
    try:
        return read_path(path).endswith(".py")
    except Damage:
        return False


def source_parts(data: bytes, lines: set[int]) -> tuple[tuple[int, str], ...]:
    listed = data.decode("utf-8", "replace").replace("\r\n", "\n").split("\n")
    if len(listed) <= WHOLE:
        return ((1, "\n".join(listed)),)
    near = {other for line in lines for other in range(line - AROUND, line + AROUND + 1)}
    parts: list[tuple[int, list[str]]] = []
    for line in sorted(near & set(range(1, len(listed) + 1))):
        if not parts or line != parts[-1][0] + len(parts[-1][1]):
            parts.append((line, []))
        parts[-1][1].append(listed[line - 1])
    return tuple((first, "\n".join(texts)) for first, texts in parts)


def looks_for(target: str | Path, folders: Sequence[WheelModels], given: Path | None) -> Iterator[tuple[str, Look]]:
    """Yield the places of source files: a given folder, the wheel or distribution, installed packages."""
    if given is not None:
        yield "the given folder", reader_below(given)
    if isinstance(target, Path) and not target.is_dir():
        yield "the wheel", in_wheel(target)
    for name in sorted({contents.manifest.distribution for contents in folders} if isinstance(target, str) else ()):
        try:
            owner = distribution(name)
        except PackageNotFoundError:
            continue
        root = editable_folder(owner)
        if root is not None:
            yield "the project", reader_below(Path(root))
            yield "the project", reader_below(Path(root, "src"))
        yield "the installed distribution", reader_below(Path(str(owner.locate_file(""))))
    for key in ("purelib", "platlib"):
        yield "the packages installed here", reader_below(Path(sysconfig.get_path(key)))


def reader_below(folder: Path) -> Look:
    def look(path: str) -> bytes | None:
        file = folder / path
        try:
            if not file.is_file() or file.stat().st_size > MOST_BYTES:
                return None
            return file.read_bytes()
        except OSError:
            return None

    return look


def in_wheel(wheel: Path) -> Look:
    opened = open_wheel(wheel)
    members = frozenset(opened.members())

    def look(path: str) -> bytes | None:
        try:
            return opened.read(path) if path in members else None
        except ProgramError:
            return None

    return look


DATA_SCHEMA = 1

Strings = dict[str, int]  # texts, each of which a graph repeats many times, and their numbers


class Extras(Frozen):
    sources: Path | None = None  # folder with the sources
    profiles: Sequence[Facts] = ()  # of `read_profile`
    checks: Sequence[Facts] | None = None  # rows of `hatch-lower check`; `None` if the check did not run
    changes: Facts | None = None  # differences from another wheel
    times: Sequence[Facts] | None = None  # of `read_times`; `None` without a file


@dataclass(slots=True)
class Named:
    """Which source lines operations come from, and the digests that debug maps have of the files."""

    lines: dict[str, set[int]] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)

    def add(self, source: str) -> None:
        path, _, line = source.rpartition(":")
        if path and line.isascii() and line.isdecimal() and len(line) < 10:
            self.lines.setdefault(path, set()).add(int(line))


def report_data(target: str | Path, folders: Sequence[WheelModels], extras: Extras) -> Facts:
    """Return the document, without a time or a path of this machine."""
    strings, named = {"": 0}, Named()
    models = [model_data(contents.model(name), strings, named) for contents in folders for name in contents.models]
    manifest = folders[0].manifest
    texts = texts_of(named.lines, named.digests, list(looks_for(target, folders, extras.sources)))
    return {
        "schema": DATA_SCHEMA,
        "distribution": manifest.distribution,
        "version": manifest.version,
        "place": target if isinstance(target, str) else target.resolve().name,
        "tools": {"hatch-lower": manifest.hatch_lower, "torch": manifest.torch, **manifest.tools},
        "models": models,
        "sources": {path: asdict(text) for path, text in texts.items()},
        "sbom": sbom_data(target),
        "checks": extras.checks,
        "profiles": list(extras.profiles),
        "changes": extras.changes,
        "times": extras.times,
        "strings": list(strings),
    }


def model_data(model: OpenedModel, strings: Strings, named: Named) -> Facts:
    entry, plans = model.entry, [recipe.plan for recipe in model.recipes.values()]
    weights = model.contents.weights(model.name)
    storages = {storage.key: storage for plan in plans for storage in plan.storages}
    shared = {"weights": entry.constants, "check data": entry.check, "places of weights": entry.weights}
    shared |= {f"asset {name}": file for name, file in entry.assets.items()}
    return {
        "name": model.name,
        "order": list(entry.order),
        "files": files_data(shared),
        "check": check_data(model),
        "outside": [] if weights is None else outside_reports(weights, storages),
        "methods": {name: method_facts(name, method) for name, method in plans[0].methods.items()},
        "recipes": {name: recipe_data(model, name, strings, named) for name in entry.order},
        "tensors": tensors_data({name: recipe.plan for name, recipe in model.recipes.items()}),
    }


def recipe_data(model: OpenedModel, name: str, strings: Strings, named: Named) -> Facts:
    recipe, sizes = model.recipes[name], {file.path: file.size for file in model.recipes[name].entry.delegates}
    named.digests.update(model.contents.debug(recipe.entry).files)
    methods = {}
    for method, entry in recipe.entry.methods.items():
        operations = operations_of(recipe, method)
        for node in operations.nodes:
            named.add(node.origin.source)
        methods[method] = {
            **asdict(entry),
            "delegates": delegate_reports(recipe.plan, recipe.plan.methods[method], sizes),
            "graph": graph_data(operations, strings),
        }
    return {
        **recipe.facts(),
        "requirements": list(recipe.entry.requirements),
        "files": files_data(recipe.files()),
        "methods": methods,
    }


def graph_data(operations: Operations, strings: Strings) -> Facts:
    """Return a graph as columns of numbers of texts, calls, and nodes that each node reads."""
    nodes = operations.nodes
    calls = {node.call: node.engine for node in nodes}
    places = {path: position for position, path in enumerate(calls)}

    def numbered(texts: Iterable[str]) -> list[int]:
        return [strings.setdefault(text, len(strings)) for text in texts]

    return {
        "inputs": list(operations.inputs),
        "flows": operations.flows,
        "calls": [[path, engine] for path, engine in calls.items()],
        "op": numbered(node.origin.op for node in nodes),
        "module": numbered(node.origin.module for node in nodes),
        "source": numbered(node.origin.source for node in nodes),
        "call": [places[node.call] for node in nodes],
        "why": numbered(node.reason for node in nodes),
        "reads": [list(node.reads) for node in nodes],
        "result": numbered(node.detail.result for node in nodes),
        "arguments": [numbered(node.detail.arguments) for node in nodes],
    }


def check_data(model: OpenedModel) -> list[Facts]:
    """Return names, dtypes and shapes of the packaged example inputs and of eager's outputs."""
    entry = model.entry.check
    file = None if entry is None else read_tensor_file(model.contents.map(entry))
    if file is None:  # `hatch-lower check` reports a damaged file
        return []
    return [
        {"name": name, "dtype": NAMES.get(tensor.dtype, tensor.dtype), "shape": list(tensor.shape)}
        for name, tensor in sorted(file.entries.items())
    ]


def files_data(files: Mapping[str, FileEntry | None]) -> list[Facts]:
    return [{"label": label, **asdict(file)} for label, file in files.items() if file is not None]


def tensors_data(plans: Mapping[str, Plan]) -> list[Facts]:
    """Return the constants of a model, the largest first; views share the number and size of their storage."""
    rows: dict[str, Facts] = {}
    storages: dict[str, int] = {}
    for recipe, plan in plans.items():
        for name, constant in plan.constants.items():
            storage = plan.storages[constant.storage]
            row = {"name": name, "dtype": constant.dtype, "shape": list(constant.shape), "mutable": constant.mutable}
            row |= {"size": storage.length * DTYPES[storage.dtype].size, "values": storage.length, "recipes": []}
            row["storage"] = storages.setdefault(storage.key, len(storages))
            rows.setdefault(name, row)["recipes"].append(recipe)
    return sorted(rows.values(), key=lambda row: (-row["size"], row["name"]))


def sbom_data(target: str | Path) -> Facts | None:
    """Return the components of the SBOM, or `None` without an SBOM; a damaged SBOM has a fault."""
    if isinstance(target, Path) and target.is_dir():
        return None
    text = metadata_text(target, SBOM)
    if text is None:
        return None
    try:
        document = json.loads(text)
        listed = [*document.get("components", []), *document["metadata"].get("tools", {}).get("components", [])]
        rows = [row for component in listed for row in component_rows(component, 0)]
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        return {"fault": f"{type(error).__name__}: {error}", "rows": []}
    return {"fault": "", "rows": rows}


def component_rows(component: Facts, depth: int) -> Iterator[Facts]:
    licences = [item.get("expression") or item.get("license", {}).get("id") for item in component.get("licenses", [])]
    yield {
        "depth": depth,
        "type": str(component.get("type", "")),
        "name": str(component["name"]),
        "version": str(component.get("version", "")),
        "licences": ", ".join(str(licence) for licence in licences if licence),
        "digest": next((str(row.get("content", "")) for row in component.get("hashes", [])), ""),
        "facts": {str(row["name"]): str(row.get("value", "")) for row in component.get("properties", [])},
    }
    for inner in component.get("components", []):
        yield from component_rows(inner, depth + 1)
