#!/usr/bin/env python3
"""Perplexity, KL divergence and top-1 agreement of two models' logits, or how near their states are, in NumPy, from their definitions.

Without arguments: the rows of tests/unit/test_eval.c and their figures, as that file spells them.
eval.py ORIGINAL OTHER TOKENS FIGURES: are the figures of forge-eval --json those of forward.py's logits?
eval.py --by-layer ORIGINAL OTHER TOKENS FIGURES: the same of forge-eval --by-layer --json.
eval.py --states [--by-layer] ORIGINAL OTHER TOKENS FIGURES: the same of forge-eval on these models without their heads.
"""
import json
import sys
import numpy as np


def log_softmax(x):
    x = x.astype(np.float64)
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def scores(a, b, target):
    """a, b [N, V] logits, target [N] -> nll of both, KL(a || b), agreement; each [N]."""
    la, lb, i = log_softmax(a), log_softmax(b), np.arange(len(target))
    return -la[i, target], -lb[i, target], (np.exp(la) * (la - lb)).sum(-1), a.argmax(-1) == b.argmax(-1)


EDGES = [0, *(16 << np.arange(26)).tolist()]


def by_position(nll_a, nll_b, kl, position):
    """Of 0..15, 16..31, 32..63, ...: where each begins, tokens, perplexity of both, KL, its standard error."""
    for low, high in zip(EDGES, EDGES[1:]):
        at = (low <= position) & (position < high)
        n = at.sum()
        if n:
            yield dict(zip(("from", "tokens", "ppl_original", "ppl", "kl_mean", "kl_sem"),
                           (low, int(n), np.exp(nll_a[at].mean()), np.exp(nll_b[at].mean()), kl[at].mean(),
                            kl[at].std(ddof=1) / np.sqrt(n) if n > 1 else 0)))


def summary(nll_a, nll_b, kl, agree):
    return dict(positions=len(kl), ppl_original=np.exp(nll_a.mean()), ppl=np.exp(nll_b.mean()), kl_mean=kl.mean(),
                kl_sem=kl.std(ddof=1) / np.sqrt(len(kl)), kl_median=np.quantile(kl, 0.5), kl_p99=np.quantile(kl, 0.99),
                kl_max=kl.max(), top1=agree.mean(),
                kl_histogram=np.histogram(kl, np.r_[-np.inf, 10 ** np.arange(-6, 1.01, 0.25), np.inf])[0].tolist())


class Sequence:
    """The numbers of test_eval.c: a 32-bit linear congruential generator (Numerical Recipes), top 24 bits."""

    def __init__(self, seed):
        self.x = seed

    def rows(self, n, v, spread):
        r = np.empty(n * v, np.float32)
        for i in range(n * v):
            self.x = (self.x * 1664525 + 1013904223) % 2**32
            r[i] = np.float32((self.x >> 8) / 2**24 - 0.5) * np.float32(spread)
        return r.reshape(n, v)


CASES = [  # rows, vocabulary, spread of the logits, spread of the difference
    (5, 1, 8, 1), (7, 2, 8, 1), (40, 7, 8, 2), (100, 8, 20, 0.5), (100, 50, 20, 4), (60, 257, 30, 0.01), (20, 1000, 200, 3),
    (10, 64, 1000, 200)]


def table():
    for k, (n, v, spread, step) in enumerate(CASES):
        g = Sequence(k + 1)
        a = g.rows(n, v, spread)
        b = a + g.rows(n, v, step)
        r = summary(*scores(a, b, (np.arange(n) * 31) % v))
        print("    { %d, %d, %g, %g," % (n, v, spread, step))
        x = ["%.12e" % r[m] for m in ("ppl_original", "ppl", "kl_mean", "kl_sem", "kl_median", "kl_p99", "kl_max", "top1")]
        print("      { " + ",\n        ".join(", ".join(x[i:i + 3]) for i in (0, 3, 6)) + " } },")
        if v == 257:
            bins = list(by_position(*scores(a, b, (np.arange(n) * 31) % v)[:3], 9 * np.arange(n)))
    print("\n    by position, of the 60 rows of 257, row i at 9 i")
    for x in bins:
        print("    { " + ", ".join("%.12e" % y if isinstance(y, float) else str(y) for y in x.values()) + " },")


def pair(original, other, last):
    """Configs and tensors of two checkpoints; last: other's layers up to this one, original's behind it."""
    import forward
    (c, a), (d, b) = forward.load(original), forward.load(other)
    if last is not None:
        behind = lambda name: int(name.split(".")[2]) > last if name.startswith("model.layers.") else "embed" not in name
        b = {k: a[k] if behind(k) else b[k] for k in b}
    return c, a, d, b


def mean_sem(x):
    return x.mean(), x.std(ddof=1) / np.sqrt(len(x)) if len(x) > 1 else 0


def states(original, other, tokens, last=None):
    """Cosines and relative errors of the states [tokens, H] behind the final norm."""
    import families
    import forward
    c, a, d, b = pair(original, other, last)
    final = lambda c, t, ids: forward.rms(c, forward.run(c, t, ids)[0]["model.layers.%d" % c["num_hidden_layers"]],
                                          families.norm_weight(c, t["model.norm.weight"]))
    cosine, error, ends = [], [], []
    for x in forward.read(tokens):
        o, q = final(c, a, x.array()), final(d, b, x.array())
        size = lambda y: np.linalg.norm(y, axis=1)
        cosine.append((o * q).sum(1) / size(o) / size(q))
        error.append(size(q - o) / size(o))
        ends.append(cosine[-1][-1])
    cosine, square, ends = np.concatenate(cosine), np.concatenate(error) ** 2, np.array(ends)
    r = dict(zip(("cosine_mean", "cosine_sem", "cosine_last", "cosine_last_sem", "error_rms", "error_sem"),
                 (*mean_sem(cosine), *mean_sem(ends), *mean_sem(square))), cosine_min=cosine.min(), tokens=len(cosine))
    r["error_rms"] = np.sqrt(r["error_rms"])
    r["error_sem"] /= 2 * r["error_rms"]  # d sqrt(x) = dx / (2 sqrt(x))
    return r


def models(original, other, tokens, last=None):
    """The same of two checkpoints on a tokens stream; last: other's layers up to this one, original's behind it."""
    import forward
    c, a, d, b = pair(original, other, last)
    parts, position = [], []
    for x in forward.read(tokens):
        ids = x.array()
        parts.append(scores(forward.run(c, a, ids)[1][:-1], forward.run(d, b, ids)[1][:-1], ids[1:]))
        position.append(np.arange(len(ids) - 1))
    parts = list(map(np.concatenate, zip(*parts)))
    return dict(summary(*parts), by_position=list(by_position(*parts[:3], np.concatenate(position))))


def check_states(want, got, where=""):
    assert set(got) == set(want) | {"original", "other", "dtype", "seqlen", "sequences", "text_sha256"} | set(got) & {"layer"}, set(got)
    for k, x in want.items():
        if not abs(got[k] - x) <= 2e-5 * abs(x):
            sys.exit("%s%s is %.10g, want %.10g" % (where, k, got[k], x))


def check(want, got, where=""):
    got["positions"] = got["tokens"]
    bins = want.pop("by_position")
    assert [x["from"] for x in got["by_position"]] == [x["from"] for x in bins], got["by_position"]
    for x, y in zip(bins, got["by_position"]):
        for k in x:
            assert abs(y[k] - x[k]) <= 2e-5 * abs(x[k]), "%spositions from %d: %s is %.10g, want %.10g" % (where, x["from"], k, y[k], x[k])
    bins = got["kl_histogram"]
    if (bins["from"], bins["per_decade"], bins["counts"]) != (1e-6, 4, want.pop("kl_histogram")):
        sys.exit("%skl_histogram is %s" % (where, bins))
    for k, x in want.items():
        if not abs(got[k] - x) <= 2e-5 * abs(x):
            sys.exit("%s%s is %.10g, want %.10g" % (where, k, got[k], x))


def main():
    if len(sys.argv) == 1:
        return table()
    words = sys.argv[1:]
    find, compare = models, check
    if words[0] == "--states":
        find, compare, words = states, check_states, words[1:]
    if words[0] != "--by-layer":
        return compare(find(*words[:3]), json.load(open(words[3])))
    lines = [json.loads(x) for x in open(words[4])]
    for i, got in enumerate(lines):
        assert got["layer"] == i
        compare(find(*words[1:4], i), got, "layer %d: " % i)


main()
