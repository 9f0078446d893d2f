#!/usr/bin/env python3
"""int4pack.py - torch's CPU tiles, as torch made them: the judge of forge-pack
--layout int4pack where there is no torch.

    int4pack.py make         write int4pack_golden.jsonl; needs torch, on a CPU
                             that has every capability
    int4pack.py check        forge-pack gives torch's bytes, and its scales and
                             zeros the products that torch put out

A line is one capability and shape: the bytes that
_convert_weight_to_int4pack_for_cpu() made of codes(), and what
_weight_int4pack_mm_for_cpu() made of rows() with them.  check needs
python3-numpy and python3-xxhash."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

GOLDEN = pathlib.Path(__file__).with_name("int4pack_golden.jsonl")
CAPABILITIES = ["avx512", "avx2", "default"]
# one tile, two, a ragged one of 16, 32 and 48 outputs behind full ones
SHAPES = [(16, 32, 32), (32, 64, 64), (64, 32, 32), (80, 32, 32), (96, 32, 32),
          (112, 64, 32)]


def codes(n, k):
    o, i = np.ogrid[:n, :k]
    return (o * o + 3 * o * i + 5 * i + i * i // 7) % 16


def grid(n, g):
    """Zeros, and scales of few bits."""
    o, i = np.ogrid[:n, :g]
    return (7 * o + 3 * i) % 16, ((o % 5 + 2 * i + 3) / 64).astype(np.float16)


def rows(k):
    m, i = np.ogrid[:2, :k]
    return (((5 * m + 3 * i) % 11 - 5) / 8).astype(np.float16)


def make_one(capability):
    import torch
    for n, k, group in SHAPES:
        zeros, scales = grid(n, k // group)
        s = torch.from_numpy(scales)
        sz = torch.stack([s, (8 - torch.from_numpy(zeros)) * s], -1)
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(
            torch.from_numpy(codes(n, k).astype(np.int32)), 1)
        y = torch.ops.aten._weight_int4pack_mm_for_cpu(
            torch.from_numpy(rows(k)), packed, group,
            sz.transpose(0, 1).contiguous())
        print(json.dumps({
            "torch": torch.__version__, "capability": capability, "N": n,
            "K": k, "group": group,
            "packed": packed.numpy().tobytes().hex(),
            "y": y.float().tolist()}))


def make():
    with open(GOLDEN, "w") as out:
        for c in CAPABILITIES:
            subprocess.run([sys.executable, __file__, "make", c], stdout=out,
                           env=dict(os.environ, ATEN_CPU_CAPABILITY=c),
                           check=True)


def stream(path, n, k, group):
    import fts
    import layouts
    zeros, scales = grid(n, k // group)
    with open(path, "wb") as f:
        fts.write(f, [
            fts.Tensor("codes", "m", layouts.pack_u4(codes(n, k)), "U4", [n, k],
                       group=group),
            fts.Tensor("scales", "m", scales.tobytes(), "F16", scales.shape,
                       group=group),
            fts.Tensor("zeros", "m", layouts.pack_u4(zeros), "U4", zeros.shape,
                       group=group)])


def check_line(tmp, want):
    import fts
    n, k, group = want["N"], want["K"], want["group"]
    stream(tmp / "in.fts", n, k, group)
    subprocess.run(["forge-pack", "-q", "--layout", "int4pack", "--capability",
                    want["capability"], "-o", tmp / "out.fts", tmp / "in.fts"],
                   check=True)
    out = fts.load(tmp / "out.fts")
    t = out["tensor", "m.weight_int4pack"]
    assert t.dtype == "U8" and list(t.shape) == [n, k // 2]
    assert t.payload == bytes.fromhex(want["packed"]), "bytes differ"
    t = out["tensor", "m.scales_and_zeros"]
    assert t.dtype == "F16" and list(t.shape) == [k // group, n, 2]
    sz = t.array().astype(np.float64)
    s, z = (np.repeat(sz[..., i].T, group, 1) for i in (0, 1))
    y = rows(k).astype(np.float64) @ ((codes(n, k) - 8) * s + z).T
    # torch rounds to f16: 2^-11, and weights before that
    assert np.allclose(y, want["y"], rtol=2e-3, atol=2e-3 * abs(y).max()), "y"
    run = out["note", "run"].json()
    assert run["capability"] == want["capability"], run


def check():
    with tempfile.TemporaryDirectory() as d, open(GOLDEN) as lines:
        for n, line in enumerate(lines, 1):
            want = json.loads(line)
            try:
                check_line(pathlib.Path(d), want)
            except AssertionError as e:
                sys.exit(f"{want['capability']} {want['N']}x{want['K']}: {e}")
    print(n, "shapes as torch has them")


if __name__ == "__main__":
    if sys.argv[1:2] == ["make"]:
        make_one(sys.argv[2]) if sys.argv[2:] else make()
    else:
        check()
