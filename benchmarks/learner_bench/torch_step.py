"""The other side of the comparison, in a Python that has torch and transformers: training steps, on request.

    PYTHON torch_step.py MODEL_DIRECTORY TOKENS.npy

Every line on stdin asks for a step; its answer is a JSON object on one line: seconds, and the loss before the
update. Nothing of forebay is imported.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers


def main(directory: Path, tokens: Path) -> None:
    """Load the model, and train on the same rows again and again."""
    torch.set_num_threads(1)
    transformers.logging.disable_progress_bar()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="sdpa"
    ).train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-5, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, fused=True
    )
    rows = torch.from_numpy(np.load(tokens).astype(np.int64))
    say({"ready": True, "torch": torch.__version__, "transformers": transformers.__version__})
    for _ in sys.stdin:
        say(step(model, optimizer, rows))


def step(model: Any, optimizer: Any, rows: Any) -> dict[str, float]:
    """Forward, backward, clipping and AdamW; every token but the first of a row is a target."""
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    loss = model(input_ids=rows, labels=rows, use_cache=False).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return {
        "wall_s": time.perf_counter() - began_s,
        "cpu_s": time.process_time() - began_cpu_s,
        "loss": float(loss.detach()),
        "process_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def say(answer: dict[str, Any]) -> None:
    """Answer on one line."""
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
