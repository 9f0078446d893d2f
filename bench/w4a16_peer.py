#!/usr/bin/env python3
"""Products with 4-bit linears by torch's int4pack and by AWQ's Triton kernel, on
the GPU, against a product in f64 first: the peers of `cuda_bench w4a16`.

    w4a16_peer.py [GEMM.PY]     awq/modules/triton/gemm.py of autoawq's source
"""
import importlib.util
import sys

import torch

IN, OUT, GROUP, TURNS = 8192, 28672, 128, 3


def microseconds(call, repeats=11):
    """Median of a call; the matrices of TURNS take turns."""
    times = []
    for _ in range(repeats + 2):
        a, b = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        a.record()
        for turn in range(TURNS):
            call(turn)
        b.record()
        b.synchronize()
        times.append(a.elapsed_time(b) * 1e3 / TURNS)
    return sorted(times[2:])[repeats // 2]


def report(name, rows, us, y, want):
    error = ((y.double() - want).norm() / want.norm()).item()
    assert error < 1e-2, f"{name}: error {error}"
    moved = IN * OUT * (0.5 + 2 / GROUP) + 2 * rows * (IN + OUT)
    print(f"w4a16 peer {name}, M = {rows}: {us:.1f} us, {moved / us / 1e3:.0f} GB/s (error {error:.1e})")


def int4pack(codes, scales, xs):
    packed, grids = [], []
    for _ in range(TURNS):
        packed.append(torch._convert_weight_to_int4pack((codes[:, ::2] << 4 | codes[:, 1::2]).to(torch.uint8), 8))
        s = scales.t().contiguous().bfloat16()
        grids.append(torch.stack([s, torch.zeros_like(s)], 2).contiguous())
    w = (codes.double() - 8) * scales.bfloat16().double().repeat_interleave(GROUP, 1)
    for x in xs:
        x = x.bfloat16()
        y = torch._weight_int4pack_mm(x, packed[0], GROUP, grids[0])
        us = microseconds(lambda t, x=x: torch._weight_int4pack_mm(x, packed[t], GROUP, grids[t]))
        report("torch int4pack", len(x), us, y, x.double() @ w.t())


def triton_awq(path, codes, scales, xs):
    spec = importlib.util.spec_from_file_location("gemm", path)
    gemm = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(gemm)
    words = torch.zeros(IN, OUT // 8, dtype=torch.int32, device="cuda")
    for nibble, at in enumerate([0, 2, 4, 6, 1, 3, 5, 7]):
        words |= codes[at::8].t().to(torch.int32) << 4 * nibble
    zeros = torch.full((IN // GROUP, OUT // 8), 0x88888888 - (1 << 32), dtype=torch.int32, device="cuda")
    words, s = [words.clone() for _ in range(TURNS)], scales.t().contiguous().half()
    w = (codes.double() - 8) * s.t().double().repeat_interleave(GROUP, 1)
    for x in xs:
        x, best = x.half(), None
        for split in (1, 2, 4, 8):
            us = microseconds(lambda t, x=x, n=split: gemm.awq_gemm_triton(x, words[t], s, zeros, n), 5)
            if best is None or us < best[0]:
                best = us, split
        y = gemm.awq_gemm_triton(x, words[0], s, zeros, best[1])
        report(f"Triton AWQ, split {best[1]}", len(x), best[0], y, x.double() @ w.t())


def main():
    codes = torch.randint(0, 16, (OUT, IN), device="cuda", dtype=torch.int32)
    scales = torch.rand(OUT, IN // GROUP, device="cuda") * 0.01 + 0.005
    xs = [torch.randn(rows, IN, device="cuda") for rows in (1, 16, 64)]
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    int4pack(codes, scales, xs)
    if len(sys.argv) > 1:
        triton_awq(sys.argv[1], codes, scales, xs)


main()
