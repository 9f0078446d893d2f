#!/usr/bin/env python3
"""The gradients of forge-tune, by differences: how KL(original || quantized), the mean over
all tokens, changes when the weights of a linear are moved, and what routers and the gates
of shared experts say is held.  In double precision, from what forward.py computes.

    tune.py DIR TOKENS CODES GRADIENTS TOLERANCE
    tune.py kl DIR TOKENS CODES     the mean KL in thousandths
    tune.py steps CODES TUNED       tuned frames are the same but for codes: how many differ
"""
import re
import sys

import numpy as np

import forward
import fts
import gradient

STEP, WAYS = 1e-7, 3


def log_softmax(z):
    z = z - z.max(1, keepdims=True)
    return z - np.log(np.exp(z).sum(1, keepdims=True))


def divergence(p, q):
    """The sum over the rows."""
    p, q = log_softmax(p), log_softmax(q)
    return (np.exp(p)*(p - q)).sum()


def both(d, tokens, codes):
    """config, the quantized model's tensors, [(original's logits, what the other has seen)]"""
    c, t = forward.load(d)
    ids = [x.array() for x in forward.read(tokens)]
    p = [forward.run(c, t, i)[1] for i in ids]
    forward.quantized(t, [codes])
    return c, t, [(x, *forward.run(c, t, i)) for x, i in zip(p, ids)]


def kl(d, tokens, codes):
    runs = both(d, tokens, codes)[2]
    print("%.6f" % (1e3*sum(divergence(p, q) for p, _, q in runs)/sum(len(p) for p, _, _ in runs)))


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
    rows, rng, worst, names = sum(len(p) for p, _, _ in runs), np.random.default_rng(7), 0.0, set()
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
                moved.append(sum(divergence(p, gradient.logits(c, t, layer, seen, {})) for p, seen, _ in runs)/rows)
            t.update((n + ".weight", x) for n, x in w.items())
            off = (moved[0] - moved[1])/(2*STEP) - sum((g*way[n]).sum() for n, g in of.items())
            worst = max(worst, abs(off)/max(sum((g**2).sum() for g in of.values())**.5, 1e-12))
    with open(codes, "rb") as f:
        want = {x.name for x in fts.read(f) if x.role == "codes"}
    missing = {n for n in want - names if ".experts." not in n}  # an expert without a token has none
    print("%d linears, worst %.2e" % (len(names), worst))
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
    if sys.argv[1] == "kl":
        kl(*sys.argv[2:])
    elif sys.argv[1] == "steps":
        steps(*sys.argv[2:])
    else:
        main(*sys.argv[1:])
