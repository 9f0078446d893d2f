#!/usr/bin/env python3
"""Multimodal models: the language model is quantized, the rest passes through, and transformers loads the result.

    multimodal_check.py TEXT [NAME...]    needs torch, transformers, compressed-tensors; forge and the test helper
                                          `forward` on the PATH

Small random models of each kind that is supported, saved by transformers (and, where checkpoints of transformers 4 have
other names or another config.json, in these too). Hidden states and logits of text agree with transformers in float32; every
tensor outside the language model's linears is in OUT under its name, bit for bit; transformers loads OUT without a missing
or unexpected key, its linears have our dequantized weights, and its logits are those of a plain model of these weights.
"""
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import lab
import numpy as np
import torch
from model_check import ours, theirs, worst
from random_models import DELTA, SMALL, tokenizer

TEXT = dict(SMALL, hidden_size=128, intermediate_size=256, bos_token_id=None, eos_token_id=0, pad_token_id=1, initializer_range=0.05)
QWEN_EYE = dict(depth=2, hidden_size=64, intermediate_size=64, num_heads=2, patch_size=4, spatial_merge_size=2, out_hidden_size=128)
SIGLIP = dict(hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, image_size=32, patch_size=8)
LLAMA_EYE = dict(hidden_size=64, intermediate_size=256, num_hidden_layers=2, num_attention_heads=2, image_size=32, patch_size=8, vision_output_dim=64,
                 projector_input_dim=64, projector_output_dim=64)
GEMMA = dict(TEXT, head_dim=64, query_pre_attn_scalar=64, sliding_window=20, num_hidden_layers=3,
             layer_types=["sliding_attention", "sliding_attention", "full_attention"])
MROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 6, 6]}
KINDS = {
    "gemma3": ("gemma3", dict(text_config=GEMMA, vision_config=dict(SIGLIP, vision_use_head=False), mm_tokens_per_image=4)),
    "mistral3": ("mistral3", dict(text_config=dict(TEXT, model_type="mistral", head_dim=64, sliding_window=None), spatial_merge_size=2,
                                  vision_config=dict(SIGLIP, model_type="pixtral", head_dim=32))),
    "ministral3": ("mistral3", dict(text_config=dict(TEXT, model_type="ministral3", head_dim=64), spatial_merge_size=2,
                                    vision_config=dict(SIGLIP, model_type="pixtral", head_dim=32))),
    "qwen2.5-vl": ("qwen2_5_vl", dict(text_config=dict(TEXT, rope_parameters=MROPE), vision_config=dict(QWEN_EYE, window_size=16,
                                                                                                        fullatt_block_indexes=[1]))),
    "llama4": ("llama4", dict(text_config=dict(TEXT, intermediate_size=128, intermediate_size_mlp=256, num_local_experts=4, num_experts_per_tok=1,
                                               head_dim=64, num_hidden_layers=2, interleave_moe_layer_step=2), vision_config=LLAMA_EYE)),
    "qwen3-vl": ("qwen3_vl", dict(text_config=dict(TEXT, head_dim=32, rope_parameters=dict(MROPE, mrope_interleaved=True)),
                                  vision_config=dict(QWEN_EYE, num_position_embeddings=16, deepstack_visual_indexes=[0]))),
    "qwen3-vl-moe": ("qwen3_vl_moe", dict(text_config=dict(TEXT, head_dim=32, rope_parameters=dict(MROPE, mrope_interleaved=True), num_experts=5,
                                                           num_experts_per_tok=2, moe_intermediate_size=96),
                                          vision_config=dict(QWEN_EYE, num_position_embeddings=16, deepstack_visual_indexes=[0]))),
    "qwen3.5": ("qwen3_5", dict(text_config=dict(TEXT, **dict(DELTA, head_dim=32), rope_parameters=dict(MROPE, mrope_section=[2, 1, 1],
                                                                                                        partial_rotary_factor=0.25, mrope_interleaved=True)),
                                vision_config=dict(QWEN_EYE, num_position_embeddings=16))),
}

# Its transformers (5.23) looks for the experts of OUT in one tensor; the names are those that vLLM reads.
ELSEWHERE = ["qwen3-vl-moe"]


def make(name, text, out):
    from transformers import AutoConfig, AutoModelForImageTextToText
    family, parts = KINDS[name]
    torch.manual_seed(len(name))
    c = AutoConfig.for_model(family, **parts)
    m = AutoModelForImageTextToText.from_config(c, dtype=torch.float32, attn_implementation="eager").eval()
    for n, p in m.named_parameters():
        if n.endswith("bias"):
            torch.nn.init.normal_(p, std=0.1)
        p.data = p.data.bfloat16().float()
    m.save_pretrained(out)
    tokenizer(text, TEXT["vocab_size"]).save_pretrained(out)
    return m


def as_transformers_4(d):
    """Qwen2.5-VL's config.json with the language model's members in the outer object."""
    c = json.loads((d / "config.json").read_text())
    text = c.pop("text_config")
    rope = text.pop("rope_parameters")
    text.pop("model_type")
    c.update({k: v for k, v in text.items() if k not in c}, rope_theta=rope["rope_theta"],
             rope_scaling={"type": "mrope", "mrope_section": rope["mrope_section"]})
    (d / "config.json").write_text(json.dumps(c))


def tensors(d):
    from safetensors.torch import load_file
    return {k: v for f in sorted(d.glob("*.safetensors")) for k, v in load_file(f).items()}


def forward_agrees(m, d, name):
    ids = np.random.default_rng(1).integers(2, TEXT["vocab_size"], 120)
    want = theirs(m, ids)
    for kernels in ("plain", "avx2", "avx512"):
        got = ours(str(d), "f32", ids, m.config.get_text_config(), kernels)
        if got:
            r = worst(got, want)
            lab.check(f"{name}: hidden states and logits, {kernels}", r < 1e-5, f"{r:.1e}")


def passed_through(d, out, name):
    before, after = tensors(d), tensors(out)
    packed = {k[:-len(".weight_packed")] for k in after if k.endswith(".weight_packed")}
    plain = {k for k in before if k.removesuffix(".weight") not in packed and ".experts." not in k}
    equal = all(k in after and torch.equal(before[k], after[k]) for k in plain)
    extra = {k for k in after if k not in before and k.rsplit(".", 1)[0] not in packed}
    lab.check(f"{name}: what is not quantized", equal and not extra and packed and len(plain) > 20, f"{len(plain)} tensors, {len(packed)} linears")
    lab.check(f"{name}: only the language model's linears", all(".layers." in k and "vis" not in k for k in packed), sorted(packed)[0])


def put_experts(plain, weights):
    """Llama 4's experts, which the plain model has in two tensors."""
    for n, p in plain.named_parameters():
        if ".experts." in n:
            at = "model.layers." + n.partition(".layers.")[2].rpartition(".")[0]
            of = lambda e, part: torch.from_numpy(weights[f"{at}.{e}.{part}_proj.weight"]).T
            p.data = torch.stack([of(e, "down") if n.endswith("down_proj") else torch.cat([of(e, "gate"), of(e, "up")], 1) for e in range(len(p))])


def loads(d, out, name):
    from transformers import AutoModelForImageTextToText
    q, info = AutoModelForImageTextToText.from_pretrained(out, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    bad = {k: sorted(v)[:3] for k, v in info.items() if v}
    lab.check(f"{name}: transformers loads it", not bad, str(bad))
    ids = torch.tensor(np.random.default_rng(2).integers(2, TEXT["vocab_size"], (1, 60)))
    with torch.inference_mode():
        got = q.eval()(ids).logits  # before the weights: compressed-tensors unpacks at the first forward
    packed = {k[:-len(".weight_packed")].partition(".layers.")[2] for k in tensors(out) if k.endswith(".weight_packed") and ".experts." not in k}
    plain = AutoModelForImageTextToText.from_pretrained(d, dtype=torch.float32, attn_implementation="eager").eval()
    ours_, theirs_, seen, largest = lab.dequantized(out), dict(q.named_modules()), 0, 0.0  # forge-weights gives the language model's names alone
    for n, x in plain.named_modules():
        inside = n.partition("language_model.")[2].partition("layers.")[2]
        if type(x) is not torch.nn.Linear or f"model.layers.{inside}.weight" not in ours_:
            continue
        w = torch.from_numpy(ours_[f"model.layers.{inside}.weight"])
        x.weight.data = w.clone()
        y = theirs_[n]
        largest = max(largest, float((y.weight.data.float() - w).abs().max()))
        seen += inside in packed
    put_experts(plain, ours_)
    lab.check(f"{name}: weights as loaded", seen == len(packed) and largest == 0, f"{seen} linears, {largest:.1g}")
    with torch.inference_mode():
        want = plain(ids).logits
    r = float((got - want).norm() / want.norm())
    lab.check(f"{name}: logits of text", r < 1e-5, f"{r:.1g}")


def main():
    text, names = sys.argv[1], sys.argv[2:] or [*KINDS, "qwen2.5-vl 4"]
    torch.set_num_threads(lab.THREADS)
    for name in names:
        with tempfile.TemporaryDirectory() as t:
            d, out = Path(t) / "in", Path(t) / "out"
            m = make(name.split()[0], text, d)
            if name.endswith(" 4"):
                as_transformers_4(d)
            forward_agrees(m, d, name)
            lab.run("forge", "quantize", d, out, "--text", text, "--sequences", 4, "--seqlen", 64, "--group", 32, "--quiet")
            passed_through(d, out, name)
            if name not in ELSEWHERE:
                loads(d, out, name)
    lab.finish()


if __name__ == "__main__":
    main()
