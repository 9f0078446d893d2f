#!/usr/bin/env python3
"""forge-pack against packers that others wrote: compressed-tensors' own
pack_to_int32, and GPTQModel's QuantLinear and AWQ classes where they pack on a
CPU.  Random codes and grids of several shapes; words must be equal.

    pack_check.py          exit 1 and a reason when a word differs

Needs torch, compressed-tensors, gptqmodel (scripts/setup --venv) and xxhash."""
import os
import pathlib
import subprocess
import sys
import tempfile

os.environ.setdefault("GPTQMODEL_CPU_WORKERS", "2")  # starts on two cores

import numpy as np  # noqa: E402
import torch  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "reference"))
import fts  # noqa: E402
import layouts  # noqa: E402

SHAPES = [("64x128", 32), ("256x256", 128), ("96x320", 64), ("136x512", 128)]


def run(tmp, shape, group, asym, layout):
    src, out = tmp / "in.fts", tmp / "out.fts"
    flags = ["--asym"] if asym else []
    subprocess.run([sys.executable, layouts.__file__, "make", src, shape,
                    "--group", str(group), *flags], check=True)
    subprocess.run(["forge-pack", "-q", "--layout", layout, "-o", out, src],
                   check=True)
    return fts.load(src), fts.load(out)


def words(out, part):
    return torch.from_numpy(out["tensor", "m0." + part].array().copy())


def pack_ct(codes, zeros):
    """compressed-tensors: signed values, minus 8."""
    try:
        from compressed_tensors.compressors.pack_quantized.helpers import \
            pack_to_int32
    except ImportError:
        from compressed_tensors.compressors.pack_quantized import pack_to_int32
    q = torch.from_numpy(codes.astype(np.int8)) - 8
    z = torch.from_numpy(zeros.astype(np.int8)) - 8
    return pack_to_int32(q, 4), pack_to_int32(z, 4, packed_dim=0)


def check_ct(tmp, shape, group, asym):
    src, out = run(tmp, shape, group, asym, "compressed-tensors")
    zeros, _ = layouts.grid_in(src, "m0")
    q, z = pack_ct(src["codes", "m0"].array(), zeros)
    assert torch.equal(q, words(out, "weight_packed")), "weight_packed"
    if asym:
        assert torch.equal(z, words(out, "weight_zero_point")), "zero_point"


def linear_of(codes, zeros, scales, group):
    """A Linear whose weights are exactly on the grid, and its scales, zeros."""
    s = torch.from_numpy(scales.view(np.float16).astype(np.float32))
    z = torch.from_numpy(zeros.astype(np.float32))
    q = torch.from_numpy(codes.astype(np.float32))
    w = (q - z.repeat_interleave(group, 1)) * s.repeat_interleave(group, 1)
    lin = torch.nn.Linear(w.shape[1], w.shape[0], bias=False)
    lin.weight.data = w
    return lin, s, z


def check_gptq(tmp, shape, group, asym):
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear
    src, out = run(tmp, shape, group, asym, "gptq_v2")
    zeros, scales = layouts.grid_in(src, "m0")
    lin, s, z = linear_of(src["codes", "m0"].array(), zeros, scales, group)
    o, i = lin.weight.shape
    m = TorchLinear(bits=4, group_size=group, sym=not asym, desc_act=False,
                    in_features=i, out_features=o, bias=False,
                    pack_dtype=torch.int32, register_buffers=True)
    m.pack_original(lin, s, z, torch.arange(i, dtype=torch.int32) // group)
    assert torch.equal(m.qweight, words(out, "qweight")), "qweight"
    assert torch.equal(m.qzeros, words(out, "qzeros")), "qzeros v2"
    assert torch.equal(m.g_idx.int(), words(out, "g_idx")), "g_idx"
    assert torch.equal(m.scales, words(out, "scales")), "scales"
    if not asym:
        _, v1 = run(tmp, shape, group, False, "gptq")
        assert torch.equal(m.qzeros - 0x11111111, words(v1, "qzeros")), "v1"


def check_awq(tmp, shape, group, asym):
    from gptqmodel.nn_modules.qlinear.torch_awq import AwqTorchLinear
    src, out = run(tmp, shape, group, asym, "awq")
    zeros, scales = layouts.grid_in(src, "m0")
    lin, s, z = linear_of(src["codes", "m0"].array(), zeros, scales, group)
    o, i = lin.weight.shape
    m = AwqTorchLinear(bits=4, group_size=group, sym=not asym, desc_act=False,
                       in_features=i, out_features=o, bias=False,
                       register_buffers=True)
    m.pack(lin, s, z)
    assert torch.equal(m.qweight, words(out, "qweight")), "qweight"
    assert torch.equal(m.qzeros, words(out, "qzeros")), "qzeros"
    assert torch.equal(m.scales, words(out, "scales")), "scales"


def main():
    bad = 0
    with tempfile.TemporaryDirectory() as d:
        for check in (check_ct, check_gptq, check_awq):
            for shape, group in SHAPES:
                for asym in (False, True):
                    what = f"{check.__name__} {shape} group {group}" + \
                        (" asymmetric" if asym else "")
                    try:
                        check(pathlib.Path(d), shape, group, asym)
                        print("ok", what)
                    except AssertionError as e:
                        bad += 1
                        print("DIFFERS", what, e)
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
