/* device_bytes.h - estimates of the memory that the forward pass needs on a GPU,
 * and the backward pass there and on the host. */
#ifndef FORGE_DEVICE_BYTES_H
#define FORGE_DEVICE_BYTES_H

#include "arch/config.h"

/* Rows (tokens) of a batch: enough for the matrix products to be fast. */
enum { BATCH_ROWS = 2048 };
/* Rows of x that a product packs at a time, at most (model/product.c). */
enum { PACKED_ROWS = 2 * BATCH_ROWS };
/* Experts in memory at most, but for those that are quantized: one is in use, the others
 * are read ahead (model/read_ahead.h). */
enum { READERS = 8 };
/* Of the backward pass: tokens at most, if not told; rows of a part of them, and
 * of a thread's; bytes of attention scores and their gradients, outputs of
 * the head, and bytes of an MLP's rows, at a time on a GPU (of the last BATCH_ROWS at
 * least). */
enum {
    GRADIENT_TOKENS = 16384,
    GRADIENT_ROWS = 8192,
    GRADIENT_PIECE = 128,
    GRADIENT_SCORES = 256 << 20,
    GRADIENT_VOCABULARY = 4096,
    GRADIENT_ROOM = 64 << 20
};

/* Bytes of the largest layer with a batch of BATCH_ROWS rows: its weights (of
 * its experts two), the outputs of its linears, f32 sums of a product, and what
 * linear attention and several residual streams work with.
 * item: bytes of an element. */
double layers_device_bytes(const struct model_config *c, size_t item);
/* Bytes of a row of an MLP there (cuda/backward_cuda.cu): inputs, gradients and three
 * numbers for each of its `width` in f32; or three of these in f32 and bf16, and the
 * rest in bf16. */
static inline size_t gradient_mlp_bytes(int64_t h, int64_t width)
{
    int64_t all = 8 * h + 12 * width, rounded = 4 * h + 18 * width;

    return (size_t)(all > rounded ? all : rounded);
}
/* Bytes that the gradients of any layer, or of the head, take on a GPU
 * (model/backward.h), the forward pass included: weights of attention, or
 * of an MLP, and the rows of a part of the tokens, in sequences of at most
 * BATCH_ROWS. */
double gradient_device_bytes(const struct model_config *c, size_t item);
/* Bytes that forge-tune takes on a GPU for batches of so many rows: of each weight that
 * may have codes a number, Adam's two moments and an element, the gradients of a layer,
 * the states of the rows, and logits; linear in rows. */
double tune_device_bytes(const struct model_config *c, size_t item,
                         double rows);
/* Numbers of a part of the rows' logits there, twice. */
enum { TUNE_LOGITS = 64 << 20 };
/* Bytes of host memory that gradients take on the CPU: of a part of the tokens, and
 * of each thread. */
double gradient_host_bytes(const struct model_config *c, size_t item);
double gradient_thread_bytes(const struct model_config *c);
/* Rows of a block in which the tokens of an expert are lent (calib/expert_loans.h):
 * eight times an expert's mean share of the tokens, since routers do not share
 * evenly. */
int64_t expert_rows_lent(const struct model_config *c, int64_t tokens);
/* On a GPU the f32 sums of experts' outputs are of all tokens if they take so many
 * bytes at most (not of what is free: other sums round otherwise); else of as many
 * tokens at a time, and the experts run a second time. */
#define EXPERT_SUMS ((int64_t)8 << 30)
/* Bytes of the sums in so many streams, of which one at a time has sums of part of the
 * tokens; all: of one stream's. */
double expert_sums_bytes(double all, int streams);
/* Bytes that experts keep from their point on, their inputs and sums of outputs, of
 * `tokens` of a stream, or of both.  Then of a token: the inputs of down of two experts;
 * these, and slots, factors and norms of its choices, which a pass over experts keeps;
 * and the blocks above, with room for half of their rows, with companions (both) or
 * without.  0: no experts. */
double experts_kept_bytes(const struct model_config *c, size_t item,
                          double tokens, bool both);
double experts_mid_bytes(const struct model_config *c, size_t item);
double experts_pass_bytes(const struct model_config *c, size_t item);
double experts_lent_bytes(const struct model_config *c, size_t item, bool both);
/* Bytes of the block in which activations are lent (calib/lending.h), where `room` are
 * free: all, if what experts keep fits beside it; else what that leaves, for an expert's
 * rows are read and added to in any order, while activations can take turns; but what
 * experts lend. */
double lent_room(double all, double kept, double lent, double room);
/* Bytes of a token's states: the residual stream, the widest activation, and what is
 * lent of experts' rows. */
double token_device_bytes(const struct model_config *c, size_t item);

#endif
