#!/usr/bin/env python3
"""How long a run in parts (forge quantize --parts) takes on an ideal cluster, in which
each step is as fast as measured alone and none waits for a place, network or disk.

    cluster.py TARGET MODEL=WORK...

MODEL=WORK: a run with --parts 2 or more whose steps ran one after the other on the cores
of a node; WORK/solve-*/stages.jsonl has the seconds of each.  On 8 cores:

    FORGE_RETRIES=0 FORGE_STEP_COST=20 taskset -c 0-7 forge quantize MODEL OUT --work WORK
        --threads 8 --device cpu --parts P --text TEXT

FORGE_RETRIES: in steps, not in one pipe; FORGE_STEP_COST: a cluster's shares.

Seconds of moments are fitted by a constant, operations, operations of attention, bytes
written (moments, experts' rows, states), and bytes of weights; those of shares by a
constant, operations, operations of factors, and bytes: by least squares of relative errors,
each weighed by its seconds, with no coefficient below zero.  Operations and bytes are those
of `forge-plan --parts P`, but for attention's.  Runs of several P, widths and numbers of
tokens, and a mixture of experts, tell the coefficients apart.

One node is one pipe, by the fit less its constants.  A pipe's tools work side by side, so it
is faster than that: runs in one pipe (without FORGE_RETRIES) show by how much, and
efficiency is as much lower.

TARGET: a model directory (config.json is enough), quantized with the defaults; its steps are
scaled from the fit.  In the environment:

    SEQUENCES, SEQLEN  other tokens than 128 x 512
    NODES              other numbers of nodes than "1 4 16 64"
    WHOLE=1            linears are whole on cores, too
    STOPS=N            seconds of the stops of layer N, with as many parts as the most nodes

A GPU's steps: GPU_START seconds, operations at GPU_TFLOPS, and bytes at the host's rates,
the loading of weights among them, which GPU_TFLOPS of one pipe has in it; linears are whole.
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
STOPS = os.environ.get("STOPS")
WHOLE = os.environ.get("WHOLE") == "1"
PLANNED = 128 * 512  # the tokens of forge-plan's bytes of rows
GPUS = 8
# The least seconds of a step on an H200 (a layer of Llama-7B's size in two parts), and
# operations of DeepSeek-V3's layers of 256 experts a second there: the 37 minutes of README,
# "What it takes".
GPU_START, GPU_TFLOPS = 1.7, 23.7
COLUMNS = {"moments": ["GFLOP", "GFLOP of attention", "GB written", "GB of weights"],
           "share": ["GFLOP", "GFLOP of factors", "GB"]}


@functools.cache
def stops(model, parts):
    out = subprocess.run(["forge-plan", "--parts", str(parts), model], check=True, capture_output=True, text=True)
    return [json.loads(line) for line in out.stdout.splitlines()]


def hidden_size(model):
    config = json.loads((Path(model)/"config.json").read_text())
    return config.get("text_config", config)["hidden_size"]


def linears(stops):
    """Operations of a token and bytes of weights of these stops' linears that are no
    experts'."""
    return np.array([sum(t["forward"] - t["expert_forward"] for t in stops),
                     sum(t["weights"] - t["expert_weights"] for t in stops)])


def experts(stop, passes):
    """The same of passes over a stop's experts.  There are three: of the quantized model, of
    the checkpoint's weights over that model's routing, and of the reference stream.
    expert_forward counts all, expert_weights two."""
    return np.array([passes / 3 * stop["expert_forward"], passes / 2 * stop["expert_weights"]])


def on_the_way(all, i):
    """Operations of a token and bytes of weights that a part's step runs to stop i.  It
    begins at the last states, which in a mixture are those at mlp_in until the next layer."""
    s = all[i]
    here = [t for t in all if t["layer"] == s["layer"]]
    before = [t for t in all if t["layer"] == s["layer"] - 1]
    at = here.index(s)
    point = lambda layer, name: next((t for t in layer if t["point"] == name), None)
    if not at:
        if not point(before, "experts"):
            return linears(before[-1:])
        first = before.index(point(before, "mlp_in"))
        return linears(before[first:]) + sum(experts(t, 2) for t in before[first:])
    if s["point"] == "experts":  # gate and up of the model, all of the checkpoint's
        mlp_in = point(here, "mlp_in")
        return linears(here[here.index(mlp_in):]) + experts(mlp_in, 2) + experts(s, 1)
    return linears(here[at - 1:at])


def attention(model):
    """Operations of a token's attention in both streams, for each token of its sequence."""
    c = json.loads((Path(model)/"config.json").read_text())
    c = c.get("text_config", c)
    heads = c["num_attention_heads"]
    key = c.get("qk_nope_head_dim", 0) + c.get("qk_rope_head_dim", 0)
    key = key or c.get("head_dim") or c["hidden_size"] // heads
    return 2 * heads * (key + c.get("v_head_dim", key))  # half of the pairs: causal


def moments_cost(all, i, parts, hidden, pairs, tokens):
    """Operations, those of attention, bytes written, and those of weights of a part's step."""
    s, (forward, weights) = all[i], on_the_way(all, i)
    tokens /= parts
    states = tokens * 8 * 2 * hidden  # both streams, x and an activation, read and written
    return (tokens * (s["sums"] + forward), tokens * pairs * (s["point"] == "attn_out"),
            s["moments"] + states + s["rows"] * tokens / PLANNED, weights)


def share_cost(s, parts, tokens, whole=False):
    """Operations, those of factors, and bytes of the share that has most.  whole: linears
    are not divided."""
    spread, n = s["spread"], s["shares"]
    if whole:
        spread, n = min(s["modules"], parts), min(s["modules"] + s["experts"], parts)
    flops = 0
    factor = s["factor"] if s["modules"] else 0
    if s["modules"]:
        units = s["modules"] if whole else s["units"]
        flops += math.ceil(units / spread) / units * s["solve_modules"]
    if s["experts"]:
        most = math.ceil(s["experts"] / n) / s["experts"]
        flops += most * (s["solve"] - s["solve_modules"] - s["expert_factors"] + tokens * s["share_sums"])
        factor += most * s["expert_factors"]
    own = s["rows"] * tokens / PLANNED + s["weights"] / 2 + s["codes"]
    return flops, factor, s["moments"] * parts + own / n


def steps(model, parts, tokens, seqlen, whole=False):
    """Of each stop: it, the cost of a part's step, the cost of a share's."""
    all, hidden, pairs = stops(model, parts), hidden_size(model), seqlen * attention(model)
    return [(s, moments_cost(all, i, parts, hidden, pairs, tokens), share_cost(s, parts, tokens, whole))
            for i, s in enumerate(all)]


def fit(rows):
    """[(..., seconds)] -> rates >= 0 of 1 and the other columns with the least relative errors,
    each weighed by its seconds, and their root mean square."""
    *columns, seconds = np.array(rows, dtype=float).T
    scale = np.array([1] + [1e9] * len(columns))
    weight = np.sqrt(seconds)
    x = np.stack([np.ones_like(seconds), *columns], 1) / scale / seconds[:, None] * weight[:, None]
    best, n = None, len(scale)
    for used in itertools.chain(*(itertools.combinations(range(n), k) for k in range(n, 0, -1))):
        c = np.zeros(n)
        c[list(used)] = np.linalg.lstsq(x[:, used], weight, rcond=None)[0]
        error = math.sqrt(np.sum((x @ c - weight) ** 2) / np.sum(seconds))
        if c.min() >= 0 and (best is None or error < best[1]):
            best = c / scale, error
    return best


def measured(model, work):
    """Rows for fit() of moments and of shares; seconds of a loop, or None."""
    lines = [json.loads(x) for p in Path(work).glob("solve-*/stages.jsonl") for x in p.read_text().splitlines()]
    job = json.loads((Path(work)/"settings.json").read_text())
    all = steps(model, job["parts"], job["sequences"] * job["seqlen"], job["seqlen"])
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
            rows[x["stage"]].append(cost[x["layer"], x["point"]][x["stage"] == "share"] + (x["seconds"],))
        if x["stage"] == "loop":
            loop = x["seconds"]
    return rows, loop and (loop, job["sequences"] * job["seqlen"], job["seqlen"])


def pipe(model, rate, tokens, seqlen):
    """Seconds of one pipe: its operations, moments and weights once."""
    pairs = seqlen * attention(model)

    def cost(s):
        _, weights = linears([s]) + experts(s, 3)
        m = tokens * (s["forward"] + s["sums"]), tokens * pairs * (s["point"] == "attn_out"), s["moments"], weights
        solve = s["solve"] - s["expert_factors"] + tokens * s["share_sums"]
        k = solve, s["factor"] + s["expert_factors"], s["weights"] / 2
        return sum(np.dot(rate[kind][1:], x) for kind, x in (("moments", m), ("share", k)))
    return sum(cost(s) for s in stops(model, 1))


def cluster(model, parts, seconds, tokens, whole):
    """Seconds of all stops, one after the other, on as many machines as parts: of parts, of
    shares."""
    all = steps(model, parts, tokens, SEQLEN, whole)
    return sum(seconds("moments", *m) for _, m, _ in all), sum(seconds("share", *k) for _, _, k in all)


def print_stops(target, parts, seconds, tokens):
    for s, m, k in steps(target, parts, tokens, SEQLEN, WHOLE):
        if s["layer"] == int(STOPS):
            print(f"{s['layer']}-{s['point']}: of a part {seconds('moments', *m):.2f} s, "
                  f"of a share {seconds('share', *k):.2f} s")


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
        a, *each = rate[kind]
        of = [f"{1e9 * r:.5f} s/{what}" for r, what in zip(each, COLUMNS[kind])]
        print(f"{kind}: {len(rows[kind])} steps measured: {a:.3f} s + {' + '.join(of)}; relative error {error:.2f}")
    for model, took, *of in loops:
        print(f"one pipe of {os.path.basename(model.rstrip('/'))}: {took:.1f} s measured, {pipe(model, rate, *of):.1f} by the fit")

    def on_cores(kind, *cost):
        return rate[kind][0] + np.dot(rate[kind][1:], cost)

    def on_gpu(kind, *cost):
        return GPU_START + sum(cost[:2]) / (GPU_TFLOPS * 1e12) + np.dot(rate[kind][3:], cost[2:])

    tokens = SEQUENCES * SEQLEN
    alone = pipe(target, rate, tokens, SEQLEN)
    flops = sum(tokens * (s["forward"] + s["sums"] + s["share_sums"]) + s["factor"] + s["solve"] for s in stops(target, 1))
    gpu_alone = flops / (GPU_TFLOPS * 1e12)
    if STOPS:
        print_stops(target, max(NODES), on_cores, tokens)
    print(f"\n{'nodes':>5} {'of':>8} {'parts':>6} {'hours':>8} {'of it shares':>13} {'efficiency':>11}")
    for name, units, seconds, one in (("8 cores", 1, on_cores, alone), ("8 GPUs", GPUS, on_gpu, gpu_alone)):
        for nodes in NODES:
            print(row(target, nodes, nodes * units, name, seconds, one, WHOLE or units > 1))


if __name__ == "__main__":
    main()
