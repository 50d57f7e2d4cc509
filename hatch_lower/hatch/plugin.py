"""The build hook `lower`. Hatchling loads the hook in builds of other projects, too, so most imports are local."""

from __future__ import annotations

import os
import shutil
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

from hatch_lower.errors import LowerError, printable, refused_error

if TYPE_CHECKING:
    from hatch_lower.cache.store import Store
    from hatch_lower.driver.context import BuildContext
    from hatch_lower.driver.sbom import Cards
    from hatch_lower.format.results import BuildResult, PayloadFile
    from hatch_lower.hatch.project import BuildData, Project
    from hatch_lower.hatch.variants import VariantSet

WORK_PREFIX = "hatch-lower-build-"  # of held folders only: folders of `hatch-lower check`, for instance, are not held

INTERRUPTED = 130  # the exit status that shells report for a command ended by Ctrl-C


class LowerBuildHook(BuildHookInterface[Any]):
    """Lowers the project's models before hatchling builds the wheel, and adds the programs to the finished wheel."""

    PLUGIN_NAME = "lower"

    _payload: Sequence[PayloadFile] = ()
    _beside: Sequence[PayloadFile] = ()
    _variants: VariantSet | None = None
    _begun: float = 0.0  # by the monotonic clock, in seconds
    _store: Store | None = None
    _lower_again: Callable[[], Sequence[PayloadFile]] = tuple
    _release: weakref.finalize[[Path, int | None], LowerBuildHook] | None = None
    _unfinished: weakref.finalize[[Path, str, Mapping[str, tuple[int, int]], str], LowerBuildHook] | None = None

    def dependencies(self) -> list[str]:
        """Return the requirements of wheel builds, which frontends install into isolated environments."""
        if self.target_name == "sdist":
            return []
        from hatch_lower.config.requirements import own_requirements

        return [str(requirement) for requirement in own_requirements(["build"])]

    def clean(self, versions: list[str]) -> None:
        """Remove temporary files of killed builds beside the wheels: the hook writes nowhere else in the project."""
        from hatch_lower.hatch.wheel import remove_temporaries

        remove_temporaries(Path(self.directory))

    def initialize(self, version: str, build_data: BuildData) -> None:
        """Lower the models for a wheel; for a source distribution, add the files that lowering needs."""
        self._discard()
        with self._reported():
            from hatch_lower.hatch.cache_files import leave_out_cache
            from hatch_lower.hatch.wheel import check_fixed_time

            check_fixed_time(os.environ)
            leave_out_cache(self, build_data)
            if self.target_name == "sdist":
                from hatch_lower.hatch.project import input_files

                carried = {str(path): str(path.relative_to(self.root)) for path in input_files(self)}
                build_data["force_include"].update(carried)
            elif self.target_name == "wheel":
                self._prepare(version, build_data)

    def finalize(self, version: str, build_data: BuildData, artifact_path: str) -> None:
        if not self._payload:
            return
        from hatch_lower.hatch.wheel import append_payload, write_beside

        if self._unfinished is not None:
            self._unfinished.detach()
        with self._reported():
            try:
                variants = () if self._variants is None else self._variants.files
                if not all(file.source.exists() for file in (*self._payload, *self._beside, *variants)):
                    self._replace_lost()
                from hatch_lower.hatch.terminal import total_line, writing_line

                for line in writing_line(self._payload):
                    self.app.display_info(line)
                wheel = Path(artifact_path)
                finish_variants = self._begin_variants(wheel)
                append_payload(wheel, self._payload, self._store)
                self.app.display_info(total_line(wheel, time.monotonic() - self._begun))
                for path in (*finish_variants(), *write_beside(wheel, self._beside)):
                    self.app.display_info(f"hatch-lower: to be uploaded: {path}")
            except BaseException:
                Path(artifact_path).unlink(missing_ok=True)  # no wheel without a payload must stay
                raise
            finally:
                self._discard()

    def _begin_variants(self, wheel: Path) -> Callable[[], Sequence[Path]]:
        """Copy hatchling's wheel, before it gets a payload, for each variant; return the function that goes on."""
        if self._variants is None:
            return tuple
        from hatch_lower.hatch.variants import write_drafts, write_variants

        variants, drafts = self._variants, write_drafts(wheel, self._variants)
        return lambda: write_variants(wheel, variants, drafts, self._store)

    def _prepare(self, version: str, build_data: BuildData) -> None:
        from hatch_lower.hatch.cache_files import refuse_cache
        from hatch_lower.hatch.project import read_project

        project = with_variable(read_project(self, build_data))
        refuse_cache((file.path for file in (*project.selected, *project.forced)), "wheel")
        project.check_place()
        self._begun = time.monotonic()
        editable = version == "editable"
        if editable and project.settings.editable == "skip":
            return
        work = self._open_work()
        try:
            if editable and project.settings.editable in ("eager", "known"):
                self._payload = self._without_lowering(project, work, build_data)
            else:
                self._payload = self._lower(project, work, build_data, editable)
            self._await_wheel()
        except BaseException:
            self._discard()
            raise

    def _without_lowering(self, project: Project, work: Path, build_data: BuildData) -> Sequence[PayloadFile]:
        """Return the files of a fast editable wheel: the known programs, or the entry points of the modules."""
        from hatch_lower.hatch.editable import UNKNOWN, unknown_line, unknown_models, write_eager

        if project.settings.editable == "eager":
            return write_eager(project.settings, work)
        notes: list[str] = []  # about the cache; a build with known programs says the same
        unknown = unknown_models(weights_inside(project).settings, project.view, work, notes.append)
        if not unknown:
            return self._lower(project, work, build_data, editable=True)
        for line in (*notes, unknown_line(unknown)):
            self.app.display_info(f"hatch-lower: {printable(line)}")
        return write_eager(project.settings, work, UNKNOWN)

    def _lower(self, project: Project, work: Path, build_data: BuildData, editable: bool) -> Sequence[PayloadFile]:
        from dataclasses import replace

        from hatch_lower.cache.directory import history_path
        from hatch_lower.config.requirements import requirements_to_add
        from hatch_lower.driver.build import build
        from hatch_lower.driver.context import CacheNotes, build_context, open_cache
        from hatch_lower.driver.sbom.card import read_cards
        from hatch_lower.events import SaidOnce
        from hatch_lower.hatch import terminal
        from hatch_lower.hatch.sbom import check_hatchling

        if editable:
            project = weights_inside(project)
        else:
            check_hatchling(build_data)
        cards = read_cards(project.settings)
        notes = CacheNotes(project.settings.name)
        store = open_cache(project.settings, notes)
        # documents made here from the build's results are of no use to other machines
        self._store = replace(store, remote=None)
        log = history_path(store.directory, Path(self.root)).with_suffix(".log") if store.writes else None

        def lower(folder: Path) -> BuildResult:
            folder.mkdir(exist_ok=True)
            reporter = SaidOnce(terminal.reporter_for(self.app.display_info, self.app.verbosity, log))
            notes.report_to(reporter)
            try:
                context = build_context(project.settings, project.view, folder, store, reporter)
                return build(replace(context, files=project.files, check_early=check_early))
            finally:
                reporter.close()

        result = lower(work)
        self._lower_again = lambda: lower(work / "again").files
        project.check_complete()
        settings, declared = project.settings, self.metadata.core.dependencies
        added = requirements_to_add(settings.runtime_requirements, result.requirements, declared, settings.extras)
        build_data["dependencies"].extend(addition.requirement for addition in added)
        if settings.runtime_requirements == "check":
            for addition in added:
                self.app.display_info(f"hatch-lower: the wheel requires `{addition.requirement}`: {addition.reason}")
        if not editable:  # hatchling sets the tag of an editable wheel, which only points at the project's files
            payload = self._describe(project, result, cards, self._store, work, build_data)
        lines = terminal.outside_weights_lines(result.models), terminal.metric_lines(result.models)
        for line in chain(terminal.method_table_lines(result.rows), *lines):
            self.app.display_info(printable(line))
        for line in terminal.not_compared_lines(result.rows, by_settings=False):
            self.app.display_warning(f"hatch-lower: {printable(line)}")
        if not editable:
            self._beside = result.beside
            return payload
        from hatch_lower.events import NullReporter
        from hatch_lower.hatch.editable import write_sources

        context = build_context(project.settings, project.view, work, self._store, NullReporter())
        return (*result.payload, *write_sources(context))

    def _describe(
        self, project: Project, result: BuildResult, cards: Cards, store: Store, work: Path, build_data: BuildData
    ) -> Sequence[PayloadFile]:
        """Set the wheel's tag, add its SBOM, leave out files whose contents the programs hold; return the payload."""
        from hatch_lower.hatch.project import set_tag
        from hatch_lower.hatch.sbom import add_sbom
        from hatch_lower.hatch.tags import tag_of

        if project.settings.variants:
            from hatch_lower.hatch.variants import plan_variants

            self._variants = plan_variants(project.settings, cards, result, work / "variants", store)
            result = self._variants.null
        set_tag(build_data, tag_of(result, store))
        add_sbom(build_data, project.settings, cards, result, work, store)
        for warning in project.pattern_warnings():
            self.app.display_warning(f"hatch-lower: {printable(warning)}")
        self._ship_once(project, result.payload)
        return result.payload

    def _ship_once(self, project: Project, payload: Sequence[PayloadFile]) -> None:
        """Leave out packaged weights that the payload holds, or warn about files that cannot be left out."""
        from hatch_lower.hatch.cache_files import exclude
        from hatch_lower.hatch.duplicates import omission_line, repetition_warning

        for repeated in project.repeated(payload):
            path = project.relative(repeated.file)
            if repeated.whole and path and not project.settings.keep_weights:
                exclude(self.build_config, path)
                if not self.build_config.include_path(path, explicit=True):
                    self.app.display_info(f"hatch-lower: {printable(omission_line(repeated))}")
                    continue
            if not project.settings.keep_weights:
                self.app.display_warning(
                    f"hatch-lower: {printable(repetition_warning(repeated, path, project.exclude))}"
                )

    def _replace_lost(self) -> None:
        """Make files again that were removed from the cache while hatchling wrote the wheel."""
        from hatch_lower.errors import PackageError

        again = {file.path: file for file in self._lower_again()}

        def replaced(files: Sequence[PayloadFile]) -> tuple[PayloadFile, ...]:
            kept = tuple(file if file.source.exists() else again.get(file.path, file) for file in files)
            if any(new.sha256 != old.sha256 for new, old in zip(kept, files, strict=True)):
                raise PackageError(
                    "a file was removed from the cache during this build, and differs after being made again",
                    found=", ".join(new.path for new, old in zip(kept, files, strict=True) if new != old),
                    hint="build again",
                )
            return kept

        self._payload, self._beside = replaced(self._payload), replaced(self._beside)
        if self._variants is not None:
            self._variants = self._variants.with_files(replaced)

    def _open_work(self) -> Path:
        """Return a new private folder, which is removed at the end of the interpreter at the latest."""
        from hatch_lower.cache.locks import make_held_folder, remove_abandoned

        path, descriptor = make_held_folder(WORK_PREFIX)
        remove_abandoned(path.parent, f"{WORK_PREFIX}*")  # of builds that were killed
        self._release = weakref.finalize(self, release_work_folder, path, descriptor)
        return path

    def _await_wheel(self) -> None:
        """Have the wheel that hatchling writes now removed if the process ends before the payload is added."""
        if not self._payload:
            return
        from hatch_lower.hatch.wheel import list_wheels, remove_unfinished

        directory, project = Path(self.directory), self.build_config.builder.artifact_project_id
        member = self._payload[0].path
        self._unfinished = weakref.finalize(self, remove_unfinished, directory, project, list_wheels(directory), member)

    def _discard(self) -> None:
        self._payload, self._beside, self._variants = (), (), None
        if self._release is not None:
            self._release()
            self._release = None

    @contextmanager
    def _reported(self) -> Iterator[None]:
        """Turn errors of hatch-lower into a paragraph on stderr and exit status 1, which every frontend shows."""
        try:
            yield
        except LowerError as error:
            self.app.abort(f"hatch-lower: {error}")
        except ModuleNotFoundError:
            from hatch_lower.config.requirements import refuse_incomplete_build

            try:
                refuse_incomplete_build()
            except LowerError as missing:
                self.app.abort(f"hatch-lower: {missing}")
            raise
        except OSError as error:
            import tempfile

            refused = refused_error(error, tempfile.gettempdir())
            if refused is None:
                raise
            self.app.abort(f"hatch-lower: {refused}")
        except KeyboardInterrupt:
            ignore_interrupts()
            self._discard()
            self.app.abort("hatch-lower: interrupted", code=INTERRUPTED)


def weights_inside(project: Project) -> Project:
    """Return the project with all weights in the programs, for an editable install of models under development."""
    from dataclasses import replace

    models = tuple(replace(model, weights=()) for model in project.settings.models)
    return replace(project, settings=replace(project.settings, models=models))


def with_variable(project: Project) -> Project:
    """Return the project with the environment's choice of wheel variants."""
    from dataclasses import replace

    from hatch_lower.driver.context import wants_variants

    settings = project.settings
    return replace(project, settings=replace(settings, variants=wants_variants(settings, os.environ)))


def release_work_folder(work: Path, descriptor: int | None) -> None:
    try:
        shutil.rmtree(work, ignore_errors=True)
    except KeyboardInterrupt:
        ignore_interrupts()
        shutil.rmtree(work, ignore_errors=True)
        raise
    finally:
        if descriptor is not None:
            os.close(descriptor)


def ignore_interrupts() -> None:
    import signal

    with suppress(ValueError):  # only the main thread can set handlers, and only there interrupts arrive
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def check_early(context: BuildContext) -> None:
    # local imports: a build of known models spends no time on them
    from hatch_lower.backends.early import refuse_missing_tools, refuse_unmet_early

    refuse_unmet_early(context.settings)
    if context.executor == "local":  # the tools of workers may be elsewhere
        refuse_missing_tools(context.settings)
