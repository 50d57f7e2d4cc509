"""The released versions of an engine: indexes and folders are read as installers read them."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from packaging.tags import Tag

from hatch_lower.cli.matrix.places import IndexPlaces, parse_settings, read_places, shown, without_installer_settings
from hatch_lower.cli.matrix.releases import JSON, IndexFile, find_releases, releases_of
from hatch_lower.errors import ConfigError, FetchError

HERE = [Tag("cp311", "cp311", "linux_x86_64"), Tag("py3", "none", "any")]
NONE = IndexPlaces(())


def listed(*files: IndexFile) -> dict[str, str]:
    """Return the reason of each release."""
    return {str(each.version): each.reason for each in releases_of("Tiny_Engine", files, HERE)}


def wheel(version: str, tag: str = "py3-none-any", **fields: object) -> IndexFile:
    return replace(IndexFile(f"tiny_engine-{version}-{tag}.whl"), **fields)


def test_releases_are_in_the_order_of_their_versions() -> None:
    assert list(listed(wheel("1.10"), wheel("1.9"), wheel("1.2.1"))) == ["1.2.1", "1.9", "1.10"]


def test_pre_releases_yanked_files_and_other_projects_are_left_out() -> None:
    files = [wheel("1.0"), wheel("1.1rc1"), wheel("1.2.dev3"), wheel("1.3", yanked=True)]
    others = ["other-2.0.tar.gz", "tiny_engine-1.0.exe", "tiny_engine-x-py3-none-any.whl"]
    assert listed(*files, *map(IndexFile, others)) == {"1.0": ""}


def test_a_release_with_one_file_that_is_not_yanked_counts() -> None:
    assert listed(wheel("1.0", "py2-none-any", yanked=True), wheel("1.0")) == {"1.0": ""}


def test_a_build_for_one_device_is_a_file_of_the_public_version() -> None:
    assert listed(wheel("1.0+cpu"), wheel("1.0+cu130", "cp39-cp39-win_amd64")) == {"1.0": ""}


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        (IndexFile("tiny_engine-1.0.tar.gz"), "there is only a source distribution"),
        (wheel("1.0", "cp311-cp311-win_amd64"), "there is no wheel for linux_x86_64"),
        (
            wheel("1.0", "cp39-cp39-linux_x86_64"),
            "there is no wheel for cp311 on linux_x86_64; wheels are for cp39",
        ),
        (wheel("1.0", requires_python=">=2000"), "requires Python >=2000, and "),
    ],
)
def test_a_release_without_a_wheel_for_this_machine_has_the_reason(file: IndexFile, reason: str) -> None:
    assert listed(file)["1.0"].startswith(reason)


def test_a_wrong_version_of_python_on_a_page_is_ignored_as_by_installers() -> None:
    assert listed(wheel("1.0", requires_python="three")) == {"1.0": ""}


def test_a_folder_of_wheels_and_a_page_of_links_are_places(tmp_path: Path) -> None:
    (tmp_path / "tiny_engine-1.0-py3-none-any.whl").touch()
    page = tmp_path / "page.html"
    page.write_text('<a href="../x/tiny_engine-1.1-py3-none-any.whl#sha256=0">x</a><a>nothing</a>')
    places = IndexPlaces((), (str(tmp_path), page.as_uri(), str(tmp_path / "missing")))
    assert [str(each.version) for each in find_releases("tiny-engine", places)] == ["1.0", "1.1"]


def test_an_index_in_a_folder_may_have_pages_or_files(tmp_path: Path) -> None:
    first, second = tmp_path / "a/tiny-engine", tmp_path / "b/tiny-engine"
    for folder in (first, second):
        folder.mkdir(parents=True)
    (first / "index.html").write_text(
        '<a href="tiny_engine-1.0-py3-none-any.whl" data-yanked="broken">x</a>'
        '<a href="tiny_engine-1.1-py3-none-any.whl" data-requires-python="&gt;=2000">x</a>'
    )
    (second / "tiny_engine-1.2-py3-none-any.whl").touch()
    found = find_releases("tiny-engine", IndexPlaces((first.parent.as_uri(), str(second.parent))))
    assert [(str(each.version), bool(each.reason)) for each in found] == [("1.1", True), ("1.2", False)]
    assert find_releases("another", IndexPlaces((str(second.parent),))) == []


def test_a_folder_that_is_missing_is_no_index(tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="there is no such folder"):
        find_releases("tiny-engine", IndexPlaces((str(tmp_path / "missing"),)))


class Index(BaseHTTPRequestHandler):
    """Answers by the first part of the path."""

    def do_GET(self) -> None:
        self.server.asked.append((self.path, self.headers.get("Authorization"), self.headers.get("Accept")))  # type: ignore[attr-defined]
        file = {"filename": "tiny_engine-1.0-py3-none-any.whl", "yanked": False, "requires-python": None}
        yanked = {"filename": "tiny_engine-1.1-py3-none-any.whl", "yanked": "broken"}
        answers = {
            "json": (200, JSON, json.dumps({"files": [file, yanked]})),
            "html": (200, "text/html", '<a href="/f/tiny_engine-2.0-py3-none-any.whl">x</a>'),
            "damaged": (200, JSON, '{"files": [{"name": 1}]}'),
            "list": (200, JSON, "[]"),
            "moved": (302, "text/plain", ""),
            "private": (401, "text/plain", "no"),
        }
        status, kind, text = answers.get(self.path.split("/")[1], (404, "text/plain", ""))
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Location", "ftp://127.0.0.1/simple")
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Index) as made:
        made.asked = []  # type: ignore[attr-defined]
        thread = threading.Thread(target=made.serve_forever, daemon=True)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def url(server: ThreadingHTTPServer, kind: str, login: str = "") -> str:
    return f"http://{login}127.0.0.1:{server.server_port}/{kind}"


def test_the_indexes_of_both_formats_are_read_and_one_may_lack_the_engine(server: ThreadingHTTPServer) -> None:
    places = IndexPlaces((url(server, "json"), url(server, "html/"), url(server, "missing")))
    assert [str(each.version) for each in find_releases("Tiny_Engine", places)] == ["1.0", "2.0"]
    assert [path for path, _, _ in server.asked[-3:]] == [  # type: ignore[attr-defined]
        *("/json/tiny-engine/", "/html/tiny-engine/", "/missing/tiny-engine/"),
    ]
    assert server.asked[-1][2].startswith(JSON)  # type: ignore[attr-defined]


def test_the_login_of_an_index_is_sent_and_not_shown(server: ThreadingHTTPServer) -> None:
    with pytest.raises(FetchError) as caught:
        find_releases("tiny-engine", IndexPlaces((url(server, "private", "me:top%20secret@"),)))
    assert server.asked[-1][1] == f"Basic {base64.b64encode(b'me:top secret').decode()}"  # type: ignore[attr-defined]
    text = str(caught.value)
    assert "HTTP status 401" in text
    assert "secret" not in text
    assert "PIP_INDEX_URL" in caught.value.hint


def test_a_redirect_of_an_index_leads_to_no_other_protocol(server: ThreadingHTTPServer) -> None:
    with pytest.raises(FetchError, match="a redirect to ftp"):
        find_releases("tiny-engine", IndexPlaces((url(server, "moved"),)))


@pytest.mark.parametrize("kind", ["damaged", "list"])
def test_a_page_of_another_form_is_an_error(server: ThreadingHTTPServer, kind: str) -> None:
    with pytest.raises(FetchError, match="no page of the simple interface"):
        find_releases("tiny-engine", IndexPlaces((url(server, kind),)))


def test_an_index_that_is_not_reachable_is_an_error() -> None:
    with pytest.raises(FetchError, match="the index of packages cannot be read"):
        find_releases("tiny-engine", IndexPlaces(("http://127.0.0.1:9/simple",)))
    with pytest.raises(FetchError, match="scheme `ftp`"):
        find_releases("tiny-engine", IndexPlaces(("ftp://127.0.0.1/simple",)))


SETTINGS = r"""
:env:.find-links='/variable'
global.extra-index-url='https://one/simple\nhttps://two/simple'
global.find-links='/file'
global.index-url='https://file/simple'
install.constraint='/c.txt'
"""


def test_a_constraint_of_the_installer_excludes_versions_with_a_reason(tmp_path: Path) -> None:
    for version in ("1.0", "1.1", "2.0"):
        (tmp_path / f"tiny_engine-{version}-py3-none-any.whl").touch()
    lines = ["# none", "Tiny.Engine<2  # a cap", "tiny-engine<1; python_version < '3'", "other<1", "-r more.txt", ""]
    (tmp_path / "caps.txt").write_text("\n".join(lines))
    constraints = (str(tmp_path / "caps.txt"), str(tmp_path / "missing.txt"), "https://host.invalid/caps.txt")
    found = find_releases("tiny-engine", IndexPlaces((), (str(tmp_path),), constraints))
    reason = "the installer's constraint `Tiny.Engine<2` excludes it"
    assert {str(each.version): each.reason for each in found} == {"1.0": "", "1.1": "", "2.0": reason}


def test_pip_s_certificates_are_those_of_uv() -> None:
    found = IndexPlaces(certificates="/ca.pem").variables()
    assert (found["PIP_CERT"], found["SSL_CERT_FILE"]) == ("/ca.pem", "/ca.pem")
    assert "SSL_CERT_FILE" not in IndexPlaces().variables()


def test_the_settings_of_pip_are_those_of_the_last_section() -> None:
    found = parse_settings(SETTINGS.strip())
    assert found["find-links"] == "/variable"
    assert found["extra-index-url"].split() == ["https://one/simple", "https://two/simple"]


def test_the_places_are_those_of_pip_and_of_uv_s_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "hatch_lower.cli.matrix.places.pip_settings", lambda environment: parse_settings(SETTINGS.strip())
    )
    places = read_places({"UV_INDEX": "mine=https://three/simple", "UV_FIND_LINKS": "/uv,/variable"})
    assert places.indexes == (
        *("https://file/simple", "https://one/simple"),
        "https://two/simple",
        "https://three/simple",
    )
    assert places.links == ("/variable", "/uv")
    assert places.constraints == ("/c.txt",)
    assert read_places({"UV_DEFAULT_INDEX": "https://uv/simple"}).indexes[0] == "https://uv/simple"


def test_without_settings_the_index_is_pypi_and_no_index_leaves_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hatch_lower.cli.matrix.places.pip_settings", lambda environment: {})
    assert read_places({}) == IndexPlaces(("https://pypi.org/simple/",))
    monkeypatch.setattr("hatch_lower.cli.matrix.places.pip_settings", lambda environment: dict(environment))
    assert read_places({"no-index": "true", "find-links": "/x"}) == IndexPlaces((), ("/x",))


def test_without_pip_its_variables_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho No module named pip >&2\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(python))
    found = read_places({"PIP_INDEX_URL": "https://a/simple", "PIP_FIND_LINKS": "/x", "PIP_CONSTRAINT": "/c.txt"})
    assert found == IndexPlaces(("https://a/simple",), ("/x",), ("/c.txt",))


def test_settings_of_pip_that_cannot_be_read_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho broken file >&2\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(python))
    with pytest.raises(ConfigError, match="pip's settings cannot be read") as caught:
        read_places({})
    assert caught.value.found == "broken file"
    monkeypatch.setattr("sys.executable", str(tmp_path / "missing"))
    with pytest.raises(ConfigError, match="pip's settings cannot be read"):
        read_places({})


def test_installers_look_in_the_same_places_and_in_no_others() -> None:
    places = IndexPlaces(("https://a/simple", "https://b/simple"), ("/x", "/y"), ("/c.txt",), "/pem")
    variables = places.variables()
    assert (variables["PIP_INDEX_URL"], variables["UV_DEFAULT_INDEX"]) == ("https://a/simple",) * 2
    assert (variables["PIP_EXTRA_INDEX_URL"], variables["UV_INDEX"]) == ("https://b/simple",) * 2
    assert (variables["PIP_FIND_LINKS"], variables["UV_FIND_LINKS"]) == ("/x /y", "/x,/y")
    assert IndexPlaces((), ("/x",)).variables() == {
        "PIP_NO_INDEX": "1",
        "UV_NO_INDEX": "1",
        "PIP_FIND_LINKS": "/x",
        "UV_FIND_LINKS": "/x",
    }
    replaced = {"PIP_INDEX_URL": "x", "UV_FIND_LINKS": "y", "PYTHONPATH": "z", "PIP_USER": "1"}
    assert without_installer_settings({**replaced, "HOME": "/h"}) == {"HOME": "/h"}


def test_a_shown_url_has_no_login() -> None:
    assert shown("https://me:secret@host/simple/@x") == "https://host/simple/@x"
    assert shown("/folder@x") == "/folder@x"
