#!/usr/bin/env python3
"""Small mixtures of experts in every storage, with the standard library and NumPy.

    moe.py make FAMILY STORAGE DIR   writes DIR (config.json, tensors, a tokenizer) and DIR.truth: the tensors as a
                                     reader should show them, and the exact products of fp8 weights with their scales
    moe.py check DIR HOW             runs ckdump on DIR and compares; HOW: all, linear, bf16
    moe.py stream FILE DIR           compares a stream of forge-weights
    moe.py deepseek DIR              DeepSeek-V3's config, index, names and sizes in 163 files that are holes (and need
                                     no space): all weights are 0
    moe.py names DIR                 the same names, 46,000 linears, with matrices of 32 x 32
    moe.py many DIR EXPERTS          two layers with so many experts of 256 x 384 (qwen3_moe)

FAMILY: deepseek_v3 deepseek_v3-direct (no q_lora_rank) qwen3_moe qwen2_moe mixtral;
qwen3_moe-all and qwen2_moe-all have experts in layer 0 too
STORAGE: plain fp8 fp8-bf16 fp8-e8m0 fp8-tensor fp8-ct-tensor fp8-ct-channel fp8-ct-block fused-oi fused-io fused-fp8

The weights are drawn from the tensors' names, so that all storages of a family but the fp8 ones hold the same model.
Formats: e4m3 has a sign, 4 bits of exponent with bias 7 and 3 of mantissa, its last code is no number; a stored scale
multiplies; blocks of 128 x 128 are cut at the edges.
"""
import json
import os
import pickle
import shutil
import struct
import subprocess
import sys
import zlib

import numpy as np

import checkpoints as c

c.DTYPES["F8_E8M0"] = 1
H, INTER, WIDTH, LAYERS, VOCAB, E, HEADS = 160, 192, 32, 3, 424, 8, 4
KEEP_PLAIN = "model.layers.2.self_attn.o_proj"  # a linear that an fp8 checkpoint leaves alone
HERE = os.path.dirname(os.path.abspath(__file__))


# ---- the families ------------------------------------------------------------

def common(model_type, arch, **more):
    return {"architectures": [arch], "model_type": model_type, "hidden_act": "silu", "hidden_size": H,
            "intermediate_size": INTER, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
            "num_key_value_heads": HEADS, "vocab_size": VOCAB, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
            "max_position_embeddings": 256, "tie_word_embeddings": False, "attention_bias": False,
            "torch_dtype": "bfloat16", "bos_token_id": 0, "eos_token_id": 1, **more}


def config(family):
    if family.startswith("deepseek_v3"):
        return common("deepseek_v3", "DeepseekV3ForCausalLM", q_lora_rank=None if "direct" in family else 64,
                      kv_lora_rank=64, qk_nope_head_dim=16, qk_rope_head_dim=16, v_head_dim=32, n_routed_experts=E,
                      n_shared_experts=1, num_experts_per_tok=2, n_group=2, topk_group=1, norm_topk_prob=True,
                      first_k_dense_replace=1, moe_layer_freq=1, moe_intermediate_size=WIDTH,
                      routed_scaling_factor=2.5, scoring_func="sigmoid", topk_method="noaux_tc",
                      num_nextn_predict_layers=1,
                      rope_scaling={"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64,
                                    "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0})
    if family == "mixtral":
        return common("mixtral", "MixtralForCausalLM", num_local_experts=E, num_experts_per_tok=2,
                      num_key_value_heads=2, intermediate_size=WIDTH, head_dim=32, sliding_window=None,
                      router_aux_loss_coef=0.02)
    moe = dict(num_experts=E, num_experts_per_tok=2, moe_intermediate_size=WIDTH, norm_topk_prob=True,
               decoder_sparse_step=1, mlp_only_layers=[] if "-all" in family else [0], num_key_value_heads=2)
    family = family.removesuffix("-all")
    if family == "qwen3_moe":
        return common(family, "Qwen3MoeForCausalLM", head_dim=32, **moe)
    return common(family, "Qwen2MoeForCausalLM", shared_expert_intermediate_size=64,
                  use_sliding_window=False, **{**moe, "num_key_value_heads": HEADS, "norm_topk_prob": False,
                                               "num_attention_heads": 5, "num_key_value_heads": 5})


def linears(conf, layer):
    """(module, outputs, inputs) of a layer, those that stay plain (kv_b_proj, eh_proj) too."""
    h, p, f = H, f"model.layers.{layer}.", conf["model_type"]
    n, kv = conf["num_attention_heads"], conf["num_key_value_heads"]
    if f == "deepseek_v3":
        q, lat = n * 32, conf["q_lora_rank"]
        if lat:
            yield p + "self_attn.q_a_proj", lat, h
            yield p + "self_attn.q_b_proj", q, lat
        else:
            yield p + "self_attn.q_proj", q, h
        yield p + "self_attn.kv_a_proj_with_mqa", 64 + 16, h
        yield p + "self_attn.kv_b_proj", n * (16 + 32), 64
        yield p + "self_attn.o_proj", h, n * 32
    else:
        d = 32
        for name, o in (("q", n * d), ("k", kv * d), ("v", kv * d)):
            yield f"{p}self_attn.{name}_proj", o, h
        yield p + "self_attn.o_proj", h, n * d
    if layer == LAYERS:
        yield p + "eh_proj", h, 2 * h
    names = ("gate_proj", "up_proj", "down_proj")
    if layer < conf.get("first_k_dense_replace", 0) or layer in conf.get("mlp_only_layers", ()):
        yield from mlp(p + "mlp.", INTER, names)
        return
    shared = {"deepseek_v3": ("mlp.shared_experts.", WIDTH), "qwen2_moe": ("mlp.shared_expert.", 64)}.get(f)
    if shared:
        yield from mlp(p + shared[0], shared[1], names)
    for e in range(E):
        if f == "mixtral":
            yield from mlp(f"{p}block_sparse_moe.experts.{e}.", WIDTH, ("w1", "w3", "w2"))
        else:
            yield from mlp(f"{p}mlp.experts.{e}.", WIDTH, names)


def mlp(p, width, names):
    for name, o, i in zip(names, (width, width, H), (H, H, width)):
        yield p + name, o, i


def draw(name, shape, size, mean=0.0):
    return (mean + size * np.random.default_rng(zlib.crc32(name.encode())).normal(size=shape)).astype(np.float32)


def build(family):
    """-> config, {name: (dtype, shape, bytes)}, [modules of linears]"""
    conf, t, mods = config(family), {}, []
    f, n, kv = conf["model_type"], conf["num_attention_heads"], conf["num_key_value_heads"]

    def put(name, shape, size=0.05, mean=0.0, dtype="BF16"):
        a = draw(name, shape, size, mean)
        t[name] = c.tensor(a, "BF16" if dtype == "BF16" else None)

    def layer(i):
        p = f"model.layers.{i}."
        for m, o, w in linears(conf, i):
            put(m + ".weight", (o, w), w ** -0.5)
            mods.append(m)
        for x in ("input_layernorm", "post_attention_layernorm"):
            put(f"{p}{x}.weight", (H,), 0.1, 1.0)
        if f == "deepseek_v3":
            if conf["q_lora_rank"]:
                put(p + "self_attn.q_a_layernorm.weight", (64,), 0.1, 1.0)
            put(p + "self_attn.kv_a_layernorm.weight", (64,), 0.1, 1.0)
        if f == "qwen3_moe":
            put(p + "self_attn.q_norm.weight", (32,), 0.1, 1.0)
            put(p + "self_attn.k_norm.weight", (32,), 0.1, 1.0)
        if f == "qwen2_moe":
            for x, o in (("q", n * 32), ("k", kv * 32), ("v", kv * 32)):
                put(f"{p}self_attn.{x}_proj.bias", (o,))
        if i < conf.get("first_k_dense_replace", 0) or i in conf.get("mlp_only_layers", ()):
            return
        moe = p + ("block_sparse_moe." if f == "mixtral" else "mlp.")
        put(moe + "gate.weight", (E, H), 0.15)
        if f == "deepseek_v3":
            put(moe + "gate.e_score_correction_bias", (E,), 0.1, dtype="F32")
        if f == "qwen2_moe":
            put(moe + "shared_expert_gate.weight", (1, H), 0.1)

    put("model.embed_tokens.weight", (VOCAB, H), 1.0)
    for i in range(LAYERS + (f == "deepseek_v3")):
        layer(i)
    if f == "deepseek_v3":  # the layer that predicts the token after the next
        p = f"model.layers.{LAYERS}."
        for x in ("enorm", "hnorm", "shared_head.norm"):
            put(f"{p}{x}.weight", (H,), 0.1, 1.0)
        put(p + "embed_tokens.weight", (VOCAB, H), 1.0)
        put(p + "shared_head.head.weight", (VOCAB, H), 0.1)
    put("model.norm.weight", (H,), 0.1, 1.0)
    put("lm_head.weight", (VOCAB, H), 0.15)
    return conf, t, mods


# ---- 8-bit floats ------------------------------------------------------------

def e4m3_table():
    b = np.arange(128)
    e, m = b >> 3, b & 7
    v = np.where(e > 0, (1 + m / 8) * 2.0 ** (e - 7), m / 8 * 2.0 ** -6)
    v[127] = np.nan
    return np.concatenate([v, -v]).astype(np.float32)


E4M3 = e4m3_table()


def to_e4m3(x):
    """Nearest code; |x| is at most 448."""
    mid = (E4M3[:126] + E4M3[1:127]) / 2
    return (np.searchsorted(mid, np.abs(x)) + 128 * (x < 0)).astype(np.uint8)


def spread(s, shape, block):
    return np.repeat(np.repeat(s, block[0], 0), block[1], 1)[:shape[0], :shape[1]]


def fp8_scale(w, block):
    r, k = (-(-n // b) for n, b in zip(w.shape, block))
    s = np.empty((r, k), np.float32)
    for i in range(r):
        for j in range(k):
            s[i, j] = np.abs(w[i * block[0]:(i + 1) * block[0], j * block[1]:(j + 1) * block[1]]).max() / 448
    return s


def store_fp8(conf, t, mods, kind):
    """Linears to 8-bit floats.  -> what is shown, exact products {module: float32}"""
    shown, exact, block = dict(t), {}, (128, 128)
    if kind == "fused-fp8":
        block = (WIDTH, 32)
    for m in mods:
        if m == KEEP_PLAIN or m.endswith("eh_proj"):
            continue
        w = c.floats(t.pop(m + ".weight"))
        b = {"fp8-tensor": w.shape, "fp8-ct-tensor": w.shape, "fp8-ct-channel": (1, w.shape[1])}.get(kind, block)
        s = fp8_scale(w, b)
        if kind == "fp8-e8m0":
            x = np.ceil(np.log2(s)).astype(int)
            s, stored = np.float32(2.0) ** x, ("F8_E8M0", s.shape, (x + 127).astype(np.uint8).tobytes())
        elif kind in ("fp8-bf16", "fp8-ct-channel"):
            s = c.from_bf16(c.bf16(s * np.float32(1.01)))
            stored = c.tensor(s, "BF16")
        else:
            stored = c.tensor(s)
        q = to_e4m3(np.clip(w / spread(s, w.shape, b), -448, 448))
        exact[m] = E4M3[q] * spread(s, w.shape, b)
        shown[m + ".weight"] = c.tensor(exact[m], "BF16")
        t[m + ".weight"] = ("F8_E4M3", w.shape, q.tobytes())
        if kind == "fp8-tensor":
            stored = (stored[0], (), stored[2])
            t[m + ".input_scale"] = ("F32", (), struct.pack("<f", 0.5))
            t[m + ".activation_scale"] = ("F32", (), struct.pack("<f", 0.5))
        elif kind == "fp8-ct-tensor":
            stored = (stored[0], (1,), stored[2])
        inv = "tensor" not in kind and "ct" not in kind
        t[m + (".weight_scale_inv" if inv else ".weight_scale")] = stored
    conf["quantization_config"] = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3",
                                   "weight_block_size": list(block)}
    if kind == "fp8-tensor":
        conf["quantization_config"] = {"quant_method": "fp8", "activation_scheme": "static"}
    elif "ct" in kind:
        weights = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": kind[7:], "dynamic": False}
        if kind == "fp8-ct-block":
            weights["block_structure"] = [128, 128]
        conf["quantization_config"] = {"quant_method": "compressed-tensors", "format": "float-quantized",
                                       "quantization_status": "compressed", "ignore": ["lm_head"],
                                       "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}}
    return shown, exact


# ---- experts in one tensor ---------------------------------------------------

def raw(t):
    return np.frombuffer(t[2], {1: np.uint8, 2: np.uint16, 4: np.uint32}[c.DTYPES[t[0]]]).reshape(t[1])


def fuse(conf, t, inputs_first):
    """[E, 2I, H] and [E, H, I], or with the last two turned; scales likewise."""
    mixtral = conf["model_type"] == "mixtral"
    at, (gate, up, down) = (("block_sparse_moe", ("w1", "w3", "w2")) if mixtral else
                            ("mlp", ("gate_proj", "up_proj", "down_proj")))
    for i in range(LAYERS + 1):
        p = f"model.layers.{i}.{at}."
        for end, new in ((".weight", ""), (".weight_scale_inv", "_scale_inv")):
            if f"{p}experts.0.{gate}{end}" not in t:
                continue
            d = t[f"{p}experts.0.{gate}{end}"][0]
            x = [[raw(t.pop(f"{p}experts.{e}.{n}{end}")) for n in (gate, up, down)] for e in range(E)]
            both = np.stack([np.concatenate(v[:2]) for v in x])
            one = np.stack([v[2] for v in x])
            if inputs_first:
                both, one = (np.ascontiguousarray(v.transpose(0, 2, 1)) for v in (both, one))
            q = f"model.layers.{i}.mlp.experts."  # the name that transformers 5 gives in all families
            t[f"{q}gate_up_proj{new}"] = (d, both.shape, both.tobytes())
            t[f"{q}down_proj{new}"] = (d, one.shape, one.tobytes())
        if mixtral and p + "gate.weight" in t:
            t[f"model.layers.{i}.mlp.gate.weight"] = t.pop(p + "gate.weight")


# ---- making and checking -----------------------------------------------------

def make(family, storage, d):
    conf, t, mods = build(family)
    shown, exact = dict(t), {}
    if "fp8" in storage:
        shown, exact = store_fp8(conf, t, mods, storage)
    if storage.startswith("fused"):
        fuse(conf, t, storage == "fused-io")
    os.makedirs(d, exist_ok=True)
    names, n, wm = sorted(t), 3, {}
    for i in range(n):
        f = f"model-{i + 1:05d}-of-{n:05d}.safetensors"
        c.save_safetensors(f"{d}/{f}", {k: t[k] for k in names[i::n]}, {"format": "pt"})
        wm.update({k: f for k in names[i::n]})
    with open(f"{d}/model.safetensors.index.json", "w") as f:
        json.dump({"metadata": {"total_size": sum(len(x[2]) for x in t.values())}, "weight_map": wm}, f)
    with open(f"{d}/config.json", "w") as f:
        json.dump(conf, f, indent=2)
    shutil.copy(f"{HERE}/tokenizers/deepseek.json", f"{d}/tokenizer.json")
    with open(f"{d}.truth", "wb") as f:
        pickle.dump((shown, exact, mods), f)


def truth(d):
    with open(f"{d}.truth", "rb") as f:
        return pickle.load(f)


def check(d, how):
    shown, exact, mods = truth(d)
    lines, f = c.dump(d, *([] if how == "all" else [how, *mods]))
    assert sorted(x[0] for x in lines) == sorted(shown if how == "all" else mods), "names"
    for x in lines:
        want = shown[x[0] + ("" if how == "all" else ".weight")]
        if how == "all":
            assert (x[1], [int(n) for n in x[2:]]) == (want[0], list(want[1])), x
            assert f.read(len(want[2])) == want[2], x[0]
            continue
        assert [int(n) for n in x[1:]] == list(want[1]), x
        w = exact.get(x[0], c.floats(want)).astype(np.float32)
        b = c.bf16(w) if how == "bf16" else w
        assert f.read(b.nbytes) == b.tobytes(), x[0]
    assert not f.read(), "more bytes"


def quantizable(conf, name):
    """May this linear's weight be a `weight` frame?"""
    return not name.endswith(("kv_b_proj", "eh_proj")) and f"layers.{conf['num_hidden_layers']}." not in name


def check_stream(path, d):
    shown, _, mods = truth(d)
    with open(f"{d}/config.json") as f:
        conf = json.load(f)
    linear = {m for m in mods if quantizable(conf, m)}
    got = {}
    for role, name, dtype, dims, _, b in c.frames(path):
        assert role in ("weight", "tensor"), (role, name)
        assert (role == "weight") == (name in linear), (role, name)
        full = name + (".weight" if role == "weight" else "")
        assert full not in got, name
        got[full] = (dtype, dims, b)
    assert got.keys() == shown.keys(), got.keys() ^ shown.keys()
    for k, v in got.items():
        assert v == (shown[k][0], tuple(shown[k][1]), shown[k][2]), k


# ---- DeepSeek-V3 -------------------------------------------------------------

V3 = {"hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048, "num_hidden_layers": 61,
      "num_attention_heads": 128, "num_key_value_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512,
      "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 256,
      "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4, "first_k_dense_replace": 3, "vocab_size": 129280,
      "max_position_embeddings": 163840}
SMALL = {**V3, "hidden_size": 32, "intermediate_size": 32, "moe_intermediate_size": 32, "num_attention_heads": 4,
         "num_key_value_heads": 4, "q_lora_rank": 32, "kv_lora_rank": 32, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8,
         "v_head_dim": 8, "vocab_size": 32}


def v3_tensors(k):
    """name, dtype, shape of every tensor; linears in 8-bit floats with their scales."""
    h, w, n = k["hidden_size"], k["moe_intermediate_size"], k["num_attention_heads"]
    q, kv = k["q_lora_rank"], k["kv_lora_rank"]
    nope, rope, v = k["qk_nope_head_dim"], k["qk_rope_head_dim"], k["v_head_dim"]

    def linear(name, o, i):
        yield name + ".weight", "F8_E4M3", (o, i)
        yield name + ".weight_scale_inv", "F32", (-(-o // 128), -(-i // 128))

    yield "model.embed_tokens.weight", "BF16", (k["vocab_size"], h)
    for i in range(k["num_hidden_layers"] + 1):
        p = f"model.layers.{i}."
        for x in ("input_layernorm", "post_attention_layernorm"):
            yield p + x + ".weight", "BF16", (h,)
        yield p + "self_attn.q_a_layernorm.weight", "BF16", (q,)
        yield p + "self_attn.kv_a_layernorm.weight", "BF16", (kv,)
        for x, o, c_ in (("q_a_proj", q, h), ("q_b_proj", n * (nope + rope), q), ("kv_a_proj_with_mqa", kv + rope, h),
                         ("kv_b_proj", n * (nope + v), kv), ("o_proj", h, n * v)):
            yield from linear(p + "self_attn." + x, o, c_)
        blocks = [("mlp.", k["intermediate_size"])]
        if i >= 3:
            yield p + "mlp.gate.weight", "BF16", (256, h)
            yield p + "mlp.gate.e_score_correction_bias", "F32", (256,)
            blocks = [("mlp.shared_experts.", w)] + [(f"mlp.experts.{e}.", w) for e in range(256)]
        for b, o in blocks:
            yield from linear(p + b + "gate_proj", o, h)
            yield from linear(p + b + "up_proj", o, h)
            yield from linear(p + b + "down_proj", h, o)
        if i == k["num_hidden_layers"]:
            for x in ("enorm", "hnorm", "shared_head.norm"):
                yield f"{p}{x}.weight", "BF16", (h,)
            yield p + "eh_proj.weight", "BF16", (h, 2 * h)
            yield p + "embed_tokens.weight", "BF16", (k["vocab_size"], h)
            yield p + "shared_head.head.weight", "BF16", (k["vocab_size"], h)
    yield "model.norm.weight", "BF16", (h,)
    yield "lm_head.weight", "BF16", (k["vocab_size"], h)


def deepseek(d, k=None):
    k, n = k or V3, 163
    conf = {**config("deepseek_v3"), **k,
            "quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3",
                                    "weight_block_size": [128, 128]},
            "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 32,
                             "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0}}
    os.makedirs(d, exist_ok=True)
    with open(f"{d}/config.json", "w") as f:
        json.dump(conf, f)
    shutil.copy(f"{HERE}/tokenizers/deepseek.json", f"{d}/tokenizer.json")
    all_, wm, total = list(v3_tensors(k)), {}, 0
    for i in range(n):
        name, head, at = f"model-{i + 1:05d}-of-{n:06d}.safetensors", {}, 0
        for t, dtype, shape in all_[len(all_) * i // n:len(all_) * (i + 1) // n]:
            size = int(np.prod(shape)) * c.DTYPES[dtype]
            head[t] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
            at, wm[t] = at + size, name
        text = json.dumps(head, separators=(",", ":")).encode()
        with open(f"{d}/{name}", "wb") as f:
            f.write(struct.pack("<Q", len(text)) + text)
            f.truncate(8 + len(text) + at)
        total += at
    with open(f"{d}/model.safetensors.index.json", "w") as f:
        json.dump({"metadata": {"total_size": total}, "weight_map": wm}, f)
    print(len(all_), total)


def many(d, experts):
    """Numbers out of one pool: what is looked at is memory."""
    h, width, n, pool = 256, 384, int(experts), c.bf16(draw("pool", (1 << 20,), 0.05))
    conf = {**config("qwen3_moe-all"), "hidden_size": h, "num_hidden_layers": 2, "num_experts": n, "moe_intermediate_size": width}
    t = {"model.embed_tokens.weight": (VOCAB, h), "lm_head.weight": (VOCAB, h), "model.norm.weight": (h,)}
    for p in ("model.layers.0.", "model.layers.1."):
        t |= {p + x + "_layernorm.weight": (h,) for x in ("input", "post_attention")}
        t |= {f"{p}self_attn.{x}_norm.weight": (32,) for x in "qk"}
        t |= {f"{p}self_attn.{x}_proj.weight": s for x, s in
              (("q", (HEADS * 32, h)), ("k", (64, h)), ("v", (64, h)), ("o", (h, HEADS * 32)))}
        t[p + "mlp.gate.weight"] = (n, h)
        for e in range(n):
            t |= {x + ".weight": (o, i) for x, o, i in mlp(f"{p}mlp.experts.{e}.", width, ("gate_proj", "up_proj", "down_proj"))
                  for o, i in [(o if o != H else h, i if i != H else h)]}
    one = c.bf16(np.ones(h, np.float32)).tobytes()
    data = {}
    for k, s in t.items():
        at = zlib.crc32(k.encode()) % (len(pool) - h * width)
        data[k] = ("BF16", s, one[:2 * s[0]] if "norm" in k else pool[at:at + int(np.prod(s))].tobytes())
    os.makedirs(d, exist_ok=True)
    c.save_safetensors(f"{d}/model.safetensors", data, {"format": "pt"})
    with open(f"{d}/config.json", "w") as f:
        json.dump(conf, f)
    shutil.copy(f"{HERE}/tokenizers/deepseek.json", f"{d}/tokenizer.json")


if __name__ == "__main__":
    {"make": make, "deepseek": deepseek, "names": lambda d: deepseek(d, SMALL), "many": many, "check": check,
     "stream": check_stream}[sys.argv[1]](*sys.argv[2:])
