"""Gemma 3n in double precision, from the papers of its parts - AltUp (arXiv 2301.13310), LAuReL (2411.07501), Spark Transformer's
Gaussian top-k (2506.06644) - and its model card: what forward.py needs for it.
"""
import math

import numpy as np

KINDS = {"gemma3n": {
    "model_type": "gemma3n_text", "num_hidden_layers": 6, "head_dim": 16, "sliding_window": 9, "rope_theta": 2000.0, "rope_local_base_freq": 100.0,
    "layer_types": ["sliding_attention", "full_attention"] * 3, "num_kv_shared_layers": 3, "altup_num_inputs": 3, "altup_active_idx": 0,
    "altup_correct_scale": True, "laurel_rank": 10, "hidden_size_per_layer_input": 12, "vocab_size_per_layer_input": 80,
    "intermediate_size": [80, 64, 80, 80, 96, 80], "activation_sparsity_pattern": [0.7, 0.3, 0, 0.5, 0, 0], "final_logit_softcapping": 2.0,
    "tie_word_embeddings": True}}


def has(c):
    return c["model_type"] == "gemma3n_text"


def shares(c, i):
    return i >= c["num_hidden_layers"] - c["num_kv_shared_layers"]


def layer_tensors(c, i):
    """{name: (shape, kind)} beside Llama's."""
    h, n, r, u = c["hidden_size"], c["altup_num_inputs"], c["laurel_rank"], c["hidden_size_per_layer_input"]
    return {"altup.modality_router.weight": ((n, h), "wide"), "altup.router_norm.weight": ((h,), "norm"), "altup.prediction_coefs.weight": ((n * n, n), "weight"),
            "altup.correction_coefs.weight": ((n, n), "weight"), "altup.correct_output_scale": ((h,), "norm"), "laurel.linear_left.weight": ((r, h), "weight"),
            "laurel.linear_right.weight": ((h, r), "weight"), "laurel.post_laurel_norm.weight": ((h,), "norm"), "per_layer_input_gate.weight": ((u, h), "weight"),
            "per_layer_projection.weight": ((h, u), "weight"), "post_per_layer_input_norm.weight": ((h,), "norm")}


def tensors(c):
    """{name: (shape, kind)} outside of layers."""
    h, n, u = c["hidden_size"], c["altup_num_inputs"], c["hidden_size_per_layer_input"]
    t = {"per_layer_model_projection.weight": ((c["num_hidden_layers"] * u, h), "weight"), "per_layer_projection_norm.weight": ((u,), "norm"),
         "embed_tokens_per_layer.weight": ((c["vocab_size_per_layer_input"], c["num_hidden_layers"] * u), "weight")}
    for i in range(n - 1):
        t["altup_projections.%d.weight" % i] = t["altup_unembed_projections.%d.weight" % i] = (h, h), "weight"
    return t


def length(x):
    return np.sqrt((x * x).mean(-1, keepdims=True))


def as_long(x, like):
    return x * length(like) / np.maximum(length(x), math.sqrt(1e-5))


def enter(c, t, ids, rms):
    """The streams [n, tokens, H], and the layers' inputs [tokens, layers, u]."""
    u, m = c["hidden_size_per_layer_input"], "model."
    x = t[m + "embed_tokens.weight"][ids] * math.sqrt(c["hidden_size"])
    table = t[m + "embed_tokens_per_layer.weight"]
    own = table[np.where(ids < len(table), ids, 0)] * math.sqrt(u)
    made = (x @ t[m + "per_layer_model_projection.weight"].T / math.sqrt(c["hidden_size"])).reshape(len(ids), -1, u)
    made = rms(c, made, t[m + "per_layer_projection_norm.weight"])
    streams = [x] + [as_long(x @ t[m + "altup_projections.%d.weight" % i].T, x) for i in range(c["altup_num_inputs"] - 1)]
    return np.array(streams), (made + own.reshape(made.shape)) / math.sqrt(2)


def leave(c, t, h):
    return sum([h[0]] + [as_long(x @ t["model.altup_unembed_projections.%d.weight" % i].T, h[0]) for i, x in enumerate(h[1:])]) / len(h)


def gelu(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))


def sparse(g, share):
    """All but about `share` of a normal distribution's numbers become 0."""
    from statistics import NormalDist
    return np.maximum(g - g.mean(-1, keepdims=True) - g.std(-1, keepdims=True) * NormalDist().inv_cdf(share), 0) if share else g


def layer(c, t, i, h, u, rms, attend, seen):
    """h behind layer i.  attend(a): what o_proj reads."""
    p, a = "model.layers.%d." % i, c["altup_active_idx"]
    lin = lambda n, y: y @ t[p + n + ".weight"].T
    norm = lambda n, y: rms(c, y, t[p + n + ".weight"])
    kind = lambda x: np.tanh(lin("altup.modality_router", norm("altup.router_norm", x) / c["hidden_size"]))
    q = lin("altup.prediction_coefs", kind(h[a])).reshape(-1, len(h), len(h))
    guess = h + np.einsum("tji,ith->jth", q, h)
    x = guess[a]
    y = seen[p + "attn_in"] = norm("input_layernorm", x)
    low = y + norm("laurel.post_laurel_norm", lin("laurel.linear_right", lin("laurel.linear_left", y)))
    x = (x + norm("post_attention_layernorm", lin("self_attn.o_proj", attend(y))) + low) / math.sqrt(2)
    y = seen[p + "mlp_in"] = norm("pre_feedforward_layernorm", x)
    y = seen[p + "mlp_mid"] = gelu(sparse(lin("mlp.gate_proj", y), c["activation_sparsity_pattern"][i])) * lin("mlp.up_proj", y)
    x = x + norm("post_feedforward_layernorm", lin("mlp.down_proj", y))
    h = guess + (1 + lin("altup.correction_coefs", kind(x))).T[:, :, None] * (x - guess[a])
    y = h[a] * t[p + "altup.correct_output_scale"] if c["altup_correct_scale"] else h[a]
    y = norm("post_per_layer_input_norm", lin("per_layer_projection", gelu(lin("per_layer_input_gate", y)) * u[:, i]))
    return np.concatenate([h[:1], h[1:] + y])
