#!/usr/bin/env python3
"""A 4-bit checkpoint whose linears have grids of several kinds: by Python's fnmatch,
the shapes of tensors, and the rules by which loaders look up a module's grid - never
from our C.

    gridrules.py check OUT LAYOUT GROUP,SYM RULE...
        each linear has the group, symmetry and bits that the last RULE says (else
        GROUP, SYM and 4), in the shapes of its tensors and for whoever asks the
        config; prints the number of linears of each kind
    gridrules.py parts OUT WHOLE PATTERN
        linears of OUT whose path matches have the bytes of WHOLE
"""
import collections
import fnmatch
import json
import re
import sys

from choice import FUSED, LINEAR, PACKED, tensors

SCALES = {"weight_packed": "weight_scale", "qweight": "scales"}


def ct_scheme(q, names):
    """vLLM's find_matched_target() of a path: the first target that is the path or whose expression matches it, else
    the class; compressed-tensors' match_targets() prefers expressions, too."""
    found = []
    for g in q["config_groups"].values():
        for t in g["targets"]:
            for name in names:
                if t.startswith("re:") and re.match(t[3:], name):
                    found.append(g["weights"])
    if not found:
        found = [g["weights"] for g in q["config_groups"].values() if "Linear" in g["targets"]]
    assert all(w == found[0] for w in found), (names, found)
    return found[0]["group_size"], found[0]["symmetric"], found[0]["num_bits"]


def gptq_grid(q, name):
    """vLLM's get_dynamic_override(), GPTQModel's dynamic_get(): the first expression that matches."""
    for k, v in q.get("dynamic", {}).items():
        assert k[:2] in ("-:", "+:")
        if re.match(k[2:], name):
            assert k[0] == "+", name
            return v.get("group_size", q["group_size"]), v.get("bits", q["bits"])
    return q["group_size"], q["bits"]


def expected(module, default, rules):
    (group, sym), bits = default, 4
    for r in rules:
        pattern, words = r.rsplit("=", 1)
        if fnmatch.fnmatchcase(module, pattern):
            for w in words.split(","):
                if w in ("sym", "asym"):
                    sym = w == "sym"
                elif w.endswith("bit"):
                    bits = int(w[:-3])
                else:
                    group = int(w)
    return group, sym, bits


def check(out, layout, default, *rules):
    have, counts = tensors(out), collections.Counter()
    with open(f"{out}/config.json") as f:
        q = json.load(f)["quantization_config"]
    group, sym = default.split(",")
    part = PACKED[layout]
    for name, (_, shape, _) in have.items():
        module, _, tail = name.rpartition(".")
        if tail != part:
            continue
        want = expected(module, (int(group), sym == "sym"), rules)
        per = 32 // want[2]
        inputs = shape[1] * per if layout == "compressed-tensors" else shape[0] * (1 if layout == "awq" else per)
        groups = have[f"{module}.{SCALES[part]}"][1][1 if layout == "compressed-tensors" else 0]
        assert groups * want[0] == inputs, (module, groups, inputs, want)
        if layout == "compressed-tensors":
            assert (f"{module}.weight_zero_point" in have) != want[1], module
        # loaders ask for a linear, or the layer's experts, or what they fuse it into
        at, asked = re.match(r"(.*\.experts)\.\d+\.", module), [module]
        parent, last = module.rsplit(".", 1)
        if at:
            asked += [at[1], at[1] + ".0.gate_proj"]
        elif last in FUSED and f"{parent}.{FUSED[last][1].split()[1]}.{part}" in have:
            asked.append(f"{parent}.{FUSED[last][0]}")
        for a in asked:
            assert LINEAR.fullmatch(module + ".weight"), module
            if layout == "compressed-tensors":
                assert ct_scheme(q, [a]) == want, (a, want, ct_scheme(q, [a]))
            elif layout == "awq":
                assert (q["group_size"], q["bits"]) == want[::2], a
            else:
                assert gptq_grid(q, a) == want[::2], (a, want)
        counts[f"{want[0]},{'sym' if want[1] else 'asym'}" + (",8bit" if want[2] == 8 else "")] += 1
    if layout.startswith("gptq"):
        assert q["sym"] == all(",sym" in k for k in counts)
    print(*(f"{k}:{n}" for k, n in sorted(counts.items())))


def parts(out, whole, pattern):
    have, other, n = tensors(out), tensors(whole), 0
    for name, t in have.items():
        module = name.rpartition(".")[0]
        if fnmatch.fnmatchcase(module, pattern):
            assert t == other[name], name
            n += 1
    assert n
    print(n)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
