"""What the build's parent tells a child process. What the child answers is a `ModelReport`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hatch_lower.config.settings import Settings


@dataclass(frozen=True, slots=True)
class Request:
    """What a child process is to do.

    Args:
        settings: of the build.
        model: the name of the model to lower.
        folder: where it writes the model's files, and the answer.
        lower: `module:function` that does the work: `hatch_lower.pipeline.lower_model:lower_model`.
        search_path: directories for the front of `sys.path`: the project as if it were installed.
        import_roots: those of them that hold the user's own code.
        later_hooks: build hooks that run after this one.
        events: file descriptor for events, as JSON lines.
        manifest: components of the `ManifestKey` under which the result is remembered; empty if it is not.
        recorded_path: `sys.path` of the child process by which its inputs are located, without folders of this build.
        work: the folder of this build.
        log: what the preloaded library writes; `None` if there is no such library.
        variables: of the environment, which put that library into the process.
        project: what is recorded of the project's metadata where it is read.
    """

    settings: Settings
    model: str
    folder: Path
    lower: str
    search_path: tuple[Path, ...]
    import_roots: tuple[Path, ...]
    later_hooks: tuple[str, ...]
    events: int
    manifest: Mapping[str, Any] = field(default_factory=dict)
    recorded_path: tuple[Path, ...] = ()
    work: Path | None = None
    log: Path | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    project: Mapping[str, str] = field(default_factory=dict)
