"""What the families of forward.py's KINDS below do otherwise than Llama, from their papers and model cards:
Gemma 2 (arXiv 2408.00118), Gemma 3 (2503.19786), Phi-3 (2404.14219; LongRoPE 2402.13753), OLMo 2 (2501.00656),
Granite 3, Seed-OSS, ERNIE 4.5, Ministral 3, SmolLM3, GLM-4.
"""
import math

import numpy as np

LONG = {"type": "longrope", "short_factor": [1 + i / 4 for i in range(6)], "long_factor": [9.0] * 6}
KINDS = {
    "gemma2": {"model_type": "gemma2", "head_dim": 16, "query_pre_attn_scalar": 12, "sliding_window": 9, "attn_logit_softcapping": 3.0,
               "final_logit_softcapping": 2.0, "tie_word_embeddings": True},
    "gemma3": {"model_type": "gemma3_text", "head_dim": 16, "query_pre_attn_scalar": 12, "sliding_window": 9, "sliding_window_pattern": 2,
               "rope_theta": 2000.0, "rope_local_base_freq": 100.0, "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "phi3": {"model_type": "phi3", "sliding_window": 17},
    "phi3-long": {"model_type": "phi3", "num_key_value_heads": 1, "max_position_embeddings": 1024, "original_max_position_embeddings": 64,
                  "rope_scaling": LONG},
    "olmo2": {"model_type": "olmo2"},
    "olmo3": {"model_type": "olmo3", "sliding_window": 9, "layer_types": ["sliding_attention", "full_attention"], "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 500.0}}},
    "granite": {"model_type": "granite", "embedding_multiplier": 3.0, "attention_multiplier": 0.3, "residual_multiplier": 0.22,
                "logits_scaling": 4.0, "attention_bias": True},
    "seed_oss": {"model_type": "seed_oss", "head_dim": 20, "attention_out_bias": True},
    "ernie4_5": {"model_type": "ernie4_5", "head_dim": 16, "use_bias": True, "rope_theta": 500.0},
    "ministral3": {"model_type": "ministral3", "head_dim": 16, "rope_parameters": {
        "type": "yarn", "factor": 4.0, "rope_theta": 10000.0, "original_max_position_embeddings": 64, "llama_4_scaling_beta": 0.1}},
    "smollm3": {"model_type": "smollm3", "no_rope_layers": [1, 0], "rope_theta": 500.0},
    "glm4": {"model_type": "glm4", "head_dim": 16, "partial_rotary_factor": 0.5},
}
MODELS = {k["model_type"] for k in KINDS.values()} | {"llama4_text", "gemma3n_text"}
PLAIN = ("input_layernorm", None, "post_attention_layernorm", None)
NORMS = {"gemma": ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"),
         "olmo": (None, "post_attention_layernorm", None, "post_feedforward_layernorm"),
         "glm4": ("input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm")}


def norms(c):
    """Names of the norms in front of attention, behind it, in front of the MLP, behind it."""
    return next((NORMS[k] for k in NORMS if c["model_type"] in (k, k + "2", k + "3", k + "3_text", k + "3n_text")), PLAIN)


def gemma(c):
    return c["model_type"] in ("gemma2", "gemma3_text")


def zero_centred(c):
    return gemma(c) or c["model_type"].startswith(("qwen3_next", "qwen3_5"))


def norm_weight(c, w):
    return 1 + w if zero_centred(c) else w


def mlp(c):
    """Name and width of the dense MLP."""
    if c["model_type"] == "granitemoehybrid":
        return "shared_mlp", c["shared_intermediate_size"]
    return ("feed_forward", c["intermediate_size_mlp"]) if c["model_type"] == "llama4_text" else ("mlp", c["intermediate_size"])


def growth(c, layer, n):
    """Factors of the queries at n positions (Llama 4's layers without RoPE; arXiv 2501.19399)."""
    if "attn_scale" not in c or c["no_rope_layers"][layer]:
        return np.ones(n)
    return 1 + c["attn_scale"] * np.log1p((np.arange(n) + 1) // c["floor_scale"])


def fused(c):
    """Linears that hold several of Llama's: {name: [its parts]}."""
    both = {"mlp.gate_up_proj": ["mlp.gate_proj", "mlp.up_proj"]}
    if c["model_type"] == "granitemoehybrid":
        return {"shared_mlp.input_linear": ["shared_mlp.gate_proj", "shared_mlp.up_proj"], "shared_mlp.output_linear": ["shared_mlp.down_proj"]}
    if c["model_type"] == "phi3":
        return dict(both, **{"self_attn.qkv_proj": ["self_attn.%s_proj" % n for n in "qkv"]})
    return both if c["model_type"] == "glm4" else {}


def activation(c, x):
    if gemma(c):
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))
    return x / (1 + np.exp(-x))


def embed_scale(c):
    return math.sqrt(c["hidden_size"]) if gemma(c) else c.get("embedding_multiplier", 1)


def score(c, s, d):
    """Scores q k of heads of d dims -> what softmax sees."""
    if c["model_type"] == "gemma3n_text":
        return s
    s = s * c["attention_multiplier"] if "attention_multiplier" in c else s / math.sqrt(c.get("query_pre_attn_scalar", d))
    cap = c.get("attn_logit_softcapping")
    return cap * np.tanh(s / cap) if cap else s


def logits(c, y):
    y, cap = y / c.get("logits_scaling", 1), c.get("final_logit_softcapping")
    return cap * np.tanh(y / cap) if cap else y


def slides(c, layer):
    if "layer_types" in c:
        return c["layer_types"][layer] == "sliding_attention"
    if "attention_chunk_size" in c:
        return bool(c["no_rope_layers"][layer])
    return c["model_type"] == "phi3" or (gemma(c) and (layer + 1) % c.get("sliding_window_pattern", 2) != 0)


def rope(c, layer):
    """The layer's rope parameters and base; None: it has no RoPE."""
    if c.get("position_embedding_type", "rope") != "rope" or c.get("mla_use_nope"):
        return None
    if "no_rope_layers" in c and not c["no_rope_layers"][layer]:
        return None
    p = c.get("rope_scaling") or c.get("rope_parameters") or {}
    kind = "sliding_attention" if slides(c, layer) else "full_attention"
    p = p.get(kind, p)
    base = p.get("rope_theta", c.get("rope_theta"))
    if "rope_local_base_freq" in c and slides(c, layer):
        return {}, c["rope_local_base_freq"]
    return p, base


def stored(name, prefix):
    """The name of a language model's tensor in a multimodal checkpoint."""
    if name.startswith("model."):
        return prefix + name[len("model."):]
    return "language_model." + name if prefix.startswith("language_model.") else name


def wrap(d, out, form):
    """A multimodal checkpoint around the language model in d: names of FORM (gemma3, llama4, qwen3_vl, ...), a vision tower."""
    import json
    import os

    import fts
    from forward import load_tensors, save_tensors
    prefix = {"gemma3": "language_model.model.", "gemma3n": "model.language_model.", "llama4": "language_model.model.", "qwen3_vl": "model.language_model.", "qwen3_vl_moe": "model.language_model.", "qwen3_5": "model.language_model.", "qwen2_5_vl": "model."}[form]
    eye = {"gemma3": "vision_tower.vision_model.encoder.layers.0.self_attn.q_proj", "gemma3n": "model.vision_tower.timm_model.blocks.0.conv_exp", "llama4": "vision_model.model.layers.0.self_attn.q_proj", "qwen3_vl": "model.visual.blocks.0.attn.qkv", "qwen3_vl_moe": "model.visual.blocks.0.attn.qkv", "qwen3_5": "model.visual.blocks.0.attn.qkv",
           "qwen2_5_vl": "visual.blocks.0.attn.qkv"}[form]
    rng = np.random.default_rng(7)
    inner = {stored(k, prefix): v for k, v in load_tensors(d + "/model.safetensors").items()}
    if form == "gemma3n":  # published ones have k and v of all layers, read or not
        for i in range(6):
            for k in "kv":
                at = prefix + "layers.%d.self_attn." + k + "_proj.weight"
                inner.setdefault(at % i, inner[at % 0])
    t, shapes = {k: fts.bf16(v) for k, v in inner.items()}, {k: v.shape for k, v in inner.items()}
    for name, shape in ((eye + ".weight", (48, 48)), (eye + ".bias", (48,)), ("multi_modal_projector.linear_1.weight", (48, 16))):
        t[name], shapes[name] = fts.bf16(rng.normal(size=shape)), shape
    os.mkdir(out)
    save_tensors(out, t, shapes)
    with open(d + "/config.json") as f:
        text = json.load(f)
    classes = {"llama4": "Llama4ForConditionalGeneration", "gemma3": "Gemma3ForConditionalGeneration", "gemma3n": "Gemma3nForConditionalGeneration", "qwen3_vl": "Qwen3VLForConditionalGeneration", "qwen3_vl_moe": "Qwen3VLMoeForConditionalGeneration",
               "qwen3_5": "Qwen3_5ForConditionalGeneration",
               "qwen2_5_vl": "Qwen2_5_VLForConditionalGeneration"}
    c = {"model_type": form, "architectures": [classes[form]], "vision_config": {"hidden_size": 48}, "text_config": text}
    if form == "qwen2_5_vl":  # as transformers 4 wrote it
        c = dict(text, **{k: c[k] for k in ("model_type", "architectures", "vision_config")})
    with open(out + "/config.json", "w") as f:
        json.dump(c, f)


def wrapped(alone, out, source, prefix):
    """OUT's tensors are those of the quantized language model ALONE, under names with this prefix, and SOURCE's others."""
    from choice import tensors
    a, b, s = tensors(alone), tensors(out), tensors(source)
    inner = {stored(k, prefix): v for k, v in a.items()}
    assert all(b[k] == v for k, v in inner.items())
    others = {k for k in b if k not in inner}
    assert len(others) == 3 and all(b[k] == s[k] for k in others), others


def bare(d, out, headless=""):
    """A model for embeddings, as it is stored without the class that predicts tokens: names without "model."; with HEADLESS no lm_head."""
    import os
    import shutil

    import fts
    from forward import load_tensors, save_tensors
    t = {k.removeprefix("model."): v for k, v in load_tensors(d + "/model.safetensors").items() if not (headless and k.startswith("lm_head."))}
    shutil.copytree(d, out)
    os.remove(out + "/model.safetensors")
    save_tensors(out, {k: fts.bf16(v) for k, v in t.items()}, {k: v.shape for k, v in t.items()})


def stripped(full, out):
    """OUT's tensors are those of the quantized model FULL, but for its head, under names without "model."."""
    from choice import tensors
    a, b = ({k.removeprefix("model."): v for k, v in tensors(d).items() if not k.startswith("lm_head.")} for d in (full, out))
    assert a == b and not any(k.startswith("model.") for k in tensors(out))


if __name__ == "__main__":
    import sys
    {"wrap": wrap, "wrapped": wrapped, "bare": bare, "stripped": stripped}[sys.argv[1]](*sys.argv[2:])
