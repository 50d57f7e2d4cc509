"""The model cards of an SBOM as the page of a repository on the Hugging Face hub: front matter and Markdown.

Source of the front matter: the hub's model card metadata. Its YAML is written as JSON values, which YAML includes.
"""

from __future__ import annotations

import json
import re
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

# the hub's identifiers of licences, as far as they are names of SPDX in lower case; the hub refuses a card with others
LICENCES = """
    apache-2.0 mit afl-3.0 artistic-2.0 bsl-1.0 bsd-2-clause bsd-3-clause bsd-3-clause-clear cc0-1.0 cc-by-2.0 cc-by-2.5
    cc-by-3.0 cc-by-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nd-4.0 cc-by-nc-nd-3.0
    cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cdla-sharing-1.0 cdla-permissive-1.0
    cdla-permissive-2.0 wtfpl ecl-2.0 epl-1.0 epl-2.0 etalab-2.0 eupl-1.1 agpl-3.0 gpl-2.0 gpl-3.0 lgpl-2.1 lgpl-3.0
    isc lppl-1.3c ms-pl mpl-2.0 osl-3.0 postgresql ofl-1.1 ncsa unlicense zlib
"""

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
    models = components_of_models(sbom)
    lines = [
        "---",
        *front_matter(models, facts),
        "---",
        "",
        f"# {as_markdown(facts.name)} {as_markdown(facts.version)}",
        "",
    ]
    lines += [as_markdown(facts.summary), ""] if facts.summary else []
    outside = [each for each in items(sbom, "components") if own_properties(each).get("role") == "weights"]
    places = [[text(place.get("url")) for place in items(each, "externalReferences")] for each in outside]
    lines += ["```console", f"$ pip install {facts.wheel}"]
    if outside:
        lines += [f"$ hatch-lower fetch {facts.name}{'' if all(places) else ' --from URL'}"]
    lines += ["```", ""]
    named = [": ".join([text(each.get("name")), *urls]) for each, urls in zip(outside, places, strict=True)]
    lines += [*bullet_list("Weights outside of the wheel", named)][1:]
    lines += [""] if outside else []
    for model in models:
        lines += [*model_section(model), ""]
    return "\n".join(lines).rstrip() + "\n"


def components_of_models(sbom: Json) -> list[Json]:
    return [each for each in items(sbom, "components") if each.get("type") == MODEL]


def front_matter(models: Sequence[Json], facts: CardFacts) -> Iterator[str]:
    if licence := facts.licence or next(filter(None, map(card_licence, models)), ""):
        known = licence.lower().removesuffix("-only")
        is_known = known in LICENCES.split()
        yield f"license: {json.dumps(known if is_known else 'other')}"
        if not is_known:
            yield f"license_name: {json.dumps(licence_slug(known))}"
    yield f"library_name: {LIBRARY}"
    tasks = {text(member(model, "modelCard", "modelParameters").get("task")) for model in models} - {""}
    if len(tasks) == 1:
        yield f"pipeline_tag: {json.dumps(min(tasks))}"
    yield f"tags: {json.dumps([LIBRARY, 'pytorch', *sorted(backends_of(models))])}"


def licence_slug(licence: str) -> str:
    """Return a licence in the letters that the hub allows in `license_name`."""
    return re.sub(r"[^a-z0-9.]+", "-", licence.lower())[:64].strip("-.") or "unknown"


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
