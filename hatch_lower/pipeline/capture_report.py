"""What a model exports, for the audit, which compares it with an earlier export; runs in the child process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from hatch_lower.cache.key import NoKeyError
from hatch_lower.cache.store import Store
from hatch_lower.config.settings import ModelSettings, Settings
from hatch_lower.events import Event, Reporter
from hatch_lower.format.codec import encode
from hatch_lower.format.manifest import ModelEntry
from hatch_lower.format.record import FORMS, ModelReport
from hatch_lower.pipeline.capture import CapturedModel
from hatch_lower.pipeline.emit.constants import SpanDigests
from hatch_lower.pipeline.reuse import describe_export


def capture_report(
    settings: Settings, model: ModelSettings, source: CapturedModel, folder: Path, reporter: Reporter
) -> ModelReport:
    """Return a report without files; it has no methods if something about the model has no digest."""

    def note(line: str) -> None:
        reporter.report(Event("audit", "note", model.name, detail=line))

    report = ModelReport(model.name, ModelEntry((), None, None, {}), files=(), torch=torch.__version__)
    try:
        export = describe_export(settings, model, source, Store(folder / FORMS, "on", note), SpanDigests(), None)
    except NoKeyError as error:
        note(f"it cannot be compared: {error}")
        return report
    return replace(report, methods=export.methods, key=encode(export.key.components()))
