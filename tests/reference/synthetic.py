#!/usr/bin/env python3
"""Synthetic activations from their definition in forge-calib(1), by Python's own
normal distribution - never from our C.

    synthetic.py check STREAM SEED [TOKENS EXPERT_TOKENS]
                            every element is what the definition says; that many
                            rows in all for each input, and for each of an expert
    synthetic.py inputs STREAM
                            "name columns modules" of each input, sorted
"""
import statistics
import sys

import numpy as np
import xxhash

import fts

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def splitmix(state):
    z = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
    return z ^ z >> 31


def element(key, i):
    u = splitmix(key + (i + 1) * GOLDEN & MASK) >> 12
    return statistics.NormalDist().inv_cdf((u + 0.5) / 2**52)


def load(path):
    """{name: [frame]}, in order."""
    inputs = {}
    for t in fts.read(open(path, "rb")):
        assert t.role == "activation", t.role
        inputs.setdefault(t.name, []).append(t)
    return inputs


def check(path, seed, tokens=None, expert_tokens=None):
    inputs = load(path)
    assert inputs
    for name, frames in inputs.items():
        key = xxhash.xxh3_64_intdigest(name.encode(), int(seed))
        x = np.concatenate([t.array().astype(np.float64) for t in frames]).ravel()
        want = np.array([element(key, i) for i in range(len(x))])
        rounding = 2.0**-8 if frames[0].dtype == "BF16" else 5e-7
        assert np.all(np.abs(x - want) <= rounding * np.abs(want)), name
        assert [t.sequence for t in frames] == list(range(1, len(frames) + 1)), name
        assert [bool(t.last) for t in frames] == [False] * (len(frames) - 1) + [True], name
        assert all(t.samples == t.shape[0] for t in frames), name
        rows = sum(t.shape[0] for t in frames)
        if tokens:
            assert rows == int(expert_tokens if ".experts." in name else tokens), (name, rows)


def inputs(path):
    seen = {}
    for t in fts.read(open(path, "rb")):
        if t.role == "activation":
            seen[t.name] = (t.shape[1], *(m for m in t.modules or [] if m))
    for name in sorted(seen):
        print(name, *seen[name])


if __name__ == "__main__":
    {"check": check, "inputs": inputs}[sys.argv[1]](*sys.argv[2:])
