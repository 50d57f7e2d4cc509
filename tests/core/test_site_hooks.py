"""The hooks of the documentation's site, without mkdocs: the texts of copy buttons, and the script of diagrams."""

from __future__ import annotations

import html
import re
from types import SimpleNamespace

import pytest
from site_hooks import commands_of, on_page_content, with_commands
from support.console import FENCE, steps_of
from support.venv import REPOSITORY

PAGES = sorted([*(REPOSITORY / "docs").rglob("*.md"), REPOSITORY / "README.md"])
SESSION = (
    '<div class="language-console highlight"><pre><span></span><code><span class="gp">$ </span>pip install '
    '<span class="s2">&quot;net[a]&quot;</span>\n<span class="go">done &lt;1 s&gt;</span>\n'
    '<span class="gp">$ </span>net \\\n<span class="go">    --all</span>\n</code></pre></div>'
)
SCRIPT = SimpleNamespace(url_relative_to=lambda file: "../vendor/mermaid.min.js")
DIAGRAM = '<pre class="mermaid"><code>flowchart LR</code></pre>'


def content_of(page: str, script: object) -> str:
    files = SimpleNamespace(get_file_from_path=lambda path: script)
    return on_page_content(page, page=SimpleNamespace(file=None), config=None, files=files)


def test_a_session_is_copied_without_prompts_and_output() -> None:
    (copied,) = re.findall(r'data-copy="([^"]*)"', with_commands(SESSION))
    assert html.unescape(copied) == 'pip install "net[a]"\nnet \\\n    --all'
    assert re.sub(r' data-copy="[^"]*"', "", with_commands(SESSION)) == SESSION


def test_a_block_without_prompts_is_copied_whole() -> None:
    block = SESSION.replace("$ ", "")
    assert with_commands(block) == block
    other = SESSION.replace("language-console", "language-python")
    assert with_commands(other) == other


def test_every_session_of_the_pages_is_copied_as_its_commands() -> None:
    seen = 0
    for page in PAGES:
        for block in FENCE.finditer(page.read_text()):
            if block["language"] not in ("console", "text") or block["title"]:
                continue
            commands = [step.command for step in steps_of(block[0].replace("```text", "```console", 1))]
            assert commands_of(block["text"]).replace("\\\n", "").splitlines() == commands, page.name
            seen += len(commands)
    assert seen > 50


def test_only_sessions_have_prompts() -> None:
    for page in PAGES:
        for block in FENCE.finditer(page.read_text()):
            if block["language"] not in ("console", "text"):
                assert not re.search(r"^\$ ", block["text"], re.MULTILINE), f"{page.name}: {block[0][:80]}"


def test_a_page_with_a_diagram_loads_the_script_of_the_site() -> None:
    scripts = re.findall(r'<script src="([^"]*)"></script>', content_of(DIAGRAM, SCRIPT))
    assert scripts == ["../vendor/mermaid.min.js"]
    assert content_of("<p>no diagram</p>", SCRIPT) == "<p>no diagram</p>"


def test_a_site_without_the_script_is_not_built() -> None:
    with pytest.raises(FileNotFoundError, match=r"docs/vendor/mermaid\.min\.js is missing"):
        content_of(DIAGRAM, None)
