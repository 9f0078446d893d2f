#!/usr/bin/env python3
"""Tiny checkpoints of every kind, written with the standard library and NumPy.

    checkpoints.py make KIND DIR     writes DIR (config.json and tensors) and
                                     DIR.npz, the tensors' true values
    checkpoints.py check DIR HOW     runs ckdump on DIR and compares
                                     HOW: all, linear, bf16, parts
    checkpoints.py stream FILE DIR HOW   compares a stream of forge-weights
                                     HOW: plain, parts, dequantized
    checkpoints.py names FILE        "role name" of each frame
    checkpoints.py file OUT JSON     a safetensors file of this header's text
                                     and one byte of data for each @ behind it

Kinds: single sharded bin bin-sharded awq gptq gptq_v2 gptq-short gptq-act
gptq-8bit ct-sym ct-asym ct-channel ct-short ct-8bit ct-asym-8bit; of those with
8bit every other linear has 4 bits.  The packers follow the formats' papers.
"""
import io
import json
import os
import pickle
import struct
import subprocess
import sys
import types
import zipfile

import numpy as np

HIDDEN, INTER, LAYERS, VOCAB = 64, 96, 2, 80
AWQ = (0, 2, 4, 6, 1, 3, 5, 7)
DTYPES = {"F32": 4, "F16": 2, "BF16": 2, "F64": 8, "I8": 1, "U8": 1, "I16": 2, "U16": 2,
          "I32": 4, "I64": 8, "BOOL": 1, "F8_E4M3": 1}

# A tensor is (dtype name, shape, bytes).


def bf16(a):
    """float32 to the 16 bits of bfloat16, to nearest even; no NaN comes here."""
    u = a.astype(np.float32).view(np.uint32)
    return ((u + 0x7fff + ((u >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(h):
    return (h.astype(np.uint32) << 16).view(np.float32)


def tensor(a, dtype=None):
    names = {"float32": "F32", "float16": "F16", "float64": "F64", "int32": "I32", "int64": "I64",
             "int8": "I8", "uint8": "U8"}
    if dtype == "BF16":
        return ("BF16", a.shape, bf16(a).tobytes())
    return (names[a.dtype.name], a.shape, np.ascontiguousarray(a).tobytes())


# ---- files -------------------------------------------------------------------

def save_safetensors(path, tensors, metadata=None):
    head, at = {}, 0
    if metadata is not None:
        head["__metadata__"] = metadata
    order = sorted(tensors, key=lambda n: (-DTYPES[tensors[n][0]], n))
    for n in order:
        d, shape, b = tensors[n]
        head[n] = {"dtype": d, "shape": list(shape), "data_offsets": [at, at + len(b)]}
        at += len(b)
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(tensors[n][2] for n in order))


CLASSES = {"F32": "FloatStorage", "F16": "HalfStorage", "BF16": "BFloat16Storage", "F64": "DoubleStorage",
           "I64": "LongStorage", "I32": "IntStorage", "I16": "ShortStorage", "I8": "CharStorage",
           "U8": "ByteStorage", "BOOL": "BoolStorage"}


def torch_modules():
    """Stand-ins that the pickler finds under torch's names."""
    torch, utils, storage = (types.ModuleType(n) for n in ("torch", "torch._utils", "torch.storage"))
    for c in CLASSES.values():
        setattr(torch, c, type(c, (), {"__module__": "torch"}))
    storage.UntypedStorage = type("UntypedStorage", (), {"__module__": "torch.storage"})
    for n in ("_rebuild_tensor_v2", "_rebuild_tensor_v3", "_rebuild_parameter"):
        exec(f"def {n}(*a): pass", utils.__dict__)
        getattr(utils, n).__module__ = "torch._utils"
    exec("def float8_e4m3fn(): pass", torch.__dict__)
    torch.float8_e4m3fn.__module__ = "torch"
    sys.modules.update({"torch": torch, "torch._utils": utils, "torch.storage": storage})
    return torch, utils, storage


class Storage:
    def __init__(self, key, dtype, count):
        self.key, self.dtype, self.count = key, dtype, count


class Tensor:
    def __init__(self, storage, offset, size, stride):
        self.args = (storage, offset, tuple(size), tuple(stride))


class Pickler(pickle.Pickler):
    def __init__(self, f):
        super().__init__(f, protocol=2)
        self.torch, self.utils, self.storage = torch_modules()

    def persistent_id(self, o):
        if not isinstance(o, Storage):
            return None
        if o.dtype == "F8_E4M3":
            return ("storage", self.storage.UntypedStorage, o.key, "cpu", o.count)
        return ("storage", getattr(self.torch, CLASSES[o.dtype]), o.key, "cpu", o.count)

    def reducer_override(self, o):
        from collections import OrderedDict
        if not isinstance(o, Tensor):
            return NotImplemented
        a = o.args + (False, OrderedDict())
        if o.args[0].dtype == "F8_E4M3":
            return self.utils._rebuild_tensor_v3, a + (self.torch.float8_e4m3fn,)
        return self.utils._rebuild_tensor_v2, a


def strides(shape):
    out, n = [], 1
    for d in reversed(shape):
        out.insert(0, n)
        n *= max(d, 1)
    return out


def write_zip(path, records, root="archive", method=zipfile.ZIP_STORED):
    """records: name to bytes; payloads begin at multiples of 64, as torch has them."""
    with zipfile.ZipFile(path, "w") as z:
        for name, data in records.items():
            i = zipfile.ZipInfo(f"{root}/{name}")
            i.compress_type = method
            pad = -(z.fp.tell() + 30 + len(i.filename) + 4) % 64
            i.extra = struct.pack("<HH", 0x4246, pad) + b"Z" * pad
            z.writestr(i, data)


def save_bin(path, tensors, root="archive", views=True, **more):
    """Every other matrix is stored turned round, and the rest with an offset, if views."""
    from collections import OrderedDict
    out, records = OrderedDict(), {}
    for i, (n, (d, shape, b)) in enumerate(tensors.items()):
        size = DTYPES[d]
        a = np.frombuffer(b, f"V{size}").reshape(shape)
        stride, offset, raw = strides(shape), 0, b
        if views and len(shape) == 2 and i % 2:
            raw, stride = np.ascontiguousarray(a.T).tobytes(), [1, shape[0]]
        elif views and i % 3 == 0:
            raw, offset = b"\xee" * 3 * size + b + b"\xdd" * size, 3
        records[f"data/{i}"] = raw
        count = len(raw) if d == "F8_E4M3" else len(raw) // size
        out[n] = Tensor(Storage(str(i), d, count), offset, shape, stride)
    f = io.BytesIO()
    Pickler(f).dump(out)
    head = {"data.pkl": f.getvalue(), ".format_version": b"1", "byteorder": b"little"}
    write_zip(path, {**head, **records, "version": b"3\n", **more}, root)


# ---- the model ---------------------------------------------------------------

def linears():
    for i in range(LAYERS):
        p = f"model.layers.{i}."
        for n, o, c in (("self_attn.q_proj", HIDDEN, HIDDEN), ("self_attn.k_proj", HIDDEN // 2, HIDDEN),
                        ("self_attn.v_proj", HIDDEN // 2, HIDDEN), ("self_attn.o_proj", HIDDEN, HIDDEN),
                        ("mlp.gate_proj", INTER, HIDDEN), ("mlp.up_proj", INTER, HIDDEN),
                        ("mlp.down_proj", HIDDEN, INTER)):
            yield p + n, o, c


def config(**more):
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": HIDDEN,
            "intermediate_size": INTER, "num_hidden_layers": LAYERS, "num_attention_heads": 4,
            "num_key_value_heads": 2, "vocab_size": VOCAB, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
            "max_position_embeddings": 128, "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False,
            "torch_dtype": "bfloat16", **more}


def others(rng):
    t = {"model.embed_tokens.weight": tensor(rng.normal(size=(VOCAB, HIDDEN)), "BF16"),
         "lm_head.weight": tensor(rng.normal(size=(VOCAB, HIDDEN)), "BF16"),
         "model.norm.weight": tensor(rng.normal(size=HIDDEN), "BF16")}
    for i in range(LAYERS):
        for n in ("input_layernorm", "post_attention_layernorm"):
            t[f"model.layers.{i}.{n}.weight"] = tensor(rng.normal(size=HIDDEN), "BF16")
        t[f"model.layers.{i}.self_attn.rotary_emb.inv_freq"] = tensor(rng.normal(size=8).astype(np.float32))
    return t


def plain(rng):
    t, k = others(rng), 0
    for m, o, c in linears():
        w = rng.normal(size=(o, c)).astype(np.float32)
        w[0, :3] = np.inf, -np.inf, np.nan if k % 3 else 0  # data, not an error
        d = ("BF16", "F16", "F32", "F64")[k % 4]
        k += 1
        if d == "BF16":
            w[0, 2] = 0  # bf16() knows no NaN
            t[m + ".weight"] = tensor(w, "BF16")
        else:
            t[m + ".weight"] = tensor(w.astype({"F16": np.float16, "F32": np.float32, "F64": np.float64}[d]))
    return t


def pack(v, axis, bits=4):
    """uint8 codes to int32 words along axis, the first in the low bits."""
    per = 32 // bits
    v = np.moveaxis(v.astype(np.uint32), axis, -1)
    v = np.concatenate([v, np.zeros(v.shape[:-1] + (-v.shape[-1] % per,), np.uint32)], -1)
    v = v.reshape(v.shape[:-1] + (-1, per))
    w = sum(v[..., j] << np.uint32(bits * j) for j in range(per)).astype(np.uint32)
    return np.ascontiguousarray(np.moveaxis(w, -1, axis)).view(np.int32)


def pack_awq(v):
    """[n, O] to [n, O/8] in AWQ's order."""
    v = v.reshape(v.shape[0], -1, 8)[..., list(AWQ)]
    return pack(v.reshape(v.shape[0], -1), 1)


def quantized(rng, kind, group):
    """-> tensors, true parts {module: (codes, zeros, scales, groups of the inputs)}"""
    t, truth = others(rng), {}
    del t["model.layers.0.self_attn.rotary_emb.inv_freq"]
    for n, (m, o, c) in enumerate(linears()):
        bits = 8 if kind.endswith("-8bit") and n % 2 else 4
        gs = c if kind == "ct-channel" else group
        g = -(-c // gs)
        q = rng.integers(0, 2**bits, (o, c), np.uint8)
        z = rng.integers(0, 2**bits, (o, g), np.uint8)
        s = rng.uniform(0.01, 0.1, (o, g)).astype(np.float16)
        gi = np.arange(c) // gs
        if kind in ("ct-sym", "ct-channel", "ct-short", "ct-8bit"):
            z[:] = 2**bits // 2
        if kind == "gptq-act":
            gi = rng.permutation(gi)
        if kind == "awq":
            t |= {m + ".qweight": tensor(pack_awq(np.ascontiguousarray(q.T))),
                  m + ".qzeros": tensor(pack_awq(np.ascontiguousarray(z.T))), m + ".scales": tensor(s.T)}
        elif kind.startswith("gptq"):
            qz = pack(z.T, 1, bits).view(np.uint32)
            if kind != "gptq_v2":
                qz = (qz - np.uint32(0x11111111 if bits == 4 else 0x01010101)).astype(np.uint32)
            t |= {m + ".qweight": tensor(pack(q, 1, bits).T), m + ".qzeros": tensor(qz.view(np.int32)),
                  m + ".scales": tensor(s.T), m + ".g_idx": tensor(gi.astype(np.int32))}
        else:
            t |= {m + ".weight_packed": tensor(pack(q, 1, bits)), m + ".weight_scale": tensor(s.astype(np.float32), "BF16"),
                  m + ".weight_shape": tensor(np.array([o, c], np.int64))}
            s = from_bf16(bf16(s.astype(np.float32)))
            if kind.startswith("ct-asym"):
                t[m + ".weight_zero_point"] = tensor(pack(z, 0, bits))
        truth[m] = (q, z, s, gi)
    return t, truth


def quant_config(kind, group):
    if kind == "awq":
        return {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm"}
    if kind.startswith("gptq"):
        return {"quant_method": "gptq", "bits": 4, "group_size": group, "desc_act": kind == "gptq-act", "sym": False,
                "checkpoint_format": "gptq_v2" if kind == "gptq_v2" else "gptq"}
    w = {"num_bits": 4, "type": "int", "symmetric": not kind.startswith("ct-asym"), "strategy": "group", "group_size": group}
    if kind == "ct-channel":
        w.update(strategy="channel", group_size=None)
    return {"quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed",
            "ignore": ["lm_head"], "config_groups": {"group_0": {"targets": ["Linear"], "weights": w}}}


def write(kind, d, tensors, **conf):
    os.makedirs(d, exist_ok=True)
    with open(f"{d}/config.json", "w") as f:
        json.dump(config(**conf), f)
    if "sharded" not in kind:
        save = save_bin if kind == "bin" else save_safetensors
        save(f"{d}/{'pytorch_model.bin' if kind == 'bin' else 'model.safetensors'}", tensors)
        return
    names, n = sorted(tensors), 3
    stem, ext, save = ("pytorch_model", "bin", save_bin) if kind[0] == "b" else ("model", "safetensors", save_safetensors)
    wm = {}
    for i in range(n):
        f = f"{stem}-{i + 1:05d}-of-{n:05d}.{ext}"
        part = {k: tensors[k] for k in names[i::n]}
        save(f"{d}/{f}", part)
        wm.update({k: f for k in part})
    total = sum(len(b) for _, _, b in tensors.values())
    with open(f"{d}/{stem}.{ext}.index.json", "w") as f:
        json.dump({"metadata": {"total_size": total}, "weight_map": wm}, f)


def make(kind, d):
    rng = np.random.default_rng(sum(kind.encode()))
    group = 40 if kind.endswith("-short") else 32
    if kind in ("single", "sharded", "bin", "bin-sharded"):
        t, truth = plain(rng), None
        write(kind, d, t)
    else:
        t, truth = quantized(rng, kind, group)
        write("single", d, t, quantization_config=quant_config(kind, group))
    with open(f"{d}.truth", "wb") as f:
        pickle.dump((t, truth), f)


# ---- .bin files that are to be refused -----------------------------------------

def _records(**more):
    f = io.BytesIO()
    Pickler(f).dump({"w": Tensor(Storage("0", "F32", 4), 0, (2, 2), (2, 1))})
    return {"data.pkl": f.getvalue(), "data/0": bytes(16), **more}


def _tensor(tensor):
    f = io.BytesIO()
    Pickler(f).dump({"w": tensor})
    return _records(**{"data.pkl": f.getvalue()})


def good_bin(path):
    write_zip(path, _records(byteorder=b"little"))


def big_bin(path):
    write_zip(path, _records(byteorder=b"big"))


def system_bin(path):
    write_zip(path, _records(**{"data.pkl": b"\x80\2cposix\nsystem\nX\4\0\0\0true\x85R."}))


def deflated_bin(path):
    write_zip(path, _records(), method=zipfile.ZIP_DEFLATED)


def beyond_bin(path):
    write_zip(path, _tensor(Tensor(Storage("0", "F32", 4), 1, (2, 2), (2, 1))))


def far_bin(path):
    write_zip(path, _tensor(Tensor(Storage("0", "F32", 4), 0, (2, 2), (2 ** 62, 1))))


def huge_bin(path):
    write_zip(path, _tensor(Tensor(Storage("0", "F32", 4), 0, (2 ** 40, 2), (0, 1))))


def wide_bin(path):
    write_zip(path, _tensor(Tensor(Storage("0", "F32", 5), 0, (2, 2), (2, 1))))


def lost_bin(path):
    write_zip(path, _tensor(Tensor(Storage("9", "F32", 4), 0, (2, 2), (2, 1))))


def legacy_bin(path):
    with open(path, "wb") as f:
        f.write(b"\x80\2\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.")


def tar_bin(path):
    import tarfile
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as t:
        t.addfile(tarfile.TarInfo("sys_info"))


def nopickle_bin(path):
    write_zip(path, {"data/0": bytes(16)})


# ---- comparing ---------------------------------------------------------------

def floats(t):
    d, shape, b = t
    if d == "BF16":
        return from_bf16(np.frombuffer(b, np.uint16)).reshape(shape)
    return np.frombuffer(b, {"F16": np.float16, "F32": np.float32, "F64": np.float64}[d]).astype(np.float32).reshape(shape)


def value(tensors, truth, m):
    if not truth:
        return floats(tensors[m + ".weight"])
    q, z, s, gi = truth[m]
    return (q.astype(np.float32) - z[:, gi].astype(np.float32)) * s[:, gi].astype(np.float32)


def dump(d, *how):
    out = d + ".out"
    lines = subprocess.run(["ckdump", d, out, *how], stdout=subprocess.PIPE, check=True, text=True).stdout.splitlines()
    return [x.split() for x in lines], open(out, "rb")


def check(d, how):
    with open(f"{d}.truth", "rb") as f:
        tensors, truth = pickle.load(f)
    mods = [m for m, _, _ in linears()]
    lines, f = dump(d, *([] if how == "all" else [how, *mods]))
    if how == "all":
        assert sorted(x[0] for x in lines) == sorted(tensors), "names"
    else:
        assert [x[0] for x in lines] == mods, "modules"
    for x in lines:
        if how == "all":
            want = tensors[x[0]]
            assert (x[1], [int(n) for n in x[2:]]) == (want[0], list(want[1])), x
            assert f.read(len(want[2])) == want[2], x[0]
        elif how == "parts":
            q, z, s, gi = truth[x[0]]
            assert [int(n) for n in x[1:4]] == [*q.shape, z.shape[1]], x
            wide = q.max() > 15
            b = np.frombuffer(f.read(q.size // (1 if wide else 2)), np.uint8).reshape(q.shape[0], -1)
            got = b if wide else np.stack([b & 15, b >> 4], -1).reshape(q.shape)
            assert (got == q).all(), x[0] + ": codes"
            assert f.read(z.size) == z.tobytes(), x[0] + ": zeros"
            want = bf16(s) if x[5] == "BF16" else s
            assert f.read(z.size * 2) == want.tobytes(), x[0] + ": scales"
        else:
            w = value(tensors, truth, x[0])
            assert [int(n) for n in x[1:]] == list(w.shape), x
            got = f.read(w.size * (4 if how == "linear" else 2))
            if how == "linear":
                assert np.array_equal(np.frombuffer(got, np.float32), w.ravel(), equal_nan=True), x[0]
            else:
                ok = np.isfinite(w.ravel())
                assert (np.frombuffer(got, np.uint16)[ok] == bf16(w).ravel()[ok]).all(), x[0]
    assert not f.read(), "more bytes"


# ---- streams -----------------------------------------------------------------

ROLES = {7: "weight", 9: "codes", 10: "scales", 11: "zeros", 12: "tensor", 16: "index"}
STREAM_DTYPES = {1: "F32", 2: "F16", 3: "BF16", 4: "F64", 6: "U8", 9: "I32", 17: "U4"}


def frames(path):
    """(role, name, dtype, dims, group, payload) of each tensor; forge-stream(5)."""
    with open(path, "rb") as f:
        b = f.read()
    at = 0
    while at < len(b):
        magic, kind, _, _, _, meta, pad, n = struct.unpack_from("<4sHHQQIIQ", b, at)
        assert magic == b"FTS1"
        m, at = at + 64, at + 64 + meta + pad + n
        if kind != 2:
            continue
        role, dtype, ndim, length = struct.unpack_from("<HHHH", b, m)
        dims = struct.unpack_from(f"<{ndim}Q", b, m + 8)
        e = m + 8 + 8 * ndim + length
        name, group = b[e - length:e].decode(), None
        while e < m + meta:
            tag, size = struct.unpack_from("<HH", b, e)
            if tag == 5:
                group, = struct.unpack_from("<I", b, e + 4)
            e += 4 + size
        yield ROLES[role], name, STREAM_DTYPES[dtype], dims, group, b[at - n:at]


def u4(b, shape):
    b = np.frombuffer(b, np.uint8)
    return np.stack([b & 15, b >> 4], -1).reshape(shape)


def check_stream(path, d, how):
    with open(f"{d}.truth", "rb") as f:
        tensors, truth = pickle.load(f)
    want = {k for k in tensors if not k.endswith("inv_freq")}
    parts = ("qweight", "qzeros", "scales", "g_idx", "weight_packed", "weight_scale", "weight_shape",
             "weight_zero_point") if truth else ()
    want = {("tensor", k) for k in want if not (k.endswith(parts) and parts)}
    for m, _, _ in linears():
        if how == "plain":
            want.remove(("tensor", m + ".weight"))
        want |= {(r, m) for r in (("codes", "scales", "zeros") if how == "parts" else ("weight",))}
        if how == "parts" and (np.diff(truth[m][3]) < 0).any():
            want.add(("index", m))
    got = list(frames(path))
    assert {x[:2] for x in got} == want and len(got) == len(want), {x[:2] for x in got} ^ want
    for role, name, dtype, dims, group, b in got:
        if role == "tensor" or how == "plain":
            t = tensors[name + (".weight" if role == "weight" else "")]
            assert (dtype, dims, b) == t, name
            continue
        q, z, s, gi = truth[name]
        if role == "weight":
            w = np.frombuffer(b, np.float32).reshape(dims)
            assert (w == value(tensors, truth, name)).all(), name
            continue
        assert group == -(-q.shape[1] // z.shape[1]) or d.endswith("short") and group == 40, (name, group)
        if role == "index":
            assert dtype == "I32" and b == gi.astype("<i4").tobytes(), name
        elif role == "scales":
            assert b == (bf16(s) if dtype == "BF16" else s).tobytes(), name
        else:
            v = q if role == "codes" else z
            read = u4(b, v.shape) if dtype == "U4" else np.frombuffer(b, np.uint8).reshape(v.shape)
            assert dtype == ("U8" if q.max() > 15 else "U4") and (read == v).all(), (name, role)


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(*sys.argv[2:])
    elif sys.argv[1] == "check":
        check(*sys.argv[2:])
    elif sys.argv[1] == "stream":
        check_stream(*sys.argv[2:])
    elif sys.argv[1] == "names":
        for x in frames(sys.argv[2]):
            print(*x[:2])
    elif sys.argv[1] == "file":
        text = sys.argv[3].rstrip("@")
        with open(sys.argv[2], "wb") as out:
            out.write(struct.pack("<Q", len(text)) + text.encode() + b"\1" * (len(sys.argv[3]) - len(text)))
    elif sys.argv[1] == "bin":
        globals()[sys.argv[2] + "_bin"](sys.argv[3])
