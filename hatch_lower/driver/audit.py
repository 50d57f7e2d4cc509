"""The check that stored results still hold: models are exported again, elsewhere, and compared.

Level 1 takes a stored result while the recorded inputs of the export are unchanged. An input that cannot be recorded
(a clock, random numbers of the system) would make the result stale. So the audit exports a sample of the models with
a valid result again, with another hash seed, working directory and locale, and requires the same result.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hatch_lower.cache.store import Store
from hatch_lower.canonical import digest_of
from hatch_lower.config.settings import ModelSettings
from hatch_lower.driver.build import look_up
from hatch_lower.driver.context import BuildContext
from hatch_lower.driver.executor import export_models
from hatch_lower.driver.explain import method_changes
from hatch_lower.errors import CacheError
from hatch_lower.format.record import FORMS, ModelReport
from hatch_lower.frozen import Frozen

HASH_SEEDS = 4_294_967_295  # the largest that Python takes


class Audit(Frozen):
    """The scope of an audit without a difference."""

    known: tuple[str, ...]
    audited: tuple[str, ...]
    skipped: tuple[str, ...]


def audit_results(context: BuildContext, rate: float = 1.0, seed: int = 0) -> Audit:
    """Export a sample of the models with a valid stored result again; raise `CacheError` on a difference."""
    work = context.work
    context = replace(context, store=replace(context.store, mode="read-only"))
    known = look_up(context)
    held = {name: result.report for name, result in known.items() if result.report is not None}
    there = [model for model in context.settings.models if model.name in held]
    sample = [model for model in there if is_audited(digest_of(known[model.name].key), rate, seed)]
    (work / "temporary").mkdir()  # named in the environment
    settings = replace(context.settings, strict=False)  # links lead out of the other folder
    elsewhere = replace(settings, root=folder_of_links(settings.root, work / "elsewhere"))
    environment = varied_environment(context.environment, seed)
    varied = replace(context, settings=elsewhere, work=work / "varied", environment=environment)
    again = export_again(varied, sample)
    stale = {name: lines for name in again.reports if (lines := again.differences(held[name]))}
    if stale:
        models = [model for model in sample if model.name in stale]
        plain = export_again(replace(context, settings=settings, work=work / "plain"), models)
        raise stale_error(stale, {name: plain.differences(held[name]) for name in plain.reports}, settings.root)
    compared = {name for name in again.reports if held[name].methods and again.reports[name].methods}
    return Audit(
        known=tuple(model.name for model in there),
        audited=tuple(model.name for model in sample if model.name in compared),
        skipped=tuple(model.name for model in sample if model.name not in compared),
    )


class AuditExports(Frozen):
    """Models that were exported again."""

    reports: Mapping[str, ModelReport]  # by model; only the methods count
    folder: Path  # of the exports, with the forms of their graphs
    store: Store  # has the forms of the graphs that they are compared with

    def differences(self, before: ModelReport) -> list[str]:
        after = self.reports[before.model]
        if not before.methods or not after.methods:
            return []
        lines = [f"{name}: the method is gone" for name in before.methods if name not in after.methods]
        for name, method in after.methods.items():
            old = before.methods.get(name)
            changes = ["the method is new"] if old is None else method_changes(old, method, self.reader(before.model))
            lines += (f"{name}: {line}" for line in changes)
        if not lines and before.key.get("sharing") != after.key.get("sharing"):
            lines.append("which tensors share memory")
        return lines

    def reader(self, model: str) -> Callable[[str], bytes | None]:
        fresh = replace(self.store, directory=self.folder / "models" / model / FORMS)
        return lambda digest: self.store.read_blob(digest) or fresh.read_blob(digest)


def export_again(context: BuildContext, models: Sequence[ModelSettings]) -> AuditExports:
    context.work.mkdir()
    answers = export_models(context, models, {}, "capture")
    return AuditExports({answer.report.model: answer.report for answer in answers}, context.work, context.store)


def is_audited(key: str, rate: float, seed: int) -> bool:
    # the same for equal keys and seeds
    return int(digest_of([key, seed])[:13], 16) / 16**13 < rate


def folder_of_links(root: Path, folder: Path) -> Path:
    folder.mkdir()
    for entry in sorted(root.iterdir()):
        (folder / entry.name).symlink_to(entry, target_is_directory=entry.is_dir())
    return folder


def varied_environment(environment: Mapping[str, str], seed: int) -> dict[str, str]:
    locale = other_locale()
    hash_seed = 1 + int(digest_of(["hash seed", seed])[:8], 16) % HASH_SEEDS
    return {**environment, "PYTHONHASHSEED": str(hash_seed), "LC_ALL": locale, "LANG": locale}


def other_locale() -> str:
    # a locale that writes numbers unlike C
    command = shutil.which("locale")
    if command is None:
        return "C"
    listed = subprocess.run([command, "-a"], capture_output=True, text=True, errors="replace", check=False).stdout
    known = sorted(line for line in listed.split() if line.partition("_")[0] in ("de", "fr", "es", "it", "ru", "tr"))
    return known[0] if known else "C"


def stale_error(stale: Mapping[str, Sequence[str]], plain: Mapping[str, Sequence[str]], root: Path) -> CacheError:
    wrong = {model: lines for model, lines in plain.items() if lines}
    lines = [f"{model}.{line}" for model, reasons in (wrong or stale).items() for line in reasons]
    if wrong:
        what = "a build would take results that do not hold"
        hint = (
            "the export depends on something that cannot be recorded: a clock, random numbers of the system, the"
            " network; read it from a file of the project instead, and build once with `HATCH_LOWER_CACHE=refresh`"
        )
    else:
        what = "an export comes out otherwise with another hash seed, working directory or locale"
        hint = "builds fix all three, so stored results hold; but give sets an order, and use no absolute paths"
    return CacheError(what, where=str(root), found="\n".join(lines), hint=hint)
