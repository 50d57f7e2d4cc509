from __future__ import annotations

import re
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from hatch_lower.config.reader import read_toml_table
from hatch_lower.config.schema import field_docstrings, json_schema, reference_markdown, schema_text
from hatch_lower.config.tables import (
    BackendChoice,
    BenchTable,
    CacheSettings,
    HookTable,
    MethodLimits,
    ModelLimits,
    ModelTable,
    RecipeLimits,
    RecipeTable,
)

ROOT = Path(__file__).parents[2]


def test_the_checked_in_schema_is_the_generated_one() -> None:
    assert (ROOT / "hatch_lower" / "config" / "hatch-lower.schema.json").read_text() == schema_text()


def test_the_checked_in_reference_is_the_generated_one() -> None:
    assert (ROOT / "docs" / "configuration.md").read_text() == reference_markdown()


KINDS = [HookTable, RecipeTable, ModelTable, CacheSettings, BackendChoice]
KINDS += [BenchTable, MethodLimits, ModelLimits, RecipeLimits]


@pytest.mark.parametrize("kind", KINDS)
def test_every_setting_is_described(kind: type) -> None:
    assert list(field_docstrings(kind)) == [each.name for each in fields(kind)]


def test_each_limit_is_described_once_with_its_default() -> None:
    page = reference_markdown()
    assert page.count("### `max-call-ratio`\n\n*number, at least 0; default `1.05`*\n") == 1
    assert page.count("### `max-call-ratio`") == page.count("### `max-load-ratio`") == page.count("### `sizes`") == 1
    assert "### `sizes`\n\n*array of tables of integers, at least 1*\n" in page
    assert "### `threads`\n\n*array of integers, at least 1; default `[1]`*\n" in page


def is_valid(table: dict[str, Any]) -> bool:
    schema = json_schema()
    jsonschema.Draft7Validator.check_schema(schema)
    return bool(jsonschema.Draft7Validator(schema).is_valid(table))


@pytest.mark.parametrize(
    ("table", "valid"),
    [
        ({}, True),
        ({"backends": ["aoti", {"name": "aoti", "isa": "x86-64-v4"}], "recipes": {"portable": {"backends": []}}}, True),
        ({"models": {"a": {"export": "a:b", "recipes": ["default"], "package": "a"}}}, True),
        ({"verify": False, "rtol": 1, "atol": 0.5, "check-megabytes": 0, "jobs": 1, "timeout": 10}, True),
        ({"runtime-requirements": "add", "editable": "skip", "inputs": ["a"], "pass-env": ["B_*"]}, True),
        ({"dependencies": ["a"], "enable-by-default": False, "require-runtime-dependencies": True}, True),
        ({"models": {"a": {"card": "cards/a.json"}}}, True),
        ({"models": {"a": {"card": "/card.json"}}}, False),
        ({"models": {"a": {"card": "card.toml"}}}, False),
        ({"models": {"a": {"card": {"task": "b"}}}}, False),
        ({"strict": True, "cache": {}}, True),
        ({"cache": {"remote": "gs://a/b"}}, True),
        ({"cache": {"public-keys": ["AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="]}}, True),
        ({"cache": {"public-keys": ["AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh9="]}}, False),
        ({"cache": {"remote": "cache.example.org"}}, False),
        ({"cache": {"remote": "https://a:b@c"}}, False),
        ({"cache": {"public-key": []}}, False),
        ({"cache": []}, False),
        ({"bench": {"sizes": [{"batch": 1}, {}], "threads": [1, 2], "max-wheel-growth": "1.5 MiB"}}, True),
        ({"bench": {"models": {"a": {"max-load-ratio": 2, "methods": {"b": {"max-kernels": 3}}}}}}, True),
        ({"bench": {"models": {"a": {"recipes": {"default": {"min-delegated": 0.5, "sizes": []}}}}}}, True),
        ({"bench": {"sizes": [{"batch": 0}]}}, False),
        ({"bench": {"sizes": [{"batch": "x"}]}}, False),
        ({"bench": {"sizes": [3]}}, False),
        ({"bench": {"threads": [0.5]}}, False),
        ({"bench": {"max-wheel-growth": "5 percent"}}, False),
        ({"bench": {"max-wheel-growth": 5}}, False),
        ({"bench": {"recipes": {"default": {"max-wheel-growth": "5%"}}}}, False),
        ({"bench": {"recipes": {"default": {"budget": 5}}}}, False),
        ({"bench": {"models": {"a": {"methods": {"b": {"max-load-ratio": 3}}}}}}, False),
        ({"bench": {"models": {"a": {"recipes": {"b": {"methods": {}}}}}}}, False),
        ({"bench": {"max-delegated-loss": 5}}, False),
        ({"strict": "yes"}, False),
        ({"backend": []}, False),
        ({"backends": [3]}, False),
        ({"backends": [{"isa": "x86-64-v4"}]}, False),
        ({"recipes": {"a": {"rtoll": 1}}}, False),
        ({"models": {"a": {"recipes": "b"}}}, False),
        ({"jobs": 0}, False),
        ({"rtol": -1}, False),
        ({"rtol": {"float16": 1e-2}}, False),
        ({"models": {"a": {"verify-inputs": "data/samples.safetensors"}}}, True),
        ({"models": {"a": {"verify-inputs": "net.data:samples"}}}, True),
        ({"models": {"a": {"verify-inputs": "data/../../samples.safetensors"}}}, False),
        ({"models": {"a": {"verify-inputs": "../samples.safetensors"}}}, False),
        ({"models": {"a": {"verify-inputs": "/samples.safetensors"}}}, False),
        ({"models": {"a": {"verify-inputs": "samples.npz"}}}, False),
        ({"models": {"a": {"verify-inputs": "net.data"}}}, False),
        ({"models": {"a": {"verify-inputs": ["samples.safetensors"]}}}, False),
        ({"models": {"a": {"methods": {}}}}, False),
        ({"atol": [1]}, False),
        ({"editable": "no"}, False),
        ({"executor": "dask:tcp://host:8786"}, True),
        ({"executor": "localhost"}, False),
        ({"executor": "dask:tcp://a host"}, False),
        ({"executor": "cluster of:factory"}, False),
    ],
)
def test_the_schema_and_the_reader_agree(table: dict[str, Any], valid: bool) -> None:
    problems: list[str] = []
    read_toml_table(HookTable, table, "lower", problems)
    assert (is_valid(table), not problems) == (valid, valid)


PAGES = ["README.md", *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))]


def test_the_examples_in_the_documents_are_valid() -> None:
    seen = []
    for page in PAGES:
        for example in re.findall(r"```toml(?: title=.*?)?\n(.*?)```", (ROOT / page).read_text(), re.DOTALL):
            if "hooks.lower" in example:
                build = tomllib.loads(example)["tool"]["hatch"]["build"]
                assert build.keys() - {"targets"} == {"hooks"}, page
                assert is_valid(build["hooks"]["lower"]), (page, example)
                seen.append(page)
    assert {"README.md", "docs/configuration.md", "docs/executorch.md", "docs/tutorial.md"} <= set(seen)
