#!/usr/bin/env python3
"""The gradients of forge-tune, by differences: how KL(original || quantized), the mean over
all tokens, changes when the weights of a linear are moved, and the gates of shared experts
say what they said.  In mixtures tokens go to the experts that the original chose, with its
weights, and what moves the routers' margins costs something (margins()).  In double
precision, from what forward.py computes.

    tune.py DIR TOKENS CODES GRADIENTS TOLERANCE
    tune.py kl DIR TOKENS CODES     the mean KL in thousandths
    tune.py held DIR TOKENS CODES   the same where tokens go to the original's experts
    tune.py steps CODES TUNED       tuned frames are the same but for codes: how many differ
"""
import re
import sys

import numpy as np

import forward
import fts
import gradient
from margins import keys, margins
import mixtures

STEP, WAYS = 1e-7, 3


def log_softmax(z):
    z = z - z.max(1, keepdims=True)
    return z - np.log(np.exp(z).sum(1, keepdims=True))


def divergence(p, q):
    """The sum over the rows."""
    p, q = log_softmax(p), log_softmax(q)
    return (np.exp(p)*(p - q)).sum()


def both(d, tokens, codes):
    """config, the quantized model's tensors, [(what the original has seen, its logits, the same of the other)]"""
    c, t = forward.load(d)
    ids = [x.array() for x in forward.read(tokens)]
    first = [forward.run(c, t, i) for i in ids]
    forward.quantized(t, [codes])
    return c, t, [(*x, *forward.run(c, t, i)) for x, i in zip(first, ids)]


# ---- choices of experts ------------------------------------------------------

class Costs:
    """What changes of margins cost: by * phi(u) u (d/s)^2 / 2, u = m/s, d the change of m, s^2 its mean square over the
    tokens of a layer, for experts and groups, held; by: nats lost for each set of experts that routers choose otherwise."""

    def __init__(self, c, t, first, now, by):
        self.c, self.t, self.all, self.by = c, t, margins(c, t, first), by
        self.size = {}
        d = list(self.changes(now, 0))
        for x in {m[1:4:2] for m in self.all}:
            self.size[x] = np.mean([y*y for m, y in d if m[1:4:2] == x])**.5

    def changes(self, now, layer):
        known = {}
        for m in self.all:
            s, i, row, _, up, down, size = m
            if i < layer:
                continue
            if (s, i) not in known:
                known[s, i] = keys(self.c, self.t, i, now[s]["model.layers.%d.mlp_in" % i])
            key = known[s, i][row]
            yield m, sum(key[up]) - sum(key[down]) - size

    def total(self, now, layer):
        out = 0
        for m, d in self.changes(now, layer):
            s = self.size[m[1:4:2]]
            if s > 0:
                u = m[-1]/s
                out += np.exp(-u*u/2)/(2*np.pi)**.5*u*(d/s)**2/2
        return self.by*out


def held(c, t, first):
    """Logits of the sequences where tokens go as in the original, and what is seen then."""
    out = []
    for seen in first:
        now = {k: v for k, v in seen.items() if k.endswith((".routing", ".scores")) or k == "model.layers.0"}
        out.append((gradient.logits(c, t, 0, dict(now), {}, now), now))
    return [x[0] for x in out], [x[1] for x in out]


def kl(d, tokens, codes, choices):
    c, t, runs = both(d, tokens, codes)
    q = held(c, t, [x[0] for x in runs])[0] if choices == "held" else [x[3] for x in runs]
    print("%.6f" % (1e3*sum(divergence(x[1], z) for x, z in zip(runs, q))/sum(map(len, q))))


def cost_of_change(c, runs, q):
    """by; q: logits where choices are held."""
    lost = sum(divergence(p, free) - divergence(p, z) for (_, p, _, free), z in zip(runs, q))
    changed = sum((np.sort(seen[k][0]) != np.sort(other[k][0])).any(1).sum()
                  for seen, _, other, _ in runs for k in seen if k.endswith(".routing"))
    return max(lost, 0)/changed if changed else 0.0


def together(frames):
    """[(layer, {linear: gradient})]: experts' linears of a kind and a layer, each other for itself."""
    sets = {}
    for f in frames:
        g, parts = f.array().astype(float), f.name.split(".")
        assert f.role == "weight", (f.role, f.name)
        sets.setdefault(re.sub(r"\.experts\.\d+\.", ".experts.", f.name), (int(parts[2]), {}))[1][f.name] = g
    return list(sets.values())


def main(d, tokens, codes, path, tolerance):
    c, t, runs = both(d, tokens, codes)
    rng, worst, names, first = np.random.default_rng(7), 0.0, set(), [x[0] for x in runs]
    q, base = held(c, t, first)
    by = cost_of_change(c, runs, q)
    costs = Costs(c, t, first, base, by)

    def objective(layer):
        now = [{} for _ in base]
        kl = sum(divergence(x[1], gradient.logits(c, t, layer, seen, {}, n)) for x, seen, n in zip(runs, base, now))
        return (kl + (costs.total(now, layer) if by else 0))/sum(len(x[1]) for x in runs)

    for layer, of in together(forward.read(path)):
        names |= of.keys()
        w = {n: t[n + ".weight"] for n in of}
        assert all(g.shape == w[n].shape for n, g in of.items()), of.keys()
        for i in range(WAYS):  # all rows, or one of each
            way = {n: rng.normal(size=g.shape) for n, g in of.items()}
            for x in way.values():
                x *= not i or np.arange(len(x))[:, None] == rng.integers(len(x))
            moved = []
            for s in (1, -1):
                t.update((n + ".weight", w[n] + s*STEP*x) for n, x in way.items())
                moved.append(objective(layer))
            t.update((n + ".weight", x) for n, x in w.items())
            off = (moved[0] - moved[1])/(2*STEP) - sum((g*way[n]).sum() for n, g in of.items())
            worst = max(worst, abs(off)/max(sum((g**2).sum() for g in of.values())**.5, 1e-12))
    with open(codes, "rb") as f:
        want = {x.name for x in fts.read(f) if x.role == "codes"}
    missing = {n for n in want - names if ".experts." not in n}  # an expert without a token has none
    print("%d linears, worst %.2e; a choice costs %.3g" % (len(names), worst, by))
    assert not missing and names <= want, missing or names - want
    assert worst < float(tolerance)


def steps(codes, tuned):
    a, b = forward.read(codes), forward.read(tuned)
    assert [(x.role, x.name, x.dtype, x.shape) for x in a] == [(x.role, x.name, x.dtype, x.shape) for x in b]
    off = 0
    for x, y in zip(a, b):
        if x.role == "codes":
            off += (x.array() != y.array()).sum()
        else:
            assert x.payload == y.payload, x.name
    print(off)


if __name__ == "__main__":
    if sys.argv[1] in ("kl", "held"):
        kl(*sys.argv[2:], sys.argv[1])
    elif sys.argv[1] == "steps":
        steps(*sys.argv[2:])
    else:
        main(*sys.argv[1:])
