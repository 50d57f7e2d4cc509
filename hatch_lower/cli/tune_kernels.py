"""`hatch-lower tune-kernels`: the fastest configuration of each kernel on the GPU of this machine, in a file."""

from __future__ import annotations

from pathlib import Path

import click

from hatch_lower.cli.arguments import OUTPUT, root_option
from hatch_lower.cli.bench import check_folders, progress
from hatch_lower.cli.output import count, show, write_output_file
from hatch_lower.hatch.outside import open_project

FILE = "kernels.json"


@click.command("tune-kernels")
@click.option("--recipe", "recipes", multiple=True, help="A recipe. Repeatable. Default: all with the backend `cuda`.")
@click.option("--output", type=OUTPUT, metavar="FILE", help=f"The file. Default: `{FILE}` beside pyproject.toml.")
@root_option
def tune_kernels(recipes: tuple[str, ...], output: Path | None, root: Path) -> None:
    """Measure the kernels of recipes for CUDA on a GPU.

    The project's models are exported and lowered here. The GPU of this machine measures each kernel in each
    configuration that inductor suggests. FILE has the fastest configurations, beside those of other architectures. A
    build uses FILE, and needs no GPU, if a recipe has `{ name = "cuda", kernels = { file = "kernels.json" } }`.
    """
    from hatch_lower.cli.measure.kernels import find_gpu_here, read_table, settings_that_measure, tuned
    from hatch_lower.driver.signals import ending_on_signals

    project = open_project(root)
    path = output or project.settings.root / FILE
    check_folders(path)
    arch, table = find_gpu_here(), read_table(path)
    settings = settings_that_measure(project.settings, recipes, arch)
    with ending_on_signals(), progress() as tell:
        tell(f"measuring kernels on {arch}")
        found = tuned(settings, project.view, table)
    write_output_file(path, found.text, "file of configurations")
    other = f"{found.other} faster in another configuration than the first"
    show([f"{path}: {count(found.kernels, 'kernel')} measured on {found.gpu}, {other}"])
