"""Mixtures of experts and latent attention in double precision, from their papers and definitions (DeepSeek-V2 and
-V3, Qwen-MoE, Mixtral, GLM-4.5, MiniMax-M2): what forward.py needs beside the dense decoder.  Never from our C."""
import math

import numpy as np

MLA = {"num_hidden_layers": 3, "q_lora_rank": 32, "kv_lora_rank": 40, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
       "v_head_dim": 24, "moe_intermediate_size": 32, "rms_norm_eps": 1e-5}
V3 = {"model_type": "deepseek_v3", **MLA, "n_routed_experts": 16, "num_experts_per_tok": 4, "n_group": 4, "topk_group": 2,
      "n_shared_experts": 1, "first_k_dense_replace": 1, "routed_scaling_factor": 2.5, "norm_topk_prob": True,
      "scoring_func": "sigmoid", "topk_method": "noaux_tc", "num_nextn_predict_layers": 1}
INDEX = {"index_topk": 24, "index_n_heads": 12, "index_head_dim": 16}
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "mscale": 1.0, "mscale_all_dim": 1.0}
QWEN = {"num_hidden_layers": 3, "num_experts": 10, "num_experts_per_tok": 3, "moe_intermediate_size": 32}
KINDS = {
    "deepseek_v3": {**V3, "rope_scaling": YARN},
    "mini-mixture": {**V3, "num_hidden_layers": 2, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2,
                     "topk_group": 1, "num_nextn_predict_layers": 0},
    "deepseek_v3-plain": {**V3, "q_lora_rank": None, "n_group": 1, "topk_group": 1, "n_shared_experts": 2,
                          "moe_layer_freq": 2, "first_k_dense_replace": 0, "norm_topk_prob": False,
                          "rope_interleave": False, "attention_bias": True},
    "kimi_k2": {**V3, "model_type": "kimi_k2", "n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.827,
                "architectures": ["DeepseekV3ForCausalLM"],
                "rope_scaling": {**YARN, "factor": 32.0, "beta_fast": 1.0, "beta_slow": 1.0}},
    "deepseek_v32": {**V3, **INDEX, "model_type": "deepseek_v32", "mlp_layer_types": ["sparse", "dense", "sparse"],
                     "layer_types": ["indexed_attention"] * 3, "rope_parameters": {
                         "rope_type": "yarn", "rope_theta": 5000.0, "factor": 4.0, "original_max_position_embeddings": 32,
                         "mscale": 1.0, "mscale_all_dim": 0.6}},
    "deepseek_v32-dense": {**V3, **INDEX, "model_type": "deepseek_v32", "index_topk": 64},
    "glm_moe_dsa": {**V3, **INDEX, "model_type": "glm_moe_dsa", "n_group": 1, "topk_group": 1},
    "deepseek_v2": {**MLA, "model_type": "deepseek_v2", "n_routed_experts": 12, "num_experts_per_tok": 3, "n_group": 4,
                    "topk_group": 2, "topk_method": "group_limited_greedy", "n_shared_experts": 2,
                    "first_k_dense_replace": 1, "routed_scaling_factor": 16.0, "norm_topk_prob": False,
                    "scoring_func": "softmax", "rope_scaling": {**YARN, "mscale": 0.707, "mscale_all_dim": 0.707}},
    "deepseek_v2-lite": {**MLA, "model_type": "deepseek_v2", "q_lora_rank": None, "n_routed_experts": 12,
                         "num_experts_per_tok": 3, "topk_method": "greedy", "n_shared_experts": 1,
                         "first_k_dense_replace": 1, "routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1},
    "qwen2_moe": {**QWEN, "model_type": "qwen2_moe", "shared_expert_intermediate_size": 56, "norm_topk_prob": False,
                  "use_sliding_window": True, "sliding_window": 17, "max_window_layers": 2},
    "qwen3_moe": {**QWEN, "model_type": "qwen3_moe", "head_dim": 20, "norm_topk_prob": True, "mlp_only_layers": [1],
                  "attention_bias": True, "decoder_sparse_step": 1},
    "qwen3_moe-step": {**QWEN, "model_type": "qwen3_moe", "head_dim": 16, "decoder_sparse_step": 2,
                       "use_sliding_window": True, "sliding_window": 21},
    "mixtral": {"model_type": "mixtral", "num_local_experts": 6, "num_experts_per_tok": 2, "sliding_window": 30},
    "glm4_moe": {"model_type": "glm4_moe", "num_hidden_layers": 3, "head_dim": 24, "n_routed_experts": 9,
                 "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "n_shared_experts": 1, "use_qk_norm": True,
                 "attention_bias": True, "moe_intermediate_size": 32, "first_k_dense_replace": 1, "norm_topk_prob": True,
                 "routed_scaling_factor": 1.5, "partial_rotary_factor": 0.5},
    "gpt_oss": {"model_type": "gpt_oss", "hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 3, "head_dim": 24,
                "num_local_experts": 6, "num_experts_per_tok": 3, "sliding_window": 20, "attention_bias": True, "swiglu_limit": 1.5,
                "rope_theta": 5000.0, "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
                "quantization_config": {"quant_method": "mxfp4"}},
    "ernie4_5_moe": {"model_type": "ernie4_5_moe", "num_hidden_layers": 4, "moe_num_experts": 8, "moe_k": 3, "moe_num_shared_experts": 2,
                     "moe_intermediate_size": 32, "moe_layer_start_index": 1, "moe_layer_end_index": -1, "moe_layer_interval": 2, "rope_theta": 500.0,
                     "tie_word_embeddings": True},
    "llama4": {"model_type": "llama4_text", "num_hidden_layers": 4, "intermediate_size": 32, "intermediate_size_mlp": 80, "head_dim": 16,
               "num_local_experts": 6, "num_experts_per_tok": 2, "interleave_moe_layer_step": 2, "use_qk_norm": True, "no_rope_layers": [1, 0, 1, 1],
               "attention_chunk_size": 20, "floor_scale": 9, "attn_scale": 0.4, "rope_theta": 500.0},
    "granitemoe": {"model_type": "granitemoe", "num_local_experts": 6, "num_experts_per_tok": 2, "embedding_multiplier": 3.0, "attention_multiplier": 0.3,
                   "residual_multiplier": 0.5, "logits_scaling": 4.0, "rope_theta": 500.0},
    "minimax_m2": {"model_type": "minimax_m2", "num_local_experts": 8, "num_experts_per_tok": 3, "head_dim": 24,
                   "rotary_dim": 8, "scoring_func": "sigmoid"},
}
GATED = ("qwen2_moe", "qwen3_next", "qwen3_5_moe_text")
SIGMOID = ("deepseek_v3", "kimi_k2", "deepseek_v32", "glm_moe_dsa", "glm4_moe", "minimax_m2", "kimi_linear")


def family(c):
    return c["model_type"]


def experts(c):
    return c.get("n_routed_experts") or c.get("num_experts") or c.get("num_local_experts") or c.get("moe_num_experts") or 0


def sparse(c, layer):
    """Whether a layer has experts."""
    if not experts(c) or layer in c.get("mlp_only_layers", ()):
        return False
    if "mlp_layer_types" in c:
        return c["mlp_layer_types"][layer] == "sparse"
    if family(c) == "llama4_text":
        return (layer + 1) % c["interleave_moe_layer_step"] == 0
    if family(c) == "ernie4_5_moe":
        return layer >= c["moe_layer_start_index"] and (layer + 1) % c["moe_layer_interval"] == 0
    return (layer + 1) % c.get("decoder_sparse_step", 1) == 0 and layer >= c.get("first_k_dense_replace", 0) \
        and layer % c.get("moe_layer_freq", 1) == 0


def block(c):
    if family(c) == "llama4_text":
        return "feed_forward"
    return "block_sparse_moe" if family(c) in ("mixtral", "minimax_m2", "kimi_linear") or granite(c) else "mlp"


def granite(c):
    return family(c).startswith("granitemoe")


def router(c):
    if granite(c):
        return "block_sparse_moe.router.layer"
    return block(c) + (".router" if family(c) in ("gpt_oss", "llama4_text") else ".gate")


def expert_names(c):
    return ("w1", "w3", "w2") if block(c) == "block_sparse_moe" and family(c) != "granitemoehybrid" else ("gate_proj", "up_proj", "down_proj")


def shared(c):
    """Name and width of the shared expert, or None."""
    if family(c) in GATED:
        return "mlp.shared_expert", c["shared_expert_intermediate_size"]
    if family(c) == "llama4_text":
        return "feed_forward.shared_expert", c["intermediate_size"]
    if granite(c):
        return "shared_intermediate_size" in c and ("shared_mlp", c["shared_intermediate_size"])
    if family(c) == "kimi_linear":
        return "block_sparse_moe.shared_experts", c["num_shared_experts"] * c["moe_intermediate_size"]
    n = c.get("n_shared_experts") or c.get("moe_num_shared_experts")
    return n and ("mlp.shared_experts", n * c["moe_intermediate_size"])


def correction(c):
    if family(c) == "ernie4_5_moe":
        return "mlp.moe_statics.e_score_correction_bias"
    if family(c) == "kimi_linear":
        return "block_sparse_moe.gate.e_score_correction_bias"
    return {"mlp": "mlp.gate.e_score_correction_bias"}.get(block(c), block(c) + ".e_score_correction_bias")


def mixture_tensors(c):
    """{name: (shape, kind)} of a sparse layer's MLP; kinds: weight, f32."""
    h, width = c["hidden_size"], c.get("moe_intermediate_size", c["intermediate_size"])
    t = {router(c) + ".weight": ((experts(c), h), "weight")}
    if family(c) in SIGMOID:
        t[correction(c)] = ((experts(c),), "f32")
    if family(c) == "ernie4_5_moe":
        t[correction(c)] = ((1, experts(c)), "small")
    many = [("%s.experts.%d" % (block(c), i), width, expert_names(c)) for i in range(experts(c))]
    if shared(c) and granite(c):
        w = shared(c)[1]
        t["shared_mlp.input_linear.weight"], t["shared_mlp.output_linear.weight"] = ((2 * w, h), "weight"), ((h, w), "weight")
    elif shared(c):
        many.append((*shared(c), ("gate_proj", "up_proj", "down_proj")))
    for prefix, w, (gate, up, down) in many:
        t["%s.%s.weight" % (prefix, gate)] = t["%s.%s.weight" % (prefix, up)] = (w, h), "weight"
        t["%s.%s.weight" % (prefix, down)] = (h, w), "weight"
    if family(c) in GATED:
        t["mlp.shared_expert_gate.weight"] = (1, h), "weight"
    if family(c) == "gpt_oss":
        t.update({n[:-len("weight")] + "bias": (shape[:1], "bias") for n, (shape, _) in list(t.items())})
    return t


# ---- MXFP4 (OCP Microscaling Formats v1.0), as gpt-oss stores its experts -----

E2M1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, 0, -.5, -1, -1.5, -2, -3, -4, -6])


def mxfp4(blocks, scales):
    """[..., G, 16] bytes, low nibbles first, and [..., G] exponents -> [..., 32 G]."""
    x = E2M1[np.stack([blocks & 15, blocks >> 4], -1)].reshape(*scales.shape, 32) * np.exp2(scales.astype(float) - 127)[..., None]
    return x.reshape(*scales.shape[:-1], -1)


def fuse(c, t, rng):
    """t with each layer's experts in gpt-oss's tensors: random MXFP4 weights, gate and up alternating."""
    out = {n: x for n, x in t.items() if ".experts." not in n}
    for i in range(c["num_hidden_layers"]):
        p = "model.layers.%d.mlp.experts." % i
        bias = {k: np.stack([t["%s%d.%s_proj.bias" % (p, e, k)] for e in range(experts(c))]) for k in ("gate", "up", "down")}
        out[p + "gate_up_proj_bias"] = np.stack([bias["gate"], bias["up"]], 2).reshape(experts(c), -1)
        out[p + "down_proj_bias"] = bias["down"]
        for name, (n, k) in {"gate_up_proj": (2 * c["intermediate_size"], c["hidden_size"]), "down_proj": (c["hidden_size"], c["intermediate_size"])}.items():
            out[p + name + "_blocks"] = rng.integers(0, 256, (experts(c), n, k // 32, 16)).astype("<u1")
            out[p + name + "_scales"] = rng.integers(121, 125, (experts(c), n, k // 32)).astype("<u1")
    return out


def fuse_inputs_first(c, t):
    """t with each layer's experts in Llama 4's tensors: [E, H, 2 I], gate before up, and [E, I, H]."""
    out = {n: x for n, x in t.items() if ".experts." not in n}
    for p in {n.split("experts.")[0] + "experts." for n in t if ".experts." in n}:
        of = lambda k: np.stack([t["%s%d.%s_proj.weight" % (p, e, k)].T for e in range(experts(c))])
        out[p + "gate_up_proj"], out[p + "down_proj"] = np.concatenate([of("gate"), of("up")], 2), of("down")
    return out


def fuse_granite(c, t):
    """The same in Granite's: [E, 2 I, H] and [E, H, I]."""
    out, (gate, up, down) = {n: x for n, x in t.items() if ".experts." not in n}, expert_names(c)
    for p in {n.split("experts.")[0] for n in t if ".experts." in n}:
        of = lambda k: np.stack([t["%sexperts.%d.%s.weight" % (p, e, k)] for e in range(experts(c))])
        out[p + "input_linear.weight"], out[p + "output_linear.weight"] = np.concatenate([of(gate), of(up)], 1), of(down)
    return out


def unfuse_granite(c, t):
    for n in [n for n in t if n.endswith("block_sparse_moe.input_linear.weight")]:
        p = n[:-len("input_linear.weight")]
        for e, (both, down) in enumerate(zip(t.pop(n), t.pop(p + "output_linear.weight"))):
            for k, w in zip(expert_names(c), (*np.split(both, 2), down)):
                t["%sexperts.%d.%s.weight" % (p, e, k)] = w
    return t


def unfuse(t):
    """What fuse() or fuse_inputs_first() has put together, by expert."""
    for n in [n for n in t if n.endswith("experts.gate_up_proj")]:
        p = n[:-len("gate_up_proj")]
        for e, (both, down) in enumerate(zip(t.pop(n), t.pop(p + "down_proj"))):
            for k, w in zip(("gate", "up", "down"), (*np.split(both, 2, 1), down)):
                t["%s%d.%s_proj.weight" % (p, e, k)] = w.T
    for n in [n for n in t if n.endswith("gate_up_proj_blocks")]:
        p = n[:-len("gate_up_proj_blocks")]
        both, down = (mxfp4(t.pop(p + k + "_blocks").astype(int), t.pop(p + k + "_scales").astype(int)) for k in ("gate_up_proj", "down_proj"))
        bias, down_bias = t.pop(p + "gate_up_proj_bias"), t.pop(p + "down_proj_bias")
        for e in range(len(both)):
            for k, w, b in (("gate", both[e, ::2], bias[e, ::2]), ("up", both[e, 1::2], bias[e, 1::2]), ("down", down[e], down_bias[e])):
                t["%s%d.%s_proj.weight" % (p, e, k)], t["%s%d.%s_proj.bias" % (p, e, k)] = w, b
    return t


def latent_tensors(c):
    """The same of latent attention: {name: (outputs, inputs)}, {norm: size}."""
    h, n = c["hidden_size"], c["num_attention_heads"]
    head = c["qk_nope_head_dim"] + c["qk_rope_head_dim"]
    kv, q = c["kv_lora_rank"], c["q_lora_rank"]
    linear = {"kv_a_proj_with_mqa": (kv + c["qk_rope_head_dim"], h),
              "kv_b_proj": (n * (c["qk_nope_head_dim"] + c["v_head_dim"]), kv), "o_proj": (h, n * c["v_head_dim"])}
    norm = {"kv_a_layernorm": kv}
    if q:
        linear.update(q_a_proj=(q, h), q_b_proj=(n * head, q))
        norm["q_a_layernorm"] = q
    else:
        linear["q_proj"] = n * head, h
    return linear, norm


# ---- sparse attention (DeepSeek-V3.2-Exp, section 2.1) ------------------------

def indexer_tensors(c):
    """{name: (shape, kind)} of a layer's indexer."""
    if "index_topk" not in c:
        return {}
    n, d, p = c["index_n_heads"], c["index_head_dim"], "self_attn.indexer."
    return {p + "wq_b.weight": ((n * d, c["q_lora_rank"]), "weight"), p + "wk.weight": ((d, c["hidden_size"]), "weight"),
            p + "weights_proj.weight": ((n, c["hidden_size"]), "weight"), p + "k_norm.weight": ((d,), "norm"), p + "k_norm.bias": ((d,), "bias")}


def chosen_keys(c, lin, weight, a, q_lat, rotate):
    """[queries, keys]: whether the query sees the key; a, q_lat: inputs of the indexer.  weight: a vector of k_norm;
    rotate(x[tokens, heads, d]): RoPE of the first dims, the DeepSeek's by halves, GLM's by neighbours."""
    n, top, p = len(a), c["index_topk"], "self_attn.indexer."
    q = rotate(lin(p + "wq_b", q_lat).reshape(n, c["index_n_heads"], -1))
    k = lin(p + "wk", a)
    k = (k - k.mean(1, keepdims=True)) / np.sqrt(k.var(1, keepdims=True) + 1e-6) * weight(p + "k_norm.weight") + weight(p + "k_norm.bias")
    k = rotate(k[:, None])[:, 0]
    w = lin(p + "weights_proj", a) / math.sqrt(q.shape[1])
    score = sum(w[:, h:h + 1] * np.maximum(q[:, h] @ k.T / math.sqrt(q.shape[2]), 0) for h in range(q.shape[1]))
    see = np.ones((n, n), bool)
    for t in range(top, n):
        see[t, np.argsort(-score[t, :t + 1], kind="stable")[top:]] = False
    return see


# ---- the router --------------------------------------------------------------

def top(v, k):
    """Indices of the k largest, the lowest first among equals."""
    return sorted(range(len(v)), key=lambda i: -v[i])[:k]


def weighs_inputs(c):
    """Whether an expert's input is multiplied by its score, and its output by 1 (Llama 4)."""
    return family(c) == "llama4_text"


def scores(c, logits):
    """Of one token, or of each row's, for all experts."""
    if family(c) in SIGMOID or weighs_inputs(c):
        return 1 / (1 + np.exp(-logits))
    s = np.exp(logits - logits.max(-1, keepdims=True))
    return s / s.sum(-1, keepdims=True)


def renormalizes(c):
    """Whether a token's weights sum to 1, but for a factor."""
    return granite(c) or family(c) in ("mixtral", "minimax_m2", "gpt_oss", "ernie4_5_moe") \
        or (c.get("norm_topk_prob", c.get("moe_renormalize")) and family(c) != "deepseek_v2")


def route(c, logits, bias):
    """One token: experts, weights, scores."""
    e = c.get("num_router_experts") or experts(c)
    s = scores(c, logits)
    if family(c) in SIGMOID:
        choice, best = s + bias, 2
        grouped = True
    else:
        choice, best = s + np.reshape(bias, -1), 1  # 0, but for ERNIE
        grouped = c.get("topk_method") == "group_limited_greedy"
    groups = c.get("n_group", 1) if grouped else 1
    size = e // groups
    worth = [sum(sorted(choice[g * size:(g + 1) * size])[-best:]) for g in range(groups)]
    keep = top(worth, c.get("topk_group", 1) if grouped else 1)
    choice = np.array([choice[i] if i // size in keep else -math.inf for i in range(e)])
    idx = top(choice, c.get("num_experts_per_tok") or c.get("num_experts_per_token") or c["moe_k"])
    w = np.ones(len(idx)) if weighs_inputs(c) else s[idx]
    if renormalizes(c):
        w = w / (w.sum() + 1e-20)
    # Granite: the factor by which the sum enters the residual stream is taken for one of the weights
    return idx, w * c.get("routed_scaling_factor", 1.0) * (c["residual_multiplier"] if granite(c) else 1), s[idx]


def mapped(c, layer, idx, w, s):
    """Without the experts that were pruned: the others under their new numbers, with weights that sum to the same
    where the family makes them sum to 1."""
    to = c["map"][layer][idx]
    if renormalizes(c) and w[to >= 0].sum():
        w = w * w.sum() / w[to >= 0].sum()
    return [int(i) for i in to[to >= 0]], w[to >= 0], s[to >= 0]


def silu(x):
    return x / (1 + np.exp(-x))


def gated(c, g, u):
    if family(c) != "gpt_oss":
        return silu(g) * u
    limit, alpha = c.get("swiglu_limit", 7.0), c.get("swiglu_alpha", 1.702)
    g = np.minimum(g, limit)
    return (np.clip(u, -limit, limit) + 1) * g / (1 + np.exp(-alpha * g))


def mixture(c, t, p, a, seen):
    """What a sparse layer's MLP adds for a[n, H]; p: "model.layers.3".  seen gets the inputs of linears, by name,
    p + ".routing": experts and weights [n, K], and p + ".statistics" [E, 6]: tokens, sums of scores, of weights, of
    their squares, of weight * ||output||; the scores of all tokens."""
    lin = lambda n, x: x @ t[n + ".weight"].T + t.get(n + ".bias", 0)
    logits = lin("%s.%s" % (p, router(c)), a)
    bias = t.get("%s.%s" % (p, correction(c)), 0)
    chosen = [route(c, row, bias) for row in logits]
    mass = sum(scores(c, row) for row in logits)
    if "map" in c:
        mass = mass[np.array(c["map"][int(p.split(".")[2])]) >= 0]
    seen[p + ".routing"] = np.array([x[0] for x in chosen]), np.array([x[1] for x in chosen])
    seen[p + ".scores"] = np.array([x[2] for x in chosen])
    if "map" in c:
        chosen = [mapped(c, int(p.split(".")[2]), *x) for x in chosen]
    y = np.zeros_like(a)
    stats = seen[p + ".statistics"] = np.zeros((experts(c), 6))
    gate, up, down = expert_names(c)
    for e in range(experts(c)):
        name = "%s.%s.experts.%d" % (p, block(c), e)
        rows = [i for i, x in enumerate(chosen) if e in x[0]]
        s = np.array([chosen[i][2][chosen[i][0].index(e)] for i in rows])
        x = seen[name + ".in"] = a[rows] * s[:, None] if weighs_inputs(c) else a[rows]
        x = seen[name + ".mid"] = gated(c, lin(name + "." + gate, x), lin(name + "." + up, x))
        w = np.array([chosen[i][1][chosen[i][0].index(e)] for i in rows]).reshape(-1, 1)
        out = lin(name + "." + down, x)
        y[rows] += w * out
        norms = np.linalg.norm(out, axis=1)
        stats[e] = len(rows), sum(s), w.sum(), (w ** 2).sum(), (w[:, 0] * norms).sum(), mass[e]
    if shared(c):
        name = "%s.%s" % (p, shared(c)[0])
        if granite(c):
            g, u = np.split(lin(name + ".input_linear", a), 2, 1)
        else:
            g, u = (lin("%s.%s_proj" % (name, k), a) for k in ("gate", "up"))
        x = seen[p + ".mlp_mid"] = silu(g) * u
        g = 1 / (1 + np.exp(-a @ t[name + "_gate.weight"].T)) if family(c) in GATED else 1
        shares = g * lin(name + (".output_linear" if granite(c) else ".down_proj"), x) * (c["residual_multiplier"] if granite(c) else 1)
        seen[p + ".shared"] = shares
        y += shares
    return y


def beside(c, t, p, there, here):
    """{frame name: rows}: what the original model, whose tensors t are and which saw `there`, has more at the inputs
    of layer p's experts than the quantized one, which saw `here`, for the experts that the latter chose; and what
    the output of each on its input lacks: of the original's, and its share of what the tokens lack before the
    experts are added."""
    out, (idx, weights) = {}, here[p + ".routing"]
    lacks = sum(there[p + x] - here[p + x] for x in ("'", ".shared") if p + x in there)
    for e in range(experts(c)):
        name = "%s.%s.experts.%d" % (p, block(c), e)
        rows, k = np.nonzero(idx == e)
        x = there[p + ".mlp_in"][rows]
        if weighs_inputs(c):
            x = x * here[p + ".scores"][rows, k][:, None]
        gate, up = (x @ t["%s.%s.weight" % (name, n)].T + t.get("%s.%s.bias" % (name, n), 0) for n in expert_names(c)[:2])
        out[name + ".in.drift"] = x - here[name + ".in"]
        share = weights[rows, k] / (weights[rows] ** 2).sum(1)
        out[name + ".mid.gap"] = share[:, None] * lacks[rows] + (gated(c, gate, up) - here[name + ".mid"]) @ t[
            "%s.%s.weight" % (name, expert_names(c)[2])].T
    return out
