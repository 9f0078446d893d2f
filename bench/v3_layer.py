#!/usr/bin/env python3
"""v3_layer.py DIR EXPERTS: one random layer of DeepSeek-V3's sizes (LAYERS=2: two), bf16, with EXPERTS experts
of which each token has one, and the vocabulary of examples/llama-4m.  SCALE=4: all sizes
divided by that.  FP8=1: E4M3 with scales of 128 x 128 blocks, and eight experts a token, of four groups, as the whole
model has them.  --config: config.json of the whole model alone."""
import json
import os
import shutil
import struct
import sys
from pathlib import Path

import numpy as np

EXAMPLE = Path(__file__).parent.parent/"examples/llama-4m"
CONFIG = {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "hidden_act": "silu",
          "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048, "num_hidden_layers": 61,
          "num_attention_heads": 128, "num_key_value_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512,
          "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 256,
          "n_shared_experts": 1, "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4, "norm_topk_prob": True,
          "first_k_dense_replace": 3, "moe_layer_freq": 1, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid",
          "topk_method": "noaux_tc", "vocab_size": 129280, "max_position_embeddings": 163840, "rms_norm_eps": 1e-6,
          "rope_theta": 10000.0, "attention_bias": False, "tie_word_embeddings": False, "torch_dtype": "bfloat16"}


SIZES = ("hidden_size", "intermediate_size", "moe_intermediate_size", "num_attention_heads", "num_key_value_heads",
         "q_lora_rank", "kv_lora_rank")


def tensors(c):
    """Name, shape; of a vector: the number that it is full of."""
    h = c["hidden_size"]
    yield from (("model.embed_tokens", (c["vocab_size"], h)), ("lm_head", (c["vocab_size"], h)), ("model.norm", (h,)))
    for layer in range(c["num_hidden_layers"]):
        yield from layer_tensors(c, f"model.layers.{layer}.")


def layer_tensors(c, p):
    h, heads, wide = c["hidden_size"], c["num_attention_heads"], c["moe_intermediate_size"]
    nope, rope, v, q, kv = (c[k] for k in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "q_lora_rank",
                                           "kv_lora_rank"))
    for norm, n in (("input_layernorm", h), ("post_attention_layernorm", h), ("self_attn.q_a_layernorm", q),
                    ("self_attn.kv_a_layernorm", kv)):
        yield p + norm, (n,)
    for part, o, i in (("q_a_proj", q, h), ("q_b_proj", heads * (nope + rope), q), ("kv_a_proj_with_mqa", kv + rope, h),
                       ("kv_b_proj", heads * (nope + v), kv), ("o_proj", h, heads * v)):
        yield f"{p}self_attn.{part}", (o, i)
    yield p + "mlp.gate", (c["n_routed_experts"], h)
    for e in ["shared_experts", *(f"experts.{k}" for k in range(c["n_routed_experts"]))]:
        for part, o, i in (("gate_proj", wide, h), ("up_proj", wide, h), ("down_proj", h, wide)):
            yield f"{p}mlp.{e}.{part}", (o, i)


def bf16(x):
    return (x.astype("<f4").view("<u4") >> 16).astype("<u2")


def e4m3(x):
    """The nearest codes below |x|, which is 448 at most."""
    code = np.arange(0x7f)
    value = np.where(code < 8, code / 512, (1 + code % 8 / 8) * 2. ** (code // 8 - 7))
    return ((np.searchsorted(value, np.abs(x), "right") - 1) | np.where(x < 0, 0x80, 0)).astype("u1")


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    out, experts = Path(sys.argv[1]), sys.argv[2]
    out.mkdir()
    if experts == "--config":
        (out/"config.json").write_text(json.dumps(CONFIG))
        return
    for path in EXAMPLE.glob("tokenizer*"):
        shutil.copy(path, out)
    example = json.loads((EXAMPLE/"config.json").read_text())
    fp8 = os.environ.get("FP8") == "1"
    routing = {} if fp8 else {"num_experts_per_tok": 1, "n_group": 1, "topk_group": 1}
    c = {**CONFIG, **{k: example[k] for k in ("vocab_size", "bos_token_id", "eos_token_id")},
         "num_hidden_layers": int(os.environ.get("LAYERS", 1)), "first_k_dense_replace": 0,
         "n_routed_experts": int(experts), **routing,
         **{k: CONFIG[k] // int(os.environ.get("SCALE", 1)) for k in SIZES}}
    if fp8:
        c["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                                    "weight_block_size": [128, 128]}
    (out/"config.json").write_text(json.dumps(c))
    head, at, all = {}, 0, [(f"{name}.weight", shape) for name, shape in tensors(c)]
    all += [(f"model.layers.{i}.mlp.gate.e_score_correction_bias", (c["n_routed_experts"],))
            for i in range(c["num_hidden_layers"])]
    narrow = {n for n, shape in all if fp8 and len(shape) == 2 and "layers" in n and "mlp.gate." not in n}
    for name, shape in all[:]:
        if name in narrow:
            all.append((f"{name}_scale_inv", tuple(-(-n // 128) for n in shape)))
    for name, shape in all:
        t = "F8_E4M3" if name in narrow else "F32" if name.endswith("scale_inv") else "BF16"
        size = {"F8_E4M3": 1, "BF16": 2, "F32": 4}[t] * int(np.prod(shape))
        head[name] = {"dtype": t, "shape": shape, "data_offsets": (at, at + size)}
        at += size
    text = json.dumps(head).encode()
    random = np.random.default_rng(1)
    pool = random.standard_normal(1 << 24, dtype="f4")
    pools = {}
    with open(out/"model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for name, shape in all:
            if len(shape) == 1:
                f.write(bf16(np.full(shape, 0. if "bias" in name else 1.)).tobytes())
                continue
            if name.endswith("scale_inv"):
                f.write(np.full(shape, 1 / 32 / (128 * shape[1]) ** .5, "<f4").tobytes())
                continue
            size = 1 if "embed" in name else shape[1] ** .5
            size = "fp8" if name in narrow else size
            if size not in pools:
                pools[size] = e4m3(pool * 32) if name in narrow else bf16(pool / size)
            some, left = pools[size][random.integers(1 << 20):], int(np.prod(shape))
            while left:
                left -= f.write(some[:left].data) // some.itemsize


if __name__ == "__main__":
    main()
