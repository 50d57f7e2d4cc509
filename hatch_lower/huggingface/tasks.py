"""Tasks, under the names of transformers' pipelines, and the classes that load a checkpoint for a task."""

from __future__ import annotations

from collections.abc import Mapping

TASK_CLASSES: Mapping[str, str] = {
    "audio-classification": "AutoModelForAudioClassification",
    "automatic-speech-recognition": "AutoModelForCTC",
    "depth-estimation": "AutoModelForDepthEstimation",
    "feature-extraction": "AutoModel",
    "fill-mask": "AutoModelForMaskedLM",
    "image-classification": "AutoModelForImageClassification",
    "image-feature-extraction": "AutoModel",
    "image-segmentation": "AutoModelForSemanticSegmentation",
    "multiple-choice": "AutoModelForMultipleChoice",
    "object-detection": "AutoModelForObjectDetection",
    "question-answering": "AutoModelForQuestionAnswering",
    "text-classification": "AutoModelForSequenceClassification",
    "text-generation": "AutoModelForCausalLM",
    "text2text-generation": "AutoModelForSeq2SeqLM",
    "token-classification": "AutoModelForTokenClassification",
    "zero-shot-image-classification": "AutoModelForZeroShotImageClassification",
}
