#!/usr/bin/env python3
"""Make tests/reference/tokenizers/*.json and token_golden.jsonl.

Needs the PyPI package tokenizers, and so is not part of `make test`: the files
are committed.  Each fixture is a small tokenizer of one family's shape, trained
on the words below; each golden line holds a text and the ids that the package
gives it, without special tokens (or, of long texts, their number and a sum).
"""
import json
import random
from pathlib import Path

from tokenizers import (AddedToken, Regex, Tokenizer, models, normalizers,
                        pre_tokenizers, processors, trainers)

HERE = Path(__file__).parent
WORDS = """the quick brown fox jumps over the lazy dog and the king said to the
queen that they would not go there with him when the sun was down. It's been
a long way; don't you think we'll make it? I've seen 1234 of 5678 men, in 1999.
Der König größer naïve café résumé Ærø. Привет мир, как дела? Όλοι οι άνθρωποι.
中文文本测试，你好世界。日本語のテキスト、カタカナ。 한국어 텍스트. ภาษาไทย हिन्दी
for (int i = 0; i < n; i++) { x[i] += y[i] * 2; }  /* comment */ <html></html>
""" * 3
BLANKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
CASELESS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
LLAMA3 = CASELESS + r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + BLANKS
QWEN2 = CASELESS + r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + BLANKS
DEEPSEEK = (r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
            r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|"""
            "[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|"
            "\\s*[\r\n]+|\\s+(?!\\S)|\\s+")
EXTRA = [AddedToken("<|sep|>", lstrip=True, rstrip=True, normalized=False),
         AddedToken("word", single_word=True), AddedToken("é", normalized=True),
         AddedToken("<|a", normalized=False), AddedToken("<|ab|>", normalized=False)]


def split(*patterns):
    steps = [pre_tokenizers.Split(Regex(p), "isolated") for p in patterns]
    return pre_tokenizers.Sequence(steps + [pre_tokenizers.ByteLevel(False, use_regex=False)])


def byte_level(pre, special, size=420, **bpe):
    t = Tokenizer(models.BPE(**bpe))
    t.pre_tokenizer = pre
    t.train_from_iterator([WORDS], trainers.BpeTrainer(
        vocab_size=size, special_tokens=special, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return t


def byte_fallback(metaspace):
    """Llama 2: trained on words, then run over whole texts."""
    t = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    special = ["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)]
    t.train_from_iterator([WORDS], trainers.BpeTrainer(
        vocab_size=520, special_tokens=special, show_progress=False, limit_alphabet=90))
    if metaspace:
        t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        d = json.loads(t.to_str())
        d["pre_tokenizer"] = None
        t = Tokenizer.from_str(json.dumps(d))
        t.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    t.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
    d = json.loads(t.to_str())
    d["added_tokens"] = [a for a in d["added_tokens"] if a["id"] < 3]
    if not metaspace:  # the older spelling of merges
        d["model"]["merges"] = [" ".join(m) for m in d["model"]["merges"]]
    return Tokenizer.from_str(json.dumps(d)), d


def fixtures():
    made = {}
    t = byte_level(pre_tokenizers.ByteLevel(False), ["<|endoftext|>"])
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    made["gpt2"] = t
    t = byte_level(split(LLAMA3), ["<|begin_of_text|>"], ignore_merges=True)
    t.post_processor = processors.Sequence([processors.ByteLevel(), processors.TemplateProcessing(
        single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", 0)])])
    made["llama3"] = t
    t = byte_level(split(QWEN2), ["<|im_start|>", "<|im_end|>"])
    t.normalizer = normalizers.NFC()
    t.add_tokens(EXTRA)
    made["qwen2"] = t
    t = byte_level(split(*DEEPSEEK), ["<｜begin▁of▁sentence｜>"])
    t.normalizer = normalizers.Sequence([])
    t.post_processor = processors.TemplateProcessing(
        single="<｜begin▁of▁sentence｜> $A", special_tokens=[("<｜begin▁of▁sentence｜>", 0)])
    made["deepseek"] = t
    t = byte_level(pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.Split(Regex("[aeiou]"), "merged_with_previous"),
        pre_tokenizers.ByteLevel(True)]), ["<|endoftext|>"])
    made["mixed"] = t
    made["llama2"], _ = byte_fallback(False)
    made["mistral"], _ = byte_fallback(True)
    out = {}
    for name, t in made.items():
        d = json.loads(t.to_str())
        if name == "llama2":
            d["model"]["merges"] = [" ".join(m) for m in d["model"]["merges"]]
        path = HERE / "tokenizers" / f"{name}.json"
        path.write_text(json.dumps(d, ensure_ascii=False, separators=(",", ":")) + "\n")
        out[name] = Tokenizer.from_file(str(path))
    return out


def texts():
    yield from ["", " ", "a", "the quick brown fox", "  leading", "trailing  ", "a  b   c    d",
                "It's IT'S it'ſ don't DON'T we'll WE'LL I've 're 'tis 'x ''s",
                "1 12 123 1234 12345678 ٣٤٥٦ ²³ Ⅷ 1,234.50",
                "tabs\t\tand\nlines\n\n\n  \n x\r\ny\r\r\n  z \n",
                "!?... (a)[b]{c} --- _under_ $x^2 \"quoted\" #tag @you a/b\\c",
                "中文文本，你好世界。日本語のカタカナ゠ー゛ 한국어 𠀀㐀 一龥龦",
                "Привет ΌΛΟΙ עברית العربية ภาษาไทย हिन्दी தமிழ் ქართული አማርኛ",
                "é e\u0301 Å \u212b ṩ s\u0323\u0307 가 각 \u1100\u1161\u11a8 \ufb01",
                "\u0301lone \u093f marks\u20dd \u0300\u0301\u0323 x\u0301\u0897",
                "😀 👍🏽 👨\u200d👩\u200d👧\u200d👦 🇩🇪🇫🇷 ❤\ufe0f 1\ufe0f\u20e3",
                "controls \x01\x02\x1f\x7f\x80\x85\x9f\u200b\u200e\ufeff\u180e\u2028end",
                "\u3000wide\u2003blanks\xa0here\u1680\u205f",
                "new letters \U0002ebf0 \U00011f00 \U0001e4d0 \u1c89 \U000105c0",
                "\U0010ffff \ue000 \uffff \ufffe",
                "<|begin_of_text|> in <|endoftext|>text <s>x</s> <unk> <0x41> <｜begin▁of▁sentence｜>",
                "a <|sep|> b<|sep|>\n c word words wordword word<|a<|ab|><|ab <|im_start|>é",
                "▁the▁ ▁▁king ▁", "\n".join(f"line {i}:  x = {i * i};" for i in range(12))]
    rng = random.Random(4)
    alphabet = list("aeE'stTſ 0٣²½一中龥あー.,!<>|/\\\t\n\r\u0301\u0323é가\u1161😀\u200d▁\u3000\x85")
    for _ in range(40):
        yield "".join(rng.choice(alphabet) for _ in range(rng.choice([3, 10, 40])))


def long_texts():
    yield "a", 70000
    yield " ", 70000
    yield "thequickbrownfox", 20000
    yield "中文", 20000
    yield "ภาษา\u0301ไทย", 3000
    yield "\n  ", 9000
    yield "12", 9000


def main():
    with open(HERE / "token_golden.jsonl", "w") as out:
        for name, t in fixtures().items():
            for text in texts():
                ids = t.encode(text, add_special_tokens=False).ids
                out.write(json.dumps({"tokenizer": name, "text": text, "ids": ids},
                                     ensure_ascii=False) + "\n")
            for text, times in long_texts():
                ids = t.encode(text * times, add_special_tokens=False).ids
                out.write(json.dumps({"tokenizer": name, "text": text, "times": times,
                                      "count": len(ids), "sum": sum(i * (k % 1000 + 1) for k, i in enumerate(ids))},
                                     ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
