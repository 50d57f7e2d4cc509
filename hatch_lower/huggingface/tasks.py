"""Tasks, under the names of transformers' pipelines, and the classes that load a checkpoint for a task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hatch_lower.errors import EntryPointError

# of several classes, the first that has the architecture
TASK_CLASSES: Mapping[str, tuple[str, ...]] = {
    "audio-classification": ("AutoModelForAudioClassification",),
    "automatic-speech-recognition": ("AutoModelForCTC", "AutoModelForSpeechSeq2Seq"),
    "depth-estimation": ("AutoModelForDepthEstimation",),
    "feature-extraction": ("AutoModel",),
    "fill-mask": ("AutoModelForMaskedLM",),
    "image-classification": ("AutoModelForImageClassification",),
    "image-feature-extraction": ("AutoModel",),
    "image-segmentation": ("AutoModelForSemanticSegmentation",),
    "image-text-to-text": ("AutoModelForImageTextToText",),
    "multiple-choice": ("AutoModelForMultipleChoice",),
    "object-detection": ("AutoModelForObjectDetection",),
    "question-answering": ("AutoModelForQuestionAnswering",),
    "text-classification": ("AutoModelForSequenceClassification",),
    "text-generation": ("AutoModelForCausalLM",),
    "text2text-generation": ("AutoModelForSeq2SeqLM",),
    "token-classification": ("AutoModelForTokenClassification",),
    "zero-shot-image-classification": ("AutoModelForZeroShotImageClassification",),
}


def refuse_lacking_task(config: Mapping[str, Any], task: str, where: str) -> None:
    """Refuse a task that the architecture of a checkpoint lacks, if transformers is installed and knows both."""
    try:
        tasks = tasks_of(config) if task else []
    except ImportError:  # the build requires transformers, and refuses the task, too
        return
    # a checkpoint's own code has classes that transformers does not list
    if tasks and task not in tasks and not any(name in (config.get("auto_map") or {}) for name in TASK_CLASSES[task]):
        raise lacking_task(config, task, where)


def lacking_task(config: Mapping[str, Any], task: str, where: str) -> EntryPointError:
    # `image-feature-extraction` has the class of `feature-extraction`, also where the architecture reads no images
    found = {TASK_CLASSES[each]: each for each in reversed(tasks_of(config))}
    listed = ", ".join(f"`{each}`" for each in sorted(found.values()))
    instead = f"take one of the architecture's tasks ({listed}), or remove the task" if listed else "remove the task"
    return EntryPointError(
        "the architecture of the checkpoint does not have the task",
        where=where,
        found=f"task `{task}`, architecture `{config.get('model_type')}`",
        hint=f"{instead}: the class that wrote the checkpoint is then taken",
    )


def tasks_of(config: Mapping[str, Any]) -> list[str]:
    """Return the tasks of a checkpoint's architecture; none for an architecture that transformers does not know."""
    kind = config.get("model_type")
    if not isinstance(kind, str):
        return []
    import transformers

    if kind not in transformers.CONFIG_MAPPING:
        return []
    found = transformers.CONFIG_MAPPING[kind]
    # by the test of `from_pretrained`; a class lacks the mapping where torch is not installed
    autos = {
        task: [getattr(getattr(transformers, name, None), "_model_mapping", ()) for name in names]
        for task, names in TASK_CLASSES.items()
    }
    return [task for task, mappings in autos.items() if any(found in mapping for mapping in mappings)]
