"""Print CycloneDX's schema of a model's card, which is `hatch_lower/driver/sbom/model-card.json`."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

DROPPED = ("title", "examples", "meta:enum", "$comment", "default", "additionalProperties")
# a card knows no other part of the document, so that its datasets stand in the card
REFERENCES = ("bom-ref", "ref")


def plain(schema: Any) -> Any:
    """Return a schema without texts for people, and without properties that name other parts of a document."""
    if isinstance(schema, list):
        return [plain(each) for each in schema if not (isinstance(each, dict) and "ref" in each.get("properties", {}))]
    if not isinstance(schema, dict):
        return schema
    rest = {key: value for key, value in schema.items() if key not in DROPPED}
    if isinstance(rest.get("description"), str):
        del rest["description"]
    properties = rest.pop("properties", None)
    found = {key: plain(value) for key, value in rest.items()}
    if properties is not None:
        found["properties"] = {key: plain(value) for key, value in properties.items() if key not in REFERENCES}
    return found["oneOf"][0] if len(found.get("oneOf", ())) == 1 else found


def needed(name: str, definitions: Any, found: dict[str, Any]) -> dict[str, Any]:
    if name not in found:
        found[name] = plain(definitions[name])
        for part in json.dumps(found[name]).split('"#/definitions/')[1:]:
            needed(part.partition('"')[0], definitions, found)
    return found


def schema_text() -> str:
    source = files("cyclonedx.schema") / "_res" / "bom-1.6.SNAPSHOT.schema.json"
    definitions = json.loads(source.read_text(encoding="utf-8"))["definitions"]
    return json.dumps(needed("modelCard", definitions, {}), indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    print(schema_text(), end="")
