"""Mamba 2 in double precision, from its paper (arXiv 2405.21060, the recurrence of section 3, and its figure 6) and the model cards of
Granite 4: what forward.py needs for it."""
import numpy as np

SIZES = {"num_hidden_layers": 4, "layer_types": ["mamba", "attention", "linear_attention", "full_attention"], "mamba_n_heads": 8, "mamba_d_head": 12,
         "mamba_n_groups": 2, "mamba_d_state": 12, "mamba_d_conv": 4, "mamba_expand": 2, "embedding_multiplier": 3.0, "attention_multiplier": 0.3,
         "residual_multiplier": 0.5, "logits_scaling": 4.0, "shared_intermediate_size": 48, "position_embedding_type": "nope"}
KINDS = {
    "granite4": {"model_type": "granitemoehybrid", **SIZES, "num_local_experts": 0, "tie_word_embeddings": True},
    "granite4-moe": {"model_type": "granitemoehybrid", **SIZES, "num_local_experts": 6, "num_experts_per_tok": 3, "intermediate_size": 32,
                     "mamba_proj_bias": True, "time_step_limit": [0.2, 1.5]},
}
OUT = "mamba.out_proj"


def linear(c, layer):
    """Whether the layer is Mamba's."""
    return c["model_type"] == "granitemoehybrid" and c["layer_types"][layer] in ("mamba", "linear_attention")


def sizes(c):
    """Heads, dims of theirs; groups, size of their states."""
    return tuple(c["mamba_" + n] for n in ("n_heads", "d_head", "n_groups", "d_state"))


def tensors(c):
    """{name: (shape, kind)} of a layer."""
    h, (n, p, g, s) = c["hidden_size"], sizes(c)
    channels = n * p + 2 * g * s
    t = {"mamba.in_proj.weight": ((n * p + channels + n, h), "weight"), "mamba.out_proj.weight": ((h, n * p), "weight"),
         "mamba.conv1d.weight": ((channels, 1, 4), "weight"), "mamba.conv1d.bias": ((channels,), "bias"), "mamba.norm.weight": ((n * p,), "norm")}
    t.update({"mamba." + k: ((n,), "bias") for k in ("A_log", "dt_bias", "D")})
    if c.get("mamba_proj_bias"):
        t.update({"mamba.%s.bias" % k: (t["mamba.%s.weight" % k][0][:1], "bias") for k in ("in_proj", "out_proj")})
    return t


def silu(x):
    return x / (1 + np.exp(-x))


def attend(c, t, p, lin, x):
    """What out_proj reads, for x[tokens, H]."""
    (n, d, g, s), w = sizes(c), lambda k: t["%s.mamba.%s" % (p, k)]
    z, xbc, step = np.split(lin("mamba.in_proj", x), [n * d, 2 * n * d + 2 * g * s], 1)
    before = np.concatenate([np.zeros((3, xbc.shape[1])), xbc])
    xbc = silu(sum(before[i:i + len(x)] * w("conv1d.weight")[:, 0, i] for i in range(4)) + w("conv1d.bias"))
    v, B, C = np.split(xbc, [n * d, n * d + g * s], 1)
    v, B, C = v.reshape(-1, n, d), B.reshape(-1, g, s).repeat(n // g, 1), C.reshape(-1, g, s).repeat(n // g, 1)
    step = np.clip(np.log1p(np.exp(step + w("dt_bias"))), *c.get("time_step_limit", (0, np.inf)))
    decay, state, y = np.exp(-np.exp(w("A_log")) * step), np.zeros((n, s, d)), np.zeros((len(x), n, d))
    for i in range(len(x)):
        state = state * decay[i][:, None, None] + B[i][:, :, None] * (step[i][:, None] * v[i])[:, None]
        y[i] = np.einsum("hsd,hs->hd", state, C[i]) + w("D")[:, None] * v[i]
    y = (y.reshape(len(x), -1) * silu(z)).reshape(len(x), g, -1)
    return (y / np.sqrt((y * y).mean(-1, keepdims=True) + c["rms_norm_eps"])).reshape(len(x), -1) * w("norm.weight")
