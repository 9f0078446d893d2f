#!/usr/bin/env python3
"""The gradients of forge-gradient, by differences: how a random sum of the logits of all
of a sequence's tokens changes when what linears put out is moved, and what routers and
the gates of shared experts say is held.  In double precision, from what forward.py
computes.

    gradient.py DIR TOKENS FILE TOLERANCE
    gradient.py signs           second moments of the random sums
    gradient.py weights DIR TOKENS FILE TOLERANCE
"""
import sys

import numpy as np

import families
import forward
import mixtures

STEP, WAYS = 3e-6, 6


def mix(i):
    """The i-th numbers of SplitMix64 from 0."""
    with np.errstate(over="ignore"):
        z = (i + np.uint64(1))*np.uint64(0x9e3779b97f4a7c15)
        z = (z ^ z >> np.uint64(30))*np.uint64(0xbf58476d1ce4e5b9)
        z = (z ^ z >> np.uint64(27))*np.uint64(0x94d049bb133111eb)
        return z ^ z >> np.uint64(31)


def signs(first, rows, vocabulary):
    """[rows, vocabulary], of rows from number `first` on."""
    v = np.arange(vocabulary, dtype=np.uint64)
    with np.errstate(over="ignore"):
        row = mix(np.uint64(first) + np.arange(rows, dtype=np.uint64))
        bits = mix(row[:, None] + v//np.uint64(64)) >> v % np.uint64(64)
    return 1.0 - 2.0*(bits & np.uint64(1)).astype(float)


def ways(z, first):
    """c [rows, vocabulary]: how much of each logit the sum has; the mean of c cT
    is diag(p) - p pT."""
    p = np.exp(z - z.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    s = signs(first, *z.shape)*np.sqrt(p)
    return s - p*s.sum(1, keepdims=True)


def linear(t, p, moved):
    """The linears below a module: (name, input) -> output; moved: by how much that is."""
    return lambda n, y: y @ t["%s.%s.weight" % (p, n)].T + t.get("%s.%s.bias" % (p, n), 0) + moved.get(p + "." + n, 0)


def expert(c, t, name, parts, a, moved):
    lin = linear(t, name, moved)
    return lin(parts[2], mixtures.gated(c, lin(parts[0], a), lin(parts[1], a)))


def dense(c, t, p, a, moved):
    lin = linear(t, p, moved)
    name = families.mlp(c)[0]
    if "mlp.gate_up_proj" in families.fused(c):
        g, u = np.split(lin("mlp.gate_up_proj", a), 2, 1)
    else:
        g, u = lin(name + ".gate_proj", a), lin(name + ".up_proj", a)
    return lin(name + ".down_proj", families.activation(c, g)*u)


def mlp(c, t, layer, a, seen, moved):
    p = "model.layers.%d" % layer
    parts = ("gate_proj", "up_proj", "down_proj")
    if not mixtures.sparse(c, layer):
        return dense(c, t, p, a, moved)
    y = np.zeros_like(a)
    for e in range(mixtures.experts(c)):
        name = "%s.%s.experts.%d" % (p, mixtures.block(c), e)
        w = ((seen[p + ".routing"][0] == e)*seen[p + ".routing"][1]).sum(1)
        x = a
        if mixtures.weighs_inputs(c):
            x = a*((seen[p + ".routing"][0] == e)*seen[p + ".scores"]).sum(1)[:, None]
        y += w[:, None]*expert(c, t, name, mixtures.expert_names(c), x, moved)
    if mixtures.shared(c):
        name = "%s.%s" % (p, mixtures.shared(c)[0])
        g = 1.0
        if c["model_type"] == "qwen2_moe":
            g = 1/(1 + np.exp(-seen.get(p + ".mlp_in", a) @ t[name + "_gate.weight"].T))
        y += g*expert(c, t, name, parts, a, moved)
    return y


def attend(c, t, layer, a, moved):
    """What o_proj puts out for the input a; moved: by how much linears' outputs are."""
    p = "model.layers.%d" % layer
    lin = linear(t, p, moved)
    q, k, v = forward.latent(c, t, p, a, lin, {}) if forward.is_latent(c) else forward.grouped(c, t, p, a, lin, layer)
    return lin("self_attn.o_proj", forward.attention(c, layer, q, k, v, sinks=t.get(p + ".self_attn.sinks")))


def modules(c, layer, name):
    """The linears that a frame of this name is of."""
    p = "model.layers.%d." % layer
    if name == "attn_out":
        return [p + "self_attn.o_proj"]
    if name != "mlp_mid":
        return [p + "self_attn." + name]
    if not mixtures.sparse(c, layer):
        return [p + families.mlp(c)[0] + ".down_proj"]
    down = mixtures.expert_names(c)[2]
    shared = [p + mixtures.shared(c)[0] + ".down_proj"] if mixtures.shared(c) else []
    return shared + ["%s%s.experts.%d.%s" % (p, mixtures.block(c), e, down) for e in range(mixtures.experts(c))]


def logits(c, t, layer, seen, moved, now=None):
    """From this layer on; now gets the streams in front of layers and the inputs of MLPs."""
    now = {} if now is None else now
    x = seen["model.layers.%d" % layer]
    before, behind, before_mlp, behind_mlp = families.norms(c)
    part = c.get("residual_multiplier", 1)
    for i in range(layer, c["num_hidden_layers"]):
        p = "model.layers.%d" % i
        norm = lambda n, y: forward.rms(c, y, families.norm_weight(c, t["%s.%s.weight" % (p, n)])) if n else y
        now[p] = x
        x = x + part*norm(behind, attend(c, t, i, norm(before, x), moved))
        a = now[p + ".mlp_in"] = norm(before_mlp, x)
        y, m = mlp(c, t, i, a, seen, moved), moved.get(p + ".mlp", 0)
        # the factor is one of the experts' weights
        x = x + y + part*m if mixtures.sparse(c, i) else x + part*norm(behind_mlp, y + m)
    head = t.get("lm_head.weight", t["model.embed_tokens.weight"])
    return families.logits(c, forward.rms(c, x, families.norm_weight(c, t["model.norm.weight"])) @ head.T)


def runs(c, t, tokens):
    """{number of a sequence: what forward.run() has seen, ways()}"""
    known, row = {}, 0
    for x in forward.read(tokens):
        seen, z = forward.run(c, t, x.array())
        known[x.sequence] = seen, ways(z, row)
        row += len(z)
    return known


def common(c, t):
    """The linears of all layers, but experts' and what latents become keys by."""
    at = (n.removesuffix(".weight") for n, x in t.items() if ".layers." in n and x.ndim == 2 and "_proj" in n)
    return {n for n in at if ".experts." not in n and "kv_b_proj" not in n
            and int(n.split(".")[2]) < c["num_hidden_layers"]}


def moments():
    """Of many draws: the mean of c cT is diag(p) - p pT."""
    z = np.random.default_rng(5).normal(size=70)
    p = np.exp(z)/np.exp(z).sum()
    c = ways(np.tile(z, (200000, 1)), 1 << 40)
    off = np.abs(c.T @ c/len(c) - np.diag(p) + np.outer(p, p)).max()
    print("off by %.1e" % off)
    assert off < 1e-3


def weights(d, tokens, path, tolerance):
    """The squares, of some tokens and all linears but experts'."""
    c, t = forward.load(d)
    known, rng, seen_names, worst = runs(c, t, tokens), np.random.default_rng(3), set(), 0.0
    for f in forward.read(path):
        layer, w = int(f.name.split(".")[2]), f.array().astype(float)
        seen, way = known[f.sequence]
        assert w.shape == (len(way), len(f.modules)), (f.name, w.shape)
        row = rng.integers(len(w))
        for i, m in enumerate(f.modules):
            seen_names.add(m)
            at = "model.layers.%d.mlp" % layer if m.endswith("down_proj") else m
            out = np.zeros((len(w), t[m + ".weight"].shape[0]))
            square = 0.0
            for k in range(out.shape[1]):
                out[row, k] = STEP
                up, down = ((logits(c, t, layer, seen, {at: s*out})*way).sum() for s in (1, -1))
                out[row, k] = 0
                square += ((up - down)/(2*STEP))**2
            worst = max(worst, abs(w[row, i] - square)/max(square, 1e-9))
    print("%d linears, worst %.2e" % (len(seen_names), worst))
    assert worst < float(tolerance)
    assert seen_names == common(c, t), seen_names ^ common(c, t)


def main(d, tokens, path, tolerance):
    c, t = forward.load(d)
    known, rng, names, worst = runs(c, t, tokens), np.random.default_rng(3), set(), 0.0
    for f in forward.read(path):
        layer, name = int(f.name.split(".")[2]), f.name.split(".")[-2]
        assert f.name.endswith(".gradient") and f.role == "activation", f.name
        assert list(f.modules) == modules(c, layer, name), f.modules
        names.add((layer, name))
        at = "model.layers.%d.mlp" % layer if name == "mlp_mid" else f.modules[0]
        seen, way_of = known[f.sequence]
        g = f.array().astype(float)
        for i in range(WAYS):  # all rows, or one
            way = rng.normal(size=g.shape)
            if i % 2:
                way *= np.arange(len(g))[:, None] == rng.integers(len(g))
            up, down = ((logits(c, t, layer, seen, {at: s*STEP*way})*way_of).sum() for s in (1, -1))
            off = abs((up - down)/(2*STEP) - (g*way).sum())/max(np.linalg.norm(g[way.any(1)]), 1e-9)
            worst = max(worst, off)
    keys = {"kv_a_proj_with_mqa"} if forward.is_latent(c) else {"k_proj", "v_proj"}
    if "self_attn.qkv_proj" in families.fused(c):
        keys = set()
    assert names == {(i, n) for i in range(c["num_hidden_layers"]) for n in keys | {"attn_out", "mlp_mid"}}, names
    print("%d places, worst %.2e" % (len(names), worst))
    assert worst < float(tolerance)


if __name__ == "__main__":
    if sys.argv[1] == "signs":
        moments()
    elif sys.argv[1] == "weights":
        weights(*sys.argv[2:])
    else:
        main(*sys.argv[1:])
