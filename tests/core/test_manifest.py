"""Manifests: what is written is read back, and nothing else is read."""

from __future__ import annotations

from typing import Any

import pytest
from support.hostile import replaced

from hatch_lower.canonical import canonical_json
from hatch_lower.errors import ProgramError
from hatch_lower.format.manifest import read_manifest, write_manifest
from hatch_lower.format.plan import machine_text

WHERE = "digits/_lowered/manifest.json"
DIGEST = "0123456789abcdef" * 4


def file_value(path: str, **more: str) -> dict[str, Any]:
    return {"path": path, "size": 3, "sha256": DIGEST, **more}


def manifest_value() -> dict[str, Any]:
    recipe = {
        "plan": file_value("digits/default.json"),
        "debug": file_value("digits/default.debug.json"),
        "delegates": [file_value(f"digits/delegates/{DIGEST}.so")],
        "backends": ["aoti"],
        "requirements": ["torch==2.13.*"],
        "target": {"system": "Linux", "machine": "x86_64", "isa": "x86-64-v3"},
        "methods": {"forward": {"nodes": 9, "delegated": 8, "partitions": 1}},
    }
    portable = {**recipe, "delegates": [], "backends": [], "requirements": [], "target": None}
    model = {
        "order": ["default", "portable"],
        "constants": file_value("digits/constants.safetensors", header_sha256=DIGEST),
        "check": None,
        "recipes": {"default": recipe, "portable": portable},
    }
    return {
        "schema": 1,
        "distribution": "digits",
        "version": "1.0",
        "hatch_lower": "0.1.0",
        "torch": "2.13.0",
        "tools": {"g++": "12.2.0"},
        "models": {"digits": model},
    }


def test_reading_a_written_manifest_gives_an_equal_manifest() -> None:
    data = canonical_json(manifest_value())
    manifest = read_manifest(data, WHERE)
    assert write_manifest(manifest) == data
    assert read_manifest(write_manifest(manifest), WHERE) == manifest


def test_a_recipe_for_a_gpu_names_device_and_architectures() -> None:
    value = manifest_value()
    recipe = value["models"]["digits"]["recipes"]["default"]
    recipe["device"] = "cuda"
    recipe["target"] |= {"arch": ["sm_80", "sm_90"], "ptx": "compute_80", "cuda": "13"}
    data = canonical_json(value)
    manifest = read_manifest(data, WHERE)
    assert write_manifest(manifest) == data
    found = manifest.models["digits"].recipes
    assert {name: each.device for name, each in found.items()} == {"default": "cuda", "portable": "cpu"}
    assert machine_text(found["default"].target) == "Linux x86_64, x86-64-v3 sm_80 sm_90 compute_80 CUDA 13"
    with pytest.raises(ProgramError, match="'mps' instead of one of `cpu`, `cuda`"):
        read_manifest(
            canonical_json(replaced(value, ("models", "digits", "recipes", "default", "device"), "mps")), WHERE
        )


def test_a_newer_schema() -> None:
    with pytest.raises(ProgramError) as caught:
        read_manifest(canonical_json({"schema": 7}), WHERE)
    assert str(caught.value) == (
        "a packaged program needs a newer hatch-lower\n"
        "  where: digits/_lowered/manifest.json\n"
        "  found: schema 7; this hatch-lower reads schema 1\n"
        "  to do: upgrade hatch-lower"
    )


MODEL = ("models", "digits")
RECIPE = (*MODEL, "recipes", "default")
AT_MODEL = f"{WHERE}: models['digits']"
AT_RECIPE = f"{AT_MODEL}.recipes['default']"


@pytest.mark.parametrize(
    ("path", "new", "where", "found"),
    [
        (("models",), [], f"{WHERE}: models", "a list of 0 instead of an object"),
        (("version",), "", f"{WHERE}: version", "'' instead of a text"),
        (("tools",), {"g++": 12}, f"{WHERE}: tools['g++']", "12 instead of a text"),
        ((*MODEL, "order"), ["default"], f"{AT_MODEL}.order", "a load order that does not name every recipe once"),
        (
            MODEL,
            {"order": [], "constants": None, "check": None, "recipes": {}},
            f"{AT_MODEL}.recipes",
            "a model without recipes",
        ),
        ((*MODEL, "constants"), file_value("x"), f"{AT_MODEL}.constants", "the key `header_sha256` is missing"),
        (
            (*MODEL, "check"),
            file_value("../x"),
            f"{AT_MODEL}.check.path",
            "'../x' instead of a relative path without `..`",
        ),
        (
            (*MODEL, "check"),
            file_value("a/./x"),
            f"{AT_MODEL}.check.path",
            "'a/./x' instead of a relative path without `..`",
        ),
        (
            (*MODEL, "check"),
            file_value("C:x"),
            f"{AT_MODEL}.check.path",
            "'C:x' instead of a relative path without `..`",
        ),
        ((*MODEL, "check"), file_value("/x"), f"{AT_MODEL}.check.path", "'/x' instead of a relative path without `..`"),
        ((*MODEL, "check"), file_value("x\0"), f"{AT_MODEL}.check.path", "'x\\x00' instead of a text"),
        ((*RECIPE, "plan", "sha256"), "AB", f"{AT_RECIPE}.plan.sha256", "'AB' instead of a sha256"),
        ((*RECIPE, "plan", "size"), -1, f"{AT_RECIPE}.plan.size", f"-1 instead of an integer from 0 to {2**63 - 1}"),
        ((*RECIPE, "delegates"), {}, f"{AT_RECIPE}.delegates", "an object instead of a list"),
        ((*RECIPE, "requirements"), [1], f"{AT_RECIPE}.requirements[0]", "1 instead of a text"),
        ((*RECIPE, "target"), "Linux", f"{AT_RECIPE}.target", "'Linux' instead of an object"),
        (
            (*RECIPE, "methods", "forward", "nodes"),
            None,
            f"{AT_RECIPE}.methods['forward'].nodes",
            f"None instead of an integer from 0 to {2**63 - 1}",
        ),
    ],
)
def test_a_malformed_manifest_says_where_and_what(path: tuple[str, ...], new: Any, where: str, found: str) -> None:
    with pytest.raises(ProgramError) as caught:
        read_manifest(canonical_json(replaced(manifest_value(), path, new)), WHERE)
    assert str(caught.value) == (
        "a packaged program file is damaged\n"
        f"  where: {where}\n"
        f"  found: {found}\n"
        "  to do: install the distribution again; if that does not help, build its wheel again"
    )


def test_every_truncation_is_refused() -> None:
    data = canonical_json(manifest_value())
    for end in range(len(data) - 1):  # the last byte is a newline
        with pytest.raises(ProgramError):
            read_manifest(data[:end], WHERE)


def test_every_flipped_byte_is_read_or_refused() -> None:
    data = canonical_json(manifest_value())
    for index in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[index] ^= 1 << bit
            try:
                manifest = read_manifest(bytes(damaged), WHERE)
            except ProgramError:
                continue
            write_manifest(manifest)
