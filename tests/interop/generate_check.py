"""forge-generate against transformers: texts of ids, prompts in chat templates, greedy tokens.

    generate_check.py --helper DIR MODEL...

DIR has the helper `decode`, PATH the tools.  Prints a line for each comparison; exit 1 if one fails.
"""
import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer

BAD = 0


def verdict(what, ok, detail=""):
    global BAD
    BAD += not ok
    print(f"{'ok  ' if ok else 'FAIL'} {what}{'' if ok else ': ' + detail}", flush=True)


# ---- texts of ids ----

def byte_fallback(where, metaspace):
    """A tokenizer as Llama 2's, or with the Metaspace pair of later files."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    for b in range(256):
        vocab[f"<0x{b:02X}>"] = len(vocab)
    for t in ["▁", "a", "b", "é", "▁a", "▁b", "ab", "▁▁", "東", "🙂", "▁ab", "\n"]:
        vocab[t] = len(vocab)
    t = Tokenizer(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    if metaspace:
        t.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
        t.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="first")
    else:
        t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    t.add_special_tokens(["<s>", "</s>", AddedToken("<|im end|>", special=True)])
    t.add_tokens([AddedToken("<plain>", special=False)])
    where.mkdir()
    t.save(str(where / "tokenizer.json"))
    return where


def check_decode(helper, where):
    t = Tokenizer.from_file(str(where / "tokenizer.json"))
    n = t.get_vocab_size(with_added_tokens=True)
    r = random.Random(1)
    rows = [[r.randrange(n + 2) for _ in range(r.randrange(1, 40))] for _ in range(300)]
    # bytes alone: most are no UTF-8, many begin like it
    rows += [[r.randrange(3, min(n, 259)) for _ in range(r.randrange(1, 9))] for _ in range(300)]
    rows += [t.encode(s, add_special_tokens=False).ids for s in ["a", " a b", "Δελφοί 東京 🙂\n", "naïve café", "  two", "🙂🙂"]]
    for specials in (True, False):
        out = subprocess.run([str(helper / "decode"), str(where), "specials" if specials else "none"], capture_output=True, text=True, check=True,
                             input="".join(" ".join(map(str, row)) + "\n" for row in rows)).stdout.split("\n")[:-1]
        bad = [(row, json.loads(o), t.decode(row, skip_special_tokens=not specials)) for row, o in zip(rows, out)
               if json.loads(o) != t.decode(row, skip_special_tokens=not specials)]
        verdict(f"{where.name}: {len(rows)} texts of ids, specials {specials}", not bad and len(out) == len(rows), repr(bad[:1]))


# ---- chat templates: forms of the families, written for this test ----

LOOP = "{% for m in messages %}"
FOR = "{% for message in messages %}"
TEMPLATES = {
    "ChatML": LOOP + "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
              "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "ChatML with words of its own": "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\nYou are a lamp.<|im_end|>\\n' }}{% endif %}"
              + LOOP + "{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}{{ '<|im_start|>assistant\\n' }}",
    "ChatML that thinks": LOOP + "{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}{{ '<|im_start|>assistant\\n<think>\\n' }}",
    "Llama 3": LOOP + "{% set c = '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' + m['content'] | trim + '<|eot_id|>' %}"
              "{% if loop.index0 == 0 %}{% set c = bos_token + c %}{% endif %}{{ c }}{% endfor %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}",
    "Llama 3.1": "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set s = messages[0]['content'] | trim %}{% set messages = messages[1:] %}{% else %}{% set s = '' %}{% endif %}"
              "{{ '<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n' + s + '<|eot_id|>' }}"
              + LOOP + "{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' + m['content'] | trim + '<|eot_id|>' }}{% endfor %}"
              "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}",
    "DeepSeek V3": "{{ bos_token }}" + LOOP + "{% if m['role'] == 'system' %}{{ m['content'] }}{% else %}{{ '<｜User｜>' + m['content'] }}{% endif %}{% endfor %}{{ '<｜Assistant｜>' }}",
    "DeepSeek R1": "{{ bos_token }}" + LOOP + "{% if m['role'] == 'system' %}{{ m['content'] }}{% else %}{{ '<｜User｜>' + m['content'] }}{% endif %}{% endfor %}{{ '<｜Assistant｜><think>\\n' }}",
    "DeepSeek V2": "{{ bos_token }}" + LOOP + "{% if m['role'] == 'user' %}{{ 'User: ' + m['content'] + '\n\n' }}{% elif m['role'] == 'assistant' %}{{ 'Assistant: ' + m['content'] + eos_token }}"
              "{% else %}{{ m['content'] + '\n\n' }}{% endif %}{% endfor %}{{ 'Assistant:' }}",
    "GLM": "[gMASK]<sop>" + LOOP + "{% if m['role'] == 'system' %}<|system|>\n{{ m['content'] }}{% else %}<|user|>\n{{ m['content'] }}{% endif %}{% endfor %}<|assistant|>",
    "Llama 2": "{% if messages[0]['role'] == 'system' %}{% set s = '<<SYS>>\\n' + messages[0]['content'] + '\\n<</SYS>>\\n\\n' %}{% endif %}"
              + LOOP + "{{ bos_token + '[INST] ' + m['content'] | trim + ' [/INST]' }}{% endfor %}",
    "Mistral": "{{ bos_token }}" + LOOP + "{{ '[INST] ' + m['content'] + ' [/INST]' }}{% endfor %}",
    "Mistral v3": "{{ bos_token }}" + LOOP + "{{ '[INST] ' + m['content'] + '[/INST]' }}{% endfor %}",
    "Zephyr": FOR + "{% if message['role'] == 'user' %}{{ '<|user|>\n' + message['content'] + eos_token + '\n' }}"
              "{% else %}{{ '<|system|>\n' + message['content'] + eos_token + '\n' }}{% endif %}{% endfor %}{{ '<|assistant|>\n' }}",
    "OLMo 2": "{{ bos_token }}" + FOR + "{% if message['role'] == 'system' %}{{ '<|system|>\n' + message['content'] + '\n' }}"
              "{% else %}{{ '<|user|>\n' + message['content'] + '\n' }}{% endif %}{% endfor %}{{ '<|assistant|>\n' }}",
    "Phi-3": FOR + "{% if message['role'] == 'system' %}{{ '<|system|>\n' + message['content'] + '<|end|>\n' }}"
              "{% else %}{{ '<|user|>\n' + message['content'] + '<|end|>\n' }}{% endif %}{% endfor %}{{ '<|assistant|>\n' }}",
    "Phi-4": FOR + "{% if message['role'] == 'system' %}{{ '<|im_start|>system<|im_sep|>' + message['content'] + '<|im_end|>' }}"
              "{% else %}{{ '<|im_start|>user<|im_sep|>' + message['content'] + '<|im_end|>' }}{% endif %}{% endfor %}"
              "{{ '<|im_start|>assistant<|im_sep|>' }}",
    "ChatML with braces": "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\nPut it into \\\\boxed{}.<|im_end|>\\n' }}{% endif %}"
              + LOOP + "{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}{{ '<|im_start|>assistant\\n' }}",
    "ChatML that thinks at once": LOOP + "{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}{{ '<|im_start|>assistant\\n<think>' }}",
}
NO_SYSTEM = {"Llama 2", "Mistral", "Mistral v3"}


def generate(model, prompt, *more):
    p = subprocess.run(["forge-generate", "--json", *more, str(model), prompt], capture_output=True, text=True)
    return json.loads(p.stdout) if p.returncode == 0 else {"error": p.returncode, "says": p.stderr}


def check_chat(model, work):
    for name, template in TEMPLATES.items():
        d = work / "chat"
        shutil.rmtree(d, ignore_errors=True)
        d.mkdir()
        for f in model.iterdir():
            if f.name != "tokenizer_config.json":
                shutil.copy(f, d / f.name)
        config = json.loads((model / "tokenizer_config.json").read_text())
        config["chat_template"] = template
        config.setdefault("eos_token", "<|end_of_text|>")
        (d / "tokenizer_config.json").write_text(json.dumps(config))
        tok = AutoTokenizer.from_pretrained(d)
        for system in (None, "Be brief."):
            if system and name in NO_SYSTEM:
                verdict(f"chat {name}: no system", generate(d, "hi", "--tokens", "1", "--system", system).get("error") == 78)
                continue
            messages = ([{"role": "system", "content": system}] if system else []) + [{"role": "user", "content": "What is\n2 + 2?"}]
            want = tok.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False)
            got = generate(d, "What is\n2 + 2?", "--tokens", "1", *(["--system", system] if system else []))
            verdict(f"chat {name}, system {system}", got.get("prompt_ids") == list(want),
                    repr((got, tok.decode(got.get("prompt_ids", [])), tok.decode(want))))


# ---- greedy tokens ----

PROMPTS = ["The old man looked at the sea and", "Once upon a time, in a village by the mountains, there lived"]


def check_greedy(model, n=80):
    import torch
    tok = AutoTokenizer.from_pretrained(model)
    net = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager").eval()
    for prompt in PROMPTS:
        ids = tok(prompt, return_tensors="pt").input_ids
        with torch.no_grad():
            want = net.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=n, do_sample=False)[0].tolist()
        got = generate(model, prompt, "--greedy", "--raw", "--dtype", "f32", "--tokens", str(n))
        verdict(f"{model.name}: {n} greedy tokens", got.get("prompt_ids", []) + got.get("ids", []) == want, repr(got)[:300])
        verdict(f"{model.name}: their text", got.get("text") == tok.decode(want[ids.shape[1]:], skip_special_tokens=True))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--helper", type=Path, required=True)
    p.add_argument("--no-greedy", action="store_true")
    p.add_argument("model", type=Path, nargs="+")
    a = p.parse_args()
    with tempfile.TemporaryDirectory(prefix="forge-generate-") as t:
        work = Path(t)
        for where in [byte_fallback(work / "llama2", False), byte_fallback(work / "metaspace", True), *a.model]:
            check_decode(a.helper, where)
        check_chat(a.model[0], work)
    for m in a.model if not a.no_greedy else []:
        check_greedy(m)
    sys.exit(BAD > 0)


main()
