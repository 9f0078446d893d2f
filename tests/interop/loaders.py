#!/usr/bin/env python3
"""Real loaders open what we write, and compute with the weights that we meant.

For every model, layout and symmetry: the official safetensors library opens every shard and the index is its list;
then transformers (compressed-tensors) or GPTQModel (GPTQ_TORCH, AWQ_TORCH) loads the directory. A loader that raises
nothing proves nothing, so an identity matrix goes through every quantized module, those that the loader has put into
one tensor are cut out of it, and all are compared with our own dequantized weights; and logits are compared with a plain
model of those weights: within four times what that plain model loses when it is itself run in the loader's dtype.

A mixture's router decides by small differences: in a coarser dtype some tokens go to other experts, which is no
rounding of their logits any more. Those tokens are left out of the comparison, on either side by what it chose itself,
and their number is compared instead.
"""
import json
import re

import lab

LAYOUTS = [(x, s) for x in ("compressed-tensors", "gptq", "gptq_v2", "awq") for s in ("sym", "asym")
           if (x, s) != ("gptq", "asym")]  # refused: loaders take it from one program alone
ROUNDING = {"float32": 2**-16, "float16": 2**-9, "bfloat16": 2**-6}  # of a group's largest weight; a step is 1/15 of it or more
EXPERT = re.compile(r"(.*)\.(?:mlp|block_sparse_moe)\.experts\.(\d+)\.(gate_proj|up_proj|down_proj|w1|w3|w2)")
LINEAR = re.compile(r".*(_proj|_proj_with_mqa|\.w[123]|put_linear)")
# What GPTQModel 7.7 does not open, whoever wrote it.
NOT_GPTQMODEL = {
    "mixtral": "GPTQModel wants the experts' linears as gate_proj, up_proj, down_proj, vLLM as they are, w1, w3, w2",
    "minimax_m2": "GPTQModel does not find the experts",
    "llama4_text": "GPTQModel makes the experts' down_proj with its inputs and outputs exchanged, and leaves the dense layers' MLP as random numbers",
}
# What its AWQ side does not: it asks for a table of the model's linears, where its GPTQ side finds them.
NOT_AWQ = {"ministral": "GPTQModel has no table of its linears"}
FUSED = "GPTQModel takes gate_up_proj apart when it loads; vLLM and transformers have it as it is"
NOT_GPTQMODEL.update(phi3=FUSED, glm4=FUSED)
NOT_GPTQMODEL.update(granitemoehybrid="GPTQModel wants a torch_forward of Mamba's layer that transformers 5.23 has not",
                     kimi_linear="GPTQModel wants transformers' convolution of q, k and v in one, and quantized",
                     granitemoe="GPTQModel does not find the experts", granitemoeshared="GPTQModel does not find the experts")
NOT_RUN = {"gpt_oss": "GPTQModel runs gpt-oss with gate and up interleaved again, as if each held half of the alternating outputs",
           "ernie4_5_moe": "GPTQModel leaves moe_statics.e_score_correction_bias zero, which chooses other experts",
           "glm4_moe": "GPTQModel's forward pass of it does not fit transformers 5.23: 'tuple' object has no attribute 'sigmoid'"}


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


def scales_dtype(d):
    """Of a compressed-tensors checkpoint."""
    from safetensors import safe_open
    with safe_open(str(sorted(d.glob("*.safetensors"))[0]), "pt") as s:
        return str(next(s.get_tensor(k).dtype for k in s.keys() if k.endswith(".weight_scale")))[6:]


def load(d, layout, symmetric):
    """(model, dtype it computes in, what must stay alive)"""
    import torch
    if layout == "compressed-tensors":
        from transformers import AutoModelForCausalLM, CompressedTensorsConfig
        # transformers 5.23 loads asymmetric ones, llm-compressor's own too, only dequantized, in the scales' dtype
        kw = {} if symmetric else dict(quantization_config=CompressedTensorsConfig(dequantize=True))
        m = AutoModelForCausalLM.from_pretrained(d, dtype=torch.float32, attn_implementation="eager", **kw)
        return m.eval(), "float32" if symmetric else scales_dtype(d), None
    from gptqmodel import BACKEND, GPTQModel
    back = BACKEND.AWQ_TORCH if layout == "awq" else BACKEND.GPTQ_TORCH
    m = GPTQModel.load(str(d), device="cpu", backend=back, dtype=torch.float16, attn_implementation="eager")
    return m.model.eval(), "float16", m


def in_model(modules, state, name, columns, dtype):
    """The weight [out, in] that a model of these modules computes with, or None: it has no such module."""
    import torch
    x = modules.get(name)
    if type(x) is torch.nn.Linear:
        return x.weight.data.float()
    if x is not None:
        bias = getattr(x, "bias", None)
        with torch.inference_mode():
            keep = bias is not None and bias.clone()
            if bias is not None:
                bias.zero_()  # or its rounding would be taken for the weights'
            y = x(torch.eye(columns, dtype=getattr(torch, dtype))).float()
            if bias is not None:
                bias.copy_(keep)
        return y.T
    e = EXPERT.fullmatch(name)
    if not e or f"{e[1]}.mlp.experts.down_proj" not in state:
        return None
    if e[3] in ("down_proj", "w2"):
        return state[f"{e[1]}.mlp.experts.down_proj"][int(e[2])].float()
    return state[f"{e[1]}.mlp.experts.gate_up_proj"][int(e[2])].float().chunk(2)[e[3] in ("up_proj", "w3")]


def weights_differ(ours, theirs, layers, group):
    """theirs(name, columns): a linear's weight as loaded.
    (largest difference in units of its group's largest weight, module, how many compared, how many not found)"""
    import torch
    worst, where, seen, missed = 0.0, None, 0, 0
    for name, w in ours.items():
        name = name.removesuffix(".weight")
        if not LINEAR.fullmatch(name) or lab.layer_of(name) >= layers:
            continue
        w = torch.from_numpy(w)
        got = theirs(name, w.shape[1])
        if got is None or got.shape != w.shape:
            missed += 1
            continue
        seen, pad = seen + 1, -w.shape[1] % group
        most = torch.nn.functional.pad(w.abs(), (0, pad)).reshape(len(w), -1, group).amax(-1).clamp_min(1e-12)
        e = float(((got - w).abs() / most.repeat_interleave(group, 1)[:, :w.shape[1]]).max())
        if not e <= worst:
            worst, where = e, name
    return worst, where, seen, missed


def coarsest(model, asked):
    """The dtype whose rounding is in the result: transformers puts experts together in that of their scales."""
    order = ("float32", "float16", "bfloat16")
    held = {str(p.dtype)[6:] for p in model.parameters() if p.is_floating_point() and p.ndim > 1}
    return max(held & set(order) | {asked}, key=order.index)


def compare(x, ref):
    """Two results of routed_logits(): (relative difference over the tokens that chose the same experts, how many chose others)"""
    same = (x[1] == ref[1]).all(-1)
    if not same.any():
        return float("inf"), len(same)
    d, r = (x[0] - ref[0])[same].double(), ref[0][same].double()
    return float((d.pow(2).mean() / r.pow(2).mean()).sqrt()), int((~same).sum())


def check_weights(name, ours, theirs, layers, group, dtype):
    e, where, seen, missed = weights_differ(ours, theirs, layers, group)
    lab.check(f"{name}: weights as loaded", e <= ROUNDING[dtype] and seen and not missed, f"{seen} modules, {missed} not found, {e:.2g} {where}")


def one(d, name, layout, symmetric, group, ids):
    ours = lab.dequantized(d)
    m, asked, keep = load(d, layout, symmetric)
    dtype, lacks = coarsest(m, asked), layout != "compressed-tensors" and NOT_RUN.get(m.config.model_type)
    got = lacks or lab.routed_logits(m, ids)  # before the weights: compressed-tensors unpacks at the first forward
    modules, state = dict(m.named_modules()), m.state_dict()
    check_weights(name, ours, lambda n, columns: in_model(modules, state, n, columns, asked), m.config.num_hidden_layers, group, dtype)
    if lacks:
        return lab.say(f"# {name}: {lacks}")
    ref = lab.routed_logits(lab.plain_model(d, ours), ids)
    rough, moved = compare(lab.routed_logits(lab.plain_model(d, ours, dtype), ids), ref) if dtype != "float32" else (0, 0)
    (r, others), tol = compare(got, ref), max(1e-5, 4 * rough)
    lab.check(f"{name}: logits", r <= tol, f"relative {r:.2g}, at most {tol:.2g}, in {dtype}")
    if ref[1].shape[1]:
        most = 2 * moved + len(ids) // 16
        lab.check(f"{name}: experts", others <= most, f"{others} of {len(ids)} tokens chose others, at most {most}")


def library_alone(d, name, group):
    """compressed-tensors' own unpacking of each module, by the group of the config that it finds for it,
    without a model around it."""
    import torch
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationScheme
    from compressed_tensors.utils.match import match_targets
    from safetensors.torch import load_file
    t = {k: v for f in sorted(d.glob("*.safetensors")) for k, v in load_file(f).items()}
    schemes = {x: QuantizationScheme(**g) for g in lab.quantization(d)["config_groups"].values() for x in g["targets"]}
    linear = torch.nn.Linear(1, 1)
    unpack = BaseCompressor.get_value_from_registry("pack-quantized").decompress

    def theirs(module, columns):
        parts = {k: t[f"{module}.{k}"] for k in ("weight_packed", "weight_scale", "weight_zero_point", "weight_shape") if f"{module}.{k}" in t}
        w = unpack(parts, schemes[match_targets(module, linear, schemes)[0]])["weight"] if parts else t.get(module + ".weight")
        return w if w is None else w.to(torch.float32)
    layers = json.loads((d / "config.json").read_text())["num_hidden_layers"]
    check_weights(f"{name} (compressed-tensors alone)", lab.dequantized(d), theirs, layers, group, scales_dtype(d))


def loader_lacks(d, layout, symmetric):
    """Why no loader opens the directory, whoever wrote it; or ''."""
    c = json.loads((d / "config.json").read_text())
    if layout == "compressed-tensors" and not symmetric and len(lab.quantization(d)["config_groups"]) > 1:
        return "transformers 5.23 dequantizes all dense layers by the first group of the config"
    if layout == "awq" and c["model_type"] in NOT_AWQ:
        return NOT_AWQ[c["model_type"]]
    if not any(c.get(k) for k in ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")):
        return "" if layout == "compressed-tensors" else NOT_GPTQMODEL.get(c["model_type"], "")
    if layout == "compressed-tensors" and c["model_type"] in ("gpt_oss", "granitemoe", "granitemoeshared", "granitemoehybrid") and c["num_local_experts"]:
        return "transformers 5.23 does not put its experts together"
    if layout == "compressed-tensors" and c["model_type"] == "kimi_linear":
        return "transformers 5.23 stops at the convolutions while it converts names"
    if layout == "compressed-tensors":
        return "" if symmetric or c["model_type"] == "llama4_text" else "transformers 5.23 drops the zeros of experts that it puts into one tensor"
    return NOT_GPTQMODEL.get(c["model_type"], "")


def check_output(out, name, layout, symmetric, group, ids):
    wrong = files(out)
    lab.check(f"{name}: files", not wrong, wrong)
    lacks = loader_lacks(out, layout, symmetric)
    if not lacks:
        return one(out, name, layout, symmetric, group, ids)
    lab.say(f"# {name}: {lacks}")
    if layout == "compressed-tensors":
        library_alone(out, name, group)


def main():
    a = lab.args(__doc__, ("--group", dict(type=int, default=128)), ("--layout", dict(action="append", help="LAYOUT or LAYOUT-sym; may be given again [all]")),
                 ("--option", dict(action="append", default=[], help="another of forge quantize")))
    import torch
    torch.set_num_threads(lab.THREADS)
    for d in a.model:
        base = d.rstrip("/").split("/")[-1]
        ids = lab.tokens(d, a.eval, 1, 64, a.work / f"probe-{base}.fts")[0]
        for layout, sym in LAYOUTS:
            if a.layout and not {layout, f"{layout}-{sym}"} & set(a.layout):
                continue
            name, out = f"{base} {layout} {sym}", a.work / f"{base}-{layout}-{sym}"
            try:
                if not out.exists():
                    lab.run("forge", "quantize", d, out, "--text", a.calib, "--sequences", 8, "--seqlen", 256, "--layout", layout,
                            "--group", a.group, "--" + sym, *a.option, "--quiet", "--work", str(out) + ".work")
                check_output(out, name, layout, sym == "sym", a.group, ids)
            except Exception as e:
                import traceback
                traceback.print_exc()
                lab.check(name, False, f"{type(e).__name__}: {e}"[:300])
    lab.finish()


main()
