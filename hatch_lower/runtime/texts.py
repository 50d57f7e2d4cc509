"""Inputs of a packaged model of transformers from texts, by the packaged tokenizer, and the labels of its outputs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hatch_lower.errors import InputError, ProgramError
from hatch_lower.format.timm_config import is_timm, label_names

if TYPE_CHECKING:
    from hatch_lower.runtime.arrays import Arrays

CONFIG, TOKENIZER, TOKENIZER_CONFIG = "config.json", "tokenizer.json", "tokenizer_config.json"
SPECIAL = "special_tokens_map.json"
NAMED = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
MORE_SPECIAL = ("additional_special_tokens", "extra_special_tokens")
PAD, JOINS = "pad_token", "clean_up_tokenization_spaces"
# of transformers' `clean_up_tokenization`, in this order
JOINED = (
    *((" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'")),
    *((f" {end}", end) for end in ("n't", "'m", "'s", "'ve", "'re")),
)
SENTENCES = "sentence_bert_config.json"  # an encoder of sentences may read less than its tokenizer
ENCODER = "config_sentence_transformers.json"  # with the prompt of each text
SURROGATE = re.compile("[\ud800-\udfff]")  # half a letter
MOST = 1 << 32  # numbers of tokens that a tokenizer can hold
UNLIMITED = 1_000_000  # tokens; a larger `model_max_length` stands for no limit


def read_labels(model: str, assets: Mapping[str, Path]) -> tuple[str, ...]:
    """Return the labels of a packaged configuration, by the index of the output."""
    config = read_asset(model, assets, CONFIG)
    found = label_names(config) if is_timm(config) else config.get("id2label")
    if not isinstance(found, Mapping) or sorted(found) != sorted(map(str, range(len(found)))):
        raise ProgramError(
            f"model `{model}` has no labels",
            where=str(assets[CONFIG]),
            found=f"no {'`label_names`' if is_timm(config) else '`id2label`'} for each output",
        )
    return tuple(str(found[str(index)]) for index in range(len(found)))


class TextReader:
    """A tokenizer with the padding and the limit of its configuration."""

    def __init__(self, model: str, assets: Mapping[str, Path]) -> None:
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise ProgramError(
                "texts need the library of tokenizers",
                where=f"model `{model}`",
                found=f"{type(error).__name__}: {error}",
                hint="install it: pip install tokenizers",
            ) from error
        self._model = model
        path = asset_path(model, assets, TOKENIZER)
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises plain exceptions
            raise ProgramError(
                "a tokenizer cannot be read", where=str(path), found=str(error), hint="build the wheel again"
            ) from error
        config, special, sentences, network = (
            read_asset(model, assets, name) if name in assets else {}
            for name in (TOKENIZER_CONFIG, SPECIAL, SENTENCES, CONFIG)
        )
        encoder = read_asset(model, assets, ENCODER) if ENCODER in assets else {}
        prompts = encoder.get("prompts")
        prompt = prompts.get(encoder.get("default_prompt_name")) if isinstance(prompts, Mapping) else None
        self._prompt = prompt if isinstance(prompt, str) else ""
        self._lowers = sentences.get("do_lower_case") is True
        is_bpe = type(self._tokenizer.model).__name__ == "BPE"
        self._joins = config.get(JOINS) is True and not is_bpe  # as transformers, which knows the harm to BPE
        self._set_up(config, [config.get("model_max_length"), sentences.get("max_seq_length")])
        self._add_special_tokens(config)
        if config.get("split_special_tokens"):
            self._tokenizer.encode_special_tokens = True  # special tokens in a text are read as its letters
        own = self._tokenizer.padding or {}
        self._set_padding(config, [config.get(PAD), special.get(PAD), own.get(PAD)], network.get(f"{PAD}_id"))

    def _add_special_tokens(self, config: Mapping[str, Any]) -> None:
        """Make the tokens that a configuration names special in texts, as transformers does; unknown ones are none."""
        from tokenizers import AddedToken

        named = [config.get(name) for name in NAMED]
        for more in (config.get(name) for name in MORE_SPECIAL):
            named += more.values() if isinstance(more, dict) else more if isinstance(more, list) else ()
        held = {token.content for token in self._tokenizer.get_added_tokens_decoder().values()}
        for each in named:
            given = each if isinstance(each, Mapping) else {"content": each}
            text = given.get("content")
            if isinstance(text, str) and text not in held and self._tokenizer.token_to_id(text) is not None:
                flags = {name: given.get(name) is True for name in ("lstrip", "rstrip", "single_word", "normalized")}
                self._tokenizer.add_special_tokens([AddedToken(text, special=True, **flags)])

    def _set_up(self, config: Mapping[str, Any], limits: Sequence[object]) -> None:
        longest = min((each for each in limits if isinstance(each, int) and each > 0), default=UNLIMITED + 1)
        if longest <= UNLIMITED:
            side = side_of(config, "truncation_side", self._tokenizer.truncation)
            self._tokenizer.enable_truncation(longest, direction=side)
        else:
            self._tokenizer.no_truncation()  # a limit of the library's own file, which transformers leaves out

    def _set_padding(self, config: Mapping[str, Any], named: Sequence[Any], number: Any) -> None:
        """Pad with the first token that the files name, or with the model's own token of a number."""
        texts = [each.get("content") if isinstance(each, Mapping) else each for each in named]
        token = next((each for each in texts if isinstance(each, str)), None)
        if token is None and isinstance(number, int):
            token = self.token(number)
        number = None if token is None else self._tokenizer.token_to_id(token)
        if number is None:
            self._tokenizer.no_padding()
        else:
            side = side_of(config, "padding_side", self._tokenizer.padding)
            self._tokenizer.enable_padding(direction=side, pad_id=number, pad_token=token)

    def read(self, texts: Sequence[str], pairs: Sequence[str] | None) -> dict[str, Any]:
        """Return arrays of int64 of shape (texts, tokens): `input_ids`, `attention_mask` and `token_type_ids`."""
        import numpy

        texts = [self._prompt + text for text in texts]
        if self._lowers:
            texts, pairs = lowered(texts), None if pairs is None else lowered(pairs)
        given: Sequence[Any] = texts if pairs is None else list(zip(texts, pairs, strict=True))
        try:
            rows = self._tokenizer.encode_batch(given)
        except Exception as error:  # the library raises plain exceptions
            raise InputError(
                "the tokenizer cannot read a text",
                where=f"model `{self._model}`",
                found=str(error),
                hint="a vocabulary without a token for unknown words reads known words alone",
            ) from error
        if len({len(row.ids) for row in rows}) > 1:
            raise InputError(
                "texts of different lengths need a token for padding",
                where=f"model `{self._model}`",
                found=f"no `{PAD}` in `{TOKENIZER_CONFIG}`, and no `{PAD}_id` in `{CONFIG}`",
                hint="give each text in a call of its own, or write a `pad_token` into the checkpoint",
            )
        members = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
        return {
            name: numpy.array([getattr(row, member) for row in rows], dtype=numpy.int64)
            for name, member in members.items()
        }

    def pad_left(self) -> None:
        if self._tokenizer.padding is not None:
            self._tokenizer.enable_padding(**{**self._tokenizer.padding, "direction": "left"})

    def token(self, number: int) -> str | None:
        """Return the text of a token, `None` for an unknown number."""
        found: str | None = self._tokenizer.id_to_token(number) if 0 <= number < MOST else None
        return found

    def text(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, without special tokens."""
        text: str = self._tokenizer.decode(tokens, skip_special_tokens=True)
        for spaced, joined in JOINED if self._joins else ():
            text = text.replace(spaced, joined)
        return text


def side_of(config: Mapping[str, Any], name: str, own: Mapping[str, Any] | None) -> Any:
    """Return a side of a configuration, by default that of a tokenizer's own file."""
    return config.get(name, "right" if own is None else own["direction"])


def lowered(texts: Sequence[str]) -> list[str]:
    return [text.lower() for text in texts]


def in_library(array: Any, arrays: Arrays) -> Any:
    """Return an array of NumPy as an array of a model's library, on its device."""
    if arrays.name == "numpy":
        return array
    import torch

    return arrays.placed(torch.from_numpy(array))


def in_numpy(array: Any, arrays: Arrays) -> Any:
    """Return an array of a model's library, or a list, as an array of NumPy."""
    import numpy

    if isinstance(array, arrays.kind):
        array = arrays.on_host(array)
    if hasattr(array, "numpy"):
        # NumPy has no bfloat16
        return (array.float() if str(array.dtype) == "torch.bfloat16" else array).numpy()
    try:
        return numpy.asarray(array)
    except ValueError as error:
        raise InputError(
            "rows must have the same length", found=str(error), hint="make the arguments with `model.preprocess(texts)`"
        ) from error


def checked_texts(value: object, name: str) -> list[str]:
    texts = [value] if isinstance(value, str) else value
    if isinstance(texts, (list, tuple)) and texts and all(isinstance(text, str) for text in texts):
        if halves := [text for text in texts if not text.isascii() and SURROGATE.search(text)]:
            raise InputError(
                f"`{name}` must be text that UTF-8 can encode",
                found=f"{halves[0]!r:.80}",
                hint='decode the bytes with `errors="replace"`',
            )
        return list(texts)
    raise InputError(
        f"`{name}` must be a text, or a list of texts", found=f"{value!r:.80}", hint="give at least one text"
    )


def checked_tokens(tokens: Any) -> Any:
    """Return an array of NumPy if a tokenizer can decode its rows."""
    if (
        tokens.ndim == 2
        and tokens.dtype.kind in "iu"
        and (tokens.size == 0 or 0 <= tokens.min() <= tokens.max() < MOST)
    ):
        return tokens
    raise InputError(
        "tokens must be integers from 0 on, of shape (rows, tokens)",
        found=f"{tokens.dtype} of shape {tokens.shape}",
        hint="give the result of `generate`",
    )


def read_asset(model: str, assets: Mapping[str, Path], name: str) -> Mapping[str, Any]:
    path = asset_path(model, assets, name)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(found, dict):
            return found
        reason = f"a value of type `{type(found).__name__}`"
    except (OSError, ValueError) as error:
        reason = str(error)
    raise ProgramError("a packaged file cannot be read", where=str(path), found=reason, hint="build the wheel again")


def asset_path(model: str, assets: Mapping[str, Path], name: str) -> Path:
    if name not in assets:
        raise ProgramError(
            f"model `{model}` has no file `{name}`",
            where="its assets",
            found=", ".join(f"`{each}`" for each in sorted(assets)) or "none",
            hint="write the file into the checkpoint: `AutoTokenizer.from_pretrained(folder).save_pretrained(folder)`"
            if name == TOKENIZER and TOKENIZER_CONFIG in assets
            else "declare the model with `transformers`, or name the file in `assets`",
        )
    return assets[name]
