#!/usr/bin/env python3
"""Act-order GPTQ of GPTQModel (desc_act), repacked by ours, in other people's
loaders and in torch's product: equal weights, logits as near as floats are.

    actorder_check.py MODEL CALIB     exit 1 and a reason when something differs

Needs requirements*.txt (scripts/setup --venv)."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

os.environ.update(GPTQMODEL_CPU_WORKERS="2", CUDA_VISIBLE_DEVICES="",
                  TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1")

import torch  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "reference"))
import actorder  # noqa: E402

GROUP = 32


def make(model, calib, out):
    from gptqmodel import GPTQConfig, GPTQModel
    from tokenizers import Tokenizer
    tok = Tokenizer.from_file(f"{model}/tokenizer.json")
    with open(calib) as f:
        ids = [tok.encode(json.loads(x)["text"]).ids[:256] for x in list(f)[:16]]
    m = GPTQModel.load(model, GPTQConfig(bits=4, group_size=GROUP, desc_act=True, act_group_aware=False,
                                         sym=False, format="gptq_v2", offload_to_disk=False), device="cpu")
    m.quantize([dict(input_ids=x, attention_mask=[1] * len(x)) for x in ids], batch_size=1,
               calibration_data_min_length=1)
    m.save(str(out))


def logits(path, ids):
    from transformers import AutoModelForCausalLM
    m = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    with torch.no_grad():
        return m(ids).logits


def dense(model, quantized, ids):
    """The model with (q - z) s of NumPy's in its linears, in float32."""
    from transformers import AutoModelForCausalLM
    m = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    for name, q, s, z in actorder.modules(quantized):
        w = (q - z) * s.astype("f8")
        m.get_submodule(name).weight.data = torch.from_numpy(w).float()
    with torch.no_grad():
        return m(ids).logits


def same(a, b):
    for one, two in zip(actorder.modules(a), actorder.modules(b), strict=True):
        assert one[0] == two[0]
        for what, x, y in zip(("codes", "scales", "zeros"), one[1:], two[1:]):
            assert (x == y).all(), (b, one[0], what)


def product(d):
    """torch's operator on permuted activations."""
    here = load_file(d / "model.safetensors")
    worst = 0
    for name, q, s, z in actorder.modules(d):
        w = torch.from_numpy((q - z) * s.astype("f8"))
        x = torch.randn(3, w.shape[1])
        perm = here[name + ".input_perm"].long()
        y = torch.ops.aten._weight_int4pack_mm_for_cpu(
            x[:, perm].contiguous(), here[name + ".weight_int4pack"], GROUP,
            here[name + ".scales_and_zeros"].float())
        ref = x.double() @ w.T
        worst = max(worst, float((y - ref).abs().max() / ref.abs().max()))
    assert worst < 2e-3, f"torch's product: {worst:.2g}"  # zeros are F16
    print(f"int4pack: torch's products within {worst:.2g}")


def main():
    model, calib = sys.argv[1:3]
    with tempfile.TemporaryDirectory() as d:
        d = pathlib.Path(d)
        make(model, calib, d / "act")
        idx = load_file(d / "act" / "model.safetensors")
        moved = [n for n in idx if n.endswith(".g_idx") and (idx[n].diff() < 0).any()]
        assert moved, "GPTQModel made no act-order"
        for layout in ("gptq_v2", "compressed-tensors", "int4pack"):
            subprocess.run(["forge", "repack", "-q", d / "act", d / layout, "--layout", layout], check=True)
            same(d / "act", d / layout)
            print("ok", layout, len(moved), "linears in act-order")
        product(d / "int4pack")
        ids = torch.randint(3, 1000, (1, 96), generator=torch.Generator().manual_seed(1))
        want = dense(model, d / "act", ids)
        got = logits(str(d / "gptq_v2"), ids)
        err = float((got - want).abs().max() / want.abs().max())
        print(f"gptq_v2 in transformers: logits {err:.2g} off")
        assert err < 5e-3
        try:  # compressed-tensors 0.20 has no such grids, and says so
            logits(str(d / "compressed-tensors"), ids)
        except ValueError as e:
            assert "actorder='group' has been removed" in str(e), e
            print("compressed-tensors refuses act-order by its name")
        else:
            raise AssertionError("compressed-tensors takes act-order again: compare its logits here")


if __name__ == "__main__":
    main()
