#!/usr/bin/env python3
"""forge-tokens against the tokenizers package: the ids of hard texts, and how sequences are cut.

    tokens_check.py [--tokenizer DIR]... [--seed N] [FILE...]

Tokenizers: many shapes trained here on a few words, the example model's, and those given; texts: generated hard
cases and the files given (JSON lines with "text", else plain text).  Exit 1 if any id differs.
"""
import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from tokenizers import (AddedToken, Regex, Tokenizer, models, normalizers,
                        pre_tokenizers, processors, trainers)

TREE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TREE / "tests/reference"))
from make_token_golden import DEEPSEEK, LLAMA3, QWEN2, WORDS  # noqa: E402

O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
BEHAVIORS = ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous")
ADDED = [AddedToken("<sep>", lstrip=True, rstrip=True), AddedToken("word", single_word=True), AddedToken("é"),
         AddedToken("<ab", normalized=False), AddedToken("<abc>", normalized=False, rstrip=True),
         AddedToken("  ", normalized=False), AddedToken("Å", lstrip=True)]


def byte_level(use_regex=False, prefix=False):
    return pre_tokenizers.ByteLevel(prefix, use_regex=use_regex)


def split(*patterns, behavior="isolated", invert=False):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(p, behavior, invert) for p in patterns] + [byte_level()])


def train(pre, normalizer=None, added=(), special=("<|endoftext|>",), template=None, **bpe):
    t = Tokenizer(models.BPE(**bpe))
    t.normalizer, t.pre_tokenizer = normalizer, pre
    t.train_from_iterator([WORDS], trainers.BpeTrainer(
        vocab_size=600, special_tokens=list(special), show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    if template:
        t.post_processor = processors.TemplateProcessing(single=template, special_tokens=[(special[0], 0)])
    t.add_tokens(list(added))
    return json.loads(t.to_str())


def fallback(change=None, whole=False, **final):
    """Llama 2: words when trained, whole texts when used; change(dict) edits the file."""
    t = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=not whole)
    special = ["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)]
    t.train_from_iterator(WORDS.split("\n") if whole else [WORDS], trainers.BpeTrainer(
        vocab_size=650, special_tokens=special, show_progress=False, limit_alphabet=90))
    t.pre_tokenizer = final.get("pre") or pre_tokenizers.Metaspace()
    if final.get("normalizer"):
        t.normalizer = final["normalizer"]
    t.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
    d = json.loads(t.to_str())
    if not final.get("pre"):
        d["pre_tokenizer"] = None
    d["added_tokens"] = [a for a in d["added_tokens"] if a["id"] < 3]
    if change:
        change(d)
    return d


def shapes():
    nfc = normalizers.NFC()
    legacy = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    gpt2 = byte_level(use_regex=True)
    yield "gpt2", train(gpt2)
    yield "gpt2-prefix", train(byte_level(True, True), added=ADDED)
    yield "llama3", train(split(Regex(LLAMA3)), ignore_merges=True, special=["<|begin_of_text|>"],
                          template="<|begin_of_text|> $A")
    yield "llama3-added", train(split(Regex(LLAMA3)), added=ADDED)
    yield "qwen2", train(split(Regex(QWEN2)), nfc)
    yield "qwen2-added", train(split(Regex(QWEN2)), nfc, ADDED)
    yield "deepseek", train(split(*map(Regex, DEEPSEEK)), normalizers.Sequence([]), special=["<｜begin▁of▁sentence｜>"])
    yield "deepseek-added", train(split(*map(Regex, DEEPSEEK)), added=ADDED)
    yield "o200k", train(split(Regex(O200K)))
    for each in False, True:
        yield f"digits-{each}", train(pre_tokenizers.Sequence([pre_tokenizers.Digits(each), gpt2]))
    for b in BEHAVIORS:
        yield b, train(split(Regex(r"[aeiou\s]"), behavior=b))
        yield "string-" + b, train(split("aa", behavior=b))
        if b != "isolated":
            yield "invert-" + b, train(split(Regex(r"[aeiou\s]|(?=x)"), behavior=b, invert=True))
    yield "llama2", fallback(normalizer=legacy)
    yield "llama2-whole", fallback(normalizer=legacy, whole=True)
    yield "mistral", fallback(pre=pre_tokenizers.Metaspace(prepend_scheme="first", split=False))
    yield "metaspace", fallback(pre=pre_tokenizers.Metaspace(prepend_scheme="always", split=True))
    yield "metaspace-never", fallback(pre=pre_tokenizers.Metaspace(prepend_scheme="never", split=True))

    def model(**settings):
        return lambda d: d["model"].update(settings)

    def fewer_bytes(d):
        for name in "<0xF0>", "<0xE0>":
            del d["model"]["vocab"][name]

    def normalized(d):
        for a in d["added_tokens"]:
            a["normalized"] = True

    def strings(d):
        d["model"]["merges"] = [" ".join(m) for m in d["model"]["merges"]]

    for name, change in (("unk", model(byte_fallback=False)), ("unk-each", model(byte_fallback=False, fuse_unk=False)),
                         ("vanish", model(byte_fallback=False, unk_token=None)), ("fewer-bytes", fewer_bytes),
                         ("normalized", normalized), ("strings", strings)):
        yield "llama2-" + name, fallback(change, normalizer=legacy)
    d = train(gpt2)
    gone = {k for k in d["model"]["vocab"] if set(k) & set("qzĊð")}
    for k in gone:
        del d["model"]["vocab"][k]
    d["model"]["merges"] = [m for m in d["model"]["merges"] if not gone & {*m, "".join(m)}]
    d["model"]["unk_token"] = "<|endoftext|>"
    yield "gpt2-missing-bytes", d


ALPHABET = (
    list(" \t\n\r\x0b\x0c\x85\xa0\u1680\u2003\u2028\u2029\u3000\u180e\u200b\u200d\x00\x01\x1f\x7f\ufeff\uffff\ue000")
    + list("abzéÅqxE'sSTtſdDmMLlrReEvV0129٣४²½Ⅷ.,!?-_()[]{}<>|/\\\"`~@#$%^&*+=:;。、…«»„€£©▁")
    + list("中文字龥龦あアー゠ヿ㐀𠀀абвЯαβΩά가각😀👍🏽👨👩🇩🇪\u0301\u0300\u0323\u093f\u20dd\u1100\u1161\u11a8\ufe0f\u0897")
    + ["\U0010ffff", "\U0001e4d0", "\U0002ebf0", "\U00011f00", "\u1c89", "\U000105c0", "👨\u200d👩\u200d👧", "e\u0301",
       "  ", "    ", "\n\n", "\r\n", " \n", "'s", "'S", "'re", "'LL", "<s>", "</s>", "<unk>", "<|begin_of_text|>",
       "<｜begin▁of▁sentence｜>", "<|endoftext|>", "<sep>", " word ", "word", "<ab", "<abc>", "the", "The", " and", "ing",
       "hello", "123", "<0x41>", "aa", "aaa"])
CHARS = [c for c in range(0x110000) if not 0xd800 <= c < 0xe000]


def hard_texts(rng):
    yield ""
    for _ in range(800):
        yield "".join(rng.choice(ALPHABET) for _ in range(rng.choice([1, 2, 3, 5, 8, 13, 30, 100])))
    for _ in range(200):
        yield "".join(chr(rng.choice(CHARS)) for _ in range(40))
    for _ in range(100):
        yield "".join(chr(rng.randrange(0x20, 0x3000)) for _ in range(60))
    yield from ("a" * 100000, "ab" * 50000, " " * 100000, "中" * 20000)
    yield " " * 50000 + "x" + "\n" * 1000 + " " * 300 + "\n"
    yield "".join(rng.choice("abcdefgh") for _ in range(1000000))
    yield "".join(rng.choice("กขคงจฉชซปีใหม่") for _ in range(30000))
    yield "".join(map(chr, CHARS[::7]))
    yield " ".join(map(chr, range(1, 0x3000)))


def file_texts(paths):
    for path in paths:
        text = Path(path).read_bytes().decode()
        if text.startswith("{"):
            yield from (json.loads(line)["text"] for line in text.split("\n") if line)
        else:
            yield text


def forge(*args, text=None):
    p = subprocess.run(["forge-tokens", "-q", *map(str, args)], input=text, capture_output=True)
    if p.returncode:
        sys.exit(f"tokens_check: forge-tokens {args}: {p.stderr.decode()}")
    return [[int(w) for w in line.split()] for line in p.stdout.decode().split("\n")[:-1]]


def compare(tok, path, texts):
    """How many texts differ.  Those with NUL, which JSON lines here may not have, go one by one."""
    lines = [t for t in texts if "\0" not in t]
    got = forge(path, "--ids", "--format", "jsonl",
                text="".join(json.dumps({"text": t}) + "\n" for t in lines).encode())
    bad = sum(ids != tok.encode(t).ids for t, ids in zip(lines, got, strict=True))
    for t in [t for t in texts if "\0" in t][:20]:
        bad += forge(path, "--ids", "--format", "text", text=t.encode()) != [tok.encode(t).ids]
    return bad


def cuts(tok, path, text):
    """Rows as a Python program makes them from a text file."""
    mark, full = (tok.encode("a", add_special_tokens=s).ids for s in (False, True))
    at = next((i for i in range(len(full)) if full[i:i + len(mark)] == mark), 0)
    pre, post = full[:at], full[at + len(mark):]
    for n, seq, skip in (4, 33, 0), (100, 128, 1234), (7, 512, 99):
        body = seq - len(pre) - len(post)
        ids = tok.encode(text[skip:], add_special_tokens=False).ids
        want = [pre + ids[i * body:(i + 1) * body] + post for i in range(min(n, len(ids) // body))]
        if want != forge(path, "--ids", "-n", n, "-t", seq, "--skip-chars", skip, text=text.encode()):
            return 1
    return 0


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("file", nargs="*")
    ap.add_argument("--tokenizer", action="append", default=[], help="a model's directory")
    ap.add_argument("--seed", type=int, default=1)
    a = ap.parse_args()
    texts = list(hard_texts(random.Random(a.seed))) + list(file_texts(a.file or [TREE / "examples/eval.txt"]))
    cut_text = (TREE / "examples/eval.txt").read_text()
    failed = 0
    with tempfile.TemporaryDirectory() as tmp:
        paths = [str(Path(d) / "tokenizer.json") for d in [TREE / "examples/llama-4m", *a.tokenizer]]
        for name, d in shapes():
            paths.append(f"{tmp}/{name}.json")
            Path(paths[-1]).write_text(json.dumps(d))
        for path in paths:
            tok = Tokenizer.from_file(path)
            tok.no_truncation()
            tok.no_padding()
            bad = compare(tok, path, texts) + cuts(tok, path, cut_text)
            failed += bad > 0
            print(f"{path.removeprefix(tmp + '/')}: {len(texts)} texts, {bad} differ", flush=True)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
