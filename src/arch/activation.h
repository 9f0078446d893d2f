/* activation.h - what an MLP's gate goes through. */
#ifndef FORGE_ACTIVATION_H
#define FORGE_ACTIVATION_H

/* An MLP computes down(act(gate(x)) * up(x)), but for ACT_CLAMPED. */
enum activation {
    ACT_SILU,
    ACT_GELU,   /* its approximation by tanh */
    ACT_CLAMPED /* gpt-oss: (u + 1) g sigmoid(alpha g), with g = min(gate(x),
                 * limit) and u = up(x) between -limit and limit */
};

#endif
