"""`hatch-lower audit`: stored results are checked by exporting a sample of models again."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hatch_lower.cli.output import show
from hatch_lower.cli.tables import count

if TYPE_CHECKING:
    from hatch_lower.build.audit import Audit


@click.command()
@click.option("--root", type=click.Path(path_type=Path), default=Path(), help="The project. Default: this folder.")
@click.option("--rate", type=click.FloatRange(0, 1), default=1.0, help="The share of models to audit. Default: all.")
@click.option("--seed", type=int, default=0, help="Chooses another sample; the number of a CI run, say.")
def audit(root: Path, rate: float, seed: int) -> None:
    """Export models whose stored result holds again, and fail if one comes out otherwise.

    Run it where the project is built, with what it is built with.
    """
    from hatch_lower.build.audit import audit as run_audit
    from hatch_lower.build.context import build_context
    from hatch_lower.cache.store import open_store
    from hatch_lower.events import LineReporter
    from hatch_lower.hatch.outside import open_project

    def say(line: str) -> None:
        show([line], err=True)

    project = open_project(root)
    store = open_store(os.environ, say)
    with tempfile.TemporaryDirectory(prefix="hatch-lower-") as work:
        context = build_context(project.settings, project.view, Path(os.path.realpath(work)), store, LineReporter(say))
        done = run_audit(context, rate, seed)
    show([audit_text(done, len(project.settings.models))])


def audit_text(done: Audit, models: int) -> str:
    """Return what an audit that found nothing wrong came to."""
    if not done.known:
        return f"nothing to audit: of {count(models, 'model')}, none has a stored result that holds"
    same = f"{count(len(done.audited), 'model')} came out the same"
    rest = [f"`{name}` cannot be compared" for name in done.skipped]
    left = len(done.known) - len(done.audited) - len(done.skipped)
    rest += [f"{left} not in the sample"] if left else []
    return "; ".join([f"of {count(len(done.known), 'stored result')}, {same}", *rest])
