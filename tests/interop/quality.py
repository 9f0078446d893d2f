#!/usr/bin/env python3
"""KL divergence of our default result against the defaults of GPTQModel and llm-compressor, from the same tokens.

128 x 512 tokens to calibrate, 32 x 512 others to evaluate; mixtures of experts like dense models: the peers leave their
routers alone, too. Every result is measured by forge-eval; --work keeps the peers' results, which take minutes.
bench/quality.py has more of both.
"""
import sys

import lab
import peers

PEERS = ("gptqmodel", "llmcompressor")


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
    have = peers.versions(sys.executable)
    for peer in PEERS:
        out, _ = peers.kept(sys.executable, peer, d, f"{calib}.fts", a.work / "peers", have[peer])
        r = lab.forge_eval(d, out, stream)
        lab.check(f"{base}: KL no worse than {peer}'s default", mine["kl_mean"] <= r["kl_mean"],
                  f"{mine['kl_mean']:.5f}, {peer} {r['kl_mean']:.5f}, perplexity {r['ppl']:.4f}")


def main():
    a = lab.args(__doc__)
    for d in lab.for_torch(a.model):
        one(a, d)
    lab.finish()


main()
