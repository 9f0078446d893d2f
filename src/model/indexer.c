/* indexer.c - see indexer.h. */
#include "model/indexer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/math/blas.h"
#include "common/math/threads.h"

enum {
    QUERIES = 8, /* whose scores are computed at a time */
    KEYS = 512,  /* the same of keys */
    WORD = 64    /* positions of a word of m->seen */
};

struct index_weights {
    struct loaded wq_b, wk;
    float *weights;       /* [n_heads, H] of weights_proj */
    float *scale, *shift; /* [dim] of k_norm */
};

/* ---- loading ---- */

static int load_weights(struct layer *l, struct index_weights *w, struct err *e)
{
    const struct model_config *c = &l->m->config;
    const struct indexer *x = &c->indexer;
    char name[MODULE_PATH_MAX];
    uint64_t rows, cols;

    layer_tensor_name(l->index, "self_attn.indexer.weights_proj", name);
    if (layer_linear(l, "self_attn.indexer.wq_b", x->n_heads * x->dim,
                     c->mla.q_lora, &w->wq_b, e) < 0 ||
        layer_linear(l, "self_attn.indexer.wk", x->dim, c->hidden_size, &w->wk,
                     e) < 0 ||
        layer_vector(l, "self_attn.indexer.k_norm.weight", x->dim, &w->scale,
                     e) < 0 ||
        layer_vector(l, "self_attn.indexer.k_norm.bias", x->dim, &w->shift, e) <
            0 ||
        checkpoint_linear(l->m->ck, name, &w->weights, &rows, &cols, e) < 0)
        return e->code;
    return model_check_shape(name, rows, cols, x->n_heads, c->hidden_size, e);
}

int indexer_load(struct layer *l, struct err *e)
{
    l->indexer = mem_zero(1, sizeof(*l->indexer), "indexer", e);
    return l->indexer ? load_weights(l, l->indexer, e) : e->code;
}

void indexer_release(struct index_weights *w)
{
    if (!w)
        return;
    loaded_release(&w->wq_b);
    loaded_release(&w->wk);
    free(w->weights);
    free(w->scale);
    free(w->shift);
    free(w);
}

/* ---- running ---- */

struct job {
    const struct layer *l;
    const struct state *s;
    const struct index_weights *w;
    struct rotation turn;
    const float *cs;    /* cosines and sines of position 0 */
    int64_t *position;  /* [rows] */
    const void *q, *k;  /* outputs of wq_b, wk: elements */
    const float *share; /* [rows, n_heads] w(t, h) */
    float *keys;        /* [.., dim] of position 0 of the first sequence */
    uint64_t *seen;
    int64_t words;
    struct threads_error error;
};

/* LayerNorm of n elements with epsilon 1e-6, in f32; rounded to elements. */
static void layer_norm(const struct job *j, const void *x, float *to)
{
    const struct model *m = j->l->m;
    int64_t n = m->config.indexer.dim;
    double mean = 0, square = 0;

    if (!to_f32(to, x, m->dtype, (size_t)n))
        return; /* not with a float's dtype */
    for (int64_t i = 0; i < n; i++)
        mean += (double)to[i] / (double)n;
    for (int64_t i = 0; i < n; i++)
        square += ((double)to[i] - mean) * ((double)to[i] - mean) / (double)n;
    for (int64_t i = 0; i < n; i++)
        to[i] = (float)(((double)to[i] - mean) / sqrt(square + 1e-6)) *
                    j->w->scale[i] +
                j->w->shift[i];
}

static const float *table_row(const struct job *j, int64_t position)
{
    return j->cs + position * j->l->m->config.rotary;
}

/* Keys of rows begin..end-1, normalized and turned. */
static void make_keys(void *ctx, size_t begin, size_t end)
{
    const struct job *j = ctx;
    const struct model *m = j->l->m;
    int64_t d = m->config.indexer.dim;

    for (int64_t r = (int64_t)begin; r < (int64_t)end; r++) {
        int64_t to = j->s->cache ? j->position[r] : r;
        float x[HEAD_DIM_MAX];
        uint16_t h[HEAD_DIM_MAX];

        layer_norm(j, (const char *)j->k + (size_t)(r * d) * m->size, x);
        if (m->bf16)
            m->k->store_bf16(x, NULL, d, h);
        m->k->rotate_row(&j->turn, m->bf16 ? (const void *)h : x,
                         table_row(j, j->position[r]), j->keys + to * d);
    }
}

/* f32 as an integer of the same order. */
static uint32_t ordered(float f)
{
    uint32_t u;

    memcpy(&u, &f, sizeof(u));
    return u >> 31 ? ~u : u | 0x80000000;
}

/* The k-th largest of n <= 2^31 scores, as ordered(): by its bytes, from the
 * first on.  *above: how many are larger. */
static uint32_t kth_largest(const float *score, int64_t n, int64_t k,
                            int64_t *above)
{
    uint32_t found = 0, known = 0;

    *above = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        int64_t count[256] = { 0 };
        int b = 255;

        for (int64_t i = 0; i < n; i++) {
            uint32_t u = ordered(score[i]);

            if ((u & known) == found)
                count[u >> shift & 255]++;
        }
        for (; b > 0 && *above + count[b] < k; b--)
            *above += count[b];
        found |= (uint32_t)b << shift;
        known |= 255u << shift;
    }
    return found;
}

/* Mark the k largest of n scores in seen[], the first of equal ones; all if n
 * <= k, and score is then not read. */
static void mark(const float *score, int64_t n, int64_t k, uint64_t *seen)
{
    int64_t above = 0, equal;
    uint32_t least = n > k ? kth_largest(score, n, k, &above) : 0;

    equal = k - above;
    for (int64_t i = 0; i < n; i++) {
        uint32_t u = n > k ? ordered(score[i]) : 1;

        if (u > least || (u == least && equal-- > 0))
            seen[i / WORD] |= (uint64_t)1 << (i % WORD);
    }
}

/* score[n_queries, ld]: of keys at..at+n-1 for queries q[n_queries, heads,
 * dim]; products [n_queries * heads, n]: work memory. */
static void score_keys(const struct job *j, int64_t row, int64_t n_queries,
                       const float *q, const float *keys, int64_t n,
                       float *products, float *score, int64_t ld)
{
    const struct indexer *x = &j->l->m->config.indexer;
    float scale = 1 / sqrtf((float)x->dim);

    blas_sgemm(&(struct sgemm){ .tb = true,
                                .m = n_queries * x->n_heads,
                                .n = n,
                                .k = x->dim,
                                .a = q,
                                .b = keys,
                                .c = products });
    for (int64_t i = 0; i < n_queries; i++) {
        float *to = score + i * ld;

        memset(to, 0, (size_t)n * sizeof(*to));
        for (int64_t h = 0; h < x->n_heads; h++) {
            const float *p = products + (i * x->n_heads + h) * n;
            float w = j->share[(row + i) * x->n_heads + h] * scale;

            for (int64_t k = 0; k < n; k++)
                to[k] += w * fmaxf(p[k], 0);
        }
    }
}

/* Scores [n, last] of keys 0..last-1 for queries of rows row..row+n-1, in
 * memory of this thread; NULL: none. */
static const float *score_all(const struct job *j, int64_t row, int64_t n,
                              const float *keys, int64_t last, struct err *e)
{
    const struct model *m = j->l->m;
    const struct indexer *x = &m->config.indexer;
    int64_t heads = x->n_heads;
    size_t q = (size_t)(QUERIES * heads * x->dim);
    size_t products = (size_t)(QUERIES * heads * KEYS);
    float *room = scratch_thread(
        (q + products + (size_t)(QUERIES * last)) * sizeof(*room), e);
    float *score = room + q + products;

    if (!room)
        return NULL;
    for (int64_t i = 0; i < n * heads; i++)
        m->k->rotate_row(
            &j->turn,
            (const char *)j->q + (size_t)((row * heads + i) * x->dim) * m->size,
            table_row(j, j->position[row + i / heads]), room + i * x->dim);
    for (int64_t k = 0; k < last; k += KEYS)
        score_keys(j, row, n, room, keys + k * x->dim,
                   last - k < KEYS ? last - k : KEYS, room + q, score + k,
                   last);
    return score;
}

/* Queries of rows row..row+n-1 of the sequence whose keys are at `keys`. */
static int choose(struct job *j, int64_t row, int64_t n, const float *keys,
                  struct err *e)
{
    const struct indexer *x = &j->l->m->config.indexer;
    int64_t last = j->position[row + n - 1] + 1;
    const float *score = NULL;

    if (last > x->top_k && !(score = score_all(j, row, n, keys, last, e)))
        return e->code;
    for (int64_t i = 0; i < n; i++)
        mark(score ? score + i * last : NULL, j->position[row + i] + 1,
             x->top_k, j->seen + (row + i) * j->words);
    return 0;
}

/* The sequence of a row. */
static int64_t sequence_of(const struct state *s, int64_t row)
{
    int64_t i = 0;

    while (s->first[i + 1] <= row)
        i++;
    return i;
}

/* Blocks of QUERIES rows, cut where a sequence ends. */
static void choose_rows(void *ctx, size_t begin, size_t end)
{
    struct job *j = ctx;
    const struct state *s = j->s;
    int64_t d = j->l->m->config.indexer.dim, n;

    for (size_t b = begin; b < end; b++) {
        int64_t row = (int64_t)b * QUERIES, stop = row + QUERIES;
        struct err e;

        stop = stop < s->rows ? stop : s->rows;
        for (; row < stop; row += n) {
            int64_t i = sequence_of(s, row);
            int64_t to = s->first[i + 1] < stop ? s->first[i + 1] : stop;

            n = to - row;
            if (choose(j, row, n, j->keys + (s->cache ? 0 : s->first[i] * d),
                       &e) < 0)
                threads_error_add(&j->error, b, &e);
        }
    }
}

/* ---- the whole ---- */

/* j->share: weights_proj x, in f32. */
static int find_shares(struct job *j, const void *in, struct err *e)
{
    struct model *m = j->l->m;
    int64_t h = m->config.hidden_size, n = m->config.indexer.n_heads;
    float *x = mem_alloc((size_t)(j->s->rows * h) * sizeof(*x), "indexer", e);
    struct sgemm g = { .m = j->s->rows,
                       .n = n,
                       .k = h,
                       .alpha = 1,
                       .a = x,
                       .b = j->w->weights,
                       .c = m->index_share.p };
    int rc;

    if (!x)
        return e->code;
    rc = to_f32(x, in, m->dtype, (size_t)(j->s->rows * h)) ?
             blas_f32_nt(&g, e) :
             err_set(e, E_BUG, "the indexer's input is no float");
    for (int64_t i = 0; rc >= 0 && i < j->s->rows * n; i++)
        ((float *)m->index_share.p)[i] /= sqrtf((float)n);
    free(x);
    return rc < 0 ? rc : 0;
}

/* Positions of the rows, memory of keys and of what is seen. */
static int prepare(struct job *j, int64_t longest, struct err *e)
{
    struct model *m = j->l->m;
    const struct model_config *c = &m->config;
    const struct state *s = j->s;
    int64_t rows = s->rows, d = c->indexer.dim;

    j->words = (longest + WORD - 1) / WORD;
    if (buffer_reserve(&m->index_position, rows, 1, sizeof(int64_t), "indexer",
                       e) < 0 ||
        buffer_reserve(&m->seen, rows, j->words, sizeof(uint64_t), "indexer",
                       e) < 0 ||
        buffer_reserve(&m->index_share, rows, c->indexer.n_heads, sizeof(float),
                       "indexer", e) < 0 ||
        (!s->cache && buffer_reserve(&m->index_keys, rows, d, sizeof(float),
                                     "indexer", e) < 0) ||
        model_rope(m, j->l->index, longest, &j->cs, &j->turn.rotary, e) < 0)
        return e->code;
    j->position = m->index_position.p;
    for (int64_t i = 0; i < s->n_sequences; i++)
        for (int64_t r = s->first[i]; r < s->first[i + 1]; r++)
            j->position[r] =
                (s->cache ? s->cache->length : 0) + r - s->first[i];
    j->keys = s->cache ? (float *)s->cache->index.p +
                             j->l->index * s->cache->tokens * d :
                         m->index_keys.p;
    j->share = m->index_share.p;
    j->seen = m->seen.p;
    memset(j->seen, 0, (size_t)(rows * j->words) * sizeof(*j->seen));
    return 0;
}

int indexer_run(struct layer *l, const struct state *s, const void *in,
                const void *q_lat, struct err *e)
{
    struct model *m = l->m;
    const struct indexer *x = &m->config.indexer;
    int64_t longest = s->cache ? s->cache->length + s->rows : 0;
    struct job j = { .l = l,
                     .s = s,
                     .w = l->indexer,
                     .turn = { .bf16 = m->bf16,
                               .dim = x->dim,
                               .pairs = m->config.family->indexer_pairs } };

    m->seen_words = 0;
    for (int64_t i = 0; i < s->n_sequences; i++)
        if (s->first[i + 1] - s->first[i] > longest)
            longest = s->first[i + 1] - s->first[i];
    if (s->cache ? !s->cache->index.p : longest <= x->top_k)
        return 0;
    if (prepare(&j, longest, e) < 0 ||
        product_into(&m->index_k, m, &j.w->wk, in, s->rows, "indexer", e) < 0)
        return e->code;
    j.k = m->index_k.p;
    threads_for((size_t)s->rows, 64, make_keys, &j);
    if (longest <= x->top_k)
        return 0;
    if (product_into(&m->index_q, m, &j.w->wq_b, q_lat, s->rows, "indexer", e) <
            0 ||
        find_shares(&j, in, e) < 0)
        return e->code;
    j.q = m->index_q.p;
    threads_error_init(&j.error);
    threads_for((size_t)((s->rows + QUERIES - 1) / QUERIES), 1, choose_rows,
                &j);
    m->seen_words = j.words;
    return threads_error_take(&j.error, e);
}
