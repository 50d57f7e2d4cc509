"""The project that hatchling builds, converted to the types of the other packages of hatch-lower."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hatch_lower import MODEL_GROUP
from hatch_lower.config.checkpoint import declared_checkpoint
from hatch_lower.config.option_files import option_files
from hatch_lower.config.precision_file import PRECISION_FILE
from hatch_lower.config.reader import read_toml_table
from hatch_lower.config.settings import Metadata, Settings, is_sample_file, read_settings
from hatch_lower.config.tables import RESERVED_KEYS, HookTable, quote_key
from hatch_lower.driver.context import (
    DistributedFile,
    ProjectView,
    find_import_roots,
    find_packages,
    find_regular_packages,
    plan_links,
)
from hatch_lower.errors import ConfigError, PackageError
from hatch_lower.format.results import payload_folder
from hatch_lower.frozen import Frozen

if TYPE_CHECKING:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
    from hatchling.builders.plugin.interface import IncludedFile

    from hatch_lower.format.results import PayloadFile
    from hatch_lower.hatch.duplicates import Repeated

    BuildData = dict[str, Any]  # passed by hatchling from hook to hook, and then used for packaging
    Hook = BuildHookInterface[Any]

HOOK = "lower"
SHOWN = 5  # files that an error names


class Project(Frozen):
    """A wheel build: settings, and the files of the wheel beside the payload."""

    settings: Settings
    view: ProjectView
    selected: tuple[DistributedFile, ...]  # files that are packaged because a pattern selects them
    forced: tuple[DistributedFile, ...]  # files that are packaged because `force-include` names them
    exclude: tuple[str, ...]  # the patterns that the wheel excludes
    table: str  # the dotted TOML path of the hook's table
    exclude_path: str  # the dotted TOML path of `exclude`
    files: Callable[[], tuple[Path, ...]] = tuple  # lists the files that an export may read outside of the package

    def pattern_warnings(self) -> Iterator[str]:
        """Yield a warning for each pattern of `inputs` and `exclude` with a folder that matches no file."""
        root = self.settings.root
        # a pattern without a folder, such as `*.pt`, may be meant for future files
        placed = [
            pattern for pattern in self.exclude if "/" in pattern.rstrip("/") and not pattern.startswith(("!", "**"))
        ]
        lists = ((self.settings.inputs, f"{self.table}.inputs"), (placed, self.exclude_path))
        for pattern, where in [(pattern, path) for patterns, path in lists for pattern in patterns]:
            if is_something(root, pattern):
                continue
            roots = [folder.relative_to(root) for folder in self.view.import_roots if folder.is_relative_to(root)]
            meant = [(folder / pattern).as_posix() for folder in roots if is_something(root / folder, pattern)]
            hint = f"; patterns are relative to the project: write `{meant[0]}`" if meant else ""
            yield f"`{pattern}` in `{where}` matches no file{hint}"

    def check_place(self) -> None:
        """Refuse packaged files in the folders of the lowered programs, for instance of an unpacked wheel."""
        folders = sorted({f"{payload_folder(model.package)}/" for model in self.settings.models})
        taken = [file for file in (*self.selected, *self.forced) if file.distributed.startswith(tuple(folders))]
        if taken:
            names = sorted(f"`{file.distributed}`" for file in taken)
            raise PackageError(
                "the project has files where the lowered programs go",
                where="tool.hatch.build.targets.wheel",
                found=", ".join([*names[:SHOWN], *(["…"] if len(names) > SHOWN else [])]),
                hint="remove the folder `_lowered` of an earlier build, or take the folder out of `force-include`",
            )

    def check_complete(self) -> None:
        # hatchling does not notice a module that was removed during the build
        gone = [file.path for file in (*self.selected, *self.forced) if not os.path.lexists(file.path)]
        if gone:
            names = sorted(f"`{os.path.relpath(file, self.settings.root)}`" for file in gone)
            raise PackageError(
                "files of the wheel were removed while the models were exported",
                where=self.settings.name,
                found=", ".join([*names[:SHOWN], *(["…"] if len(names) > SHOWN else [])]),
                hint="restore the files, and let the model's code remove only files that the code has made",
            )

    def repeated(self, payload: Sequence[PayloadFile]) -> tuple[Repeated, ...]:
        """Return the packaged files whose tensors are in the payload, too."""
        files = (*self.selected, *self.forced)
        if not any(file.distributed.endswith(".safetensors") for file in files):
            return ()
        from hatch_lower.hatch.duplicates import find_repeated

        return find_repeated(files, payload)

    def relative(self, file: DistributedFile) -> str:
        """Return the path of a packaged file in the project; an empty string for a file that is included by force."""
        return "" if file in self.forced else file.path.relative_to(self.settings.root).as_posix()


def read_project(hook: Hook, build_data: BuildData) -> Project:
    """Return hatchling's view of the project at the time when the hook `lower` runs."""
    config, core, root = hook.build_config, hook.metadata.core, Path(hook.root)
    with config.set_build_data(build_data):
        selected = distributed_files(config.builder.recurse_selected_project_files())
        # a later hook may write a file that is included by force
        there = {source: target for source, target in config.get_force_include().items() if os.path.exists(source)}
        forced = distributed_files(config.builder.recurse_forced_files(there))
    files = (*selected, *forced)
    hooks = build_data["build_hooks"]
    declared = core.entry_points.get(MODEL_GROUP, {})
    table = table_path(config.target_config, hook.target_name)
    settings = read_settings(
        {key: value for key, value in hook.config.items() if key not in RESERVED_KEYS},
        Metadata(core.name, hook.metadata.version, declared, core.dependencies, core.optional_dependencies),
        root=root,
        packages=find_packages(files),
        regular=find_regular_packages(files),
        path=table,
    )
    roots = tuple(Path(os.path.normpath(root / folder)) for folder in config.dev_mode_dirs) or find_import_roots(files)
    if any(model.name not in declared for model in settings.models):  # its export code need not be packaged
        roots = tuple(dict.fromkeys((*roots, root)))
    view = ProjectView(
        # the body is the README: exports do not see the README, so a new README is no reason to export again
        metadata=config.core_metadata_constructor(hook.metadata).partition("\n\n")[0].rstrip("\n") + "\n",
        entry_points=config.builder.construct_entry_points_file(),
        import_roots=roots,
        links=plan_links(files),
        packages=find_packages(files),
        later_hooks=tuple(hooks[hooks.index(HOOK) + 1 :]),
    )
    exclude = config.target_config.get("exclude", config.build_config.get("exclude", []))
    owner = f"tool.hatch.build.targets.{hook.target_name}" if "exclude" in config.target_config else "tool.hatch.build"
    listed = partial(project_files, hook, files)
    return Project(settings, view, selected, forced, tuple(exclude), table, f"{owner}.exclude", listed)


def project_files(hook: Hook, packaged: Iterable[DistributedFile]) -> tuple[Path, ...]:
    """Return the files that an export may read: files of sdist and wheel, and the declared inputs."""
    from hatchling.builders.sdist import SdistBuilder

    from hatch_lower.hatch.cache_files import exclude_cache

    builder = SdistBuilder(hook.root, metadata=hook.metadata, app=hook.app)
    exclude_cache(builder.config)
    listed = {Path(os.path.normpath(file.path)) for file in builder.recurse_included_files()}
    return tuple(sorted({*listed, *(file.path for file in packaged), *input_files(hook)}))


def is_something(folder: Path, pattern: str) -> bool:
    """Return whether a pattern matches a file in a folder; True for a pattern that `glob` cannot read."""
    from hatch_lower.driver.inputs.present import plain_stars

    try:
        return next(folder.glob(plain_stars(pattern.strip("/"))), None) is not None
    except (ValueError, NotImplementedError):
        return True


def input_files(hook: Hook) -> list[Path]:
    """Return the files that settings name, such as `inputs` and `card`, even files that version control ignores."""
    from hatch_lower.driver.inputs.present import files_matching
    from hatch_lower.format.evidence import EVIDENCE_FILE
    from hatch_lower.huggingface.checkpoint import checkpoint_files

    wheel = hook.metadata.hatch.build_targets.get("wheel", {}).get("hooks", {}).get(HOOK, {})
    problems: list[str] = []
    patterns: dict[str, str] = {}
    folders: dict[str, bool] = {}  # of checkpoints: whether a build runs their code
    # inputs declared for the wheel alone need no second table for the source distribution
    for table, target in ((hook.config, hook.target_name), (wheel, "wheel")):
        path = table_path(hook.metadata.hatch.build_targets.get(target, {}), target)
        part = {key: table[key] for key in ("inputs", "models", "order") if key in table}
        given = read_toml_table(HookTable, part, path, problems)
        patterns |= dict.fromkeys(given.inputs, f"{path}.inputs")
        if given.order == "measured":
            patterns[EVIDENCE_FILE] = f"{path}.order"
        patterns |= {glob.escape(file): where for where, file in files_of_options(table, path)}
        for name, model in given.models.items():
            here = f"{path}.models.{quote_key(name)}"
            patterns |= dict.fromkeys(model.assets, f"{here}.assets")
            if (checkpoint := declared_checkpoint(model)) is not None and checkpoint.hub is None:
                folders[checkpoint.folder] = checkpoint.trusts_code or folders.get(checkpoint.folder, False)
            if model.card is not None:
                patterns[glob.escape(model.card)] = f"{here}.card"
            samples = {"verify-inputs": model.verify_inputs or "", "calibrate": model.calibrate or ""}
            patterns |= {glob.escape(file): f"{here}.{key}" for key, file in samples.items() if is_sample_file(file)}
    if (Path(hook.root) / PRECISION_FILE).exists():
        patterns[PRECISION_FILE] = PRECISION_FILE
    problems += [
        f"`{path}` must hold globs relative to the project and within it, found `{pattern}`"
        for pattern, path in patterns.items()
        if not pattern or os.path.isabs(pattern) or ".." in Path(pattern).parts
    ]
    if problems:
        what = "the build hook `lower` cannot add files to the source distribution: wrong settings"
        raise ConfigError(what, found="\n".join(problems), hint='write `inputs = ["weights/*.safetensors"]`')
    root = Path(hook.root)
    files = {file for folder, code in folders.items() for file in checkpoint_files(root / folder, code=code)}
    for pattern, path in patterns.items():
        matches = files_matching(root, pattern)
        if not matches:
            hook.app.display_warning(f"hatch-lower: `{pattern}` in `{path}` matches no file")
        files.update(matches)
    return sorted(files)


def files_of_options(table: Mapping[str, Any], path: str) -> Iterator[tuple[str, str]]:
    """Yield the dotted path of each recipe's backends with the files that options of backends name."""
    part = {key: table[key] for key in ("backends", "recipes") if key in table}
    given = read_toml_table(HookTable, part, path, [])  # a build of the wheel reports what is wrong
    recipes = {f"{path}.recipes.{quote_key(name)}": each.backends or () for name, each in given.recipes.items()}
    for where, backends in {path: given.backends, **recipes}.items():
        yield from ((f"{where}.backends", file) for file in option_files(backends))


def set_tag(build_data: BuildData, tag: str) -> None:
    """Give the wheel the payload's tag, unless an earlier hook has set a narrower tag."""
    platform = tag.rpartition("-")[2]
    given = build_data.get("tag", "")
    if platform != "any":
        build_data["pure_python"] = False
    if build_data.get("infer_tag"):
        return
    if not given:
        build_data["tag"] = tag
    elif platform != "any" and given.endswith("-any"):
        build_data["tag"] = f"{given.removesuffix('any')}{platform}"


def distributed_files(files: Iterable[IncludedFile]) -> tuple[DistributedFile, ...]:
    distributed = tuple(
        DistributedFile(Path(os.path.normpath(file.path)), file.distribution_path.replace(os.sep, "/"))
        for file in files
    )
    names = {file.distributed: file.distributed.encode(errors="backslashreplace").decode() for file in distributed}
    odd = sorted(escaped for name, escaped in names.items() if escaped != name)
    if odd:
        raise ConfigError(
            "a file of the wheel has a name that is not UTF-8",
            where=odd[0],
            hint="rename the file, or add the file to `exclude` under `[tool.hatch.build.targets.wheel]`",
        )
    return distributed


def table_path(target_config: Mapping[str, Any], target: str) -> str:
    """Return the dotted path of the table that the hook's settings come from."""
    if HOOK in target_config.get("hooks", {}):  # hatchling merges no tables: the target's table counts alone
        return f"tool.hatch.build.targets.{target}.hooks.{HOOK}"
    return f"tool.hatch.build.hooks.{HOOK}"
