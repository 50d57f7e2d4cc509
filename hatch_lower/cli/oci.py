"""`hatch-lower oci` and `hatch-lower oci-unpack`: wheels in registries of container images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from hatch_lower.cli.arguments import FOLDER, json_option, wheel_argument
from hatch_lower.cli.fetch import model_sources
from hatch_lower.cli.output import Report, count, show_report
from hatch_lower.driver.contents import find_contents
from hatch_lower.driver.oci.layout import Descriptor
from hatch_lower.driver.oci.pack import FILE_PATH, TITLE, Packed, pack_wheel
from hatch_lower.driver.oci.unpack import unpack_artifact
from hatch_lower.errors import size_text
from hatch_lower.format.weights import WeightsSource
from hatch_lower.hatch.terminal import table_lines

PLACE = click.Path(path_type=Path)


@click.command()
@wheel_argument
@click.option("--to", required=True, type=PLACE, help="The layout: a new folder, or one with other artifacts.")
@click.option("--tag", help="The artifact's tag. Default: the wheel's version.")
@click.option(
    "--weights", "with_weights", is_flag=True, help="Also weights outside of the wheel; they are fetched if missing."
)
@click.option("--from", "origins", multiple=True, metavar="URL|PATH", help="Where such weights are, as for `fetch`.")
@json_option
def oci(wheel: Path, to: Path, tag: str | None, with_weights: bool, origins: tuple[str, ...], as_json: bool) -> None:
    """Write a wheel as an OCI artifact for registries.

    The artifact is for registries of container images, and follows the ModelPack specification. Weights are layers of
    their own: a registry stores equal weights once. `skopeo copy oci:LAYOUT:TAG docker://…` and `oras cp
    --from-oci-layout` send the artifact.
    """
    packed = pack_wheel(wheel, to, tag, fetched_weights(wheel, origins) if with_weights or origins else [])
    report = {"tag": packed.tag, "digest": f"sha256:{packed.manifest.sha256}", "layers": layer_reports(packed)}
    show_report(report, as_json, lambda found: packed_lines(found, to))


def fetched_weights(wheel: Path, origins: Sequence[str]) -> list[tuple[WeightsSource, Path]]:
    from hatch_lower.runtime.obtain import fetch_sources  # imports libraries for connections, which takes long

    sources = {source.sha256: source for source in model_sources(find_contents(wheel), None, str(wheel))}
    files = fetch_sources(list(sources.values()), None, origins)
    return [(source, file.path) for source, file in zip(sources.values(), files, strict=True)]


def layer_reports(packed: Packed) -> list[Report]:
    return [
        {"type": layer.type, "size": layer.size, "digest": f"sha256:{layer.sha256}", "name": layer_name(layer)}
        for layer in packed.layers
    ]


def layer_name(layer: Descriptor) -> str:
    return layer.annotations.get(FILE_PATH) or layer.annotations[TITLE]


def packed_lines(report: Report, layout: Path) -> Iterator[str]:
    rows = [("layer", "size", "digest")]
    rows += [(layer["name"], size_text(layer["size"]), f"{layer['digest'][:19]}…") for layer in report["layers"]]
    yield from table_lines(rows, right=[1])
    yield ""
    yield f"{layout}:{report['tag']}  {report['digest']}"


@click.command("oci-unpack")
@click.argument("layout", type=FOLDER)
@click.option("--to", required=True, type=PLACE, help="A new folder for the packages.")
@click.option("--tag", help="The artifact, if the layout has several.")
def oci_unpack(layout: Path, to: Path, tag: str | None) -> None:
    """Unpack an OCI artifact of `hatch-lower oci`.

    Python imports the packages from the folder.
    Each layer is compared with its digest, and each file with the RECORD of the wheel.
    """
    unpacked = unpack_artifact(layout, to, tag)
    click.echo(f"{count(unpacked.files, 'file')}, {size_text(unpacked.size)}; add the folder to `PYTHONPATH`: {to}")
    if unpacked.weights is not None:
        click.echo(f"where the models run, set HATCH_LOWER_WEIGHTS to {unpacked.weights.absolute()}")
