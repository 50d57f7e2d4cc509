"""The build hook `lower`: a doorway. Hatchling loads it in other people's builds too, so it imports next to nothing."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

from hatch_lower.errors import LowerError

if TYPE_CHECKING:
    from hatch_lower.hatch.project import Project
    from hatch_lower.results import PayloadFile

__all__ = ["LowerBuildHook"]

WORK_PREFIX = "hatch-lower-"


class LowerBuildHook(BuildHookInterface[Any]):
    """Lowers the project's models before hatchling builds the wheel, and adds them to the wheel afterwards."""

    PLUGIN_NAME = "lower"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._payload: Sequence[PayloadFile] = ()
        self._release: weakref.finalize[Any, Any] | None = None

    def clean(self, versions: list[str]) -> None:
        """Remove what a killed build has left beside the wheels; nothing of ours is anywhere else in the project."""
        from hatch_lower.hatch.wheel import remove_temporaries

        remove_temporaries(Path(self.directory))

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Lower the models for a wheel; for a source distribution, add the files that lowering will need."""
        self._discard()
        with self._reported():
            if self.target_name == "sdist":
                self._carry_inputs(build_data)
            elif self.target_name == "wheel":
                self._prepare(version, build_data)

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Add the payload to the finished wheel."""
        if not self._payload:
            return
        from hatch_lower.hatch.wheel import append_payload

        try:
            with self._reported():
                append_payload(Path(artifact_path), self._payload)
        finally:
            self._discard()

    def _carry_inputs(self, build_data: dict[str, Any]) -> None:
        from hatch_lower.hatch.project import input_files

        for path in input_files(self):
            build_data["force_include"][str(path)] = str(path.relative_to(self.root))

    def _prepare(self, version: str, build_data: dict[str, Any]) -> None:
        from hatch_lower.hatch.project import read_project

        project = read_project(self, build_data)
        editable = version == "editable"
        if editable and project.settings.editable == "skip":
            return
        work = self._open_work()
        try:
            if editable and project.settings.editable == "eager":
                from hatch_lower.hatch.eager import write_eager

                self._payload = write_eager(project.settings, work)
            else:
                self._payload = self._lower(project, work, build_data, editable)
        except BaseException:
            self._discard()
            raise

    def _lower(self, project: Project, work: Path, build_data: dict[str, Any], editable: bool) -> Sequence[PayloadFile]:
        from hatch_lower.build import build
        from hatch_lower.cache.store import open_store
        from hatch_lower.hatch.project import set_tag
        from hatch_lower.hatch.requirements import requirements_to_add
        from hatch_lower.hatch.tags import remembering, tag_of
        from hatch_lower.hatch.terminal import reporter_for, summary_lines

        reporter = reporter_for(self.app)
        try:
            result = build(project.settings, work, reporter, surroundings=project.surroundings)
        finally:
            reporter.close()
        mode, declared = project.settings.runtime_requirements, self.metadata.core.dependencies
        build_data["dependencies"].extend(requirements_to_add(mode, result.requirements, declared))
        if not editable:  # hatchling sets an editable wheel's tag itself, and the files that it points at are not in it
            store = open_store(os.environ, self.app.display_warning)
            digests = {file.source: file.sha256 for file in result.payload}
            set_tag(build_data, tag_of(result.native, remembering(store, digests)))
            for warning in project.repetition_warnings(result.payload):
                self.app.display_warning(f"hatch-lower: {warning}")
        for line in summary_lines(result.rows):
            self.app.display_info(line)
        return result.payload

    def _open_work(self) -> Path:
        """Return a new private folder; it goes at the latest when the interpreter ends, finalized or not.

        Those of builds that were killed go now.
        """
        from hatch_lower.abandoned import LOCK, make_held, remove_abandoned

        path = Path(tempfile.mkdtemp(prefix=WORK_PREFIX))
        remove_abandoned(path.parent, f"{WORK_PREFIX}*")
        descriptor = make_held(path / LOCK)
        self._release = weakref.finalize(self, release, path, descriptor)
        return path

    def _discard(self) -> None:
        self._payload = ()
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


def release(work: Path, descriptor: int) -> None:
    """Remove a build's folder, and let go of it."""
    shutil.rmtree(work, ignore_errors=True)
    os.close(descriptor)
