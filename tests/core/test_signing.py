"""Keys and signatures, which remote cache may be told what, and what recorded inputs say to other machines."""

from __future__ import annotations

import base64

import pytest

from hatch_lower.cache.remote.client import OutputFile, decode_action_result, encode_action_result
from hatch_lower.cache.remote.envelope import SharedEntry, is_native, read_envelope, write_envelope
from hatch_lower.cache.remote.policy import RemotePolicy, read_policy
from hatch_lower.cache.remote.signing import SigningKey, VerifyingKeys, key_id, new_key_pair, read_key
from hatch_lower.driver.inputs.record import RecordedInputs, mark_of, received, shareable
from hatch_lower.errors import CacheError, ConfigError

# RFC 8032, section 7.1, test 1
PRIVATE = base64.b64encode(bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")).decode()
PUBLIC = base64.b64encode(bytes.fromhex("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a")).decode()


def test_a_pair_signs_and_verifies() -> None:
    pair = new_key_pair()
    signing_key = SigningKey(read_key(pair.private, "here"))
    trusted = VerifyingKeys((read_key(PUBLIC, "here"), read_key(pair.public, "here")))
    signature = signing_key.sign(b"text")
    assert trusted.verify(pair.key_id, signature, b"text")
    assert not trusted.verify(pair.key_id, signature, b"texts")
    assert not trusted.verify(pair.key_id, signature[:-1], b"text")
    assert not trusted.verify(key_id(read_key(PUBLIC, "here")), signature, b"text")
    assert new_key_pair() != pair


def test_the_public_key_is_the_one_of_the_standard() -> None:
    signing_key = SigningKey(read_key(PRIVATE, "here"))
    assert base64.b64encode(signing_key.public()).decode() == PUBLIC
    assert PRIVATE not in repr(signing_key)
    assert signing_key.key_id() in repr(signing_key)


def test_the_signed_text_does_not_change_unnoticed() -> None:
    entry = SharedEntry("ab" * 32, {"b": [1.5, None], "a": "ä"}, {"kind": "x"}, (("cd" * 32, 3),), True)
    data = write_envelope(entry, SigningKey(read_key(PRIVATE, "here")))
    assert data == (
        b'{"entry":{"blobs":[["' + b"cd" * 32 + b'",3]],"components":{"kind":"x"},"key":"' + b"ab" * 32 + b'",'
        b'"native":true,"schema":1,"value":{"a":"\xc3\xa4","b":[1.5,null]}},"signature":{"ed25519":"'
        b"I8hvJT+L2tWJP9+Oe+3a+MqupNMw864I+GM2NZwnFXcn0wCj9uCEA2Pne2Ax+stur/TALK/MmPIgFrqDS+UyDA=="
        b'","key":"21fe31dfa154a261"}}\n'
    )
    found, signature = read_envelope(data)
    assert found == entry
    assert signature is not None
    assert VerifyingKeys((read_key(PUBLIC, "here"),)).verify(signature.key_id, signature.value, found.text())


@pytest.mark.parametrize("text", ["", "abc", PUBLIC[:-4], PUBLIC + "AAAA", "ä" * 44, "!" * 44])
def test_what_is_no_key_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(CacheError) as caught:
        read_key(text, "environment variable `HATCH_LOWER_SIGNING_KEY`")
    assert str(caught.value) == (
        "the Ed25519 key is malformed\n"
        "  where: environment variable `HATCH_LOWER_SIGNING_KEY`\n"
        f"  found: {len(text)} characters that are not base64 of 32 bytes\n"
        "  to do: make a pair with `hatch-lower cache keygen`"
    )


@pytest.mark.parametrize(
    ("value", "native"),
    [
        ({"target": None, "native": [], "suffix": "json"}, False),
        ({"target": {"system": "linux"}}, True),
        ({"manifest": {"recipes": {"default": {"target": {"isa": ""}}}}}, True),
        ({"entries": [{"report": {"native": ["a.so"]}}]}, True),
        ({"suffix": "so"}, True),
        ({"suffix": ".PYD"}, True),
        ([1, "native"], False),
        (None, False),
    ],
)
def test_records_that_speak_of_native_code(value: object, native: bool) -> None:
    assert is_native(value) is native


# the action result: bytes that protobuf's own library writes for the same message


def test_an_action_result_has_the_bytes_that_protobuf_writes() -> None:
    files = (OutputFile("entry.json", "ab" * 32, 300),)
    golden = "12530a0a656e7472792e6a736f6e12450a40" + "6162" * 32 + "10ac024a0d0a0b68617463682d6c6f776572"
    assert encode_action_result(files).hex() == golden
    assert decode_action_result(bytes.fromhex(golden)) == files


def test_an_action_result_keeps_sizes_and_skips_what_servers_add() -> None:
    files = (OutputFile("a", "ab" * 32, 0), OutputFile("b", "cd" * 32, 5_000_000_000), OutputFile("c", "ef" * 32, 127))
    message = encode_action_result(files)
    assert decode_action_result(message) == files
    # exit_code = 7, stdout_raw = "hello", a fixed64 and a fixed32 that nobody knows
    more = bytes.fromhex("20072a0568656c6c6fa1060102030405060708ad0601020304")
    assert decode_action_result(more + message) == files


@pytest.mark.parametrize(
    "message",
    [
        "12",
        "1205",
        "12ffffffffffffffffff7f",
        "08ffffffffffffffffffff01",
        "0bff",
        "1200",
        "12080a016112030a0161",
        "00",
        "a10601",
    ],
)
def test_a_message_that_is_none_is_refused(message: str) -> None:
    with pytest.raises(ValueError, match=r"protobuf|action result"):
        decode_action_result(bytes.fromhex(message))


def test_a_message_cut_anywhere_is_refused_or_names_fewer_files() -> None:
    files = tuple(OutputFile(f"blobs/{n}", f"{n:064x}", n * 1000) for n in range(3))
    message = encode_action_result(files)
    for end in range(len(message)):
        try:
            found = decode_action_result(message[:end])
        except ValueError:
            continue
        assert found == files[: len(found)]


# policy

HTTPS = "https://cache.example.org/team"
NAMES = "HATCH_LOWER_REMOTE_CACHE"


def policy_of(environment: dict[str, str], remote: str | None = None, keys: tuple[str, ...] = ()) -> RemotePolicy:
    policy = read_policy(environment, remote, keys, lambda line: None)
    assert policy is not None
    return policy


def test_no_remote_unless_it_is_named() -> None:
    assert read_policy({}, None, (), pytest.fail) is None
    assert read_policy({NAMES: "off"}, HTTPS, (), pytest.fail) is None
    assert policy_of({NAMES: ""}, HTTPS).url == HTTPS
    assert policy_of({NAMES: "https://other.example.org/"}, HTTPS).url == "https://other.example.org"


ALL = {
    "HATCH_LOWER_REMOTE_TOKEN": "secret-token",
    "HATCH_LOWER_SIGNING_KEY": PRIVATE,
    "HATCH_LOWER_REMOTE_PUSH": "1",
}


def test_a_remote_that_only_the_project_names_is_told_nothing() -> None:
    warnings: list[str] = []
    policy = read_policy(ALL, HTTPS, (), warnings.append)
    assert policy == RemotePolicy(HTTPS)
    assert warnings == [
        "results are not sent to the remote cache cache.example.org: only `pyproject.toml` names it;"
        " set `HATCH_LOWER_REMOTE_CACHE` to push"
    ]


def test_a_remote_that_the_environment_names_gets_its_credentials() -> None:
    assert policy_of({**ALL, NAMES: HTTPS}).authorization == "Bearer secret-token"
    basic = {**ALL, "HATCH_LOWER_REMOTE_TOKEN": "user:secret:password"}
    header = "Basic " + base64.b64encode(b"user:secret:password").decode()
    assert policy_of({**basic, NAMES: HTTPS}).authorization == header
    assert "secret" not in repr(policy_of({**ALL, NAMES: HTTPS}))


@pytest.mark.parametrize("url", ["http://cache.example.org", "http://10.0.0.1:8080", "http://127.0.0.1.example.org"])
def test_credentials_are_not_sent_in_the_clear(url: str) -> None:
    with pytest.raises(CacheError, match="credentials are not sent over a connection that anyone can read"):
        read_policy({**ALL, NAMES: url}, None, (), pytest.fail)
    assert policy_of({NAMES: url}).authorization == ""


@pytest.mark.parametrize("url", ["http://127.0.0.1:8080", "http://localhost", "http://[::1]:8080/x"])
def test_loopback_may_have_credentials(url: str) -> None:
    assert policy_of({**ALL, NAMES: url}).authorization == "Bearer secret-token"


def test_a_token_with_a_line_break_is_refused() -> None:
    with pytest.raises(CacheError, match="characters that cannot be in a header") as caught:
        read_policy({NAMES: HTTPS, "HATCH_LOWER_REMOTE_TOKEN": "to\r\nken"}, None, (), pytest.fail)
    assert "ken" not in str(caught.value).replace("token", "").replace("TOKEN", "")


@pytest.mark.parametrize(
    "url", ["https://user:hidden@cache.example.org", "https://user@x.org", "s3://key:hidden@bucket"]
)
def test_credentials_in_a_url_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(ConfigError, match="a remote cache's URL holds credentials") as caught:
        read_policy({}, url, (), pytest.fail)
    assert "hidden" not in str(caught.value)
    with pytest.raises(CacheError, match="a remote cache's URL holds credentials"):
        read_policy({NAMES: url}, None, (), pytest.fail)


@pytest.mark.parametrize(
    "url",
    ["cache.example.org", "https://", "https://x.org/?a=b", "https://x.org/a b", "https://x.org:99999", "s3:/bucket"],
)
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_policy({}, url, (), pytest.fail)
    assert str(caught.value).startswith(
        "a remote cache needs a URL\n  where: `tool.hatch.build.hooks.lower.cache.remote`\n  found: `"
    )


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("s3://bucket/x", {"anon": True}),
        ("gs://bucket", {"token": "anon"}),
        ("abfs://container@account", {"anon": True}),
        ("file:///srv/cache", {}),
    ],
)
def test_an_object_store_that_only_the_project_names_is_read_anonymously(url: str, options: dict[str, object]) -> None:
    found = policy_of(ALL, url)
    assert (found.options, found.push, found.authorization) == (options, False, "")
    named = policy_of({**ALL, NAMES: url})
    assert (named.options, named.push, named.authorization) == ({}, True, "")


@pytest.mark.parametrize("url", ["ssh://host/x", "hf://datasets/x", "github://o:r@main", "simplecache::s3://b"])
def test_a_project_may_not_name_a_file_system_that_uses_my_credentials(url: str) -> None:
    with pytest.raises(ConfigError):
        read_policy({}, url, (), pytest.fail)


def test_keys_of_the_environment_stand_in_the_place_of_the_projects() -> None:
    other = new_key_pair().public
    assert policy_of({}, HTTPS, (PUBLIC,)).trusted == VerifyingKeys((read_key(PUBLIC, ""),))
    found = policy_of({"HATCH_LOWER_PUBLIC_KEYS": f" {other}, "}, HTTPS, (PUBLIC,))
    assert found.trusted == VerifyingKeys((read_key(other, ""),))
    assert not found.unsigned


def test_any_in_place_of_public_keys_takes_entries_without_a_signature() -> None:
    found = policy_of({"HATCH_LOWER_PUBLIC_KEYS": "any"}, HTTPS, (PUBLIC,))
    assert found.unsigned
    assert found.trusted == VerifyingKeys((read_key(PUBLIC, ""),)), "a wrong signature by a known key is still refused"
    with pytest.raises(CacheError, match="the Ed25519 key is malformed"):
        policy_of({}, HTTPS, ("any",))


# recorded inputs

SECRET, OTHER_SECRET = b"s" * 32, b"t" * 32
HERE = {"SIZE": "large", "HF_TOKEN": "hidden", "PATHS": "/nowhere/me"}


def inputs_of(environment: dict[str, str], **more: object) -> RecordedInputs:
    empty = {name: {} for name in RecordedInputs.__dataclass_fields__}
    fields = {**empty, "absent": (), "unknown": (), "files": {"project/a.py": "00"}, "environment": environment, **more}
    return RecordedInputs(**fields)  # type: ignore[arg-type]


def recorded(*names: str) -> dict[str, str]:
    return {name: mark_of(SECRET, name, HERE.get(name)) for name in names}


def test_variables_that_are_unset_are_shared_as_they_are() -> None:
    inputs = inputs_of(recorded("MISSING"))
    assert shareable(inputs, (), HERE, SECRET) == inputs
    assert received(inputs, {}, OTHER_SECRET) == inputs


def test_a_declared_variable_means_the_same_elsewhere() -> None:
    inputs = inputs_of(recorded("SIZE", "MISSING"))
    assert shareable(inputs, (), HERE, SECRET) is None
    shared = shareable(inputs, ("SIZ*",), HERE, SECRET)
    assert shared is not None
    assert recorded("SIZE")["SIZE"] not in str(shared), "the keyed digest stays here"
    there = received(shared, {"SIZE": "large"}, OTHER_SECRET)
    assert there.environment == {"SIZE": mark_of(OTHER_SECRET, "SIZE", "large"), "MISSING": ""}
    for other in ({"SIZE": "small"}, {}):
        mark = received(shared, other, OTHER_SECRET).environment["SIZE"]
        assert mark != mark_of(OTHER_SECRET, "SIZE", other.get("SIZE"))


def test_a_credential_is_not_shared_even_if_it_is_declared() -> None:
    inputs = inputs_of(recorded("HF_TOKEN"))
    assert shareable(inputs, ("HF_TOKEN",), HERE, SECRET) is None
    assert shareable(inputs, ("HF_TOKEN",), {}, SECRET) is None
    assert shareable(inputs_of({"HF_TOKEN": ""}), (), HERE, SECRET) is not None, "it was not set"


def test_a_variable_that_has_changed_since_is_not_shared() -> None:
    assert shareable(inputs_of(recorded("SIZE")), ("*",), {"SIZE": "small"}, SECRET) is None
    assert shareable(inputs_of(recorded("SIZE")), ("*",), HERE, OTHER_SECRET) is None


@pytest.mark.parametrize("field", ["files", "looks", "listings", "importable", "absent"])
def test_places_of_this_machine_are_not_shared(field: str) -> None:
    def with_path(path: str) -> RecordedInputs:
        return inputs_of({}, **{field: (path,) if field == "absent" else {path: "00"}})

    assert shareable(with_path("/srv/runner-7/data.bin"), (), HERE, SECRET) is None
    assert shareable(with_path("/usr/share/data.bin"), (), HERE, SECRET) is not None
    assert shareable(with_path("project/data.bin"), (), HERE, SECRET) is not None


def test_inputs_that_are_not_complete_are_not_shared() -> None:
    assert shareable(inputs_of({}, unknown=("a socket",)), (), HERE, SECRET) is None
