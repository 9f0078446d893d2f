#!/usr/bin/env python3
"""actorder.py - act-order GPTQ checkpoints and what is made of them, in NumPy
from the formats alone: the judge of forge repack with g_idx.

    actorder.py make MODEL OUT [--sym] [--group G] [--trivial]
        every linear of a plain Llama checkpoint, rounded to nearest on groups
        of inputs that lie apart, as gptq_v2 (--sym: gptq) with desc_act;
        --trivial: groups are runs of inputs, numbered in another order
    actorder.py same DIR DIR
        equal codes, and for every single weight an equal scale and zero

Needs python3-numpy."""
import argparse
import json
import os
import shutil
import struct

import numpy as np

LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
AWQ = [0, 2, 4, 6, 1, 3, 5, 7]
TYPES = {"I32": "<i4", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "U8": "u1", "I8": "i1", "I64": "<i8"}


def load(path):
    with open(os.path.join(path, "model.safetensors"), "rb") as f:
        b = f.read()
    n, = struct.unpack("<Q", b[:8])
    head = json.loads(b[8:8 + n])
    head.pop("__metadata__", None)
    out = {}
    for name, t in head.items():
        a, z = t["data_offsets"]
        out[name] = np.frombuffer(b[8 + n + a:8 + n + z], TYPES[t["dtype"]]).reshape(t["shape"])
    return out


def save(path, tensors):
    head, data, at = {}, [], 0
    for name, (dtype, a) in tensors.items():
        b = np.ascontiguousarray(a).tobytes()
        head[name] = {"dtype": dtype, "shape": list(a.shape), "data_offsets": [at, at + len(b)]}
        data.append(b)
        at += len(b)
    h = json.dumps(head).encode()
    h += b" " * (-len(h) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(h)) + h + b"".join(data))


def pack(n, axis):
    """Eight nibbles along an axis to a word."""
    n = np.moveaxis(n, axis, -1).astype(np.uint32)
    n = n.reshape(*n.shape[:-1], -1, 8)
    w = sum(n[..., j] << np.uint32(4 * j) for j in range(8)).astype(np.uint32).view(np.int32)
    return np.moveaxis(w, -1, axis)


def nibbles(w, axis, bits=4):
    """The codes of the words along an axis."""
    w = np.moveaxis(w.view(np.uint32), axis, -1)
    n = np.stack([w >> np.uint32(bits * j) & np.uint32(2**bits - 1) for j in range(32 // bits)], -1)
    return np.moveaxis(n.reshape(*n.shape[:-2], -1), -1, axis).astype(np.int64)


def quantize(w, g_idx, groups, sym):
    scales = np.zeros((w.shape[0], groups), np.float16)
    zeros = np.full(scales.shape, 8)
    for g in range(groups):
        x = w[:, g_idx == g]
        lo, hi = np.minimum(x.min(1), 0), np.maximum(x.max(1), 0)
        scales[:, g] = np.maximum(-lo, hi) / 8 if sym else (hi - lo) / 15
        if not sym:
            zeros[:, g] = np.clip(np.round(-lo / scales[:, g].astype(float)), 0, 15)
    s = scales.astype(float)[:, g_idx]
    return np.clip(np.round(w / s) + zeros[:, g_idx], 0, 15).astype(int), scales, zeros


def make(a):
    rng = np.random.default_rng(3)
    os.makedirs(a.out)
    src, out = load(a.model), {}
    for name, t in src.items():
        module = name[:-len(".weight")]
        if module.rpartition(".")[2] not in LINEAR:
            out[name] = ("BF16", t)
            continue
        w = (t.astype(np.uint32) << 16).view(np.float32).astype(float)
        groups = w.shape[1] // a.group
        if a.trivial:
            g_idx = np.repeat(rng.permutation(groups), a.group)
        else:
            g_idx = rng.permutation(w.shape[1]) // a.group
        codes, scales, zeros = quantize(w, g_idx, groups, a.sym)
        z = pack(zeros.T, 1)
        if a.sym:
            z = (z.view(np.uint32) - np.uint32(0x11111111)).view(np.int32)
        out[module + ".qweight"] = ("I32", pack(codes.T, 0))
        out[module + ".qzeros"] = ("I32", z)
        out[module + ".scales"] = ("F16", scales.T)
        out[module + ".g_idx"] = ("I32", g_idx.astype("<i4"))
    save(os.path.join(a.out, "model.safetensors"), out)
    shutil.copy(os.path.join(a.model, "tokenizer.json"), a.out)
    with open(os.path.join(a.model, "config.json")) as f:
        config = json.load(f)
    config["quantization_config"] = {
        "quant_method": "gptq", "bits": 4, "group_size": a.group, "desc_act": True,
        "sym": a.sym, "checkpoint_format": "gptq" if a.sym else "gptq_v2"}
    with open(os.path.join(a.out, "config.json"), "w") as f:
        json.dump(config, f)


def tile_rows(n, capability):
    """The outputs of each byte of an input, tile by tile: (first, low, high)."""
    full = 64 if capability == "avx512" else 32
    for first in range(0, n, full):
        nb = min(full, n - first)
        i = np.arange(nb // 2)
        if nb == full and capability != "default":
            yield first, nb, i, i + nb // 2
        else:
            yield first, nb, 2 * i, 2 * i + 1


def untile(packed, capability):
    n, half = packed.shape
    codes = np.zeros((n, 2 * half), np.int64)
    flat = packed.reshape(-1)
    for first, nb, low, high in tile_rows(n, capability):
        t = flat[first * half:(first + nb) * half].reshape(2 * half, nb // 2)
        codes[first + low] = (t & 15).T
        codes[first + high] = (t >> 4).T
    return codes


def modules(d):
    """Module: codes, scale and zero of each weight, inputs in their order."""
    t = load(d)
    with open(os.path.join(d, "config.json")) as f:
        q = json.load(f)["quantization_config"]
    v1 = q.get("checkpoint_format") == "gptq"

    def get(m, part):
        return t.get(m + "." + part)

    for name in sorted(t):
        m, _, part = name.rpartition(".")
        order = None
        if part == "qweight" and q["quant_method"] == "awq":
            codes = nibbles(t[name], 1).reshape(t[name].shape[0], -1, 8)
            back = np.argsort(AWQ)
            codes = codes[..., back].reshape(codes.shape[0], -1).T
            zeros = nibbles(get(m, "qzeros"), 1)
            zeros = zeros.reshape(zeros.shape[0], -1, 8)[..., back].reshape(zeros.shape).T
            scales, g_idx = get(m, "scales").T, None
        elif part == "qweight":
            assert get(m, "g_idx") is not None
            bits = 32 * get(m, "qzeros").shape[1] // t[name].shape[1]
            codes, scales, g_idx = nibbles(t[name], 0, bits).T, get(m, "scales").T, get(m, "g_idx")
            zeros = nibbles(get(m, "qzeros"), 1, bits).T + v1
        elif part == "weight_packed":
            bits = 32 * t[name].shape[1] // int(get(m, "weight_shape")[1])
            codes, scales, g_idx = nibbles(t[name], 1, bits), get(m, "weight_scale"), get(m, "weight_g_idx")
            z = get(m, "weight_zero_point")
            zeros = np.full(scales.shape, 2**bits // 2) if z is None else nibbles(z, 0, bits)
        elif part == "weight_int4pack" and q["device"] == "xpu":
            codes, g_idx, order = nibbles(t[name], 1), None, get(m, "input_perm")
            scales, zeros = get(m, "scales").T, get(m, "zeros").T
        elif part == "weight_int4pack":
            codes, g_idx, order = untile(t[name], q["capability"]), None, get(m, "input_perm")
            sz = get(m, "scales_and_zeros").transpose(1, 0, 2).astype(float)
            scales = sz[..., 0].astype(np.float16)
            zeros = np.round(8 - sz[..., 1] / sz[..., 0]).astype(int)
        else:
            continue
        inputs = np.arange(codes.shape[1])
        g = inputs // (codes.shape[1] // scales.shape[1]) if g_idx is None else g_idx
        s, z = scales[:, g], zeros[:, g]
        if order is not None:  # column j is input order[j]
            back = np.argsort(order)
            codes, s, z = codes[:, back], s[:, back], z[:, back]
        yield m, codes, s, z


def same(a):
    n = 0
    for one, two in zip(modules(a.one), modules(a.two), strict=True):
        assert one[0] == two[0], (one[0], two[0])
        for what, x, y in zip(("codes", "scales", "zeros"), one[1:], two[1:]):
            assert x.shape == y.shape and (x == y).all(), (one[0], what)
        n += 1
    assert n
    print(n, "linears agree in every weight")


def main():
    ap = argparse.ArgumentParser()
    sub = ap.add_subparsers(required=True)
    p = sub.add_parser("make")
    p.add_argument("model")
    p.add_argument("out")
    p.add_argument("--sym", action="store_true")
    p.add_argument("--trivial", action="store_true")
    p.add_argument("--group", type=int, default=32)
    p.set_defaults(run=make)
    p = sub.add_parser("same")
    p.add_argument("one")
    p.add_argument("two")
    p.set_defaults(run=same)
    a = ap.parse_args()
    a.run(a)


if __name__ == "__main__":
    main()
