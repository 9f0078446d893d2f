#!/usr/bin/env python3
"""How near to the original: other programs, ours by effort, ours without each
of its parts, and the spread over three calibration subsets; the same token ids
and the same evaluation for all.  By make bench-quality.

Environment (all optional):
    MODELS  checkpoint directories           [examples/*/]
    CALIB, EVAL  texts (or .npy of int32 [sequences, length])  [examples/...]
    SEQUENCES, SEQLEN  of calibration        [128, 512]
    GROUP   inputs for each scale            [128; 64 where some linear's inputs
                                             are no multiple of that]
    EVAL_SEQUENCES, EVAL_SEQLEN              [32, SEQLEN]
    PEERS   names of tests/interop/peers.py, "none"; autoround and llamacpp by
            name only: of llamacpp ours at equal size follows [all others]
    ROWS    of these: peers, ours, without, spread (needs ours)    [all]
    PYTHON  with tests/interop/requirements*.txt  [.venv/bin/python, python3]
    WORK    keeps what the peers made; a change of model, ids, package version
            or settings makes it anew        [build/quality]
"""
import json
import os
import re
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT/"tests/interop"))
import peers

# row: options of forge quantize
OURS = {
    "fast": ["--effort", "fast"],
    "default": ["--effort", "default"],
    "best": ["--effort", "best", "--tune", "0"],
    "default, asymmetric": ["--effort", "default", "--asym"],
    "best, asymmetric": ["--effort", "best", "--tune", "0", "--asym"],
}
# by name alone (ROWS=tuned): on a GPU best tunes codes, too
TUNED = {
    "best on a GPU": ["--effort", "best", "--device", "cuda"],
    "best on a GPU, asymmetric": ["--effort", "best", "--device", "cuda",
                                  "--asym"],
}
# best without one of its parts: forge-calib's, forge-hessian's, forge-solve's
# options (FISHER, WEIGHTS: those that need forge-gradient) where they are not those of forge quantize --effort best
WITHOUT = {
    "all parts": {},
    "1, grids by absmax": dict(SOLVE=["--factors", "1"]),
    "1, no negative scales": dict(SOLVE=["--positive"]),
    "2, no correction": dict(CALIB=["--propagate", "quantized"]),
    "2, no correction of o and down": dict(SOLVE=["--beta", "0"]),
    "3, no refinement": dict(SOLVE=["--sweeps", "0"]),
    "3, each row for itself": dict(FISHER=[]),
    "3, tokens alike": dict(WEIGHTS=[]),
}
BLEND = 2  # forge quantize's
MIXTURE = {"4, no blended Hessians": dict(HESSIAN=["--blend", "0"])}
RING = """set -o pipefail; cd "$1"; mkfifo back
[ -z "$FISHER$WEIGHTS" ] || forge-gradient -q --weights weights.fts "$2" "$3" | forge-hessian -q -o fisher.fts
exec 5<>back 6<back 7>back 5>&-
forge-calib -q --feedback - $CALIB "$2" "$3" <&6 6<&- 7>&- |
    forge-hessian -q $HESSIAN $WEIGHTS 6<&- 7>&- |
    forge-weights -q --join "$2" 6<&- 7>&- |
    forge-grid -q --group "$4" 6<&- 7>&- |
    forge-solve -q --effort best --prior 2 $FISHER $SOLVE 6<&- 7>&- | tee codes.fts >&7 6<&- &
exec 6<&- 7>&-
wait %%
forge-pack -q --layout compressed-tensors codes.fts | forge-shard -q --from "$2" --others out"""


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


def ids_of(stream, out):
    """The ids of a tokens stream as .npy, which both sides can read."""
    import array
    sys.path.insert(0, str(ROOT/"tests/reference"))
    import fts
    with open(stream, "rb") as f:
        rows = [t.payload for t in fts.read(f) if t.role == "tokens"]
    head = ("{'descr': '<i4', 'fortran_order': False, 'shape': (%d, %d), }" % (
        len(rows), len(array.array("i", rows[0])))).encode()
    head += b" "*(-(len(head) + 11) % 64) + b"\n"
    out.write_bytes(b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") +
                    head + b"".join(rows))
    return out


def group_of(model):
    """Inputs for each scale: GROUP, or what the linears of layers allow."""
    widths = set()
    for path in Path(model).glob("*.safetensors"):
        with open(path, "rb") as f:
            head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        widths |= {t["shape"][-1] for name, t in head.items()
                   if name.endswith("_proj.weight") and ".layers." in name}
    return env("GROUP", "64" if any(w % 128 for w in widths) else "128")


class Table:
    """Rows of one model, as they come."""

    def __init__(self, model, stream, n, length, group):
        self.model, self.stream, self.best = model, stream, None
        self.layout = {}  # the best peer that is (not) asymmetric
        self.n, self.length, self.group = n, length, group
        print("%-42s %7s %5s %8s %9s %6s %6s %8s %6s" % (
            "", "KL e-3", "+-", "99% e-3", "ppl", "top1 %", "MB", "seconds",
            "ratio"), flush=True)

    def add(self, name, other, seconds, peer=False):
        r = json.loads(run("forge-eval", "-q", "--json", self.model, other,
                           self.stream))
        kl = r["kl_mean"]
        if peer:
            self.best = min(self.best or kl, kl)
            asym = "asym" in name
            self.layout[asym] = min(self.layout.get(asym, kl), kl)
        if name:
            size = sum(f.stat().st_size for f in other.glob("*.safetensors"))
            print("%-42s %7.2f %5.2f %8.1f %9.4f %6.2f %6.2f %8.1f %6s" % (
                name, 1e3*kl, 1e3*r["kl_sem"], 1e3*r["kl_p99"], r["ppl"],
                100*r["top1"], size/1e6, seconds,
                "%.2f" % (kl/self.best) if self.best and not peer else ""),
                flush=True)
        return kl


def others(table, stream, work):
    """The rows of the peers, one after another; the bits for each weight of
    those that have a budget of their own."""
    python = env("PYTHON", str(ROOT/".venv/bin/python"))
    if not os.path.exists(python) and "PYTHON" not in os.environ:
        python = sys.executable
    have, missing, sizes = peers.versions(python), set(), set()
    names = env("PEERS", " ".join(peers.NAMES)).replace(",", " ").split()
    for name in [] if names == ["none"] else names:
        package = name.split("-")[0]
        if package not in have:
            if package not in missing:
                print("# %s is not installed: left out" % package)
            missing.add(package)
            continue
        try:
            out, cost = peers.kept(python, name, table.model, stream,
                                   work/"peers", have[package], table.group)
            label = "%s %s%s" % (package, have[package],
                                 name[len(package):].replace("-", ", "))
            if "bits" not in cost:
                table.add(label, out, cost["seconds"], peer=True)
                continue
            table.add(label, out, cost["seconds"])
            print("# %.4f bits: %s" % (cost["bits"], ", ".join(
                "%d %s" % (n, k) for k, n in cost["types"].items())))
            sizes.add("%.4f" % cost["bits"])
        except RuntimeError as e:
            print("# %s" % e)
    return sizes


def ours(table, ids, name, options):
    """A row of forge quantize, from the checkpoint to the other one."""
    with tempfile.TemporaryDirectory(prefix="forge-quality-") as d:
        start = time.time()
        run("forge", "quantize", table.model, d + "/out", "--quiet", "--text",
            ids, "--sequences", table.n, "--seqlen", table.length,
            "--group", table.group, *options)
        return table.add(name, Path(d)/"out", time.time() - start)


def without(table, stream, name, options):
    """A row of the same tools, put together here."""
    words = dict(CALIB=["--propagate", "both"], HESSIAN=["--blend", str(BLEND)],
                 FISHER=["--fisher", "fisher.fts"],
                 WEIGHTS=["--weights", "weights.fts"], SOLVE=[])
    words.update(options)
    with tempfile.TemporaryDirectory(prefix="forge-quality-") as d:
        start = time.time()
        run("bash", "-c", RING, "ring", d, table.model, stream,
            table.group, env={**os.environ, **{k: " ".join(v) for k, v in words.items()}})
        table.add("best but " + name if options else "best, by hand",
                  Path(d)/"out", time.time() - start)


def spread(table, ids, kl):
    for name in ("fast", "default", "best"):
        values = [kl[name]] + [ours(table, i, None, OURS[name]) for i in ids]
        print("%s on %d subsets: %s, spread %.1f %%" % (
            name, len(values), " ".join("%.2f" % (1e3*k) for k in values),
            100*(max(values) - min(values))*len(values)/sum(values)),
            flush=True)


def shares(whose, best, kl):
    print("%s %.2f; " % (whose, 1e3*best) + ", ".join(
        "%s %.2f of it" % (k, v/best) for k, v in kl.items()))


def one(model, work):
    base = Path(model).name
    config = (Path(model)/"config.json").read_text()
    mixture = re.search('"(n_routed|num|num_local)_experts"', config)
    calib, text = (str(Path(env(k, str(ROOT/"examples"/v))).resolve())
                   for k, v in (("CALIB", "calib.jsonl"), ("EVAL", "eval.txt")))
    n, length = int(env("SEQUENCES", "128")), int(env("SEQLEN", "512"))
    size = 0 if calib.endswith(".npy") else os.path.getsize(calib)
    subset = []
    for i in range(3 if size else 1):
        subset.append(tokens(model, calib, n, length,
                             work/("calib-%s.%d.fts" % (base, i)),
                             skip=size*i//4))
    ids = [ids_of(s, s.with_suffix(".npy")) for s in subset]
    group = group_of(model)
    print("%s, %d x %d tokens to calibrate, groups of %s" % (base, n, length,
                                                            group))
    judged = tokens(model, text, env("EVAL_SEQUENCES", "32"),
                    env("EVAL_SEQLEN", length), work/("eval-%s.fts" % base))
    table = Table(model, judged, n, length, group)
    rows = env("ROWS", "peers ours without spread").replace(",", " ").split()
    for bits in sorted(others(table, subset[0], work) if "peers" in rows else ()):
        for name in ("default", "default, asymmetric", "best, asymmetric"):
            ours(table, ids[0], "%s, --bits %s" % (name, bits),
                 OURS[name] + ["--bits", bits])
    kl = {k: ours(table, ids[0], k, v) for k, v in OURS.items()
          if "ours" in rows}
    for name, options in TUNED.items() if "tuned" in rows else ():
        ours(table, calib, name, options)  # with more of the text than ids
    for name, options in {**WITHOUT, **(MIXTURE if mixture else {})}.items():
        if "without" in rows:
            without(table, subset[0], name, options)
    if "spread" in rows and kl:
        spread(table, ids[1:], kl)
    if table.best and kl:
        shares("best of the others", table.best, kl)
        for asym, best in sorted(table.layout.items()):
            shares("%s alone" % ("asymmetric" if asym else "symmetric"), best,
                   {k: v for k, v in kl.items() if ("asym" in k) == asym})
    print(flush=True)


def main():
    models = env("MODELS", " ".join(
        str(p.parent) for p in sorted((ROOT/"examples").glob("*/config.json"))))
    work = Path(env("WORK", str(ROOT/"build/quality"))).resolve()
    work.mkdir(parents=True, exist_ok=True)
    for m in models.split():
        one(str(Path(m).resolve()), work)


if __name__ == "__main__":
    main()
