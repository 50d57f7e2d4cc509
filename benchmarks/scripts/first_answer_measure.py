"""`first_answer_measure.py SIDE FOLDER`: the label of a text and its score, in a process of its own.

SIDE is `packaged` for the installed wheel, or `by hand` for ONNX Runtime, tokenizers and NumPy.
"""

import sys

TEXT = "this was a good film"


def packaged() -> str:
    import hatch_lower

    model = hatch_lower.load("reviews")
    (logits,) = model(**model.preprocess(TEXT)).logits
    return f"{model.labels[logits.argmax()]} {logits.max():.4f}"


def by_hand(folder: str) -> str:
    import json

    import numpy
    import onnxruntime
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(f"{folder}/checkpoint/tokenizer.json")
    session = onnxruntime.InferenceSession(f"{folder}/by_hand.onnx", providers=["CPUExecutionProvider"])
    row = tokenizer.encode(TEXT)
    given = {"input_ids": row.ids, "attention_mask": row.attention_mask, "token_type_ids": row.type_ids}
    ((logits,),) = session.run(None, {name: numpy.array([each], dtype=numpy.int64) for name, each in given.items()})
    with open(f"{folder}/checkpoint/config.json") as file:
        labels = json.load(file)["id2label"]
    return f"{labels[str(logits.argmax())]} {logits.max():.4f}"


print(packaged() if sys.argv[1] == "packaged" else by_hand(sys.argv[2]), flush=True)
