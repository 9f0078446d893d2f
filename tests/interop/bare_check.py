#!/usr/bin/env python3
"""Models for embeddings, stored without the class that predicts tokens: transformers loads what forge makes of them.

    bare_check.py      needs torch, transformers, gptqmodel, compressed-tensors; forge on the PATH

A random model is saved by transformers as AutoModel has it, "layers.0..."; OUT loads in AutoModel and in AutoModelForCausalLM
without a missing key but the head, and has the hidden states of the same model, quantized whole, to the bit.  Without a tied
head forge eval says how near the states of AutoModel are.
"""
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import lab
import torch
from random_models import SMALL, tokenizer
from transformers import AutoModel, AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM


def states(cls, d):
    m, info = cls.from_pretrained(d, dtype=torch.float32, output_loading_info=True)
    missing = set(info["missing_keys"]) - {"lm_head.weight"}
    assert not missing and not info["unexpected_keys"], (d, cls, info)
    with torch.no_grad():
        return m(torch.arange(3, 67).reshape(2, 32), output_hidden_states=True).hidden_states[-1]


def untie(d):
    c = json.loads((d / "config.json").read_text())
    c["tie_word_embeddings"] = False
    (d / "config.json").write_text(json.dumps(c))


def nearness(original, other, ids):
    """What forge eval prints, of last_hidden_state [sequences, tokens, H]."""
    with torch.no_grad():
        o, q = (AutoModel.from_pretrained(d, dtype=torch.float32)(torch.from_numpy(ids.astype("int64"))).last_hidden_state.double()
                for d in (original, other))
    cosine, error = torch.cosine_similarity(o, q, -1), (q - o).norm(dim=-1) / o.norm(dim=-1)
    return dict(tokens=cosine.numel(), cosine_mean=cosine.mean(), cosine_min=cosine.min(), cosine_last=cosine[:, -1].mean(),
                error_rms=error.square().mean().sqrt())


def check_eval(d, text):
    for out in (d / "bare", d / "bare-compressed-tensors"):
        untie(out)
    ids = lab.tokens(d / "bare", text, 6, 96, d / "t.fts")
    want, got = (f(d / "bare", d / "bare-compressed-tensors", x) for f, x in ((nearness, ids), (lab.forge_eval, d / "t.fts")))
    assert "ppl" not in got
    for k, x in want.items():
        print(k, float(x), got[k])
        assert abs(got[k] / float(x) - 1) <= 1e-5, (k, got[k], float(x))


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
        check_eval(d, text)


if __name__ == "__main__":
    sys.exit(main())
