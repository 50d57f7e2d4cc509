"""A project's model cards: JSON files with CycloneDX's `modelCard`, checked before a model is exported."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any

from hatch_lower.canonical import open_file
from hatch_lower.config.reader import words_for
from hatch_lower.config.settings import Settings
from hatch_lower.config.tables import quote_key
from hatch_lower.driver.sbom import Cards
from hatch_lower.errors import ConfigError, ProgramError, nearest
from hatch_lower.format.codec import parse_json

MOST = 1 << 20  # bytes of a card
SHOWN = 10  # problems in one message
SCHEMA = "model-card.json"  # made by `tools/model_card.py`
KINDS = {"object": (dict, "an object"), "array": (list, "an array"), "string": (str, "a string")}
NUMBER = ((int, float), "a number")
FORMATS = {"iri-reference": (r"[^\s<>\"{}|\\^`]*", "a URL"), "idn-email": (r"[^\s@<>]+@[^\s@<>]+", "an email address")}

Schema = Mapping[str, Any]


def read_cards(settings: Settings) -> Cards:
    """Return the card of each model that has one; raise `ConfigError` for a file that holds no valid card."""
    named = {model.name: model.card for model in settings.models if model.card}
    if not named:
        return {}
    definitions = json.loads((files(__package__) / SCHEMA).read_text(encoding="utf-8"))
    cards = {}
    for model, path in named.items():
        where = f"model `{model}`, card `{path}`"
        try:
            with open_file(settings.root / path) as file:
                data = file.read(MOST + 1)
            card: Any = parse_json(data, path) if len(data) <= MOST else {}
        except OSError as error:
            raise card_error(where, error.strerror or str(error)) from error
        except ProgramError as error:
            raise card_error(where, error.found) from error
        if len(data) > MOST:
            raise card_error(where, f"more than {MOST:,} bytes")
        problems = problems_of(card, definitions["modelCard"], definitions, "modelCard")
        if found := list(itertools.islice(problems, SHOWN)):
            raise card_error(where, "\n".join(found))
        cards[model] = card
    return cards


def card_error(where: str, found: str) -> ConfigError:
    hint = "write the JSON object `modelCard` of CycloneDX 1.6 into the file; docs/provenance.md has an example"
    return ConfigError("a model's card is not valid", where=where, found=found, hint=hint)


def problems_of(value: object, schema: Schema, definitions: Mapping[str, Schema], path: str) -> Iterator[str]:
    """Yield a sentence for each part of a JSON value that does not fit a schema of CycloneDX."""
    while "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        alternatives = [list(problems_of(value, each, definitions, path)) for each in schema["anyOf"]]
        yield from alternatives[0] if all(alternatives) else ()
        return
    kind, noun = KINDS.get(schema.get("type", ""), NUMBER)
    if not isinstance(value, kind) or isinstance(value, bool):
        yield f"`{path}` must be {noun}, found {words_for(value)}"
    elif isinstance(value, dict):
        yield from problems_of_object(value, schema, definitions, path)
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from problems_of(item, schema["items"], definitions, f"{path}[{i}]")
    elif "enum" in schema and value not in schema["enum"]:
        yield f"`{path}` must be one of {', '.join(schema['enum'])}, found {words_for(value)}"
    elif isinstance(value, str):
        pattern, noun = FORMATS.get(schema.get("format", ""), (schema.get("pattern", ""), "of another form"))
        if pattern and re.fullmatch(pattern, value) is None:
            yield f"`{path}` must be {noun}, found {words_for(value)}"


def problems_of_object(
    value: Mapping[str, object], schema: Schema, definitions: Mapping[str, Schema], path: str
) -> Iterator[str]:
    for name, item in value.items():
        here = f"{path}.{quote_key(name[:60])}"
        if name in schema["properties"]:
            yield from problems_of(item, schema["properties"][name], definitions, here)
        else:
            yield f"`{here}` is not a field of a model's card; {nearest(name[:60], schema['properties'])}"
    yield from (f"`{path}.{name}` is missing" for name in schema.get("required", ()) if name not in value)
    either = [each["required"][0] for each in schema.get("oneOf", ())]
    if either and sum(name in value for name in either) != 1:
        yield f"`{path}` must have one of {', '.join(f'`{name}`' for name in either)}"
