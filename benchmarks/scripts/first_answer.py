"""`first_answer.py FOLDER [ROUNDS]`: seconds from the start of a process to the label of a text, without torch.

The model is a text classifier of the size of BERT base with random weights and a tokenizer. The sides are its wheel for
`onnxruntime`, and ONNX Runtime with torch's own export, tokenizers and NumPy by hand. Each answer has a process of its
own; the sides take turns. FOLDER keeps the checkpoint, the wheel, the export, and an environment without torch. Needs
`hatch-lower[transformers,onnxruntime]`.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
SIDES = ("packaged", "by hand")
PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "reviews"
version = "1.0"

[tool.hatch.build.targets.wheel]
packages = ["reviews"]

[tool.hatch.build.hooks.lower]
backends = ["onnxruntime"]
runtime-requirements = "off"

[tool.hatch.build.hooks.lower.models.reviews]
transformers = "checkpoint"
"""


def write_checkpoint(folder: Path) -> None:
    import torch
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    config = BertConfig(id2label={0: "bad", 1: "good"}, label2id={"bad": 0, "good": 1})
    BertForSequenceClassification(config).save_pretrained(folder)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "this", "was", "a", "good", "film"]
    words += [f"##{number:x}" for number in range(config.vocab_size - len(words))]
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", [("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"pad_token": "[PAD]", "model_max_length": 512}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def export_by_hand(folder: Path) -> None:
    import torch
    from transformers import BertForSequenceClassification

    module = BertForSequenceClassification.from_pretrained(folder / "checkpoint").eval()
    module.config.return_dict = False
    names = ("input_ids", "attention_mask", "token_type_ids")
    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("sequence", max=512)}
    program = torch.onnx.export(
        module,
        kwargs={name: torch.ones(2, 12, dtype=torch.int64) for name in names},
        dynamic_shapes=dict.fromkeys(names, sizes),
        dynamo=True,
    )
    program.save(folder / "by_hand.onnx", external_data=True)


def prepare(folder: Path) -> None:
    (folder / "reviews").mkdir(parents=True)
    (folder / "reviews" / "__init__.py").touch()
    (folder / "pyproject.toml").write_text(PYPROJECT)
    write_checkpoint(folder / "checkpoint")
    export_by_hand(folder)
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel"], cwd=folder, check=True)
    subprocess.run([sys.executable, "-m", "venv", folder / "env"], check=True)
    (wheel,) = (folder / "dist").glob("*.whl")
    needs = [str(REPOSITORY), str(wheel), "numpy", "onnxruntime", "tokenizers"]
    subprocess.run([folder / "env" / "bin" / "pip", "install", "-q", *needs], check=True)


def measured(side: str, folder: Path) -> tuple[float, str]:
    """Return the seconds from the start of a process to its answer, and the answer."""
    script = Path(__file__).with_name("first_answer_measure.py")
    begin = time.perf_counter()
    command = [folder / "env" / "bin" / "python", script, side, folder]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        answer = child.stdout.readline().strip()
        return time.perf_counter() - begin, answer


def main(folder: Path, rounds: int) -> None:
    if not (folder / "env").exists():
        prepare(folder)
    for side in SIDES:  # files get into memory, and modules are compiled
        measured(side, folder)
    found = [{side: measured(side, folder) for side in SIDES} for _ in range(rounds)]
    if len(answers := {answer for each in found for _, answer in each.values()}) != 1:
        raise SystemExit(f"the answers differ: {', '.join(sorted(answers))}")
    seconds = {side: [each[side][0] for each in found] for side in SIDES}
    print("| side | median, s | least, s |")
    print("|---|---|---|")
    for side, times in seconds.items():
        print(f"| {side} | {statistics.median(times):.3f} | {min(times):.3f} |")
    packaged, by_hand = (seconds[side] for side in SIDES)
    ratio, least = statistics.median(packaged) / statistics.median(by_hand), min(packaged) / min(by_hand)
    print(f"| ratio | {ratio:.2f} | {least:.2f} |")


main(Path(sys.argv[1]).resolve(), int(sys.argv[2]) if len(sys.argv) > 2 else 10)
