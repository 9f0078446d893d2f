#!/usr/bin/env python3
"""What a decoder computes, in double precision, one line after the other, from
the papers (Llama, RoPE, linear and llama3 scaling, YaRN, GQA; mixtures.py: latent
attention, mixtures of experts) - never from our C.

    forward.py make KIND DIR           writes a tiny random checkpoint; KINDS below
    forward.py each KIND...            ... of each kind, into a directory of its name
    forward.py tokens FILE N...        a stream of sequences of N random ids each
    forward.py check DIR TOKENS TOLERANCE FILE [CODES...]
                                       every hidden and activation frame of the
                                       stream FILE is what this computes for TOKENS
                                       with the linears in CODES quantized
    forward.py logits DIR TOKENS TOLERANCE MODE
                                       the test helper `forward` agrees too; in f32 also
                                       on every token's experts and weights, and on
                                       the statistics of experts
    forward.py middle DIR TOKENS TOLERANCE MODE
                                       the same of the median token's logits alone
    forward.py recorded DIR FILE TOLERANCE
                                       `forward` gives the hidden states, logits and
                                       routing that transformers gave, recorded in a
                                       safetensors FILE
    forward.py drift DIR TOKENS TOLERANCE FILE CODES
                                       of --propagate both: FILE's .drift and .output
                                       frames
    forward.py change FILE OUT HOW     a damaged copy: nan, order, width, layer
    forward.py same FILE FILE [N]      equal frames, or the first N of each
    forward.py codes FILE FILE         equal codes and qmeta; -: standard input
    forward.py names FILE              "role name sequence last" of each frame

The measure: the norm of the difference of a token's vector over the vector's,
the worst token of a frame."""
import json
import math
import os
import struct
import subprocess
import sys
import tempfile

import numpy as np

import altup
import delta
import families
import fts
import kda
import mamba
import mixtures

BASE = {"vocab_size": 96, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5, "hidden_act": "silu"}
KINDS = {
    "llama": {"model_type": "llama", "rope_theta": 10000.0, "rope_scaling": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32}},
    "mini": {"model_type": "llama", "num_hidden_layers": 1},
    "llama-biases": {"model_type": "llama", "attention_bias": True, "mlp_bias": True, "num_key_value_heads": 4,
                     "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0}},
    "dynamic": {"model_type": "llama", "max_position_embeddings": 64,
                "rope_scaling": {"type": "dynamic", "factor": 2.0}},
    "mistral": {"model_type": "mistral", "sliding_window": 9, "head_dim": 20},
    "qwen2": {"model_type": "qwen2", "tie_word_embeddings": True, "use_sliding_window": True, "sliding_window": 17,
              "max_window_layers": 1, "rope_scaling": {"type": "yarn", "factor": 4.0,
                                                       "original_max_position_embeddings": 64}},
    "qwen3": {"model_type": "qwen3", "head_dim": 32, "num_key_value_heads": 1, "attention_bias": True,
              "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0}, "dtype": "bfloat16"},
    **mixtures.KINDS,
    **families.KINDS,
    **altup.KINDS,
    **delta.KINDS,
    **mamba.KINDS,
    **kda.KINDS,
}


def attention_linears(c):
    h, d = c["hidden_size"], head_dim(c)
    q, kv = c["num_attention_heads"] * d, c["num_key_value_heads"] * d
    if is_latent(c):
        return {"self_attn." + n: s for n, s in mixtures.latent_tensors(c)[0].items()}
    return {"self_attn.q_proj": (2 * q if delta.has(c) else q, h), "self_attn.k_proj": (kv, h), "self_attn.v_proj": (kv, h),
            "self_attn.o_proj": (h, q)}


def recurrent(c, i):
    """What layer i has in place of attention: one of these modules, or None."""
    return next((m for m in (delta, mamba, kda) if m.linear(c, i)), None)


def layer_tensors(c, i):
    """{name: (shape, kind)} of layer i; kinds: weight, bias, norm, gated (a norm around 1 in all families), f32."""
    h, (mlp, n), other = c["hidden_size"], families.mlp(c), recurrent(c, i)
    t = {n + ".weight": ((h,), "norm") for n in families.norms(c) if n}
    shares = altup.has(c) and altup.shares(c, i)
    if altup.has(c):
        n = n[i]
        t.update(altup.layer_tensors(c, i))
    for name, size in head_norms(c).items():
        if not other and not (shares and name == "k_norm"):
            t["self_attn.%s.weight" % name] = (size,), "norm"
    if is_latent(c) and not other:
        for name, size in mixtures.latent_tensors(c)[1].items():
            t["self_attn.%s.weight" % name] = (size,), "norm"
    t.update(mixtures.indexer_tensors(c))
    if c["model_type"] == "gpt_oss":
        t["self_attn.sinks"] = (c["num_attention_heads"],), "bias"
    lin = {k: s for k, s in attention_linears(c).items() if not (shares and k[10:] in ("k_proj", "v_proj"))}
    if other:
        lin = {}
        t.update(other.tensors(c))
    if i < c["num_hidden_layers"] and mixtures.sparse(c, i):
        t.update(mixtures.mixture_tensors(c))
    else:
        lin.update({mlp + ".gate_proj": (n, h), mlp + ".up_proj": (n, h), mlp + ".down_proj": (h, n)})
    for name, parts in families.fused(c).items():
        if parts[0] not in lin:
            continue
        lin[name] = sum(lin[n][0] for n in parts), lin[parts[0]][1]
        for n in parts:
            del lin[n]
    for name, shape in lin.items():
        t[name + ".weight"] = shape, "weight"
        if has_bias(c, name):
            t[name + ".bias"] = shape[:1], "bias"
    return t


def is_latent(c):
    return "kv_lora_rank" in c


def head_norms(c):
    """Norms of q and k and their sizes."""
    if c["model_type"] == "llama4_text":
        return {}
    if c["model_type"] in ("qwen3", "qwen3_moe", "gemma3_text", "gemma3n_text") or delta.has(c) or c.get("use_qk_norm"):
        return {"q_norm": head_dim(c), "k_norm": head_dim(c)}
    if flat_norms(c):
        return {"q_norm": head_dim(c) * c["num_attention_heads"], "k_norm": head_dim(c) * c["num_key_value_heads"]}
    return {}


def flat_norms(c):
    return c["model_type"] in ("minimax_m2", "olmo2", "olmo3")


def head_dim(c):
    if is_latent(c):
        return c["qk_nope_head_dim"] + c["qk_rope_head_dim"]
    return c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]


def has_bias(c, name):
    if c.get("use_bias"):
        return True
    if name.startswith("mlp"):
        return c.get("mlp_bias", False)
    if "o_proj" in name and c["model_type"] in ("seed_oss", "glm4"):
        return c.get("attention_out_bias", False)
    if c["model_type"] in ("seed_oss", "glm4"):
        return c.get("attention_bias", True)
    if name[10:] in ("q_b_proj", "kv_b_proj") or (is_latent(c) and name[10:] == "q_proj"):
        return False
    if c["model_type"] == "glm4_moe" and "o_proj" in name:
        return False
    return c.get("attention_bias", False) or (c["model_type"] in ("qwen2", "qwen2_moe") and "o_proj" not in name)


# ---- checkpoints -------------------------------------------------------------

def make(kind, d):
    c = dict(BASE, **KINDS[kind])
    rng = np.random.default_rng(sum(kind.encode()))
    t = {"model.embed_tokens.weight": rng.normal(0, 0.15, (c["vocab_size"], c["hidden_size"])),
         "model.norm.weight": rng.normal(0 if families.zero_centred(c) else 1, 0.2, c["hidden_size"])}
    if not c.get("tie_word_embeddings"):
        t["lm_head.weight"] = rng.normal(0, 0.15, (c["vocab_size"], c["hidden_size"]))
    for n, (shape, what) in (altup.tensors(c) if altup.has(c) else {}).items():
        t["model." + n] = rng.normal(1, 0.2, shape) if what == "norm" else rng.normal(0, 0.15, shape)
    # one layer more where the config speaks of layers that predict further tokens: nobody runs it
    for i in range(c["num_hidden_layers"] + c.get("num_nextn_predict_layers", 0)):
        for n, (shape, what) in layer_tensors(c, i).items():
            mean, size = {"norm": (0 if families.zero_centred(c) else 1, 0.2), "gated": (1, 0.2), "bias": (0, 0.2), "f32": (-0.3, 0.3), "small": (0, 0.05), "wide": (0, 5)}.get(what, (0, 0.15))
            t["model.layers.%d.%s" % (i, n)] = rng.normal(mean, size, shape)
    if c["model_type"] == "gpt_oss":
        t = mixtures.fuse(c, t, rng)
    if c["model_type"] == "llama4_text":
        t = mixtures.fuse_inputs_first(c, t)
    if mixtures.granite(c):
        t = mixtures.fuse_granite(c, t)
    os.mkdir(d)
    save_tensors(d, {n: t[n].tobytes() if t[n].dtype == "u1" else t[n].astype("<f4").tobytes() if "correction_bias" in n else fts.bf16(t[n]) for n in t}, {n: t[n].shape for n in t})
    with open(d + "/config.json", "w") as f:
        json.dump(c, f)


def save_tensors(d, data, shapes):
    """model.safetensors of these bytes, bf16; f32 where they are twice as many, U8 where half."""
    head, at, body = {}, 0, b""
    for n in sorted(data):
        size = len(data[n]) // math.prod(shapes[n])
        head[n] = {"dtype": {1: "U8", 2: "BF16", 4: "F32"}[size], "shape": list(shapes[n]), "data_offsets": [at, at + len(data[n])]}
        at, body = at + len(data[n]), body + data[n]
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(d + "/model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + body)


def load_tensors(path):
    with open(path, "rb") as f:
        head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        body = f.read()
    head.pop("__metadata__", None)
    t = {}
    for n, x in head.items():
        a, b = x["data_offsets"]
        v = np.frombuffer(body[a:b], {"BF16": "<u2", "F32": "<f4", "I32": "<i4", "I64": "<i8", "U8": "<u1"}[x["dtype"]])
        if x["dtype"] == "BF16":
            v = (v.astype("<u4") << 16).view("<f4")
        t[n] = v.reshape(x["shape"]).astype(v.dtype if v.dtype.kind == "i" else float)
    return t


def load(d):
    with open(d + "/config.json") as f:
        c = dict({"num_key_value_heads": None}, **json.load(f))
    if "expert_map" in c:
        c["map"] = load_tensors("%s/%s" % (d, c["expert_map"]))["expert_map"]
    index = d + "/model.safetensors.index.json"
    if not os.path.exists(index):
        return c, mixtures.unfuse_granite(c, mixtures.unfuse(load_tensors(d + "/model.safetensors")))
    with open(index) as f:
        files = set(json.load(f)["weight_map"].values())
    return c, {n: x for file in files for n, x in load_tensors("%s/%s" % (d, file)).items()}


def quantized(t, files):
    """Put the values of codes and qmeta in place of weights."""
    for path in files:
        with open(path, "rb") as f:
            parts = {(x.role, x.name): x for x in fts.read(f)}
        for (role, name), x in parts.items():
            if role != "codes":
                continue
            codes, q = x.array().astype(float), parts["qmeta", name]
            meta = np.repeat(q.array(), q.group, axis=1)[:, :codes.shape[1]]
            scale = np.exp2((meta & 0xffff).astype("<u2").view("<i2") / 256.0)
            if q.scale_dtype == "F16":
                scale = scale.astype(np.float32).astype(np.float16).astype(float)
            elif q.scale_dtype == "BF16":
                scale = (np.frombuffer(fts.bf16(scale), "<u2").astype("<u4") << 16).view("<f4")
                scale = scale.reshape(codes.shape).astype(float)
            scale = np.where(meta >> 25 & 1, -scale, scale)
            eight = meta >> 26 & 1
            assert x.dtype == ("U8" if eight.all() else "U4") and eight.all() == eight.any(), name
            zero = np.where(meta >> 24 & 1, np.where(eight, 128, 8), meta >> 16 & np.where(eight, 255, 15))
            t[name + ".weight"] = (codes - zero) * scale


# ---- the model ---------------------------------------------------------------

def rotary(c):
    """How many dims of a head turn."""
    if is_latent(c):
        return c["qk_rope_head_dim"]
    return c.get("rotary_dim") or int(head_dim(c) * c.get("partial_rotary_factor", 1))


def mscale(p, m):
    return 0.1 * m * math.log(p["factor"]) + 1


def frequencies(c, layer):
    """Inverse frequencies, and what multiplies cos and sin."""
    d = rotary(c)
    p, base = families.rope(c, layer)
    kind = p.get("rope_type", p.get("type", "default"))
    base = base or {"mixtral": 1e6, "minimax_m2": 5e6}.get(c["model_type"], 1e4)
    inv = base ** (-np.arange(0, d, 2) / d)
    old = p.get("original_max_position_embeddings", c.get("original_max_position_embeddings", c["max_position_embeddings"]))
    if kind == "longrope":
        return inv / p["short_factor"], math.sqrt(1 + math.log(c["max_position_embeddings"] / old) / math.log(old))
    if kind == "linear":
        return inv / p["factor"], 1.0
    if kind == "llama3":
        wave = 2 * math.pi / inv
        s = (old / wave - p["low_freq_factor"]) / (p["high_freq_factor"] - p["low_freq_factor"])
        s = np.clip(s, 0, 1)
        return (1 - s) * inv / p["factor"] + s * inv, 1.0
    if kind == "yarn":
        turn = lambda n: d * math.log(old / (n * 2 * math.pi)) / (2 * math.log(base))
        lo = max(math.floor(turn(p.get("beta_fast", 32))), 0)
        hi = min(math.ceil(turn(p.get("beta_slow", 1))), d - 1)
        r = np.clip((np.arange(d // 2) - lo) / (hi - lo or 0.001), 0, 1)
        factor = mscale(p, 1)
        if p.get("mscale"):
            factor = mscale(p, p["mscale"]) / mscale(p, p["mscale_all_dim"])
        return inv / p["factor"] * r + inv * (1 - r), factor
    assert kind in ("default", "dynamic")
    return inv, 1.0


def rms(c, x, w, eps=None):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + (eps or c["rms_norm_eps"])) * w


def rotate(c, x, layer=0):
    """x[tokens, heads, d]: halves of what turns turn together, or in latent attention neighbours."""
    if not families.rope(c, layer):
        return x
    inv, factor = frequencies(c, layer)
    angle = np.arange(len(x))[:, None, None] * inv
    cos, sin = np.cos(angle) * factor, np.sin(angle) * factor
    n = len(inv)
    first, second = slice(0, n), slice(n, 2 * n)
    if (is_latent(c) and c.get("rope_interleave", True)) or c["model_type"] in ("ernie4_5", "ernie4_5_moe", "glm4", "llama4_text"):
        first, second = slice(0, 2 * n, 2), slice(1, 2 * n, 2)
    y = x.copy()
    a, b = x[..., first], x[..., second]
    y[..., first], y[..., second] = a * cos - b * sin, b * cos + a * sin
    return y


def window(c, layer):
    if c["model_type"] in families.MODELS:
        return (c.get("sliding_window") or 0) if families.slides(c, layer) else 0
    if c["model_type"] == "gpt_oss":
        return c["sliding_window"] if layer % 2 == 0 else 0
    if c["model_type"] in ("mistral", "mixtral"):
        return c.get("sliding_window") or 0
    if c["model_type"] == "qwen3_moe":
        return c["sliding_window"] if c.get("use_sliding_window") else 0
    if c["model_type"] == "qwen2_moe":
        return c["sliding_window"] if layer < c["max_window_layers"] and layer % 2 == 0 else 0
    return c["sliding_window"] if c.get("use_sliding_window") and layer >= c["max_window_layers"] else 0


def attention(c, layer, q, k, v, see=True, sinks=None):
    """see[queries, keys]: which keys an indexer has chosen; sinks[heads]: scores without a value."""
    n, heads, d = q.shape
    scale = 1
    p = c.get("rope_scaling") or c.get("rope_parameters") or {}
    if is_latent(c) and p.get("mscale_all_dim"):
        scale *= mscale(p, p["mscale_all_dim"]) ** 2
    out = np.zeros((n, heads, v.shape[2]))
    see = see & np.tril(np.ones((n, n), bool))
    if window(c, layer):
        see = see & (np.arange(n)[None, :] > np.arange(n)[:, None] - window(c, layer))
    if "attention_chunk_size" in c and families.slides(c, layer):
        chunk = np.arange(n) // c["attention_chunk_size"]
        see = see & (chunk[:, None] == chunk)
    for h in range(heads):
        kv = h // (heads // k.shape[1])
        s = np.where(see, families.score(c, q[:, h] @ k[:, kv].T, d) * scale, -np.inf)
        p = np.exp(s - s.max(1, keepdims=True))
        sink = 0 if sinks is None else np.exp(sinks[h] - s.max(1, keepdims=True))
        out[:, h] = p / (p.sum(1, keepdims=True) + sink) @ v[:, kv]
    return out.reshape(n, -1)


def latent(c, t, p, a, lin, seen):
    """q, k, v of latent attention, k and v un-absorbed."""
    n, nope, kv = len(a), c["qk_nope_head_dim"], c["kv_lora_rank"]
    norm = lambda name, x: rms(c, x, t["%s.self_attn.%s.weight" % (p, name)], 1e-6)
    if c["q_lora_rank"]:
        x = seen[p + ".q_lat"] = norm("q_a_layernorm", lin("self_attn.q_a_proj", a))
        q = lin("self_attn.q_b_proj", x)
        if "index_topk" in c:
            turn = lambda y: rotate(dict(c, rope_interleave=c["model_type"] == "glm_moe_dsa"), y)
            seen[p + ".keys"] = mixtures.chosen_keys(c, lin, lambda n: t["%s.%s" % (p, n)], a, x, turn)
    else:
        q = lin("self_attn.q_proj", a)
    q = q.reshape(n, -1, head_dim(c))
    x = lin("self_attn.kv_a_proj_with_mqa", a)
    seen[p + ".kv_lat"] = norm("kv_a_layernorm", x[:, :kv])
    both = lin("self_attn.kv_b_proj", seen[p + ".kv_lat"]).reshape(n, q.shape[1], -1)
    turned = np.repeat(rotate(c, x[:, None, kv:]), q.shape[1], 1)
    q = np.concatenate([q[..., :nope], rotate(c, q[..., nope:])], -1)
    return q, np.concatenate([both[..., :nope], turned], -1), both[..., nope:]


def grouped(c, t, p, a, lin, layer):
    """q, k, v of grouped-query attention."""
    norm = head_norms(c)
    if "self_attn.qkv_proj" in families.fused(c):
        heads, keys = (head_dim(c) * c[n] for n in ("num_attention_heads", "num_key_value_heads"))
        q, k, v = np.split(lin("self_attn.qkv_proj", a), [heads, heads + keys], 1)
    else:
        q, k, v = (lin("self_attn.%s_proj" % n, a) for n in ("qqq" if altup.has(c) and altup.shares(c, layer) else "qkv"))
        if delta.has(c):
            q = q.reshape(len(a), -1, 2 * head_dim(c))[..., :head_dim(c)]
    normed = lambda name, x: rms(c, x, families.norm_weight(c, t["%s.self_attn.%s.weight" % (p, name)])) if norm and "%s.self_attn.%s.weight" % (p, name) in t else x
    flat = flat_norms(c)
    if flat:
        q, k = normed("q_norm", q), normed("k_norm", k)
    q, k, v = (y.reshape(len(a), -1, head_dim(c)) for y in (q, k, v))
    if not flat:
        q, k = normed("q_norm", q), normed("k_norm", k)
    q, k = rotate(c, q, layer), rotate(c, k, layer)
    if c["model_type"] == "llama4_text":
        if c["no_rope_layers"][layer]:
            q, k = rms(c, q, 1), rms(c, k, 1)
        q = q * families.growth(c, layer, len(q))[:, None, None]
    return q, k, v


def heads(c, t, p, a, lin, i, seen):
    """What o_proj of layer i reads."""
    q, k, v = latent(c, t, p, a, lin, seen) if is_latent(c) else grouped(c, t, p, a, lin, i)
    if altup.has(c):  # the last layers use keys and values of the last one of their kind that has some
        v = rms(c, v, 1) if not altup.shares(c, i) else v
        k, v = seen.get("keys", {})[families.slides(c, i)] if altup.shares(c, i) else (k, v)
        seen.setdefault("keys", {})[families.slides(c, i)] = k, v
    y = attention(c, i, q, k, v, seen.get(p + ".keys", True), t.get(p + ".self_attn.sinks"))
    if delta.has(c):  # the gates, behind the queries of each head
        g = lin("self_attn.q_proj", a).reshape(len(a), q.shape[1], -1)[..., head_dim(c):]
        y = y / (1 + np.exp(-g.reshape(len(a), -1)))
    seen[p + ".attn_out"] = y
    return y


def streams(c, t, ids, seen):
    """run() with several residual streams."""
    h, inputs = altup.enter(c, t, ids, rms)
    for i in range(c["num_hidden_layers"]):
        p = "model.layers.%d" % i
        lin = lambda n, y: y @ t[p + "." + n + ".weight"].T
        h = altup.layer(c, t, i, h, inputs, rms, lambda a: heads(c, t, p, a, lin, i, seen), seen)
    return seen, families.logits(c, rms(c, altup.leave(c, t, h), t["model.norm.weight"]) @ t["model.embed_tokens.weight"].T)


def run(c, t, ids):
    """{frame name: array}, logits"""
    seen = {}
    if altup.has(c):
        return streams(c, t, ids, seen)
    x = t["model.embed_tokens.weight"][ids] * families.embed_scale(c)
    before, behind, before_mlp, behind_mlp = families.norms(c)
    part = c.get("residual_multiplier", 1)
    for i in range(c["num_hidden_layers"]):
        p = "model.layers.%d" % i
        lin = lambda n, y: y @ t[p + "." + n + ".weight"].T + t.get(p + "." + n + ".bias", 0)
        norm = lambda n, y: rms(c, y, families.norm_weight(c, t["%s.%s.weight" % (p, n)])) if n else y
        seen[p] = x
        a = seen[p + ".attn_in"] = norm(before, x)
        other = recurrent(c, i)
        if other:
            a = seen[p + ".attn_out"] = other.attend(c, t, p, lin, a)
            x = seen[p + "'"] = x + part * lin(other.OUT, a)
        else:
            x = seen[p + "'"] = x + part * norm(behind, lin("self_attn.o_proj", heads(c, t, p, a, lin, i, seen)))
        a = seen[p + ".mlp_in"] = norm(before_mlp, x)
        if mixtures.sparse(c, i):
            x = x + mixtures.mixture(c, t, p, a, seen)
            continue
        names = [n for n in families.fused(c) if "self_attn" not in n]
        if names:
            g, u = np.split(lin(names[0], a), 2, 1)
        else:
            g, u = lin(families.mlp(c)[0] + ".gate_proj", a), lin(families.mlp(c)[0] + ".up_proj", a)
        a = seen[p + ".mlp_mid"] = families.activation(c, g) * u
        x = x + part * norm(behind_mlp, lin(families.mlp(c)[0] + ".down_proj" if len(names) < 2 else names[1], a))
    seen["model.layers.%d" % c["num_hidden_layers"]] = x
    head = t.get("lm_head.weight", t["model.embed_tokens.weight"])
    return seen, families.logits(c, rms(c, x, families.norm_weight(c, t["model.norm.weight"])) @ head.T)


# ---- commands ----------------------------------------------------------------

def read(path):
    with open(0 if path == "-" else path, "rb") as f:
        return list(fts.read(f))


def worst(a, b):
    return (np.linalg.norm(a - b, axis=1) / np.linalg.norm(b, axis=1)).max()


def wanted_output(t, o, q, p, point):
    """What the linear at this point should put out: original stream behind it, less
    the quantized one in front of it and the bias; None: it is gated."""
    if point == "attn_out":
        return o[p + "'"] - q[p] - t.get(p + ".self_attn.o_proj.bias", 0)
    down = next(p + n + "down_proj" for n in (".mlp.", ".mlp.shared_experts.", ".mlp.shared_expert.")
                if p + n + "down_proj.weight" in t)
    if p + ".mlp.shared_expert_gate.weight" in t:
        return None
    return o[p + "'"] + o[p + ".mlp_mid"] @ t[down + ".weight"].T - q[p + "'"]


def check_beside(c, t, original, now, frames, tolerance):
    """What stands in front of the inputs of experts, in parts, of the tokens of all sequences."""
    want, got = {}, {}
    for s in sorted(now):
        for p in {n[:-len(".routing")] for n in now[s] if n.endswith(".routing")}:
            for name, x in mixtures.beside(c, t, p, original[s], now[s]).items():
                want.setdefault(name, []).append(x)
    for x in frames:
        if not x.name.endswith((".in", ".mid")):
            got.setdefault(x.name, []).append(x.array().reshape(x.shape))
    assert set(got) == set(want), set(got) ^ set(want)
    for name, x in want.items():
        x, y = np.concatenate(x), np.concatenate(got[name])
        assert x.shape == y.shape, name
        assert not x.size or np.abs(x - y).max() <= tolerance * np.abs(x).max() + 2e-5, name


def drift(d, tokens, tolerance, file, codes):
    c, t = load(d)
    ids = {x.sequence: x.array() for x in read(tokens)}
    original = {s: run(c, t, x)[0] for s, x in ids.items()}
    plain = dict(t)
    quantized(t, [codes])
    now = {s: run(c, t, x)[0] for s, x in ids.items()}
    frames = [x for x in read(file) if x.role == "activation"]
    check_beside(c, plain, original, now, [x for x in frames if ".experts." in x.name], float(tolerance))
    frames = [x for x in frames if ".experts." not in x.name]
    got = {(x.name, x.sequence): x.array() for x in frames}
    points = [(x.name, x.sequence) for x in frames if x.modules]
    assert points
    for name, s in points:
        o, q, (p, point) = original[s], now[s], name.rsplit(".", 1)
        want = wanted_output(plain, o, q, p, point) if point in ("attn_out", "mlp_mid") else None
        kind = ".drift" if want is None else ".output"
        want = o[name] - q[name] if want is None else want
        if kind == ".drift" and not want.any():
            continue  # and nothing is put out
        error = np.abs(got.pop((name + kind, s)) - want).max()
        assert error <= float(tolerance) * np.abs(want).max() + 2e-5, (name, kind, error)
    rest = {n for n, s in got if n.endswith((".drift", ".output"))}
    assert not rest, rest


def check_experts(want, frames, tolerance):
    """Inputs of experts, in parts, of the tokens of all sequences; hit maps."""
    parts, last, top = {}, set(), 0.0
    for x in frames:
        if x.role == "activation" and ".experts." in x.name:
            assert x.name not in last, x.name + " goes on behind its last part"
            parts.setdefault(x.name, []).append(x.array().astype(float).reshape(x.shape))
            if x.last:
                last.add(x.name)
        elif x.role == "hitmap":
            stats = sum(want[i][x.name[:-len(".mlp")] + ".statistics"] for i in sorted(want))
            top = max(top, np.abs(x.array() - stats).max() / max(1, np.abs(stats).max()))
    if last != set(parts):
        sys.exit("no last part of %s" % sorted(set(parts) - last))
    for name, x in parts.items():
        got, good = np.concatenate(x), np.concatenate([want[i][name] for i in sorted(want)])
        if got.shape != good.shape:
            sys.exit("%s has %s, not %s" % (name, got.shape, good.shape))
        if len(got):
            top = max(top, worst(got, good))
    if top > tolerance:
        sys.exit("experts are off by %.2e" % top)
    return len(parts), top


def check(d, tokens, tolerance, path, *codes):
    c, t = load(d)
    quantized(t, codes)
    want = {x.sequence: run(c, t, x.array())[0] for x in read(tokens)}
    frames = read(path)
    count, top = check_experts(want, frames, float(tolerance))
    for i, x in enumerate(frames):
        if x.role not in ("hidden", "activation") or ".experts." in x.name:
            continue
        name = x.name
        if x.role == "hidden" and i + 1 < len(frames) and frames[i + 1].name[-6:] in ("mlp_in", "lp_mid"):
            name += "'"  # the residual stream behind o_proj
        e = worst(x.array().astype(float), want[x.sequence][name])
        if e > float(tolerance):
            sys.exit("%s of sequence %d is off by %.2e" % (name, x.sequence, e))
        count, top = count + 1, max(top, e)
    if not count:
        sys.exit("nothing to check")
    print("%d frames, worst %.2e" % (count, top))


def ours(d, mode, ids, *more):
    """What `forward` puts out, and {layer: (experts, weights, statistics)}."""
    with tempfile.NamedTemporaryFile() as f:
        p = subprocess.run(["forward", d, mode, "best", f.name, *more], input=ids.astype("<i4").tobytes(),
                           stdout=subprocess.PIPE, check=True)
        b, at, routing = f.read(), 0, {}
    while at < len(b):
        layer, k, experts = struct.unpack_from("<iii", b, at)
        n, at = len(ids) * k, at + 12
        routing[layer] = (np.frombuffer(b, "<i4", n, at).reshape(-1, k),
                          np.frombuffer(b, "<f4", n, at + 4 * n).reshape(-1, k),
                          np.frombuffer(b, "<f8", experts * 6, at + 8 * n).reshape(-1, 6))
        at += 8 * n + 48 * experts
    return np.frombuffer(p.stdout, "<f4").astype(float), routing


def same_routing(layer, got, want, tolerance):
    """Order within a token does not matter."""
    a, b = (np.take_along_axis(np.array(x[0]), np.argsort(x[0], 1), 1) for x in (got, want))
    if (a != b).any():
        sys.exit("layer %d: token %d goes to other experts" % (layer, (a != b).any(1).argmax()))
    a, b = (np.take_along_axis(np.array(x[1]), np.argsort(x[0], 1), 1) for x in (got, want))
    if worst(a, b) > float(tolerance):
        sys.exit("layer %d: weights are off by %.2e" % (layer, worst(a, b)))


def logits(d, tokens, tolerance, mode):
    c, t = load(d)
    for x in read(tokens):
        full, routing = ours(d, mode, x.array())
        seen, want = run(c, t, x.array())
        got = full[-want.size:].reshape(want.shape)
        if worst(got, want) > float(tolerance):
            sys.exit("logits are off by %.2e" % worst(got, want))
        got = ours(d, mode, x.array(), "cache")[0].reshape(want.shape)
        if worst(got, want) > float(tolerance):
            sys.exit("with a KV cache logits are off by %.2e" % worst(got, want))
        for layer in routing if mode == "f32" else ():
            same_routing(layer, routing[layer], seen["model.layers.%d.routing" % layer], tolerance)
            got, want = routing[layer][2], seen["model.layers.%d.statistics" % layer]
            if (abs(got - want) > float(tolerance) * (1 + abs(want))).any():
                sys.exit("layer %d: statistics are off by %.2e" % (layer, abs(got - want).max()))
        if (ours(d, mode, x.array(), "hooks")[0] != full).any():
            sys.exit("with hooks it is another model")


def middle(d, tokens, tolerance, mode):
    """The median token: which tokens go to other experts by rounding is luck."""
    c, t = load(d)
    for x in read(tokens):
        want = run(c, t, x.array())[1]
        got = ours(d, mode, x.array())[0][-want.size:].reshape(want.shape)
        e = np.median(np.linalg.norm(got - want, axis=1) / np.linalg.norm(want, axis=1))
        if e > float(tolerance):
            sys.exit("logits are off by %.2e" % e)


def recorded(d, path, tolerance):
    t = load_tensors(path)
    with open(d + "/config.json") as f:
        c = json.load(f)
    n, h = c["num_hidden_layers"] + 1, c["hidden_size"]
    for text in sorted(x[:-7] for x in t if x.endswith(".tokens")):
        ids = t[text + ".tokens"].reshape(-1).astype("<i4")
        got, routing = ours(d, "f32", ids)
        hidden = got[:n * len(ids) * h].reshape(n, len(ids), h)
        pairs = [(hidden[i], t["%s.hidden.%d" % (text, i)].reshape(len(ids), h)) for i in range(n)]
        want = t[text + ".logits"].reshape(-1, c["vocab_size"])
        pairs.append((got[n * len(ids) * h:].reshape(len(ids), -1)[-len(want):], want))
        if max(worst(*x) for x in pairs) > float(tolerance):
            sys.exit("text %s is off by %s" % (text, ["%.1e" % worst(*x) for x in pairs]))
        for layer in routing:
            same_routing(layer, routing[layer], [t["%s.routing.%d.%s" % (text, layer, x)].reshape(len(ids), -1)
                                                 for x in ("experts", "weights")], tolerance)


def tokens(path, *lengths):
    rng = np.random.default_rng(7)
    with open(path, "wb") as f:
        fts.write(f, [fts.Tensor("tokens", str(i), rng.integers(0, 96, int(n)).astype("<i4"), sequence=i + 1)
                      for i, n in enumerate(lengths)])


def change(path, out, how):
    frames = read(path)
    x = frames[2]
    if how == "nan":
        data = bytearray(x.payload)
        data[-2:] = b"\xc0\x7f"
        x.payload = bytes(data)
    elif how == "order":
        frames[1], frames[2] = frames[2], frames[1]
    elif how == "width":
        x.shape = [x.shape[0] * 2, x.shape[1] // 2]
    elif how == "layer":
        x.name = x.name.replace("layers.0", "layers.1")
    else:
        sys.exit("no such change")
    with open(out, "wb") as f:
        fts.write(f, frames)


def same(a, b, n=None):
    n = n and int(n)
    key = lambda p: [(x.role, x.name, x.sequence, x.dtype, x.shape, x.payload) for x in read(p)[:n]]
    if key(a) != key(b):
        sys.exit("%s and %s differ" % (a, b))


def codes(a, b):
    key = lambda p: [(x.role, x.name, x.dtype, x.shape, x.payload) for x in read(p) if x.role in ("codes", "qmeta")]
    x = key(a)
    if not x or x != key(b):
        sys.exit("%s and %s differ" % (a, b))


def names(path):
    for x in read(path):
        print(x.role, x.name, x.sequence, *(["last"] if x.last else []))


if __name__ == "__main__":
    {"make": make, "each": lambda *kinds: [make(k, k) for k in kinds], "tokens": tokens,
     "check": check, "logits": logits, "middle": middle, "recorded": recorded, "drift": drift,
     "change": change, "same": same, "codes": codes, "names": names}[sys.argv[1]](*sys.argv[2:])
