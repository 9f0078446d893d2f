/* recur_internal.cuh - a call of linear attention, in front of its states and behind
 * (forward_recur_cuda.cu), and the states (forward_states_cuda.cu). */
#ifndef FORGE_CUDA_RECUR_INTERNAL_CUH
#define FORGE_CUDA_RECUR_INTERNAL_CUH

#include "cuda/forward_internal.cuh"

/* A call, and its work memory. */
struct recur_job {
    struct forward_recur a;
    int channels, q_at, k_at, v_at; /* first channels of q, k, v */
    int each;                       /* value heads of a key head */
    int gates;                      /* decays of a value head: 1, or k_dim */
    const int64_t *first;           /* [n_sequences + 1] */
    float *mixed; /* [rows, channels] outputs of the convolution; q and k are
                   * normalized, and in place of v come a head's outputs */
    float *decay; /* [rows, v_heads, gates] */
    float *beta;  /* [rows, v_heads] */
};

/* Run the states of all heads and sequences through their tokens: in j.mixed, where v
 * was, is then what comes out, plus D v of DELTA_MAMBA.  k_dim is HEAD_DIM_MAX at
 * most. */
int recur_states(struct cuda_context *c, const struct recur_job &j,
                 struct err *e);

#endif
