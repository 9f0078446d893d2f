#!/usr/bin/env python3
"""The gradients of forge-gradient, by differences: how -log p of a token changes
when the residual stream is moved, attention's outputs, and what routers and the
gates of shared experts say, held as they are.  In double precision, from what
forward.py computes.

    gradient.py DIR TOKENS FILE TOLERANCE
"""
import sys

import numpy as np

import forward
import mixtures

STEP, WAYS = 1e-5, 4


def draw(n):
    """n numbers of [0, 1): splitmix64 of 0, 1, ..."""
    with np.errstate(over="ignore"):
        z = (np.arange(n, dtype=np.uint64) + np.uint64(1))*np.uint64(0x9e3779b97f4a7c15)
        z = (z ^ z >> np.uint64(30))*np.uint64(0xbf58476d1ce4e5b9)
        z = (z ^ z >> np.uint64(27))*np.uint64(0x94d049bb133111eb)
        return ((z ^ z >> np.uint64(31)) >> np.uint64(11)).astype(float)*2.0**-53


def expert(t, name, parts, a):
    lin = lambda n, y: y @ t["%s.%s.weight" % (name, n)].T + t.get("%s.%s.bias" % (name, n), 0)
    return lin(parts[2], mixtures.silu(lin(parts[0], a))*lin(parts[1], a))


def mlp(c, t, layer, a, seen):
    p = "model.layers.%d" % layer
    parts = ("gate_proj", "up_proj", "down_proj")
    if not mixtures.sparse(c, layer):
        return expert(t, p + ".mlp", parts, a)
    y = np.zeros_like(a)
    for e in range(mixtures.experts(c)):
        name = "%s.%s.experts.%d" % (p, mixtures.block(c), e)
        w = ((seen[p + ".routing"][0] == e)*seen[p + ".routing"][1]).sum(1)
        y += w[:, None]*expert(t, name, mixtures.expert_names(c), a)
    if mixtures.shared(c):
        name = "%s.%s" % (p, mixtures.shared(c)[0])
        g = 1.0
        if c["model_type"] == "qwen2_moe":
            g = 1/(1 + np.exp(-seen[p + ".mlp_in"] @ t[name + "_gate.weight"].T))
        y += g*expert(t, name, parts, a)
    return y


def writers(c, layer, point):
    """The linears that write into the stream there."""
    p = "model.layers.%d." % layer
    if point == "attn_out":
        return [p + "self_attn.o_proj"]
    if not mixtures.sparse(c, layer):
        return [p + "mlp.down_proj"]
    down = mixtures.expert_names(c)[2]
    shared = [p + mixtures.shared(c)[0] + ".down_proj"] if mixtures.shared(c) else []
    return shared + ["%s%s.experts.%d.%s" % (p, mixtures.block(c), e, down) for e in range(mixtures.experts(c))]


def losses(c, t, x, layer, point, seen, token):
    """-log p of each row's token, x the stream behind the linear at `point`."""
    for i in range(layer, c["num_hidden_layers"]):
        p = "model.layers.%d" % i
        if i > layer:
            x = x + seen[p + "'"] - seen[p]
        if i > layer or point == "attn_out":
            x = x + mlp(c, t, i, forward.rms(c, x, t[p + ".post_attention_layernorm.weight"]), seen)
    head = t.get("lm_head.weight", t["model.embed_tokens.weight"])
    z = forward.rms(c, x, t["model.norm.weight"]) @ head.T
    z = z - z.max(1, keepdims=True)
    return np.log(np.exp(z).sum(1)) - z[np.arange(len(z)), token]


def tokens_of(z, u):
    """Those drawn, and which are too near to another to be sure of."""
    p = np.exp(z - z.max(1, keepdims=True))
    p = np.cumsum(p/p.sum(1, keepdims=True), 1)
    token = (p <= u[:, None]).sum(1).clip(max=z.shape[1] - 1)
    return token, np.abs(p - u[:, None]).min(1) < 1e-5


def main(d, tokens, path, tolerance):
    c, t = forward.load(d)
    sequences = forward.read(tokens)
    u = np.split(draw(sum(len(x.array()) for x in sequences)),
                 np.cumsum([len(x.array()) for x in sequences])[:-1])
    known, rng, count, worst = {}, np.random.default_rng(3), 0, 0.0
    for x, v in zip(sequences, u):
        seen, z = forward.run(c, t, x.array())
        known[x.sequence] = seen, *tokens_of(z, v)
    for f in forward.read(path):
        layer, point = int(f.name.split(".")[2]), f.name.split(".")[3]
        assert f.name.endswith(".gradient") and f.role == "activation" , f.name
        assert list(f.modules) == writers(c, layer, point), f.modules
        seen, token, unsure = known[f.sequence]
        x = seen["model.layers.%d'" % layer if point == "attn_out" else "model.layers.%d" % (layer + 1)]
        g = f.array().astype(float)
        for _ in range(WAYS):
            way = rng.normal(size=x.shape)
            up, down = (losses(c, t, x + s*STEP*way, layer, point, seen, token) for s in (1, -1))
            off = np.abs((up - down)/(2*STEP) - (g*way).sum(1))/np.linalg.norm(g, axis=1).clip(1e-9)
            worst = max(worst, off[~unsure].max(initial=0))
        count += 1
    print("%d frames, worst %.2e" % (count, worst))
    assert count and worst < float(tolerance)


if __name__ == "__main__":
    main(*sys.argv[1:])
