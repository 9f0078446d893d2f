#!/usr/bin/env python3
"""Real loaders open what we write, and compute with the weights that we meant.

For every model, layout and symmetry: the official safetensors library opens every shard and the index is its list;
then transformers (compressed-tensors) or GPTQModel (GPTQ_TORCH, AWQ_TORCH) loads the directory. A loader that raises
nothing proves nothing, so an identity matrix goes through every quantized module and is compared with our own
dequantized weight, and logits are compared with a plain model of those weights: within four times what that plain
model loses when it is itself run in the loader's dtype.
"""
import json

import lab

LAYOUTS = [(x, s) for x in ("compressed-tensors", "gptq", "gptq_v2", "awq") for s in ("sym", "asym")
           if (x, s) != ("gptq", "asym")]  # refused: loaders take it from one program alone
ROUNDING = {"float32": 2**-16, "float16": 2**-9, "bfloat16": 2**-6}  # of a group's largest weight; a step is 1/15 of it or more


def files(d):
    """'' or what is wrong with the files."""
    from pathlib import Path
    from safetensors import safe_open
    d, have, total = Path(d), {}, 0
    for f in sorted(d.glob("*.safetensors")):
        with safe_open(str(f), "pt") as s:
            if (s.metadata() or {}).get("format") != "pt":
                return f"{f.name}: no format = pt"
            for n in s.keys():
                t = s.get_tensor(n)
                have[n], total = f.name, total + t.numel() * t.element_size()
                if t.is_floating_point() and not bool(t.isfinite().all()):
                    return f"{n}: not finite"
    index = d / "model.safetensors.index.json"
    if not index.exists():
        return "" if set(have.values()) == {"model.safetensors"} else "no index"
    j = json.loads(index.read_text())
    if j["weight_map"] != have:
        return f"the index differs from the shards in {sorted(set(j['weight_map'].items()) ^ set(have.items()))[:3]}"
    return "" if j["metadata"]["total_size"] == total else f"total_size {j['metadata']['total_size']}, tensors have {total}"


def load(d, layout, symmetric):
    """(model, dtype it computes in, what must stay alive)"""
    import torch
    if layout == "compressed-tensors":
        from transformers import AutoModelForCausalLM, CompressedTensorsConfig
        # transformers 5.23 loads asymmetric ones, llm-compressor's own too, only dequantized, in the scales' dtype
        kw = {} if symmetric else dict(quantization_config=CompressedTensorsConfig(dequantize=True))
        m = AutoModelForCausalLM.from_pretrained(d, dtype=torch.float32, attn_implementation="eager", **kw)
        return m.eval(), "float32" if symmetric else "float16", None
    from gptqmodel import BACKEND, GPTQModel
    back = BACKEND.AWQ_TORCH if layout == "awq" else BACKEND.GPTQ_TORCH
    m = GPTQModel.load(str(d), device="cpu", backend=back, dtype=torch.float16, attn_implementation="eager")
    return m.model.eval(), "float16", m


def weights_differ(model, ours, dtype, group):
    """(largest difference in units of its group's largest weight, module, how many compared)"""
    import torch
    worst, where, seen = 0.0, None, 0
    for name, x in model.named_modules():
        w = ours.get(name + ".weight")
        if w is None or w.ndim != 2 or name == "lm_head" or "embed" in name:
            continue
        w, seen = torch.from_numpy(w), seen + 1
        if type(x) is torch.nn.Linear:
            got = x.weight.data.float()
        else:
            with torch.inference_mode():
                got = x(torch.eye(w.shape[1], dtype=getattr(torch, dtype))).float()
            got = (got - x.bias.float() if getattr(x, "bias", None) is not None else got).T
        pad = -w.shape[1] % group
        most = torch.nn.functional.pad(w.abs(), (0, pad)).reshape(len(w), -1, group).amax(-1).clamp_min(1e-12)
        e = float(((got - w).abs() / most.repeat_interleave(group, 1)[:, :w.shape[1]]).max())
        if not e <= worst:
            worst, where = e, name
    return worst, where, seen


def relative(x, ref):
    return float(((x - ref).double().pow(2).mean() / ref.double().pow(2).mean()).sqrt())


def one(d, name, layout, symmetric, group, ids):
    ours = lab.dequantized(d)
    ref = lab.logits(lab.plain_model(d, ours), ids)
    m, dtype, keep = load(d, layout, symmetric)
    rough = relative(lab.logits(lab.plain_model(d, ours, dtype), ids), ref) if dtype != "float32" else 0
    got = lab.logits(m, ids)  # before the weights: compressed-tensors unpacks at the first forward
    e, where, seen = weights_differ(m, ours, dtype, group)
    modules = sum(1 for k in ours if k.endswith("_proj.weight"))
    lab.check(f"{name}: weights as loaded", e <= ROUNDING[dtype] and seen == modules, f"{seen} of {modules} modules, {e:.2g} {where}")
    r, tol = relative(got, ref), max(1e-5, 4 * rough)
    lab.check(f"{name}: logits", r <= tol, f"relative {r:.2g}, at most {tol:.2g}")


def main():
    a = lab.args(__doc__, ("--group", dict(type=int, default=128)), ("--option", dict(action="append", default=[], help="another of forge quantize")))
    import torch
    torch.set_num_threads(lab.THREADS)
    for d in a.model:
        base = d.rstrip("/").split("/")[-1]
        ids = lab.tokens(d, a.eval, 1, 64, a.work / f"probe-{base}.fts")[0]
        for layout, sym in LAYOUTS:
            name, out = f"{base} {layout} {sym}", a.work / f"{base}-{layout}-{sym}"
            try:
                if not out.exists():
                    lab.run("forge", "quantize", d, out, "--text", a.calib, "--sequences", 8, "--seqlen", 256, "--layout", layout,
                            "--group", a.group, "--" + sym, *a.option, "--quiet", "--work", str(out) + ".work")
                wrong = files(out)
                lab.check(f"{name}: files", not wrong, wrong)
                one(out, name, layout, sym == "sym", a.group, ids)
            except Exception as e:
                import traceback
                traceback.print_exc()
                lab.check(name, False, f"{type(e).__name__}: {e}"[:300])
    lab.finish()


main()
