/* test_gpu_recur - linear attention of the forward pass on the GPU, and the gates of
 * attention's heads: PROGRAM PLUG-IN [SEED]. */
#include "twins.h"

struct shape {
    enum delta_form form;
    int64_t k_heads, v_heads, k_dim, v_dim, kernel;
    bool bias;
};

/* What a call reads, in rows of one matrix: of the delta rule by key heads q, k, v, z, a,
 * b, of Mamba z, x, B, C, t; each with a gap behind it. */
struct inputs {
    struct twin all, filter, bias, decay, shift, skip, norm;
    int64_t row;
};

static bool is_mamba(const struct shape *h)
{
    return h->form == DELTA_MAMBA;
}

static int64_t each_of(const struct shape *h)
{
    return h->v_heads / h->k_heads;
}

/* Gates a of a value head. */
static int64_t gates_of(const struct shape *h)
{
    return h->form == DELTA_CHANNELS ? h->k_dim : 1;
}

static int64_t inner_of(const struct shape *h)
{
    return h->v_heads * h->v_dim;
}

static int64_t channels_of(const struct shape *h)
{
    return inner_of(h) + 2 * h->k_heads * h->k_dim;
}

/* Elements of a key head in a row, of the delta rule. */
static int64_t head_of(const struct shape *h)
{
    int64_t each = each_of(h);

    return 2 * (h->k_dim + each * h->v_dim) + each * (gates_of(h) + 1) + 3;
}

static struct inputs inputs_of(enum dtype t, const struct shape *h,
                               int64_t rows)
{
    int64_t row = is_mamba(h) ? inner_of(h) + channels_of(h) + h->v_heads + 5 :
                                h->k_heads * head_of(h);

    return (struct inputs){
        .row = row,
        .all = elements(t, rows * row, 1),
        .filter = elements(DT_F32, channels_of(h) * h->kernel, .5f),
        .bias = elements(DT_F32, channels_of(h), 1),
        .decay = elements(DT_F32, h->v_heads, 1),
        .shift = elements(DT_F32, h->v_heads * gates_of(h), 1),
        .skip = elements(DT_F32, h->v_heads, 1),
        .norm = elements(DT_F32, is_mamba(h) ? inner_of(h) : h->v_dim, 1),
    };
}

static void drop_inputs(struct inputs *x)
{
    drop(&x->all);
    drop(&x->filter);
    drop(&x->bias);
    drop(&x->decay);
    drop(&x->shift);
    drop(&x->skip);
    drop(&x->norm);
}

/* Rows from `row` on. */
static struct forward_heads heads_at(int s, enum dtype t,
                                     const struct inputs *x, int64_t row,
                                     int64_t at, int64_t head)
{
    return (struct forward_heads){ (char *)x->all.p[s] +
                                       (size_t)(row * x->row + at) * item(t),
                                   x->row, head };
}

static void find_heads(int s, enum dtype t, const struct shape *h,
                       const struct inputs *x, int64_t row,
                       struct forward_recur *a)
{
    int64_t each = each_of(h), kd = h->k_dim, vd = each * h->v_dim;
    int64_t inner = inner_of(h), keys = h->k_heads * kd, n = head_of(h);

    if (is_mamba(h)) {
        a->z = heads_at(s, t, x, row, 0, vd);
        a->v = heads_at(s, t, x, row, inner, vd);
        a->k = heads_at(s, t, x, row, 2 * inner, kd);
        a->q = heads_at(s, t, x, row, 2 * inner + keys, kd);
        a->a = heads_at(s, t, x, row, 2 * (inner + keys), each);
        return;
    }
    a->q = heads_at(s, t, x, row, 0, n);
    a->k = heads_at(s, t, x, row, kd, n);
    a->v = heads_at(s, t, x, row, 2 * kd, n);
    a->z = heads_at(s, t, x, row, 2 * kd + vd, n);
    a->a = heads_at(s, t, x, row, 2 * (kd + vd), n);
    a->b = heads_at(s, t, x, row, 2 * (kd + vd) + each * gates_of(h), n);
}

/* The call of one side for n sequences that begin at first[] of its rows, whose
 * number 0 is row `row`. */
static struct forward_recur call_of(int s, enum dtype t, const struct shape *h,
                                    const struct inputs *x, int64_t row,
                                    const int64_t *first, int64_t n,
                                    const struct twin *out)
{
    struct forward_recur a = {
        .dtype = t,
        .form = h->form,
        .of = { .k_heads = h->k_heads,
                .v_heads = h->v_heads,
                .k_dim = h->k_dim,
                .v_dim = h->v_dim,
                .kernel = h->kernel,
                .step_min = .2,
                .step_max = 1.5 },
        .eps = 1e-5,
        .rows = first[n],
        .n_sequences = n,
        .first = first,
        .filter = x->filter.p[s],
        .bias = h->bias ? x->bias.p[s] : NULL,
        .decay = x->decay.p[s],
        .shift = x->shift.p[s],
        .skip = is_mamba(h) ? x->skip.p[s] : NULL,
        .norm = x->norm.p[s],
        .out = (char *)out->p[s] + (size_t)(row * inner_of(h)) * item(t),
    };

    find_heads(s, t, h, x, row, &a);
    return a;
}

/* A norm multiplies the rounding of a head's small outputs, most of all behind the first
 * tokens, where one product of q and k is all there is: in f32 single numbers may be
 * further off than those of other operations. */
static void near_enough(const char *what, struct twin *x, enum dtype stored,
                        enum dtype t)
{
    bool half = t == DT_BF16; /* and inputs of the states are rounded */

    near(what, x, stored, half ? 0.02 : 2e-4, half ? 4e-3 : 1e-5);
}

static void test_batch(enum dtype t, const struct shape *h,
                       const int64_t *length, int64_t n)
{
    int64_t first[64], rows;
    struct inputs x;
    struct twin out;

    sequences(first, length, n);
    rows = first[n];
    x = inputs_of(t, h, rows);
    out = poisoned((size_t)(rows * inner_of(h)) * item(t));
    for (int s = 0; s < SIDES; s++) {
        struct forward_recur a = call_of(s, t, h, &x, 0, first, n, &out);

        OK(table[s]->recur(context[s], &a, e));
    }
    near_enough("recur", &out, t, t);
    drop_inputs(&x);
}

static char *bytes_of(const struct twin *x)
{
    char *to = room(x->n);

    OK(table[GPU]->get(context[GPU], to, x->p[GPU], x->n, e));
    return to;
}

/* A sequence in one call, again, in parts by states that are kept, and between others:
 * the same bytes on the GPU.  In parts on the CPU, too: near. */
static void test_parts(enum dtype t, const struct shape *h, int64_t rows)
{
    int64_t part[] = { 0, rows / 3, rows / 3 + 1, rows / 3 + 3, rows };
    int64_t whole[] = { 0, rows }, three[] = { 0, part[1], part[3], rows };
    size_t states = (size_t)(inner_of(h) * h->k_dim);
    size_t old = (size_t)((h->kernel - 1) * channels_of(h)), row;
    struct inputs x = inputs_of(t, h, rows);
    struct twin out = poisoned((size_t)(rows * inner_of(h)) * item(t));
    void *zeros = mem_zero(states + old, 4, "test", &(struct err){ 0 });
    struct twin kept = twin(zeros, (states + old) * 4);
    struct forward_recur a;
    char *got[4];

    row = (size_t)inner_of(h) * item(t);
    a = call_of(GPU, t, h, &x, 0, whole, 1, &out);
    for (int i = 0; i < 2; i++) {
        OK(table[GPU]->recur(context[GPU], &a, e));
        got[i] = bytes_of(&out);
    }
    a = call_of(GPU, t, h, &x, 0, three, 3, &out);
    OK(table[GPU]->recur(context[GPU], &a, e));
    got[2] = bytes_of(&out);
    for (int s = 0; s < SIDES; s++)
        for (size_t i = 0; i + 1 < ARRAY_LEN(part); i++) {
            int64_t first[] = { 0, part[i + 1] - part[i] };

            a = call_of(s, t, h, &x, part[i], first, 1, &out);
            a.states = kept.p[s];
            a.old = a.states + states;
            OK(table[s]->recur(context[s], &a, e));
        }
    got[3] = bytes_of(&out);
    CHECK(!memcmp(got[0], got[1], out.n));
    CHECK(!memcmp(got[0], got[2], (size_t)part[1] * row));
    CHECK(!memcmp(got[0], got[3], out.n));
    near_enough("recur in parts", &out, t, t);
    near_enough("states", &kept, DT_F32, t);
    for (int i = 0; i < 4; i++)
        free(got[i]);
    free(zeros);
    drop_inputs(&x);
}

static void test_gate_heads(enum dtype t, int64_t rows, int64_t heads,
                            int64_t dim)
{
    struct twin g = elements(t, rows * heads * 2 * dim, 2);
    struct twin out = elements(t, rows * heads * dim, 2);

    BOTH(table[s]->gate_heads(context[s],
                              &(struct forward_gate_heads){
                                  .dtype = t,
                                  .rows = rows,
                                  .heads = heads,
                                  .dim = dim,
                                  .g = { (char *)g.p[s] + (size_t)dim * item(t),
                                         heads * 2 * dim, 2 * dim },
                                  .out = out.p[s] },
                              e));
    same("gate_heads", &out, t, false);
    drop(&g);
}

static const struct shape all[] = {
    /* Qwen3-Next, Kimi-Linear, Granite 4 with fewer heads, then others' sizes */
    { DELTA_FUSED, 2, 4, 128, 128, 4, false },
    { DELTA_CHANNELS, 3, 3, 128, 128, 4, false },
    { DELTA_MAMBA, 1, 6, 128, 64, 4, true },
    { DELTA_SPLIT, 2, 2, 12, 16, 4, false },
    { DELTA_CHANNELS, 2, 2, 20, 20, 3, false },
    { DELTA_MAMBA, 2, 8, 13, 7, 2, true },
    { DELTA_FUSED, 1, 3, 64, 48, 4, false },
    { DELTA_MAMBA, 2, 4, 256, 33, 4, false },
    { DELTA_SPLIT, 1, 2, 200, 96, 5, false },
    { DELTA_CHANNELS, 1, 1, 300, 300, 4, false },
    { DELTA_FUSED, 1, 2, 512, 24, 4, false },
};

int main(int argc, char **argv)
{
    static const int64_t ragged[] = { 1, 2, 40, 9, 3, 8, 65, 17 };
    static const int64_t one[] = { 260 };

    twins_open(argc, argv);
    for (int i = 0; i < 2; i++) {
        enum dtype t = i ? DT_F32 : DT_BF16;

        for (size_t k = 0; k < ARRAY_LEN(all); k++) {
            test_batch(t, &all[k], ragged, ARRAY_LEN(ragged));
            test_batch(t, &all[k], one, 1);
            test_parts(t, &all[k], 61);
        }
        test_gate_heads(t, 70, 8, 128);
        test_gate_heads(t, 7, 3, 20);
        report(t);
    }
    return 0;
}
