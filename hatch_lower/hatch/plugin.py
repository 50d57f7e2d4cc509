"""The build hook `lower`: a doorway. Hatchling loads it in other people's builds too, so it imports next to nothing."""

from __future__ import annotations

import os
import shutil
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

from hatch_lower.errors import LowerError, printable, refused_error

if TYPE_CHECKING:
    from hatch_lower.build.context import BuildContext
    from hatch_lower.cache.store import Store
    from hatch_lower.format.results import BuildResult, PayloadFile
    from hatch_lower.hatch.project import BuildData, Project

WORK_PREFIX = "hatch-lower-build-"  # of folders that are held: nobody holds those of `hatch-lower check`, say

INTERRUPTED = 130  # the exit status of a command that Ctrl-C has ended, as shells say it


class LowerBuildHook(BuildHookInterface[Any]):
    """Lowers the project's models before hatchling builds the wheel, and adds them to the wheel afterwards."""

    PLUGIN_NAME = "lower"

    _payload: Sequence[PayloadFile] = ()
    _beside: Sequence[PayloadFile] = ()
    _begun: float = 0.0  # by the monotonic clock, in seconds
    _store: Store | None = None
    _lower_again: Callable[[], Sequence[PayloadFile]] = tuple
    _release: weakref.finalize[[Path, int | None], LowerBuildHook] | None = None
    _unfinished: weakref.finalize[[Path, str, Mapping[str, tuple[int, int]], str], LowerBuildHook] | None = None

    def dependencies(self) -> list[str]:
        """Return what building wheels needs: frontends that isolate builds install it with what the project names."""
        if self.target_name == "sdist":
            return []
        from hatch_lower.config.requirements import own_requirements

        return [str(requirement) for requirement in own_requirements(["build"])]

    def clean(self, versions: list[str]) -> None:
        """Remove what a killed build has left beside the wheels; nothing of ours is anywhere else in the project."""
        from hatch_lower.hatch.wheel import remove_temporaries

        remove_temporaries(Path(self.directory))

    def initialize(self, version: str, build_data: BuildData) -> None:
        """Lower the models for a wheel; for a source distribution, add the files that lowering will need."""
        self._discard()
        with self._reported():
            from hatch_lower.hatch.cache_files import leave_out_cache
            from hatch_lower.hatch.times import check_fixed_time

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
                if not all(file.source.exists() for file in (*self._payload, *self._beside)):
                    self._replace_lost()
                from hatch_lower.hatch.terminal import total_line, writing_line

                for line in writing_line(self._payload):
                    self.app.display_info(line)
                append_payload(Path(artifact_path), self._payload, self._store)
                self.app.display_info(total_line(Path(artifact_path), time.monotonic() - self._begun))
                for path in write_beside(Path(artifact_path), self._beside):
                    self.app.display_info(f"hatch-lower: to be uploaded: {path}")
            except BaseException:
                Path(artifact_path).unlink(missing_ok=True)  # without its payload it must not stay
                raise
            finally:
                self._discard()

    def _prepare(self, version: str, build_data: BuildData) -> None:
        from hatch_lower.hatch.cache_files import refuse_cache
        from hatch_lower.hatch.project import read_project

        project = read_project(self, build_data)
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
        """Return the files of an editable wheel that takes seconds: the known programs, or where the modules are."""
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

        from hatch_lower.build.build import build
        from hatch_lower.build.context import CacheNotes, build_context, open_cache
        from hatch_lower.build.sbom.card import read_cards
        from hatch_lower.cache.directory import history_path
        from hatch_lower.config.requirements import requirements_to_add
        from hatch_lower.events import SaidOnce
        from hatch_lower.hatch.project import set_tag
        from hatch_lower.hatch.sbom import add_sbom, check_hatchling
        from hatch_lower.hatch.tags import remembering, tag_of
        from hatch_lower.hatch.terminal import reporter_for, summary_lines, weights_lines

        if editable:
            project = weights_inside(project)
        else:
            check_hatchling(build_data)
        cards = read_cards(project.settings)
        notes = CacheNotes(project.settings.name)
        store = open_cache(project.settings, notes)
        # what is made here of the build's results is of no use to other machines
        self._store = replace(store, remote=None)
        log = history_path(store.directory, Path(self.root)).with_suffix(".log") if store.writes else None

        def check_early(context: BuildContext) -> None:
            # imported here, for a build of known models spends no time on it
            from hatch_lower.backends.early import refuse_missing_tools, refuse_unmet_early

            refuse_unmet_early(project.settings)
            if context.executor == "local":  # the tools of workers may be elsewhere
                refuse_missing_tools(project.settings)

        def lower(folder: Path) -> BuildResult:
            folder.mkdir(exist_ok=True)
            reporter = SaidOnce(reporter_for(self.app.display_info, self.app.verbosity, log))
            notes.report_to(reporter)
            try:
                context = build_context(project.settings, project.view, folder, store, reporter, project.files)
                return build(replace(context, check_early=check_early))
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
        if not editable:  # hatchling sets an editable wheel's tag itself, and the files that it points at are not in it
            digests = {file.source: file.sha256 for file in result.payload}
            set_tag(build_data, tag_of(result.native, remembering(self._store, digests)))
            add_sbom(build_data, project.settings, cards, result, work, self._store)
            for warning in project.pattern_warnings():
                self.app.display_warning(f"hatch-lower: {printable(warning)}")
            self._ship_once(project, result.payload)
        for line in (*summary_lines(result.rows), *weights_lines(result.models)):
            self.app.display_info(printable(line))
        if not editable:
            self._beside = result.beside
            return result.payload
        from hatch_lower.events import NullReporter
        from hatch_lower.hatch.editable import write_sources

        context = build_context(project.settings, project.view, work, self._store, NullReporter())
        return (*result.payload, *write_sources(context))

    def _ship_once(self, project: Project, payload: Sequence[PayloadFile]) -> None:
        """Leave out packaged weights that the payload holds, or warn about these."""
        from hatch_lower.hatch.duplicates import omission_line, repetition_warning
        from hatch_lower.hatch.exclusion import exclude

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
        """Make files again that somebody has removed from the cache while hatchling wrote the wheel."""
        from hatch_lower.errors import PackageError

        again = {file.path: file for file in self._lower_again()}
        files = (*self._payload, *self._beside)
        kept = tuple(file if file.source.exists() else again.get(file.path, file) for file in files)
        if any(new.sha256 != old.sha256 for new, old in zip(kept, files, strict=True)):
            raise PackageError(
                "a file that was removed from the cache while this build ran became another when it was made again",
                found=", ".join(new.path for new, old in zip(kept, files, strict=True) if new != old),
                hint="build again",
            )
        count = len(self._payload)
        self._payload, self._beside = kept[:count], kept[count:]

    def _open_work(self) -> Path:
        """Return a new private folder; it goes at the latest when the interpreter ends, finalized or not."""
        from hatch_lower.cache.locks import make_held_folder, remove_abandoned

        path, descriptor = make_held_folder(WORK_PREFIX)
        remove_abandoned(path.parent, f"{WORK_PREFIX}*")  # of builds that were killed
        self._release = weakref.finalize(self, release, path, descriptor)
        return path

    def _await_wheel(self) -> None:
        """If this process ends before the payload is in the wheel that hatchling writes now, that wheel goes."""
        if not self._payload:
            return
        from hatch_lower.hatch.wheel import remove_unfinished, wheels_in

        directory, project = Path(self.directory), self.build_config.builder.artifact_project_id
        member = self._payload[0].path
        self._unfinished = weakref.finalize(self, remove_unfinished, directory, project, wheels_in(directory), member)

    def _discard(self) -> None:
        self._payload, self._beside = (), ()
        if self._release is not None:
            self._release()
            self._release = None

    @contextmanager
    def _reported(self) -> Iterator[None]:
        """Turn our errors into one paragraph on stderr and exit status 1, which every frontend shows."""
        try:
            yield
        except LowerError as error:
            self.app.abort(f"hatch-lower: {error}")
        except ModuleNotFoundError:
            from hatch_lower.config.requirements import refuse_incomplete

            try:
                refuse_incomplete()
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
    """Return a project whose models have their weights, whatever a release leaves out: these are being worked on."""
    from dataclasses import replace

    models = tuple(replace(model, weights=()) for model in project.settings.models)
    return replace(project, settings=replace(project.settings, models=models))


def release(work: Path, descriptor: int | None) -> None:
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

    with suppress(ValueError):  # not in the main thread, where none arrives
        signal.signal(signal.SIGINT, signal.SIG_IGN)
