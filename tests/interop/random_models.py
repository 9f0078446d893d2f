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
    "gemma2": ("gemma2", dict(head_dim=64, query_pre_attn_scalar=64, sliding_window=48)),
    "gemma3": ("gemma3_text", dict(head_dim=64, query_pre_attn_scalar=64, sliding_window=48, num_hidden_layers=7)),
    "gemma3n": ("gemma3n_text", dict(head_dim=64, sliding_window=48, num_hidden_layers=7, num_kv_shared_layers=2, laurel_rank=16,
                                     hidden_size_per_layer_input=32, vocab_size_per_layer_input=512, activation_sparsity_pattern=[0.95, 0.5] + [0.0] * 5)),
    "phi3": ("phi3", {}),
    "olmo2": ("olmo2", {}),
    "olmo3": ("olmo3", dict(sliding_window=48, num_hidden_layers=4)),
    "granite": ("granite", dict(embedding_multiplier=12.0, attention_multiplier=0.125, residual_multiplier=0.22, logits_scaling=8.0)),
    "seed-oss": ("seed_oss", dict(head_dim=64)),
    "ernie4_5": ("ernie4_5", dict(head_dim=64)),
    "ministral": ("ministral", dict(head_dim=64, sliding_window=48, layer_types=["full_attention", "sliding_attention"])),
    "ministral3": ("ministral3", dict(head_dim=64)),
    "smollm3": ("smollm3", dict(num_hidden_layers=4)),
    "glm4": ("glm4", dict(head_dim=64)),
    "llama-yarn-bias": ("llama", dict(rope_parameters=YARN, attention_bias=True, mlp_bias=True)),
}
V3 = dict(hidden_size=128, num_key_value_heads=4, q_lora_rank=128, kv_lora_rank=64, qk_nope_head_dim=16, qk_rope_head_dim=16, v_head_dim=32,
          moe_intermediate_size=128, num_hidden_layers=3, first_k_dense_replace=1)
GROUPS = dict(V3, n_routed_experts=16, n_shared_experts=1, num_experts_per_tok=4, n_group=4, topk_group=2)
# Odd numbers of experts, one expert a token, one group, none that is shared, tied embeddings, every storage.
MIXTURES = {
    "deepseek-v3-f32": ("deepseek_v3", dict(GROUPS, storage="float32", rope_parameters=dict(YARN, mscale=1.0, mscale_all_dim=1.0))),
    "deepseek-v3-one-group": ("deepseek_v3", dict(V3, q_lora_rank=None, n_routed_experts=7, n_shared_experts=2, num_experts_per_tok=2, n_group=1,
                                                  topk_group=1, tie_word_embeddings=True)),
    "deepseek-v2-lite": ("deepseek_v2", dict(V3, q_lora_rank=None, n_routed_experts=6, n_shared_experts=1, num_experts_per_tok=2)),
    "deepseek-v32": ("deepseek_v32", dict(GROUPS, index_topk=1024, index_n_heads=4, index_head_dim=32)),
    "qwen2-moe-f16": ("qwen2_moe", dict(storage="float16", num_experts=5, num_experts_per_tok=2, moe_intermediate_size=128,
                                        shared_expert_intermediate_size=256)),
    "qwen3-moe-fused": ("qwen3_moe", dict(fused=True, num_experts=9, num_experts_per_tok=1, moe_intermediate_size=128, norm_topk_prob=True,
                                          tie_word_embeddings=True)),
    "mixtral-bin": ("mixtral", dict(bin=True, num_local_experts=3, num_experts_per_tok=1)),
    "glm4-moe": ("glm4_moe", dict(n_routed_experts=5, n_shared_experts=1, num_experts_per_tok=2, moe_intermediate_size=128, first_k_dense_replace=1,
                                  head_dim=64, n_group=1, topk_group=1)),
    "gpt-oss": ("gpt_oss", dict(num_local_experts=5, num_experts_per_tok=2, head_dim=64, sliding_window=48, fused=True, rope_parameters=YARN)),
    "ernie4_5-moe": ("ernie4_5_moe", dict(moe_num_experts=5, moe_k=2, moe_num_shared_experts=1, moe_intermediate_size=128, num_hidden_layers=3)),
    "llama4": ("llama4_text", dict(intermediate_size=128, intermediate_size_mlp=256, num_local_experts=5, num_experts_per_tok=1, head_dim=64,
                                   interleave_moe_layer_step=2, num_hidden_layers=4, attention_chunk_size=48)),
    "minimax-m2": ("minimax_m2", dict(num_local_experts=5, num_experts_per_tok=2, head_dim=64, rotary_dim=32)),
}
DELTA = dict(head_dim=64, num_hidden_layers=4, full_attention_interval=2, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=32,
             linear_value_head_dim=32)
GRANITE = dict(embedding_multiplier=12.0, attention_multiplier=0.125, residual_multiplier=0.22, logits_scaling=8.0, shared_intermediate_size=256)
HYBRID = dict(GRANITE, mamba_n_heads=8, mamba_d_head=64, mamba_d_state=32, num_hidden_layers=4, layer_types=["linear_attention", "full_attention"] * 2)
MODELS["granite4"] = ("granitemoehybrid", dict(HYBRID, num_local_experts=0))
MIXTURES["granite-moe"] = ("granitemoeshared", dict(GRANITE, intermediate_size=128, num_local_experts=5, num_experts_per_tok=2))
MIXTURES["granite4-moe"] = ("granitemoehybrid", dict(HYBRID, intermediate_size=128, num_local_experts=5, num_experts_per_tok=2))
MIXTURES["kimi-linear"] = ("kimi_linear", dict(V3, q_lora_rank=None, kv_lora_rank=128, num_local_experts=5, n_shared_experts=1, num_experts_per_tok=2, n_group=1, topk_group=1,
                                               first_k_dense_replace=0, linear_num_heads=4, linear_head_dim=32,
                                               layer_types=["linear_attention", "full_attention", "linear_attention"]))
MIXTURES["qwen3-next"] = ("qwen3_next", dict(DELTA, num_experts=5, num_experts_per_tok=2, moe_intermediate_size=128, shared_expert_intermediate_size=128))
MODELS["qwen3.5"] = ("qwen3_5_text", DELTA)
MODELS.update(MIXTURES)


def tokenizer(text, vocab):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast
    t = Tokenizer(models.BPE())
    t.pre_tokenizer, t.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    t.train([text], trainers.BpeTrainer(vocab_size=vocab, special_tokens=["<|endoftext|>", "<|pad|>"], show_progress=False,
                                        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return PreTrainedTokenizerFast(tokenizer_object=t, eos_token="<|endoftext|>", pad_token="<|pad|>")


def save(m, out, fused=False, bin=False):
    """fused: experts in one tensor, as transformers 5 holds them; bin: in two .bin files, as before safetensors."""
    import torch
    m.save_pretrained(out, save_original_format=not fused)
    if not bin:
        return
    from safetensors.torch import load_file
    t, where = load_file(out / "model.safetensors"), {}
    for i in range(2):
        name = f"pytorch_model-{i + 1:05d}-of-00002.bin"
        part = {k: t[k] for k in sorted(t)[i::2]}
        torch.save(part, out / name)
        where.update(dict.fromkeys(part, name))
    (out / "pytorch_model.bin.index.json").write_text(json.dumps(dict(metadata={}, weight_map=where)))
    (out / "model.safetensors").unlink()


def make(name, text, out):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    family, more = MODELS[name]
    how = {k: more[k] for k in ("fused", "bin") if k in more}
    storage = getattr(torch, more.get("storage", "bfloat16"))
    more = {k: v for k, v in more.items() if k not in ("fused", "bin", "storage")}
    torch.manual_seed(len(name))
    t = tokenizer(text, SMALL["vocab_size"])
    c = AutoConfig.for_model(family, **{**SMALL, **dict(bos_token_id=None, eos_token_id=0, pad_token_id=1, initializer_range=0.05), **more})
    m = AutoModelForCausalLM.from_config(c, dtype=torch.float32)
    for n, p in m.named_parameters():
        if n.endswith("bias"):
            torch.nn.init.normal_(p, std=0.1)
        elif n.endswith("correct_output_scale"):
            torch.nn.init.normal_(p, 1, 0.2)
        elif n.endswith(("gate.weight", "router.weight")):  # or all tokens would choose alike
            torch.nn.init.normal_(p, std=0.3)
    for n, p in m.named_buffers():
        if "correction_bias" in n:
            torch.nn.init.normal_(p, std=0.05)
    save(m.to(storage), out, **how)
    t.save_pretrained(out)


def main():
    text, out, names = sys.argv[1], Path(sys.argv[2]), sys.argv[3:] or MODELS
    for name in names:
        if not (out / name / "config.json").exists():
            make(name, text, out / name)


if __name__ == "__main__":
    main()
