#!/usr/bin/env python3
"""forge-eval against transformers: perplexity of a model, and the figures of two models that differ."""
import lab

TOLERANCE = dict(tokens=0, ppl_original=1e-4, ppl=1e-4, kl_mean=1e-3, kl_p99=1e-3, top1=5e-4)


def torch_figures(original, other, ids):
    import torch
    kl, agree, nll = [], 0, []
    for row in torch.from_numpy(ids.astype("int64")):
        a, b = (torch.log_softmax(lab.logits(m, row)[:-1].double(), -1) for m in (original, other))
        kl.append((a.exp() * (a - b)).sum(-1))
        agree += int((a.argmax(-1) == b.argmax(-1)).sum())
        at = torch.arange(len(row) - 1)
        nll.append(torch.stack([-x[at, row[1:]] for x in (a, b)]))
    kl, nll = torch.stack(kl), torch.stack(nll, 1)  # [sequences, positions], [2, sequences, positions]
    means = lambda at: dict(zip(("tokens", "ppl_original", "ppl", "kl_mean"), (
        kl[:, at].numel(), *nll[:, :, at].flatten(1).mean(1).exp().tolist(), float(kl[:, at].mean()))))
    length = kl.shape[1]
    return dict(means(slice(length)), kl_p99=float(torch.quantile(kl, 0.99)), top1=agree / kl.numel(),
                by_position={low: means(slice(low, 2 * low or 16)) for low in (0, 16, 32, 64, 128, 256, 512) if low < length})


def noisy(model, seed=1):
    """A copy of the model whose linears are rounded coarsely: something to compare with."""
    import copy
    import torch
    m = copy.deepcopy(model)
    for name, x in m.named_modules():
        if isinstance(x, torch.nn.Linear) and "lm_head" not in name:
            step = x.weight.data.abs().amax(1, keepdim=True) / 8
            x.weight.data = (x.weight.data / step).round() * step
    return m


def main():
    a = lab.args(__doc__)
    import shutil
    import torch
    torch.set_num_threads(lab.THREADS)
    for d in lab.for_torch(a.model):
        name = d.rstrip("/").split("/")[-1]
        stream, out = a.work / f"eval-{name}.fts", a.work / f"noisy-{name}"
        ids = lab.tokens(d, a.eval, 12, 384, stream)
        m = lab.plain_model(d)
        other = noisy(m)
        other.save_pretrained(out)
        shutil.copy(f"{d}/tokenizer.json", out)
        want, same, got = torch_figures(m, other, ids), lab.forge_eval(d, d, stream), lab.forge_eval(d, out, stream)
        lab.check(f"{name}: the model against itself is exactly 0",
                  same["kl_mean"] == 0 and same["kl_max"] == 0 and same["top1"] == 1 and same["ppl"] == same["ppl_original"])
        for k, tol in TOLERANCE.items():
            lab.check(f"{name}: {k}", abs(got[k] / want[k] - 1) <= tol, f"{got[k]:.7g}, transformers {want[k]:.7g}")
        bins = {x["from"]: x for x in got["by_position"]}
        lab.check(f"{name}: positions {list(bins)}", list(bins) == list(want["by_position"]) and all(
            abs(bins[low][k] / y - 1) <= TOLERANCE[k] for low, x in want["by_position"].items() for k, y in x.items()))
    lab.finish()


main()
