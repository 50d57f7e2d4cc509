"""Draw the picture of the report page in the documentation: `python tools/report_picture.py WHEEL PICTURE`.

WHEEL is a wheel of `examples/project`. The picture shows the page's graph, unfolded, with an operation chosen. Needs
playwright, and Chromium on the path.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

CHOSEN = "max_pool2d"
SIZE = (1200, 700)
LIMIT = 150_000  # bytes of a picture that each visitor of the site loads


def main(wheel: Path, picture: Path) -> None:
    names = ("chromium", "chromium-browser", "google-chrome")
    browser = next((found for name in names if (found := shutil.which(name))), None)
    if browser is None:
        sys.exit("Chromium is not installed")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.html"
        subprocess.run([sys.executable, "-m", "hatch_lower", "report", wheel, "-o", path], check=True)
        with sync_playwright() as started:
            chromium = started.chromium.launch(executable_path=browser, args=["--no-sandbox"])
            width, height = SIZE
            page = chromium.new_page(viewport={"width": width, "height": height}, color_scheme="light")
            page.goto(path.as_uri())
            page.click("#tab-graph")
            page.select_option("#method", "forward")
            page.click("#expand")
            page.fill("#search", CHOSEN)
            page.press("#search", "Enter")
            page.focus("#canvas")
            for _ in range(2):
                page.keyboard.press("+")
            page.evaluate("document.activeElement.blur()")
            page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
            data = page.screenshot()
            chromium.close()
    if len(data) > LIMIT:
        sys.exit(f"the picture has {len(data)} bytes, more than {LIMIT}")
    picture.parent.mkdir(parents=True, exist_ok=True)
    picture.write_bytes(data)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
