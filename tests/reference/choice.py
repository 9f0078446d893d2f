#!/usr/bin/env python3
"""A 4-bit checkpoint of which some linears were left as they are: by Python's fnmatch,
the source's tensors, and the rules by which loaders find unquantized modules - never
from our C.

    choice.py check SOURCE OUT LAYOUT MODULES SKIP...   MODULES: "-" for all but
        kv_b_proj.  Linears of SOURCE that match no SKIP, and MODULES, are packed; the others have
        the bytes of SOURCE; and for each of them the config says so
"""
import fnmatch
import json
import re
import sys
from pathlib import Path

FUSED = {"q_proj": ("qkv_proj", "q_proj k_proj v_proj"), "gate_proj": ("gate_up_proj", "gate_proj up_proj"),
         "q_a_proj": ("fused_qkv_a_proj", "q_a_proj kv_a_proj_with_mqa")}
PACKED = {"compressed-tensors": "weight_packed", "awq": "qweight", "gptq": "qweight", "gptq_v2": "qweight"}
LINEAR = re.compile(r"(model\.layers\.\d+\..*(?:_proj|_proj_with_mqa|\.w[123]))\.weight")


def tensors(d):
    have = {}
    for f in Path(d).glob("*.safetensors"):
        b = f.read_bytes()
        n = int.from_bytes(b[:8], "little")
        for name, t in json.loads(b[8:8 + n]).items():
            if name != "__metadata__":
                begin, end = t["data_offsets"]
                have[name] = (t["dtype"], t["shape"], b[8 + n + begin:8 + n + end])
    return have


def plain_awq(q, name):
    """vLLM's is_layer_skipped() with substrings."""
    return any(entry in name for entry in q["modules_to_not_convert"])


def plain_ct(q, name):
    """compressed-tensors' match_name()."""
    return any(re.match(i[3:], name) if i.startswith("re:") else i == name for i in q["ignore"])


def plain_gptq(q, name):
    """GPTQModel's and vLLM's dynamic: a negative match."""
    return any(k.startswith("-:") and re.match(k[2:], name) for k in q.get("dynamic", {}))


def main(source, out, layout, modules, *skip):
    src, have = tensors(source), tensors(out)
    config = json.load(open(f"{out}/config.json"))
    q, layers = config["quantization_config"], config["num_hidden_layers"]
    plain = {"awq": plain_awq, "compressed-tensors": plain_ct}.get(layout, plain_gptq)
    counts = [0, 0]
    for name in src:
        m = LINEAR.fullmatch(name)
        if not m or int(name.split(".")[2]) >= layers or (modules == "-" and "kv_b_proj" in name):
            continue
        module = m[1]
        chosen = fnmatch.fnmatchcase(module, modules.replace("-", "*")) and not any(fnmatch.fnmatchcase(module, s) for s in skip)
        counts[chosen] += 1
        assert (f"{module}.{PACKED[layout]}" in have) == chosen, module
        assert (name in have) != chosen, module
        assert chosen or have[name] == src[name], module
        # loaders ask for a linear, or the layer's experts, or what they fuse it into
        asked = [module]
        at = re.match(r"(.*\.experts)\.\d+\.", module)
        if at:
            asked = [at[1] + ".0.gate_proj"] if layout == "compressed-tensors" else [at[1]]
        parent, last = module.rsplit(".", 1)
        if not at and layout.startswith("gptq") and last in FUSED and f"{parent}.{FUSED[last][1].split()[1]}.weight" in src:
            asked.append(f"{parent}.{FUSED[last][0]}")
        for a in asked:
            assert bool(plain(q, a)) != chosen, (module, a)
    assert counts[True], "nothing is quantized"
    print(*counts)


if __name__ == "__main__":
    assert sys.argv.pop(1) == "check"
    main(*sys.argv[1:])
