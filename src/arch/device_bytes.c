/* device_bytes.c - see device_bytes.h. */
#include "arch/device_bytes.h"

#include <math.h>

/* Bytes that linear attention takes beside the linears that are listed: gates, with
 * their weights, and what forward_table.recur() works with. */
static double delta_bytes(const struct model_config *c, double item)
{
    const struct delta *d = &c->delta;
    bool each = c->family->delta == DELTA_CHANNELS;
    double keys = (double)d->k_heads * (double)d->k_dim,
           channels = 2 * keys + (double)d->v_heads * (double)d->v_dim,
           h = (double)c->hidden_size, heads = (double)d->v_heads;
    double weights = 2 * heads * h, rows = 2 * heads, decays = heads;

    if (each) {
        weights = 2 * (double)d->k_dim * (h + keys) + heads * h;
        rows = 2 * keys + fmax((double)d->k_dim, heads);
        decays = keys;
    }
    if (c->family->delta == DELTA_MAMBA)
        weights = rows = 0;
    return (weights + BATCH_ROWS * rows) * item +
           sizeof(float) * (channels * (double)d->kernel +
                            BATCH_ROWS * (channels + decays + heads));
}

/* Bytes that several residual streams take beside one: a token's row, what is made of
 * its numbers, gates that are made sparse, and weights of its own. */
static double streams_bytes(const struct model_config *c, double item)
{
    const struct altup *a = &c->altup;
    double h = (double)c->hidden_size, n = (double)a->n, rank = (double)a->rank,
           inputs = (double)a->inputs;
    double rows = (double)model_row(c) + fmax(rank, inputs) +
                  2.0 * (double)c->intermediate_size;

    return (2 * h * (rank + inputs) + BATCH_ROWS * rows) * item +
           sizeof(float) * (n * h + n * n * (n + 1) + 3 * h);
}

static double layer_bytes(const struct model_config *c, int64_t layer,
                          double item)
{
    int64_t n = model_linear_common(c, layer), widest = c->hidden_size;
    double weights = 0, rows = 3.0 * (double)c->hidden_size;
    struct linear l;

    for (int64_t i = 0; i < n; i++) {
        model_linear(c, layer, i, &l);
        weights += (double)l.rows * (double)l.cols;
        rows += (double)l.rows;
        widest = l.rows > widest ? l.rows : widest;
        widest = l.cols > widest ? l.cols : widest;
    }
    if (c->mla.kv_lora && !c->kv_b) {
        model_kv_b(c, layer, &l);
        weights += (double)l.rows * (double)l.cols;
        rows += (double)l.rows;
    }
    if (model_layer_experts(c, layer)) {
        weights += 6.0 * (double)c->moe.width * (double)c->hidden_size;
        rows += 3.0 * (double)(c->moe.width + c->hidden_size);
    }
    rows += 2.0 * (double)widest;
    return (weights + BATCH_ROWS * rows) * item +
           BATCH_ROWS * 2.0 * sizeof(float) * (double)widest +
           (model_layer_linear(c, layer) ? delta_bytes(c, item) : 0) +
           (c->family->altup ? streams_bytes(c, item) : 0);
}

double layers_device_bytes(const struct model_config *c, size_t item)
{
    double most = 0;

    for (int64_t i = 0; i < c->n_layers; i++) {
        double bytes = layer_bytes(c, i, (double)item);

        most = bytes > most ? bytes : most;
    }
    return most;
}

/* ---- gradients ---- */

static double larger(double a, double b)
{
    return a > b ? a : b;
}

/* What the linears of a layer are, for its gradients. */
struct sizes {
    double attention, mlp; /* weights of attention, and of the widest MLP */
    double one;            /* of the largest linear */
    double width;          /* outputs of the MLP's gate */
    double widest;         /* inputs or outputs of any linear */
    double rows;           /* f32 numbers of a token in attention */
};

static struct sizes sizes_of(const struct model_config *c, int64_t layer)
{
    int64_t n = model_linear_common(c, layer);
    double h = (double)c->hidden_size, heads = (double)c->n_heads,
           kv = (double)c->n_kv_heads, d = (double)c->head_dim,
           v = (double)c->v_dim, expert = h * (double)c->moe.width;
    /* queries, keys and values turned, with gradients; and below twice what
     * linears put out: there may be norms of all of it, or latents */
    struct sizes s = { .rows = 2 * h + 3 * (heads * d + kv * d) + 2 * kv * v +
                               heads * v };
    struct linear l;

    for (int64_t i = 0; i < n + (c->mla.kv_lora && !c->kv_b); i++) {
        double size;

        if (i < n)
            model_linear(c, layer, i, &l);
        else
            model_kv_b(c, layer, &l);
        size = (double)l.rows * (double)l.cols;
        s.one = larger(s.one, size);
        s.widest = larger(s.widest, larger((double)l.rows, (double)l.cols));
        if (l.input == IN_MLP || l.input == IN_MLP_MID) {
            s.mlp += size;
            s.width = larger(s.width, (double)l.rows);
        } else {
            s.attention += size;
            s.rows += 2 * (double)l.rows;
        }
    }
    if (model_layer_experts(c, layer)) {
        s.mlp += 3 * expert;
        s.one = larger(s.one, expert);
        s.width = larger(s.width, (double)c->moe.width);
    }
    return s;
}

/* Operands of a product in bf16 (cuda/backward_product_cuda.cu): three parts of rows of
 * n numbers. */
static double operand_bytes(double n)
{
    return 6.0 * BATCH_ROWS * n;
}

/* Of the head, which has weights in bf16, and in f32 for `block` of its
 * outputs. */
static double head_bytes(const struct model_config *c, double block)
{
    return (double)c->hidden_size *
           (2 * (double)c->vocab_size + sizeof(float) * block);
}

/* Inputs and gradients of a part of the tokens, and the residual stream. */
static double part_bytes(const struct model_config *c, double item)
{
    return GRADIENT_ROWS * (double)c->hidden_size * (8 + 2 * item);
}

double gradient_device_bytes(const struct model_config *c, size_t item)
{
    double h = (double)c->hidden_size, part = part_bytes(c, (double)item);
    double most = layers_device_bytes(c, item);

    most = larger(most, head_bytes(c, 0) + part +
                            4.0 * GRADIENT_VOCABULARY * BATCH_ROWS +
                            operand_bytes(larger(h, GRADIENT_VOCABULARY)));
    for (int64_t i = 0; i < c->n_layers; i++) {
        const struct sizes s = sizes_of(c, i);
        double rows = BATCH_ROWS * (double)gradient_mlp_bytes(c->hidden_size,
                                                              (int64_t)s.width);
        double operands = operand_bytes(s.widest);

        most = larger(most, (double)item * s.attention + operands +
                                GRADIENT_SCORES + 4.0 * BATCH_ROWS * s.rows);
        most = larger(most, (double)item * s.mlp + operands + part +
                                larger(rows, GRADIENT_ROOM));
    }
    return most;
}

double tune_device_bytes(const struct model_config *c, size_t item, double rows)
{
    double layers = (double)c->n_layers, h = (double)c->hidden_size;
    double all = 0, most = 0, row;

    for (int64_t i = 0; i < c->n_layers; i++) {
        double layer = 0;
        struct linear l;

        for (int64_t k = model_linear_count(c, i); k-- > 0;) {
            model_linear(c, i, k, &l);
            layer += (double)l.rows * (double)l.cols;
        }
        all += layer;
        most = larger(most, layer);
    }
    /* streams, outputs in front of norms, and what o reads; a gradient and its copy */
    row = (double)item * (h * (4 * layers + 2) +
                          layers * (double)c->n_heads * (double)c->v_dim) +
          2 * sizeof(float) * h;
    return all * (3 * sizeof(float) + (double)item) + sizeof(float) * most +
           2 * sizeof(float) * (double)TUNE_LOGITS + rows * row +
           gradient_device_bytes(c, item) * (1 + rows / BATCH_ROWS);
}

double gradient_host_bytes(const struct model_config *c, size_t item)
{
    double part = part_bytes(c, (double)item), most;

    /* and operands rounded to bf16: weights, also packed, twice for the head and the
     * MLP, and a linear's rows */
    most = head_bytes(c, 1024) + 6.0 * 1024 * (double)c->hidden_size + part;
    for (int64_t i = 0; i < c->n_layers; i++) {
        const struct sizes s = sizes_of(c, i);
        double one = s.one * (double)item;

        most = larger(most, 4 * s.attention + one + 4 * s.one +
                                BATCH_ROWS * (4.0 * s.rows + 2 * s.widest));
        if (model_layer_experts(c, i))
            one = READERS * 3.0 * (double)c->moe.width *
                  (double)c->hidden_size * (double)item;
        most = larger(most, 8 * s.mlp + one + part);
    }
    return most;
}

double gradient_thread_bytes(const struct model_config *c)
{
    double h = (double)c->hidden_size, most = 0;

    for (int64_t i = 0; i < c->n_layers; i++) {
        double width = sizes_of(c, i).width;

        most = larger(most, GRADIENT_PIECE * (4 * (2 * h + 3 * width) +
                                              2 * larger(h, width)));
    }
    return most;
}

int64_t expert_rows_lent(const struct model_config *c, int64_t tokens)
{
    int64_t rows = 8 * tokens / c->moe.n_experts * c->moe.top_k;

    return rows > 0 && rows < tokens ? rows : tokens;
}

double expert_sums_bytes(double all, int streams)
{
    return all > EXPERT_SUMS ? (double)EXPERT_SUMS : streams * all;
}

double experts_kept_bytes(const struct model_config *c, size_t item,
                          double tokens, bool both)
{
    double rows = tokens * (double)c->hidden_size, bytes = 0;
    int streams = both ? 2 : 1;

    for (int64_t i = 0; i < c->n_layers; i++)
        if (model_layer_experts(c, i)) {
            /* the last layer needs no sums */
            double sums = i < c->n_layers - 1 ? rows * sizeof(float) : 0;

            bytes = fmax(bytes, streams * rows * (double)item +
                                    expert_sums_bytes(sums, streams));
        }
    return bytes;
}

double experts_mid_bytes(const struct model_config *c, size_t item)
{
    const int64_t many = 1 << 30;

    return c->moe.n_experts ?
               2.0 * (double)item * (double)c->moe.width *
                   (double)expert_rows_lent(c, many) / (double)many :
               0;
}

double experts_pass_bytes(const struct model_config *c, size_t item)
{
    return experts_mid_bytes(c, item) + 24.0 * (double)c->moe.top_k;
}

double experts_lent_bytes(const struct model_config *c, size_t item, bool both)
{
    const int64_t many = 1 << 30;

    return c->moe.n_experts ?
               (double)expert_rows_lent(c, many) / (double)many *
                   (double)((both ? 3 : 1) * c->hidden_size + c->moe.width) *
                   (double)item :
               0;
}

double lent_room(double all, double kept, double lent, double room)
{
    return fmin(room, all + kept <= room ? all : fmax(room - kept, lent));
}

double token_device_bytes(const struct model_config *c, size_t item)
{
    int64_t widest = c->hidden_size;
    struct linear l;

    for (int64_t i = 0; i < c->n_layers; i++)
        for (int64_t k = 0; k < model_linear_common(c, i); k++) {
            model_linear(c, i, k, &l);
            widest = l.cols > widest ? l.cols : widest;
        }
    return (double)(model_row(c) + widest) * (double)item +
           experts_lent_bytes(c, item, true);
}
