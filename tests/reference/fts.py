#!/usr/bin/env python3
"""fts.py - streams of named tensors (FTS1), read and written from the pages of
forge-stream(5) alone: a second opinion on src/common/io/stream_*.c.

    import fts
    for t in fts.read(open("x.fts", "rb")):   # Tensor objects, streams in a row
        print(t.role, t.name, t.array().shape)
    fts.write(open("y.fts", "wb"), [fts.Tensor("weight", "m", array)])

    fts.py list FILE        role name dtype shape bytes, as forge-ls prints them
    fts.py check FILE       exit 1 and a reason when the stream is not valid
    fts.py copy IN OUT      read and write again (the same bytes, but for HEAD)

Needs python3-xxhash; numpy only for array() and for writing arrays."""
import json
import struct
import sys

import xxhash

ROLES = ["", "tokens", "hidden", "activation", "routing", "hessian", "cross",
         "weight", "qmeta", "codes", "scales", "zeros", "tensor", "hitmap",
         "map", "note", "index"]
DTYPES = ["", "F32", "F16", "BF16", "F64", "I8", "U8", "I16", "U16", "I32",
          "U32", "I64", "U64", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0", "U4",
          "QMETA4"]
BITS = [0, 32, 16, 16, 64, 8, 8, 16, 16, 32, 32, 64, 64, 8, 8, 8, 8, 4, 32]
HEAD, TENSOR, REF, ERROR, INDEX, END, ANCILLARY = 1, 2, 3, 4, 5, 6, 0x8000
TAGS = {1: "modules", 2: "samples", 3: "sequence", 4: "block", 5: "group",
        6: "scale_dtype", 7: "last", 8: "ref_path", 9: "ref_offset",
        10: "ref_hash"}
FORMATS = {2: "<Q", 3: "<Q", 4: "<I", 5: "<I", 6: "<H", 9: "<Q", 10: "<Q"}
HEADER = struct.Struct("<4sHHQQIIQQIQI")


class Bad(Exception):
    """The stream is not valid."""


def _crc_table():
    table = []
    for n in range(256):
        for _ in range(8):
            n = n >> 1 ^ 0x82F63B78 if n & 1 else n >> 1
        table.append(n)
    return table


_TABLE = _crc_table()


def crc32c(data):
    c = 0xFFFFFFFF
    for b in data:
        c = c >> 8 ^ _TABLE[(c ^ b) & 255]
    return c ^ 0xFFFFFFFF


def xxh3(data, seed=0):
    return xxhash.xxh3_64_intdigest(data, seed)


def padding(at, payload, end=False):
    align = 4096 if end or payload >= 1 << 20 else 64
    return -at % align if payload or end else 0


def content(so_far, header):
    """The hash of END: headers without their place, padding and checksum."""
    h = bytearray(header)
    h[8:24] = bytes(16)
    h[28:32] = bytes(4)
    h[60:64] = bytes(4)
    return xxh3(bytes(h), so_far)


class Tensor:
    """role, name, dtype, shape, payload (bytes); extra: the named entries."""

    def __init__(self, role, name, data=b"", dtype=None, shape=None,
                 ancillary=False, **extra):
        self.role, self.name, self.ancillary = role, name, ancillary
        self.extra = {k: v for k, v in extra.items() if v}
        if not isinstance(data, (bytes, bytearray, memoryview)):
            shape = list(data.shape) if shape is None else shape
            dtype = dtype or {"float32": "F32", "float16": "F16",
                              "float64": "F64", "int8": "I8", "uint8": "U8",
                              "int16": "I16", "uint16": "U16", "int32": "I32",
                              "uint32": "U32", "int64": "I64", "uint64": "U64",
                              "bool": "BOOL"}[str(data.dtype)]
            data = data.tobytes()
        self.payload = bytes(data)
        self.dtype = dtype or "U8"
        self.shape = [len(self.payload)] if shape is None else list(shape)

    def __getattr__(self, key):
        if key in TAGS.values():
            return self.extra.get(key)
        raise AttributeError(key)

    def array(self):
        """NumPy array; BF16 as float32, U4 as uint8 one each, QMETA4 as
        uint32, F8 as uint8 codes."""
        import numpy as np
        kind = {"F32": "<f4", "F16": "<f2", "F64": "<f8", "I8": "i1",
                "I16": "<i2", "U16": "<u2", "I32": "<i4", "U32": "<u4",
                "I64": "<i8", "U64": "<u8", "BOOL": "?", "BF16": "<u2",
                "QMETA4": "<u4"}.get(self.dtype, "u1")
        a = np.frombuffer(self.payload, kind)
        if self.dtype == "BF16":
            a = (a.astype("<u4") << 16).view("<f4")
        if self.dtype == "U4":
            a = np.stack([a & 15, a >> 4], -1)
        return a.reshape(self.shape)

    def json(self):
        return json.loads(self.payload)


def bf16(array):
    """float array -> BF16 payload bytes, rounded to nearest even."""
    import numpy as np
    u = np.ascontiguousarray(array, "<f4").view("<u4").astype("<u8")
    u = (u + 0x7FFF + (u >> 16 & 1)) >> 16
    return u.astype("<u2").tobytes()


def _read(f, n):
    data = f.read(n)
    if len(data) != n:
        raise Bad("input ends early")
    return data


def _need(ok, why):
    if not ok:
        raise Bad(why)


def _meta(meta, kind):
    _need(len(meta) >= 8, "short meta")
    role, dtype, ndim, zero, name_len = struct.unpack_from("<HHBBH", meta)
    _need(zero == 0 and 0 < role < len(ROLES) and 0 < dtype < len(DTYPES),
          "unknown role or dtype")
    _need(ndim <= 8 and 0 < name_len <= 512, "limits")
    at = 8 + 8 * ndim
    _need(len(meta) >= at + name_len, "short meta")
    dims = list(struct.unpack_from("<%dQ" % ndim, meta, 8))
    name = meta[at:at + name_len].decode("utf-8")
    _need(not any(ord(c) < 32 or 127 <= ord(c) < 160 for c in name), "name")
    at += name_len
    extra, last = {}, 0
    while at < len(meta):
        _need(at + 4 <= len(meta), "short entry")
        tag, n = struct.unpack_from("<HH", meta, at)
        _need(tag > last and at + 4 + n <= len(meta), "entry order or length")
        last, value = tag, meta[at + 4:at + 4 + n]
        at += 4 + n
        if tag in FORMATS:
            _need(n == struct.calcsize(FORMATS[tag]), "entry size")
            v = struct.unpack(FORMATS[tag], value)[0]
            _need(v or tag > 8, "entry is zero")
            extra[TAGS[tag]] = DTYPES[v] if tag == 6 else v
        elif tag == 1:
            extra["modules"] = value.decode("utf-8").split("\n")
            _need(all(extra["modules"]), "modules")
        elif tag == 7:
            _need(n == 0, "entry size")
            extra["last"] = True
        elif tag == 8:
            extra["ref_path"] = value.decode("utf-8")
        else:
            _need(tag & 0x8000, "entry %d is unknown" % tag)
    _need(("ref_path" in extra) == (kind & 0x7FFF == REF), "reference")
    count = BITS[dtype]
    for d in dims:
        _need(d <= 1 << 40, "dimension")
        count *= d
    _need(count % 8 == 0 and count // 8 <= 1 << 46, "size")
    t = Tensor(ROLES[role], name, b"", DTYPES[dtype], dims,
               bool(kind & ANCILLARY), **extra)
    return t, count // 8


def _frames(f):
    """One stream: yields Tensors; the first thing is the HEAD object."""
    at = seq = tensors = total = hashed = 0
    seen = set()
    while True:
        header = f.read(64)
        if not header and seq == 0:
            return
        _need(len(header) == 64, "input ends early")
        (magic, kind, flags, s, off, meta_len, pad, n, payload_hash, meta_crc,
         reserved, crc) = HEADER.unpack(header)
        _need(magic == b"FTS1", "magic")
        _need(crc32c(header[:60]) == crc, "header checksum")
        _need(flags == 0 and reserved == 0, "reserved bits")
        _need(s == seq and off == at, "order")
        _need((kind == HEAD) == (seq == 0), "HEAD")
        _need(meta_len <= (1 << 20 if kind == HEAD else 1 << 16), "meta size")
        _need(n <= 1 << 46, "payload size")
        _need(pad == padding(at + 64 + meta_len, n, kind == END), "padding")
        meta = _read(f, meta_len)
        _need(crc32c(meta) == meta_crc, "meta checksum")
        _need(_read(f, pad) == bytes(pad), "padding is not zero")
        payload = _read(f, n)
        _need(xxh3(payload) == payload_hash, "payload checksum")
        at += 64 + meta_len + pad + n
        base = kind & 0x7FFF
        if kind == END:
            _need(meta == struct.pack("<QQQQ", seq, tensors, total, hashed),
                  "END disagrees")
            return
        if kind == ERROR:
            raise Bad("upstream: " + meta[4:].decode("utf-8", "replace"))
        if kind == HEAD:
            head = json.loads(meta)
            _need(head.get("format") == "FTS1", "format")
            yield head
        elif base in (TENSOR, REF):
            t, size = _meta(meta, kind)
            _need(n == (0 if base == REF else size), "shape and payload")
            t.payload = payload
            key = (t.role, t.dtype if t.role == "routing" else "", t.name,
                   t.sequence)
            if not t.ancillary and t.role != "note":
                _need(key not in seen, "twice: %s %s" % (t.role, t.name))
                seen.add(key)
            tensors += 1
            yield t
        else:
            _need(kind & ANCILLARY or kind == INDEX, "kind %d" % kind)
        seq += 1
        total += n
        if not kind & ANCILLARY:
            hashed = content(hashed, header)


def read(f, heads=None):
    """All tensors of all streams in f; the HEAD objects go to `heads`."""
    streams = 0
    while True:
        n = 0
        for t in _frames(f):
            if n == 0:
                if heads is not None:
                    heads.append(t)
            else:
                yield t
            n += 1
        if n == 0:
            _need(streams, "input ends early")
            return
        streams += 1


def load(path):
    """{(role, name): Tensor} of a file; sequences as (role, name, n)."""
    out = {}
    with open(path, "rb") as f:
        for t in read(f):
            key = (t.role, t.name)
            out[key + (t.sequence,) if t.sequence else key] = t
    return out


def _pack_meta(t):
    name = t.name.encode()
    meta = struct.pack("<HHBBH", ROLES.index(t.role), DTYPES.index(t.dtype),
                       len(t.shape), 0, len(name))
    meta += struct.pack("<%dQ" % len(t.shape), *t.shape) + name
    for tag, key in sorted(TAGS.items()):
        v = t.extra.get(key)
        if v is None or (not v and tag < 9):
            continue
        if tag == 1:
            value = (v if isinstance(v, str) else "\n".join(v)).encode()
        elif tag == 6:
            value = struct.pack("<H", DTYPES.index(v))
        elif tag == 7:
            value = b""
        elif tag == 8:
            value = v.encode()
        else:
            value = struct.pack(FORMATS[tag], v)
        meta += struct.pack("<HH", tag, len(value)) + value
    return meta


class Writer:
    def __init__(self, f, head=None):
        self.f = f
        self.at = self.seq = self.tensors = self.total = self.hashed = 0
        head = dict(head or {}, format="FTS1")
        self.frame(HEAD, json.dumps(head).encode())

    def frame(self, kind, meta, payload=b""):
        pad = padding(self.at + 64 + len(meta), len(payload), kind == END)
        header = HEADER.pack(b"FTS1", kind, 0, self.seq, self.at, len(meta),
                             pad, len(payload), xxh3(payload), crc32c(meta),
                             0, 0)
        header = header[:60] + struct.pack("<I", crc32c(header[:60]))
        self.f.write(header + meta + bytes(pad))
        self.f.write(payload)
        self.at += 64 + len(meta) + pad + len(payload)
        self.seq += 1
        self.total += len(payload)
        if not kind & ANCILLARY:
            self.hashed = content(self.hashed, header)

    def tensor(self, t):
        kind = REF if t.ref_path else TENSOR
        self.frame(kind | (ANCILLARY if t.ancillary else 0), _pack_meta(t),
                   t.payload)
        self.tensors += 1

    def end(self):
        self.frame(END, struct.pack("<QQQQ", self.seq, self.tensors,
                                    self.total, self.hashed))
        self.f.flush()


def write(f, tensors, head=None):
    w = Writer(f, head)
    for t in tensors:
        w.tensor(t)
    w.end()


def _main(argv):
    if len(argv) < 3 or argv[1] not in ("list", "check", "copy"):
        sys.exit(__doc__)
    try:
        with open(argv[2], "rb") as f:
            heads = []
            tensors = list(read(f, heads))
        if argv[1] == "list":
            for t in tensors:
                print(t.role, t.name, t.dtype, "x".join(map(str, t.shape)),
                      len(t.payload), sep="\t")
        elif argv[1] == "copy":
            with open(argv[3], "wb") as f:
                write(f, tensors, heads[0])
    except (Bad, UnicodeDecodeError, ValueError) as why:
        print("fts.py: '%s': %s" % (argv[2], why), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv))
