/* plan.h - what quantizing a model will take, from its config and headers. */
#ifndef FORGE_PLAN_H
#define FORGE_PLAN_H

#include "arch/config.h"
#include "common/base.h"
#include "gptq/solve/solve_cost.h"

enum { EFFORTS = EFFORT_BEST + 1 };

struct plan {
    int64_t layers, modules, hidden_size;
    int64_t *layer_modules;       /* [layers]: linears that become 4-bit */
    bool packed;                  /* is 4-bit already */
    bool bf16_experts;            /* a mixture that runs in bf16 */
    uint64_t parameters;          /* of the whole checkpoint */
    uint64_t quantized;           /* of the linears that become 4-bit */
    uint64_t bytes_in;            /* tensors as stored */
    uint64_t bytes_out;           /* tensors of the result, to about 1 % */
    uint64_t hessian_bytes;       /* of the widest input, as a stream */
    uint64_t layer_hessian_bytes; /* of all inputs of one layer, one expert */
    uint64_t state_bytes; /* per token: hidden states around a layer, and the
                             states at three points in it */
    uint64_t layer_bytes; /* of the largest layer, fp8 as bf16, and two of
                             its experts */
    double device_layer_bytes, device_token_bytes; /* of a GPU, in bf16 */
    double token_flops;  /* per token of calibration: forward pass over the
                             linears, and C * C for each Hessian */
    double second_flops; /* per token, of a second stream: the forward pass
                             and the cross moment of each input */
    /* all layers, as gptq/cost.h has it: */
    double solve_flops[EFFORTS];  /* codes, without corrected targets */
    double target_flops[EFFORTS]; /* what these add */
    double couple_flops; /* rows together: of o and down, of experts' down; k
                            and v have less */
};

/* group: inputs per scale.  Reads headers only.  Errors of model_config_read
 * and checkpoint_open; E_DATA when a linear that the config promises is not
 * there or has another shape. */
MUST_CHECK int plan_model(struct plan *p, const char *dir, int64_t group,
                          bool symmetric, struct err *e);
void plan_release(struct plan *p);

#endif
