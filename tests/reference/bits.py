#!/usr/bin/env python3
"""What forge-bits should say: costs of grids by src/gptq/bits/units.h in NumPy, one
weight at a time.

    bits.py MODEL HESSIANS FISHER|- RULES BITS GROUP,SYM WORDS...
        RULES keep to BITS; their cost and that of the default grid are those of the
        comment; no other choice of the same grids (all of them are tried, with up to
        8 units) is better by more than a seventh
"""
import fnmatch
import itertools
import json
import re
import struct
import sys
from pathlib import Path

import numpy as np

import fts
import gptq
import grid

ALIKE = [r"self_attn\.[qkv]_proj$", r"self_attn\.(q_a_proj|kv_a_proj_with_mqa)$", r"\.experts\.\d+\.",
         r"mlp\.(gate|up)_proj$", r"shared_experts?\.(gate|up)_proj$"]


def square(a):
    """A symmetric matrix from its packed lower triangle, or of diagonal blocks."""
    if a.ndim == 3:
        b = a.shape[1]
        m = np.zeros((len(a)*b, len(a)*b))
        for i, x in enumerate(a):
            m[i*b:i*b + b, i*b:i*b + b] = x
        return m
    n = int((np.sqrt(8*a.size + 1) - 1)/2)
    m = np.zeros((n, n))
    m[np.tril_indices(n)] = a
    return m + np.tril(m, -1).T


def moments(path):
    """{module: matrix}, {module: tokens}, {layer: most tokens}, {modules of experts}"""
    d, n, most, experts = {}, {}, {}, set()
    with open(path, "rb") as f:
        for t in fts.read(f):
            if t.role != "hessian":
                continue
            layer = t.name.split(".")[2]
            most[layer] = max(most.get(layer, 0), t.extra.get("samples", 0))
            for m in t.extra.get("modules", []):
                d[m], n[m] = square(t.array().astype(np.float64)), t.extra.get("samples", 0)
                if ".experts." in t.name:
                    experts.add(m)
    return d, n, most, experts


def squares(h):
    """R_jj^2 of H = R R^T, inputs in the order of their squares: Cholesky from the last
    input that is quantized."""
    last = gptq.order_of(np.diag(h), "activation", 0)[::-1]
    out = np.empty(len(h))
    out[last] = np.diag(np.linalg.cholesky(gptq.damp(h, 0.01)[0][np.ix_(last, last)]))**2
    return out


def weights(model):
    """{module: float64 array} of bf16 or f32 matrices."""
    out = {}
    for path in Path(model).glob("*.safetensors"):
        b = path.read_bytes()
        n = struct.unpack("<Q", b[:8])[0]
        for name, t in json.loads(b[8:8 + n]).items():
            if not name.endswith(".weight") or len(t["shape"]) != 2:
                continue
            x = b[8 + n + t["data_offsets"][0]:8 + n + t["data_offsets"][1]]
            if t["dtype"] == "BF16":
                v = (np.frombuffer(x, "<u2").astype(np.uint32) << 16).view(np.float32)
            else:
                v = np.frombuffer(x, dict(F32="<f4", F16="<f2")[t["dtype"]])
            out[name[:-7]] = v.reshape(t["shape"]).astype(np.float64)
    return out


def stored(scale):
    """log2 in Q8.8, then F16, as common/math/quant.h has it."""
    q = np.clip(np.rint(np.log2(np.maximum(scale, 1e-30))*256), -14*256, 16*256 - 1)
    return np.exp2(q/256).astype(np.float32).astype(np.float16).astype(np.float64)


def best_error(w, r, g):
    """Sum of r e^2 of each row, on the best of 24 candidates of each group."""
    group, sym, bits = g
    top, out = 2**bits - 1, np.zeros(len(w))
    for first in range(0, w.shape[1], group):
        x, c = w[:, first:first + group], r[first:first + group]
        lo, hi = np.minimum(x.min(1), 0), np.maximum(x.max(1), 0)
        best = np.full(len(w), np.inf)
        for f in np.linspace(grid.HI, grid.LO, 24):
            span = 2*np.maximum(-lo, hi) if sym else hi - lo
            s = stored(np.float32(f*span/top))
            zero = np.clip(np.rint(-f*lo/s), 0, top)
            for sign, z in ([(1, (top + 1)//2), (-1, (top + 1)//2)] if sym else [(1, zero), (1, zero - 1), (1, zero + 1)]):
                z = np.broadcast_to(z, s.shape)
                q = (np.clip(np.rint(sign*x/s[:, None]) + z[:, None], 0, top) - z[:, None])*s[:, None]
                best = np.minimum(best, np.where((z >= 0) & (z <= top), (c*(sign*x - q)**2).sum(1), np.inf))
        out += np.where(x.any(1), best, 0)
    return out


def taken(w, g):
    group, sym, bits = g
    return w.size*bits + len(w)*-(-w.shape[1]//group)*(16 + (0 if sym else bits))


def words(text, default):
    group, sym, bits = default
    for x in text.split(","):
        if x in ("sym", "asym"):
            sym = x == "sym"
        elif x.endswith("bit"):
            bits = int(x[:-3])
        else:
            group = int(x)
    return group, sym, bits


def partner(m, known):
    """The linear whose F says what a relative error of m's output costs."""
    base, last = m.rsplit(".", 1)
    for of, by in ((("gate_proj", "up_proj", "w1", "w3"), ("down_proj", "w2")),
                   (("q_proj", "q_a_proj", "q_b_proj", "kv_b_proj"), ("k_proj", "kv_a_proj_with_mqa"))):
        if last in of:
            return next(base + "." + b for b in by if base + "." + b in known)
    raise SystemExit("no partner of " + m)


def costs(model, hessians, fisher, grids):
    """{unit: [cost of each grid], [bits]}, number of weights, {module: unit}"""
    config = json.loads((Path(model)/"config.json").read_text())
    w, (h, samples, most, experts) = weights(model), moments(hessians)
    f = {m: np.diag(x) for m, x in moments(fisher)[0].items()} if fisher != "-" else {}
    router = config.get("routed_scaling_factor", 1)/config.get("num_experts_per_tok", 1)
    err, power, fpower, ferr = {}, {}, {}, {}
    for m in h:
        cols = w[m].shape[1]
        d = np.diag(h[m])[:cols]
        r = squares(h[m] if m in experts else gptq.add_prior(h[m], 2, samples[m]))[:cols]
        err[m] = [best_error(w[m], r, g) if not i or cols % g[0] == 0 else np.full(len(w[m]), np.inf)
                  for i, g in enumerate(grids)]
        power[m] = (w[m]**2*d).sum()
        if m in f:
            fpower[m] = (w[m]**2*d*f[m][:, None]).sum()
            ferr[m] = [(f[m]*x).sum() for x in err[m]]
    unit, cost, bits, n = {}, {}, {}, 0
    for m in h:
        layer = m.split(".")[2]
        kind = next((p for p in ALIKE if re.search(p, m)), m)
        u = unit[m] = layer + " " + kind
        share = samples[m]/most[layer] if ".experts." in m else 1
        if not f:
            c = [share*x.sum()/power[m] for x in err[m]]
        elif m in f and ".experts." not in m:
            c = [x/8 for x in ferr[m]]
        else:
            by = m if m in f else partner(m, f)
            a = fpower[by]/8/power[m]*(share*router**2 if ".experts." in m else 1)
            c = [a*x.sum() for x in err[m]]
        cost[u] = [p + q for p, q in zip(cost.get(u, [0]*len(grids)), c)]
        bits[u] = [p + taken(w[m], g) for p, g in zip(bits.get(u, [0]*len(grids)), grids)]
        n += w[m].size
    return cost, bits, n, unit


def main():
    model, hessians, fisher, rules, budget, default, *tries = sys.argv[1:]
    default = words(default, (0, True, 4))
    grids = [default] + [words(t, default) for t in tries]
    cost, bits, n, unit = costs(model, hessians, fisher, grids)
    lines = Path(rules).read_text().splitlines()
    said = [float(x) for x in re.search(r"# (\S+) bits.*cost (\S+), of the default grid (\S+) in (\S+) bits",
                                        lines[0]).groups()]
    chosen = {}
    for m, u in unit.items():
        g = default
        for r in lines[1:]:
            if fnmatch.fnmatchcase(m, r.rsplit("=", 1)[0]):
                g = words(r.rsplit("=", 1)[1], default)
        assert chosen.setdefault(u, grids.index(g)) == grids.index(g), (m, "not as the others of " + u)
    ours = sum(cost[u][k] for u, k in chosen.items())
    took = sum(bits[u][k] for u, k in chosen.items())/n
    plain = [sum(cost[u][0] for u in cost), sum(bits[u][0] for u in bits)/n]
    assert took <= float(budget) + 1e-9, (took, budget)
    for a, b, tolerance in zip(said, (took, ours, *plain), (2e-4, 2e-3, 2e-3, 2e-4)):
        assert abs(a - b) <= tolerance*b, (said, took, ours, plain)
    units = sorted(cost)
    if len(units) <= 8:
        c, b = (np.array([x[u] for u in units]) for x in (cost, bits))
        every = np.array(list(itertools.product(range(len(grids)), repeat=len(units))))
        at = np.arange(len(units))
        fits = b[at, every].sum(1) <= float(budget)*n
        best = np.where(fits, c[at, every].sum(1), np.inf).min()
        assert ours <= 1.15*best, (ours, best)
    print("%d units, %d not on the default grid" % (len(units), sum(k > 0 for k in chosen.values())))


if __name__ == "__main__":
    main()
