"""`architectures_table.py FOLDER PATH`: write the results of `architectures.py FOLDER` into a page.

The tables replace the text between the lines `<!-- architectures -->` and `<!-- /architectures -->` of PATH.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from architecture_models import ARCHITECTURES, KINDS

__all__ = ["lines_of"]

ENGINES = ("portable", "aoti", "onnxruntime", "openvino")
LIBRARIES = {"transformers": "transformers", "torch": "torch", "onnxruntime": "ONNX Runtime", "openvino": "OpenVINO"}
MARKED = re.compile(r"(?<=<!-- architectures -->\n).*?(?=<!-- /architectures -->)", re.DOTALL)
HEAD = [f"| architecture | {' | '.join(f'`{each}`' for each in ENGINES)} |", f"|---|{'---|' * len(ENGINES)}"]
WHERE = re.compile(r"\d+ nodes from (?P<op>\S+) at (?P<line>\S+): (?P<reason>.*)", re.DOTALL)
PLACE = re.compile(r"where: (?:model `\w+`, method `(?P<method>\w+)`(?:, (?P<line>\S+))?|.*)")
FOUND = re.compile(r"found: (?P<found>.*?)(?=\n\s*to do:|\Z)", re.DOTALL)
LONGEST = 300  # characters of an error

Results = Mapping[str, Mapping[str, Any]]  # of the engines, by architecture


def main(folder: Path, path: Path) -> None:
    text = path.read_text()
    if len(MARKED.findall(text)) != 1:
        raise SystemExit(f"{path} must have the lines `<!-- architectures -->` and `<!-- /architectures -->` once")
    files = {name: folder / name / "result.json" for name in ARCHITECTURES}
    results = {name: json.loads(file.read_text()) for name, file in files.items() if file.exists()}
    versions = ", ".join(f"{title} {version(name).partition('+')[0]}" for name, title in LIBRARIES.items())
    lines = "\n".join(lines_of(results, versions))
    path.write_text(MARKED.sub(lambda _: lines + "\n", text))


def lines_of(results: Results, versions: str) -> Iterator[str]:
    """Yield the lines of the page's part: figures, the table, refusals, and reasons of several partitions."""
    yield f"With {versions}:"
    yield ""
    for engine in ENGINES:
        if tried := [found[engine] for found in results.values() if engine in found]:
            yield f"- {figures(engine, tried)}"
    for kind in KINDS:
        names = [name for name in results if ARCHITECTURES[name].kind == kind]
        if names:
            yield from ["", f"## {kind.capitalize()}", "", *HEAD]
        yield from (f"| `{name}` | {' | '.join(cell(results[name].get(each)) for each in ENGINES)} |" for name in names)
    yield from section("Refused or different", refusals(results))
    yield from section("Reasons of several partitions", cuts(results))


def figures(engine: str, tried: list[Mapping[str, Any]]) -> str:
    equal = sum(is_equal(each) for each in tried)
    built = [max(each["partitions"].values()) for each in tried if "partitions" in each]
    text = f"`{engine}`: {equal} of {len(tried)} build, and equal transformers"
    return (
        text if engine == "portable" else f"{text}; {sum(each <= 1 for each in built)} of {len(built)} in one partition"
    )


def is_equal(result: Mapping[str, Any]) -> bool:
    return "error" not in result and not result["unequal"]


def cell(result: Mapping[str, Any] | None) -> str:
    """Return the partitions of each method; a word for a result that is not equal, or that is missing."""
    if result is None:
        return "not tried"
    if "partitions" not in result:
        return "refused"
    counts = " and ".join(map(str, result["partitions"].values()))
    return counts if is_equal(result) else "fails" if "error" in result else "differs"


def section(title: str, rows: Mapping[str, list[str]]) -> Iterator[str]:
    """Yield a list of texts, each with its architectures."""
    if rows:
        yield from ["", f"## {title}", ""]
    for text, names in rows.items():
        yield f"- {', '.join(f'`{each}`' for each in dict.fromkeys(names))}: {text}"


def refusals(results: Results) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, engines in results.items():
        texts: dict[str, list[str]] = {}
        for engine, result in engines.items():
            if not is_equal(result):
                text = error_text(result["error"]) if "error" in result else "; ".join(result["unequal"])
                texts.setdefault(text, []).append(engine)
        for text, names in texts.items():
            which = "" if len(names) == len(engines) else f"with {', '.join(f'`{each}`' for each in names)}, "
            found.setdefault(which + text, []).append(name)
    return found


def error_text(error: str) -> str:
    """Return the title of an error, its line of source and its cause."""
    place, found = PLACE.search(error), FOUND.search(error)
    title = error.splitlines()[0]
    line = f", `{place['line']}`" if place and place["line"] else ""
    cause = f": {' '.join(found['found'].split())}" if found else ""
    return plain(f"{title}{line}{cause}"[:LONGEST])


def cuts(results: Results) -> dict[str, list[str]]:
    """Return the reasons of nodes outside of partitions, for methods with several, and the architectures of each."""
    found: dict[str, list[str]] = {}
    for name, engines in results.items():
        for result in engines.values():
            for method, count in result.get("partitions", {}).items():
                for text in result["outside"][method] if count > 1 else ():
                    if match := WHERE.fullmatch(text):
                        found.setdefault(plain(f"`{match['op']}`: {match['reason']}"), []).append(name)
    return found


def plain(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    main(*(Path(each).resolve() for each in sys.argv[1:]))
