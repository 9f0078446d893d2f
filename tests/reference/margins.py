"""Margins of a mixture's routers (src/model/moe.h): what a token's choice of experts, and of groups, hangs by."""
import numpy as np

import mixtures


def keys(c, t, layer, a):
    """What experts are chosen by [n, E]: score + correction bias."""
    p = "model.layers.%d." % layer
    name = p + mixtures.router(c)
    z = a @ t[name + ".weight"].T + t.get(name + ".bias", 0)
    return mixtures.scores(c, z) + np.reshape(t.get(p + mixtures.correction(c), 0), -1)


def boundaries(c, key, chosen):
    """Of a token: {kind: (experts whose keys are above, those below)}."""
    sigmoid = mixtures.family(c) in mixtures.SIGMOID
    grouped = sigmoid or c.get("topk_method") == "group_limited_greedy"
    groups = c.get("n_group", 1) if grouped else 1
    size, best, out = len(key)//groups, min(2 if sigmoid else 1, len(key)//groups), {}
    tops = [sorted(range(g*size, (g + 1)*size), key=lambda i: -key[i])[:best] for g in range(groups)]
    order = sorted(range(groups), key=lambda g: -sum(key[i] for i in tops[g]))
    n = c.get("topk_group", 1) if grouped else 1
    if n < groups:
        out["groups"] = tops[order[n - 1]], tops[order[n]]
    rest = [i for g in order[:n] for i in range(g*size, (g + 1)*size) if i not in chosen]
    if rest:
        out["experts"] = [min(chosen, key=lambda i: key[i])], [max(rest, key=lambda i: key[i])]
    return out


def margins(c, t, first):
    """[(layer, row, kind, above, below, m)] of all sequences' tokens, in the original; first: what it has seen."""
    out = []
    for s, seen in enumerate(first):
        for i in filter(lambda i: mixtures.sparse(c, i), range(c["num_hidden_layers"])):
            p = "model.layers.%d" % i
            for row, key in enumerate(keys(c, t, i, seen[p + ".mlp_in"])):
                for kind, (up, down) in boundaries(c, key, list(seen[p + ".routing"][0][row])).items():
                    out.append((s, i, row, kind, up, down, sum(key[up]) - sum(key[down])))
    return out
