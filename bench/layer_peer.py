#!/usr/bin/env python3
"""layer_peer.py MODEL OUT SEQUENCES SEQLEN: GPTQModel's default, 4 bits in symmetric groups of 128, on the GPU, with
random tokens: seconds to load, quantize and save, imports not counted.  A machine's first run compiles kernels."""
import shutil
import sys
import time

import numpy as np
import torch
from gptqmodel import GPTQModel
from gptqmodel.quantization.config import FORMAT, GPTQConfig


def main():
    model, out, sequences, seqlen = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    ids = np.random.default_rng(1).integers(5, 2000, (sequences, seqlen))
    begin = time.monotonic()
    m = GPTQModel.load(model, GPTQConfig(bits=4, group_size=128, sym=True, format=FORMAT.GPTQ, offload_to_disk=False),
                       device="cuda:0")
    m.quantize([{"input_ids": row.tolist(), "attention_mask": [1] * seqlen} for row in ids], batch_size=4,
               calibration_data_min_length=1)
    torch.cuda.synchronize()
    m.save(out)
    print(f"{time.monotonic() - begin:.2f}")
    shutil.rmtree(out)


main()
