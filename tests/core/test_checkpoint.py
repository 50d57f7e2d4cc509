"""Checkpoints of transformers as models: the setting, the class of a task, complete weights, inputs, and assets."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.weights import COMMIT, hub_answers, served

from hatch_lower.cache.store import open_store
from hatch_lower.config.checkpoint import CheckpointFolder, absolute_export, checkpoint_of
from hatch_lower.config.settings import Metadata, Settings, read_settings
from hatch_lower.driver.checkpoints import link_checkpoint, obtain_checkpoints
from hatch_lower.driver.sources import find_assets
from hatch_lower.errors import ConfigError, EntryPointError, ProgramError
from hatch_lower.events import NullReporter
from hatch_lower.huggingface import model
from hatch_lower.huggingface.checkpoint import checkpoint_files, checkpoint_model
from hatch_lower.pipeline.capture import CapturedModel, capture_model
from hatch_lower.pipeline.discover import EntryPoint, checked_exports, discover
from hatch_lower.runtime.eager import make_eager, modules_of

SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
WORDS = {"vocab_size": 99, **SMALL}
SOUND = {
    **SMALL,
    "conv_dim": (16, 16),
    "conv_kernel": (10, 3),
    "conv_stride": (5, 2),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    "vocab_size": 32,
}


@pytest.fixture(scope="module")
def transformers() -> Any:
    pytest.importorskip("transformers.exporters")
    return pytest.importorskip("transformers")


def bert(transformers: Any, kind: str = "BertForSequenceClassification") -> Any:
    torch.manual_seed(0)
    return getattr(transformers, kind)(transformers.BertConfig(**WORDS)).eval()


@pytest.fixture
def folder(transformers: Any, tmp_path: Path) -> Path:
    bert(transformers).save_pretrained(tmp_path / "models" / "reviews")
    return tmp_path / "models" / "reviews"


def settings(root: Path, **reviews: Any) -> Settings:
    project = Metadata("reviews", "1.0", {})
    return read_settings(
        {"models": {"reviews": reviews}}, project, root=root, packages=["reviews"], regular=["reviews"]
    )


# The setting


def test_an_export_is_a_checkpoint_or_an_entry_point() -> None:
    for checkpoint in (CheckpointFolder("models/reviews"), CheckpointFolder("models/reviews", "fill-mask")):
        assert checkpoint_of(checkpoint.export) == checkpoint
    sentences = CheckpointFolder("models/words", library="sentence-transformers")
    assert checkpoint_of("sentence-transformers:models/words") == sentences
    assert checkpoint_of("digits.model:export") is None
    assert checkpoint_of("transformers:pipeline#") is None
    assert (
        absolute_export("transformers:models/a#fill-mask", Path("/project"))
        == "transformers:/project/models/a#fill-mask"
    )
    assert absolute_export("digits.model:export", Path("/project")) == "digits.model:export"


def test_a_checkpoint_declares_a_model_in_the_only_package(tmp_path: Path) -> None:
    (found,) = settings(tmp_path, transformers="models/reviews/", task="text-classification").models
    assert (found.export, found.package) == ("transformers:models/reviews#text-classification", "reviews")


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"transformers": "models/a", "export": "a.b:c"}, "has `export` and `transformers`; keep one of them"),
        ({"export": "a.b:c", "task": "fill-mask"}, "is the task of a checkpoint, and the model has no `transformers`"),
        ({"transformers": "../models"}, "must be a folder of the project, such as `models/reviews`"),
        ({"transformers": "models/*"}, "must be a folder of the project, such as `models/reviews`"),
        ({"transformers": "/models"}, "must be a folder of the project, such as `models/reviews`"),
        ({"transformers": "models/a", "task": "Fill Mask"}, "must be a task of transformers"),
        ({}, "has no `export` or checkpoint (`transformers`, `sentence-transformers`, `timm`)"),
    ],
)
def test_a_wrong_table_is_refused(table: dict[str, str], words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        settings(tmp_path, **table)
    assert words in error.value.found


def test_a_checkpoint_beside_several_packages_needs_a_package(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a checkpoint is in none of the wheel's packages"):
        read_settings(
            {"models": {"reviews": {"transformers": "models/reviews"}}},
            Metadata("reviews", "1.0", {}),
            root=tmp_path,
            packages=["one", "two"],
            regular=["one", "two"],
        )


# The checkpoint


def test_the_configuration_decides_the_class_without_a_task(folder: Path) -> None:
    found = checkpoint_model(CheckpointFolder(str(folder), ""), Path(), "here")
    assert type(found.module).__name__ == "BertForSequenceClassification"
    assert not found.module.training
    assert {parameter.dtype for parameter in found.module.parameters()} == {torch.float32}


def test_weights_in_half_precision_are_loaded_as_float32(transformers: Any, tmp_path: Path) -> None:
    bert(transformers).to(torch.bfloat16).save_pretrained(tmp_path)
    found = checkpoint_model(CheckpointFolder(str(tmp_path), ""), Path(), "here")
    assert {parameter.dtype for parameter in found.module.parameters()} == {torch.float32}


def test_parameters_that_the_checkpoint_lacks_are_refused(transformers: Any, tmp_path: Path) -> None:
    bert(transformers, "BertModel").save_pretrained(tmp_path)
    with pytest.raises(EntryPointError, match="no weights for parameters of `BertForTokenClassification`") as error:
        checkpoint_model(CheckpointFolder(str(tmp_path), "token-classification"), Path(), "here")
    assert error.value.found == "`classifier.bias`, `classifier.weight`"


def test_a_task_that_the_architecture_lacks_is_refused(folder: Path) -> None:
    with pytest.raises(EntryPointError, match="the architecture of the checkpoint does not have the task") as error:
        checkpoint_model(CheckpointFolder(str(folder), "image-classification"), Path(), "here")
    assert error.value.found == "task `image-classification`, architecture `bert`"
    assert "`feature-extraction`, `fill-mask`, `multiple-choice`" in error.value.hint
    assert "or remove the task: the class that wrote the checkpoint is then taken" in error.value.hint


@pytest.mark.parametrize(
    ("config", "task", "what"),
    [
        (None, "", "the folder holds no checkpoint"),
        ("{", "", "the folder holds no checkpoint"),
        ("[]", "", "the folder holds no checkpoint"),
        ({"architectures": 5}, "", "`architectures` is no list of names"),
        ({"architectures": [5]}, "", "`architectures` is no list of names"),
        ({"auto_map": {"AutoModel": "modeling.Net"}}, "", "brings code of its own"),
        ({"model_type": "bert"}, "", "the task of the checkpoint is not known"),
        ({"architectures": ["BertForNothing"]}, "", "transformers has no class `BertForNothing`"),
        ({"model_type": "bert"}, "text-clasification", "there is no such task"),
    ],
)
def test_a_folder_without_a_usable_checkpoint_is_refused(
    config: object, task: str, what: str, transformers: Any, tmp_path: Path
) -> None:
    if config is not None:
        text = config if isinstance(config, str) else json.dumps(config)
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(EntryPointError, match=what) as error:
        checkpoint_model(CheckpointFolder(str(tmp_path), task), Path(), "here")
    assert error.value.where == "here"
    assert error.value.hint or not isinstance(config, dict)


def test_a_checkpoint_without_weights_is_an_error_of_the_setting(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    root = folder.parents[1]
    with pytest.raises(EntryPointError, match="must have its weights in safetensors files") as error:
        discover(EntryPoint("reviews", "transformers:models/reviews", root))
    assert error.value.where == 'model `reviews`, `transformers = "models/reviews"`'


def test_pickled_weights_are_refused_with_the_line_that_converts_them(folder: Path) -> None:
    from safetensors.torch import load_file

    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    checkpoint = CheckpointFolder(str(folder), "")
    with pytest.raises(EntryPointError, match="must have its weights in safetensors files") as error:
        checkpoint_model(checkpoint, Path(), "here")
    assert error.value.found == "pickled weights alone: `pytorch_model.bin`"
    _, _, line = error.value.hint.partition('python -c "')
    exec(line.removesuffix('"'), {})
    assert set(checkpoint_model(checkpoint, Path(), "here").methods) == {"forward"}


def test_a_checkpoint_in_parts_is_whole(transformers: Any, tmp_path: Path) -> None:
    bert(transformers).save_pretrained(tmp_path, max_shard_size="20KB")
    checkpoint = CheckpointFolder(str(tmp_path), "")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    assert set(checkpoint_model(checkpoint, Path(), "here").methods) == {"forward"}
    (lost, *_) = sorted(tmp_path.glob("*.safetensors"))
    lost.unlink()
    with pytest.raises(EntryPointError, match="must have its weights in safetensors files") as error:
        checkpoint_model(checkpoint, Path(), "here")
    assert error.value.found == f"no file `{lost.name}` in {tmp_path}"


POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 9\n".encode()
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "a header that is no JSON": lambda data: data[:8] + b"#" + data[9:],
    "the length of another header": lambda data: b"\xff" * 8 + data[8:],
    "the first half": lambda data: data[: len(data) // 2],
    "nothing": lambda _: b"",
    "a pointer": lambda _: POINTER,
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("is_whole", [True, False])
def test_a_damaged_file_of_weights_is_named(damage: str, is_whole: bool, transformers: Any, tmp_path: Path) -> None:
    bert(transformers).save_pretrained(tmp_path, max_shard_size="5GB" if is_whole else "20KB")
    path = max(tmp_path.glob("*.safetensors"))
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    with pytest.raises(EntryPointError, match="a file of weights is damaged") as error:
        checkpoint_model(CheckpointFolder(str(tmp_path), ""), Path(), "here")
    assert error.value.found.startswith(f"{path}: ")
    assert ("git lfs pull" in error.value.hint) is (damage == "a pointer")


@pytest.mark.parametrize("index", ["{", "[]", "{}", '{"weight_map": {}}', '{"weight_map": []}'])
def test_a_damaged_list_of_weights_is_named(index: str, transformers: Any, tmp_path: Path) -> None:
    bert(transformers).save_pretrained(tmp_path, max_shard_size="20KB")
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(EntryPointError, match="the list of a checkpoint's weights cannot be read") as error:
        checkpoint_model(CheckpointFolder(str(tmp_path), ""), Path(), "here")
    assert "model.safetensors.index.json: " in error.value.found


def change_config(folder: Path, **members: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **members}))


def test_weights_of_other_sizes_are_named(folder: Path) -> None:
    change_config(folder, intermediate_size=48)
    with pytest.raises(EntryPointError, match="weights do not fit `BertForSequenceClassification`") as error:
        checkpoint_model(CheckpointFolder(str(folder), ""), Path(), "here")
    assert "`bert.encoder.layer.0.intermediate.dense.bias`: [64], where the model has [48]" in error.value.found


def test_an_unknown_architecture_is_an_error_of_the_checkpoint(folder: Path) -> None:
    change_config(folder, model_type="brand_new")
    with pytest.raises(EntryPointError, match="the checkpoint could not be loaded") as error:
        discover(EntryPoint("reviews", "transformers:models/reviews#text-classification", folder.parents[1]))
    assert "`brand_new`" in error.value.found


def test_an_adapter_alone_is_refused_with_its_merging(transformers: Any, tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(EntryPointError, match="the folder holds no checkpoint") as error:
        checkpoint_model(CheckpointFolder(str(tmp_path), ""), Path(), "here")
    assert "merge_and_unload()" in error.value.hint


def test_discovery_returns_the_model_of_a_checkpoint(folder: Path) -> None:
    found: Any = discover(EntryPoint("reviews", "transformers:models/reviews#text-classification", folder.parents[1]))
    assert list(found.methods) == ["forward"]


def test_an_editable_install_runs_the_module_itself(transformers: Any, folder: Path) -> None:
    eager = make_eager("reviews", absolute_export("transformers:models/reviews", folder.parents[1]))
    ids = torch.arange(6).reshape(2, 3)
    expected = bert(transformers)(input_ids=ids).logits
    found: Any = eager.methods["forward"](input_ids=ids)
    assert torch.equal(found.logits, expected)
    with pytest.raises(ProgramError, match="the entry point of model `reviews` failed"):
        make_eager("reviews", "transformers:/nowhere")


def test_configuration_tokenizer_and_licence_are_assets(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    names = ["config.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt", "merges.txt", "LICENSE"]
    for name in [*names, "model.safetensors", "training_args.bin", "README.md"]:
        (folder / name).write_text("{}")
    found = find_assets(settings(tmp_path, transformers="models"))
    assert found == {"reviews": {name: folder / name for name in sorted(names)}}


@pytest.mark.parametrize("contents", [b"{", b"", b"\xff"])
def test_an_asset_that_no_application_can_read_is_refused(contents: bytes, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "generation_config.json").write_bytes(contents)
    with pytest.raises(ConfigError) as error:
        find_assets(settings(tmp_path, transformers="models"))
    assert error.value.found.startswith("`models/generation_config.json`, an asset of model `reviews`, is no JSON: ")


def test_a_tokenizer_that_is_a_pointer_of_lfs_is_no_asset(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 9\n"
    (tmp_path / "models" / "tokenizer.json").write_text(pointer)
    with pytest.raises(ConfigError) as error:
        find_assets(settings(tmp_path, transformers="models"))
    assert "matches `models/tokenizer.json`, a Git LFS pointer" in error.value.found


def test_an_asset_of_the_table_with_the_name_of_a_checkpoint_s_file_is_refused(tmp_path: Path) -> None:
    for place in ("models", "other"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "config.json").write_text("{}")
    with pytest.raises(ConfigError) as error:
        find_assets(settings(tmp_path, transformers="models", assets=["other/config.json"]))
    assert "matches `other/config.json`, whose name `models/config.json` has" in error.value.found


# Example inputs


def captured(module: Any, **options: Any) -> CapturedModel:
    return capture_model("net", model(module, **options), NullReporter())


TEXT = {"input_ids": {"batch", "sequence"}, "attention_mask": {"batch", "sequence"}}
NETWORKS: dict[str, tuple[Callable[[Any], Any], dict[str, set[str]]]] = {
    "roberta": (
        lambda library: library.RobertaForMaskedLM(library.RobertaConfig(max_position_embeddings=40, **WORDS)),
        {**TEXT, "token_type_ids": TEXT["input_ids"]},
    ),
    "distilbert": (
        lambda library: library.DistilBertModel(
            library.DistilBertConfig(vocab_size=99, dim=32, n_layers=1, n_heads=2, hidden_dim=64)
        ),
        TEXT,
    ),
    "llama": (
        lambda library: library.LlamaForCausalLM(library.LlamaConfig(num_key_value_heads=2, **WORDS)),
        TEXT,
    ),
    "t5": (
        lambda library: library.T5ForConditionalGeneration(
            library.T5Config(vocab_size=99, d_model=32, d_ff=64, num_layers=1, num_heads=2, d_kv=16)
        ),
        {
            **TEXT,
            "decoder_input_ids": {"batch", "decoder_sequence"},
        },
    ),
    "vit": (
        lambda library: library.ViTForImageClassification(library.ViTConfig(image_size=32, patch_size=16, **SMALL)),
        {"pixel_values": {"batch"}},
    ),
    "clip": (
        lambda library: library.CLIPModel(
            library.CLIPConfig(
                text_config={"eos_token_id": 98, **WORDS},
                vision_config={"image_size": 32, "patch_size": 16, **SMALL},
                projection_dim=16,
            )
        ),
        {"pixel_values": {"batch"}, **TEXT},
    ),
    "wav2vec2": (
        lambda library: library.Wav2Vec2ForCTC(library.Wav2Vec2Config(**SOUND)),
        {"input_values": {"batch", "samples"}},
    ),
    "x-vector": (
        lambda library: library.Wav2Vec2ForXVector(
            library.Wav2Vec2Config(tdnn_dim=[8] * 3, tdnn_kernel=[5, 3, 3], tdnn_dilation=[1, 90, 190], **SOUND)
        ),
        {"input_values": {"batch", "samples"}},
    ),
    "spectrogram": (
        lambda library: library.ASTForAudioClassification(
            library.ASTConfig(max_length=32, num_mel_bins=16, patch_size=8, frequency_stride=8, time_stride=8, **SMALL)
        ),
        {"input_values": {"batch"}},
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_model_is_exported_with_inputs_of_its_kind(name: str, transformers: Any) -> None:
    make, expected = NETWORKS[name]
    torch.manual_seed(0)
    module = make(transformers).eval()
    declared = model(module).methods["forward"]
    sizes = {key: {dim.__name__ for dim in dims.values()} for key, dims in declared.dynamic_shapes.items()}
    assert sizes == expected
    (method,) = captured(module).methods
    assert set(method.dimensions.values()) == set().union(*expected.values())
    assert method.kwargs.keys() == expected.keys()


@pytest.mark.parametrize(
    ("kind", "config", "expected"),
    [
        ("ViltModel", {"image_size": 32, "patch_size": 16, **WORDS}, {"pixel_values", *TEXT, "token_type_ids"}),
        ("DetrForObjectDetection", {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1}, {"pixel_values"}),
    ],
)
def test_example_inputs_are_those_of_forward(
    kind: str, config: dict[str, Any], expected: set[str], transformers: Any
) -> None:
    # an image beside a text in a single configuration; a decoder without tokens
    from hatch_lower.huggingface.examples import made_inputs

    found = getattr(transformers, kind)
    if kind.startswith("Detr"):
        backbone = {"embedding_size": 8, "hidden_sizes": [8, 8], "depths": [1, 1], "out_features": ["stage2"]}
        config = {"backbone_config": transformers.ResNetConfig(**backbone), **config}
    assert made_inputs(found(found.config_class(**config))).keys() == expected


def test_a_model_without_a_limit_of_positions_takes_long_texts(transformers: Any) -> None:
    from hatch_lower.huggingface.examples import longest_text

    config = transformers.XLNetConfig(vocab_size=99, d_model=32, n_layer=1, n_head=2, d_inner=64)
    assert config.max_position_embeddings == -1
    assert longest_text(transformers.XLNetModel(config)) == 4096


def test_long_and_short_frequencies_are_in_one_program(transformers: Any) -> None:
    torch.manual_seed(0)
    factors = {"long_factor": [4.0] * 8, "short_factor": [1.0] * 8, "original_max_position_embeddings": 16}
    config = transformers.Phi3Config(
        max_position_embeddings=64,
        rope_parameters={"rope_type": "longrope", "rope_theta": 10000.0, **factors},
        pad_token_id=0,
        **WORDS,
    )
    module = transformers.Phi3ForSequenceClassification(config).eval()
    (method,) = captured(module).methods
    for length in (9, 16, 17, 40, 12):
        given = {"input_ids": torch.randint(1, 99, (2, length)), "attention_mask": torch.ones(2, length).long()}
        torch.testing.assert_close(method.program.module()(**given).logits, module(**given).logits)


def test_the_longest_text_is_the_number_of_positions(transformers: Any) -> None:
    from hatch_lower.huggingface.examples import longest_text

    make, _ = NETWORKS["roberta"]
    sequence = model(make(transformers)).methods["forward"].dynamic_shapes["input_ids"][1]
    assert sequence.max == 38, "the first two positions of the 40 are for padding"
    long = transformers.LlamaConfig(max_position_embeddings=9000, **WORDS)
    assert longest_text(transformers.LlamaModel(long)) == 9000


def test_the_example_has_padding_so_that_masks_are_compared(transformers: Any) -> None:
    mask = model(bert(transformers)).methods["forward"].kwargs["attention_mask"]
    assert mask.sum(1).tolist() == [12, 6]


def test_given_inputs_are_taken_as_they_are(transformers: Any) -> None:
    ids = torch.ones(1, 4, dtype=torch.int64)
    declared = model(bert(transformers), inputs={"input_ids": ids}).methods["forward"]
    assert declared.kwargs == {"input_ids": ids}
    assert declared.dynamic_shapes is None


def test_a_module_of_another_library_is_refused() -> None:
    pytest.importorskip("transformers")
    with pytest.raises(EntryPointError, match="takes a model of transformers") as error:
        model(torch.nn.Linear(2, 2))  # type: ignore[arg-type]
    assert error.value.found == "a value of type `Linear`"


def test_a_model_with_unknown_inputs_needs_given_inputs(transformers: Any) -> None:
    class Odd(transformers.BertModel):  # type: ignore[misc]
        main_input_name = "points"

    with pytest.raises(EntryPointError, match="the example inputs of the model are not known") as error:
        model(Odd(transformers.BertConfig(**WORDS)))
    assert error.value.found == "its main input is `points`"


def test_patches_are_in_place_during_the_export_only(transformers: Any) -> None:
    from transformers.utils import import_utils

    module = bert(transformers)
    declared = model(module)
    before = [vars(library).copy() for library in (torch, torch.nn.functional, import_utils)]
    seen: list[bool] = []
    with declared.exporting():
        seen.append(any(vars(torch.nn.functional)[name] is not value for name, value in before[1].items()))
    capture_model("net", declared, NullReporter())
    for library, names in zip((torch, torch.nn.functional, import_utils), before, strict=True):
        assert [name for name, value in names.items() if vars(library)[name] is not value] == []
    assert seen == [True]


@pytest.mark.parametrize("name", ["llama", "t5"])
def test_a_decoder_has_no_cache_among_its_outputs(name: str, transformers: Any) -> None:
    make, _ = NETWORKS[name]
    declared = model(make(transformers).eval())
    found: Any = declared.module(**declared.methods["forward"].kwargs)
    assert "past_key_values" not in found
    assert found.logits.shape[:2] == (2, 12)


# Encoders of sentences


@pytest.fixture(scope="module")
def encoder(transformers: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write an encoder with pooling and normalization."""
    library = pytest.importorskip("sentence_transformers")
    modules = pytest.importorskip("sentence_transformers.models")
    tokenizers = pytest.importorskip("tokenizers")
    folder = tmp_path_factory.mktemp("encoder")
    bert(transformers, "BertModel").save_pretrained(folder / "inner")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[PAD]": 0, "[UNK]": 1, "word": 2}, unk_token="[UNK]"))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]")
    tokenizer.save_pretrained(folder / "inner")
    parts = [modules.Transformer(str(folder / "inner")), modules.Pooling(32), modules.Normalize()]
    library.SentenceTransformer(modules=parts, device="cpu").save(str(folder / "words"))
    return folder / "words"


def test_pooling_and_normalization_are_part_of_the_method(encoder: Path) -> None:
    found: Any = discover(EntryPoint("words", f"sentence-transformers:{encoder.name}", encoder.parent))
    (method,) = capture_model("words", found, NullReporter()).methods
    assert set(method.dimensions.values()) == {"batch", "sequence"}
    ids = torch.tensor([[5, 6, 7, 8], [9, 0, 0, 0], [3, 4, 0, 0]])
    mask = (ids != 0).long()
    inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}
    embeddings = method.program.module()(**inputs)
    torch.testing.assert_close(embeddings.norm(dim=1), torch.ones(3))
    alone = {name: tensor[1:2, :1] for name, tensor in inputs.items()}
    torch.testing.assert_close(method.program.module()(**alone), embeddings[1:2])
    expected = found.module.encoder({name: tensor.clone() for name, tensor in inputs.items()})["sentence_embedding"]
    torch.testing.assert_close(embeddings, expected)


def test_fewer_dimensions_and_prompts_are_those_of_the_encoder(encoder: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    from hatch_lower.huggingface.sentences import sentence_model

    made = library.SentenceTransformer(str(encoder), device="cpu", truncate_dim=5)
    model = sentence_model(made)
    inputs = {name: each[:1, :3] for name, each in model.methods["forward"].kwargs.items()}
    assert model.module(**inputs).shape == (1, 5)
    made.prompts, made.default_prompt_name = {"query": "word "}, "query"
    sentence_model(made)
    made[1].include_prompt = False
    with pytest.raises(
        EntryPointError, match="the pooling of the encoder leaves out the tokens of its prompt"
    ) as error:
        sentence_model(made)
    assert "'word '" in error.value.found


def test_an_encoder_of_the_hub_is_that_of_its_folder(
    encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HATCH_LOWER_FETCH", "HF_HUB_OFFLINE", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    files = [path for path in encoder.rglob("*") if path.is_file()]
    given = settings(tmp_path, **{"sentence-transformers": f"org/name@{COMMIT}"})
    store = open_store({"HATCH_LOWER_CACHE_DIR": str(tmp_path / "cache")}, lambda line: None)
    with served(hub_answers({path.relative_to(encoder).as_posix(): path.read_bytes() for path in files})) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        obtain_checkpoints(tmp_path, given.models, store, NullReporter())
    (declared,) = given.models
    linked = link_checkpoint(declared, tmp_path)
    found: Any = discover(EntryPoint("words", declared.export, tmp_path, checkpoint=linked))
    here: Any = discover(EntryPoint("words", f"sentence-transformers:{encoder.name}", encoder.parent))
    inputs = found.methods["forward"].kwargs
    torch.testing.assert_close(found.module(**inputs), here.module(**inputs))


def test_init_finds_the_library_of_an_encoder(encoder: Path) -> None:
    from hatch_lower.cli.init import checked_folder

    root = encoder.parent
    assert checked_folder(root, encoder.name, None).export == f"sentence-transformers:{encoder.name}"
    assert checked_folder(root, encoder.name, "fill-mask").export == f"transformers:{encoder.name}#fill-mask"


def test_an_encoder_without_weights_of_a_layer_is_refused(encoder: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    place = shutil.copytree(encoder, tmp_path / "words")
    weights = load_file(place / "model.safetensors")
    (first, *_) = (name for name in weights if name.endswith("attention.self.query.weight"))
    pooler = {name for name in weights if "pooler" in name}
    assert pooler
    save_file({name: value for name, value in weights.items() if name not in pooler}, place / "model.safetensors")
    folder = CheckpointFolder(str(place), library="sentence-transformers")
    assert list(checkpoint_model(folder, Path(), "here").methods) == ["forward"], "the pooler is not read"
    save_file({name: value for name, value in weights.items() if name != first}, place / "model.safetensors")
    with pytest.raises(EntryPointError, match="the checkpoint has no weights for parameters of `BertModel`") as error:
        checkpoint_model(folder, Path(), "here")
    assert error.value.found == f"`{first}`"


def test_a_checkpoint_of_transformers_is_no_encoder_of_sentences(folder: Path) -> None:
    pytest.importorskip("sentence_transformers")
    with pytest.raises(EntryPointError, match="the folder holds no encoder of sentence-transformers"):
        checkpoint_model(CheckpointFolder(str(folder), library="sentence-transformers"), Path(), "here")


def test_an_encoder_that_begins_with_another_module_is_refused() -> None:
    pytest.importorskip("sentence_transformers")
    from hatch_lower.huggingface.sentences import sentence_model

    other: Any = torch.nn.Sequential(torch.nn.Linear(2, 2))
    with pytest.raises(EntryPointError, match="must begin with a text model of transformers") as error:
        sentence_model(other)
    assert error.value.found == "the modules `Linear`"


@pytest.mark.parametrize("library", ["transformers", "sentence-transformers"])
def test_a_missing_library_names_its_extra(library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library.replace("-", "_"), None)
    with pytest.raises(EntryPointError, match=f"a model of the table `{library}` needs the library") as error:
        checkpoint_model(CheckpointFolder(str(tmp_path), library=library), Path(), "here")
    assert error.value.hint == f'add "hatch-lower[{library}]" to `[build-system] requires`'


# Models that transformers has exported


def test_an_exported_model_of_transformers_is_taken(transformers: Any, tmp_path: Path) -> None:
    from transformers.exporters.exporter_dynamo import DynamoConfig, DynamoExporter

    ids = torch.arange(12).reshape(2, 6)
    module = bert(transformers)
    exported = DynamoExporter().export(module, {"input_ids": ids}, DynamoConfig(dynamic=True))
    taken: Any = checked_exports(exported, EntryPoint("reviews", "reviews:export", tmp_path))
    (method,) = capture_model("reviews", taken, NullReporter()).methods
    assert method.name == "forward"
    found = method.program.module()(input_ids=ids[:, :4])
    torch.testing.assert_close(found.logits, module(input_ids=ids[:, :4]).logits)
    modules = modules_of(exported)
    assert modules is not None
    assert list(modules) == ["forward"]


def test_a_build_needs_a_checkpoint_without_the_rest_of_its_training(tmp_path: Path) -> None:
    needed = ["config.json", "model.safetensors", "modules.json", "tokenizer.json", "2_Dense/model.safetensors"]
    spare = ["optimizer.pt", "checkpoint-500/config.json", "checkpoint-500/model.safetensors", "trainer_state.json"]
    for name in [*needed, *spare]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "modules.json").write_text('[{"path": ""}, {"path": "2_Dense"}, {"path": "../elsewhere"}]')
    assert [path.relative_to(tmp_path).as_posix() for path in checkpoint_files(tmp_path)] == needed
