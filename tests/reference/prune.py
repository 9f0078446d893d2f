#!/usr/bin/env python3
"""Pruning of experts, from the definitions, with NumPy.

    prune.py hitmaps DIR OUT [SEED] [LAYER]  made-up hit maps of a model of moe.py; LAYER is left out
    prune.py map HITMAPS MAP DIR KEEP BY     is this the map of that ranking?
    prune.py routing DIR OUT MAP [SCALE]     does the first layer with experts of OUT, made with --mode remap, choose as
                                             that of DIR does, but for the pruned experts? (runs the helper `forward`)
    prune.py counted HITS MAP GOT...         in the first layer with experts, have the kept ones the tokens, scores and
                                             mass that they have in the whole model, whose hit maps are HITS?
    prune.py pruned DIR OUT MAP MODE         has OUT the tensors of DIR that the map leaves, and the config?

KEEP experts stay in each layer, KEEP / n_group in each group, those that rank highest; they keep their order. A layer
behind the last goes by the last layer's map.
"""
import json
import re
import struct
import subprocess
import sys

import numpy as np

import fts
import moe

COLUMN = {"tokens": 0, "scores": 1, "weight": 2, "mass": 5}


def conf(d):
    with open(f"{d}/config.json") as f:
        c = json.load(f)
    c["experts"] = next(c[k] for k in ("n_routed_experts", "num_experts", "num_local_experts") if k in c)
    return c


def moe_layers(c):
    dense = set(c.get("mlp_only_layers", ())) | set(range(c.get("first_k_dense_replace", 0)))
    return [i for i in range(c["num_hidden_layers"]) if i not in dense]


def hitmaps(d, out, seed="1", skip="-1"):
    c, rng = conf(d), np.random.default_rng(int(seed))
    t = []
    for i in moe_layers(c):
        n = rng.integers(0, 50, c["experts"]).astype(np.float64)
        n[rng.integers(c["experts"])] = 0
        m = np.stack([n, n * rng.uniform(0.2, 0.9, n.size), n * rng.uniform(0.1, 0.6, n.size),
                      n * rng.uniform(0.02, 0.3, n.size), n * rng.uniform(0.5, 9, n.size),
                      rng.uniform(20, 400, n.size)], 1)
        if i != int(skip):
            t.append(fts.Tensor("hitmap", f"model.layers.{i}.mlp", m.astype(np.float32)))
    with open(out, "wb") as f:
        fts.write(f, t)


def load(path):
    return {int(t.name.split(".")[2]): t.array() for t in fts.load(path).values() if t.role in ("hitmap", "map")}


def check_map(hits, path, d, keep, by):
    c, keep = conf(d), int(keep)
    groups = c.get("n_group", 1)
    h, got = load(hits), load(path)
    assert sorted(got) == moe_layers(c), sorted(got)
    for i, m in got.items():
        e = m.size
        assert e == c["experts"] and m.dtype == np.int32
        x = h[i].astype(np.float64)
        if by == "random":
            chosen = np.flatnonzero(m >= 0)
            assert (np.bincount(chosen // (e // groups), minlength=groups) == keep // groups).all(), i
        else:
            worth = x[:, 4] / np.maximum(x[:, 0], 1) if by == "reap" else x[:, COLUMN[by]]
            chosen = []
            for g in range(groups):
                ids = list(range(g * e // groups, (g + 1) * e // groups))
                chosen += sorted(ids, key=lambda k: (-worth[k], k))[:keep // groups]
            chosen = sorted(chosen)
        want = np.full(e, -1, np.int32)
        want[chosen] = np.arange(keep)
        assert (m == want).all(), (i, m, want)


def tensors(path):
    with open(path, "rb") as f:
        b = f.read()
    n = struct.unpack("<Q", b[:8])[0]
    return {k: (v["dtype"], tuple(v["shape"]), b[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]])
            for k, v in json.loads(b[8:8 + n]).items() if k != "__metadata__"}


def check_pruned(d, out, path, mode):
    c, new, m = conf(d), conf(out), load(path)
    shown, _, _ = moe.truth(d)
    last = max(m)
    keep = int(m[last].max()) + 1
    want = {}
    for name, (dtype, shape, b) in shown.items():
        i = re.match(r"model\.layers\.(\d+)\.(.*)", name)
        ids = m.get(last if i and int(i[1]) >= c["num_hidden_layers"] else int(i[1]) if i else -1)
        x = i and re.match(r"(.*\.experts\.)(\d+)(\..*)", i[2])
        if ids is not None and x:
            if ids[int(x[2])] < 0:
                continue
            name = f"model.layers.{i[1]}.{x[1]}{ids[int(x[2])]}{x[3]}"
        elif ids is not None and mode == "prune" and re.fullmatch(r"\w+\.(gate\.\w+|e_score_correction_bias)", i[2]):
            row = len(b) // shape[0]
            b = b"".join(b[k * row:(k + 1) * row] for k in np.flatnonzero(ids >= 0))
            shape = (keep, *shape[1:])
        want[name] = (dtype, tuple(shape), b)
    assert tensors(f"{out}/model.safetensors") == want, "tensors"
    assert new["experts"] == keep
    for k in ("n_routed_experts", "num_experts", "num_local_experts", "experts", "expert_map", "num_router_experts"):
        c.pop(k, None), new.pop(k, None)
    c.pop("quantization_config", None)
    assert c == new, "config"
    if mode == "remap":
        d, shape, b = tensors(f"{out}/expert_map.safetensors")["expert_map"]
        v = np.frombuffer(b, np.int32).reshape(shape)
        assert d == "I32" and v.shape == (c["num_hidden_layers"], m[last].size)
        for i in range(v.shape[0]):
            assert (v[i] == m.get(i, np.full(v.shape[1], -1))).all(), i


def run(d, ids):
    p = subprocess.run(["forward", d, "f32", "best", d + ".routing"], input=ids.astype("<i4").tobytes(),
                       stdout=subprocess.PIPE, check=True)
    with open(d + ".routing", "rb") as f:
        layer, k, e = struct.unpack("<3i", f.read(12))
        n = len(ids) * k
        x, w = np.frombuffer(f.read(4 * n), "<i4"), np.frombuffer(f.read(4 * n), "<f4")
    return layer, x.reshape(-1, k), w.reshape(-1, k).astype(float), np.frombuffer(p.stdout, "<f4")


def routing(d, out, path, scale="0"):
    ids = np.random.default_rng(3).integers(2, 400, 90)
    layer, x, w, floats = run(d, ids)
    _, y, v, others = run(out, ids)
    new = load(path)[layer][x]
    want = np.where(new >= 0, w, 0)
    if conf(d)["model_type"] == "mixtral" or conf(d).get("norm_topk_prob"):
        rest = want.sum(1, keepdims=True)
        want *= np.where(rest > 0, w.sum(1, keepdims=True) / np.where(rest > 0, rest, 1), 0)
    assert (y == np.maximum(new, 0)).all()
    np.testing.assert_allclose(v, want, rtol=1e-6)
    lost = (new < 0).all(1)
    if float(scale):  # what the family says that weights sum to
        np.testing.assert_allclose(v[~lost].sum(1), float(scale), rtol=1e-5)
    assert np.isfinite(others).all() and lost.any() == (new.max() < load(path)[layer].size - 1)
    if (new >= 0).all():
        assert (floats == others).all()
    print(int(lost.sum()), int((new < 0).sum()))


def counted(hits, path, *got):
    layer = min(load(path))
    want = load(hits)[layer][load(path)[layer] >= 0]
    for g in got:
        for name in ("tokens", "scores", "mass"):
            np.testing.assert_allclose(load(g)[layer][:, COLUMN[name]], want[:, COLUMN[name]], rtol=1e-6, err_msg=g)


if __name__ == "__main__":
    {"hitmaps": hitmaps, "map": check_map, "pruned": check_pruned, "routing": routing,
     "counted": counted}[sys.argv[1]](*sys.argv[2:])
