"""The commands. Errors become text and an exit status here and nowhere deeper."""

from __future__ import annotations

import json
from typing import Any

import click

from hatch_lower import __version__
from hatch_lower.cli.audit import audit
from hatch_lower.cli.cache import cache
from hatch_lower.cli.check import check
from hatch_lower.cli.explain import explain
from hatch_lower.cli.new_backend import new_backend
from hatch_lower.cli.verify import verify
from hatch_lower.errors import LowerError, ProgramError, nearest

__all__ = ["main"]


class Commands(click.Group):
    """A group of commands that end with status 1 and one message where hatch-lower raises."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except LowerError as error:
            click.echo(f"{click.style('error:', fg='red', bold=True)} {error}", err=True)
            ctx.exit(1)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="hatch-lower")
def main() -> None:
    """Look into lowered PyTorch programs, and into what builds of them did and kept."""


@main.command()
@click.option("--markdown", is_flag=True, help="Print the reference page instead.")
def schema(markdown: bool) -> None:
    """Print a JSON schema of the hook's settings."""
    from hatch_lower.config_schema import reference_markdown, schema_text

    click.echo(reference_markdown() if markdown else schema_text(), nl=False)


@main.command()
@click.argument("name", metavar="WHEEL|FOLDER|NAME")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for other programs.")
@click.option(
    "--sbom", is_flag=True, help="Print the SBOM instead, as CycloneDX JSON: models, digests, licences, tools."
)
def inspect(name: str, as_json: bool, sbom: bool) -> None:
    """Show the lowered models of a wheel or a package."""
    if sbom:
        from hatch_lower.cli.sbom import sbom_text

        click.echo(sbom_text(name), nl=False)
        return
    from hatch_lower.cli.contents import find_contents
    from hatch_lower.cli.inspect import contents_lines, contents_report

    reports = [contents_report(each) for each in find_contents(name)]
    if as_json:
        click.echo(json.dumps(reports, indent=2, ensure_ascii=False))
        return
    for position, report in enumerate(reports):
        click.echo("\n".join([""] * (position > 0) + list(contents_lines(report))))


@main.command()
@click.argument("name", metavar="WHEEL|FOLDER|NAME")
@click.argument("method")
@click.option("--model", help="The model, where there are several.")
@click.option("--recipe", help="The recipe. Default: the first in load order.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for other programs.")
def debug(name: str, method: str, model: str | None, recipe: str | None, as_json: bool) -> None:
    """Show which source lines a method's instructions come from."""
    from hatch_lower.cli.contents import choose_model, choose_recipe, find_contents
    from hatch_lower.cli.debug import debug_lines, debug_report

    contents, model_name, entry = choose_model(find_contents(name), model)
    recipe_name = choose_recipe(model_name, entry, recipe)
    methods = contents.debug(entry.recipes[recipe_name]).methods
    if method not in methods:
        raise ProgramError(f"the model `{model_name}` has no such method", found=nearest(method, methods))
    rows = debug_report(methods[method])
    if as_json:
        report = {"model": model_name, "recipe": recipe_name, "method": method, "instructions": rows}
        click.echo(json.dumps(report, indent=2, ensure_ascii=False))
        return
    click.echo("\n".join([f"{model_name}.{method}, recipe {recipe_name}", "", *debug_lines(rows)]))


for command in (cache, check, explain, audit, verify, new_backend):
    main.add_command(command)
