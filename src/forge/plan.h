/* plan.h - estimates what quantizing a model takes (disk, memory, operations),
 * from its config and headers. */
#ifndef FORGE_PLAN_H
#define FORGE_PLAN_H

#include "arch/gridrules.h"
#include "common/base.h"
#include "gptq/solve/solve_cost.h"

enum { EFFORTS = EFFORT_BEST + 1 };

struct plan {
    int64_t layers, modules, hidden_size;
    int64_t row;                  /* model_row() */
    int64_t *layer_modules;       /* [layers]: linears that become 4-bit */
    bool packed;                  /* the model is 4-bit already */
    bool kv_b;                    /* kv_b_proj is among the linears */
    bool bf16_experts;            /* the model has experts and runs in bf16 */
    uint64_t parameters;          /* number, of the whole checkpoint */
    uint64_t quantized;           /* number, of the linears that become 4-bit */
    uint64_t bytes_in;            /* tensors as stored */
    uint64_t bytes_out;           /* tensors of the result, to about 1 % */
    uint64_t bytes_packed;        /* of them those of quantized linears */
    uint64_t hessian_bytes;       /* of the widest input, packed triangle */
    uint64_t layer_hessian_bytes; /* all inputs of one layer, of one expert */
    uint64_t state_bytes; /* per token: hidden states before and behind a layer,
                             and activations at three points in it */
    /* bytes of a token in forge-calib: of its x, activations and companions
     * (calib/store.h), without a reference stream and with; of what a mixture
     * keeps of it, the experts' input and the sum of their outputs (0: no layer
     * needs it); its experts; of the inputs of down of two experts, at most */
    double x_bytes, act_bytes[2], companion_bytes[2];
    double expert_in_bytes, expert_sum_bytes, expert_mid_bytes;
    double expert_pass_bytes;    /* experts_pass_bytes() */
    double expert_lent_bytes[2]; /* experts_lent_bytes() */
    double expert_codes_bytes;   /* of all experts of a layer, in 4 bits */
    int64_t top_k, routes;       /* routes: rows of a router */
    bool device_lacks;           /* no GPU runs the model's layers */
    uint64_t layer_bytes; /* weights of the largest layer with four of its
                           * experts; fp8 as bf16 */
    /* of a layer's codes and Hessians while they are lent in the host's memory
     * (device/ledger.h), at most; without cross moments and with */
    double lent_bytes[2];
    double device_layer_bytes, device_token_bytes; /* on a GPU, in bf16 */
    double device_gradient_bytes; /* there, of a layer's gradients */
    /* of forge-tune, and of a row of its batch */
    double device_tune_bytes, device_tune_row;
    /* there, of the widest input's moments, without cross moments and with */
    double device_hessian_bytes[2];
    /* there, of the linear that takes most, and with as few rows at a time as may
     * be; targets moved beyond EFFORT_FAST; [1]: rows together */
    double device_solve_bytes[EFFORTS][2], device_solve_least[EFFORTS][2];
    double gradient_bytes, gradient_thread_bytes; /* on the CPU */
    bool norms_behind, adds_scaled;               /* layer_norms.attn_out;
                                     * model_adds_scaled() */
    double
        token_flops; /* per token of calibration: the forward pass through the
                            linears, and C * C for each Hessian */
    double
        second_flops; /* per token, for a reference stream: its forward pass, and
                            the cross moment of each input */
    /* multiply-adds of all layers, by gptq/solve/solve_cost.h: */
    double solve_flops[EFFORTS];  /* solving without moved targets */
    double target_flops[EFFORTS]; /* moving targets */
    double head_flops;            /* of a token's logits */
    int64_t
        weighers; /* linears that weigh a token (calib/gradient_weights.h), all
                       * layers' */
    /* Fisher descent on o_proj, down_proj and experts' down_proj; k and v, which take
     * less, are left out. */
    double fisher_flops[EFFORTS];
};

/* Fill *p from headers only; plan_release() it.  choice: the linears that become
 * 4-bit; grids: theirs.
 * Errors of model_config_read() and checkpoint_open(); E_DATA: a linear of the
 * config is missing or has another shape. */
MUST_CHECK int plan_model(struct plan *p, const char *dir,
                          const struct grid_rules *grids,
                          const struct module_choice *choice, struct err *e);
void plan_release(struct plan *p);

#endif
