#!/usr/bin/env python3
"""Inputs for forge-hessian, forge-grid and forge-solve, and judgement of what
they make of them by the NumPy of hessian(), grid.py and gptq.py.

    stages.py activations OUT [bf16|f32] [PARTS]   PARTS > 1: OUT.0, OUT.1, ...
    stages.py drift IN OUT KIND                    .drift and .output frames
                                                   in front of activations
    stages.py check-cross IN CROSS                 IN: of drift
    stages.py weights OUT [TIMES]
    stages.py broken-hessian OUT                   never positive definite
    stages.py check-hessian ACTIVATIONS HESSIANS [BLOCK [MAX_TOKENS]]
    stages.py check-mean ACTIVATIONS HESSIANS      of any inputs
    stages.py check-grid GRIDS SYM|ASYM SEARCH NORM CANDIDATES [HESSIANS]
    stages.py same STREAM STREAM                   but for what is ancillary
    stages.py feedback GRIDS CODES COMMAND...      a module, its codes, the next
    stages.py same-codes STREAM STREAM             in any order
    stages.py check-solve GRIDS HESSIANS CODES ORDER DAMPING
"""
import json
import signal
import subprocess
import sys

import numpy as np

import fts
import gptq
import grid

INPUTS = {"model.layers.0.attn_in": (160, ["q_proj", "k_proj"]),
          "model.layers.0.mlp_mid": (300, ["down_proj"])}
ROWS = {"q_proj": 96, "k_proj": 21, "down_proj": 50}


def modules(name):
    return ["model.layers.0." + m for m in INPUTS[name][1]]


def tensors(path):
    with open(path, "rb") as f:
        return list(fts.read(f))


def make_activations(out, kind="bf16", parts="1"):
    rng = np.random.default_rng(7)
    frames = []
    for s, tokens in enumerate([700, 1, 512, 431]):
        for name, (cols, _) in INPUTS.items():
            x = rng.normal(size=(tokens, cols))
            x[:, 1:] += 0.7*x[:, :-1]
            x *= np.exp(np.linspace(-1, 2, cols))
            x[:, [5, cols - 1]] = 0
            x = x.astype(np.float32)
            args = (fts.bf16(x), "BF16", x.shape) if kind == "bf16" else (x,)
            frames.append(fts.Tensor("activation", name, *args,
                                     modules=modules(name), samples=tokens,
                                     sequence=s + 1, last=s == 3))
    frames.insert(1, fts.Tensor("hidden", "model.layers.0",
                                np.ones((3, 4), np.float32), sequence=1))
    n = int(parts)
    for p in range(n):
        if n > 1:
            for f in frames:
                f.extra.pop("last", None)
        with open(out if n == 1 else "%s.%d" % (out, p), "wb") as f:
            fts.write(f, [t for t in frames if (t.sequence - 1) % n == p])


def make_drift(path, out, kind="bf16"):
    rng = np.random.default_rng(17)
    frames = []
    for t in tensors(path):
        if t.role == "activation":
            more = [("drift", t.shape[1])]
            if t.name.endswith("mlp_mid"):
                more.append(("output", 50))
            for what, cols in more:
                y = (rng.normal(size=(t.shape[0], cols))*0.1 + 0.05).astype(
                    np.float32)
                args = ((fts.bf16(y), "BF16", y.shape) if kind == "bf16"
                        else (y,))
                frames.append(fts.Tensor("activation", t.name + "." + what,
                                         *args, sequence=t.sequence))
        frames.append(t)
    with open(out, "wb") as f:
        fts.write(f, frames)


def check_cross(path, got):
    frames, got = tensors(path), tensors(got)
    roles = [(t.role, t.name) for t in got]
    want = []
    for name in INPUTS:
        want += [("cross", name + k) for k in (".drift", ".output")
                 if any(t.name == name + k for t in frames)]
        want.append(("hessian", name))
    assert roles == want, roles
    for t in got:
        if t.role != "cross":
            continue
        base = t.name.rsplit(".", 1)[0]
        y, x = (np.concatenate([f.array() for f in frames if f.name == n])
                .astype(np.float64) for n in (t.name, base))
        c = 2*y.T @ x/len(x)
        size = np.sqrt(np.outer((y*y).mean(0), (x*x).mean(0))) + 1e-30
        assert (np.abs(t.array() - c)/size).max() < 4e-6
        assert (t.samples, t.modules) == (len(x), modules(base))


def token_weights(acts, out):
    """Of all inputs but the last, of as many linears as there are inputs before, and of
    one that has no gradient."""
    rng = np.random.default_rng(9)
    frames = []
    for t in tensors(acts):
        if t.role == "activation" and t.name in list(INPUTS)[:-1]:
            n = 1 + list(INPUTS).index(t.name)
            g = rng.exponential(size=(t.shape[0], n + 1))**2*np.arange(n + 1)
            frames.append(fts.Tensor("activation", t.name, g.astype(np.float32),
                                     sequence=t.sequence))
    fts.write(open(out, "wb"), frames)


def check_weighted(acts, weights, got, tolerance):
    """Moments of tokens times their weights."""
    frames, g = tensors(acts), {}
    for t in tensors(weights):
        g.setdefault(t.name, {})[t.sequence] = t.array().astype(np.float64)
    for t in tensors(got):
        base = t.name if t.role == "hessian" else t.name.rsplit(".", 1)[0]
        parts = [[f for f in frames if f.name == n] for n in (t.name, base)]
        y, x = (np.concatenate([f.array() for f in p]).astype(np.float64) for p in parts)
        w = np.ones(len(x))
        if base in g:
            w = np.concatenate([g[base][f.sequence] for f in parts[1]])
            w = w[:, w.any(0)]
            w = (w/w.mean(0)).mean(1)
            assert w.max() > 5
        want = 2*(y*w[:, None]).T @ x/len(x)
        size = np.sqrt(np.outer(w @ (y*y), w @ (x*x)))/len(x) + 1e-30
        have = full(t, x.shape[1]) if t.role == "hessian" else t.array()
        worst = (np.abs(have - want)/size).max()
        assert worst < float(tolerance), (t.name, worst)
        assert (t.samples, t.modules) == (len(x), modules(base))


def make_weights(out, times="1"):
    """times: as many rows."""
    rng = np.random.default_rng(8)
    frames = [fts.Tensor("tensor", "model.norm.weight",
                         np.ones(160, np.float32))]
    for name, (cols, short) in INPUTS.items():
        for m in short:
            w = rng.normal(size=(ROWS[m]*int(times), cols))
            w = w.astype(np.float32)*0.05
            w[2] = 0
            w[3] = np.abs(w[3])
            if m == "q_proj":
                t = fts.Tensor("weight", "model.layers.0." + m, fts.bf16(w),
                               "BF16", w.shape)
            else:
                t = fts.Tensor("weight", "model.layers.0." + m,
                               w.astype(np.float16) if m == "k_proj" else w)
            frames.append(t)
    frames.append(fts.Tensor("note", "run", b'{"x":1}'))
    with open(out, "wb") as f:
        fts.write(f, frames)


def make_broken(out):
    frames = []
    for name, (cols, _) in INPUTS.items():
        h = np.ones((cols, cols), np.float32)*100
        h[np.diag_indices(cols)] = 1
        frames.append(fts.Tensor("hessian", name, h[np.tril_indices(cols)],
                                 modules=modules(name), samples=5))
    with open(out, "wb") as f:
        fts.write(f, frames)


def full(t, cols):
    """A hessian frame as a square matrix."""
    h = np.zeros((cols, cols), np.float32)
    if t.block:
        a = t.array()
        for b in range(len(a)):
            i = b*t.block
            n = min(t.block, cols - i)
            h[i:i + n, i:i + n] = a[b, :n, :n]
            assert not a[b, n:].any() and not a[b, :, n:].any(), "padding"
        return h
    h[np.tril_indices(cols)] = t.array()
    return h + np.tril(h, -1).T


def check_hessian(acts, hessians, block="0", most="0", skip="0"):
    block, most, skip = int(block), int(most), int(skip)
    frames = [t for p in acts.split(",") for t in tensors(p)]
    got = tensors(hessians)
    assert [t.name for t in got] == list(INPUTS), [t.name for t in got]
    for t in got:
        x = np.concatenate([f.array()[skip:] for f in sorted(
            (f for f in frames if f.role == "activation" and f.name == t.name),
            key=lambda f: f.sequence)]).astype(np.float64)
        if most:
            x = x[:most]
        want = 2*x.T @ x/len(x)
        if block:
            i = np.arange(len(want))//block
            want[i[:, None] != i[None]] = 0
        h = full(t, x.shape[1])
        size = np.sqrt(np.outer(np.diag(want), np.diag(want)))
        worst = (np.abs(h - want)/np.where(size == 0, 1, size)).max()
        assert worst < 4e-6, worst  # f32 sums over a few thousand tokens
        assert (t.samples, t.modules, t.block or 0) == (
            len(x), modules(t.name), block)


def check_mean(acts, hessians):
    """Whatever the inputs: each is the mean of 2 x xT of its activations."""
    x = {}
    for t in tensors(acts):
        if t.role == "activation":
            x.setdefault(t.name, []).append(t.array().astype(np.float64))
    for t in tensors(hessians):
        a = np.concatenate(x.pop(t.name))
        want = 2*a.T@a/len(a) if len(a) else np.eye(a.shape[1])
        got = full(t, a.shape[1])
        assert t.samples in (len(a), None) and t.samples != 0, t.samples
        assert np.linalg.norm(got - want) <= 1e-6*np.linalg.norm(want), t.name
    assert not x, list(x)


def read_grids(path):
    out, last = [], None
    for t in tensors(path):
        if t.role == "weight":
            last = t
        elif t.role == "qmeta":
            assert t.name == last.name, "qmeta does not follow its weight"
            out.append((last, t))
    return out


def read_hessians(path):
    return {m: t for t in tensors(path) if t.role == "hessian"
            for m in t.modules}


def check_grid(path, sym, search, norm, n, hessians=None, bits="4"):
    pairs = read_grids(path)
    assert len(pairs) == 3
    hs = read_hessians(hessians) if hessians not in (None, "-") else None
    for w, m in pairs:
        a = w.array().astype(np.float32)
        c = None
        if hs:
            d = np.diag(full(hs[w.name], a.shape[1])).astype(np.float64)
            c = (d + 0.01*d.mean())
        wrong = grid.judge(a, m.array(), m.group, sym == "SYM", search,
                           float(norm), int(n), c, m.scale_dtype, int(bits))
        assert not wrong, w.name + ": " + wrong


def check_solve(grids, hessians, codes, order, damping, prior="0"):
    hs = read_hessians(hessians)
    got = {(t.role, t.name): t for t in tensors(codes) if not t.ancillary}
    for w, m in read_grids(grids):
        a = w.array().astype(np.float32)
        c = got["codes", w.name].array().astype(int)
        top = grid.top_of(m.array()[0, 0])
        assert got["codes", w.name].dtype == {15: "U4", 255: "U8"}[top]
        assert got["qmeta", w.name].payload == m.payload
        assert ("weight", w.name) not in got
        note = json.loads(got["note", w.name].payload)
        h = gptq.add_prior(full(hs[w.name], a.shape[1]), float(prior),
                           hs[w.name].samples)
        scale, zero = grid.decode(m.array(), m.scale_dtype)
        if note["method"] == "gptq":
            wrong = gptq.equal_codes(c, a, h, scale, zero, m.group, order,
                                     float(damping),
                                     near=1e-4 if top == 15 else 1e-3, top=top)
            assert not wrong, w.name + ": " + wrong
            assert note["order"] == order
        g = np.arange(a.shape[1])//m.group
        near = gptq.quantize(a.astype(np.float64), scale[:, g], zero[:, g],
                             top)[0]
        for key, k in (("loss", c), ("loss_rtn", near)):
            want = gptq.loss(a, k, h, scale, zero, m.group)
            # of many rows rounding to nearest is estimated, see forge-solve(1)
            few = key == "loss" or note["method"] == "rtn" or len(a) <= 768
            assert abs(note[key]/want - 1) < (1e-4 if few else 0.03), \
                (key, note[key], want)
        assert note["samples"] == hs[w.name].samples
        assert note["damping"] == float(damping)
        dead = np.diag(h) == 0
        assert (c[:, dead] == zero[:, g][:, dead]).all(), "dead inputs"


def same(a, b):
    x, y = ([(t.role, t.name, t.payload) for t in tensors(p)
             if not t.ancillary] for p in (a, b))
    assert x == y


def same_codes(a, b):
    x, y = ({t.name: t.payload for t in tensors(p) if t.role == "codes"}
            for p in (a, b))
    assert x and x == y, [k for k in x if x[k] != y.get(k)]


def feedback(path, codes, *command):
    """Each module's codes come before the next one is sent."""
    kept = []
    signal.alarm(60)
    tool = subprocess.Popen(command, stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE)
    out, back = fts.Writer(tool.stdin), fts.read(tool.stdout)
    for t in tensors(path):
        out.tensor(t)
        tool.stdin.flush()
        if t.role == "qmeta":
            got = next(b for b in back if b.role == "codes")
            assert got.name == t.name, (got.name, t.name)
            kept.append(got)
    out.end()
    tool.stdin.close()
    assert not [b for b in back if b.role == "codes"]
    assert tool.wait() == 0
    with open(codes, "wb") as f:
        fts.write(f, kept)


def interleave(hessians, weights, out):
    """Behind each Hessian the weights of the modules that it names."""
    w = {t.name: t for t in tensors(weights)}
    frames = []
    for t in tensors(hessians):
        frames.append(t)
        frames += [w[m] for m in t.modules if m in w]
    with open(out, "wb") as f:
        fts.write(f, frames)


if __name__ == "__main__":
    {"interleave": interleave, "feedback": feedback,
     "same-codes": same_codes,
     "activations": make_activations, "drift": make_drift,
     "check-cross": check_cross, "weights": make_weights,
     "token-weights": token_weights, "check-weighted": check_weighted,
     "broken-hessian": make_broken, "check-hessian": check_hessian, "check-mean": check_mean,
     "check-grid": check_grid, "check-solve": check_solve, "same": same}[
        sys.argv[1]](*sys.argv[2:])
