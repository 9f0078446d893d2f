#!/usr/bin/env python3
"""The forward pass against transformers, on random tiny models.

    model_check.py [SEED [FAMILY...]]     needs torch, transformers, numpy; the
                                          test helper `forward` on the PATH

Every family, every kind of rope, biases, tied embeddings, explicit head sizes, sliding windows, one kv head to as
many as heads, latent attention, every router, shared experts, dense layers between sparse ones; saved by transformers, and by hand with the older spelling of config.json.  The measure: the norm of
the difference of a token's vector over the norm of the vector, the worst token of all hidden states and logits.  In
float32 (eager attention) it stays below 1e-5, or ours is at most twice as far from double precision as transformers'
float32 is; in bfloat16 it stays below 1.5 times what transformers' own bfloat16 deviates from its float32."""
import copy
import json
import os
import re
import subprocess
import sys
import tempfile
from unittest import mock

import numpy as np
import torch
import transformers

KERNELS = ("plain", "avx2", "avx512", "neon")
F32 = 1e-5

BASE = dict(vocab_size=256, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            intermediate_size=96, max_position_embeddings=256, rms_norm_eps=1e-5, pad_token_id=None)
ROPES = {
    "default": {"rope_type": "default", "rope_theta": 10000.0},
    "theta": {"rope_type": "default", "rope_theta": 1000000.0},
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0},
    "llama3": {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
               "high_freq_factor": 4.0, "original_max_position_embeddings": 32},
    "yarn": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64},
    "yarn2": {"rope_type": "yarn", "rope_theta": 50000.0, "factor": 16.0, "original_max_position_embeddings": 16,
              "beta_fast": 16.0, "beta_slow": 2.0, "truncate": False},
    "yarn3": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64,
              "mscale": 1.2, "mscale_all_dim": 0.7},
    "yarn4": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64,
              "attention_factor": 1.3},
}
SLIDES = ["full_attention", "sliding_attention"]
CASES = [("llama", "rope " + r, dict(rope_parameters=p)) for r, p in ROPES.items()] + [
    ("llama", "biases", dict(attention_bias=True, mlp_bias=True)),
    ("llama", "tied", dict(tie_word_embeddings=True)),
    ("llama", "head_dim 24", dict(head_dim=24)),
    ("llama", "head_dim 6, odd sizes", dict(head_dim=6, hidden_size=36, intermediate_size=50, vocab_size=101)),
    ("llama", "one kv head", dict(num_key_value_heads=1)),
    ("llama", "no groups", dict(num_key_value_heads=4)),
    ("llama", "old spelling", dict(rope_parameters=ROPES["llama3"], old=True)),
    ("mistral", "no window", dict(sliding_window=None)),
    ("mistral", "window 7", dict(sliding_window=7)),
    ("mistral", "window 64, head_dim 32", dict(sliding_window=64, head_dim=32)),
    ("mistral", "window 100", dict(sliding_window=100)),
    ("mistral", "window 1", dict(sliding_window=1)),
    ("qwen2", "plain", {}),
    ("qwen2", "yarn, tied", dict(rope_parameters=ROPES["yarn"], tie_word_embeddings=True)),
    ("qwen2", "window from layer 1", dict(use_sliding_window=True, sliding_window=20, max_window_layers=1)),
    ("qwen2", "layer types", dict(use_sliding_window=True, sliding_window=9, layer_types=SLIDES)),
    ("qwen2", "window not in use", dict(sliding_window=9, max_window_layers=0, old=True)),
    ("qwen3", "head_dim 32", dict(head_dim=32)),
    ("qwen3", "biases, tied", dict(head_dim=32, attention_bias=True, tie_word_embeddings=True)),
    ("qwen3", "layer types", dict(head_dim=16, use_sliding_window=True, sliding_window=33, layer_types=SLIDES[::-1])),
    ("qwen3", "yarn", dict(head_dim=128, rope_parameters=ROPES["yarn"])),
    ("qwen3", "linear", dict(head_dim=80, rope_parameters=ROPES["linear"], old=True)),
]
MLA = dict(num_key_value_heads=4, q_lora_rank=32, kv_lora_rank=48, qk_nope_head_dim=16, qk_rope_head_dim=8,
           v_head_dim=24)
V3 = dict(MLA, n_routed_experts=16, n_shared_experts=1, num_experts_per_tok=4, moe_intermediate_size=40, n_group=4,
          topk_group=2, first_k_dense_replace=1, num_hidden_layers=3, num_nextn_predict_layers=0)
V2 = dict(MLA, n_routed_experts=12, n_shared_experts=2, num_experts_per_tok=3, moe_intermediate_size=40,
          first_k_dense_replace=1, num_hidden_layers=3)
QWEN = dict(num_experts=12, num_experts_per_tok=3, moe_intermediate_size=40, num_hidden_layers=3)
GLM = dict(n_routed_experts=12, n_shared_experts=1, num_experts_per_tok=3, moe_intermediate_size=40,
           first_k_dense_replace=1, num_hidden_layers=3, head_dim=32, num_nextn_predict_layers=0)
MIX = dict(num_local_experts=6, num_experts_per_tok=2)
SCALED = dict(ROPES["yarn"], mscale=1.0, mscale_all_dim=1.0)
LITE = dict(ROPES["yarn"], mscale=0.707, mscale_all_dim=0.707)
MSCALE = dict(ROPES["yarn"], mscale=1.0, mscale_all_dim=0.6)
CASES += [
    ("deepseek_v3", "plain", dict(V3)),
    ("deepseek_v3", "yarn, mscale", dict(V3, rope_parameters=SCALED)),
    ("deepseek_v3", "yarn, two mscales", dict(V3, rope_parameters=MSCALE)),
    ("deepseek_v3", "old spelling", dict(V3, rope_parameters=SCALED, old=True)),
    ("deepseek_v3", "q_proj, one group (Moonlight)", dict(V3, q_lora_rank=None, n_group=1, topk_group=1, n_shared_experts=2,
                                                          routed_scaling_factor=2.446)),
    ("deepseek_v3", "rope_interleave false", dict(V3, rope_interleave=False)),
    ("deepseek_v3", "no renormalization", dict(V3, norm_topk_prob=False, routed_scaling_factor=1.0)),
    ("deepseek_v3", "biases, tied", dict(V3, attention_bias=True, tie_word_embeddings=True)),
    ("deepseek_v3", "heads of 128 + 64 and 128", dict(V3, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128)),
    ("deepseek_v3", "heads of 6 + 10 and 37", dict(V3, qk_nope_head_dim=6, qk_rope_head_dim=10, v_head_dim=37)),
    ("deepseek_v3", "all layers sparse", dict(V3, first_k_dense_replace=0, topk_group=1, num_experts_per_tok=3)),
    ("deepseek_v2", "greedy, q_proj (Lite)", dict(V2, q_lora_rank=None, rope_parameters=LITE)),
    ("deepseek_v2", "group_limited_greedy", dict(V2, topk_method="group_limited_greedy", n_group=4, topk_group=2,
                                                 routed_scaling_factor=16.0, rope_parameters=SCALED)),
    ("deepseek_v2", "plain rope, biases", dict(V2, attention_bias=True, n_shared_experts=1)),
    ("deepseek_v32", "plain", dict(V3, index_topk=256, index_n_heads=4, index_head_dim=16)),
    ("deepseek_v32", "layer types, yarn", dict(V3, index_topk=2048, index_n_heads=4, index_head_dim=16,
                                               mlp_layer_types=["sparse", "dense", "sparse"], rope_parameters=SCALED)),
    ("deepseek_v32", "60 keys of 200", dict(V3, index_topk=60, index_n_heads=16, index_head_dim=32)),
    ("deepseek_v32", "100 keys of 200, yarn", dict(V3, index_topk=100, index_n_heads=32, index_head_dim=8, rope_parameters=SCALED)),
    ("glm_moe_dsa", "70 keys of 200", dict(V3, index_topk=70, index_n_heads=16, index_head_dim=32)),
    ("glm_moe_dsa", "shared choice, up to index_topk", dict(V3, index_topk=256, index_n_heads=16, index_head_dim=32,
                                                            indexer_types=["full", "shared", "shared"])),
    ("qwen2_moe", "plain", dict(QWEN, shared_expert_intermediate_size=56)),
    ("qwen2_moe", "renormalized, no bias", dict(QWEN, shared_expert_intermediate_size=56, norm_topk_prob=True,
                                                qkv_bias=False)),
    ("qwen2_moe", "step 2", dict(QWEN, shared_expert_intermediate_size=56, decoder_sparse_step=2)),
    ("qwen2_moe", "window", dict(QWEN, shared_expert_intermediate_size=56, use_sliding_window=True, sliding_window=20,
                                 max_window_layers=2)),
    ("qwen3_moe", "plain", dict(QWEN, head_dim=32)),
    ("qwen3_moe", "renormalized, yarn", dict(QWEN, head_dim=24, norm_topk_prob=True, rope_parameters=ROPES["yarn"])),
    ("qwen3_moe", "mlp_only_layers, biases", dict(QWEN, head_dim=32, mlp_only_layers=[1], attention_bias=True)),
    ("qwen3_moe", "window", dict(QWEN, head_dim=32, use_sliding_window=True, sliding_window=33, old=True)),
    ("mixtral", "plain", dict(MIX)),
    ("mixtral", "window, head_dim 24", dict(MIX, sliding_window=50, head_dim=24)),
    ("mixtral", "top 1, old spelling", dict(MIX, num_experts_per_tok=1, old=True)),
    ("glm4_moe", "plain", dict(GLM)),
    ("glm4_moe", "q/k norms, biases", dict(GLM, use_qk_norm=True, attention_bias=True)),
    ("glm4_moe", "groups, scale", dict(GLM, n_group=3, topk_group=2, routed_scaling_factor=2.5, old=True)),
    ("glm4_moe", "all of a head turns", dict(GLM, rope_parameters=dict(ROPES["theta"], partial_rotary_factor=1.0))),
    ("minimax_m2", "plain", dict(MIX, head_dim=32)),
    ("minimax_m2", "rotary_dim", dict(MIX, head_dim=32, rotary_dim=16)),
    ("minimax_m2", "partial_rotary_factor", dict(MIX, head_dim=24, rope_parameters=dict(
        ROPES["default"], partial_rotary_factor=0.5))),
]
BY_TYPE = {"full_attention": dict(ROPES["linear"]), "sliding_attention": dict(ROPES["default"], rope_theta=500.0)}
GEMMA = dict(head_dim=32, query_pre_attn_scalar=24, sliding_window=20, num_hidden_layers=4)
LONG = dict(rope_type="longrope", rope_theta=10000.0, short_factor=[1 + i / 8 for i in range(8)], long_factor=[4.0] * 8,
            original_max_position_embeddings=256)
ERNIE = dict(moe_num_experts=8, moe_k=3, moe_num_shared_experts=2, moe_intermediate_size=40, num_hidden_layers=3)
GRANITE = dict(embedding_multiplier=12.0, attention_multiplier=0.3, residual_multiplier=0.22, logits_scaling=8.0)
CASES += [
    ("gemma2", "plain", dict(GEMMA)),
    ("gemma2", "small caps", dict(GEMMA, attn_logit_softcapping=3.0, final_logit_softcapping=2.0, attention_bias=True)),
    ("gemma2", "no caps, untied", dict(GEMMA, attn_logit_softcapping=None, final_logit_softcapping=None, tie_word_embeddings=False)),
    ("gemma3_text", "plain", dict(GEMMA, num_hidden_layers=7)),
    ("gemma3_text", "ropes, layer types", dict(GEMMA, num_hidden_layers=2, layer_types=SLIDES, rope_parameters=BY_TYPE)),
    ("gemma3_text", "old spelling", dict(GEMMA, num_hidden_layers=2, layer_types=SLIDES[::-1], rope_parameters=BY_TYPE, old=True)),
    ("phi3", "plain", {}),
    ("phi3", "window", dict(sliding_window=33, num_key_value_heads=4)),
    ("phi3", "longrope", dict(rope_parameters=LONG, max_position_embeddings=4096, original_max_position_embeddings=256)),
    ("phi3", "longrope, part of a head, tied", dict(rope_parameters=dict(LONG, short_factor=[1.0, 1.5, 2.0, 3.0, 5.0, 6.0], long_factor=[4.0] * 6,
                                                                         partial_rotary_factor=0.75), max_position_embeddings=4096,
                                                    original_max_position_embeddings=256, tie_word_embeddings=True)),
    ("olmo2", "plain", dict(num_key_value_heads=4)),
    ("olmo2", "groups, biases", dict(attention_bias=True)),
    ("olmo3", "plain", dict(num_hidden_layers=5, sliding_window=33)),
    ("olmo3", "yarn on full layers", dict(layer_types=SLIDES, sliding_window=20, rope_parameters={
        "full_attention": dict(ROPES["yarn"]), "sliding_attention": dict(ROPES["default"])})),
    ("granite", "plain", dict(GRANITE)),
    ("granite", "biases, tied", dict(GRANITE, attention_bias=True, mlp_bias=True, tie_word_embeddings=True, old=True)),
    ("granite", "no multipliers but the scores'", dict(attention_multiplier=0.25)),
    ("seed_oss", "plain", dict(head_dim=24)),
    ("seed_oss", "other biases", dict(attention_bias=False, attention_out_bias=True, mlp_bias=True, head_dim=16)),
    ("ernie4_5", "plain", dict(head_dim=32)),
    ("ernie4_5", "biases, untied", dict(head_dim=24, use_bias=True, tie_word_embeddings=False, rope_parameters=ROPES["theta"])),
    ("ernie4_5_moe", "plain", dict(ERNIE)),
    ("ernie4_5_moe", "every second layer, no shared expert", dict(ERNIE, tie_word_embeddings=False, moe_num_shared_experts=0,
                                                                         num_hidden_layers=5, moe_layer_interval=2, moe_layer_end_index=3)),
    ("ministral", "layer types", dict(head_dim=16, layer_types=SLIDES, sliding_window=20)),
    ("ministral3", "plain", dict(head_dim=32, rope_parameters=dict(ROPES["yarn"], original_max_position_embeddings=256, mscale=1.0,
                                                                   mscale_all_dim=1.0, llama_4_scaling_beta=0.1))),
    ("smollm3", "plain", dict(num_hidden_layers=5)),
    ("smollm3", "windows", dict(no_rope_layers=[0, 1], use_sliding_window=True, sliding_window=20, attention_bias=True)),
    ("glm4", "plain", dict(head_dim=32)),
    ("glm4", "no bias, all of a head turns", dict(head_dim=16, attention_bias=False, rope_parameters=dict(ROPES["theta"], partial_rotary_factor=1.0))),
]


OSS = dict(MIX, num_local_experts=6, num_experts_per_tok=3, head_dim=24, sliding_window=20, num_hidden_layers=3)
CASES += [
    ("gpt_oss", "plain", dict(OSS, rope_parameters=dict(ROPES["yarn"], truncate=False))),
    ("gpt_oss", "small limit, layer types", dict(OSS, swiglu_limit=0.5, num_hidden_layers=2, layer_types=SLIDES, rope_parameters=ROPES["yarn2"])),
    ("gpt_oss", "no bias in attention, old spelling", dict(OSS, attention_bias=False, old=True, rope_parameters=ROPES["yarn"])),
    ("gpt_oss", "MXFP4", dict(OSS, mxfp4=True, rope_parameters=ROPES["yarn"])),
]


LLAMA4 = dict(MIX, num_local_experts=5, num_experts_per_tok=1, intermediate_size=40, intermediate_size_mlp=96, head_dim=32, num_hidden_layers=5,
              interleave_moe_layer_step=2)
CASES += [
    ("llama4_text", "plain", dict(LLAMA4)),
    ("llama4_text", "chunks of 70, growing queries", dict(LLAMA4, attention_chunk_size=70, floor_scale=25, attn_scale=0.6, no_rope_layer_interval=2)),
    ("llama4_text", "top 2, no norms, biases, llama3", dict(LLAMA4, num_experts_per_tok=2, interleave_moe_layer_step=1, use_qk_norm=False, attention_bias=True,
                                                           rope_parameters=ROPES["llama3"], attn_temperature_tuning=False)),
    ("llama4_text", "layers by lists, tied, old spelling", dict(LLAMA4, moe_layers=[0, 3], no_rope_layers=[1, 0, 1, 1, 0], tie_word_embeddings=True, old=True,
                                                                layer_types=["chunked_attention", "full_attention"] * 2 + ["chunked_attention"],
                                                                attention_chunk_size=33)),
]


GRANITE_MIX = dict(GRANITE, num_local_experts=6, num_experts_per_tok=3, num_hidden_layers=3)
HYBRID = dict(GRANITE_MIX, shared_intermediate_size=56, mamba_n_heads=8, mamba_d_head=16, mamba_d_state=24, num_hidden_layers=4,
              layer_types=["linear_attention", "full_attention"] * 2)
CASES += [
    ("granitemoe", "plain", dict(GRANITE_MIX)),
    ("granitemoe", "biases, tied, old spelling", dict(GRANITE_MIX, num_experts_per_tok=1, attention_bias=True, tie_word_embeddings=True, old=True)),
    ("granitemoeshared", "plain", dict(GRANITE_MIX, shared_intermediate_size=56)),
    ("granitemoeshared", "no shared expert", dict(GRANITE_MIX, shared_intermediate_size=0)),
    ("granitemoehybrid", "plain", dict(HYBRID)),
    ("granitemoehybrid", "three groups, biases, steps, RoPE", dict(HYBRID, hidden_size=48, mamba_n_groups=3, mamba_n_heads=12, mamba_d_head=8, mamba_proj_bias=True,
                                                                  mamba_d_conv=3, time_step_limit=[0.3, 1.1], position_embedding_type="rope")),
    ("granitemoehybrid", "dense, tied, no bias of the convolution", dict(HYBRID, num_local_experts=0, mamba_conv_bias=False, tie_word_embeddings=True,
                                                                         layer_types=["mamba", "mamba", "attention", "mamba"])),
    ("granitemoehybrid", "attention alone", dict(HYBRID, num_local_experts=0, position_embedding_type="rope", layer_types=["full_attention"] * 4)),
]


KIMI = dict(MLA, q_lora_rank=None, num_local_experts=8, num_experts_per_tok=3, n_shared_experts=1, moe_intermediate_size=40, num_hidden_layers=4,
            linear_num_heads=3, linear_head_dim=24, layer_types=["linear_attention", "full_attention"] * 2)
CASES += [
    ("kimi_linear", "plain", dict(KIMI)),
    ("kimi_linear", "groups, no renormalization, layers by numbers", dict(KIMI, n_group=4, topk_group=2, norm_topk_prob=False, layer_types=None, num_hidden_layers=6,
                                                                         linear_conv_kernel_dim=3, mlp_layer_types=["sparse", "dense"] * 3)),
]


GEMMA3N = dict(head_dim=32, num_hidden_layers=7, num_kv_shared_layers=2, sliding_window=20, laurel_rank=12, hidden_size_per_layer_input=24,
               vocab_size_per_layer_input=240, activation_sparsity_pattern=[0.95, 0.8, 0.0, 0.3, 0.5, 0.0, 0.0])
CASES += [
    ("gemma3n_text", "plain", dict(GEMMA3N)),
    ("gemma3n_text", "three streams, the second active", dict(GEMMA3N, altup_num_inputs=3, altup_active_idx=1, altup_correct_scale=False,
                                                              layer_types=["sliding_attention", "full_attention"] * 3 + ["sliding_attention"])),
    ("gemma3n_text", "no shared keys, widths, a cap, old spelling", dict(GEMMA3N, num_kv_shared_layers=0, intermediate_size=[96, 50, 96, 64, 96, 96, 40],
                                                                         final_logit_softcapping=2.0, old=True)),
]


def recurrent():
    """Linear attention token by token: transformers' other form, by chunks of 64, is off by 1e-5 in float32 itself."""
    from transformers.models.kimi_linear import modeling_kimi_linear
    from transformers.models.qwen3_5 import modeling_qwen3_5
    from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe
    from transformers.models.qwen3_next import modeling_qwen3_next
    for m in (modeling_qwen3_next, modeling_qwen3_5, modeling_qwen3_5_moe):
        m.torch_chunk_gated_delta_rule = m.torch_recurrent_gated_delta_rule
    modeling_kimi_linear.chunk_kimi_delta_attention = modeling_kimi_linear.recurrent_kimi_delta_attention


def random_model(family, options, seed):
    """Weights large enough that attention and gates are far from linear."""
    options = dict(BASE, **{k: v for k, v in options.items() if k not in ("old", "mxfp4")})
    config = transformers.AutoConfig.for_model(family, **options)
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32,
                                                          attn_implementation="eager").eval()
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            r = torch.randn(p.shape, generator=g)
            if "correction_bias" in name:
                r = r / 4  # of the size of softmax's scores
            if "modality_router" in name:
                r = r * 50  # its inputs are divided by hidden_size
            zero = family in ("gemma2", "gemma3_text") or (family.startswith(("qwen3_next", "qwen3_5")) and "linear_attn" not in name)
            p.copy_((0 if zero else 1) + 0.2 * r if "norm" in name else (r if name.endswith(("A_log", "dt_bias")) else 0.15 * r))
            p.copy_(p.bfloat16().float())  # so that float32 and bfloat16 have the same weights
        for name, p in model.named_buffers():
            if "correction_bias" in name:  # wide enough that some choices are negative
                p.copy_(0.3 * torch.randn(p.shape, generator=g) - 0.3)
    return model


DELTA = dict(head_dim=32, num_hidden_layers=4, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=24, linear_value_head_dim=20)
MIXED = dict(num_experts=8, num_experts_per_tok=3, moe_intermediate_size=40, shared_expert_intermediate_size=56)
CASES += [
    ("qwen3_next", "plain", dict(DELTA, **MIXED)),
    ("qwen3_next", "as many value heads, layer types", dict(DELTA, **MIXED, linear_num_value_heads=2, linear_conv_kernel_dim=3, norm_topk_prob=False,
                                                            layer_types=["full_attention", "linear_attention"] * 2, mlp_only_layers=[1])),
    ("qwen3_5_text", "plain", dict(DELTA)),
    ("qwen3_5_text", "interval 2, tied, half of a head turns", dict(DELTA, full_attention_interval=2, tie_word_embeddings=True, rope_parameters=dict(
        ROPES["theta"], partial_rotary_factor=0.5))),
    ("qwen3_5_moe_text", "plain", dict(DELTA, **MIXED)),
]


def store_mxfp4(model, d, seed):
    """Random MXFP4 experts, in the model as transformers' converter decodes them, in d as gpt-oss has them."""
    from safetensors.torch import load_file, save_file
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors
    file = os.path.join(d, "model.safetensors")
    stored, g = load_file(file), torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            shape = p.shape[0], p.shape[2], p.shape[1] // 32
            blocks = torch.randint(0, 256, (*shape, 16), generator=g, dtype=torch.uint8)
            scales = torch.randint(121, 125, shape, generator=g, dtype=torch.uint8)
            with torch.no_grad():
                p.copy_(convert_moe_packed_tensors(blocks, scales, dtype=torch.float32))
            del stored[name]
            stored[name + "_blocks"], stored[name + "_scales"] = blocks, scales
    save_file(stored, file, {"format": "pt"})
    with open(os.path.join(d, "config.json")) as f:
        c = json.load(f)
    c["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    with open(os.path.join(d, "config.json"), "w") as f:
        json.dump(c, f)


def name_dense(d):
    """Kimi-Linear's dense layers under the name of published checkpoints; transformers saves them as if they had experts."""
    from safetensors.torch import load_file, save_file
    file = os.path.join(d, "model.safetensors")
    t = load_file(file)
    save_file({re.sub(r"block_sparse_moe\.(\w+_proj)", r"mlp.\1", k): v for k, v in t.items()}, file, {"format": "pt"})


def respell(path):
    """config.json as transformers 4 wrote it."""
    with open(path) as f:
        c = json.load(f)
    p = c.pop("rope_parameters")
    if "full_attention" in p:
        c["rope_local_base_freq"] = p["sliding_attention"]["rope_theta"]
        p = p["full_attention"]
        if c["model_type"] != "gemma3n_text":
            c["sliding_window_pattern"] = 2
            del c["layer_types"]
    c["rope_theta"] = p.pop("rope_theta")
    if "partial_rotary_factor" in p:
        c["partial_rotary_factor"] = p.pop("partial_rotary_factor")
    c["rope_scaling"] = None
    if p.get("rope_type") != "default":
        p["type"] = p.pop("rope_type")
        c["rope_scaling"] = p
    if "dtype" in c:
        c["torch_dtype"] = c.pop("dtype")
    with open(path, "w") as f:
        json.dump(c, f)


def theirs(model, ids):
    with torch.no_grad():
        o = model(torch.tensor(ids[None].astype(np.int64)), output_hidden_states=True)
        h = list(o.hidden_states)
        if h[0].ndim == 4:  # several streams, and no final norm
            last = model.model(torch.tensor(ids[None].astype(np.int64))).last_hidden_state
            h = [x.permute(1, 2, 0, 3).flatten(2) for x in h[:-1]] + [last]
    h = [x[0].float().numpy().astype(np.float64) for x in h]
    return h, o.logits[0].float().numpy().astype(np.float64)


def exact(model, ids):
    """The same in double precision, also where transformers says float32."""
    model = copy.deepcopy(model).double()
    model.config._experts_implementation = "eager"
    with mock.patch.object(torch, "float32", torch.float64), mock.patch.object(torch.Tensor, "float", torch.Tensor.double):
        return theirs(model, ids)


def ours(d, mode, ids, config, kernels=None):
    p = subprocess.run(["forward", d, mode] + ([kernels] if kernels else []), input=ids.astype(np.int32).tobytes(),
                       stdout=subprocess.PIPE)
    if p.returncode == 77:
        return None
    assert p.returncode == 0, p.returncode
    x = np.frombuffer(p.stdout, np.float32).astype(np.float64)
    n, h = config.num_hidden_layers, config.hidden_size
    streams = h * getattr(config, "altup_num_inputs", 1)
    layers, last, logits = np.split(x, np.cumsum([n * len(ids) * streams, len(ids) * h]))
    return list(layers.reshape(n, len(ids), streams)) + [last.reshape(len(ids), h)], logits.reshape(len(ids), -1)


def worst(a, b):
    return max((np.linalg.norm(x - y, axis=1) / np.linalg.norm(y, axis=1)).max()
               for x, y in zip(a[0] + [a[1]], b[0] + [b[1]]))


def middle(several, exact):
    """The median token's logits, of all sequences: which tokens go to other experts in bfloat16 is luck, and what
    follows the first of them in its sequence sees it through attention."""
    return np.median(np.concatenate([np.linalg.norm(a[1] - b[1], axis=1) / np.linalg.norm(b[1], axis=1) for a, b in zip(several, exact)]))


def check(family, name, options, seed, d):
    rng = np.random.default_rng(seed)
    model = random_model(family, options, seed)
    ids = rng.integers(0, model.config.vocab_size, (5, 200))
    model.save_pretrained(d)
    if family == "kimi_linear":
        name_dense(d)
    if options.get("mxfp4"):
        store_mxfp4(model, d, seed)
    if options.get("old"):
        respell(os.path.join(d, "config.json"))
    f32 = [theirs(model, x) for x in ids]
    double = exact(model, ids[0])
    rounding, off = worst(f32[0], double), 0
    bad = []
    said = []
    for k in KERNELS:
        o = ours(d, "f32", ids[0], model.config, k)
        if o:
            said.append("%s %.1e" % (k, worst(o, f32[0])))
            off = max(off, worst(o, double))
            bad += [k] if worst(o, f32[0]) > F32 and worst(o, double) > 2 * rounding else []
    model = model.bfloat16()
    limit = middle([theirs(model, x) for x in ids], f32)
    low = [middle(o, f32) for o in ([ours(d, "bf16", x, model.config, k) for x in ids] for k in KERNELS + ("avx512bf16", "amx")) if o[0]]
    bad += ["bf16"] if max(low) > 1.5 * limit else []
    print("%-13s%-32s f32: %s, from double ours %.1e theirs %.1e   bf16: ours %s theirs %.4f%s"
          % (family, name, ", ".join(said), off, rounding, " ".join("%.4f" % x for x in low), limit, "   BAD: " + " ".join(bad) if bad else ""), flush=True)
    return not bad


def main():
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    torch.set_num_threads(1)
    recurrent()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    good = True
    for i, (family, name, options) in enumerate(CASES):
        if sys.argv[2:] and family not in sys.argv[2:]:
            continue
        with tempfile.TemporaryDirectory() as d:
            good &= check(family, name, options, seed * 1000 + i, d)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
