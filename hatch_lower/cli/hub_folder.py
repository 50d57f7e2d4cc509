"""`hatch-lower hub-folder`: a wheel as a folder that is uploaded to the Hugging Face hub."""

from __future__ import annotations

import shutil
from pathlib import Path

import click

from hatch_lower.cli.arguments import wheel_argument
from hatch_lower.cli.wheels import UNKNOWN, wheel_version
from hatch_lower.driver.contents import find_contents, sbom_text
from hatch_lower.driver.new_folder import folder_in_place
from hatch_lower.driver.opened_wheel import open_wheel
from hatch_lower.driver.sbom.markdown import CardFacts, card_page, components_of_models
from hatch_lower.driver.whole_wheel import distribution_headers, refuse_changed_wheel
from hatch_lower.errors import ProgramError
from hatch_lower.format.codec import parse_json, refuse_damaged_file
from hatch_lower.format.results import SBOM_FILE


@click.command("hub-folder")
@wheel_argument
@click.option("--to", required=True, type=click.Path(path_type=Path), help="A new folder.")
def hub_command(wheel: Path, to: Path) -> None:
    """Write a wheel as a folder for the Hugging Face hub.

    The folder has the wheel, its SBOM, and a model card made of the SBOM.
    `hf upload ORG/NAME FOLDER` sends the folder.
    """
    files = write_hub_folder(wheel, to)
    click.echo(f"{to}: {', '.join(files)}")


def write_hub_folder(wheel: Path, folder: Path) -> list[str]:
    """Write the folder, completely or not at all; return the names of its files."""
    refuse_other_name(wheel)
    find_contents(wheel)
    sbom = sbom_text(wheel)
    opened = open_wheel(wheel)
    metadata = distribution_headers(opened)
    refuse_changed_wheel(opened)
    licence = metadata["License-Expression"] or metadata["License"] or ""
    facts = CardFacts(metadata["Name"], metadata["Version"], metadata["Summary"] or "", licence, wheel.name)
    where = f"{wheel.name}: {SBOM_FILE}"
    document = parse_json(sbom.encode(), where)
    if not isinstance(document, dict) or not components_of_models(document):
        refuse_damaged_file(where, "no component of a model")
    page = card_page(document, facts)
    with folder_in_place(folder, "files of the hub") as unfinished:
        (unfinished / "README.md").write_text(page, encoding="utf-8")
        (unfinished / SBOM_FILE).write_text(sbom, encoding="utf-8")
        shutil.copyfile(wheel, unfinished / wheel.name)
    return sorted(path.name for path in folder.iterdir())


def refuse_other_name(wheel: Path) -> None:
    """Raise `ProgramError` for a name with which pip would not install the file from the hub."""
    if wheel_version(wheel) == UNKNOWN:
        raise ProgramError(
            "pip does not install a file of this name",
            where=str(wheel),
            found="not the name of a wheel, or the name of a wheel variant",
            hint="name the wheel as `hatch build` named it, without a variant's label",
        )
