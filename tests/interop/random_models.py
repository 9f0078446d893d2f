#!/usr/bin/env python3
"""random_models.py TEXT OUT [NAME...] - small random checkpoints of the families that examples/ lacks, saved by transformers.

Each with a tokenizer trained on TEXT whose ids are those of the model: with a foreign one, larger than the embedding,
GPTQModel takes a pad id from the tokenizer that the model does not have, and torch refuses it ("Padding_idx").
"""
import json
import sys
from pathlib import Path

import lab  # noqa: F401 before torch

SMALL = dict(vocab_size=512, hidden_size=256, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             intermediate_size=512, max_position_embeddings=1024, rms_norm_eps=1e-5)
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 256}
MODELS = {
    "qwen2": ("qwen2", {}),
    "qwen2-tied-window": ("qwen2", dict(tie_word_embeddings=True, use_sliding_window=True, sliding_window=48, max_window_layers=1)),
    "mistral": ("mistral", dict(sliding_window=48, head_dim=128)),
    "llama-yarn-bias": ("llama", dict(rope_parameters=YARN, attention_bias=True, mlp_bias=True)),
}


def tokenizer(text, vocab):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast
    t = Tokenizer(models.BPE())
    t.pre_tokenizer, t.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    t.train([text], trainers.BpeTrainer(vocab_size=vocab, special_tokens=["<|endoftext|>", "<|pad|>"], show_progress=False,
                                        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return PreTrainedTokenizerFast(tokenizer_object=t, eos_token="<|endoftext|>", pad_token="<|pad|>")


def make(name, text, out):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    family, more = MODELS[name]
    torch.manual_seed(len(name))
    t = tokenizer(text, SMALL["vocab_size"])
    c = AutoConfig.for_model(family, **dict(SMALL, bos_token_id=None, eos_token_id=0, pad_token_id=1, initializer_range=0.05, **more))
    m = AutoModelForCausalLM.from_config(c)
    for n, p in m.named_parameters():
        if n.endswith("bias"):
            torch.nn.init.normal_(p, std=0.1)
    m.to(torch.bfloat16).save_pretrained(out)
    t.save_pretrained(out)


def main():
    text, out, names = sys.argv[1], Path(sys.argv[2]), sys.argv[3:] or MODELS
    for name in names:
        if not (out / name / "config.json").exists():
            make(name, text, out / name)


main()
