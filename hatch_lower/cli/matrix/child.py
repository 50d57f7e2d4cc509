"""The process that checks a recipe of an installed wheel: its rows go into a file, one JSON value a line."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path

from hatch_lower.runtime.check import CheckRow, check_packaged_model
from hatch_lower.runtime.files import PackagedFolder
from hatch_lower.runtime.installed import models_of
from hatch_lower.runtime.numbers import Tolerance


def main(arguments: Sequence[str]) -> None:
    """Check a recipe. The arguments are a request, as JSON, and the file to write."""
    request = json.loads(arguments[0])
    owner, model, recipe = request["distribution"], request["model"], request["recipe"]
    tolerance = None if request["tolerance"] is None else Tolerance(*request["tolerance"])
    source = models_of(owner, distribution(owner))[model].source
    assert isinstance(source, PackagedFolder)  # no editable install
    with Path(arguments[1]).open("w", encoding="utf-8") as file:
        file.write(json.dumps({"installed": installed_versions(request["distributions"])}) + "\n")
        for row in check_packaged_model(with_recipe(source, model, recipe), model, None, tolerance, request["device"]):
            file.write(json.dumps(row_json(row)) + "\n")
            file.flush()  # known after a crash in the next method


def with_recipe(folder: PackagedFolder, model: str, recipe: str) -> PackagedFolder:
    """Return a folder whose manifest lists a single recipe of the model: other recipes need not run here."""
    entry = folder.manifest.models[model]
    alone = replace(entry, order=(recipe,), recipes={recipe: entry.recipes[recipe]})
    return replace(folder, manifest=replace(folder.manifest, models={model: alone}))


def installed_versions(names: Sequence[str]) -> dict[str, str]:
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # another build of the library
            continue
    return found


def row_json(row: CheckRow) -> dict[str, object]:
    largest = "inf" if row.largest_error == math.inf else row.largest_error
    return {"method": row.method, "status": row.status, "detail": row.detail, "largest_error": largest}


if __name__ == "__main__":
    main(sys.argv[1:])
