#!/usr/bin/env python3
"""The gradients of forge-gradient, by differences: how a random sum of the logits of all
of a sequence's tokens changes when what linears put out is moved, and what routers and
the gates of shared experts say is held; in mixtures with a random sum of the margins of
routers (src/model/moe.h) beside it.  In double precision, from what forward.py computes.

    gradient.py DIR TOKENS FILE TOLERANCE
    gradient.py signs           second moments of the random sums
    gradient.py weights DIR TOKENS FILE TOLERANCE
"""
import functools
import sys

import numpy as np

import families
import forward
import margins
import mixtures

STEP, WAYS = 3e-6, 6
NOISE = 0.05


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
        goes = seen[p + ".routing"][0] == e
        rows = goes.any(1).nonzero()[0]
        if not len(rows):
            continue
        x, w = a[rows], (goes*seen[p + ".routing"][1]).sum(1)[rows, None]
        if mixtures.weighs_inputs(c):
            x = x*(goes*seen[p + ".scores"]).sum(1)[rows, None]
        y[rows] += w*expert(c, t, name, mixtures.expert_names(c), x, {})  # alone it is not moved
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


def logits(c, t, layer, seen, moved, now=None, known=None):
    """From this layer on; now gets the streams in front of layers, the inputs of MLPs and what these add.  known: such a
    now, of the same weights, where this layer's MLP is the first whose output is moved."""
    now = {} if now is None else now
    x = seen["model.layers.%d" % layer]
    before, behind, before_mlp, behind_mlp = families.norms(c)
    part = c.get("residual_multiplier", 1)
    for i in range(layer, c["num_hidden_layers"]):
        p = "model.layers.%d" % i
        norm = lambda n, y: forward.rms(c, y, families.norm_weight(c, t["%s.%s.weight" % (p, n)])) if n else y
        now[p] = x
        if known and i == layer:  # what comes before an MLP's output stays as it was
            x, a, y = known[p + ".mlp_stream"], known[p + ".mlp_in"], known[p + ".mlp_out"]
        else:
            x = x + part*norm(behind, attend(c, t, i, norm(before, x), moved))
            a = norm(before_mlp, x)
            y = mlp(c, t, i, a, seen, moved)
        now.update({p + ".mlp_stream": x, p + ".mlp_in": a, p + ".mlp_out": y})
        m = moved.get(p + ".mlp", 0)
        # the factor is one of the experts' weights
        added = now[p + ".added"] = y + part*m if mixtures.sparse(c, i) else part*norm(behind_mlp, y + m)
        x = x + added
    head = t.get("lm_head.weight", t["model.embed_tokens.weight"])
    return families.logits(c, forward.rms(c, x, families.norm_weight(c, t["model.norm.weight"])) @ head.T)


class Sum:
    """The random sum of a sequence: of its logits, and of its tokens' margins."""

    def __init__(self, c, t, ids, first):
        self.c, self.t, self.first, self.margins = c, t, first, []
        self.seen, z = forward.run(c, t, ids)
        self.ways = ways(z, first)

    def of(self, layer, moved, only_logits=False):
        now = {}
        known = self.still(layer) if list(moved) == ["model.layers.%d.mlp" % layer] else None
        out = (logits(self.c, self.t, layer, self.seen, moved, now, known)*self.ways).sum()
        for i in range(layer, 0 if only_logits else self.c["num_hidden_layers"]):
            known = [m for m in self.margins if m[0] == i]
            key = margins.keys(self.c, self.t, i, now["model.layers.%d.mlp_in" % i]) if known else None
            out += sum(by*(sum(key[row][up]) - sum(key[row][down])) for _, row, up, down, by in known)
        return out

    @functools.lru_cache(maxsize=None)
    def still(self, layer):
        """What is there when nothing is moved."""
        now = {}
        logits(self.c, self.t, layer, self.seen, {}, now)
        return now

    def slope(self, layer, at, way, *only):
        """How it changes when what `at` puts out moves along `way`."""
        up, down = (self.of(layer, {at: s*STEP*way}, *only) for s in (1, -1))
        return (up - down)/(2*STEP)

    def add_margins(self, cost):
        for _, i, row, kind, up, down, size in margins.margins(self.c, self.t, [self.seen]):
            p = "model.layers.%d." % i
            name = p + mixtures.router(self.c)
            z = self.seen[p + "mlp_in"][row] @ self.t[name + ".weight"].T + self.t.get(name + ".bias", 0)
            s = mixtures.scores(self.c, z)
            error = NOISE*z.std()*((s*(1 - s))[list(up) + list(down)]**2).sum()**.5
            u = size/error
            with np.errstate(over="ignore"):
                bits = int(mix(np.uint64(((i + 1) << 40 | self.first) + row)))
            sign = -1 if bits >> (kind == "groups") & 1 else 1
            self.margins.append((i, row, up, down, sign*(cost*u*np.exp(-u*u/2)/(2*np.pi)**.5)**.5/error))


def cost_of_choice(c, t, sums):
    """src/calib/choice_cost.h, by differences, of the last mixture."""
    layer = max((i for i in range(c["num_hidden_layers"]) if mixtures.sparse(c, i)), default=None)
    if layer is None:
        return None
    p, squares = "model.layers.%d" % layer, []
    for s in sums:
        now = {}
        logits(c, t, layer, s.seen, {}, now)
        y = now[p + ".added"]/c.get("residual_multiplier", 1)
        for row in range(len(y)):
            way = np.zeros_like(y)
            way[row] = y[row]
            squares.append(s.slope(layer, p + ".mlp", way, True)**2)
    experts = s.seen[p + ".routing"][0].shape[1] + bool(mixtures.shared(c))
    return np.mean(squares)/(4*experts)


def runs(c, t, tokens):
    """{number of a sequence: Sum}"""
    known, row = {}, 0
    for x in forward.read(tokens):
        known[x.sequence] = Sum(c, t, x.array(), row)
        row += len(known[x.sequence].ways)
    cost = cost_of_choice(c, t, known.values())
    if cost:
        for s in known.values():
            s.add_margins(cost)
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
        of = known[f.sequence]
        assert w.shape == (len(of.ways), len(f.modules)), (f.name, w.shape)
        row = rng.integers(len(w))
        for i, m in enumerate(f.modules):
            seen_names.add(m)
            at = "model.layers.%d.mlp" % layer if m.endswith("down_proj") else m
            out = np.zeros((len(w), t[m + ".weight"].shape[0]))
            square = 0.0
            for k in range(out.shape[1]):
                out[row, k] = 1
                square += of.slope(layer, at, out)**2
                out[row, k] = 0
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
        of = known[f.sequence]
        g = f.array().astype(float)
        for i in range(WAYS):  # all rows, or one
            way = rng.normal(size=g.shape)
            if i % 2:
                way *= np.arange(len(g))[:, None] == rng.integers(len(g))
            off = abs(of.slope(layer, at, way) - (g*way).sum())/max(np.linalg.norm(g[way.any(1)]), 1e-9)
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
