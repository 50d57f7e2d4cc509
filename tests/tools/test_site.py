"""The documentation's site in a browser without a network: diagrams, copy buttons, links between pages."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.venv import REPOSITORY, run

pytest.importorskip("material", reason="mkdocs-material is not installed")
pytest.importorskip("mkdocs_click", reason="mkdocs-click is not installed")
pytest.importorskip("mkdocstrings", reason="mkdocstrings is not installed")
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [pytest.mark.processes, pytest.mark.slow]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--no-directory-urls"]
    environment = {"NO_MKDOCS_2_WARNING": "1"}
    run([*command, "--site-dir", folder], cwd=REPOSITORY, environment=environment).check()
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if BROWSER is None:
        pytest.skip("no Chromium is installed")
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield chromium
        chromium.close()


def test_no_page_names_a_script_style_or_image_elsewhere(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        tags = re.findall(r"<(?:script|link|img|iframe|source)\b[^>]*>", page.read_text(encoding="utf-8"))
        assert [tag for tag in tags if re.search(r'(?:src|href)="?(?:https?:)?//', tag)] == [], page.name
    for style in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(?:https?:)?//|@import", style.read_text(encoding="utf-8")), style.name


def test_diagrams_are_drawn_without_a_network(site: Path, browser: Any) -> None:
    page = browser.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto((site / "architecture.html").as_uri())
    page.wait_for_selector("div.mermaid", state="attached", timeout=20_000)  # the theme replaces `pre` by a drawing
    assert page.locator("div.mermaid").bounding_box()["height"] > 100
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
    assert any(url.endswith("vendor/mermaid.min.js") for url in asked)


def test_copy_buttons_copy_commands(site: Path, browser: Any) -> None:
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.goto((site / "tutorial.html").as_uri())
    page.locator(".language-console").nth(1).hover()
    page.locator(".language-console").nth(1).locator("button[data-md-type=copy]").click()
    assert page.evaluate("navigator.clipboard.readText()") == "touch src/digits/__init__.py\nhatch build -t wheel"


def test_a_page_leads_to_the_next_and_the_previous_page(site: Path) -> None:
    page = (site / "tutorial.html").read_text(encoding="utf-8")
    links = dict(re.findall(r'<a href="([^"]*)" class="md-footer__link md-footer__link--(\w+)"', page))
    assert links == {"index.html": "prev", "guides/transformers.html": "next"}
