#!/usr/bin/env python3
"""What tests/cli/tokens.bats checks against, from Python alone.

  rows FILE          the payloads of an FTS1 stream of tokens, a line each
  cut N T PRE SUF    a line of ids on stdin (special tokens at both ends) cut
                     into N sequences of T, as forge-tokens(1) says
  npy OUT DTYPE [1]  lines of ids on stdin as a .npy (1: one dimension)
  text CHARS         readable text, CHARS characters
"""
import struct
import sys

WORDS = ("the king said that it's 1234 of them, and the queen would not go; "
         "naïve café 中文文本 😀 don't x = y[1];\n\n  Привет мир ").split(" ")


def frames(data):
    at = 0
    while at < len(data):
        magic, kind, _flags, _seq, _off, meta, pad, size = struct.unpack_from("<4sHHQQIIQ", data, at)
        assert magic == b"FTS1"
        at += 64 + meta + pad
        yield kind, data[at:at + size]
        at += size


def rows(path):
    with open(path, "rb") as f:
        data = f.read()
    for kind, payload in frames(data):
        if kind == 2:
            print(*struct.unpack(f"<{len(payload) // 4}i", payload))


def cut(n, t, pre, suf):
    ids = sys.stdin.read().split()
    head, tail = ids[:pre], ids[len(ids) - suf:]
    ids = ids[pre:len(ids) - suf]
    body = t - pre - suf
    for i in range(min(n, len(ids) // body)):
        print(*head, *ids[i * body:(i + 1) * body], *tail)


def npy(out, dtype, flat=False):
    """Version 1.0 of the format, as numpy.save writes it."""
    table = [[int(w) for w in line.split()] for line in sys.stdin]
    shape = f"({len(table[0])},)" if flat else f"({len(table)}, {len(table[0])})"
    head = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}"
    head += " " * (-(len(head) + 11) % 64) + "\n"
    with open(out, "wb") as f:
        f.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode())
        for row in table:
            f.write(struct.pack(f"<{len(row)}{'q' if dtype == '<i8' else 'i'}", *row))


def text(chars):
    out, n, k = [], 0, 1
    while n < chars:
        k = (k * 75 + 74) % 65537
        word = WORDS[k % len(WORDS)] + " "
        out.append(word)
        n += len(word)
    sys.stdout.buffer.write("".join(out)[:chars].encode())


if __name__ == "__main__":
    command, *args = sys.argv[1:]
    if command == "rows":
        rows(*args)
    elif command == "npy":
        npy(args[0], args[1], len(args) > 2)
    else:
        {"cut": cut, "text": text}[command](*map(int, args))
