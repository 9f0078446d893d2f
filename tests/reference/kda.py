"""Kimi Delta Attention in double precision, from its paper (Kimi Linear, arXiv 2510.26692, section 3) and model card: what forward.py needs for it."""
import numpy as np

KINDS = {"kimi_linear": {
    "model_type": "kimi_linear", "num_hidden_layers": 4, "q_lora_rank": None, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 24,
    "mla_use_nope": True, "num_experts": 6, "num_experts_per_token": 2, "num_shared_experts": 1, "moe_intermediate_size": 32, "first_k_dense_replace": 1,
    "moe_renormalize": True, "num_expert_group": 1, "topk_group": 1, "routed_scaling_factor": 2.446, "moe_router_activation_func": "sigmoid", "rope_theta": 500.0,
    "linear_attn_config": {"full_attn_layers": [2, 4], "kda_layers": [1, 3], "head_dim": 16, "num_heads": 3, "short_conv_kernel_size": 4}}}
OUT = "self_attn.o_proj"


def linear(c, layer):
    """Whether the layer has it; layers are counted from 1."""
    return "linear_attn_config" in c and layer + 1 in c["linear_attn_config"]["kda_layers"]


def tensors(c):
    """{name: (shape, kind)} of a layer."""
    h, n, d = c["hidden_size"], c["linear_attn_config"]["num_heads"], c["linear_attn_config"]["head_dim"]
    rows = {"q_proj": (n * d, h), "k_proj": (n * d, h), "v_proj": (n * d, h), "o_proj": (h, n * d), "b_proj": (n, h), "f_a_proj": (d, h), "f_b_proj": (n * d, d),
            "g_a_proj": (d, h), "g_b_proj": (n * d, d), **{k + "_conv1d": (n * d, 1, 4) for k in "qkv"}}
    t = {"self_attn.%s.weight" % k: (s, "weight") for k, s in rows.items()}
    t.update({"self_attn.A_log": ((1, 1, n, 1), "bias"), "self_attn.dt_bias": ((n * d,), "bias"), "self_attn.o_norm.weight": ((d,), "norm")})
    return t


def attend(c, t, p, lin, x):
    """What o_proj reads, for x[tokens, H]."""
    n, d = c["linear_attn_config"]["num_heads"], c["linear_attn_config"]["head_dim"]
    w = lambda k: t["%s.self_attn.%s" % (p, k)]
    heads = lambda y: y.reshape(len(x), n, d)

    def short(k):
        y = np.concatenate([np.zeros((3, n * d)), lin("self_attn.%s_proj" % k, x)])
        y = sum(y[i:i + len(x)] * w(k + "_conv1d.weight")[:, 0, i] for i in range(4))
        return heads(y / (1 + np.exp(-y)))
    unit = lambda y: y / np.sqrt((y * y).sum(-1, keepdims=True) + 1e-6)
    q, k, v = unit(short("q")) / np.sqrt(d), unit(short("k")), short("v")
    low = lambda k: heads(lin("self_attn.%s_b_proj" % k, lin("self_attn.%s_a_proj" % k, x)))
    decay = np.exp(-np.exp(w("A_log").reshape(n, 1)) * np.log1p(np.exp(low("f") + w("dt_bias").reshape(n, d))))
    beta, state, y = 1 / (1 + np.exp(-lin("self_attn.b_proj", x))), np.zeros((n, d, d)), np.zeros((len(x), n, d))
    for i in range(len(x)):
        state = state * decay[i][:, :, None]
        new = beta[i][:, None] * (v[i] - np.einsum("hkv,hk->hv", state, k[i]))
        state = state + k[i][:, :, None] * new[:, None]
        y[i] = np.einsum("hkv,hk->hv", state, q[i])
    y = y / np.sqrt((y * y).mean(-1, keepdims=True) + c["rms_norm_eps"]) * w("o_norm.weight") / (1 + np.exp(-low("g")))
    return y.reshape(len(x), -1)
