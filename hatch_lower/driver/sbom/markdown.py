"""The model cards of an SBOM as the page of a repository on the Hugging Face hub: front matter and Markdown.

Source of the front matter: the hub's model card metadata. Its YAML is written as JSON values, which YAML includes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hatch_lower.frozen import Frozen

MODEL = "machine-learning-model"
PREFIX = "hatch-lower:"
LIBRARY = "hatch-lower"
CONSIDERATIONS = {
    "users": "Users",
    "useCases": "Intended use",
    "technicalLimitations": "Limitations",
    "performanceTradeoffs": "Trade-offs",
}

Json = Mapping[str, Any]


class CardFacts(Frozen):
    """The distribution that the cards belong to."""

    name: str
    version: str
    summary: str
    licence: str  # an SPDX expression, or empty
    wheel: str  # file name


def card_page(sbom: Json, facts: CardFacts) -> str:
    """Return the text of `README.md`.

    Args:
        sbom: the JSON of a wheel's SBOM, CycloneDX 1.6; fields of other types than CycloneDX has are left out.
    """
    models = [each for each in items(sbom, "components") if each.get("type") == MODEL]
    lines = [
        "---",
        *front_matter(models, facts),
        "---",
        "",
        f"# {as_markdown(facts.name)} {as_markdown(facts.version)}",
        "",
    ]
    lines += [as_markdown(facts.summary), ""] if facts.summary else []
    lines += ["```console", f"$ pip install {facts.wheel}", "```", ""]
    for model in models:
        lines += [*model_section(model), ""]
    return "\n".join(lines).rstrip() + "\n"


def front_matter(models: Sequence[Json], facts: CardFacts) -> Iterator[str]:
    if licence := facts.licence or next(filter(None, map(card_licence, models)), ""):
        # the hub knows single licences by their SPDX name in lower case
        yield f"license: {json.dumps(licence.lower() if ' ' not in licence else 'other')}"
    yield f"library_name: {LIBRARY}"
    tasks = {text(member(model, "modelCard", "modelParameters").get("task")) for model in models} - {""}
    if len(tasks) == 1:
        yield f"pipeline_tag: {json.dumps(min(tasks))}"
    yield f"tags: {json.dumps([LIBRARY, 'pytorch', *sorted(backends_of(models))])}"


def card_licence(model: Json) -> str:
    found = items(member(model, "modelCard"), "properties")
    return next((text(each.get("value")) for each in found if each.get("name") == "license"), "")


def backends_of(models: Sequence[Json]) -> set[str]:
    named = [pair for model in models for pair in own_properties(model).items()]
    found = [value.split(", ") for name, value in named if name.endswith(":backends")]
    return {backend for names in found for backend in names} - {"none"}


def model_section(model: Json) -> Iterator[str]:
    name, facts = text(model.get("name")), own_properties(model)
    parameters = member(model, "modelCard", "modelParameters")
    considerations = member(model, "modelCard", "considerations")
    yield from (f"## {as_markdown(name)}", "", "```python", "import hatch_lower", "")
    yield from (f"model = hatch_lower.load({json.dumps(name)})", "```", "")
    rows = {
        "architecture": text(parameters.get("modelArchitecture")) or text(parameters.get("architectureFamily")),
        "task": text(parameters.get("task")),
        "parameters": facts.get("parameters", ""),
        "recipes": facts.get("recipes", ""),
    }
    yield from ("| | |", "|---|---|")
    yield from (f"| {key} | {as_markdown(value)} |" for key, value in rows.items() if value)
    for heading, member_name in (("Inputs", "inputs"), ("Outputs", "outputs")):
        yield from bullet_list(heading, [text(each.get("format")) for each in items(parameters, member_name)])
    yield from bullet_list("Data", [dataset_text(each) for each in items(parameters, "datasets")])
    for key, heading in CONSIDERATIONS.items():
        yield from bullet_list(heading, [text(each) for each in sequence(considerations, key)])
    risks = items(considerations, "ethicalConsiderations")
    yield from bullet_list("Risks", [joined_members(each, "name", "mitigationStrategy") for each in risks])
    metrics = items(member(model, "modelCard", "quantitativeAnalysis"), "performanceMetrics")
    yield from bullet_list("Measured", [joined_members(each, "type", "value", "slice") for each in metrics])


def bullet_list(heading: str, values: Sequence[str]) -> Iterator[str]:
    if any(values):
        yield from ("", f"### {heading}", "", *(f"- {as_markdown(value)}" for value in values if value))


def dataset_text(dataset: Json) -> str:
    url = text(member(dataset, "contents").get("url"))
    return ": ".join(filter(None, [text(dataset.get("name")), text(dataset.get("description")), url]))


def joined_members(value: Json, *names: str) -> str:
    return ": ".join(filter(None, (text(value.get(name)) for name in names)))


def own_properties(component: Json) -> dict[str, str]:
    """Return the properties of a component that hatch-lower wrote, without their prefix."""
    pairs = [(text(each.get("name")), text(each.get("value"))) for each in items(component, "properties")]
    return {name.removeprefix(PREFIX): value for name, value in pairs if name.startswith(PREFIX)}


def member(value: Json, *path: str) -> Json:
    for name in path:
        found = value.get(name)
        value = found if isinstance(found, dict) else {}
    return value


def items(value: Json, name: str) -> list[Json]:
    return [each for each in sequence(value, name) if isinstance(each, dict)]


def sequence(value: Json, name: str) -> list[Any]:
    found = value.get(name)
    return found if isinstance(found, list) else []


def text(value: object) -> str:
    return value if isinstance(value, str) else ""


def as_markdown(value: str) -> str:
    """Return a text as a single line that Markdown shows as it is."""
    special = "\\`*_{}[]<>#|"
    return "".join(f"\\{letter}" if letter in special else letter for letter in " ".join(value.split()))
