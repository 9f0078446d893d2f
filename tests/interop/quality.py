#!/usr/bin/env python3
"""KL divergence of our default result against the defaults of GPTQModel and llm-compressor, from the same tokens.

128 x 512 tokens to calibrate, 32 x 512 others to evaluate. Every result is measured by forge-eval; ours by
transformers too. --work keeps the peers' results, which take minutes.
"""
import subprocess
import sys

import lab

PEERS = ("gptqmodel", "llmcompressor")


def make_gptqmodel(model, out, ids, *how):
    from gptqmodel import GPTQConfig, GPTQModel
    c = dict(sym=False, format="gptq_v2") if "asym" in how else {}
    m = GPTQModel.load(model, GPTQConfig(bits=4, group_size=128, offload_to_disk=False, **c), device="cpu")
    m.quantize([dict(input_ids=r.tolist(), attention_mask=[1] * len(r)) for r in ids], batch_size=1, calibration_data_min_length=1)
    m.save(out)


def make_llmcompressor(model, out, ids, *how):
    """how: an observer, "asym"; nothing: the scheme W4A16 as it is."""
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from datasets import Dataset
    from llmcompressor import oneshot
    from llmcompressor.modifiers.quantization import GPTQModifier
    from transformers import AutoModelForCausalLM
    m = AutoModelForCausalLM.from_pretrained(model, dtype="auto")
    data = Dataset.from_dict(dict(input_ids=[r.tolist() for r in ids], attention_mask=[[1] * len(r) for r in ids]))
    observer = [h for h in how if h != "asym"] or ["minmax"]
    args = QuantizationArgs(num_bits=4, type="int", symmetric="asym" not in how, strategy="group", group_size=128, observer=observer[0])
    scheme = dict(config_groups=dict(group_0=QuantizationScheme(targets=["Linear"], weights=args))) if how else dict(targets="Linear", scheme="W4A16")
    oneshot(model=m, recipe=GPTQModifier(ignore=["lm_head", "re:.*mlp.gate$"], **scheme), dataset=data, tokenizer=model,
            max_seq_length=ids.shape[1], num_calibration_samples=len(ids), shuffle_calibration_samples=False)
    m.save_pretrained(out, save_compressed=True)


def make(peer, model, out, ids):
    """In a process of its own: both change torch for good."""
    if (out / "config.json").exists():
        return
    r = subprocess.run([sys.executable, __file__, "--make", peer, model, str(out), str(ids)], stdout=subprocess.PIPE,
                       stderr=subprocess.STDOUT)
    if r.returncode:
        raise RuntimeError(f"{peer}: {r.stdout.decode()[-800:]}")


def one(a, d):
    import numpy as np
    base = d.rstrip("/").split("/")[-1]
    calib, stream = a.work / f"calib-{base}", a.work / f"quality-{base}.fts"
    ids = lab.tokens(d, a.calib, 128, 512, f"{calib}.fts")
    np.save(f"{calib}.npy", ids)
    lab.tokens(d, a.eval, 32, 512, stream)
    ours = a.work / f"ours-{base}"
    if not ours.exists():
        lab.run("forge", "quantize", d, ours, "--text", f"{calib}.npy", "--sequences", 128, "--seqlen", 512, "--quiet",
                "--work", f"{ours}.work")
    mine = lab.forge_eval(d, ours, stream)
    lab.say(f"# {base}: ours KL {mine['kl_mean']:.5f} +- {mine['kl_sem']:.5f}, perplexity {mine['ppl_original']:.4f} -> {mine['ppl']:.4f}")
    for peer in PEERS:
        out = a.work / f"{peer}-{base}"
        make(peer, d, out, f"{calib}.npy")
        r = lab.forge_eval(d, out, stream)
        lab.check(f"{base}: KL no worse than {peer}'s default", mine["kl_mean"] <= r["kl_mean"],
                  f"{mine['kl_mean']:.5f}, {peer} {r['kl_mean']:.5f}, perplexity {r['ppl']:.4f}")


def main():
    if sys.argv[1:2] == ["--make"]:
        import numpy as np
        import torch
        torch.set_num_threads(lab.THREADS)
        peer, model, out, ids = sys.argv[2:]
        peer, *how = peer.split("-")
        return globals()["make_" + peer](model, out, np.load(ids), *how)
    a = lab.args(__doc__)
    for d in a.model:
        one(a, d)
    lab.finish()


main()
