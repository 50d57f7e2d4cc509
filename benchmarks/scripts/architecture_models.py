"""Small random models of many architectures of transformers, for `architectures.py`.

`make(NAME)` returns a model in evaluation mode. All parameters are drawn with sizes at which layers change their input:
the usual small weights of an untrained model would hide differences.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["ARCHITECTURES", "KINDS", "Architecture", "make"]

READS_IMAGES = "language model that reads images"
WORDS = 99  # size of vocabularies
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
TEXT = {"vocab_size": WORDS, **SMALL}
CAUSAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "max_position_embeddings": 128, **TEXT}
GROUPED = {"num_key_value_heads": 2, **CAUSAL}
BESIDE = {"vocab_size": WORDS, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2}
BESIDE |= {"encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
BESIDE |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
BESIDE |= {"max_position_embeddings": 128, "forced_eos_token_id": None}
RELATIVE = {"vocab_size": WORDS, "d_model": 32, "d_ff": 64, "num_layers": 2, "num_heads": 4, "d_kv": 8}
RELATIVE |= {"pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 1}
IMAGE = {"image_size": 32, "patch_size": 8, **SMALL}
SOUND = {"vocab_size": 32, "conv_dim": (16,) * 7, "num_feat_extract_layers": 7, **SMALL}
SOUND |= {"conv_kernel": (10, 3, 3, 3, 3, 2, 2), "conv_stride": (5, 2, 2, 2, 2, 2, 2)}
SOUND |= {"num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4}
SEEN = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
SEEN |= {"image_size": 16, "patch_size": 4}
CLIP, SIGLIP = ({"model_type": f"{kind}_vision_model", **SEEN} for kind in ("clip", "siglip"))
PIXTRAL = {"model_type": "pixtral", "head_dim": 8, **SMALL, "image_size": 16, "patch_size": 4}
GRIDS = {"image_grid_pinpoints": [[16, 32], [32, 16], [32, 32], [16, 48]]}
READER = {**GROUPED, "max_position_embeddings": 512, "head_dim": 8}
SIZED = {**READER, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}}
QWEN_TOKENS = {"image_token_id": 97, "video_token_id": 88, "vision_start_token_id": 89, "vision_end_token_id": 90}
DEEP = {"hidden_sizes": [16, 32], "depths": [1, 1]}
LINES = {"out_features": ["stage1", "stage2"]}
PAIR = {
    "text_config": {"max_position_embeddings": 32, "projection_dim": 16, **TEXT},
    "vision_config": {"projection_dim": 16, **IMAGE},
}


@dataclass(frozen=True)
class Architecture:
    kind: str  # a group of the table
    model: str  # the class
    config: Mapping[str, Any]
    task: str = ""  # where the class alone does not decide
    name: str = ""  # default: the class
    parts: Mapping[str, tuple[str, Mapping[str, Any]]] = field(
        default_factory=dict
    )  # configurations in the configuration


def group(kind: str, models: Mapping[str, Mapping[str, Any]]) -> list[Architecture]:
    return [Architecture(kind, model, config) for model, config in models.items()]


FOUND = [
    *group(
        "text encoder",
        {
            "BertForSequenceClassification": TEXT,
            "RobertaForSequenceClassification": {"max_position_embeddings": 66, **TEXT},
            "DistilBertForSequenceClassification": {
                "vocab_size": WORDS,
                "dim": 32,
                "n_layers": 2,
                "n_heads": 4,
                "hidden_dim": 64,
            },
            "AlbertForMaskedLM": {"embedding_size": 16, **TEXT},
            "ElectraForTokenClassification": {"embedding_size": 16, **TEXT},
            "DebertaV2ForSequenceClassification": {
                "relative_attention": True,
                "pos_att_type": ["p2c", "c2p"],
                "position_buckets": 8,
                **TEXT,
            },
            "MPNetForMaskedLM": TEXT,
            "XLMRobertaForTokenClassification": {"max_position_embeddings": 66, **TEXT},
            "CamembertForQuestionAnswering": {"max_position_embeddings": 66, **TEXT},
            "ConvBertForSequenceClassification": {"embedding_size": 16, **TEXT},
            "MobileBertForSequenceClassification": {"embedding_size": 32, "intra_bottleneck_size": 32, **TEXT},
            "SqueezeBertForSequenceClassification": {"embedding_size": 32, **TEXT},
            "NystromformerForMaskedLM": TEXT,
            "LayoutLMForTokenClassification": TEXT,
            "BigBirdForMaskedLM": {"attention_type": "original_full", **TEXT},
            "RoFormerForSequenceClassification": {"embedding_size": 32, "max_position_embeddings": 128, **TEXT},
            "FNetForSequenceClassification": TEXT,
            "ModernBertForSequenceClassification": {"local_attention": 8, "pad_token_id": 0, **TEXT},
            "EsmForMaskedLM": {
                "mask_token_id": 4,
                "pad_token_id": 1,
                "position_embedding_type": "rotary",
                "token_dropout": True,
                **TEXT,
            },
            "XLNetForSequenceClassification": {
                "vocab_size": WORDS,
                "d_model": 32,
                "n_layer": 2,
                "n_head": 4,
                "d_inner": 64,
            },
            "FunnelForSequenceClassification": {
                "vocab_size": WORDS,
                "block_sizes": [1, 1],
                "d_model": 32,
                "n_head": 4,
                "d_head": 8,
                "d_inner": 64,
            },
            "LongformerForSequenceClassification": {"attention_window": 8, **TEXT},
        },
    ),
    *group(
        "causal language model",
        {
            "LlamaForCausalLM": GROUPED,
            "MistralForCausalLM": {"sliding_window": 8, **GROUPED},
            "Qwen2ForCausalLM": GROUPED,
            "Qwen3ForCausalLM": {"head_dim": 8, **GROUPED},
            "Gemma2ForCausalLM": {"head_dim": 8, "sliding_window": 8, **GROUPED},
            "Gemma3ForCausalLM": {"head_dim": 8, "sliding_window": 8, **GROUPED},
            "GPT2LMHeadModel": {
                "vocab_size": WORDS,
                "n_embd": 32,
                "n_layer": 2,
                "n_head": 4,
                "n_positions": 128,
                "bos_token_id": 1,
                "eos_token_id": 2,
                "pad_token_id": 0,
            },
            "GPTNeoXForCausalLM": CAUSAL,
            "OPTForCausalLM": {
                "ffn_dim": 64,
                "word_embed_proj_dim": 32,
                **{k: v for k, v in CAUSAL.items() if k != "intermediate_size"},
            },
            "PhiForCausalLM": CAUSAL,
            "Phi3ForCausalLM": GROUPED,
            "FalconForCausalLM": {"alibi": False, **{k: v for k, v in CAUSAL.items() if k != "intermediate_size"}},
            "MixtralForCausalLM": {"num_local_experts": 2, "num_experts_per_tok": 1, **GROUPED},
        },
    ),
    *group(
        "encoder with a decoder",
        {
            "T5ForConditionalGeneration": RELATIVE,
            "T5ForSequenceClassification": RELATIVE,
            "BartForConditionalGeneration": BESIDE,
            "BartForSequenceClassification": BESIDE,
            "MBartForConditionalGeneration": BESIDE,
            "PegasusForConditionalGeneration": BESIDE,
            "MarianMTModel": BESIDE,
            "M2M100ForConditionalGeneration": BESIDE,
            "WhisperForConditionalGeneration": {
                "max_source_positions": 20,
                "max_target_positions": 64,
                "num_mel_bins": 8,
                "suppress_tokens": None,
                "begin_suppress_tokens": None,
                **{k: v for k, v in BESIDE.items() if k != "max_position_embeddings"},
            },
            "MoonshineForConditionalGeneration": {
                "vocab_size": WORDS,
                "hidden_size": 32,
                "intermediate_size": 64,
                "encoder_num_hidden_layers": 2,
                "decoder_num_hidden_layers": 2,
                "encoder_num_attention_heads": 4,
                "decoder_num_attention_heads": 4,
                "max_position_embeddings": 64,
            },
        },
    ),
    *group(
        "vision",
        {
            "ViTForImageClassification": IMAGE,
            "DeiTForImageClassification": IMAGE,
            "BeitForImageClassification": {
                "vocab_size": WORDS,
                "use_relative_position_bias": True,
                "out_indices": [0, 1],
                **IMAGE,
            },
            "SwinForImageClassification": {
                "image_size": 32,
                "patch_size": 4,
                "embed_dim": 16,
                "depths": [2, 1],
                "num_heads": [2, 4],
                "window_size": 4,
            },
            "ConvNextForImageClassification": {"image_size": 32, "num_stages": 2, **DEEP},
            "ResNetForImageClassification": {"embedding_size": 16, "layer_type": "basic", **DEEP},
            "Dinov2ForImageClassification": {**IMAGE, "mlp_ratio": 2},
            "SegformerForSemanticSegmentation": {
                "num_encoder_blocks": 2,
                "depths": [1, 1],
                "sr_ratios": [2, 1],
                "hidden_sizes": [16, 32],
                "patch_sizes": [7, 3],
                "strides": [4, 2],
                "num_attention_heads": [2, 4],
                "mlp_ratios": [2, 2],
                "decoder_hidden_size": 32,
                "image_size": 32,
            },
            "MobileViTForImageClassification": {
                "image_size": 64,
                "hidden_sizes": [16, 24, 32],
                "neck_hidden_sizes": [8, 8, 16, 16, 24, 24, 32],
                "num_attention_heads": 4,
            },
            "MobileNetV2ForImageClassification": {"image_size": 32, "depth_multiplier": 0.35},
            "DPTForDepthEstimation": {
                "is_hybrid": False,
                "backbone_out_indices": [0, 1, 2, 3],
                "neck_hidden_sizes": [8, 16, 16, 16],
                "fusion_hidden_size": 16,
                **IMAGE,
                "num_hidden_layers": 4,
            },
            "CLIPVisionModelWithProjection": {"projection_dim": 16, **IMAGE},
        },
    ),
    Architecture(
        "vision",
        "DetrForObjectDetection",
        {
            "num_queries": 5,
            "d_model": 32,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_ffn_dim": 64,
            "decoder_ffn_dim": 64,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "num_labels": 3,
        },
        parts={"backbone_config": ("ResNetConfig", {"embedding_size": 16, "layer_type": "basic", **DEEP, **LINES})},
    ),
    *group(
        "sound",
        {
            "Wav2Vec2ForCTC": SOUND,
            "HubertForSequenceClassification": SOUND,
            "WavLMForCTC": SOUND,
            "Wav2Vec2ForXVector": {"tdnn_dim": [16] * 5, "xvector_output_dim": 16, **SOUND},
            "SEWForCTC": {"squeeze_factor": 2, **SOUND},
            "Data2VecAudioForCTC": SOUND,
            "ASTForAudioClassification": {"max_length": 64, "num_mel_bins": 32, "patch_size": 8, **SMALL},
        },
    ),
    *group(
        "vision with language",
        {
            "CLIPModel": {"projection_dim": 16, **PAIR},
            "SiglipModel": PAIR,
            "BlipForImageTextRetrieval": {"projection_dim": 16, "image_text_hidden_size": 16, **PAIR},
            "ViltForQuestionAnswering": {"max_position_embeddings": 32, "num_labels": 3, **TEXT, **IMAGE},
        },
    ),
    *group(
        READS_IMAGES,
        {
            "LlavaForConditionalGeneration": {
                "image_token_id": 98,
                "text_config": {"model_type": "llama", **READER},
                "vision_config": CLIP,
            },
            "LlavaNextForConditionalGeneration": {
                "image_token_id": 98,
                "text_config": {"model_type": "mistral", **READER, "sliding_window": None},
                "vision_config": CLIP,
                **GRIDS,
            },
            "LlavaOnevisionForConditionalGeneration": {
                "image_token_id": 98,
                "video_token_id": 94,
                "text_config": {"model_type": "qwen2", **READER},
                "vision_config": SIGLIP,
                **GRIDS,
            },
            "Mistral3ForConditionalGeneration": {
                "image_token_id": 95,
                "text_config": {"model_type": "mistral", **READER, "sliding_window": None},
                "vision_config": PIXTRAL,
                "spatial_merge_size": 2,
            },
            "Gemma3ForConditionalGeneration": {
                "image_token_id": 98,
                "boi_token_id": 96,
                "eoi_token_id": 93,
                "text_config": {**READER, "sliding_window": 6},
                "vision_config": SEEN,
                "mm_tokens_per_image": 4,
            },
            "PaliGemmaForConditionalGeneration": {
                "image_token_id": 98,
                "text_config": {"model_type": "gemma", **READER},
                "vision_config": {**SIGLIP, "projection_dim": 32, "vision_use_head": False},
                "projection_dim": 32,
                "hidden_size": 32,
            },
            "Qwen2VLForConditionalGeneration": {
                **QWEN_TOKENS,
                "text_config": SIZED,
                "vision_config": {
                    "depth": 2,
                    "embed_dim": 16,
                    "hidden_size": 32,
                    "mlp_ratio": 2,
                    "num_heads": 2,
                    "patch_size": 4,
                },
            },
            "Qwen2_5_VLForConditionalGeneration": {
                **QWEN_TOKENS,
                "text_config": SIZED,
                "vision_config": {
                    "depth": 3,
                    "hidden_size": 16,
                    "intermediate_size": 24,
                    "out_hidden_size": 32,
                    "num_heads": 2,
                    "patch_size": 4,
                    "window_size": 16,
                    "fullatt_block_indexes": [1],
                },
            },
            "Qwen3VLForConditionalGeneration": {
                **QWEN_TOKENS,
                "text_config": SIZED,
                "vision_config": {
                    "depth": 3,
                    "hidden_size": 16,
                    "intermediate_size": 24,
                    "out_hidden_size": 32,
                    "num_heads": 2,
                    "patch_size": 4,
                    "num_position_embeddings": 16,
                    "deepstack_visual_indexes": [0, 2],
                },
            },
        },
    ),
    Architecture(
        READS_IMAGES,
        "LlavaForConditionalGeneration",
        {
            "image_token_id": 95,
            "text_config": {"model_type": "mistral", **READER, "sliding_window": None},
            "vision_config": PIXTRAL,
            "vision_feature_select_strategy": "full",
            "vision_feature_layer": -1,
        },
        name="LlavaForConditionalGeneration with Pixtral",
    ),
]
ARCHITECTURES = {each.name or each.model: each for each in FOUND}
KINDS = tuple(dict.fromkeys(each.kind for each in FOUND))


def make(name: str) -> Any:
    """Return a model with large random weights, the same each time."""
    import torch
    import transformers

    found = ARCHITECTURES[name]
    torch.manual_seed(0)
    kind = getattr(transformers, found.model)
    parts = {part: getattr(transformers, each)(**given) for part, (each, given) in found.parts.items()}
    model = kind(kind.config_class(**found.config, **parts)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn_like(parameter)
            if parameter.dim() > 1:
                parameter.copy_(noise / math.sqrt(parameter[0].numel()))
            else:
                parameter.add_(noise / 10)
    return model
