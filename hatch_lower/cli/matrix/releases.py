"""The released versions of a distribution, from indexes with the simple interface (PEP 503, PEP 691) or folders."""

from __future__ import annotations

import base64
import http.client
import json
import os
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.tags import Tag, sys_tags
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion, Version

from hatch_lower import __version__
from hatch_lower.cli.matrix.places import IndexPlaces, own_path, shown
from hatch_lower.config.requirements import read_requirement
from hatch_lower.errors import FetchError
from hatch_lower.frozen import Frozen
from hatch_lower.runtime.origins import RefusedDownloadError, make_opener, netrc_headers
from hatch_lower.timeouts import call_within

JSON = "application/vnd.pypi.simple.v1+json"
ACCEPT = f"{JSON}, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
SILENT_SECONDS, PAGE_SECONDS = 60.0, 300.0  # longest silence, and longest time for a page
MOST_BYTES = 1 << 27  # of a page; the page of a project with thousands of files has a few MB


class IndexFile(Frozen):
    """A file on an index's page: its name, the versions of Python that it requires, and whether it was yanked."""

    name: str
    requires_python: str = ""
    yanked: bool = False


class Release(Frozen):
    """A version, with the reason why no wheel of the version can be installed here; empty if one can."""

    version: Version
    reason: str = ""


def find_releases(project: str, places: IndexPlaces) -> list[Release]:
    """Return the final releases of a distribution in ascending order; yanked files do not count.

    Raises `FetchError` if an index or a page cannot be read.
    """
    files = [file for url in places.indexes for file in files_on_index(url, project, places)]
    files += [file for link in places.links for file in files_at_link(link, places)]
    constraints = list(constraints_on(project, places.constraints))
    return [
        Release(each.version, each.reason or refusing_constraint(each.version, constraints))
        for each in releases_of(project, files, list(sys_tags()))
    ]


def constraints_on(project: str, paths: Iterable[str]) -> Iterator[Requirement]:
    """Yield the constraints on a distribution in an installer's files; the installer itself reports a missing file."""
    for path in filter(None, map(own_path, paths)):
        lines = Path(path).read_text("utf-8", "replace").splitlines() if os.path.isfile(path) else []
        for line in lines:
            found = read_requirement(line.partition(" #")[0].strip())
            if found is not None and canonicalize_name(found.name) == canonicalize_name(project):
                yield from [found] if found.marker is None or found.marker.evaluate() else []


def refusing_constraint(version: Version, constraints: Iterable[Requirement]) -> str:
    refusing = [str(each) for each in constraints if not each.specifier.contains(version)]
    return f"the installer's constraint `{refusing[0]}` excludes it" if refusing else ""


def releases_of(project: str, files: Iterable[IndexFile], tags: list[Tag]) -> list[Release]:
    found: dict[Version, list[tuple[IndexFile, frozenset[Tag]]]] = {}
    for file in dict.fromkeys(files):
        parsed = None if file.yanked else parse_name(file.name)
        if parsed is None or parsed[0] != canonicalize_name(project):
            continue
        _, version, its_tags = parsed
        if not version.is_prerelease:
            # `torch==2.13.0` takes the build `2.13.0+cpu`
            found.setdefault(Version(version.public), []).append((file, its_tags))
    return [Release(version, missing_wheel(found[version], tags)) for version in sorted(found)]


def parse_name(name: str) -> tuple[str, Version, frozenset[Tag]] | None:
    """Return distribution, version and tags of a file, without tags for a source distribution; `None` for others."""
    try:
        if name.endswith(".whl"):
            project, version, _, tags = parse_wheel_filename(name)
            return project, version, tags
        if name.endswith((".tar.gz", ".zip")):
            return *parse_sdist_filename(name), frozenset()
    except (InvalidWheelFilename, InvalidSdistFilename, InvalidVersion):
        pass
    return None


def missing_wheel(files: list[tuple[IndexFile, frozenset[Tag]]], tags: list[Tag]) -> str:
    """Return the reason why no file is a wheel for this interpreter; empty if a file is."""
    wheels = [(file, its_tags) for file, its_tags in files if its_tags]
    if not wheels:
        return "there is only a source distribution"
    fitting = [file for file, its_tags in wheels if not its_tags.isdisjoint(tags)]
    if any(takes_python(file.requires_python) for file in fitting):
        return ""
    here = f"{tags[0].interpreter} on {tags[0].platform}"
    if fitting:
        return f"requires Python {fitting[0].requires_python}, and {sys.version.split()[0]} is here"
    systems = {tag.platform for _, its_tags in wheels for tag in its_tags}
    if systems.isdisjoint(tag.platform for tag in tags):
        return f"there is no wheel for {tags[0].platform}"
    pythons = sorted(
        {tag.interpreter for _, its_tags in wheels for tag in its_tags}, key=lambda name: (len(name), name)
    )
    return f"there is no wheel for {here}; wheels are for {', '.join(pythons)}"


def takes_python(text: str) -> bool:
    try:
        return SpecifierSet(text).contains(".".join(map(str, sys.version_info[:3])), prereleases=True)
    except InvalidSpecifier:  # installers ignore a wrong value
        return True


def files_on_index(index: str, project: str, places: IndexPlaces) -> Iterator[IndexFile]:
    url = f"{index.rstrip('/')}/{canonicalize_name(project)}/"
    if path := own_path(index):
        page = Path(path, canonicalize_name(project))
        if page.is_dir():
            names = page / "index.html"
            yield from files_in_html(names.read_text("utf-8")) if names.is_file() else files_in_folder(page)
        elif not Path(path).is_dir():
            raise unreachable(index, "there is no such folder")
        return
    data, kind = fetch_page(url, places)
    yield from files_in_json(data, url) if kind == JSON else files_in_html(data.decode("utf-8", "replace"))


def files_at_link(link: str, places: IndexPlaces) -> Iterator[IndexFile]:
    """Yield the files of a folder, or the files that a page links to."""
    path = own_path(link)
    if not path:
        yield from files_in_html(fetch_page(link, places)[0].decode("utf-8", "replace"))
    elif os.path.isdir(path):
        yield from files_in_folder(Path(path))
    elif os.path.isfile(path):
        yield from files_in_html(Path(path).read_text("utf-8"))
    # installers ignore a folder that is missing


def files_in_folder(folder: Path) -> Iterator[IndexFile]:
    return (IndexFile(path.name) for path in sorted(folder.iterdir()) if path.is_file())


def fetch_page(url: str, places: IndexPlaces) -> tuple[bytes, str]:
    """Return the bytes and the type of a page; no bytes for a page that is missing (404)."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https"):
        raise unreachable(url, f"the scheme `{parts.scheme}` is not http, https or file")
    bare = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    request = urllib.request.Request(bare, headers={"Accept": ACCEPT, "User-Agent": f"hatch-lower/{__version__}"})
    for name, value in (login_headers(parts) or netrc_headers(bare)).items():
        request.add_unredirected_header(name, value)

    def read() -> tuple[bytes, str]:
        with make_opener(places.certificates).open(request, timeout=SILENT_SECONDS) as answer:
            return answer.read(MOST_BYTES + 1), answer.headers.get_content_type()

    try:
        data, kind = call_within(PAGE_SECONDS, read, TimeoutError(f"no whole page after {PAGE_SECONDS:.0f} s"))
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 404:
            return b"", ""
        raise unreachable(url, f"HTTP status {error.code} ({error.reason})") from error
    except (OSError, ValueError, http.client.HTTPException, RefusedDownloadError) as error:
        raise unreachable(url, str(getattr(error, "reason", "") or error)) from error
    if len(data) > MOST_BYTES:
        raise unreachable(url, f"more than {MOST_BYTES} bytes")
    return data, kind


def login_headers(parts: urllib.parse.SplitResult) -> Mapping[str, str]:
    """Return the header for the user and the password in an URL; empty without a user."""
    if not parts.username:
        return {}
    text = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
    return {"Authorization": f"Basic {base64.b64encode(text.encode()).decode()}"}


def files_in_json(data: bytes, url: str) -> Iterator[IndexFile]:
    try:
        listed = json.loads(data)["files"]
        for file in listed:
            # `yanked` is a flag, or the reason
            yield IndexFile(str(file["filename"]), str(file.get("requires-python") or ""), bool(file.get("yanked")))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise unreachable(url, f"no page of the simple interface: {type(error).__name__}: {error}") from error


class Anchors(HTMLParser):
    """Collects the files that a page links to."""

    def __init__(self) -> None:
        super().__init__()
        self.files: list[IndexFile] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == "a" and values.get("href"):
            path = urllib.parse.urlsplit(values["href"] or "").path
            name = urllib.parse.unquote(path.rpartition("/")[2])
            self.files.append(IndexFile(name, values.get("data-requires-python") or "", "data-yanked" in values))


def files_in_html(text: str) -> list[IndexFile]:
    parser = Anchors()
    parser.feed(text)
    return parser.files


def unreachable(url: str, found: str) -> FetchError:
    return FetchError(
        "the index of packages cannot be read",
        where=shown(url),
        found=found,
        hint="name an index that this machine reaches: `index-url` or `find-links` of pip's settings, or the variables "
        "`PIP_INDEX_URL` and `PIP_FIND_LINKS`; a login stands in the URL or in the file `.netrc`",
    )
