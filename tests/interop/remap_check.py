#!/usr/bin/env python3
"""contrib/vllm: remap() against loops written from its definition, and against forge-eval.

Of each mixture of experts: forge prune --mode remap; then transformers' model with all experts, whose router's choices go
through the plug-in's remap(), has the perplexity that forge-eval finds in the pruned checkpoint.
"""
import json
import math
import sys
from pathlib import Path

import lab

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "contrib/vllm"))
import forge_vllm  # noqa: E402


def slow(row, weights, ids, renormalize):
    """One token, from forge-prune(1)."""
    w, to = [], []
    for x, i in zip(weights, ids):
        kept = i < 0 or row[i] >= 0
        w.append(x if kept else 0.0)
        to.append(i if i < 0 else max(row[i], 0))
    if renormalize and sum(w) > 0:
        w = [x * sum(weights) / sum(w) for x in w]
    return w, to


def invariants():
    import torch
    g = torch.Generator().manual_seed(5)
    for kept in (1, 5, 16):
        row = torch.full((16,), -1, dtype=torch.int32)
        row[torch.randperm(16, generator=g)[:kept].sort()[0]] = torch.arange(kept, dtype=torch.int32)
        for renormalize in (True, False):
            ids = torch.stack([torch.randperm(16, generator=g)[:4] for _ in range(300)]).int()
            ids[::50] = -1  # vLLM's padding
            weights = torch.rand(300, 4, generator=g)
            w, to = forge_vllm.remap(row, weights.clone(), ids.clone(), renormalize)
            want = [slow(row.tolist(), a, b, renormalize) for a, b in zip(weights.tolist(), ids.tolist())]
            right = to.tolist() == [x[1] for x in want] and to.dtype == ids.dtype and torch.allclose(w, torch.tensor([x[0] for x in want]), atol=1e-6)
            lab.check(f"remap: {kept} of 16 experts, renormalize {renormalize}", right and int(to.max()) < kept and not w.isnan().any())


def perplexity(model, ids):
    import torch
    nll = 0.0
    for row in torch.from_numpy(ids.astype("int64")):
        p = torch.log_softmax(lab.logits(model, row)[:-1].double(), -1)
        nll -= float(p[torch.arange(len(row) - 1), row[1:]].sum())
    return math.exp(nll / (len(ids) * (ids.shape[1] - 1)))


def with_remap(model, rows):
    """transformers' DeepSeek-V3, whose routers' choices become those of the kept experts."""
    import torch

    def wrap(gate, row):
        back = torch.tensor([i for i, x in enumerate(row.tolist()) if x >= 0])
        forward = gate.forward

        def remapped(*a, **k):
            logits, weights, ids = forward(*a, **k)
            w, to = forge_vllm.remap(row, weights, ids, gate.norm_topk_prob)
            return logits, w, back[to]
        gate.forward = remapped
    for i, l in enumerate(model.model.layers):
        if hasattr(l.mlp, "gate"):
            wrap(l.mlp.gate, rows[i])
    return model


def main():
    a = lab.args(__doc__)
    import torch
    torch.set_num_threads(lab.THREADS)
    invariants()
    for d in lab.for_torch(a.model):
        c = json.loads(Path(d, "config.json").read_text())
        if c["model_type"] != "deepseek_v3":
            continue
        name, keep = d.rstrip("/").split("/")[-1], c["n_routed_experts"] // 2
        out, stream = a.work / f"remap-{name}", a.work / f"remap-{name}.fts"
        if not out.exists():
            lab.run("forge", "prune", d, out, "--keep", keep, "--text", a.calib, "--sequences", 8, "--mode", "remap", "--quiet")
        ids = lab.tokens(d, a.eval, 4, 128, stream)
        got = lab.forge_eval(d, out, stream)
        m = lab.plain_model(d)
        whole = perplexity(m, ids)
        want = perplexity(with_remap(m, forge_vllm.read_map(str(out), "expert_map.safetensors")), ids)
        lab.check(f"{name}: {keep} experts of {c['n_routed_experts']}", abs(got["ppl"] / want - 1) < 1e-3 and got["ppl"] != got["ppl_original"],
                  f"forge-eval {got['ppl']:.6g}, remap() in transformers {want:.6g}, all experts {whole:.6g}")
    lab.finish()


main()
