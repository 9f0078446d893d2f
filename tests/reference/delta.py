"""Linear attention by the gated delta rule, in double precision, from its paper (Gated DeltaNet, arXiv 2412.06464) and
the model cards of Qwen3-Next and Qwen3.5: what forward.py needs for them."""
import numpy as np

DELTA = {"num_hidden_layers": 4, "head_dim": 16, "full_attention_interval": 2, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
         "linear_key_head_dim": 12, "linear_value_head_dim": 16, "rope_theta": 500.0, "partial_rotary_factor": 0.25}
MIXED = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 48}
KINDS = {
    "qwen3_next": {"model_type": "qwen3_next", **DELTA, **MIXED, "norm_topk_prob": True},
    "qwen3_5": {"model_type": "qwen3_5_text", **DELTA, "tie_word_embeddings": True},
    "qwen3_5_moe": {"model_type": "qwen3_5_moe_text", **DELTA, **MIXED, "num_hidden_layers": 2, "norm_topk_prob": True,
                    "layer_types": ["full_attention", "linear_attention"]},
}
MODELS = {k["model_type"] for k in KINDS.values()}
OUT = "linear_attn.out_proj"


def has(c):
    return c["model_type"] in MODELS


def linear(c, layer):
    """Whether the layer has linear attention."""
    if not has(c):
        return False
    if "layer_types" in c:
        return c["layer_types"][layer] == "linear_attention"
    return (layer + 1) % c["full_attention_interval"] != 0


def sizes(c):
    """Heads of keys, of values; dims of theirs."""
    return tuple(c["linear_" + n] for n in ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim"))


def tensors(c):
    """{name: (shape, kind)} of a layer's linear attention."""
    h, (nk, nv, dk, dv) = c["hidden_size"], sizes(c)
    channels = 2 * nk * dk + nv * dv
    rows = {"in_proj_qkvz": channels + nv * dv, "in_proj_ba": 2 * nv} if c["model_type"] == "qwen3_next" else {
        "in_proj_qkv": channels, "in_proj_z": nv * dv, "in_proj_b": nv, "in_proj_a": nv}
    t = {"linear_attn.%s.weight" % n: ((r, h), "weight") for n, r in rows.items()}
    t["linear_attn.out_proj.weight"] = (h, nv * dv), "weight"
    t["linear_attn.conv1d.weight"] = (channels, 1, 4), "weight"
    t["linear_attn.norm.weight"] = (dv,), "gated"
    t["linear_attn.A_log"] = t["linear_attn.dt_bias"] = (nv,), "bias"
    return t


def inputs(c, lin, x):
    """q, k, v as channels [tokens, ...], z [tokens, heads, dims], b and a [tokens, heads]."""
    nk, nv, dk, dv = sizes(c)
    if c["model_type"] != "qwen3_next":
        qkv, z = lin("linear_attn.in_proj_qkv", x), lin("linear_attn.in_proj_z", x)
        return qkv, z.reshape(len(x), nv, dv), lin("linear_attn.in_proj_b", x), lin("linear_attn.in_proj_a", x)
    group = lin("linear_attn.in_proj_qkvz", x).reshape(len(x), nk, -1)  # of a key head: q, k, its values' v, their z
    q, k, v, z = np.split(group, np.cumsum([dk, dk, nv // nk * dv]), 2)
    b, a = np.split(lin("linear_attn.in_proj_ba", x).reshape(len(x), nk, -1), 2, 2)
    flat = lambda y: y.reshape(len(x), -1)
    return np.concatenate([flat(q), flat(k), flat(v)], 1), z.reshape(len(x), nv, dv), flat(b), flat(a)


def attend(c, t, p, lin, x):
    """What out_proj reads, for x[tokens, H]."""
    nk, nv, dk, dv = sizes(c)
    n, w = len(x), {k: t["%s.linear_attn.%s" % (p, k)] for k in ("conv1d.weight", "A_log", "dt_bias", "norm.weight")}
    qkv, z, b, a = inputs(c, lin, x)
    before = np.concatenate([np.zeros((3, qkv.shape[1])), qkv])
    u = sum(before[i:i + n] * w["conv1d.weight"][:, 0, i] for i in range(4))
    u = u / (1 + np.exp(-u))
    q, k = (u[:, i * nk * dk:(i + 1) * nk * dk].reshape(n, nk, dk).repeat(nv // nk, 1) for i in range(2))
    v = u[:, 2 * nk * dk:].reshape(n, nv, dv)
    unit = lambda y: y / np.sqrt((y * y).sum(-1, keepdims=True) + 1e-6)
    q, k = unit(q) / np.sqrt(dk), unit(k)
    beta, decay = 1 / (1 + np.exp(-b)), np.exp(-np.exp(w["A_log"]) * np.log1p(np.exp(a + w["dt_bias"])))
    state, out = np.zeros((nv, dk, dv)), np.zeros((n, nv, dv))
    for i in range(n):
        state = state * decay[i][:, None, None]
        new = beta[i][:, None] * (v[i] - np.einsum("hkv,hk->hv", state, k[i]))
        state = state + k[i][:, :, None] * new[:, None]
        out[i] = np.einsum("hkv,hk->hv", state, q[i])
    out = out / np.sqrt((out * out).mean(-1, keepdims=True) + c["rms_norm_eps"]) * w["norm.weight"] * z / (1 + np.exp(-z))
    return out.reshape(n, -1)
