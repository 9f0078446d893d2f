#!/usr/bin/env python3
"""forge repack --layout gguf in the gguf package of llama.cpp: it opens the file,
its dequantization gives the weights of the checkpoint, its own quantization our
Q8_0, and every tensor has a name that it knows for the architecture.

    gguf_check.py MODEL...       exit 1 and a reason when something differs

Also of small mixtures of four families, which tests/reference/moe.py makes.

Needs gguf (scripts/setup --venv)."""
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
from gguf import GGMLQuantizationType as T
from gguf import MODEL_ARCH_NAMES, MODEL_TENSORS, TENSOR_NAMES, GGUFReader, quants

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "reference"))
import actorder  # noqa: E402
import ggufs  # noqa: E402
import moe  # noqa: E402


def text(reader, key):
    return bytes(reader.fields[key].parts[-1]).decode()


def check_names(reader):
    arch = {v: k for k, v in MODEL_ARCH_NAMES.items()}[text(reader, "general.architecture")]
    known = {TENSOR_NAMES[t] for t in MODEL_TENSORS[arch]}
    for t in reader.tensors:
        p = t.name.split(".")
        name = ".".join(["blk", "{bid}"] + p[2:-1]) if p[0] == "blk" else ".".join(p[:-1])
        assert name in known, t.name


def check(model, d, asym):
    src, out = d / f"{model.name}-{asym}", d / f"{model.name}-{asym}.gguf"
    subprocess.run(f"forge-weights -q {model} | forge-grid -q --group 32 {asym} | forge-solve -q | forge-pack -q | "
                   f"forge-shard -q --from {model} {src}", shell=True, check=True)
    subprocess.run(["forge", "repack", "-q", src, out, "--layout", "gguf"], check=True)
    reader = GGUFReader(out)
    check_names(reader)
    recipe = reader.fields["forge.recipe"].contents()
    assert [s.split()[0] for s in recipe] == ["forge-weights", "forge-grid", "forge-solve", "forge-pack", "forge-gguf"]
    assert reader.fields["forge.group_size"].contents() == 32 and text(reader, "forge.version") in text(
        reader, "general.quantized_by")
    assert reader.fields["general.base_model.0.name"].contents() == model.name
    tensors = {t.name: t for t in reader.tensors}
    with open(src / "config.json") as f:
        c = json.load(f)
    n = 0
    for m, q, s, z in actorder.modules(src):
        name = ggufs.ours(m + ".weight")
        t = tensors[name]
        assert t.tensor_type == (T.Q4_1 if asym else T.Q4_0), name
        got = quants.dequantize(t.data, t.tensor_type)
        heads = ggufs.heads_of(name.split(".")[2], c)
        if asym:  # the minimum is F16
            w = q * s.astype("f4") + (-z * s.astype("f4")).astype("f2").astype("f4")
        else:
            w = (q - 8) * s.astype("f4")
        assert np.array_equal(got, ggufs.turn(w, heads) if heads else w), name
        n += 1
    rest = d / f"{model.name}-q8{asym}.gguf"
    subprocess.run(["forge-gguf", "-q", "--rest", "q8_0", model, rest], check=True)
    for t in GGUFReader(rest).tensors:
        if t.tensor_type != T.Q8_0:
            continue
        name = next(k for k in actorder.load(model) if k.endswith(".weight") and ggufs.ours(k) == t.name) \
            if not (model / "model.safetensors.index.json").exists() else None
        if name:
            w = (actorder.load(model)[name].astype("u4") << 16).view("f4")
            heads = ggufs.heads_of(t.name.split(".")[-2], c)
            w = ggufs.turn(w, heads) if heads else w
            assert np.array_equal(t.data, quants.quantize(w, T.Q8_0)), t.name
    print("ok", model.name, asym or "symmetric", n, "linears")


def check_mixture(family, d, asym):
    m, src, out = d / family, d / f"{family}-4{asym}", d / f"{family}{asym}.gguf"
    if not m.exists():
        moe.make(family, "plain", str(m))
    subprocess.run(f"forge-weights -q {m} | forge-grid -q --group 32 {asym} | forge-solve -q | forge-pack -q | "
                   f"forge-shard -q --from {m} {src}", shell=True, check=True)
    subprocess.run(["forge-gguf", "-q", src, out], check=True)
    with open(m / "config.json") as f:
        c = json.load(f)
    reader, want = GGUFReader(out), {}
    check_names(reader)
    for name, q, s, z in actorder.modules(src):
        s = s.astype("f4")
        ggufs.put(want, name + ".weight", q * s + (-z * s).astype("f2").astype("f4") if asym else (q - 8) * s, c)
    tensors = {t.name: t for t in reader.tensors}
    for name, w in want.items():
        if isinstance(w, dict):
            w = np.stack([w[i] for i in range(len(w))])
        t = tensors[name]
        assert np.array_equal(quants.dequantize(t.data, t.tensor_type), w), name
    print("ok", family, asym or "symmetric", len(want), "tensors in 4 bits")


def main():
    with tempfile.TemporaryDirectory() as d:
        for family in ("mixtral", "qwen2_moe-all", "qwen3_moe-all", "deepseek_v3"):
            for asym in ("", "--asymmetric"):
                check_mixture(family, pathlib.Path(d), asym)
        for model in sys.argv[1:]:
            for asym in ("", "--asymmetric"):
                check(pathlib.Path(model), pathlib.Path(d), asym)


if __name__ == "__main__":
    main()
