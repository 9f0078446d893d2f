#!/usr/bin/env python3
"""forge repack --layout int4pack in torch's own operators: the tensors of the
safetensors file, as they are, give the product of the AWQ checkpoint that they
were made of, and are the bytes of torch's own conversion.

    int4pack_check.py MODEL      exit 1 and a reason when something differs

Each capability of torch that the CPU has, in a process of its own.  Needs
torch, safetensors (scripts/setup --venv)."""
import os
import pathlib
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import load_file

GROUP = 32
ORDER = [0, 4, 1, 5, 2, 6, 3, 7]
CAPABILITIES = ["avx512", "avx2", "default"]


def unpack(words):
    """AWQ: [r, c] -> [r, 8c]."""
    n = torch.stack([words >> 4 * i & 15 for i in ORDER], -1)
    return n.reshape(words.shape[0], -1)


def check(awq, tiles):
    a = load_file(awq / "model.safetensors")
    b = load_file(tiles / "model.safetensors")
    modules = [n[:-len(".qweight")] for n in a if n.endswith(".qweight")]
    assert modules
    worst = 0
    for m in modules:
        q = unpack(a[m + ".qweight"]).T.contiguous()
        z, s = unpack(a[m + ".qzeros"]), a[m + ".scales"]
        packed, sz = b[m + ".weight_int4pack"], b[m + ".scales_and_zeros"]
        want = torch.ops.aten._convert_weight_to_int4pack_for_cpu(q, 1)
        assert torch.equal(packed, want), f"{m}: bytes"
        want = torch.stack([s, ((8 - z) * s.float()).to(s.dtype)], -1)
        assert torch.equal(sz, want), f"{m}: scales and zeros"
        w = ((q - z.T.repeat_interleave(GROUP, 1)) *
             s.T.double().repeat_interleave(GROUP, 1))
        x = torch.randn(5, q.shape[1], dtype=torch.float64)
        for t, most in ((torch.float32, 2e-3), (torch.float16, 2e-3),
                        (torch.bfloat16, 2e-2)):
            y = torch.ops.aten._weight_int4pack_mm_for_cpu(
                x.to(t), packed, GROUP, sz.to(t)).double()
            ref = x.to(t).double() @ w.T
            err = float((y - ref).abs().max() / ref.abs().max())
            assert err < most, f"{m}: product in {t} is {err:.2g} off"
            worst = max(worst, err / most)
    print(torch.backends.cpu.get_cpu_capability(), len(modules),
          f"linears; products within {worst:.2f} of what is allowed")


def main():
    model = sys.argv[1]
    with tempfile.TemporaryDirectory() as d:
        d = pathlib.Path(d)
        pack = ["forge-pack", "-q", "--layout", "awq"]
        subprocess.run(f"forge-weights -q {model} | forge-grid -q --group "
                       f"{GROUP} --asymmetric | forge-solve -q | "
                       f"{' '.join(pack)} | forge-shard -q --from {model} "
                       f"{d / 'awq'}", shell=True, check=True)
        here = torch.backends.cpu.get_cpu_capability().lower()
        for c in CAPABILITIES[CAPABILITIES.index(here):]:
            subprocess.run(["forge", "repack", "-q", d / "awq", d / c,
                            "--layout", "int4pack", "--capability", c],
                           check=True)
            subprocess.run([sys.executable, __file__, d / "awq", d / c],
                           env=dict(os.environ, ATEN_CPU_CAPABILITY=c),
                           check=True)
        subprocess.run(["forge", "repack", "-q", d / "awq", d / "here",
                        "--layout", "int4pack"], check=True)
        check(d / "awq", d / "here")  # as torch itself decides


if __name__ == "__main__":
    if len(sys.argv) == 3:
        check(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
    else:
        main()
