#!/usr/bin/env python3
"""How near to the original: ours by effort, without each of its parts, on three
calibration subsets, and beside other programs.  By make bench-quality.

Environment (all optional):
    MODELS  checkpoint directories           [examples/*/]
    CALIB, EVAL  texts (or .npy of int32 [sequences, length])  [examples/...]
    SEQUENCES, SEQLEN  of calibration        [128, 512]
    EVAL_SEQUENCES                           [32]
    PEERS   names below, or "none"           [all, where PYTHON has them]
    PYTHON  with tests/interop/requirements*.txt
    WORK    keep and reuse the peers' results
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PEERS = ["gptqmodel", "gptqmodel-asym", "llmcompressor", "llmcompressor-asym",
         "llmcompressor-mse-asym", "llmcompressor-imatrix_mse-asym"]
NO_DRIFT = ["--propagate", "quantized"]
# row: forge-calib's, forge-grid's and forge-solve's options
OURS = {
    "fast": (NO_DRIFT, [], []),
    "default": ([], [], ["--effort", "default"]),
    "best": ([], [], ["--effort", "best"]),
    "default, asymmetric": ([], ["--asymmetric"], ["--effort", "default"]),
    "best, asymmetric": ([], ["--asymmetric"], ["--effort", "best"]),
}
# best without one of its parts
WITHOUT = {
    "grids by absmax": ([], [], ["--effort", "best", "--factors", "1"]),
    "no negative scales": ([], [], ["--effort", "best", "--positive"]),
    "no correction": (NO_DRIFT, [], ["--effort", "best"]),
    "no correction of the residual": ([], [], ["--effort", "best", "--beta", "0"]),
    "no refinement": ([], [], ["--effort", "best", "--sweeps", "0"]),
}
RING = """set -o pipefail; cd "$1"; mkfifo back
exec 5<>back 6<back 7>back 5>&-
forge-calib -q --feedback - $CALIB "$2" "$3" <&6 6<&- 7>&- |
    forge-hessian -q 6<&- 7>&- | forge-weights -q --join "$2" 6<&- 7>&- |
    forge-grid -q $GRID 6<&- 7>&- | forge-solve -q $SOLVE 6<&- 7>&- |
    tee codes.fts >&7 6<&- &
exec 6<&- 7>&-
wait %%"""
PACK = """set -o pipefail
{ cat "$1/codes.fts"; forge-weights -q --exclude 'model.layers.*_proj.weight' "$2"; } |
    forge-pack -q --layout compressed-tensors | forge-shard -q --from "$2" "$1/out"
"""


def env(name, default):
    return os.environ.get(name) or default


def run(*command, **kw):
    r = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE,
                       stderr=subprocess.PIPE, **kw)
    if r.returncode:
        sys.exit("%s: exit %d: %s" % (command[0], r.returncode,
                                      r.stderr.decode().strip()))
    return r.stdout


def tokens(model, text, n, length, out, skip=0):
    run("forge-tokens", "-q", "--sequences", n, "--seqlen", length,
        *(["--skip-chars", skip] if skip else []), "-o", out, model, text)
    return out


def score(model, other, stream):
    return json.loads(run("forge-eval", "-q", "--json", model, other, stream))


def quantize(model, calib, options):
    """(scores come from) a directory, and the seconds until the codes."""
    d = tempfile.mkdtemp(prefix="forge-quality-")
    calibrate, grid, solve = options
    if "--propagate" not in calibrate:
        calibrate = calibrate + ["--propagate", "both"]
    words = dict(CALIB=calibrate, GRID=grid, SOLVE=solve)
    start = time.time()
    run("bash", "-c", RING, "ring", d, model, calib,
        env={**os.environ, **{k: " ".join(v) for k, v in words.items()}})
    seconds = time.time() - start
    run("bash", "-c", PACK, "pack", d, model)
    return Path(d), seconds


def line(name, r, seconds, best):
    print("%-42s %7.2f %5.2f %8.1f %9.4f %6.2f %8s %6s" % (
        name, 1e3*r["kl_mean"], 1e3*r["kl_sem"], 1e3*r["kl_p99"], r["ppl"],
        100*r["top1"], "%.1f" % seconds if seconds else "",
        "%.2f" % (r["kl_mean"]/best) if best else ""), flush=True)


def ours(model, calib, stream, name, options, best):
    d, seconds = quantize(model, calib, options)
    r = score(model, d/"out", stream)
    shutil.rmtree(d)
    if name:
        line(name, r, seconds, best)
    return r["kl_mean"]


def available():
    """The peers that PYTHON can run."""
    want = env("PEERS", " ".join(PEERS)).split()
    have = {}
    for p in want:
        package = p.split("-")[0]
        if package not in have and package in ("gptqmodel", "llmcompressor"):
            have[package] = not subprocess.run(
                [env("PYTHON", "python3"), "-c", "import importlib.util, sys; "
                 "sys.exit(not importlib.util.find_spec('%s'))" % package],
                stderr=subprocess.DEVNULL).returncode
            if not have[package]:
                print("# %s is not installed: left out" % package)
    return [p for p in want if have.get(p.split("-")[0])]


def peers(model, base, work, calib, stream):
    import array
    best, names = None, available()
    if not names:
        return None
    # their interface takes ids, from the same stream
    ids = work/("calib-%s.npy" % base)
    sys.path.insert(0, str(ROOT/"tests/reference"))
    import fts
    with open(calib, "rb") as f:
        rows = [t.payload for t in fts.read(f) if t.role == "tokens"]
    head = ("{'descr': '<i4', 'fortran_order': False, 'shape': (%d, %d), }" % (
        len(rows), len(array.array("i", rows[0])))).encode()
    head += b" "*(-(len(head) + 11) % 64) + b"\n"
    ids.write_bytes(b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") +
                    head + b"".join(rows))
    for p in names:
        out, start = work/("%s-%s" % (p, base)), time.time()
        made = (out/"config.json").exists()
        if not made:
            r = subprocess.run(
                [env("PYTHON", "python3"), ROOT/"tests/interop/quality.py", "--make",
                 p, model, out, ids], stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT)
            if r.returncode:
                print("# %s failed: %s" % (p, r.stdout.decode()[-300:]))
                continue
        r = score(model, out, stream)
        line(p, r, None if made else time.time() - start, None)
        best = min(best or 1e9, r["kl_mean"])
    return best


def one(model, work):
    base = Path(model).name
    calib, text = (str(Path(env(k, str(ROOT/"examples"/v))).resolve())
                   for k, v in (("CALIB", "calib.jsonl"), ("EVAL", "eval.txt")))
    n, length = int(env("SEQUENCES", "128")), int(env("SEQLEN", "512"))
    stream = tokens(model, text, env("EVAL_SEQUENCES", "32"), length,
                    work/("eval-%s.fts" % base))
    subset = [tokens(model, calib, n, length, work/("calib-%s.0.fts" % base))]
    size = os.path.getsize(calib)
    if not calib.endswith(".npy"):
        subset += [tokens(model, calib, n, length, work/("calib-%s.%d.fts" % (
            base, i)), skip=size*i//4) for i in (1, 2)]
    print("%s, %d x %d tokens to calibrate\n%-42s %7s %5s %8s %9s %6s %8s %6s" % (
        base, n, length, "", "KL e-3", "+-", "99% e-3", "ppl", "top1 %",
        "seconds", "ratio"))
    best = peers(model, base, work, subset[0], stream)
    kl = {}
    for name, options in OURS.items():
        kl[name] = [ours(model, subset[0], stream, name, options, best)]
    for name, options in WITHOUT.items():
        ours(model, subset[0], stream, "best, " + name, options, best)
    for name in ("fast", "default", "best"):
        kl[name] += [ours(model, s, stream, None, OURS[name], None)
                     for s in subset[1:]]
        if len(kl[name]) > 1:
            mean = sum(kl[name])/len(kl[name])
            print("%s on %d subsets: %s, spread %.1f %%" % (
                name, len(kl[name]), " ".join("%.2f" % (1e3*k) for k in kl[name]),
                100*(max(kl[name]) - min(kl[name]))/mean))
    if best:
        print("best of the others %.2f; best %.2f of it, default %.2f" % (
            1e3*best, kl["best"][0]/best, kl["default"][0]/best))
    print()


def main():
    models = env("MODELS", " ".join(
        str(p.parent) for p in sorted((ROOT/"examples").glob("*/config.json"))))
    with tempfile.TemporaryDirectory(prefix="forge-quality-") as scratch:
        work = Path(env("WORK", scratch)).resolve()
        work.mkdir(parents=True, exist_ok=True)
        for m in models.split():
            one(str(Path(m).resolve()), work)


if __name__ == "__main__":
    main()
