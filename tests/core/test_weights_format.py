"""`weights.json`: what is written is read back, nothing else is read, and spans are those that a plan asks for."""

from __future__ import annotations

from typing import Any

import pytest
from support.hostile import replaced

from hatch_lower.canonical import canonical_json, sha256_bytes
from hatch_lower.errors import ProgramError
from hatch_lower.format.constants import Storage, content_key
from hatch_lower.format.weights import is_aligned, read_weights, spans_outside, write_weights
from hatch_lower.urls import url_fault

WHERE = "digits/_lowered/digits/weights.json"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
BYTES = bytes(range(8))
SHA256 = sha256_bytes(BYTES)
KEY = content_key("float32", SHA256)


def weights_value() -> dict[str, Any]:
    return {
        "schema": 1,
        "sources": [
            {"url": f"hf://org/name@{COMMIT}/model.safetensors", "size": 100, "sha256": "a" * 64},
            {"url": "digits-0123.safetensors", "size": 50, "sha256": "b" * 64},
        ],
        "spans": {KEY: {"source": 0, "begin": 90, "end": 98, "sha256": SHA256}},
    }


def test_reading_written_weights_gives_equal_weights() -> None:
    data = canonical_json(weights_value())
    weights = read_weights(data, WHERE)
    assert write_weights(weights) == data
    assert [source.has_place for source in weights.sources] == [True, False]


@pytest.mark.parametrize(
    ("path", "new", "where", "found"),
    [
        (("sources", 0, "size"), -1, "sources[0].size", f"-1 instead of an integer from 0 to {2**63 - 1}"),
        (("sources", 0, "sha256"), "ab", "sources[0].sha256", "'ab' instead of a sha256"),
        (
            ("sources", 0, "url"),
            "../x.safetensors",
            "sources[0].url",
            "'../x.safetensors' instead of a URL of weights: it is no URL",
        ),
        (("sources", 1, "url"), weights_value()["sources"][0]["url"], "sources", "a source that is listed twice"),
        (("spans", KEY, "source"), 2, f"spans['{KEY}']", "source 2 of 2"),
        (("spans", KEY, "source"), True, f"spans['{KEY}'].source", "True instead of"),
        (("spans", KEY, "end"), 101, f"spans['{KEY}']", "the bytes 90 to 101 of 100"),
        (("spans", KEY, "begin"), 99, f"spans['{KEY}']", "the bytes 99 to 98 of 100"),
        (("spans", KEY, "more"), 1, f"spans['{KEY}']", "unknown key `more`"),
        (("spans",), {"x": weights_value()["spans"][KEY]}, "spans['x']", "'x' instead of a sha256"),
    ],
)
def test_wrong_weights_are_refused(path: tuple[Any, ...], new: object, where: str, found: str) -> None:
    with pytest.raises(ProgramError) as caught:
        read_weights(canonical_json(replaced(weights_value(), path, new)), WHERE)
    assert (caught.value.what, caught.value.where) == ("a packaged program file is damaged", f"{WHERE}: {where}")
    assert caught.value.found.startswith(found)


def test_a_span_is_found_by_the_key_of_a_storage() -> None:
    weights = read_weights(canonical_json(weights_value()), WHERE)
    inside = Storage("f" * 64, "float32", 2)
    assert spans_outside([inside, Storage(KEY, "float32", 2)], weights, WHERE) == {1: weights.spans[KEY]}


@pytest.mark.parametrize(
    ("storage", "change", "found"),
    [
        (Storage(KEY, "float32", 3), {}, "8 bytes for 3 elements of float32"),
        (Storage(KEY, "int32", 2), {}, "another sha256 than that of the storage's bytes"),
        (Storage(KEY, "float32", 2), {"sha256": "c" * 64}, "another sha256 than that of the storage's bytes"),
    ],
)
def test_a_span_of_other_bytes_than_the_plan_asks_for_is_refused(
    storage: Storage, change: dict[str, str], found: str
) -> None:
    value = weights_value()
    value["spans"][KEY] |= change
    with pytest.raises(ProgramError) as caught:
        spans_outside([storage], read_weights(canonical_json(value), WHERE), WHERE)
    assert (caught.value.where, caught.value.found) == (f"{WHERE}: {KEY}", found)


def test_a_span_is_aligned_for_its_elements() -> None:
    span = read_weights(canonical_json(weights_value()), WHERE).spans[KEY]  # from byte 90
    assert [is_aligned(Storage(KEY, dtype, 1), span) for dtype in ("int8", "bfloat16", "float32")] == [
        True,
        True,
        False,
    ]


@pytest.mark.parametrize(
    "url",
    [
        "https://example.org/a/model.safetensors",
        "http://127.0.0.1:8000/model.safetensors?version=2",
        f"hf://org/name@{COMMIT}/model-00001-of-00002.safetensors",
        "s3://bucket/folder/model.safetensors",
        "abfs://container@account/model.safetensors",
        "file:///mnt/models/model.safetensors",
        "https://example.org/a%20b.safetensors",
    ],
)
def test_a_url_of_weights_is_of_a_listed_scheme(url: str) -> None:
    assert url_fault(url) == ""


@pytest.mark.parametrize(
    ("url", "fault"),
    [
        ("model.safetensors", "it is no URL"),
        ("https://example.org/a b", "it is no URL"),
        ("https://example.org/a#part", "it is no URL"),
        ("HTTPS://example.org/a", "it is no URL"),
        ("https://example.org", "it names no file"),
        ("https://example.org/a/", "it names no file"),
        ("s3:///key", "it names no file"),
        ("https://me@example.org/a", "it holds a user name or password"),
        ("https://me:word@example.org/a", "it holds a user name or password"),
        ("abfs://me:word@account/a", "it holds a user name or password"),
        ("https://example.org/a?X-Amz-Signature=0f", "its `X-Amz-Signature` is a secret"),
        ("https://example.org/a?b=1&access_token=0f", "its `access_token` is a secret"),
        ("hf://org/name/model.safetensors", "the hub's files are called"),
        ("hf://name@main/model.safetensors", "the hub's files are called"),
        ("hf://org/name@main/model.safetensors", "`main` may become another commit"),
        (f"hf://org/name@{COMMIT[:8]}/model.safetensors", f"`{COMMIT[:8]}` may become another commit"),
        (f"hf://org/name@{COMMIT}/", "the hub's files are called"),
        (f"hf://org/name@{COMMIT}/a/", "it names no file of the repository"),
        (f"hf://org/name@{COMMIT}//etc/passwd", "it names no file of the repository"),
        (f"hf://org/name@{COMMIT}/../../../model.safetensors", "it names no file of the repository"),
        (f"hf://org/name@{COMMIT}/a?/../../../model.safetensors", "the hub's files are called"),
        (f"hf://org/name@{COMMIT}/C:/model.safetensors", "the hub's files are called"),
    ],
)
def test_a_url_that_names_no_file_or_holds_a_secret_is_refused(url: str, fault: str) -> None:
    assert url_fault(url).startswith(fault)
