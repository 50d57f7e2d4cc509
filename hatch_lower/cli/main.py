"""The commands, and the only place where an error becomes text and an exit status."""

from __future__ import annotations

import signal
import warnings

import click

from hatch_lower import __version__
from hatch_lower.cli.bench import bench
from hatch_lower.cli.cache import cache
from hatch_lower.cli.check import check
from hatch_lower.cli.diff import diff
from hatch_lower.cli.explain import explain
from hatch_lower.cli.fetch import fetch
from hatch_lower.cli.hub_folder import hub_command
from hatch_lower.cli.incomplete import EXTRAS, incomplete_error
from hatch_lower.cli.init import init
from hatch_lower.cli.inspect import inspect
from hatch_lower.cli.localize import localize
from hatch_lower.cli.lower import lower
from hatch_lower.cli.new_backend import new_backend
from hatch_lower.cli.oci import oci, oci_unpack
from hatch_lower.cli.output import show_error, show_text
from hatch_lower.cli.plan import plan
from hatch_lower.cli.precision import precision
from hatch_lower.cli.profile import profile
from hatch_lower.cli.report import report
from hatch_lower.cli.reproduce import reproduce
from hatch_lower.cli.serve_files import serve_files
from hatch_lower.cli.tune import tune
from hatch_lower.cli.tune_kernels import tune_kernels
from hatch_lower.cli.verify_attestation import verify_attestation
from hatch_lower.errors import LowerError, ProcessError, reading_hint

INTERRUPTED = 128 + signal.SIGINT  # as of a shell: 1 is a verdict of several commands


class Commands(click.Group):
    """A group of commands that turn a `LowerError` into a message and status 1."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            with warnings.catch_warnings():
                # torch warns at import if NumPy is missing; no command needs NumPy unless an engine requires it
                warnings.filterwarnings("ignore", r"Failed to initialize NumPy", UserWarning)
                return super().invoke(ctx)
        except LowerError as error:
            show_error(error)
            ctx.exit(1)
        except KeyboardInterrupt:
            click.echo("\nhatch-lower: interrupted", err=True)
            ctx.exit(INTERRUPTED)
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package not in EXTRAS:
                raise
            show_error(incomplete_error(package))
            ctx.exit(1)
        except ImportError as error:
            if reading_hint(str(error), "") == "":
                raise
            show_error(ProcessError("a library cannot be loaded", found=str(error), hint=reading_hint(str(error), "")))
            ctx.exit(1)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="hatch-lower")
def main() -> None:
    """Set up projects with lowered PyTorch programs, and look into such programs and their builds."""


@main.command()
def schema() -> None:
    """Print a JSON schema of the hook's settings."""
    from hatch_lower.config.schema import schema_text

    show_text(schema_text())


for command in (
    *(init, inspect, report, diff, check, localize, precision, fetch),
    *(oci, oci_unpack, hub_command, verify_attestation, serve_files),
    *(explain, plan, lower, reproduce, bench, profile, tune, tune_kernels, cache, new_backend),
):
    main.add_command(command)
