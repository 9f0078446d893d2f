#!/usr/bin/env python3
"""Checkpoints written by other people's libraries, read by ours.

    checkpoint_check.py [SEED]        needs torch, safetensors, transformers,
                                      compressed-tensors; ckdump on the PATH

Random tensors saved by safetensors, torch.save and transformers, single and sharded, must come back bit for bit;
what the safetensors library refuses, ours refuses.
"""
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
from collections import OrderedDict

import torch
from safetensors import safe_open
from safetensors.torch import save_file

NAMES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.float64: "F64", torch.int8: "I8",
         torch.uint8: "U8", torch.int16: "I16", torch.int32: "I32", torch.int64: "I64", torch.bool: "BOOL",
         torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2", torch.uint16: "U16", torch.uint32: "U32",
         torch.uint64: "U64"}


def dump(d, *how):
    p = subprocess.run(["ckdump", d, "out.raw", *how], capture_output=True, text=True)
    if p.returncode:
        return p.returncode, p.stderr.strip()
    with open("out.raw", "rb") as f:
        return [x.split("\t" if "\t" in x else " ") for x in p.stdout.split("\n")[:-1]], f.read()


def raw(t):
    t = t.detach().clone(memory_format=torch.contiguous_format)
    return t.reshape(-1).view(torch.uint8).numpy().tobytes() if t.numel() else b""


def same(d, tensors):
    """Every tensor of the dict, and no other, with these bytes."""
    lines, data = dump(d)
    assert not isinstance(lines, int), (lines, data)
    assert sorted(x[0] for x in lines) == sorted(tensors), set(x[0] for x in lines) ^ set(tensors)
    at = 0
    for name, dtype, *dims in lines:
        t = tensors[name]
        assert (dtype, [int(n) for n in dims]) == (NAMES[t.dtype], list(t.shape)), (name, dtype, dims)
        want = raw(t)
        assert data[at:at + len(want)] == want, name
        at += len(want)
    assert at == len(data)


def random_tensor(rng, views):
    shape = [rng.choice((0, 1, 2, 3, 5, 8, 17)) if rng.random() < 0.9 else 1 for _ in range(rng.choice((0, 1, 1, 2, 2, 2, 3, 4, 8)))]
    if len(shape) == 8:
        shape = [min(n, 2) for n in shape]
    n = 1
    for s in shape:
        n *= s
    dtype = rng.choice(list(NAMES))
    size = torch.empty(0, dtype=dtype).element_size()
    b = bytearray(rng.randbytes(n * size)) if n else bytearray()
    if dtype == torch.bool:
        b = bytearray(x & 1 for x in b)
    t = torch.frombuffer(b, dtype=dtype).reshape(shape) if n else torch.empty(shape, dtype=dtype)
    if views and t.ndim >= 2 and rng.random() < 0.5:
        t = t.transpose(0, t.ndim - 1)
    if views and t.ndim and t.shape[0] > 2 and rng.random() < 0.5:
        t = t[1::2]
    if views and 0 < t.ndim < 8 and rng.random() < 0.1:
        t = t.unsqueeze(0).expand(3, *t.shape)
    if views and t.is_floating_point() and rng.random() < 0.3:
        t = torch.nn.Parameter(t, requires_grad=rng.random() < 0.5)
    return t


def shard(save, stem, ext, tensors, n):
    names, wm = sorted(tensors), {}
    for i in range(n):
        f = f"{stem}-{i + 1:05d}-of-{n:05d}.{ext}"
        part = {k: tensors[k] for k in names[i::n]}
        save(part, f)
        wm.update({k: f for k in part})
    with open(f"{stem}.{ext}.index.json", "w") as f:
        json.dump({"metadata": {}, "weight_map": wm}, f)


def clear():
    for f in os.listdir("."):
        os.remove(f)


def saved(rng, rounds):
    for _ in range(rounds):
        t = {f"layers.{i}.x{rng.randrange(100)}.ü": random_tensor(rng, False) for i in range(rng.randrange(1, 12))}
        clear()
        save_file(t, "model.safetensors", metadata=rng.choice((None, {"format": "pt", "ä": "\"\\"})))
        same(".", t)
        clear()
        shard(save_file, "model", "safetensors", t, min(3, len(t)))
        same(".", t)
        t = OrderedDict((f"layers.{i}.w", random_tensor(rng, True)) for i in range(rng.randrange(1, 12)))
        first = next(iter(t))
        t["tied"] = t[first]
        big = torch.arange(1000.)
        t["slice.a"], t["slice.b"] = big[10:20], big[500:900].reshape(20, 20).t()
        clear()
        torch.save(t, "pytorch_model.bin")
        same(".", t)
        clear()
        shard(torch.save, "pytorch_model", "bin", t, 3)
        same(".", t)


def modules():
    """A state_dict with _metadata, tied weights and buffers; and transformers' own shards."""
    from transformers import LlamaConfig, LlamaForCausalLM
    clear()
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 4))
    net[2].weight = net[0].weight
    torch.save(net.state_dict(), "pytorch_model.bin")
    same(".", net.state_dict())
    for tied in (False, True):
        clear()
        c = LlamaConfig(vocab_size=128, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
                        num_key_value_heads=2, tie_word_embeddings=tied)
        m = LlamaForCausalLM(c).to(torch.bfloat16)
        m.save_pretrained(".", max_shard_size="50KB")
        assert len([f for f in os.listdir(".") if f.endswith(".safetensors")]) > 1
        t = {k: v for k, v in m.state_dict().items() if not (tied and k == "lm_head.weight")}
        same(".", t)


def packed():
    """compressed-tensors' own packer; its unpacked values times the scales."""
    from compressed_tensors.compressors.pack_quantized import pack_to_int32
    for symmetric in (True, False):
        for cols in (64, 96):
            clear()
            o, g = 24, 32
            q = torch.randint(-8, 8, (o, cols), dtype=torch.int8)
            z = torch.zeros(o, cols // g, dtype=torch.int8) if symmetric else torch.randint(-8, 8, (o, cols // g), dtype=torch.int8)
            s = (torch.rand(o, cols // g) + 0.1).to(torch.bfloat16)
            t = {"m.weight_packed": pack_to_int32(q, 4), "m.weight_scale": s, "m.weight_shape": torch.tensor([o, cols])}
            if not symmetric:
                t["m.weight_zero_point"] = pack_to_int32(z, 4, packed_dim=0).contiguous()
            save_file(t, "model.safetensors")
            with open("config.json", "w") as f:
                json.dump({"quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {
                    "g": {"targets": ["Linear"], "weights": {"num_bits": 4, "group_size": g, "symmetric": symmetric}}}}}, f)
            lines, data = dump(".", "linear", "m")
            want = (q.float() - z.float().repeat_interleave(g, 1)) * s.float().repeat_interleave(g, 1)
            assert lines == [["m", str(o), str(cols)]] and data == raw(want), (symmetric, cols)


def eight_bits():
    """torch's float8 and compressed-tensors' own way of taking the scales off."""
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.lifecycle.forward import dequantize
    cases = [("weight_scale_inv", (128, 128), torch.float32), ("weight_scale_inv", (128, 128), torch.float8_e8m0fnu),
             ("weight_scale", (1, None), torch.bfloat16), ("weight_scale", (None, None), torch.float32)]
    for name, block, dtype in cases:
        for o, i in ((576, 320), (100, 130), (128, 128)):
            clear()
            bo, bi = block[0] or o, block[1] or i
            w = torch.randn(o, i).to(torch.float8_e4m3fn)
            s = (torch.rand(-(-o // bo), -(-i // bi)) + 0.01).to(dtype)
            save_file({"m.weight": w}, "model-00001-of-00002.safetensors")
            save_file({f"m.{name}": s}, "model-00002-of-00002.safetensors")
            with open("model.safetensors.index.json", "w") as f:
                json.dump({"weight_map": {"m.weight": "model-00001-of-00002.safetensors",
                                          f"m.{name}": "model-00002-of-00002.safetensors"}}, f)
            q = {"quant_method": "fp8", "fmt": "e4m3"}
            if block[0] == 128:
                q["weight_block_size"] = list(block)
            with open("config.json", "w") as f:
                json.dump({"quantization_config": q}, f)
            want = w.float() * s.float().repeat_interleave(bo, 0)[:o].repeat_interleave(bi, 1)[:, :i]
            assert dump(".", "linear", "m")[1] == raw(want), (name, block, dtype, o, i)
            assert dump(".", "bf16", "m")[1] == raw(want.to(torch.bfloat16)), (name, block, dtype, o, i)
            if block[0] != 128:
                args = QuantizationArgs(num_bits=8, type="float", strategy="channel" if block[0] else "tensor")
                theirs = dequantize(w, s if block[0] else s.reshape(1), args=args, dtype=torch.float32)
                want = want.to(dtype)  # they compute in the scales' type
                assert torch.equal(theirs.to(dtype), want), (name, block, dtype)


def experts():
    """transformers' mixtures, saved one tensor an expert and as it holds them, in one."""
    from transformers import AutoModelForCausalLM, DeepseekV3Config, MixtralConfig, Qwen3MoeConfig
    common = dict(vocab_size=128, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
                  num_key_value_heads=4, moe_intermediate_size=32)
    for conf in (DeepseekV3Config(n_routed_experts=4, num_experts_per_tok=2, n_group=2, topk_group=1, q_lora_rank=32,
                                  kv_lora_rank=32, first_k_dense_replace=1, **common),
                 Qwen3MoeConfig(num_experts=4, head_dim=16, **common), MixtralConfig(num_local_experts=4, **common)):
        m = AutoModelForCausalLM.from_config(conf).to(torch.bfloat16)
        seen = []
        for original in (True, False):
            clear()
            m.save_pretrained(".", save_original_format=original)
            lines, data = dump(".")
            at, have = 0, {}
            for x in lines:
                n = 2 if x[1] == "BF16" else 4
                for d in x[2:]:
                    n *= int(d)
                have[x[0]] = (x[1:], data[at:at + n])
                at += n
            seen.append(have)
        assert any(".experts.3." in k for k in seen[0])
        assert seen[0] == seen[1], (conf.model_type, sorted(seen[0].keys() ^ seen[1].keys())[:4])


# What ours refuses and the official library lets pass, each on purpose.
STRICTER = ("duplicate", "twice", "control", "not supported", "more than 8", "padded", "end with", "begin with '{'", "integer",
            "number", "'shape' holds", "no pair of offsets", "2^53", "u0000", "is no size")


def official(path):
    try:
        with safe_open(path, "pt") as f:
            for k in f.keys():
                f.get_tensor(k)
        return None
    except Exception as e:  # whatever it is, it is a no
        return str(e)


def refused(rng, rounds):
    t = {"a": torch.arange(6, dtype=torch.float16).reshape(2, 3), "b": torch.arange(5, dtype=torch.int64), "c": torch.zeros(0, 3)}
    clear()
    save_file(t, "whole", metadata={"format": "pt"})
    with open("whole", "rb") as f:
        whole = f.read()
    n = struct.unpack("<Q", whole[:8])[0]
    stricter = {}
    both = passed = 0
    for i in range(rounds):
        b = bytearray(whole)
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            kind = rng.randrange(6)
            at = min(rng.randrange(8 + n) if kind else rng.randrange(8), len(b) - 1)
            if kind <= 2:
                b[at] = rng.choice(b"0123456789[]{}\":,. FIabc\x00\x09\xff") if at >= 8 else rng.randrange(256)
            elif kind == 3:
                b = b[:rng.randrange(len(b))] if rng.random() < 0.2 else b + rng.randbytes(1)
            elif at >= 8:
                # the header's length goes with what is put in or taken out
                if kind == 4:
                    b[at:at] = rng.choice((b"9", b"0", b"1", b",", b" ", b"-", b"[", b"]", b"\\u0000", b"\n"))
                else:
                    del b[at:at + rng.randrange(1, 4)]
                b[:8] = struct.pack("<Q", max(0, len(b) - len(whole) + n))
            if len(b) < 9:
                break
        with open("model.safetensors", "wb") as f:
            f.write(b)
        no, ours = official("model.safetensors"), dump(".")
        if isinstance(ours[0], int):
            assert ours[0] == 65 and "\n" not in ours[1], ours
            both += no is not None
            if no is None:
                why = [w for w in STRICTER if w in ours[1]]
                assert why, (bytes(b[:8 + n]), ours[1])
                stricter[why[0]] = stricter.get(why[0], 0) + 1
        else:
            assert no is None, (bytes(b[:8 + n]), no)
            with safe_open("model.safetensors", "pt") as f:
                assert sorted(f.keys()) == sorted(x[0] for x in ours[0]), (list(f.keys()), ours[0])
            passed += 1
    print(f"{rounds} spoilt headers: {both} refused by both, {passed} read by both, stricter: {stricter}")


def main():
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    rng = random.Random(seed)
    torch.manual_seed(seed)
    with tempfile.TemporaryDirectory() as d:
        os.chdir(d)
        saved(rng, 40)
        print("40 x 4 random checkpoints: equal")
        modules()
        print("modules and transformers' shards: equal")
        packed()
        print("compressed-tensors' words: equal")
        eight_bits()
        experts()
        print("8-bit floats and experts in one tensor: equal")
        refused(rng, 1500)
        os.chdir("/")


if __name__ == "__main__":
    main()
