"""Downloads by digest: from servers that break off, change, lie or are slow, onto disks that are full."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.request import Request

import pytest
from support.weights import Served, served, source_of

from hatch_lower.canonical import sha256_bytes
from hatch_lower.errors import FetchError
from hatch_lower.format.weights import WeightsSource
from hatch_lower.runtime.download import Received, complete, download, errors_of, held_part, private_part
from hatch_lower.runtime.origins import (
    DownloadLimits,
    HttpOrigin,
    Redirects,
    RefusedDownloadError,
    choose_download_origin,
)

DATA = bytes(range(256)) * 40
OTHER = bytes(reversed(DATA))
HASTY = DownloadLimits(silence=0.2, rate=100_000.0, tries=3, pause=0.0)
CONTENTS = "other contents: the sha256"


@pytest.fixture
def server() -> Iterator[Served]:
    """Return a server that has one file."""
    with served({"/model": DATA}) as server:
        yield server


def get(server: Served, target: Path, *, source: WeightsSource | None = None, limits: DownloadLimits = HASTY) -> bool:
    url = f"{server.url}/model"
    with errors_of(url, target):
        return download(
            source or source_of(url, DATA), choose_download_origin(url, limits), target, limits, lambda count: None
        )


def refused(action: Callable[[], object]) -> str:
    with pytest.raises(FetchError) as caught:
        action()
    return str(caught.value)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_download_leaves_the_file_and_nothing_else(server: Served, tmp_path: Path) -> None:
    assert get(server, tmp_path / "new" / "file")
    assert (tmp_path / "new" / "file").read_bytes() == DATA
    assert names(tmp_path / "new") == ["file"]


def test_a_broken_connection_is_resumed_where_it_ended(server: Served, tmp_path: Path) -> None:
    server.faults += ["cut1000", "cut2000"]
    assert get(server, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == DATA
    assert server.asked() == ["", "bytes=1000-", "bytes=3000-"]
    assert all("If-Range" in headers for _, _, headers in server.requests[1:])


def test_a_process_goes_on_where_another_one_ended(server: Served, tmp_path: Path) -> None:
    server.faults += ["cut1000", "closed", "closed", "closed"]
    text = refused(lambda: get(server, tmp_path / "file"))
    assert text.startswith(
        f"a download of weights broke off\n  where: {server.url}/model\n  found: the connection broke"
    )
    assert text.endswith("to do: try again: the download resumes")
    assert names(tmp_path) == ["file.part"]
    server.faults.clear()
    assert get(server, tmp_path / "file")
    assert (server.asked()[-1], names(tmp_path)) == ("bytes=1000-", ["file"])


def test_a_download_of_which_nothing_came(server: Served, tmp_path: Path) -> None:
    server.faults += ["closed", "closed", "closed"]
    text = refused(lambda: get(server, tmp_path / "file"))
    assert text.endswith("to do: no bytes have arrived: check the connection, and try again")


def test_a_server_without_ranges_gives_the_whole_file_again(server: Served, tmp_path: Path) -> None:
    server.has_ranges = False
    server.faults += ["cut1000"]
    assert get(server, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == DATA


@pytest.mark.parametrize("has_tags", [True, False])
def test_a_file_that_changes_between_two_ranges(server: Served, tmp_path: Path, has_tags: bool) -> None:
    server.has_tags = has_tags
    server.faults += ["cut1000", "*other"]
    assert CONTENTS in refused(lambda: get(server, tmp_path / "file"))
    assert names(tmp_path) == []
    assert len(server.asked()) <= 4


@pytest.mark.parametrize(
    ("faults", "has_tags"),
    [(["cut1000", "*other"], True), (["cut1000", "500", "*other"], True), (["cut1000", "*other"], False)],
    ids=["tags", "tags and no answer between", "no tags"],
)
def test_a_file_of_no_known_digest_is_of_one_piece(
    server: Served, tmp_path: Path, faults: list[str], has_tags: bool
) -> None:
    server.has_tags = has_tags
    server.faults += faults
    with private_part(tmp_path / "file") as part:
        found = Received(part.file)
        complete(found, choose_download_origin(f"{server.url}/model", HASTY), None, HASTY, lambda count: None)
        assert found.sha256() == sha256_bytes(OTHER)


@pytest.mark.parametrize("part", [OTHER[:1000], DATA + b"more", OTHER], ids=["shorter", "longer", "whole"])
def test_an_unfinished_file_is_not_believed(server: Served, tmp_path: Path, part: bytes) -> None:
    (tmp_path / "file.part").write_bytes(part)
    assert get(server, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == DATA


def test_an_unfinished_file_that_lacks_nothing_is_taken(server: Served, tmp_path: Path) -> None:
    (tmp_path / "file.part").write_bytes(DATA)
    assert get(server, tmp_path / "file")
    assert server.requests == []


@pytest.mark.parametrize("kind", ["hard link", "link", "link to nothing", "pipe", "another user's"])
@pytest.mark.parametrize("content", [b"", DATA[:1000], b"another file"], ids=["empty", "a beginning", "another"])
def test_a_file_of_somebody_else_is_not_written_through(
    server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, content: bytes
) -> None:
    other, part = tmp_path / "other", tmp_path / "cache" / "file.part"
    part.parent.mkdir()
    other.write_bytes(content)
    if kind == "hard link":
        part.hardlink_to(other)
    elif kind.startswith("link"):
        part.symlink_to(other if kind == "link" else tmp_path / "nothing")
    elif kind == "pipe":
        os.mkfifo(part)
    else:
        part.write_bytes(content)
        other = part
        monkeypatch.setattr("hatch_lower.runtime.download.os.geteuid", lambda: os.getuid() + 1)
    assert get(server, tmp_path / "cache" / "file")
    assert (tmp_path / "cache" / "file").read_bytes() == DATA
    assert other.read_bytes() == content
    assert not (tmp_path / "nothing").exists()
    assert server.asked() == [""]
    assert names(part.parent) == (["file"] if kind == "hard link" else ["file", "file.part"])


def test_an_own_file_under_two_names_is_downloaded_anew(server: Served, tmp_path: Path) -> None:
    server.faults += ["cut1000", "*closed"]
    refused(lambda: get(server, tmp_path / "file"))
    (tmp_path / "backup").hardlink_to(tmp_path / "file.part")
    server.faults.clear()
    assert get(server, tmp_path / "file")
    assert (tmp_path / "backup").read_bytes() == DATA[:1000]
    assert names(tmp_path) == ["backup", "file"]


@pytest.mark.parametrize(
    ("fault", "what"),
    [
        ("404", "the answer was 404 Not Found"),
        ("500", "the answer was 500 Internal Server Error"),
        ("closed", "the connection broke: RemoteDisconnected"),
        ("garbage", "the connection broke: BadStatusLine"),
        ("silent", "no answer came for too long"),
        ("drip", "which is too slow"),
        ("drip-headers", "no answer came for too long"),
        ("gzip", "the answer is encoded: gzip"),
        ("longer", f"a file of {len(DATA) + 4} bytes instead of {len(DATA)}"),
        ("shorter", f"a file of {len(DATA) - 4} bytes instead of {len(DATA)}"),
        ("other", CONTENTS),
    ],
)
def test_a_server_that_fails_or_lies_is_an_error(server: Served, tmp_path: Path, fault: str, what: str) -> None:
    server.faults.append(f"*{fault}")
    text = refused(lambda: get(server, tmp_path / "file"))
    assert what in text
    assert f"where: {server.url}/model" in text
    # only what may be the beginning of the file stays
    assert set(names(tmp_path)) <= {"file.part"}
    assert all(DATA.startswith(path.read_bytes()) for path in tmp_path.iterdir())


def test_a_fault_that_passes_is_no_error(server: Served, tmp_path: Path) -> None:
    server.faults += ["500", "silent"]
    assert get(server, tmp_path / "file")


def test_a_length_that_no_file_has_says_nothing(server: Served, tmp_path: Path) -> None:
    server.faults.append("endless")
    assert get(server, tmp_path / "file")


def test_no_server_is_an_error_at_once(tmp_path: Path) -> None:
    text = refused(lambda: get(Served("http://127.0.0.1:9", {}), tmp_path / "file", limits=DownloadLimits(pause=100.0)))
    assert "no connection: [Errno 111] Connection refused" in text


def test_a_file_that_is_no_longer_there_has_a_hint(server: Served, tmp_path: Path) -> None:
    server.files.clear()
    assert refused(lambda: get(server, tmp_path / "file")).endswith(
        "to do: if the file has moved, name a place with the same bytes: `hatch-lower fetch … --from URL`"
    )


def test_a_damaged_file_is_replaced(server: Served, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(OTHER)
    assert get(server, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == DATA


def test_several_threads_fetch_once(server: Served, tmp_path: Path) -> None:
    done: list[bool] = []
    threads = [threading.Thread(target=lambda: done.append(get(server, tmp_path / "file"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == [False] * 7 + [True]
    assert (server.asked(), names(tmp_path)) == ([""], ["file"])


def test_who_waits_for_a_download_that_fails_tries_itself(server: Served, tmp_path: Path) -> None:
    done: list[bool] = []
    with held_part(tmp_path / "file") as part:
        waiting = threading.Thread(target=lambda: done.append(get(server, tmp_path / "file")))
        waiting.start()
        part.path.unlink()
    waiting.join()
    assert (done, names(tmp_path)) == ([True], ["file"])


def test_a_file_system_without_locks(server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hatch_lower.runtime.download.lock", lambda file: False)
    assert get(server, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == DATA
    assert names(tmp_path) == ["file"]


def test_a_disk_that_is_full_before_or_while_it_is_written(
    server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize
    huge = WeightsSource(f"{server.url}/model", free * 2, "0" * 64)
    text = refused(lambda: get(server, tmp_path / "file", source=huge))
    assert text.startswith("there is no space for a file of weights\n")
    assert (server.requests, names(tmp_path)) == ([], [])


PROCESS = """
import sys
from pathlib import Path
from hatch_lower.format.weights import WeightsSource
from hatch_lower.runtime.download import download
from hatch_lower.runtime.origins import LIMITS, choose_download_origin
url, size, sha256, target = sys.argv[1], int(sys.argv[2]), sys.argv[3], Path(sys.argv[4])
source = WeightsSource(url, size, sha256)
print(download(source, choose_download_origin(url, LIMITS), target, LIMITS, lambda count: None))
"""


def test_two_processes_fetch_once(server: Served, tmp_path: Path) -> None:
    source = source_of(f"{server.url}/model", DATA)
    command = [sys.executable, "-c", PROCESS, source.url, str(source.size), source.sha256, str(tmp_path / "file")]
    with held_part(tmp_path / "file") as part:  # both wait for a third one, which is killed
        processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        part.file.write(DATA[:1000])
    assert sorted(process.communicate(timeout=60)[0] for process in processes) == ["False\n", "True\n"]
    assert (server.asked(), names(tmp_path)) == (["bytes=1000-"], ["file"])


LIMITED = """
import resource, sys
from pathlib import Path
from hatch_lower.errors import FetchError
from hatch_lower.format.weights import WeightsSource
from hatch_lower.runtime.download import download, errors_of
from hatch_lower.runtime.origins import LIMITS, Redirects, RefusedDownloadError, choose_download_origin
url, size, sha256, target = sys.argv[1], int(sys.argv[2]), sys.argv[3], Path(sys.argv[4])
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    with errors_of(url, target):
        origin = choose_download_origin(url, LIMITS)
        download(WeightsSource(url, size, sha256), origin, target, LIMITS, lambda count: None)
except FetchError as error:
    print(error)
"""


def test_a_limit_of_the_system_leaves_nothing_behind(server: Served, tmp_path: Path) -> None:
    source = source_of(f"{server.url}/model", DATA)
    command = [sys.executable, "-c", LIMITED, source.url, str(source.size), source.sha256, str(tmp_path / "file")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert "there is no space for a file of weights" in done.stdout
    assert "found: File too large" in done.stdout
    assert names(tmp_path) == []


def test_a_folder_that_cannot_be_written(server: Served, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("no folder")
    text = refused(lambda: get(server, tmp_path / "taken" / "file"))
    assert text.startswith("a file of weights cannot be stored\n")
    assert "HATCH_LOWER_WEIGHTS" in text


def test_a_redirect_is_followed_without_credentials(server: Served, tmp_path: Path) -> None:
    with served({"/stored": DATA}) as storage:
        server.faults.append(f"redirect {storage.url}/stored")
        url = f"{server.url}/model"
        origin = HttpOrigin(url, HASTY, {"Authorization": "Bearer secret"})
        assert download(source_of(url, DATA), origin, tmp_path / "file", HASTY, lambda count: None)
        ((_, _, sent),) = storage.requests
        assert "Authorization" not in sent
        assert server.requests[0][2]["Authorization"] == "Bearer secret"


@pytest.mark.parametrize(
    "fault", ["reason \x1b]0;pwned\x07", "redirect http://\x1b]0;pwned\x07", "redirect \x9b31mx://"]
)
def test_a_terminal_obeys_nothing_that_a_server_says(server: Served, tmp_path: Path, fault: str) -> None:
    server.faults.append(f"*{fault}")
    text = refused(lambda: get(server, tmp_path / "file"))
    assert text.replace("\n", "").isprintable()


REDIRECTS = [
    "file:///etc/passwd",
    "http://me@127.0.0.1/a",
    "//me:word@127.0.0.1/a",
    "data:,x",
    "reference://k::data:,x",
]


@pytest.mark.parametrize("target", ["ftp://127.0.0.1/file", *REDIRECTS, "http://127.0.0.1:99999/", "http://[::1/"])
def test_a_redirect_leads_to_no_other_protocol(server: Served, tmp_path: Path, target: str) -> None:
    server.faults.append(f"*redirect {target}")
    refused(lambda: get(server, tmp_path / "file"))
    assert names(tmp_path) == []


def test_a_redirect_does_not_leave_https() -> None:
    request = Request("https://example.org/model")
    with pytest.raises(RefusedDownloadError, match="a redirect away from https"):
        Redirects().redirect_request(request, None, 302, "Found", {}, "http://example.org/other")
