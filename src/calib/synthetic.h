/* synthetic.h - synthetic activations: independent elements of the standard
 * normal distribution, with the names and shapes of a model's.  Of the model
 * only config.json is read. */
#ifndef FORGE_SYNTHETIC_H
#define FORGE_SYNTHETIC_H

#include "arch/config.h"
#include "common/cli/progress.h"
#include "common/io/stream.h"

struct synthetic {
    uint64_t seed;
    int64_t sequences, seqlen; /* sequences of this many tokens each; 0: 128
                                * of 512 */
    int64_t layer;             /* -1: all layers */
    bool kv_b;                 /* kv_lat of latent attention, too */
    enum dtype dtype;          /* DT_F32 or DT_BF16 */
};

/* s->seed of word = "gaussian[:SEED]", SEED a decimal number below 2^64; 1
 * without it.  E_USAGE. */
MUST_CHECK int synthetic_parse(struct synthetic *s, const char *word,
                               struct err *e);

/* Write an activation frame [seqlen, width] per sequence of each input of linears,
 * layer after layer.  Of sequences * seqlen tokens, which choose top_k of the
 * experts each, an expert gets its even share, rounded up.
 *
 * Element i of the matrix NAME [tokens, width], counted by rows, is
 *
 *     Phi^-1((u_i + 1/2) / 2^52)
 *
 * with Phi the normal distribution and u_i the upper 52 bits of draw i (from 0) of
 * SplitMix64 (Steele, Lea, Flood 2014) seeded with XXH3-64(NAME, seed).  Computed by
 * operations that IEEE 754 defines to the bit, none of libm's: equal on every
 * machine.
 *
 * E_USAGE: the model has no such layer; E_TEMP; errors of model_config_read()
 * and of writing. */
MUST_CHECK int synthetic_write(const struct synthetic *s, const char *model,
                               struct stream_writer *w, struct progress *p,
                               struct err *e);

/* Phi^-1(u) for u = (k + 1/2) / 2^52, 0 <= k < 2^52: relative error below
 * 3e-7. */
double synthetic_normal(double u);

#endif
