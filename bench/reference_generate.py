"""`transformers`' own `generate` as a process of its own: a line of JSON asks, a line of JSON answers.

Greedy, float32, a static batch padded on the left. Answers have exact lengths: the token that ends a turn ends nothing.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

# Before torch is loaded, as the worker does too: threads that spin while they wait hold up whoever else uses the cores.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
import transformers


class Reference:
    def __init__(self, folder: Path) -> None:
        transformers.logging.set_verbosity_error()
        self._model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self._model.generation_config.eos_token_id = None
        self._padding = self._model.config.pad_token_id

    def generate(self, prompts: list[list[int]], tokens: int, threads: int, experts: str) -> dict[str, Any]:
        torch.set_num_threads(threads)
        self._model.set_experts_implementation(experts)
        length = max(map(len, prompts))
        ids = torch.tensor([[self._padding] * (length - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (length - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        began_s, cpu_began_s = time.perf_counter(), time.process_time()
        # By its config the model would sample; these are all the ways that it could.
        made = self._model.generate(
            ids, attention_mask=mask, max_new_tokens=tokens, do_sample=False, temperature=None, top_p=None, top_k=None
        )
        wall_s, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_began_s
        return {"wall_s": wall_s, "cpu_s": cpu_s, "token_ids": made[:, length:].tolist()}

    @torch.inference_mode()
    def margin(self, ids: list[int]) -> float:
        """Between the two likeliest tokens after `ids`, in logits."""
        logits = self._model(torch.tensor([ids])).logits[0, -1]
        best, second = logits.topk(2).values.tolist()
        return float(best - second)


def main() -> None:
    reference = Reference(Path(sys.argv[1]))
    sys.stdout.write(json.dumps({"ready": True}) + "\n")
    sys.stdout.flush()
    for line in sys.stdin:
        asked = json.loads(line)
        answer: Any = reference.margin(asked["ids"]) if "ids" in asked else reference.generate(**asked)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
