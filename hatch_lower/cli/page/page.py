"""The HTML page: data and scripts in a single file that loads no other files and shows all data as text."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Sequence
from importlib.resources import files

from hatch_lower.cli.page.operations import Facts
from hatch_lower.errors import PackageError

STYLE = "page.css"
# in the order of execution
SCRIPTS = (
    *("vendor/dagre.min.js", "words.js", "tree.js", "layout.js", "canvas.js"),
    *("view.js", "source.js", "tables.js", "times.js", "page.js"),
)
LICENCES = ("vendor/dagre.LICENSE",)  # license texts accompany the code
MAP_COMMENT = "//# sourceMappingURL="  # browsers would load the named file
# characters that end a script element, or a line for parsers older than JSON
ESCAPES = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026", 0x2028: "\\u2028", 0x2029: "\\u2029"}


def page_text(data: Facts) -> str:
    style, scripts = resource(STYLE), [resource(name) for name in SCRIPTS]
    title = html.escape(f"{data['distribution']} {data['version']}")
    licences = "\n".join(f"{name}:\n{resource(name)}" for name in LICENCES)
    blocks = "\n".join(f"<script>{script}</script>" for script in scripts)
    return (
        f'<!doctype html>\n<!--\n{licences}-->\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy([style], scripts)}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="color-scheme" content="light dark">\n<meta name="generator" content="hatch-lower">\n'
        f'<link rel="icon" href="data:,">\n<title>{title}</title>\n<style>{style}</style>\n</head>\n'
        f"<body>\n{resource('page.html')}"
        f'<script type="application/json" id="data">{data_text(data)}</script>\n{blocks}\n</body>\n</html>\n'
    )


def data_text(data: Facts) -> str:
    """Return JSON that an HTML parser reads as the text of its element only."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).translate(ESCAPES)


def policy(styles: Sequence[str], scripts: Sequence[str]) -> str:
    """Return a Content-Security-Policy that allows these texts only, and no connection."""
    allowed = {"script-src": scripts, "style-src": styles}
    listed = [f"{kind} {' '.join(map(script_digest, texts))}" for kind, texts in allowed.items()]
    return "; ".join(["default-src 'none'", *listed, "img-src data:", "base-uri 'none'", "form-action 'none'"])


def script_digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def resource(name: str) -> str:
    text = (files("hatch_lower.cli.page") / name).read_text(encoding="utf-8")
    kept = "\n".join(line for line in text.split("\n") if not line.startswith(MAP_COMMENT))
    if "</script" in kept.lower() or "</style" in kept.lower():
        raise PackageError("a script or style contains its own closing tag", where=name)
    return kept
