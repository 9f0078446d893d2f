#!/usr/bin/env python3
"""Files of forge-gguf in llama.cpp itself: its tokenizer gives our ids, and its
perplexity is ours, on the same tokens.  Not a part of make interop: llama.cpp has
to be compiled.

    python3 -m venv v && v/bin/pip install llama-cpp-python numpy xxhash
    v/bin/python tests/interop/llamacpp.py MODEL TEXT      exit 1: something differs

Of the model as it is, and in 4 bits, symmetric and not; dense or a mixture.
Weights stay as they lie in the file: the buffers into which llama.cpp sorts them
for AMX crash where the kernel has not allowed it.  llama.cpp rounds the
activations of 4-bit products to 8 bits, and those of bf16 ones to bf16, so
perplexities agree to what that costs: 1 and 0.2 %."""
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
from llama_cpp import Llama, llama_cpp

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "reference"))
import fts  # noqa: E402

SEQUENCES, LENGTH = 8, 256


def as_stored(default=llama_cpp.llama_model_default_params):
    p = default()
    p.use_extra_bufts = False
    return p


llama_cpp.llama_model_default_params = as_stored


def run(command):
    return subprocess.run(command, shell=True, check=True, stdout=subprocess.PIPE, text=True).stdout


def perplexity(m, sequences):
    """exp of the mean of -log p of each token but the first, as forge-eval."""
    loss, n = 0.0, 0
    for ids in sequences:
        m.reset()
        m.eval(ids)
        x = np.array(m.scores[:len(ids) - 1], np.float64)
        x -= x.max(1, keepdims=True)
        loss += float((np.log(np.exp(x).sum(1)) - x[np.arange(len(ids) - 1), ids[1:]]).sum())
        n += len(ids) - 1
    return np.exp(loss / n)


def check(name, path, ours, sequences, text, ids, most):
    m = Llama(str(path), n_ctx=LENGTH + 8, logits_all=True, verbose=False)
    theirs = m.tokenize(text.encode(), add_bos=True, special=False)
    assert theirs == ids, f"{name}: tokens differ: {theirs[:20]} and {ids[:20]}"
    ppl = perplexity(m, sequences)
    print(f"{name}: {len(ids)} tokens equal; perplexity {ppl:.4f} in llama.cpp, {ours:.4f} here "
          f"({100 * (ppl / ours - 1):+.2f} %)")
    assert abs(ppl / ours - 1) < most, name


def main():
    model, text = sys.argv[1:3]
    with tempfile.TemporaryDirectory() as d:
        d = pathlib.Path(d)
        run(f"forge-tokens -q -n {SEQUENCES} -t {LENGTH} {model} {text} -o {d}/t.fts")
        with open(d / "t.fts", "rb") as f:
            sequences = [t.array().tolist() for t in fts.read(f) if t.role == "tokens"]
        with open(text) as f:
            sample = f.read()[:4000]
        (d / "sample").write_text(sample)
        ids = [int(x) for x in run(f"forge-tokens -q --ids {model} {d}/sample").split()]
        run(f"forge-gguf -q {model} {d}/plain.gguf")
        for kind in ("", "--asymmetric"):
            q = d / f"q{kind}"
            run(f"forge-weights -q {model} | forge-grid -q --group 32 {kind} | forge-solve -q | forge-pack -q | "
                f"forge-shard -q --from {model} {q} && forge repack -q {q} {q}.gguf --layout gguf")
            report = json.loads(run(f"forge-eval -q --json {model} {q} {d}/t.fts"))
            if not kind:
                check("plain", d / "plain.gguf", report["ppl_original"], sequences, sample, ids, 0.002)
            check("Q4_1" if kind else "Q4_0", f"{q}.gguf", report["ppl"], sequences, sample, ids, 0.01)


if __name__ == "__main__":
    main()
