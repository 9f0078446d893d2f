#!/usr/bin/env python3
"""Other programs' quantizations of a model, from token ids: what they make is kept until one of its causes changes.

    peers.py NAME MODEL IDS OUT GROUP    make one; IDS: .npy of int32 [sequences, length], or a tokens stream

prints {"seconds": load to save, "peak_bytes": largest resident set}, of llama.cpp {"bits": for each weight of the linears, "types":
{type: linears}}, too; imports are not counted as time.  PEER_DEVICE=cuda:0 in the environment: on that GPU.
A NAME is a package and what differs from its default, W4 with groups of GROUP inputs in all: see NAMES.
"""
import hashlib
import inspect
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

DISTRIBUTION = dict(gptqmodel="gptqmodel", llmcompressor="llmcompressor", autoround="auto-round", llamacpp="llama-cpp-python")
# mse: GPTQModel's search of L^2.4; an observer of llm-compressor (its default is minmax); both are symmetric by default
NAMES = ["gptqmodel", "gptqmodel-mse", "gptqmodel-asym", "gptqmodel-mse-asym",
         "llmcompressor", "llmcompressor-mse", "llmcompressor-imatrix_mse",
         "llmcompressor-asym", "llmcompressor-mse-asym", "llmcompressor-imatrix_mse-asym"]
# 200 steps of a backward pass for each layer, best: 1,000 as its recipe of that name: by name alone
SLOW = ["autoround", "autoround-asym", "autoround-best", "autoround-best-asym"]
# llama.cpp's file types, of dense models, and with weights by the inputs' mean squares; by name alone: they have bits of their own
MIXED = ["llamacpp-q4_k_m", "llamacpp-q4_k_m-imatrix"]
DEVICE = os.environ.get("PEER_DEVICE", "cpu")


# ---- making one, in a process of its own: they change torch for good ----

def make_gptqmodel(model, out, ids, how, group):
    from gptqmodel import GPTQConfig, GPTQModel
    # asymmetric: v1 stores zeros less one, which some loaders take otherwise
    c = dict(sym=False, format="gptq_v2") if "asym" in how else {}
    if "mse" in how:
        c["mse"] = 2.4
    data = [dict(input_ids=r.tolist(), attention_mask=[1] * len(r)) for r in ids]
    start = time.time()
    m = GPTQModel.load(model, GPTQConfig(bits=4, group_size=group, offload_to_disk=False, **c), device=DEVICE)
    m.quantize(data, batch_size=1, calibration_data_min_length=1)
    m.save(out)
    return time.time() - start


def make_llmcompressor(model, out, ids, how, group):
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from datasets import Dataset
    from llmcompressor import oneshot
    from llmcompressor.modifiers.quantization import GPTQModifier
    from transformers import AutoModelForCausalLM
    observer = ([h for h in how if h != "asym"] or ["minmax"])[0]
    args = QuantizationArgs(num_bits=4, type="int", symmetric="asym" not in how, strategy="group", group_size=group, observer=observer)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    data = Dataset.from_dict(dict(input_ids=[r.tolist() for r in ids], attention_mask=[[1] * len(r) for r in ids]))
    start = time.time()
    m = AutoModelForCausalLM.from_pretrained(model, dtype="auto")
    oneshot(model=m, recipe=GPTQModifier(ignore=["lm_head", "re:.*mlp.gate$"], config_groups=dict(group_0=scheme)), dataset=data,
            tokenizer=model, max_seq_length=ids.shape[1], num_calibration_samples=len(ids), shuffle_calibration_samples=False)
    m.save_pretrained(out, save_compressed=True)
    return time.time() - start


def make_autoround(model, out, ids, how, group):
    import torch
    from auto_round import AutoRound
    from transformers import AutoModelForCausalLM, AutoTokenizer
    start = time.time()
    m = AutoModelForCausalLM.from_pretrained(model, dtype="auto")
    AutoRound(m, AutoTokenizer.from_pretrained(model), scheme="W4A16", bits=4, group_size=group, sym="asym" not in how,
              iters=1000 if "best" in how else 200, dataset=[torch.from_numpy(r.astype("int64"))[None] for r in ids], seqlen=ids.shape[1], nsamples=len(ids),
              device_map=DEVICE, enable_torch_compile=False).quantize_and_save(out, format="auto_gptq")
    seconds = time.time() - start
    for config in list(Path(out).glob("*/config.json")):  # it may write into a folder of its own
        for f in config.parent.iterdir():
            f.rename(Path(out) / f.name)
    return seconds


def mean_squares(m, ids):
    """Of the inputs of the linears of layers, by their names in a GGUF file."""
    import torch
    names = dict(q_proj="attn_q", k_proj="attn_k", v_proj="attn_v", o_proj="attn_output", gate_proj="ffn_gate", up_proj="ffn_up",
                 down_proj="ffn_down")
    sums = {}
    for name, x in m.named_modules():
        parts = name.split(".")
        if isinstance(x, torch.nn.Linear) and "layers" in parts:
            key = "blk.%s.%s.weight" % (parts[parts.index("layers") + 1], names[parts[-1]])
            sums[key] = 0
            x.register_forward_pre_hook(lambda _, a, key=key: sums.update({key: sums[key] + a[0].double().pow(2).sum((0, 1))}))
    with torch.no_grad():
        for row in ids:
            m.model(torch.from_numpy(row.astype("int64"))[None])
    return {k: (v / ids.size).float().numpy() for k, v in sums.items()}


def make_llamacpp(model, out, ids, how, group):
    """llama.cpp's quantization of the linears of layers, as a checkpoint with the values of its blocks; embedding and head
    stay as they are."""
    import ctypes
    import gguf
    import torch
    from llama_cpp import llama_cpp as lib
    from transformers import AutoModelForCausalLM
    load = lambda *a, **k: AutoModelForCausalLM.from_pretrained(*a, dtype=torch.float32, **k)
    plain, mixed = ("%s.%s.gguf" % (out, x) for x in ("bf16", how[0]))
    subprocess.run(["forge-gguf", "-q", model, plain], check=True)
    m, p = load(model), lib.llama_model_quantize_default_params()
    start = time.time()
    p.ftype = getattr(lib, "LLAMA_FTYPE_MOSTLY_" + how[0].upper())
    p.token_embedding_type = p.output_tensor_type = gguf.GGMLQuantizationType.BF16
    if "imatrix" in how:
        squares = mean_squares(m, ids)
        data = (lib.llama_model_imatrix_data * (len(squares) + 1))()  # the last has no name
        for d, (k, v) in zip(data, squares.items()):
            d.name, d.data, d.size = k.encode(), v.ctypes.data_as(ctypes.POINTER(ctypes.c_float)), v.size
        p.imatrix = data
    if lib.llama_model_quantize(plain.encode(), mixed.encode(), p):
        sys.exit("llama_model_quantize failed")
    seconds = time.time() - start
    m.load_state_dict(load(os.path.dirname(mixed), gguf_file=os.path.basename(mixed)).state_dict())
    m.save_pretrained(out)
    linears = [t for t in gguf.GGUFReader(mixed).tensors if t.name.startswith("blk.") and len(t.shape) > 1]
    types = [t.tensor_type.name for t in linears]
    return dict(seconds=seconds, bits=float(8 * sum(t.n_bytes for t in linears) / sum(t.n_elements for t in linears)),
                types={k: types.count(k) for k in sorted(set(types))})


def read_ids(path):
    import numpy as np
    if path.endswith(".npy"):
        return np.load(path)
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "reference"))
    import fts
    with open(path, "rb") as f:
        return np.stack([t.array() for t in fts.read(f) if t.role == "tokens"])


def make(name, model, ids, out, group):
    """Prints what it cost; what the libraries print goes to stderr."""
    threads = len(os.sched_getaffinity(0))
    os.environ.update(OMP_NUM_THREADS=str(threads), TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1",
                      HF_HUB_DISABLE_PROGRESS_BARS="1", GPTQMODEL_CPU_WORKERS=str(max(2, threads)))
    if DEVICE == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    stdout = os.dup(1)
    os.dup2(2, 1)
    model, ids, out = map(os.path.abspath, (model, ids, out))
    os.chdir(os.path.dirname(out))  # they leave logs where they run
    import torch
    torch.set_num_threads(threads)
    package, *how = name.split("-")
    cost = globals()["make_" + package](model, out, read_ids(ids), how, int(group))
    if not isinstance(cost, dict):
        cost = dict(seconds=cost)
    with open("/proc/self/status") as f:
        peak = next(int(line.split()[1]) * 1024 for line in f if line.startswith("VmHWM"))
    os.write(stdout, json.dumps(dict(cost, seconds=round(cost["seconds"], 2), peak_bytes=peak)).encode() + b"\n")


# ---- keeping them ----

def versions(python):
    """Of the packages that are there, by the first part of a name; the program needs nothing but the standard library."""
    code = ("import json, sys\nfrom importlib import metadata\nr = {}\nfor k, v in json.loads(sys.argv[1]).items():\n"
            "    try: r[k] = metadata.version(v)\n    except metadata.PackageNotFoundError: pass\nprint(json.dumps(r))")
    return json.loads(subprocess.run([python, "-c", code, json.dumps(DISTRIBUTION)], check=True, stdout=subprocess.PIPE).stdout)


def digest(*parts):
    """Of texts, and of files by content, directories' files included."""
    h = hashlib.sha256()
    for p in parts:
        files = [] if not isinstance(p, Path) else sorted(f for f in p.iterdir() if f.is_file()) if p.is_dir() else [p]
        h.update(b"\0%d\0" % len(files) + (str(p).encode() if not files else b""))
        for f in files:
            with open(f, "rb") as r:
                h.update(hashlib.file_digest(r, "sha256").digest())
    return h.hexdigest()[:16]


def kept(python, name, model, ids, work, version, group=128):
    """-> (directory, what it cost): made now, unless WORK has it of the same model, ids, package version,
    group and way of making."""
    way = inspect.getsource(globals()["make_" + name.split("-")[0]])
    key = digest(name, version, str(group), way, Path(model), Path(ids))
    out = Path(work) / f"{name}-{Path(model).name}-{key}"
    if not (out / "cost.json").exists():
        shutil.rmtree(out, ignore_errors=True)
        new = out.with_name(out.name + ".tmp")
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(parents=True)
        with open(f"{out}.log", "wb") as log:
            r = subprocess.run([python, __file__, name, str(model), str(ids), str(new / "out"),
                                str(group)], stdout=subprocess.PIPE, stderr=log)
        if r.returncode or not (new / "out/config.json").exists():
            raise RuntimeError(f"{name}: exit {r.returncode}: see {out}.log")
        (new / "out/cost.json").write_bytes(r.stdout)
        (new / "out").rename(out)
        shutil.rmtree(new)
    return out, json.loads((out / "cost.json").read_text())


if __name__ == "__main__":
    make(*sys.argv[1:])
