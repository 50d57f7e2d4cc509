"""Tasks, under the names of transformers' pipelines, and the classes that load a checkpoint for a task."""

from __future__ import annotations

from collections.abc import Mapping

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
