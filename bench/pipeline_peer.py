#!/usr/bin/env python3
"""GPTQModel's default quantization of a model from a tokens stream: prints seconds (load to save, imports not counted) and
the peak resident memory in bytes.  Called by pipeline_bench.sh."""
import os
import sys
import time

threads = str(len(os.sched_getaffinity(0)))
os.environ.update(OMP_NUM_THREADS=threads, CUDA_VISIBLE_DEVICES="", HF_HUB_OFFLINE="1",
                  GPTQMODEL_CPU_WORKERS=str(max(2, int(threads))))
out = os.dup(1)
os.dup2(2, 1)  # what the libraries print is not ours

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../tests/reference"))
import fts
import torch
from gptqmodel import GPTQConfig, GPTQModel


def main():
    model, tokens, to = map(os.path.abspath, sys.argv[1:])
    os.chdir(os.path.dirname(to))  # it leaves logs where it runs
    torch.set_num_threads(int(threads))
    with open(tokens, "rb") as f:
        ids = [t.array() for t in fts.read(f) if t.role == "tokens"]
    rows = [{"input_ids": r.tolist(), "attention_mask": [1] * len(r)} for r in ids]
    start = time.time()
    m = GPTQModel.load(model, GPTQConfig(bits=4, group_size=128, offload_to_disk=False), device="cpu")
    m.quantize(rows, batch_size=1, calibration_data_min_length=1)
    m.save(to)
    seconds = time.time() - start
    peak = next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
    os.write(out, f"{seconds:.2f} {peak}\n".encode())


main()
