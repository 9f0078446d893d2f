"""Shared by the checks of this directory: arguments, our tools, verdicts, and models in torch.

import lab before torch: it sets what the libraries read at import.
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

THREADS = min(2, os.cpu_count() or 1)
for _k, _v in dict(OMP_NUM_THREADS=THREADS, OMP_WAIT_POLICY="passive", TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE=1, TRANSFORMERS_OFFLINE=1,
                   HF_HUB_DISABLE_PROGRESS_BARS=1, CUDA_VISIBLE_DEVICES="", GPTQMODEL_CPU_WORKERS=2).items():
    os.environ.setdefault(_k, str(_v))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "reference"))

_failed = []
_verdicts = os.fdopen(os.dup(1), "w")  # what the libraries print goes to stderr
os.dup2(2, 1)


def args(doc, *more):
    """--model (several), --calib, --eval, --work; more: (name, keywords) for add_argument."""
    p = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", action="append", required=True, help="checkpoint directory; may be given again")
    p.add_argument("--calib", required=True)
    p.add_argument("--eval", required=True)
    p.add_argument("--work", help="keep what is made here, and use what is there; default: a temporary directory")
    for name, kw in more:
        p.add_argument(name, **kw)
    a = p.parse_args()
    if a.work:
        a.work = Path(a.work)
        a.work.mkdir(parents=True, exist_ok=True)
    else:
        a.work = Path(tempfile.mkdtemp(prefix="forge-interop-"))
        import atexit
        atexit.register(shutil.rmtree, a.work, ignore_errors=True)
    return a


def say(line):
    print(line, file=_verdicts, flush=True)


def check(name, ok, detail=""):
    say(("ok      " if ok else "NOT OK  ") + name + (f"  ({detail})" if detail else ""))
    if not ok:
        _failed.append(name)
    return ok


def finish():
    sys.exit(1 if _failed else 0)


def run(*command, stdin=None, stdout=None):
    """Run one of our tools; its stdout as bytes, or into the file `stdout`."""
    with open(stdin or os.devnull, "rb") as i, open(stdout or os.devnull, "wb") as o:
        r = subprocess.run([str(c) for c in command], stdin=i, stdout=o if stdout else subprocess.PIPE, stderr=subprocess.PIPE)
    if r.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}: exit {r.returncode}: {r.stderr.decode().strip()}")
    return r.stdout


def frames(path):
    """All tensors of a stream."""
    import fts
    with open(path, "rb") as f:
        return list(fts.read(f))


def tokens(model, text, n, seqlen, out):
    """A tokens stream of the text, and the same ids as int32 [n, seqlen]."""
    import numpy as np
    if not Path(out).exists():
        run("forge-tokens", "--sequences", n, "--seqlen", seqlen, model, text, stdout=out)
    ids = [f.array() for f in frames(out) if f.role == "tokens"]
    return np.stack(ids)


def forge_eval(original, other, stream):
    return json.loads(run("forge-eval", "--quiet", "--json", original, other, stream))


def quantization(d):
    return json.loads((Path(d) / "config.json").read_text()).get("quantization_config") or {}


def for_torch(models):
    """Those that transformers loads on a CPU."""
    for d in models:
        if quantization(d):
            say(f"# {d}: transformers loads 8-bit floats on a GPU only: left out")
        else:
            yield d


def plain_model(d, weights=None, dtype="float32"):
    """transformers' model of d's config; weights: by name, in place of d's own tensors.

    They go through a directory, so that transformers puts experts together, and renames, as it does for any checkpoint."""
    import torch
    from transformers import AutoModelForCausalLM
    how = dict(dtype=getattr(torch, dtype), attn_implementation="eager", output_loading_info=True)
    if weights is None:
        m, info = AutoModelForCausalLM.from_pretrained(d, **how)
    else:
        from safetensors.numpy import save_file
        config = json.loads((Path(d) / "config.json").read_text())
        config.pop("quantization_config", None)
        if config["model_type"] in ("gpt_oss", "llama4_text"):
            weights = fuse_experts(weights, config["model_type"] == "gpt_oss")
        with tempfile.TemporaryDirectory() as t:
            save_file(weights, f"{t}/model.safetensors", metadata={"format": "pt"})
            Path(t, "config.json").write_text(json.dumps(config))
            m, info = AutoModelForCausalLM.from_pretrained(t, **how)
    behind = [k for k in info["unexpected_keys"] if layer_of(k) >= m.config.num_hidden_layers]
    wrong = [k for k in ("missing_keys", "mismatched_keys") if info.get(k)]
    if wrong or len(behind) < len(info["unexpected_keys"]):
        raise RuntimeError(f"{d}: {', '.join(f'{k}: {sorted(info[k])[:3]}' for k in wrong + ['unexpected_keys'])}")
    return m.eval()


def fuse_experts(t, alternate):
    """Experts in transformers' tensors: [E, H, 2I], gate before up or alternating, [E, I, H], biases [E, 2I], [E, H]."""
    import numpy as np
    out, layers = {k: v for k, v in t.items() if expert_of(k) < 0}, {k.split("experts.")[0] + "experts." for k in t if expert_of(k) >= 0}
    for p in layers:
        n = 1 + max(expert_of(k) for k in t if k.startswith(p))
        of = lambda name: np.stack([t[f"{p}{e}.{name}"] for e in range(n)])
        both = lambda kind: np.stack([of("gate_proj." + kind), of("up_proj." + kind)], 2 if alternate else 1).reshape(n, -1, *of("gate_proj." + kind).shape[2:])
        out[p + "gate_up_proj"], out[p + "down_proj"] = both("weight").transpose(0, 2, 1).copy(), of("down_proj.weight").transpose(0, 2, 1).copy()
        if p + "0.gate_proj.bias" in t:
            out[p + "gate_up_proj_bias"], out[p + "down_proj_bias"] = both("bias"), of("down_proj.bias")
    return out


def layer_of(name):
    """Of a module or tensor; -1: it is in none."""
    part = name.split(".layers.")
    return int(part[1].split(".")[0]) if len(part) > 1 else -1


def expert_of(name):
    """The same of a mixture's experts."""
    part = name.split(".experts.")
    return int(part[1].split(".")[0]) if len(part) > 1 else -1


def dequantized(d):
    """Our own dequantized weights of d, by name, as float32 arrays."""
    import numpy as np
    with tempfile.NamedTemporaryFile(suffix=".fts") as t:
        run("forge-weights", "--dequantize", d, stdout=t.name)
        return {f.name + (".weight" if f.role == "weight" else ""): np.array(f.array(), np.float32)
                for f in frames(t.name) if f.role in ("weight", "tensor")}


def logits(model, ids):
    return routed_logits(model, ids)[0]


def routed_logits(model, ids):
    """Logits [n, vocab], and each token's experts in all layers, [n, layers x top_k] sorted by layer; [n, 0] where there are none."""
    import torch
    chosen, hooks = [], []

    def note(module, args, out):  # a router: logits, weights, experts
        if isinstance(out, tuple) and len(out) == 3 and not out[2].is_floating_point():
            chosen.append(out[2].reshape(-1, out[2].shape[-1]).sort(-1).values)
    try:
        hooks += [m.register_forward_hook(note) for name, m in model.named_modules() if name.endswith(".gate")]
        with torch.inference_mode():
            x = model(input_ids=torch.as_tensor(ids).long().reshape(1, -1), use_cache=False).logits[0].float()
    finally:
        for h in hooks:
            h.remove()
    return x, torch.cat(chosen, -1) if chosen else torch.zeros(len(x), 0)
