#!/usr/bin/env python3
"""How long a run in parts (forge quantize --parts) takes on an ideal cluster, in which
each step is as fast as measured alone and none waits for a place, network or disk.

    cluster.py TARGET MODEL=WORK...

MODEL=WORK: a run with --parts 2 or more whose steps ran one after the other on the cores
of a node; WORK/solve-*/stages.jsonl has the seconds of each.  On 8 cores:

    FORGE_RETRIES=0 FORGE_STEP_COST=20 taskset -c 0-7 forge quantize MODEL OUT --work WORK
        --threads 8 --device cpu --parts P --text TEXT

FORGE_RETRIES: in steps, not in one pipe; FORGE_STEP_COST: a cluster's shares.  A run that was
cut serves, too.

Seconds of moments are fitted by a constant, operations, operations of attention, bytes of
files (moments, states and outputs, read and written), and bytes of weights; those of shares
by a constant, operations, operations of factors, and bytes; those of merging a piece of all
moments by a constant and bytes, or if none was, they are those of shares: by least squares of
relative errors, each weighed by its seconds, with no coefficient below zero.  A share of experts is a
pipe that calibrates and solves: a constant, a part of what both take by these rates, and
seconds of each expert, fitted likewise to shares and to what a mixture's pipe takes for its
experts.  Operations and bytes are those of `forge-plan --parts P`, but for
attention's.  Runs of several P, widths and numbers of tokens, and mixtures of experts, tell
the coefficients apart.

One node is one pipe: its experts as one share of all, its linears by the fit less the
constants, times what pipes of dense models take of that: runs in one pipe (without
FORGE_RETRIES), whose tools work side by side.

TARGET: a model directory (config.json is enough), quantized with the defaults; its steps are
scaled from the fit.  In the environment:

    SEQUENCES, SEQLEN  other tokens than 128 x 512
    NODES              other numbers of nodes than "1 4 16 64"
    WHOLE=1            linears are whole on cores, too
    STOPS=N            seconds of the stops of layer N, with as many parts as the most nodes

A GPU's steps, of GPU_SEQUENCES x GPU_SEQLEN tokens: GPU_START seconds, operations of the
solver at GPU_TFLOPS and others at GPU_FORWARD, and bytes of files and of weights at the
host's rates; linears are whole.  One GPU is one pipe, which has no files, and loads weights
while it solves.
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
# "What it takes", most of which solves; and of bf16 products there.
GPU_START, GPU_TFLOPS, GPU_FORWARD = 1.7, 23.7, 650
GPU_SEQUENCES, GPU_SEQLEN = (int(os.environ.get(n, 2048)) for n in ("GPU_SEQUENCES", "GPU_SEQLEN"))
COLUMNS = {"moments": ["GFLOP", "GFLOP of attention", "GB of files", "GB of weights"],
           "share": ["GFLOP", "GFLOP of factors", "GB"], "merge": ["GB"], "experts": ["s of its pieces", "expert"]}


def hidden_size(model):
    config = json.loads((Path(model)/"config.json").read_text())
    return config.get("text_config", config)["hidden_size"]


@functools.cache
def stops(model, parts):
    out = subprocess.run(["forge-plan", "--parts", str(parts), model], check=True, capture_output=True, text=True)
    all, hidden = [json.loads(line) for line in out.stdout.splitlines()], hidden_size(model)
    # Until a linear is quantized both streams are one, which has no cross moment.
    all[0].update(moments=4 * hidden * (hidden + 1) // 2, sums=hidden ** 2)
    return all


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


def layer_of(all, layer):
    return [t for t in all if t["layer"] == layer]


def ends_in_experts(stops):
    return bool(stops) and stops[-1]["point"] == "experts"


def on_the_way(all, i):
    """Operations of a token and bytes of weights that a part's step runs to stop i.  It
    begins at the last states, which in a mixture are those at mlp_in until the experts'."""
    s = all[i]
    here, before = layer_of(all, s["layer"]), layer_of(all, s["layer"] - 1)
    at = here.index(s)
    if not at:  # experts' outputs are there
        return np.zeros(2) if ends_in_experts(before) else linears(before[-1:])
    first = at - 1
    if s["point"] == "experts":
        first = next((k for k, t in enumerate(here) if t["point"] == "mlp_in"), first)
    return linears(here[first:at])


def attention(model):
    """Operations of a token's attention in both streams, for each token of its sequence."""
    c = json.loads((Path(model)/"config.json").read_text())
    c = c.get("text_config", c)
    heads = c["num_attention_heads"]
    key = c.get("qk_nope_head_dim", 0) + c.get("qk_rope_head_dim", 0)
    key = key or c.get("head_dim") or c["hidden_size"] // heads
    return 2 * heads * (key + c.get("v_head_dim", key))  # half of the pairs: causal


def moments_cost(all, i, parts, hidden, pairs, tokens):
    """Operations, those of attention, bytes of files, and of weights of a part's step."""
    s, (forward, weights) = all[i], on_the_way(all, i)
    before = layer_of(all, s["layer"] - 1)
    tokens /= parts
    x = tokens * 2 * 2 * hidden  # of both streams; states are x and an activation
    reads = writes = 2 * x
    if s is layer_of(all, s["layer"])[0] and ends_in_experts(before):
        reads = x + before[-1]["outputs"] * tokens / PLANNED
    if s["point"] == "experts":
        writes = s["rows"] * tokens / PLANNED
    return (tokens * (s["sums"] + forward), tokens * pairs * (s["point"] == "attn_out"),
            s["moments"] + reads + writes, weights)


def share_cost(s, parts, tokens, whole=False):
    """Operations, those of factors, and bytes of the share of linears that has most.  whole:
    linears are not divided."""
    spread, n, units = s["spread"], s["shares"], s["units"]
    if whole:
        spread = n = min(s["modules"], parts)
        units = s["modules"]
    flops = math.ceil(units / spread) / units * s["solve_modules"]
    # of cross moments by rows: the pieces, of as many as parts, that have some of its rows
    moments = s["moments"] - s["by_rows"] * max(0, 1 - 1 / n - 1 / parts)
    return flops, s["factor"], moments * (1 if s["pieces"] else parts) + (s["weights"] / 2 + s["codes"]) / n


def merge_cost(s, parts):
    """Bytes of merging a piece of the moments of all parts."""
    return (s["moments"] * (1 + 1 / parts),)


def experts_cost(all, i, parts, hidden, tokens):
    """What share_cost() and moments_cost() have, and the number of experts, of the share of
    experts that has most: it reads the Hessian at mlp_in, of each part or merged, and the
    states of all tokens, runs three passes over its experts, and solves."""
    s = all[i]
    merged = any(t["pieces"] for t in layer_of(all, s["layer"]) if t["point"] == "mlp_in")
    prior = 4 * hidden * (hidden + 1) // 2 * (1 if merged else parts)
    most = math.ceil(s["experts"] / s["shares"]) / s["experts"]
    solve = most * (s["solve"] - s["expert_factors"])
    forward, weights = most * (experts(s, 3) + np.array([s["share_sums"], 0]))
    files = (prior + s["rows"] * tokens / PLANNED +
             most * (s["outputs"] * tokens / PLANNED + s["weights"] / 2 + s["codes"]))
    return solve, most * s["expert_factors"], files, tokens * forward, 0, 0, weights, most * s["experts"]


def steps(model, parts, tokens, seqlen, whole=False):
    """Of each stop: it, the cost of a part's step, the kind and the cost of a share's."""
    all, hidden, pairs = stops(model, parts), hidden_size(model), seqlen * attention(model)
    return [(s, moments_cost(all, i, parts, hidden, pairs, tokens),
             *(("experts", experts_cost(all, i, parts, hidden, tokens)) if s["point"] == "experts" else
               ("share", share_cost(s, parts, tokens, whole))))
            for i, s in enumerate(all)]


def pieces(rate, cost):
    """Seconds of a share of experts, were its tools to work one after the other."""
    return np.dot(rate["share"][1:], cost[:3]) + np.dot(rate["moments"][1:], cost[3:7])


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
    """Rows for fit() of each kind; seconds of a loop, or None."""
    lines = [json.loads(x) for p in Path(work).glob("solve-*/stages.jsonl") for x in p.read_text().splitlines()]
    job = json.loads((Path(work)/"settings.json").read_text())
    all = steps(model, job["parts"], job["sequences"] * job["seqlen"], job["seqlen"])
    cost = {(s["layer"], s["point"]): (m, kind, k) for s, m, kind, k in all}
    of = {(s["layer"], s["point"]): s for s, *_ in all}
    rows, loop = {kind: [] for kind in COLUMNS}, None
    shares = {(s["layer"], s["point"]): s["shares"] for s, *_ in all}
    ran = collections.Counter((x["layer"], x["point"]) for x in lines if x["stage"] == "share")
    cut = lines[-1]["stage"] in ("moments", "merge", "share")  # of the last stop some shares may lack
    for stop, n in list(ran.items())[:len(ran) - cut]:
        if n != shares[stop]:
            sys.exit(f"cluster.py: '{work}': {n} shares at {stop[0]}-{stop[1]}, where forge-plan has {shares[stop]}: "
                     "want a new run, with FORGE_STEP_COST=20")
    for x in lines:
        if x["stage"] == "moments":
            rows["moments"].append(cost[x["layer"], x["point"]][0] + (x["seconds"],))
        if x["stage"] == "share":
            _, kind, k = cost[x["layer"], x["point"]]
            rows[kind].append(k + (x["seconds"],))
        if x["stage"] == "merge":
            rows["merge"].append(merge_cost(of[x["layer"], x["point"]], job["parts"]) + (x["seconds"],))
        if x["stage"] == "loop":
            loop = x["seconds"]
    return rows, loop and (loop, job["sequences"] * job["seqlen"], job["seqlen"])


def linears_of_pipe(model, rate, tokens, seqlen):
    """Seconds of one pipe's linears that are no experts', by the fit of steps: operations,
    moments and weights once."""
    pairs = seqlen * attention(model)

    def cost(s):
        forward, weights = linears([s])
        m = tokens * (forward + s["sums"]), tokens * pairs * (s["point"] == "attn_out"), s["moments"], weights
        k = s["solve_modules"], s["factor"], s["weights"] / 2
        return sum(np.dot(rate[kind][1:], x) for kind, x in (("moments", m), ("share", k)))
    return sum(cost(s) for s in stops(model, 1) if s["point"] != "experts")


def experts_of_pipe(model, rate, tokens):
    """Of each layer with experts, the row of a share of all of them, which reads and writes no
    states."""
    all, found = stops(model, 1), []
    for i, s in enumerate(all):
        if s["point"] == "experts":
            c = list(experts_cost(all, i, 1, 0, tokens))
            c[2] = s["weights"] / 2
            found.append((pieces(rate, c), c[-1]))
    return found


def fit_all(rows, loops):
    """The rates of each kind, printed; of "dense", what a pipe takes of its linears' steps."""
    rate, by_fit = {}, {}
    for kind in ("moments", "share", "merge"):
        rate[kind], error = fit(rows[kind]) if rows[kind] or kind != "merge" else (rate["share"][[0, 3]], 0)
        print_rate(kind, rate[kind], len(rows[kind]), error)
    for model, took, *of in loops:
        by_fit[model] = linears_of_pipe(model, rate, *of)
    dense = [(took, by_fit[model]) for model, took, *of in loops if not experts_of_pipe(model, rate, of[0])]
    rate["dense"] = sum(x for x, _ in dense) / sum(y for _, y in dense) if dense else 1
    of_pieces = [(pieces(rate, r), r[-2], r[-1]) for r in rows["experts"]]
    for model, took, *of in loops:
        layers = experts_of_pipe(model, rate, of[0])
        if len(layers) == 1:
            of_pieces.append((*layers[0], took - rate["dense"] * by_fit[model]))
    rate["experts"], error = fit(of_pieces) if of_pieces else (np.array([rate["share"][0], 1, 0]), 0)
    print_rate("experts", rate["experts"], len(of_pieces), error)
    for model, took, *of in loops:
        print(f"one pipe of {os.path.basename(model.rstrip('/'))}: {took:.1f} s measured, {pipe(model, rate, *of):.1f} by the fit")
    print(f"a pipe takes {rate['dense']:.2f} of its linears' steps")
    return rate


def print_rate(kind, rate, n, error):
    a, *each = rate
    of = [f"{(1 if kind == 'experts' else 1e9) * r:.5f} s/{what}" for r, what in zip(each, COLUMNS[kind])]
    print(f"{kind}: {n} steps measured: {a:.3f} s + {' + '.join(of)}; relative error {error:.2f}")


def pipe(model, rate, tokens, seqlen):
    """Seconds of one pipe."""
    dense = rate["dense"] * linears_of_pipe(model, rate, tokens, seqlen)
    return dense + sum(np.dot(rate["experts"][1:], x) for x in experts_of_pipe(model, rate, tokens))


def cluster(model, parts, seconds, tokens, seqlen, whole):
    """Seconds of all stops, one after the other, on as many machines as parts: of parts, of
    merging, of shares."""
    all = steps(model, parts, tokens, seqlen, whole)
    return (sum(seconds("moments", *m) for _, m, _, _ in all),
            sum(seconds("merge", *merge_cost(s, parts)) for s, *_ in all if s["pieces"]),
            sum(seconds(kind, *k) for *_, kind, k in all))


def print_stops(target, parts, seconds, tokens):
    for s, m, kind, k in steps(target, parts, tokens, SEQLEN, WHOLE):
        if s["layer"] == int(STOPS):
            merge = f"of a piece {seconds('merge', *merge_cost(s, parts)):.2f} s, " if s["pieces"] else ""
            print(f"{s['layer']}-{s['point']}: of a part {seconds('moments', *m):.2f} s, {merge}"
                  f"of a share {seconds(kind, *k):.2f} s")


def row(target, nodes, slots, name, seconds, one, of, whole):
    """With the number of parts, a power of two, that takes least."""
    sequences, seqlen = of
    runs = [(cluster(target, p, seconds, sequences * seqlen, seqlen, whole), p)
            for p in (2 ** i for i in range(1, 8)) if p <= min(slots, sequences)]
    each, p = min(runs + [((one, 0, 0), 1)], key=lambda run: sum(run[0]))
    took, shares = sum(each), each[-1]
    return f"{nodes:5} {name:>8} {p:6} {took / 3600:8.2f} {100 * shares / took:11.0f} % {100 * one / took / slots:9.0f} %"


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    target, runs = sys.argv[1], [x.split("=", 1) for x in sys.argv[2:]]
    rows, loops = {kind: [] for kind in COLUMNS}, []
    for model, work in runs:
        more, loop = measured(model, work)
        for kind in rows:
            rows[kind] += more[kind]
        if loop:
            loops.append((model, *loop))
    rate = fit_all(rows, loops)

    def on_cores(kind, *cost):
        x = (pieces(rate, cost), cost[-1]) if kind == "experts" else cost
        return rate[kind][0] + np.dot(rate[kind][1:], x)

    def on_gpu(kind, *cost):
        if kind == "experts":  # its pipe computes and loads at the same time
            load = np.dot(rate["moments"][3:], cost[5:7])
            files = rate["share"][3] * cost[2]
            return GPU_START + files + max(load, sum(cost[:2]) / (GPU_TFLOPS * 1e12) + cost[3] / (GPU_FORWARD * 1e12))
        if kind == "merge":
            return GPU_START + rate[kind][1] * cost[0]
        if kind == "share":
            return GPU_START + sum(cost[:2]) / (GPU_TFLOPS * 1e12) + rate[kind][3] * cost[2]
        return GPU_START + sum(cost[:2]) / (GPU_FORWARD * 1e12) + np.dot(rate[kind][3:], cost[2:])

    if STOPS:
        print_stops(target, max(NODES), on_cores, SEQUENCES * SEQLEN)
    one, gpu_tokens = pipe(target, rate, SEQUENCES * SEQLEN, SEQLEN), GPU_SEQUENCES * GPU_SEQLEN
    all, pairs = stops(target, 1), GPU_SEQLEN * attention(target)
    flops = sum(s["forward"] + s["sums"] + s["share_sums"] + pairs * (s["point"] == "attn_out") for s in all)
    one_gpu = (gpu_tokens * flops / GPU_FORWARD + sum(s["solve"] + s["factor"] for s in all) / GPU_TFLOPS) / 1e12
    print(f"\n{'nodes':>5} {'of':>8} {'parts':>6} {'hours':>8} {'of it shares':>13} {'efficiency':>11}")
    for name, units, seconds, alone, of in (("8 cores", 1, on_cores, one, (SEQUENCES, SEQLEN)),
                                            ("8 GPUs", GPUS, on_gpu, one_gpu, (GPU_SEQUENCES, GPU_SEQLEN))):
        for nodes in NODES:
            print(row(target, nodes, nodes * units, name, seconds, alone, of, WHOLE or units > 1))


if __name__ == "__main__":
    main()
