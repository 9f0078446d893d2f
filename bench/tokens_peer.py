#!/usr/bin/env python3
"""MB/s of the tokenizers package on one thread, as bench/tokens_bench.c measures ours.

    tokens_peer.py TOKENIZER.json TEXT [MB [PIECE]]

Prints the number of ids and their sum too, which must be those of tokens_bench.
"""
import os
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"


def pieces(raw, size):
    at = 0
    while at < len(raw):
        end = min(at + size, len(raw)) if size else len(raw)
        while end < len(raw) and raw[end] & 0xc0 == 0x80:
            end -= 1
        yield raw[at:end].decode()
        at = end


def main():
    import tokenizers
    tok = tokenizers.Tokenizer.from_file(sys.argv[1])
    tok.no_truncation()
    tok.no_padding()
    with open(sys.argv[2], "rb") as f:
        raw = f.read()
    if len(sys.argv) > 3:
        n = int(float(sys.argv[3]) * 1e6)
        while n < len(raw) and raw[n] & 0xc0 == 0x80:
            n -= 1
        raw = raw[:n]
    parts = list(pieces(raw, int(sys.argv[4]) if len(sys.argv) > 4 else 100000))
    tok.encode(parts[0], add_special_tokens=False)
    best, count, total = 1e30, 0, 0
    for _ in range(2):
        start = time.perf_counter()
        ids = [tok.encode(p, add_special_tokens=False).ids for p in parts]
        best = min(best, time.perf_counter() - start)
        count, total = sum(map(len, ids)), sum(map(sum, ids))
    print(f"tokenizers {tokenizers.__version__}: {sys.argv[1]}: {len(raw) / 1e6:.1f} MB, {count} ids, "
          f"sum {total}, best {len(raw) / 1e6 / best:.1f} MB/s")


if __name__ == "__main__":
    main()
