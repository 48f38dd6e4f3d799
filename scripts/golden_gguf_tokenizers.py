"""Makes `tests/golden/gguf_tokenizers.json`: small vocabularies, and the ids that others give to texts.

    python scripts/golden_gguf_tokenizers.py  # needs xllamacpp, gguf, sentencepiece, tokenizers, transformers

One vocabulary is SentencePiece's with byte fallback, as Llama 2, Mistral and Gemma have; one is byte-level
BPE, as Llama 3, Qwen and Mistral Nemo have. Both are trained here. llama.cpp reads them from a GGUF file with
a tiny model; sentencepiece and transformers are asked beside it. No code of forebay is used.
"""

from __future__ import annotations

import io
import json
import tempfile
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from llama_cpp import token_ids

ROOT = Path(__file__).parents[1]
GOLDEN = ROOT / "tests" / "golden" / "gguf_tokenizers.json"
CORPUS = ("README.md", "docs/tutorial.md", "docs/explanation/staleness.md")
VOCABULARY = 640
SPLITS = ("llama-bpe", "llama3", "qwen2", "deepseek-r1-qwen", "tekken")
CONTROL = ["<|begin|>", "<|end|>"]
USER_DEFINED = ["<tool>", "\n\n"]
# A token that no merge makes.
UNREACHABLE = "zzzzqqqqxxxx"
WIDTH = 32
TEXTS = [
    "",
    " ",
    "   ",
    "\n",
    "\n\n\t \n",
    "Hello, world!",
    "hello  world\n\n x",
    "  the model is trained  twice",
    "learner learners relearning store's",
    "1234567890 apples in 2026, 3.14159",
    "I'm sure they'll say we've DON'T and it's I'LL",
    "camelCase HTTPServer snake_case SCREAMING aBcD",
    "def f(x):\n    return [i ** 2 for i in range(x)]\r\n",
    "Gr\u00fc\u00dfe, \u00c4pfel \u2014 \u201eZitat\u201c \u2026",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002",
    "\u0928\u092e\u0938\u094d\u0924\u0947 \u0967\u0968\u0969",
    "\U0001f642 \U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f44d\U0001f3fd",
    "a\u00a0b\u2003c\u200bd",
    "\u0000\u0001 control \u007f bytes",
    "aaaa aaaaa aaaaaaa lllll sssssss",
    "zzzzqqqqxxxx antidisestablishmentarianism/path//to",
]
MARKED = [
    "<|begin|>user\nHi there<|end|>\n<|begin|>assistant\n",
    "no space<|end|>between<tool>tokens",
    "<|begin|><|begin|>  <|end|> x \n\n y",
    "not special: <|begi|> <| end |>",
]
DECOMPOSED = ["e\u0301 vs \u00e9, A\u030a", "\u1100\u1161 \u304b\u3099"]


def corpus() -> str:
    """Return what both vocabularies are trained on."""
    # Often enough that digits and words of mixed case are merged, wherever a model then cuts them.
    return "\n".join([*((ROOT / name).read_text() for name in CORPUS), *(200 * TEXTS[:-1])])


def sentencepiece_model() -> Any:
    """Train a SentencePiece model by BPE with byte fallback."""
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus().splitlines()),
        model_writer=model,
        model_type="bpe",
        vocab_size=VOCABULARY,
        byte_fallback=True,
        character_coverage=0.999,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        split_digits=True,
        allow_whitespace_only_pieces=True,
        control_symbols=CONTROL,
        user_defined_symbols=USER_DEFINED,
        num_threads=1,
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def spm_vocabulary(model: Any) -> dict[str, Any]:
    """Return tokens, scores and kinds as llama.cpp's converter writes them."""
    kinds = [_kind(model, token_id) for token_id in range(model.get_piece_size())]
    return {
        "tokens": [model.id_to_piece(token_id) for token_id in range(len(kinds))],
        "scores": [float(np.float32(model.get_score(token_id))) for token_id in range(len(kinds))],
        "kinds": kinds,
    }


def _kind(model: Any, token_id: int) -> int:
    if model.is_unknown(token_id):
        return 2
    if model.is_control(token_id):
        return 3
    if model.id_to_piece(token_id) in USER_DEFINED:
        return 4
    return 6 if model.is_byte(token_id) else 1


def bpe_vocabulary() -> dict[str, Any]:
    """Train byte-level BPE; return tokens, merges and kinds as llama.cpp's converter writes them."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(corpus().splitlines(keepends=True), trainer)
    trained = json.loads(tokenizer.to_str())["model"]
    plain = [*sorted(trained["vocab"], key=trained["vocab"].get), UNREACHABLE]
    tokens = plain + CONTROL + USER_DEFINED
    kinds = [1] * len(plain) + [3] * len(CONTROL) + [4] * len(USER_DEFINED)
    return {"tokens": tokens, "merges": [" ".join(merge) for merge in trained["merges"]], "kinds": kinds}


def llama_cpp_ids(vocabulary: dict[str, Any], texts: list[str], **keys: Any) -> list[list[int]]:
    """Return the ids that llama.cpp gives to texts."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "model.gguf"
        _write_model(path, vocabulary, keys)
        return token_ids(path, texts)


def _write_model(path: Path, vocabulary: dict[str, Any], keys: dict[str, Any]) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // 2)
    writer.add_token_list(vocabulary["tokens"])
    writer.add_token_types(vocabulary["kinds"])
    if "scores" in vocabulary:
        writer.add_tokenizer_model("llama")
        writer.add_token_scores(vocabulary["scores"])
    else:
        writer.add_tokenizer_model("gpt2")
        writer.add_token_merges(vocabulary["merges"])
    for name, value in keys.items():
        getattr(writer, f"add_{name}")(value)
    size = len(vocabulary["tokens"])
    shapes = {"token_embd": (size, WIDTH), "output_norm": (WIDTH,), "output": (size, WIDTH)}
    shapes |= {f"blk.0.{name}": (WIDTH, WIDTH) for name in ("attn_q", "attn_k", "attn_v", "attn_output")}
    shapes |= {f"blk.0.{name}": (WIDTH, WIDTH) for name in ("ffn_gate", "ffn_up", "ffn_down")}
    shapes |= {f"blk.0.{name}": (WIDTH,) for name in ("attn_norm", "ffn_norm")}
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", np.ones(shape, np.float32))
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        write()
    writer.close()


def qwen_ids(vocabulary: dict[str, Any], texts: list[str]) -> list[list[int]]:
    """Return the ids of transformers' Qwen tokenizer, which composes accents first."""
    from transformers import AddedToken, Qwen2Tokenizer

    ids = {token: token_id for token_id, token in enumerate(vocabulary["tokens"])}
    plain = {token: token_id for token, token_id in ids.items() if vocabulary["kinds"][token_id] == 1}
    merges = [tuple(merge.split(" ")) for merge in vocabulary["merges"]]
    marks = {"unk_token": CONTROL[1], "eos_token": CONTROL[1], "pad_token": CONTROL[1]}
    tokenizer = Qwen2Tokenizer(vocab=plain, merges=merges, **marks)
    added = [AddedToken(token, special=True, normalized=False) for token in CONTROL + USER_DEFINED]
    tokenizer.add_tokens([token for token in added if token.content not in plain])
    renumber = {tokenizer.convert_tokens_to_ids(token): token_id for token, token_id in ids.items()}
    encoded = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    return [[renumber[token_id] for token_id in one] for one in encoded]


def main() -> None:
    """Write the file."""
    import transformers

    model, bpe = sentencepiece_model(), bpe_vocabulary()
    spm = spm_vocabulary(model)
    texts = TEXTS + MARKED
    ids = {split: llama_cpp_ids(bpe, texts, tokenizer_pre=split) for split in SPLITS}
    golden = {
        "made_by": f"llama.cpp (xllamacpp), sentencepiece, transformers {transformers.__version__}",
        "texts": texts,
        "spm": spm,
        "spm_ids": {
            "prefix": llama_cpp_ids(spm, texts),
            "no prefix": llama_cpp_ids(spm, texts, add_space_prefix=False),
            "sentencepiece": [model.encode(text) for text in TEXTS],
        },
        "bpe": bpe,
        "bpe_ids": ids,
        "qwen2": {"texts": texts + DECOMPOSED, "ids": qwen_ids(bpe, texts + DECOMPOSED)},
    }
    GOLDEN.write_text(json.dumps(golden, ensure_ascii=True, indent=None, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
