"""Fetch the JavaScript of the report page and of the documentation: `python tools/vendored.py`, with npm on the path.

The tables `vendor.json` in the folders name each package with its version, the digest in npm's registry, and the files
taken from the package with their digests. For another version, change `version`, `integrity` and run with `--new`.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FOLDERS = (ROOT / "hatch_lower" / "cli" / "page" / "vendor", ROOT / "docs" / "vendor")
TABLE = "vendor.json"


def fetch(package: str, version: str, integrity: str, work: Path) -> Path:
    """Return the unpacked contents of a package of npm whose digest is the expected one."""
    npm = shutil.which("npm")
    if npm is None:
        sys.exit("npm is not installed")
    command = [npm, "pack", "--silent", "--pack-destination", str(work), f"{package}@{version}"]
    subprocess.run(command, check=True, cwd=work, stdout=subprocess.DEVNULL)
    (archive,) = work.glob("*.tgz")
    found = "sha512-" + base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    if found != integrity:
        sys.exit(f"{package} {version} has another digest than {TABLE} says: {found}")
    with tarfile.open(archive) as file:
        file.extractall(work, filter="data")
    return work / "package"


def take(entry: dict[str, Any], package: Path, folder: Path, *, is_new: bool) -> None:
    """Copy a package's files into the folder, each with the digest that the table has."""
    for name, file in entry["files"].items():
        data = (package / file["from"]).read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        if not is_new and digest != file["sha256"]:
            sys.exit(f"{entry['package']}: {file['from']} has another sha256 than {TABLE} says: {digest}")
        file["sha256"] = digest
        (folder / name).write_bytes(data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--new", action="store_true", help="write the digests of the files instead of comparing them")
    is_new = parser.parse_args().new
    for folder in FOLDERS:
        table = json.loads((folder / TABLE).read_text(encoding="utf-8"))
        for entry in table:
            with tempfile.TemporaryDirectory() as work:
                package = fetch(entry["package"], entry["version"], entry["integrity"], Path(work))
                take(entry, package, folder, is_new=is_new)
        (folder / TABLE).write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
