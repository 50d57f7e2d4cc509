"""Files that the settings name: the known digests of weights, found without a connection, and assets, which the
wheel holds unchanged.

The cache keeps the digest of a URL. Without another change the kept digest is believed: a build of known models
downloads no file and asks no server. A file of this machine is compared like an input.

Assets take no part in exporting and lowering, so they are in no key: a changed asset changes the wheel alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath

from hatch_lower.cache.stats import StatCache
from hatch_lower.cache.store import Store
from hatch_lower.canonical import digest_of, is_lfs_pointer, sha256_file
from hatch_lower.config.checkpoint import CheckpointFolder, checkpoint_of
from hatch_lower.config.settings import ModelSettings, Settings
from hatch_lower.config.tables import IN_A_FILE, ON_THE_HUB
from hatch_lower.errors import ConfigError, LowerError, ProgramError
from hatch_lower.format.codec import decode, encode
from hatch_lower.format.results import ModelResult, PayloadFile
from hatch_lower.format.values import Digest, Natural, RelativePath
from hatch_lower.frozen import Frozen
from hatch_lower.huggingface.checkpoint import checkpoint_assets, checkpoint_weights, damaged_assets
from hatch_lower.runtime.sources import HUB, HubFile, hub_path

FILE = "file://"


class KnownSource(Frozen):
    """The contents of a URL at the last look."""

    size: Natural  # bytes
    sha256: Digest
    stamp: str  # the server's ETag or date, equal for equal contents; empty if the server sends neither


def urls_of(models: Iterable[ModelSettings]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(url for model in models for url in weight_urls(model)))


def weight_urls(model: ModelSettings) -> tuple[str, ...]:
    """Return the URLs of a model's weights; for weights on the hub, its checkpoint must be in the hub's cache."""
    if model.weights == (IN_A_FILE,):
        return ()
    checkpoint = checkpoint_of(model.export)
    if model.weights != (ON_THE_HUB,) or checkpoint is None:
        return model.weights
    return tuple(
        f"{HUB}{checkpoint.folder}/{name}" for name in checkpoint_weights(checkpoint_place(checkpoint, Path()))
    )


def file_path(url: str) -> Path:
    from urllib.parse import unquote, urlsplit  # imported here because few projects have a file URL

    return Path(unquote(urlsplit(url).path))


def known_digest(url: str, store: Store, stats: StatCache) -> str:
    """Return the sha256 of a URL's contents, or of its last known contents; empty if unknown."""
    if url.startswith(FILE):
        try:
            return stats.digest(file_path(url))
        except OSError:
            return ""
    known = None if url in (IN_A_FILE, ON_THE_HUB) else known_source(url, store)
    return "" if known is None else known.sha256


def known_source(url: str, store: Store) -> KnownSource | None:
    try:  # another machine may have written the entry, and the digest becomes a file's name
        known: KnownSource = decode(KnownSource, store.find(record_key(url)), "")
    except ProgramError:
        return None
    return known


def keep_source(url: str, known: KnownSource, store: Store) -> None:
    store.put(record_key(url), {"kind": "weights", "subject": url}, encode(known))


def record_key(url: str) -> str:
    return digest_of(["weights", url])


def checkpoint_place(checkpoint: CheckpointFolder, root: Path) -> Path:
    """Return the folder with the files of a checkpoint on this machine."""
    return root / checkpoint.folder if checkpoint.hub is None else hub_path(HubFile(*checkpoint.hub, ""))


WILDCARDS = frozenset("*?[")


def find_assets(settings: Settings) -> dict[str, dict[str, Path]]:
    """Return each model's assets: by name in a loaded model, the path of the file."""
    problems: list[str] = []
    assets = {model.name: dict(assets_of(settings.root, model, problems)) for model in settings.models}
    if problems:
        raise ConfigError(
            "the assets of a model are not as its table says",
            found="\n".join(problems),
            hint='write patterns relative to the project, such as `assets = ["tokenizer/*.json", "labels.txt"]`',
        )
    return assets


def assets_of(root: Path, model: ModelSettings, problems: list[str]) -> Iterator[tuple[str, Path]]:
    """Yield name and path of a model's assets, and append a sentence for each pattern that is wrong."""
    taken: dict[str, Path] = {}
    patterns = list(model.assets)
    if (checkpoint := checkpoint_of(model.export)) is not None:
        own = checkpoint_assets(checkpoint_place(checkpoint, root))
        if checkpoint.hub is None:
            patterns[:0] = [path.relative_to(root).as_posix() for path in own]
        else:  # outside of the project
            taken |= {path.name.casefold(): path for path in own}
            yield from ((path.name, path) for path in own)
        problems += [
            f"`{path.relative_to(root) if checkpoint.hub is None else path.name}`, an asset of model `{model.name}`,"
            f" is no JSON: {reason}"
            for path, reason in damaged_assets(own)
        ]
    for pattern in patterns:
        here = f"`{pattern}` in the `assets` of model `{model.name}`"
        folder = root / pattern_folder(pattern)
        # a pattern without wildcards finds no link that leads nowhere
        found = sorted({*root.glob(pattern), *([root / pattern] if (root / pattern).is_symlink() else [])})
        dangling = [path for path in found if path.is_symlink() and not path.exists()]
        problems += [
            f"{here} matches `{path.relative_to(root)}`, a link to `{os.readlink(path)}`, which is not there"
            for path in dangling
        ]
        matches = [path for path in found if path.is_file()]
        problems += [
            f"{here} matches `{path.relative_to(root)}`, a Git LFS pointer, not the file itself: run `git lfs pull`"
            for path in matches
            if is_lfs_pointer(path)
        ]
        if not matches and not dangling:
            problems.append(f"{here} matches no file")
        for path in matches:
            name = path.relative_to(folder).as_posix()
            other = taken.setdefault(name.casefold(), path)
            if other != path:
                inside = other.is_relative_to(root)
                first = other.relative_to(root) if inside else f"{other.name} of the checkpoint"
                second = path.relative_to(root)
                problems.append(f"{here} matches `{second}`, whose name `{first}` has")
            elif not can_be_packaged(name):
                problems.append(f"{here} matches {name!r}, which not every system can have as a file name")
            else:
                yield name, path


def pattern_folder(pattern: str) -> PurePosixPath:
    # `tokenizer/*.json` finds `vocab.json`: the name is the path below the part without wildcards
    parts = PurePosixPath(pattern).parts
    fixed = next((i for i, part in enumerate(parts) if WILDCARDS & set(part)), len(parts) - 1)
    return PurePosixPath(*parts[:fixed])


def can_be_packaged(name: str) -> bool:
    try:
        return name.isprintable() and bool(decode(RelativePath, name, ""))
    except LowerError:
        return False


def asset_files(model: str, assets: Mapping[str, Path]) -> dict[str, PayloadFile]:
    return {
        name: PayloadFile(f"{model}/assets/{name}", path, path.stat().st_size, sha256_file(path))
        for name, path in sorted(assets.items())
    }


def with_assets(result: ModelResult, assets: Mapping[str, Path]) -> ModelResult:
    if not assets:
        return result
    files = asset_files(result.model, assets)
    entries = {name: {"path": file.path, "size": file.size, "sha256": file.sha256} for name, file in files.items()}
    return replace(result, entry={**result.entry, "assets": entries}, files=(*result.files, *files.values()))
