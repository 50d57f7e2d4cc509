"""The SBOM as a CycloneDX document. Importing the library takes longer than a whole build from the cache.

```text
metadata    the wheel's distribution, and the tools: hatch-lower, torch, backends, compilers, hatchling, Python
components  each model, its files nested in it; each package's manifest; requirements at run time
```

Serial number and time do not depend on the machine: the number is a hash of the contents, the time is fixed or absent.
"""

from __future__ import annotations

import datetime
import json
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, Property, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType, Pedigree
from cyclonedx.model.lifecycle import LifecyclePhase, PredefinedLifecycle
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from hatch_lower import __version__
from hatch_lower.canonical import digest_of
from hatch_lower.config.checkpoint import checkpoint_of
from hatch_lower.config.requirements import join_builds
from hatch_lower.config.settings import ModelSettings
from hatch_lower.driver.sbom import SbomInputs
from hatch_lower.format.plan import MethodPlan, Plan, input_texts, read_plan
from hatch_lower.format.results import ModelResult, PayloadFile, payload_folder
from hatch_lower.format.tree import tree_text
from hatch_lower.format.weights import WeightsSource, read_weights

PREFIX = "hatch-lower"
SERIAL = "urn:hatch-lower:sbom:sha256:"


def document_text(subject: SbomInputs) -> str:
    files = {file.path: file for file in subject.result.payload}
    bom, cards = Bom(), {}
    bom.metadata.component = root = distribution_component(subject)
    bom.metadata.lifecycles = [PredefinedLifecycle(LifecyclePhase.BUILD)]
    for tool in tool_components(subject):
        bom.metadata.tools.components.add(tool)
    needed: dict[str, Component] = {}
    sources: dict[tuple[str, str], Component] = {}
    parts = []
    for settings, result in zip(subject.settings.models, subject.result.models, strict=True):
        folder = payload_folder(settings.package)
        own = {file.path: files.pop(f"{folder}/{file.path}") for file in result.files}
        plan = first_plan(result.entry, own)
        model = model_component(subject, settings, result, own, plan)
        texts = required_texts(result.entry["recipes"], subject.settings.extras)
        requirements = [needed.setdefault(text, requirement_component(text)) for text in texts]
        outside = [
            sources.setdefault((source.url, source.sha256), source_component(source))
            for source in weights_outside(result.entry, own)
        ]
        bom.components.add(model)
        bom.register_dependency(model, [*outside, *requirements])
        parts.append(model)
        architecture = result.origin["architecture"]
        cards[f"model:{settings.name}"] = model_card(
            with_metrics(subject.cards.get(settings.name, {}), result.entry),
            architecture["name"],
            plan.methods,
            architecture["outputs"],
        )
    manifests = [file_component(file, "manifest", ()) for file in files.values()]
    bom.components.update([*manifests, *sources.values(), *needed.values()])
    bom.register_dependency(root, [*parts, *manifests])
    return finished(json.loads(JsonV1Dot6(bom).output_as_string()), cards, subject.timestamp)


def finished(document: dict[str, Any], cards: Mapping[str, object], timestamp: int | None) -> str:
    for component in document["components"]:
        if card := cards.get(component["bom-ref"]):
            component["modelCard"] = card
    del document["serialNumber"], document["metadata"]["timestamp"]
    if timestamp is not None:
        moment = datetime.datetime.fromtimestamp(timestamp, datetime.UTC)
        document["metadata"]["timestamp"] = moment.isoformat()
    number = uuid.uuid5(uuid.NAMESPACE_URL, f"{SERIAL}{digest_of(document)}")
    document["serialNumber"] = number.urn
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


# kinds of components


def distribution_component(subject: SbomInputs) -> Component:
    name, version = canonicalize_name(subject.settings.name), subject.settings.version
    url = package_url(name, version)
    return Component(type=ComponentType.LIBRARY, name=name, version=version, bom_ref=url.to_string(), purl=url)


def tool_components(subject: SbomInputs) -> Iterator[Component]:
    results, kind = subject.result.models, ComponentType.LIBRARY
    libraries = {"hatch-lower": __version__, "torch": results[0].torch, **subject.tools}
    for name, version in libraries.items():
        url = package_url(name, version)
        yield Component(type=kind, name=name, version=version, bom_ref=f"tool:{url.to_string()}", purl=url)
    programs = {"Python": subject.python}
    programs |= {name: version for result in results for name, version in result.tools.items()}
    for name, version in programs.items():
        yield Component(type=ComponentType.APPLICATION, name=name, version=version, bom_ref=f"tool:{name}")
    backends: dict[str, dict[str, Any]] = {}
    for backend in (backend for result in results for backend in result.origin["backends"]):
        fingerprint = backends.get(backend["name"], {}).get(
            "fingerprint", {}
        )  # models may use different parts of a backend
        backends[backend["name"]] = {**backend, "fingerprint": {**fingerprint, **backend["fingerprint"]}}
    for name, backend in backends.items():
        distribution, version = backend["distribution"], backend["version"]
        yield Component(
            type=kind,
            name=name,
            version=version or None,
            bom_ref=f"backend:{name}",
            purl=package_url(distribution, version) if distribution else None,
            description="backend of hatch-lower",
            properties=properties({f"fingerprint:{key}": [text] for key, text in backend["fingerprint"].items()}),
        )


def model_component(
    subject: SbomInputs, settings: ModelSettings, result: ModelResult, files: Mapping[str, PayloadFile], plan: Plan
) -> Component:
    entry, architecture = result.entry, result.origin["architecture"]
    facts = {
        "architecture": [architecture["name"]] if architecture["name"] else [],
        "parameters": [str(architecture["parameters"])],
        "export": [settings.export],
        "package": [settings.package],
        "methods": [", ".join(plan.methods)],
        "recipes": [", ".join(entry["order"])],
    }
    if entry["constants"]:
        facts["weights:sha256"] = [entry["constants"]["sha256"]]
        facts["weights:size"] = [str(entry["constants"]["size"])]
    for name, recipe in entry["recipes"].items():
        facts[f"recipe:{name}:backends"] = [", ".join(recipe["backends"]) or "none"]
        if precision := recipe.get("precision"):  # other than float32
            facts[f"recipe:{name}:precision"] = [precision]
        if target := recipe["target"]:
            parts = [target["system"], target["machine"], target["isa"], *target.get("arch", ())]
            facts[f"recipe:{name}:target"] = [" ".join(parts)]
        if reason := recipe.get("not_compared"):
            facts[f"recipe:{name}:not-compared"] = [reason]
        for method, counts in recipe["methods"].items():
            facts[f"recipe:{name}:method:{method}"] = [f"{counts['delegated']} of {counts['nodes']} nodes delegated"]
    roles = roles_of(entry)
    return Component(
        type=ComponentType.MACHINE_LEARNING_MODEL,
        name=settings.name,
        version=subject.settings.version,
        bom_ref=f"model:{settings.name}",
        properties=properties(facts),
        components=[file_component(file, *roles.get(path, ("", ()))) for path, file in files.items()],
        pedigree=pedigree_of(settings),
    )


def pedigree_of(model: ModelSettings) -> Pedigree | None:
    """Return the origin of a model that is a checkpoint of the hub; `None` for any other model."""
    checkpoint = checkpoint_of(model.export)
    if checkpoint is None or checkpoint.hub is None:
        return None
    repository, commit = checkpoint.hub
    owner, _, name = repository.partition("/")
    url = PackageURL("huggingface", namespace=owner, name=name, version=commit)
    origin = Component(
        type=ComponentType.MACHINE_LEARNING_MODEL,
        name=repository,
        version=commit,
        bom_ref=f"origin:{model.name}:{repository}@{commit}",
        purl=url,
    )
    return Pedigree(ancestors=[origin])


def roles_of(entry: Mapping[str, Any]) -> dict[str, tuple[str, tuple[str, ...]]]:
    roles: dict[str, tuple[str, tuple[str, ...]]] = {}
    for role, name in (("weights", "constants"), ("check data", "check"), ("places of weights", "weights")):
        if entry.get(name):
            roles[entry[name]["path"]] = (role, ())
    for asset in entry.get("assets", {}).values():
        roles[asset["path"]] = ("asset", ())
    for recipe in entry["order"]:
        parts = entry["recipes"][recipe]
        delegates = [("delegate", delegate) for delegate in parts["delegates"]]
        for role, file in [("plan", parts["plan"]), ("debug map", parts["debug"]), *delegates]:
            _, recipes = roles.get(file["path"], (role, ()))
            roles[file["path"]] = (role, (*recipes, recipe))
    return roles


def file_component(file: PayloadFile, role: str, recipes: Iterable[str]) -> Component:
    return Component(
        type=ComponentType.FILE,
        name=file.path,
        bom_ref=f"file:{file.path}",
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=file.sha256)],
        properties=properties({"role": [role] if role else [], "size": [str(file.size)], "recipe": list(recipes)}),
    )


def source_component(source: WeightsSource) -> Component:
    """Return the component of a file that has weights and is not in the wheel."""
    hashes = [HashType(alg=HashAlgorithm.SHA_256, content=source.sha256)]
    place = ExternalReference(type=ExternalReferenceType.DISTRIBUTION, url=XsUri(source.url), hashes=hashes)
    return Component(
        type=ComponentType.DATA,
        name=source.url.rpartition("/")[2],
        bom_ref=f"weights:{source.sha256}:{source.url}",
        description="weights outside the wheel",
        hashes=hashes,
        external_references=[place] if source.has_place else [],
        scope=ComponentScope.REQUIRED,
        properties=properties({"role": ["weights"], "size": [str(source.size)]}),
    )


def required_texts(recipes: Mapping[str, Any], extras: Collection[str]) -> list[str]:
    """Return the requirements of recipes: one build of a library for all recipes without an extra of the project."""
    by_recipe = {name: recipe["requirements"] for name, recipe in recipes.items()}
    common = join_builds(text for name, texts in by_recipe.items() if name not in extras for text in texts)
    return sorted({*common, *(text for name, texts in by_recipe.items() if name in extras for text in texts)})


def requirement_component(text: str) -> Component:
    name = canonicalize_name(Requirement(text).name)
    return Component(
        type=ComponentType.LIBRARY,
        name=name,
        bom_ref=f"requirement:{text}",
        purl=package_url(name, None),
        scope=ComponentScope.REQUIRED,
        properties=properties({"requirement": [text]}),
    )


# smaller parts


def first_plan(entry: Mapping[str, Any], files: Mapping[str, PayloadFile]) -> Plan:
    """Return the plan of the first recipe; the methods of all recipes have the same signatures."""
    path = entry["recipes"][entry["order"][0]]["plan"]["path"]
    return read_plan(files[path].source.read_bytes(), path)


def weights_outside(entry: Mapping[str, Any], files: Mapping[str, PayloadFile]) -> tuple[WeightsSource, ...]:
    if not (listed := entry.get("weights")):
        return ()
    return read_weights(files[listed["path"]].source.read_bytes(), listed["path"]).sources


def package_url(name: str, version: str | None) -> PackageURL:
    return PackageURL("pypi", name=canonicalize_name(name), version=version)


def properties(facts: Mapping[str, Iterable[str]]) -> list[Property]:
    return [Property(name=f"{PREFIX}:{name}", value=value) for name, values in facts.items() for value in values]


def model_card(
    card: Mapping[str, Any], architecture: str, methods: Mapping[str, MethodPlan], outputs: Mapping[str, object]
) -> dict[str, object]:
    """Return a model's card, with facts of the export where the project's own card has none."""
    facts = {
        "modelArchitecture": architecture,
        "inputs": [
            {"format": f"{name}: {path}: {text}"}
            for name, plan in methods.items()
            for path, text in input_texts(plan).items()
        ],
        "outputs": [{"format": output_format(name, plan, outputs.get(name))} for name, plan in methods.items()],
    }
    known = {name: value for name, value in facts.items() if value}
    return {**card, "modelParameters": {**known, **card.get("modelParameters", {})}}


def with_metrics(card: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return a card with the metric of eager and of each measured recipe, after the project's own numbers."""
    listed = {name: entry["recipes"][name].get("metric") for name in entry["order"]}
    measured = {name: metric for name, metric in listed.items() if metric}
    if not measured:
        return dict(card)
    first = next(iter(measured.values()))
    values = {"eager": first["eager"], **{f"recipe {name}": metric["value"] for name, metric in measured.items()}}
    rows = [{"type": first["name"], "value": repr(value), "slice": part} for part, value in values.items()]
    analysis = card.get("quantitativeAnalysis", {})
    metrics = [*analysis.get("performanceMetrics", ()), *rows]
    return {**card, "quantitativeAnalysis": {**analysis, "performanceMetrics": metrics}}


def output_format(method: str, plan: MethodPlan, outputs: Any) -> str:
    leaves = iter(outputs or ())
    return f"{method}: {tree_text(plan.outputs, lambda: next(leaves, 'tensor'))}"
