"""Hooks of the documentation's site, which `mkdocs.yml` names: copies of commands, and diagrams without a network."""

from __future__ import annotations

import html
import re
from typing import Any

__all__ = ["commands_of", "on_page_content", "with_commands"]

MERMAID = "vendor/mermaid.min.js"
# guides show sessions that no test can run as text
SESSION = re.compile(r'<div class="language-(?:console|text) highlight">(?=(.*?)</div>)', re.DOTALL)
PROMPT = "$ "


def on_page_content(content: str, page: Any, config: Any, files: Any) -> str:
    """Return a page's HTML in which copy buttons copy commands, and diagrams are drawn by the site's own script.

    mkdocs calls this function. The theme fetches mermaid from a server only where a page has not loaded mermaid.
    """
    content = with_commands(content)
    if 'class="mermaid"' in content:
        script = files.get_file_from_path(MERMAID)
        if script is None:  # source distributions lack the file
            raise FileNotFoundError(f"docs/{MERMAID} is missing: run `python tools/vendored.py`")
        content += f'\n<script src="{script.url_relative_to(page.file)}"></script>\n'
    return content


def with_commands(content: str) -> str:
    """Return HTML in which each shell session has its commands as the text that the theme's copy button copies."""

    def opened(match: re.Match[str]) -> str:
        session = html.unescape(re.sub(r"<[^>]*>", "", match[1]))
        commands = html.escape(commands_of(session)).replace("\n", "&#10;")
        return match[0].replace(">", f' data-copy="{commands}">') if commands else match[0]

    return SESSION.sub(opened, content)


def commands_of(session: str) -> str:
    """Return the commands of a shell session without prompts and output; no commands if no line has a prompt."""
    commands, continues = [], False
    for line in session.splitlines():
        if continues or line.startswith(PROMPT):
            commands.append(line if continues else line.removeprefix(PROMPT))
            continues = line.endswith("\\")
    return "\n".join(commands)
