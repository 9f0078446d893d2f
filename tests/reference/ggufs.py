#!/usr/bin/env python3
"""ggufs.py - GGUF files in NumPy, from ggml's documents: the judge of
forge-gguf where the gguf package is not.

    ggufs.py same MODEL FILE [--q8]
        FILE has every tensor of the Llama or Qwen checkpoint, each weight equal:
        codes and scales of 4-bit linears, bits of all others (--q8: matrices
        rounded as Q8_0 says)
    ggufs.py experts MODEL FILE [PACKED]
        the same of a mixture made by moe.py: experts in one tensor, kv_b_proj in
        two, nothing of layers that predict further tokens; PACKED: FILE was made
        of this 4-bit checkpoint of it, in layout compressed-tensors
    ggufs.py latent PACKED OUT
        a copy of a DeepSeek checkpoint in layout compressed-tensors with kv_b_proj
        in 4 bits, too, as other quantizers store it
    ggufs.py keys OUT FILE
        FILE has that kv_b_proj: the values' codes, and the keys' weights turned
    ggufs.py rounded PACKED
        of how many linears F16 does not hold each zero times scale; exit 1 if one is
        further from what F16 holds than 1/128 of the scale
    ggufs.py made MODEL FILE GROUP
        FILE says of how its codes were made what the files and the card of the
        4-bit checkpoint MODEL say
    ggufs.py pairs FILE        its metadata, a line each, arrays by their length

Needs python3-numpy."""
import json
import os
import shutil
import struct
import sys

import numpy as np

import actorder

SCALAR = {4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q"}
BLOCK = {0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 8: (32, 34), 30: (1, 2)}
NAMES = {"embed_tokens": "token_embd", "lm_head": "output", "input_layernorm": "attn_norm",
         "post_attention_layernorm": "ffn_norm", "q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v",
         "o_proj": "attn_output", "q_norm": "attn_q_norm", "k_norm": "attn_k_norm", "gate_proj": "ffn_gate",
         "up_proj": "ffn_up", "down_proj": "ffn_down", "norm": "output_norm"}


# gguf-py, tensor_mapping.py; of a mixture
PARTS = {"self_attn.q_a_proj": "attn_q_a", "self_attn.q_b_proj": "attn_q_b", "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
         "self_attn.q_a_layernorm": "attn_q_a_norm", "self_attn.kv_a_layernorm": "attn_kv_a_norm",
         "mlp.gate": "ffn_gate_inp", "block_sparse_moe.gate": "ffn_gate_inp", "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
         **{f"mlp.shared_expert{s}.{p}_proj": f"ffn_{p}_shexp" for s in ("", "s") for p in ("gate", "up", "down")}}
EXPERT = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down", "w1": "gate", "w3": "up", "w2": "down"}


class Reader:
    def __init__(self, path):
        with open(path, "rb") as f:
            self.b = f.read()
        self.at, self.pairs, self.tensors = 24, {}, {}
        magic, version, n_tensors, n_pairs = struct.unpack("<4sIQQ", self.b[:24])
        assert magic == b"GGUF" and version == 3
        for _ in range(n_pairs):
            key = self.text()
            assert key not in self.pairs, key
            self.pairs[key] = self.value(self.number("<I"))
        infos = [(self.text(), [self.number("<Q") for _ in range(self.number("<I"))], self.number("<I"),
                  self.number("<Q")) for _ in range(n_tensors)]
        start, end = -(-self.at // 32) * 32, 0
        for name, dims, kind, offset in infos:
            per, size = BLOCK[kind]
            n = int(np.prod(dims)) // per * size
            assert dims[0] % per == 0 and offset == end and name not in self.tensors, name
            self.tensors[name] = (kind, dims[::-1], self.b[start + offset:start + offset + n])
            end = -(-(offset + n) // 32) * 32
        assert len(self.b) == start + end, "bytes behind the tensors"

    def number(self, form):
        v, = struct.unpack_from(form, self.b, self.at)
        self.at += struct.calcsize(form)
        return v

    def text(self):
        n = self.number("<Q")
        self.at += n
        return self.b[self.at - n:self.at].decode()

    def value(self, kind):
        if kind == 8:
            return self.text()
        if kind != 9:
            return self.number(SCALAR[kind])
        kind, n = self.number("<I"), self.number("<Q")
        return [self.value(kind) for _ in range(n)]


def blocks(kind, shape, data):
    b = np.frombuffer(data, np.uint8).reshape(-1, BLOCK[kind][1])
    f16 = b[:, :4 if kind == 3 else 2].copy().view("<f2")
    if kind == 8:
        q = b[:, 2:].view(np.int8).astype(int)
    else:
        n = b[:, 4 if kind == 3 else 2:]
        q = np.concatenate([n & 15, n >> 4], 1).astype(int)
    return q.reshape(shape), [np.repeat(f16[:, i], 32).reshape(shape) for i in range(f16.shape[1])]


def turn(a, heads):
    """Hugging Face's halves of a head to pairs: convert_hf_to_gguf.py, permute."""
    return a.reshape(heads, 2, a.shape[0] // heads // 2, *a.shape[1:]).swapaxes(1, 2).reshape(a.shape)


def heads_of(name, c):
    if c["model_type"] not in ("llama", "mistral", "mixtral"):
        return 0
    return {"attn_q": c["num_attention_heads"], "attn_k": c["num_key_value_heads"]}.get(name, 0)


def ours(name):
    p = name.split(".")
    n = NAMES[p[-2]] + "." + p[-1]
    return f"blk.{p[2]}.{n}" if p[1] == "layers" else n


def check_codes(m, codes, s, z, t, heads):
    kind, shape, data = t
    codes, s, z = (turn(np.broadcast_to(x, codes.shape), heads) if heads else np.broadcast_to(x, codes.shape)
                   for x in (codes, s, z))
    wide = codes.max() > 15  # codes of 8 bits
    assert kind == (8 if wide else 2 if (z == 8).all() else 3), (m, "type")
    codes = codes - 128 if wide else codes
    q, f16 = blocks(kind, shape, data)
    assert (q == codes).all(), (m, "codes")
    assert (f16[0] == s).all(), (m, "scales")
    if kind == 3:
        assert (f16[1] == (-z * s.astype(np.float64)).astype(np.float16)).all(), (m, "mins")


def check_plain(m, a, t, heads, q8):
    kind, shape, data = t
    x = (a.astype(np.uint32) << 16).view(np.float32)
    x = turn(x, heads) if heads else x
    assert list(x.shape) == shape, m
    if a.ndim == 1:
        assert kind == 0 and (np.frombuffer(data, "<f4") == x).all(), m
    elif q8:
        q, (d,) = blocks(kind, shape, data)
        b = x.reshape(-1, 32)
        scale = abs(b).max(1, keepdims=True) / np.float32(127)
        with np.errstate(divide="ignore"):
            per = np.where(scale > 0, np.float32(1) / scale, np.float32(0))
        y = b * per
        want = np.trunc(y + np.copysign(np.float32(0.5), y)).astype(int)  # roundf
        assert (d.reshape(-1, 32) == scale.astype(np.float16)).all(), (m, "d")
        assert (q.reshape(-1, 32) == want).all(), (m, "q")
    else:
        assert kind == 30 and (np.frombuffer(data, "<u2") == (x.view(np.uint32) >> 16).reshape(-1)).all(), m


def same(model, path, q8):
    with open(os.path.join(model, "config.json")) as f:
        c = json.load(f)
    g = Reader(path)
    left, n = dict(g.tensors), 0
    freqs = left.pop("rope_freqs.weight", None)
    if "quantization_config" in c:
        for m, codes, s, z in actorder.modules(model):
            name = ours(m + ".weight")
            check_codes(m, codes, s, z, left.pop(name), heads_of(name.split(".")[2], c))
            n += 1
    for name, a in actorder.load(model).items():
        if name.endswith((".weight", ".bias")):
            to = ours(name)
            check_plain(name, a, left.pop(to), heads_of(to.split(".")[-2], c), q8)
    assert not left, left.keys()
    scaling = c.get("rope_scaling") or {}
    assert (freqs is not None) == (scaling.get("rope_type") == "llama3")
    if freqs:
        check_freqs(np.frombuffer(freqs[2], "<f4"), c, scaling)
    print(n, "linears and", len(g.tensors) - n, "other tensors agree")


def places(name, a, c):
    """The tensors of FILE that a tensor of the checkpoint goes into: (name, expert or None, its rows there)."""
    p = name.split(".")
    part, tail = ".".join(p[3:-1]), p[-1]
    if p[1] != "layers":
        return [(ours(name), None, a)]
    if int(p[2]) >= c["num_hidden_layers"]:
        return []
    at = f"blk.{p[2]}."
    if tail == "e_score_correction_bias":
        return [(at + "exp_probs_b.bias", None, a)]
    if ".experts." in name:
        return [(f"{at}ffn_{EXPERT[p[-2]]}_exps.{tail}", int(p[5]), a)]
    if part == "self_attn.kv_b_proj":  # keys are absorbed by queries, so they are turned
        kv = a.reshape(c["num_attention_heads"], -1, a.shape[1])
        n = c["qk_nope_head_dim"]
        return [(at + "attn_k_b.weight", None, kv[:, :n].swapaxes(1, 2)), (at + "attn_v_b.weight", None, kv[:, n:])]
    if part in PARTS:
        return [(f"{at}{PARTS[part]}.{tail}", None, a[0] if part.endswith("shared_expert_gate") else a)]
    return [(ours(name), None, turn(a, heads_of(ours(name).split(".")[2], c)) if heads_of(ours(name).split(".")[2], c) else a)]


def put(out, name, a, c):
    for to, expert, b in places(name, a, c):
        if expert is None:
            out[to] = b
        else:
            out.setdefault(to, {})[expert] = b


def experts(model, path, packed):
    import moe
    with open(os.path.join(model, "config.json")) as f:
        c = json.load(f)
    plain, codes, g = {}, {}, Reader(path)
    done = {}
    if packed:
        for m, *quantized in actorder.modules(packed):
            done[m + ".weight"] = quantized
    for name, (kind, shape, data) in moe.truth(model)[0].items():
        x = np.frombuffer(data, "<u2").astype("u4") << 16 if kind == "BF16" else np.frombuffer(data, "<u4")
        if name in done:
            for i, q in enumerate(done[name]):
                put(codes.setdefault(i, {}), name, q, c)
        else:
            put(plain, name, x.view("<f4").reshape(shape), c)
    stack = lambda v: np.stack([v[i] for i in range(len(v))]) if isinstance(v, dict) else v  # noqa: E731
    assert set(plain) | set(codes.get(0, {})) == set(g.tensors)
    for name, want in plain.items():
        kind, shape, data = g.tensors[name]
        want = stack(want)
        wide = want.ndim == 1 or "ffn_gate_inp" in name
        assert kind == (0 if wide else 30) and list(want.shape) == shape, (name, kind, shape)
        want = want if wide else want.view("<u4") >> 16
        assert (np.frombuffer(data, "<f4" if wide else "<u2") == want.astype("<f4" if wide else "<u2").reshape(-1)).all(), name
    for name in codes.get(0, {}):
        q, s, z = (stack(codes[i][name]) for i in range(3))
        check_codes(name, q, s, z, g.tensors[name], 0)
    print(len(done), "linears in", len(codes.get(0, {})), "tensors and", len(plain), "others agree")


def latent(packed, out):
    shutil.copytree(packed, out)
    at = os.path.join(out, "model.safetensors")
    with open(at, "rb") as f:
        head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
    tensors = {k: (head[k]["dtype"], a) for k, a in actorder.load(out).items()}
    with open(os.path.join(out, "config.json")) as f:
        c = json.load(f)
    for i in range(c["num_hidden_layers"]):
        m = f"model.layers.{i}.self_attn.kv_b_proj"
        w = (tensors.pop(m + ".weight")[1].astype("u4") << 16).view("f4")
        q, s, _ = actorder.quantize(w, np.arange(w.shape[1]) // 32, w.shape[1] // 32, True)
        tensors.update({m + ".weight_packed": ("I32", actorder.pack(q, 1)), m + ".weight_scale": ("F16", s),
                        m + ".weight_shape": ("I64", np.array(w.shape))})
    q = c["quantization_config"]
    q["ignore"] = [x for x in q["ignore"] if "kv_b_proj" not in x]
    actorder.save(at, tensors)
    with open(os.path.join(out, "config.json"), "w") as f:
        json.dump(c, f)


def keys(out, path):
    with open(os.path.join(out, "config.json")) as f:
        c = json.load(f)
    g, n = Reader(path), 0
    for m, q, s, z in actorder.modules(out):
        if not m.endswith("kv_b_proj"):
            continue
        q, s, z = ([b for _, _, b in places(m + ".weight", np.broadcast_to(x, q.shape), c)] for x in (q, s, z))
        at = f"blk.{m.split('.')[2]}.attn_"
        kind, shape, data = g.tensors[at + "k_b.weight"]
        assert kind == 0 and shape == list(q[0].shape), m
        assert (np.frombuffer(data, "<f4").reshape(shape) == (q[0] - z[0]) * s[0].astype("f4")).all(), m
        check_codes(m, q[1], s[1], z[1], g.tensors[at + "v_b.weight"], 0)
        n += 1
    print(n, "linears agree")


def check_freqs(f, c, s):
    """transformers, _compute_llama3_parameters."""
    old, head = s["original_max_position_embeddings"], c["head_dim"]
    wave = 2 * np.pi * c["rope_theta"] ** (np.arange(0, head, 2) / head)
    smooth = (old / wave - s["low_freq_factor"]) / (s["high_freq_factor"] - s["low_freq_factor"])
    inv = (1 - smooth) / s["factor"] + smooth
    inv = np.where(wave < old / s["high_freq_factor"], 1, np.where(wave > old / s["low_freq_factor"], 1 / s["factor"], inv))
    assert np.allclose(f, 1 / inv, rtol=1e-6), "rope_freqs"


def rounded(packed):
    n = 0
    for _, q, s, z in actorder.modules(packed):
        s, z = (np.broadcast_to(x, q.shape).astype("f8") for x in (s, z))
        off = np.abs((z * s).astype("f2").astype("f8") - z * s)
        assert (off < np.abs(s) / 128).all()
        n += bool(off.any())
    print(n)


def made(model, path, group):
    p = Reader(path).pairs
    with open(os.path.join(model, "model.safetensors"), "rb") as f:
        said = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))["__metadata__"]
    with open(os.path.join(model, "README.md")) as f:
        card = f.read()
    rows = dict([c.strip() for c in line.split("|")[1:3]] for line in card.split("\n") if line.startswith("| "))
    *steps, last = p["forge.recipe"]
    assert steps == said["recipe"].split("; ") and last.startswith("forge-gguf --rest="), steps
    assert p["forge.group_size"] == int(group) == int(said["group_size"])
    assert p["forge.bits"] == int(said["bits"]) and p["forge.block_size"] == 32
    assert p["forge.repacked_from"] == said["layout"]
    assert p["forge.calibration_text_sha256"] == said["calibration_text_sha256"]
    assert p["forge.method"] == rows["method"] and p["forge.loss"] == rows["loss"]
    words = rows["calibration"].split()
    assert [p["forge.calibration_sequences"], p["forge.calibration_tokens"]] == [int(words[0]), int(words[2])]
    assert "4bit-forge " + p["forge.version"] == p["general.quantized_by"] == said["producer"]
    assert p["general.base_model.count"] == 1 and p["general.base_model.0.name"] == rows["made of"]


def pairs(path):
    for k, v in Reader(path).pairs.items():
        print(k, len(v) if isinstance(v, list) else v)


if __name__ == "__main__":
    if sys.argv[1] == "same":
        same(sys.argv[2], sys.argv[3], "--q8" in sys.argv[4:])
    elif sys.argv[1] == "experts":
        experts(sys.argv[2], sys.argv[3], (sys.argv[4:] or [None])[0])
    else:
        {"latent": latent, "keys": keys, "rounded": rounded, "made": made, "pairs": pairs}[sys.argv[1]](*sys.argv[2:])
