#!/usr/bin/env python3
"""How long a run in parts (forge quantize --parts) takes on an ideal cluster, in which
each step is as fast as alone and none waits for a place, network or disk.

    cluster.py TARGET MODEL=WORK...

MODEL=WORK: a run with --parts 2 or more and --jobs 2 or more, whose steps are measured:
WORK/solve-*/stages.jsonl has the CPU seconds of each.  They are fitted, moments and shares
apart, by seconds = a + b operations + c bytes (least squares of relative errors, none
negative).  Operations and bytes of each step are those of `forge-plan --parts P`.  Runs
with --jobs 1 are compared with what the fit says of one pipe, where no step starts.

TARGET: a model directory (config.json is enough), quantized with the defaults.  Scaled from
the fit: its steps; 8 cores share a step's CPU seconds, but for a.  A GPU's: GPU_START
seconds for a step, GPU_TFLOPS; its bytes are the host's, as above.
"""
import functools
import itertools
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

TOKENS, SEQUENCES = 128 * 512, 128
CORES, GPUS = 8, 8
# The least seconds of a step on an H200 (a layer of Llama-7B's size in two parts), and
# operations of DeepSeek-V3's layers of 256 experts a second there when the table of
# forge-cluster(7) was made, 1.7 hours for all.  The 37 minutes of README, "What it takes", are 23.7.
GPU_START, GPU_TFLOPS = 1.7, 8.6


@functools.cache
def stops(model, parts):
    out = subprocess.run(["forge-plan", "--parts", str(parts), model], check=True, capture_output=True, text=True)
    return [json.loads(line) for line in out.stdout.splitlines()]


def hidden_size(model):
    config = json.loads((Path(model)/"config.json").read_text())
    return config.get("text_config", config)["hidden_size"]


def passed(all, i):
    """The stops whose modules a part runs on the way to stop i: a step begins at the last
    states, which in a mixture are those at mlp_in until the next layer."""
    s = all[i]
    here = [t for t in all if t["layer"] == s["layer"]]
    before = [t for t in all if t["layer"] == s["layer"] - 1]
    mixture = lambda layer: any(t["point"] == "experts" for t in layer)
    from_mlp = lambda layer: layer[[t["point"] for t in layer].index("mlp_in"):]
    at = here.index(s)
    if not at:
        return from_mlp(before) if mixture(before) else before[-1:]
    if s["point"] == "experts":
        return from_mlp(here)[:-1]
    if s["point"] == "mlp_mid" and mixture(here):  # gate and up of the shared expert alone
        return [s, s]
    return here[at - 1:at]


def moments_cost(all, i, parts, hidden):
    """Operations and bytes of a part's step."""
    s, way = all[i], passed(all, i)
    tokens = TOKENS / parts
    flops = tokens * (s["sums"] + sum(t["forward"] for t in way))
    states = tokens * 8 * 2 * hidden  # both streams, x and an activation, read and written
    return flops, sum(t["weights"] for t in way) + states + s["moments"] + s["rows"] / parts


def share_cost(s, parts):
    n = s["shares"]
    flops = s["factor"] + (s["solve"] + TOKENS * s["share_sums"]) / n
    return flops, s["moments"] * parts + (s["rows"] + s["weights"] / 2 + s["codes"]) / n


def steps(model, parts):
    """Of each stop: it, the cost of a part's step, the cost of a share's."""
    all, hidden = stops(model, parts), hidden_size(model)
    return [(s, moments_cost(all, i, parts, hidden), share_cost(s, parts)) for i, s in enumerate(all)]


def fit(rows):
    """[(flops, bytes, seconds)] -> (a, b, c) >= 0 with the least relative errors, and their root mean square."""
    flops, size, seconds = np.array(rows, dtype=float).T
    scale = np.array([1, 1e9, 1e9])
    x = np.stack([np.ones_like(flops), flops / scale[1], size / scale[2]], 1) / seconds[:, None]
    best = None
    for used in itertools.chain(*(itertools.combinations(range(3), n) for n in (3, 2, 1))):
        c = np.zeros(3)
        c[list(used)] = np.linalg.lstsq(x[:, used], np.ones(len(rows)), rcond=None)[0]
        error = math.sqrt(np.mean((x @ c - 1) ** 2))
        if c.min() >= 0 and (best is None or error < best[1]):
            best = c / scale, error
    return best


def measured(model, work):
    """Rows for fit() of moments and of shares; CPU seconds of a loop, or None."""
    lines = [json.loads(x) for p in Path(work).glob("solve-*/stages.jsonl") for x in p.read_text().splitlines()]
    parts = json.loads((Path(work)/"settings.json").read_text())["parts"]
    cost = {(s["layer"], s["point"]): (m, k) for s, m, k in steps(model, parts)}
    rows, loop = {"moments": [], "share": []}, None
    for x in lines:
        if x["stage"] in rows:
            rows[x["stage"]].append(cost[x["layer"], x["point"]][x["stage"] == "share"] + (x["cpu"],))
        if x["stage"] == "loop":
            loop = x["cpu"]
    return rows, loop


def pipe(model, rate):
    """Seconds of one pipe: its operations, and weights once."""
    def cost(s):
        m = TOKENS * (s["forward"] + s["sums"]), s["weights"]
        k = s["factor"] + s["solve"] + TOKENS * s["share_sums"], s["weights"] / 2
        return sum(rate[kind][1] * f + rate[kind][2] * n for kind, (f, n) in (("moments", m), ("share", k)))
    return sum(cost(s) for s in stops(model, 1))


def cluster(model, parts, seconds, rows=False):
    """Seconds of all stops, one after the other, on as many machines as parts: of parts, of
    shares.  rows: as if a module's rows could be solved apart."""
    total = [0.0, 0.0]
    for s, m, k in steps(model, parts):
        if rows and s["shares"] < parts:
            k = share_cost(s | {"shares": parts}, parts)
        total[0] += seconds("moments", *m)
        total[1] += seconds("share", *k)
    return total


def row(target, nodes, slots, name, seconds, one):
    """With the number of parts, a power of two, that takes least."""
    def least(rows):
        runs = [(cluster(target, p, seconds, rows), p) for p in (2 ** i for i in range(1, 8)) if p <= min(slots, SEQUENCES)]
        return min(runs + [([one, 0], 1)], key=lambda run: sum(run[0]))
    (parts, shares), p = least(False)
    apart = sum(least(True)[0])
    took = parts + shares
    return (f"{nodes:5} {name:>8} {p:6} {took / 3600:8.2f} {100 * shares / took:11.0f} % "
            f"{100 * one / took / slots:9.0f} % {100 * one / apart / slots:9.0f} %")


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    target, runs = sys.argv[1], [x.split("=", 1) for x in sys.argv[2:]]
    rows, loops = {"moments": [], "share": []}, []
    for model, work in runs:
        more, loop = measured(model, work)
        for kind in rows:
            rows[kind] += more[kind]
        if loop:
            loops.append((model, loop))
    rate = {}
    for kind in rows:
        rate[kind], error = fit(rows[kind])
        a, b, c = rate[kind]
        print(f"{kind}: {len(rows[kind])} steps measured: {a:.3f} s + {b * 1e9:.5f} s/GFLOP + {c * 1e9:.3f} s/GB of CPU; "
              f"relative error {error:.2f}")
    for model, loop in loops:
        print(f"one pipe of {os.path.basename(model.rstrip('/'))}: {loop:.1f} CPU s measured, {pipe(model, rate):.1f} by the fit")

    def on_cores(kind, flops, size):
        a, b, c = rate[kind]
        return a + (b * flops + c * size) / CORES

    def on_gpu(kind, flops, size):
        return GPU_START + flops / (GPU_TFLOPS * 1e12) + rate[kind][2] * size / CORES

    alone = pipe(target, rate) / CORES
    flops = sum(TOKENS * (s["forward"] + s["sums"] + s["share_sums"]) + s["factor"] + s["solve"] for s in stops(target, 1))
    gpu_alone = flops / (GPU_TFLOPS * 1e12)
    print(f"\n{'nodes':>5} {'of':>8} {'parts':>6} {'hours':>8} {'of it shares':>13} {'efficiency':>11} {'rows apart':>11}")
    for name, units, seconds, one in (("8 cores", 1, on_cores, alone), ("8 GPUs", GPUS, on_gpu, gpu_alone)):
        for nodes in (1, 4, 16, 64):
            print(row(target, nodes, nodes * units, name, seconds, one))


if __name__ == "__main__":
    main()
