"""Which URLs are opened: of listed schemes, without chains of file systems, options, credentials or odd hosts."""

from __future__ import annotations

import base64
import json
import zipfile
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from fsspec.registry import known_implementations
from support.lowered import file_entry, floats
from support.weights import COMMIT, checkpoint, write_outside

import hatch_lower
from hatch_lower.cache.remote.policy import read_policy
from hatch_lower.cache.remote.transport import FilesTransport, HttpTransport, UnreachableError
from hatch_lower.cache.remote.transport import TransferLimits as CacheLimits
from hatch_lower.canonical import canonical_json
from hatch_lower.cli.entry import main
from hatch_lower.errors import FetchError, LowerError, ProgramError
from hatch_lower.format.codec import Damage
from hatch_lower.format.weights import WeightsSource, read_url
from hatch_lower.runtime.obtain import fetch_sources, open_origin
from hatch_lower.runtime.origins import (
    DownloadLimits,
    FilesOrigin,
    HttpOrigin,
    RefusedDownloadError,
    choose_download_origin,
)
from hatch_lower.urls import SCHEMES, UrlError, open_fault, open_remote_folder, packaged_fault, url_fault

FILE = checkpoint({"layer.weight": floats(1, 2, 3, 4), "layer.bias": floats(10, 20, 30, 40)})
COMMAND = "{{ cycler.__init__.__globals__.os.system('exit') }}"  # fsspec before 2026.6 runs it
TEMPLATE = base64.b64encode(
    json.dumps({"version": 1, "templates": {}, "gen": [{"key": COMMAND, "url": "", "dimensions": {"i": [1]}}]}).encode()
).decode()
CHAINS = [
    f"reference://k::data:application/json;base64,{TEMPLATE}",
    "simplecache::https://example.org/model.safetensors",
    "filecache::s3://bucket/model.safetensors",
    "zip://model.safetensors::https://example.org/a.zip",
    "s3::https://example.org/model.safetensors",
    "s3://bucket/k::reference://k",
    "s3://bucket/k::data:,x",
    "s3://bucket/k%3A%3Areference://k",
    "s3://bucket/k%3a:x",
    "s3://bucket/k%253A%253Ax",
    "s3://bucket/k%25253A:x",
    "https://example.org/a::reference://k",
    "https://example.org/a?b=c::d",
    "https://example.org/a?b=%3A%3A",
    "file:///a::b/model.safetensors",
    "gs://a::b/model.safetensors",
    f"hf://org/name@{COMMIT}/a::b",
]
SCHEMES_OF_FSSPEC = [
    *(
        "arrow_hdfs",
        "asyncwrapper",
        "blockcache",
        "box",
        "cached",
        "dask",
        "data",
        "dbfs",
        "dir",
        "dropbox",
        "filecache",
    ),
    *("ftp", "gcs", "gdrive", "generic", "git", "github", "gist", "hdfs", "jlab", "jupyter", "lakefs", "libarchive"),
    *("local", "memory", "oci", "oss", "reference", "root", "s3a", "sftp", "simplecache", "smb", "ssh", "tar", "tos"),
    *("wandb", "webdav", "webhdfs", "zip", "abfs2", "adl", "pyscript", "async_wrapper", "javascript", "filecache"),
]
OTHER_SCHEMES = [f"{scheme}://bucket/model.safetensors" for scheme in SCHEMES_OF_FSSPEC]
NO_URLS = [
    *(
        "",
        "model",
        "//host/a",
        "S3://bucket/a",
        "Https://example.org/a",
        " https://example.org/a",
        "https:/example.org/a",
    ),
    *("https://example.org/a\n", "https://example.org/\ta", "https://example.org/a\0", "https://example.org/\u202ea"),
    *("https://example.org/a\r\nHost: other", "s3://bucket/a\x1b[2J", "https://example.org/a\\b", "s3://bucket/{{1}}"),
    *(
        "s3://bucket/a|b",
        "s3://bucket/a#1",
        "data:,x",
        "s3:bucket/a",
        "https://example.org/%zz",
        "https://example.org/%",
    ),
    "https://example.org/" + "a" * 9000,
    "s3://bucket/" + "%25" * 3000,
]
HOSTS = [
    *(
        "https://me@example.org/a",
        "https://me:word@example.org/a",
        "https://example.org@other.org/a",
        "https://@x.org/a",
    ),
    *("https://example.org%40other.org/a", "https://example.org%2Fother/a", "https://example.org%0d%0aX:y/a"),
    *("https://example.org:0/a", "https://example.org:99999/a", "https://example.org:8x/a", "https://example.org:/a"),
    *("https://example.org:80:90/a", "https://[::1/a", "https://::1/a", "https://[::1]x/a", "https://exämple.org/a"),
    *(
        "https://example.org/ä",
        "https://example.org;x/a",
        "https:///a",
        "file://host/a",
        "file://host@x/a",
        "file://~/a",
    ),
    *(
        "file://localhost/a",
        "file://../a",
        "s3:///a",
        "s3://bucket:80/a",
        "s3://key:secret@bucket/a",
        "s3://me@bucket/a",
    ),
    *("s3://-bucket/a", "s3://../a", "s3://bücket/a", "gs://a@b/c", "gs://bucket%2Fx/a", "az://container@other.org/a"),
    *("abfs://container@other.org/a", "abfs://container@a.dfs.core.windows.net.other.org/a", "abfs://a:b@account/c"),
    *("abfs://container@other.org%2F.dfs.core.windows.net/a", "abfss://container@other.org?.dfs.core.windows.net/a"),
    *("abfs://c@a@b/x", "abfss://container@ACCOUNT.file.core.windows.net/a"),
]
OPTIONS = [
    *("s3://bucket/a?versionId=1", "s3://bucket/a?anon=true", "gs://bucket/a?generation=1", "az://container/a?sas=x"),
    *("file:///a?b", "s3://bucket/a?", f"hf://org/name@{COMMIT}/a?b=c"),
]
HUBS = [
    *(f"hf://org/name@{COMMIT}/%2e%2e/a", f"hf://org/name@{COMMIT}/a%2F..%2F..%2Fb", f"hf://../..@{COMMIT}/a"),
    *(f"hf://datasets/org/name@{COMMIT}/a", f"hf://org/name@{COMMIT}%2F../a", "hf://org/name/a", "hf://buckets/a/b"),
    *(f"hf://org/name@{COMMIT}/a%00", f"hf://org/name@refs%2Fpr%2F1/{COMMIT}"),
]
ESCAPED = ["https://example.org/%00", "s3://bucket/%0a", "https://example.org/%250a", "https://example.org/%E2%80%AE"]
NO_FILES = [
    "https://example.org/a/%2e%2e",
    "s3://bucket/a%2F",
    "gs://bucket/..",
    "https://example.org/.",
    "s3://bucket//",
]
HOSTILE = [*CHAINS, *OTHER_SCHEMES, *NO_URLS, *HOSTS, *OPTIONS, *HUBS, *ESCAPED]
GOOD = [
    *(
        "https://example.org/a/model.safetensors",
        "http://127.0.0.1:8000/m?version=2",
        "http://[::1]:80/a",
        "gs://b_1/a",
    ),
    *("https://example.org/a%20b%3Ac", "s3://bucket.name/a/b-c_d=e:f@g", "az://container/a", "abfs://$web@account/a"),
    *("abfss://container@account.dfs.core.windows.net/a/b", "az://c@account.blob.core.windows.net/a", "s3://b/ключ"),
    f"hf://org/name@{COMMIT}/folder/model-00001-of-00002.safetensors",
]


LOCAL = ["file:///etc/passwd", "file:///srv/model.safetensors"]
WORDS = "no connection is opened"


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let fsspec, huggingface's library and sockets fail the test that reaches them."""
    for name in ("HATCH_LOWER_FETCH", "HF_HUB_OFFLINE", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HATCH_LOWER_WEIGHTS", str(tmp_path / "cache"))
    for name in ("fsspec.core.url_to_fs", "socket.getaddrinfo"):
        monkeypatch.setattr(name, reached)
    if find_spec("huggingface_hub") is not None:
        monkeypatch.setattr("huggingface_hub.hf_hub_download", reached)


def reached(*arguments: Any, **named: Any) -> Any:
    """Fail in a way that nothing catches."""
    raise AssertionError(f"a library was reached with {arguments}")


def accepted(urls: Iterable[str], action: Callable[[str], object], kind: type[Exception], words: str = "") -> list[str]:
    """Return the URLs that an action does not refuse with an error of this kind, whose text has these words."""
    found = []
    for url in urls:
        try:
            action(url)
            found.append(url)
        except kind as error:
            if words not in str(error):
                found.append(url)
    return found


class Package:
    """An unpacked wheel whose weights are at a URL that is set."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = write_outside(root / "digits" / "_lowered", {"https://example.org/model.safetensors": FILE})
        self._manifest = json.loads((self.folder / "manifest.json").read_bytes())
        self._path = self._manifest["models"]["digits"]["weights"]["path"]
        self._document = json.loads((self.folder / self._path).read_bytes())

    def set(self, url: str) -> None:
        self._document["sources"][0]["url"] = url
        data = canonical_json(self._document)
        self._manifest["models"]["digits"]["weights"] = file_entry(self.folder, self._path, data)
        (self.folder / "manifest.json").write_bytes(canonical_json(self._manifest))

    def fetch(self, url: str) -> None:
        self.set(url)
        hatch_lower.fetch(self.folder)

    def load(self, url: str) -> None:
        self.set(url)
        hatch_lower.load(self.folder)

    def wheel(self) -> Path:
        wheel = self.root / "digits-1.0-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            for path in sorted(self.folder.rglob("*.*")):
                archive.write(path, path.relative_to(self.root))
        return wheel


@pytest.fixture
def package(tmp_path: Path) -> Package:
    return Package(tmp_path)


def test_a_url_of_a_listed_scheme_is_good() -> None:
    assert [url for url in GOOD if url_fault(url) or open_fault(url) or packaged_fault(url)] == []
    assert {url.partition(":")[0] for url in GOOD} | {"file"} == set(SCHEMES)


def test_every_other_scheme_of_fsspec_is_refused() -> None:
    schemes = sorted({*known_implementations} - {*SCHEMES})
    assert len(schemes) > 30
    assert [scheme for scheme in schemes if not url_fault(f"{scheme}://bucket/model.safetensors")] == []


def test_a_hostile_url_is_refused_where_a_document_is_read() -> None:
    assert [url for url in [*HOSTILE, *NO_FILES] if not url_fault(url)] == []
    assert accepted([*HOSTILE, *LOCAL], read_url, Damage) == []


def test_a_hostile_url_is_refused_where_a_connection_is_opened() -> None:
    assert accepted([*HOSTILE, *LOCAL], lambda url: fetch_sources([WeightsSource(url, 1, "a" * 64)]), FetchError) == []
    of_files = [url for url in HOSTILE if not url.startswith("hf:")]
    assert (
        accepted(of_files, lambda url: choose_download_origin(url, DownloadLimits()), RefusedDownloadError, WORDS) == []
    )
    assert accepted(of_files, lambda url: open_origin(url, DownloadLimits()), RefusedDownloadError, WORDS) == []


def test_a_hostile_url_is_not_handed_to_fsspec() -> None:
    urls = [*HOSTILE, "https://example.org/a", f"hf://org/name@{COMMIT}/a"]
    assert accepted(urls, lambda url: open_remote_folder(url, {}), UrlError) == []
    assert accepted(urls, lambda url: FilesOrigin(url, DownloadLimits()).open(0, ""), RefusedDownloadError, WORDS) == []
    for read in (FilesTransport.read, lambda transport, name: transport.holds(name, 1)):
        action = lambda url, read=read: read(FilesTransport(url, {}, CacheLimits()), "ac/0")  # noqa: E731
        assert accepted(urls, action, UnreachableError, WORDS) == []


def test_a_web_server_is_asked_for_urls_of_the_web_alone() -> None:
    urls = [*OTHER_SCHEMES, *HOSTS, *LOCAL, "s3://bucket/a", "HTTPS://me@example.org/a", "https://example.org/\r\na"]
    assert accepted(urls, lambda url: HttpOrigin(url, DownloadLimits()), RefusedDownloadError, WORDS) == []
    action = lambda url: HttpTransport(url, "", CacheLimits()).holds("ac/0", 1)  # noqa: E731
    assert accepted(urls, action, UnreachableError, WORDS) == []


def test_a_hostile_url_of_a_shared_cache_is_refused() -> None:
    urls = [url for url in HOSTILE if url.strip() == url != ""]
    assert accepted(urls, lambda url: read_policy({}, url, (), pytest.fail), LowerError) == []
    named = lambda url: read_policy({"HATCH_LOWER_REMOTE_CACHE": url}, None, (), pytest.fail)  # noqa: E731
    assert accepted(urls, named, LowerError) == []


def test_a_hostile_url_in_a_folder_or_wheel_reaches_no_library(package: Package) -> None:
    words = "instead of a URL of weights"
    assert accepted([*HOSTILE, *LOCAL], package.fetch, ProgramError, "weights.json: sources[0].url") == []
    for url in (CHAINS[0], LOCAL[0], "s3://bucket/\x1b[2J"):
        package.set(url)
        done = CliRunner().invoke(main, ["fetch", str(package.wheel())])
        assert (done.exit_code, "\x1b" in done.output, words in done.output) == (1, False, True)


@pytest.mark.torch
def test_a_hostile_url_reaches_no_library_where_load_may_fetch(
    package: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HATCH_LOWER_FETCH", "always")
    assert accepted([*CHAINS, *LOCAL], package.load, ProgramError, "instead of a URL of weights") == []


def test_a_hostile_place_on_the_command_line_is_refused(package: Package) -> None:
    package.set("model.safetensors")
    urls = [*(url for url in HOSTILE if "://" in url), "https://[x/", "s3://bucket::x/"]
    action = lambda url: hatch_lower.fetch(package.folder, origins=[url])  # noqa: E731
    assert accepted(urls, action, FetchError, f"{WORDS} to a given place") == []


@pytest.mark.parametrize("mirror", ["file:///etc", "reference://k::data:,x", "ftp://example.org", "https://me@x.org"])
def test_a_mirror_of_another_scheme_is_not_asked(monkeypatch: pytest.MonkeyPatch, mirror: str) -> None:
    pytest.importorskip("huggingface_hub")
    monkeypatch.setenv("HF_ENDPOINT", mirror)
    url = f"hf://org/name@{COMMIT}/model.safetensors"
    assert accepted([url], lambda url: open_origin(url, DownloadLimits()), RefusedDownloadError, WORDS) == []


def test_the_fault_of_a_url_says_which_schemes_there_are() -> None:
    assert url_fault("reference://k::data:,x") == (
        "the scheme `reference` is not allowed, only `http`, `https`, `file`, `s3`, `gs`, `az`, `abfs`, `abfss`, `hf`"
    )
    assert packaged_fault(LOCAL[0]) == "a wheel names no file of the machine"


def test_fsspec_gets_urls_in_one_place() -> None:
    root = Path(hatch_lower.__file__).parent
    found = [path.relative_to(root).as_posix() for path in root.rglob("*.py") if "url_to_fs" in path.read_text()]
    assert found == ["urls.py"]
