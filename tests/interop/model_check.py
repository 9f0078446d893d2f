#!/usr/bin/env python3
"""The forward pass against transformers, on random tiny models.

    model_check.py [SEED]     needs torch, transformers, numpy; the test helper
                              `forward` on the PATH

Every family, every kind of rope, biases, tied embeddings, explicit head sizes, sliding windows, one kv head to as
many as heads; saved by transformers, and by hand with the older spelling of config.json.  The measure: the norm of
the difference of a token's vector over the norm of the vector, the worst token of all hidden states and logits.  In
float32 (eager attention) it stays below 1e-5; in bfloat16 it stays below 1.5 times what transformers' own bfloat16
deviates from its float32."""
import json
import os
import subprocess
import sys
import tempfile

import numpy as np
import torch
import transformers

KERNELS = ("plain", "avx2", "avx512")
F32 = 1e-5

BASE = dict(vocab_size=256, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            intermediate_size=96, max_position_embeddings=256, rms_norm_eps=1e-5)
ROPES = {
    "default": {"rope_type": "default", "rope_theta": 10000.0},
    "theta": {"rope_type": "default", "rope_theta": 1000000.0},
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0},
    "llama3": {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
               "high_freq_factor": 4.0, "original_max_position_embeddings": 32},
    "yarn": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64},
    "yarn2": {"rope_type": "yarn", "rope_theta": 50000.0, "factor": 16.0, "original_max_position_embeddings": 16,
              "beta_fast": 16.0, "beta_slow": 2.0, "truncate": False},
    "yarn3": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64,
              "mscale": 1.2, "mscale_all_dim": 0.7},
    "yarn4": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64,
              "attention_factor": 1.3},
}
SLIDES = ["full_attention", "sliding_attention"]
CASES = [("llama", "rope " + r, dict(rope_parameters=p)) for r, p in ROPES.items()] + [
    ("llama", "biases", dict(attention_bias=True, mlp_bias=True)),
    ("llama", "tied", dict(tie_word_embeddings=True)),
    ("llama", "head_dim 24", dict(head_dim=24)),
    ("llama", "head_dim 6, odd sizes", dict(head_dim=6, hidden_size=36, intermediate_size=50, vocab_size=101)),
    ("llama", "one kv head", dict(num_key_value_heads=1)),
    ("llama", "no groups", dict(num_key_value_heads=4)),
    ("llama", "old spelling", dict(rope_parameters=ROPES["llama3"], old=True)),
    ("mistral", "no window", dict(sliding_window=None)),
    ("mistral", "window 7", dict(sliding_window=7)),
    ("mistral", "window 64, head_dim 32", dict(sliding_window=64, head_dim=32)),
    ("mistral", "window 100", dict(sliding_window=100)),
    ("mistral", "window 1", dict(sliding_window=1)),
    ("qwen2", "plain", {}),
    ("qwen2", "yarn, tied", dict(rope_parameters=ROPES["yarn"], tie_word_embeddings=True)),
    ("qwen2", "window from layer 1", dict(use_sliding_window=True, sliding_window=20, max_window_layers=1)),
    ("qwen2", "layer types", dict(use_sliding_window=True, sliding_window=9, layer_types=SLIDES)),
    ("qwen2", "window not in use", dict(sliding_window=9, max_window_layers=0, old=True)),
    ("qwen3", "head_dim 32", dict(head_dim=32)),
    ("qwen3", "biases, tied", dict(head_dim=32, attention_bias=True, tie_word_embeddings=True)),
    ("qwen3", "layer types", dict(head_dim=16, use_sliding_window=True, sliding_window=33, layer_types=SLIDES[::-1])),
    ("qwen3", "yarn", dict(head_dim=128, rope_parameters=ROPES["yarn"])),
    ("qwen3", "linear", dict(head_dim=80, rope_parameters=ROPES["linear"], old=True)),
]


def random_model(family, options, seed):
    """Weights large enough that attention and gates are far from linear."""
    options = dict(BASE, **{k: v for k, v in options.items() if k != "old"})
    config = transformers.AutoConfig.for_model(family, **options)
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32,
                                                          attn_implementation="eager").eval()
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            r = torch.randn(p.shape, generator=g)
            p.copy_(1 + 0.2 * r if "norm" in name else 0.15 * r)
            p.copy_(p.bfloat16().float())  # so that float32 and bfloat16 have the same weights
    return model


def respell(path):
    """config.json as transformers 4 wrote it."""
    with open(path) as f:
        c = json.load(f)
    p = c.pop("rope_parameters")
    c["rope_theta"] = p.pop("rope_theta")
    c["rope_scaling"] = None
    if p.get("rope_type") != "default":
        p["type"] = p.pop("rope_type")
        c["rope_scaling"] = p
    if "dtype" in c:
        c["torch_dtype"] = c.pop("dtype")
    with open(path, "w") as f:
        json.dump(c, f)


def theirs(model, ids):
    with torch.no_grad():
        o = model(torch.tensor(ids[None].astype(np.int64)), output_hidden_states=True)
    h = [x[0].float().numpy().astype(np.float64) for x in o.hidden_states]
    return h, o.logits[0].float().numpy().astype(np.float64)


def ours(d, mode, ids, config, kernels=None):
    p = subprocess.run(["forward", d, mode] + ([kernels] if kernels else []), input=ids.astype(np.int32).tobytes(),
                       stdout=subprocess.PIPE)
    if p.returncode == 77:
        return None
    assert p.returncode == 0, p.returncode
    x = np.frombuffer(p.stdout, np.float32).astype(np.float64)
    n, h = config.num_hidden_layers + 1, config.hidden_size
    cut = n * len(ids) * h
    return list(x[:cut].reshape(n, len(ids), h)), x[cut:].reshape(len(ids), -1)


def worst(a, b):
    return max((np.linalg.norm(x - y, axis=1) / np.linalg.norm(y, axis=1)).max()
               for x, y in zip(a[0] + [a[1]], b[0] + [b[1]]))


def mean(a, b):
    """Of the logits alone; the worst token of a bfloat16 run is luck."""
    return (np.linalg.norm(a[1] - b[1], axis=1) / np.linalg.norm(b[1], axis=1)).mean()


def check(family, name, options, seed, d):
    rng = np.random.default_rng(seed)
    model = random_model(family, options, seed)
    ids = rng.integers(0, model.config.vocab_size, 200)
    model.save_pretrained(d)
    if options.get("old"):
        respell(os.path.join(d, "config.json"))
    f32 = theirs(model, ids)
    bad = []
    said = []
    for k in KERNELS:
        o = ours(d, "f32", ids, model.config, k)
        if o:
            said.append("%s %.1e" % (k, worst(o, f32)))
            bad += [k] if worst(o, f32) > F32 else []
    limit = mean(theirs(model.bfloat16(), ids), f32)
    low = [mean(o, f32) for o in (ours(d, "bf16", ids, model.config, k) for k in KERNELS + ("avx512_bf16",)) if o]
    bad += ["bf16"] if max(low) > 1.5 * limit else []
    print("%-8s%-28s f32: %s   bf16: ours %s theirs %.4f%s"
          % (family, name, ", ".join(said), " ".join("%.4f" % x for x in low), limit, "   BAD: " + " ".join(bad) if bad else ""), flush=True)
    return not bad


def main():
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    good = True
    for i, (family, name, options) in enumerate(CASES):
        with tempfile.TemporaryDirectory() as d:
            good &= check(family, name, options, seed * 1000 + i, d)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
