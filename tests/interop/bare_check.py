#!/usr/bin/env python3
"""Models for embeddings, stored without the class that predicts tokens: transformers loads what forge makes of them.

    bare_check.py      needs torch, transformers, gptqmodel, compressed-tensors; forge on the PATH

A random model is saved by transformers as AutoModel has it, "layers.0..."; OUT loads in AutoModel and in AutoModelForCausalLM
without a missing key but the head, and has the hidden states of the same model, quantized whole, to the bit.
"""
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from random_models import SMALL, tokenizer
from transformers import AutoModel, AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM


def states(cls, d):
    m, info = cls.from_pretrained(d, dtype=torch.float32, output_loading_info=True)
    missing = set(info["missing_keys"]) - {"lm_head.weight"}
    assert not missing and not info["unexpected_keys"], (d, cls, info)
    with torch.no_grad():
        return m(torch.arange(3, 67).reshape(2, 32), output_hidden_states=True).hidden_states[-1]


def main():
    torch.manual_seed(5)
    with tempfile.TemporaryDirectory() as d:
        d = Path(d)
        c = Qwen3Config(**dict(SMALL, hidden_size=128, intermediate_size=256, head_dim=32, initializer_range=0.05, tie_word_embeddings=True))
        whole = Qwen3ForCausalLM(c).bfloat16()
        whole.save_pretrained(d / "whole")
        whole.model.save_pretrained(d / "bare")
        text = Path(__file__).resolve().parents[2] / "examples/eval.txt"
        for kind in ("whole", "bare"):
            tokenizer(str(text), c.vocab_size).save_pretrained(d / kind)
        for layout in ("compressed-tensors", "awq", "gptq"):
            for kind in ("whole", "bare"):
                some = ["--grid", "*.o_proj=64", "--skip", "*.layers.0.mlp.down_proj"] if layout == "compressed-tensors" else []
                subprocess.run(["forge", "quantize", d / kind, d / f"{kind}-{layout}", "--method", "rtn", "--layout", layout, "-q", *some], check=True)
            want = states(AutoModelForCausalLM, d / f"whole-{layout}")
            for cls in (AutoModel, AutoModelForCausalLM):
                got = states(cls, d / f"bare-{layout}")
                assert torch.equal(got, want), (layout, cls, (got - want).abs().max())
            print(layout, "ok")


if __name__ == "__main__":
    sys.exit(main())
