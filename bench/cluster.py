#!/usr/bin/env python3
"""How long a run in parts (forge quantize --parts) takes on an ideal cluster, in which
each step is as fast as alone and none waits for a place, network or disk.

    cluster.py TARGET MODEL=WORK...

MODEL=WORK: a run with --parts 2 or more and --jobs 2 or more, whose steps are measured:
WORK/solve-*/stages.jsonl has the CPU seconds of each.  They are fitted, moments and shares
apart, by seconds = a + b operations + f moments' bytes (of shares: operations of factors)
+ c other bytes (least squares of relative errors, none negative).  Operations and bytes of each step are those of
`forge-plan --parts P`, which has a cluster's shares: runs on one machine want FORGE_STEP_COST=20.  Runs of several P, widths and numbers of tokens tell them apart.  Runs
with --jobs 1 are compared with what the fit says of one pipe, where no step starts.

TARGET: a model directory (config.json is enough), quantized with the defaults; SEQUENCES and
SEQLEN in the environment: other tokens than 128 x 512; NODES: other numbers of nodes than
"1 4 16 64"; WHOLE=1: linears are whole on cores, too.  Scaled from the fit: its steps; 8
cores share a step's CPU seconds, but for a.  A GPU's: GPU_START seconds for a step,
GPU_TFLOPS; its bytes are the host's, as above, and linears are whole.
"""
import collections
import functools
import itertools
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

SEQUENCES, SEQLEN = int(os.environ.get("SEQUENCES", 128)), int(os.environ.get("SEQLEN", 512))
NODES = [int(n) for n in os.environ.get("NODES", "1 4 16 64").split()]
WHOLE = os.environ.get("WHOLE") == "1"
PLANNED = 128 * 512  # the tokens of forge-plan's bytes of rows
CORES, GPUS = 8, 8
# The least seconds of a step on an H200 (a layer of Llama-7B's size in two parts), and
# operations of DeepSeek-V3's layers of 256 experts a second there: the 37 minutes of README,
# "What it takes".
GPU_START, GPU_TFLOPS = 1.7, 23.7


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


def moments_cost(all, i, parts, hidden, tokens):
    """Operations, bytes of moments, and other bytes of a part's step."""
    s, way = all[i], passed(all, i)
    tokens /= parts
    flops = tokens * (s["sums"] + sum(t["forward"] for t in way))
    states = tokens * 8 * 2 * hidden  # both streams, x and an activation, read and written
    return flops, s["moments"], sum(t["weights"] for t in way) + states + s["rows"] * tokens / PLANNED


def share_cost(s, parts, tokens, whole=False):
    """Operations, those of factors, and bytes of the share that has most.  whole: linears
    are not divided."""
    spread, n = s["spread"], s["shares"]
    if whole:
        spread, n = min(s["modules"], parts), min(s["modules"] + s["experts"], parts)
    flops = 0
    if s["modules"]:
        most = math.ceil(s["modules"] / spread) / s["modules"] if whole else 1 / spread
        flops += most * s["solve_modules"]
    if s["experts"]:
        most = math.ceil(s["experts"] / n) / s["experts"]
        flops += most * (s["solve"] - s["solve_modules"] + tokens * s["share_sums"])
    factor = s["factor"] if s["modules"] else 0
    own = s["rows"] * tokens / PLANNED + s["weights"] / 2 + s["codes"]
    return flops, factor, s["moments"] * parts + own / n


def steps(model, parts, tokens, whole=False):
    """Of each stop: it, the cost of a part's step, the cost of a share's."""
    all, hidden = stops(model, parts), hidden_size(model)
    return [(s, moments_cost(all, i, parts, hidden, tokens), share_cost(s, parts, tokens, whole)) for i, s in enumerate(all)]


def fit(rows):
    """[(flops, moments or factor, bytes, seconds)] -> (a, b, f, c) >= 0 with the least relative errors, and their root
    mean square."""
    flops, factor, size, seconds = np.array(rows, dtype=float).T
    scale = np.array([1, 1e9, 1e9, 1e9])
    x = np.stack([np.ones_like(flops), flops, factor, size], 1) / scale / seconds[:, None]
    best = None
    for used in itertools.chain(*(itertools.combinations(range(4), n) for n in (4, 3, 2, 1))):
        c = np.zeros(4)
        c[list(used)] = np.linalg.lstsq(x[:, used], np.ones(len(rows)), rcond=None)[0]
        error = math.sqrt(np.mean((x @ c - 1) ** 2))
        if c.min() >= 0 and (best is None or error < best[1]):
            best = c / scale, error
    return best


def measured(model, work):
    """Rows for fit() of moments and of shares; CPU seconds of a loop, or None."""
    lines = [json.loads(x) for p in Path(work).glob("solve-*/stages.jsonl") for x in p.read_text().splitlines()]
    job = json.loads((Path(work)/"settings.json").read_text())
    all = steps(model, job["parts"], job["sequences"] * job["seqlen"])
    cost = {(s["layer"], s["point"]): (m, k) for s, m, k in all}
    rows, loop = {"moments": [], "share": []}, None
    shares = {(s["layer"], s["point"]): s["shares"] for s, _, _ in all}
    ran = collections.Counter((x["layer"], x["point"]) for x in lines if x["stage"] == "share")
    for stop, n in ran.items():
        if n != shares[stop]:
            sys.exit(f"cluster.py: '{work}': {n} shares at {stop[0]}-{stop[1]}, where forge-plan has {shares[stop]}: "
                     "want a new run, with FORGE_STEP_COST=20")
    for x in lines:
        if x["stage"] in rows:
            rows[x["stage"]].append(cost[x["layer"], x["point"]][x["stage"] == "share"] + (x["cpu"],))
        if x["stage"] == "loop":
            loop = x["cpu"]
    return rows, loop and (loop, job["sequences"] * job["seqlen"])


def pipe(model, rate, tokens):
    """Seconds of one pipe: its operations, moments and weights once."""
    def cost(s):
        m = tokens * (s["forward"] + s["sums"]), s["moments"], s["weights"]
        k = s["solve"] + tokens * s["share_sums"], s["factor"], s["weights"] / 2
        return sum(np.dot(rate[kind][1:], x) for kind, x in (("moments", m), ("share", k)))
    return sum(cost(s) for s in stops(model, 1))


def cluster(model, parts, seconds, tokens, whole):
    """Seconds of all stops, one after the other, on as many machines as parts: of parts, of
    shares."""
    all = steps(model, parts, tokens, whole)
    return sum(seconds("moments", *m) for _, m, _ in all), sum(seconds("share", *k) for _, _, k in all)


def row(target, nodes, slots, name, seconds, one, whole):
    """With the number of parts, a power of two, that takes least."""
    runs = [(cluster(target, p, seconds, SEQUENCES * SEQLEN, whole), p)
            for p in (2 ** i for i in range(1, 8)) if p <= min(slots, SEQUENCES)]
    (parts, shares), p = min(runs + [((one, 0), 1)], key=lambda run: sum(run[0]))
    took = parts + shares
    return f"{nodes:5} {name:>8} {p:6} {took / 3600:8.2f} {100 * shares / took:11.0f} % {100 * one / took / slots:9.0f} %"


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
            loops.append((model, *loop))
    rate = {}
    for kind in rows:
        rate[kind], error = fit(rows[kind])
        a, b, f, c = rate[kind]
        factors = f"{f * 1e9:.5f} s/GFLOP of factors" if kind == "share" else f"{f * 1e9:.3f} s/GB of moments"
        print(f"{kind}: {len(rows[kind])} steps measured: {a:.3f} s + {b * 1e9:.5f} s/GFLOP + {factors} + {c * 1e9:.3f} "
              f"s/GB of CPU; relative error {error:.2f}")
    for model, loop, tokens in loops:
        print(f"one pipe of {os.path.basename(model.rstrip('/'))}: {loop:.1f} CPU s measured, "
              f"{pipe(model, rate, tokens):.1f} by the fit")

    def on_cores(kind, *cost):
        return rate[kind][0] + np.dot(rate[kind][1:], cost) / CORES

    def on_gpu(kind, flops, other, size):
        flops += other if kind == "share" else 0
        size = rate[kind][3] * size + (rate[kind][2] * other if kind == "moments" else 0)
        return GPU_START + flops / (GPU_TFLOPS * 1e12) + size / CORES

    tokens = SEQUENCES * SEQLEN
    alone = pipe(target, rate, tokens) / CORES
    flops = sum(tokens * (s["forward"] + s["sums"] + s["share_sums"]) + s["factor"] + s["solve"] for s in stops(target, 1))
    gpu_alone = flops / (GPU_TFLOPS * 1e12)
    print(f"\n{'nodes':>5} {'of':>8} {'parts':>6} {'hours':>8} {'of it shares':>13} {'efficiency':>11}")
    for name, units, seconds, one in (("8 cores", 1, on_cores, alone), ("8 GPUs", GPUS, on_gpu, gpu_alone)):
        for nodes in NODES:
            print(row(target, nodes, nodes * units, name, seconds, one, WHOLE or units > 1))


if __name__ == "__main__":
    main()
