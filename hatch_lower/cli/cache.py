"""`hatch-lower cache`: the results that builds keep on this machine, and the keys for sharing results."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hatch_lower.cache.directory import VERSION, default_directory
from hatch_lower.cache.store import Store, open_store
from hatch_lower.cli.arguments import json_option, open_here, root_option, temporary_context
from hatch_lower.cli.output import Report, count, page, show, show_json
from hatch_lower.errors import CacheError, size_text
from hatch_lower.hatch.outside import open_project
from hatch_lower.hatch.terminal import table_lines

if TYPE_CHECKING:
    from hatch_lower.cache.contents import RecordDescription, StoreLimits, Survey
    from hatch_lower.driver.audit import Audit

VERSION_FOLDER = re.compile(r"v\d+")  # each version of the cache's format has a folder
DAY = 24 * 3600.0


@click.group()
def cache() -> None:
    """Manage the results that builds keep on this machine."""


@cache.command()
@json_option
def info(as_json: bool) -> None:
    """Show the cache's folder, limits and results. The last used result comes first."""
    from hatch_lower.cache.contents import limits_of, survey

    store = open_here()
    report = info_report(store, survey(store.directory), limits_of(store.directory))
    if as_json:
        show_json(report)
    else:
        page(info_lines(report))


def info_report(store: Store, contents: Survey, limits: StoreLimits) -> Report:
    kinds: dict[str, list[RecordDescription]] = {}
    for entry in sorted(contents.entries, key=lambda entry: entry.kind):
        kinds.setdefault(entry.kind, []).append(entry)
    return {
        "directory": str(store.directory.parent),
        "mode": store.mode,
        "size": contents.size,
        "entries": [asdict(entry) for entry in contents.entries],
        "blobs": contents.blobs,
        "kinds": {
            kind: {"entries": len(entries), "size": sum(entry.size for entry in entries)}
            for kind, entries in kinds.items()
        },
        "damaged": sum(not entry.whole for entry in contents.entries),
        "unreferenced": contents.unreferenced,
        "leftovers": contents.leftovers,
        "last_used": max((entry.used for entry in contents.entries), default=None),
        "longest_unused": min((entry.used for entry in contents.entries), default=None),
        "max_gigabytes": limits.size / 1e9,
        "max_days": int(limits.age / DAY),
    }


def info_lines(report: Report) -> Iterator[str]:
    left = [
        (report["damaged"], "damaged result", "damaged results"),
        (report["unreferenced"], "blob that no result needs", "blobs that no result needs"),
        (report["leftovers"], "unfinished file", "unfinished files"),
    ]
    held = f"{count(len(report['entries']), 'result')} and {count(report['blobs'], 'blob')}"
    rows = [
        ("folder", report["directory"]),
        ("mode", report["mode"]),
        ("size", f"{size_text(report['size'])} in {held}"),
        ("limits", f"{report['max_gigabytes']:g} GB, {count(report['max_days'], 'day')} without use"),
        ("last used", time_text(report["last_used"])),
        ("longest unused", f"since {time_text(report['longest_unused'])}" if report["entries"] else ""),
        ("to be trimmed", ", ".join(count(number, noun, plural) for number, noun, plural in left if number)),
    ]
    yield from (f"{name:<15} {text}" for name, text in rows if text)
    if report["kinds"]:
        yield ""
        table: list[Sequence[str]] = [("kind", "results", "with blobs")]
        table += [(kind, str(facts["entries"]), size_text(facts["size"])) for kind, facts in report["kinds"].items()]
        yield from table_lines(table, right=[1, 2])
        yield ""
        results: list[Sequence[str]] = [("kind", "of", "size", "blobs", "last used", "key", "state")]
        for entry in report["entries"]:
            numbers = (size_text(entry["size"]), str(entry["blobs"]), time_text(entry["used"]))
            state = "" if entry["whole"] else "damaged"
            results.append((entry["kind"], entry["subject"], *numbers, entry["key"][:16], state))
        yield from table_lines(results, right=[2, 3])


@cache.command()
@click.option("--max-gigabytes", type=click.FloatRange(min=0), help="Default: a tenth of the disk, at least 10.")
@click.option("--max-days", type=click.IntRange(min=0), help="Days without use. Default: 60.")
def trim(max_gigabytes: float | None, max_days: int | None) -> None:
    """Remove results beyond the limits, as builds do once a day.

    Results that were used within two hours stay.
    """
    from hatch_lower.cache.contents import StoreLimits, limits_of
    from hatch_lower.cache.contents import trim_store as trim_store

    with changing() as directory:
        limits = limits_of(directory)
        size = limits.size if max_gigabytes is None else int(max_gigabytes * 1e9)
        age = limits.age if max_days is None else max_days * DAY
        done = trim_store(directory, StoreLimits(size, age), time.time())
    parts = {"result": done.records, "blob": done.blobs, "unfinished file": done.leftovers}
    removed = ", ".join(count(number, noun) for noun, number in parts.items() if number) or "nothing"
    show([f"removed {removed}; {size_text(done.freed)} freed, {size_text(done.kept)} left"])


@cache.command()
def clear() -> None:
    """Delete everything in the cache.

    Results of other versions of hatch-lower are deleted, too.
    """
    from hatch_lower.cache.contents import clear_store as clear_store

    with changing() as directory:
        folders = [folder for folder in version_folders(directory.parent) if folder != directory]
        freed = sum(tree_size(folder) for folder in (directory, *folders))
        clear_store(directory)
        for folder in folders:
            shutil.rmtree(folder)
    show([f"{size_text(freed)} freed in {directory.parent}"])


@cache.command()
@click.pass_context
def repair(context: click.Context) -> None:
    """Hash all files of the cache, and remove damaged files.

    Ends with status 1 if a file was damaged.
    """
    from hatch_lower.cache.contents import repair_store as repair_store
    from hatch_lower.cache.contents import survey

    directory = open_here().directory
    damages = repair_store(directory)
    contents = survey(directory)
    removed = [f"removed {path}: {found}" for path, found in damages.items()]
    show([*removed, f"{count(len(contents.entries), 'result')} and {count(contents.blobs, 'blob')} are whole"])
    context.exit(1 if damages else 0)


@cache.command()
@root_option
@click.option("--rate", type=click.FloatRange(0, 1), default=1.0, help="The share of models to audit. Default: all.")
def audit(root: Path, rate: float) -> None:
    """Export models again, and compare with stored results.

    Fails if an export differs from the stored result. Run the command in the environment of the project's builds. A
    rate below 1 takes a random sample.
    """
    from hatch_lower.driver.audit import audit_results as run_audit
    from hatch_lower.events import LineReporter

    def say(line: str) -> None:
        show([line], err=True)

    project = open_project(root)
    store = open_store(os.environ, say)
    with temporary_context(project, store, LineReporter(say)) as context:
        done = run_audit(context, rate, secrets.randbits(32))
    show([audit_text(done, len(project.settings.models))])


def audit_text(done: Audit, models: int) -> str:
    if not done.known:
        return f"nothing to audit: no valid stored result for {count(models, 'model')}"
    same = f"{count(len(done.audited), 'model')} exported to the same result"
    rest = [f"`{name}` cannot be compared" for name in done.skipped]
    left = len(done.known) - len(done.audited) - len(done.skipped)
    rest += [f"{left} not in the sample"] if left else []
    return "; ".join([f"of {count(len(done.known), 'stored result')}, {same}", *rest])


@cache.command()
def keygen() -> None:
    """Print a new pair of keys for signing shared results."""
    from hatch_lower.cache.remote.signing import new_key_pair

    pair = new_key_pair()
    show(
        [
            "# secret: only for the environment of the builds that push",
            f"HATCH_LOWER_SIGNING_KEY={pair.private}",
            "",
            "# public: for pyproject.toml",
            "[tool.hatch.build.hooks.lower.cache]",
            f'public-keys = ["{pair.public}"]',
        ]
    )


@contextmanager
def changing() -> Iterator[Path]:
    """Yield the store's directory, and turn a refusal of the file system into a `CacheError`."""
    directory = default_directory(os.environ) / VERSION
    try:
        yield directory
    except OSError as error:
        where, found = str(error.filename or directory), error.strerror or str(error)
        raise CacheError("the cache could not be changed", where=where, found=found) from error


def version_folders(folder: Path) -> list[Path]:
    """Return the folders of all versions of the cache; other files in the folder are not hatch-lower's."""
    if not folder.is_dir():
        return []
    paths = (path for path in sorted(folder.iterdir()) if VERSION_FOLDER.fullmatch(path.name))
    return [path for path in paths if path.is_dir() and not path.is_symlink()]


def tree_size(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def time_text(seconds: float | None) -> str:
    return "" if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
