"""The places where installers look for distributions, from the settings of pip and uv."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Mapping

from hatch_lower.errors import ConfigError
from hatch_lower.frozen import Frozen

PYPI = "https://pypi.org/simple/"
SECTIONS = ("global.", "install.", ":env:.")  # of pip's settings; a later section replaces values of an earlier one
ASK_SECONDS = 60.0


class IndexPlaces(Frozen):
    """URLs of indexes with the simple interface, the default first; folders and pages of files; other settings."""

    indexes: tuple[str, ...] = (PYPI,)
    links: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()  # files
    certificates: str = ""  # file; empty for the system's certificates

    def variables(self) -> dict[str, str]:
        """Return environment variables with which pip and uv look in these places, and in no others."""
        index, *more = self.indexes or ("",)
        both = {
            "PIP_FIND_LINKS": " ".join(self.links),
            "UV_FIND_LINKS": ",".join(self.links),
            "PIP_CONSTRAINT": " ".join(self.constraints),
            "UV_CONSTRAINT": " ".join(self.constraints),
            "PIP_CERT": self.certificates,
            "SSL_CERT_FILE": self.certificates,  # for uv
        }
        both |= {"PIP_EXTRA_INDEX_URL": " ".join(more), "UV_INDEX": " ".join(more)}
        both |= {"PIP_INDEX_URL": index, "UV_DEFAULT_INDEX": index} if index else {"PIP_NO_INDEX": "1"}
        if not index:
            both["UV_NO_INDEX"] = "1"
        if more:
            both["UV_INDEX_STRATEGY"] = "unsafe-best-match"  # as pip does: the best version of all indexes
        return {name: value for name, value in both.items() if value}


def read_places(environment: Mapping[str, str]) -> IndexPlaces:
    """Return the places that pip's settings name, and uv's environment variables; by default PyPI."""
    settings = pip_settings(environment)
    index = environment.get("UV_DEFAULT_INDEX") or environment.get("UV_INDEX_URL") or settings.get("index-url") or PYPI
    more = [settings.get("extra-index-url", ""), environment.get("UV_INDEX", "")]
    more.append(environment.get("UV_EXTRA_INDEX_URL", ""))
    # uv allows a name before an URL: `internal=https://…`
    urls = [index, *(url for text in more for url in text.split())]
    indexes = [url.partition("=")[2] if "=" in url.partition("://")[0] else url for url in urls]
    links = [*settings.get("find-links", "").split(), *environment.get("UV_FIND_LINKS", "").split(",")]
    if settings.get("no-index", "").lower() in ("1", "true", "yes", "on"):
        indexes = []
    return IndexPlaces(
        tuple(dict.fromkeys(indexes)),
        tuple(dict.fromkeys(link for link in links if link)),
        tuple(settings.get("constraint", "").split()),
        settings.get("cert", ""),
    )


def pip_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return pip's settings for installing; where pip is not installed, the settings of its variables alone."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "config", "list"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ASK_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError("pip's settings cannot be read", where="`pip config list`", found=str(error)) from error
    if done.returncode:
        if "No module named pip" in done.stderr:
            own = {name.removeprefix("PIP_"): value for name, value in environment.items() if name.startswith("PIP_")}
            return {name.lower().replace("_", "-"): value for name, value in own.items()}
        raise ConfigError("pip's settings cannot be read", where="`pip config list`", found=done.stderr.strip())
    return parse_settings(done.stdout)


def parse_settings(text: str) -> dict[str, str]:
    """Return settings by name from lines `section.name='value'`."""
    found: dict[str, str] = {}
    lines = [line.partition("=") for line in text.splitlines()]
    for section in SECTIONS:
        for name, _, value in lines:
            if name.startswith(section):
                found[name.removeprefix(section)] = str(ast.literal_eval(value))
    return found


def without_installer_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without variables of other environments, and without settings of an `IndexPlaces`."""
    left_out = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "PIP_NO_INDEX"}
    left_out |= {"PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_CONSTRAINT", "PIP_TARGET"}
    left_out |= {"PIP_REQUIRE_VIRTUALENV", "PIP_USER", "PIP_PREFIX", "UV_DEFAULT_INDEX", "UV_INDEX", "UV_FIND_LINKS"}
    return {name: value for name, value in environment.items() if name not in left_out}


def shown(url: str) -> str:
    """Return an URL without its user and password."""
    scheme, separator, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{separator}{host.rpartition('@')[2]}{slash}{path}" if separator else url


def own_path(link: str) -> str:
    """Return the path of a folder or a file on this machine; empty for an URL of another machine."""
    if link.startswith("file:"):
        from urllib.parse import urlsplit
        from urllib.request import url2pathname

        return url2pathname(urlsplit(link).path)
    return "" if "://" in link else os.path.expanduser(link)
