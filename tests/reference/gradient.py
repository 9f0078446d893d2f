#!/usr/bin/env python3
"""The gradients of forge-gradient, by differences: how -log p of all of a sequence's
tokens together changes when what linears put out is moved, and what routers and the
gates of shared experts say is held.  In double precision, from what forward.py
computes.

    gradient.py DIR TOKENS FILE TOLERANCE
"""
import sys

import numpy as np

import families
import forward
import mixtures

STEP, WAYS = 1e-5, 6


def draw(n):
    """n numbers of [0, 1): splitmix64 of 0, 1, ..."""
    with np.errstate(over="ignore"):
        z = (np.arange(n, dtype=np.uint64) + np.uint64(1))*np.uint64(0x9e3779b97f4a7c15)
        z = (z ^ z >> np.uint64(30))*np.uint64(0xbf58476d1ce4e5b9)
        z = (z ^ z >> np.uint64(27))*np.uint64(0x94d049bb133111eb)
        return ((z ^ z >> np.uint64(31)) >> np.uint64(11)).astype(float)*2.0**-53


def expert(c, t, name, parts, a):
    lin = lambda n, y: y @ t["%s.%s.weight" % (name, n)].T + t.get("%s.%s.bias" % (name, n), 0)
    return lin(parts[2], mixtures.gated(c, lin(parts[0], a), lin(parts[1], a)))


def dense(c, t, p, a):
    lin = lambda n, y: y @ t["%s.%s.weight" % (p, n)].T + t.get("%s.%s.bias" % (p, n), 0)
    name = families.mlp(c)[0]
    if "mlp.gate_up_proj" in families.fused(c):
        g, u = np.split(lin("mlp.gate_up_proj", a), 2, 1)
    else:
        g, u = lin(name + ".gate_proj", a), lin(name + ".up_proj", a)
    return lin(name + ".down_proj", families.activation(c, g)*u)


def mlp(c, t, layer, a, seen):
    p = "model.layers.%d" % layer
    parts = ("gate_proj", "up_proj", "down_proj")
    if not mixtures.sparse(c, layer):
        return dense(c, t, p, a)
    y = np.zeros_like(a)
    for e in range(mixtures.experts(c)):
        name = "%s.%s.experts.%d" % (p, mixtures.block(c), e)
        w = ((seen[p + ".routing"][0] == e)*seen[p + ".routing"][1]).sum(1)
        x = a
        if mixtures.weighs_inputs(c):
            x = a*((seen[p + ".routing"][0] == e)*seen[p + ".scores"]).sum(1)[:, None]
        y += w[:, None]*expert(c, t, name, mixtures.expert_names(c), x)
    if mixtures.shared(c):
        name = "%s.%s" % (p, mixtures.shared(c)[0])
        g = 1.0
        if c["model_type"] == "qwen2_moe":
            g = 1/(1 + np.exp(-seen[p + ".mlp_in"] @ t[name + "_gate.weight"].T))
        y += g*expert(c, t, name, parts, a)
    return y


def attend(c, t, layer, a, moved):
    """What o_proj puts out for the input a; moved: by how much linears' outputs are."""
    p = "model.layers.%d" % layer
    lin = lambda n, y: y @ t["%s.%s.weight" % (p, n)].T + t.get("%s.%s.bias" % (p, n), 0) + moved.get(p + "." + n, 0)
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


def loss(c, t, layer, seen, token, moved):
    """The sum of -log p of each row's token, from this layer on."""
    x = seen["model.layers.%d" % layer]
    before, behind, before_mlp, behind_mlp = families.norms(c)
    part = c.get("residual_multiplier", 1)
    for i in range(layer, c["num_hidden_layers"]):
        p = "model.layers.%d" % i
        norm = lambda n, y: forward.rms(c, y, families.norm_weight(c, t["%s.%s.weight" % (p, n)])) if n else y
        x = x + part*norm(behind, attend(c, t, i, norm(before, x), moved))
        y, m = mlp(c, t, i, norm(before_mlp, x), seen), moved.get(p + ".mlp", 0)
        # the factor is one of the experts' weights
        x = x + y + part*m if mixtures.sparse(c, i) else x + part*norm(behind_mlp, y + m)
    head = t.get("lm_head.weight", t["model.embed_tokens.weight"])
    z = families.logits(c, forward.rms(c, x, families.norm_weight(c, t["model.norm.weight"])) @ head.T)
    z = z - z.max(1, keepdims=True)
    return (np.log(np.exp(z).sum(1)) - z[np.arange(len(z)), token]).sum()


def tokens_of(z, u):
    p = np.exp(z - z.max(1, keepdims=True))
    p = np.cumsum(p/p.sum(1, keepdims=True), 1)
    assert np.abs(p - u[:, None]).min() > 1e-6, "a token that rounding could change"
    return (p <= u[:, None]).sum(1).clip(max=z.shape[1] - 1)


def main(d, tokens, path, tolerance):
    c, t = forward.load(d)
    sequences = forward.read(tokens)
    u = np.split(draw(sum(len(x.array()) for x in sequences)),
                 np.cumsum([len(x.array()) for x in sequences])[:-1])
    known, rng, names, worst = {}, np.random.default_rng(3), set(), 0.0
    for x, v in zip(sequences, u):
        seen, z = forward.run(c, t, x.array())
        known[x.sequence] = seen, tokens_of(z, v)
    for f in forward.read(path):
        layer, name = int(f.name.split(".")[2]), f.name.split(".")[-2]
        assert f.name.endswith(".gradient") and f.role == "activation", f.name
        assert list(f.modules) == modules(c, layer, name), f.modules
        names.add((layer, name))
        at = "model.layers.%d.mlp" % layer if name == "mlp_mid" else f.modules[0]
        seen, token = known[f.sequence]
        g = f.array().astype(float)
        for i in range(WAYS):  # all rows, or one
            way = rng.normal(size=g.shape)
            if i % 2:
                way *= np.arange(len(g))[:, None] == rng.integers(len(g))
            up, down = (loss(c, t, layer, seen, token, {at: s*STEP*way}) for s in (1, -1))
            off = abs((up - down)/(2*STEP) - (g*way).sum())/max(np.linalg.norm(g[way.any(1)]), 1e-9)
            worst = max(worst, off)
    keys = {"kv_a_proj_with_mqa"} if forward.is_latent(c) else {"k_proj", "v_proj"}
    if "self_attn.qkv_proj" in families.fused(c):
        keys = set()
    assert names == {(i, n) for i in range(c["num_hidden_layers"]) for n in keys | {"attn_out", "mlp_mid"}}, names
    print("%d places, worst %.2e" % (len(names), worst))
    assert worst < float(tolerance)


if __name__ == "__main__":
    main(*sys.argv[1:])
