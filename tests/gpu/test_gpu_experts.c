/* test_gpu_experts - a layer's experts in one call on the GPU, there and back: PROGRAM
 * PLUG-IN [SEED].  Against plain loops in double of the same bf16 numbers; what is
 * rounded on the way there (gate, up, their product, outputs) is 2^-9 a number. */
#include "gradient.h"

enum { EXPERTS = 9, TOP_K = 3 };

/* Choices of tokens, sorted by expert: expert 4 has none, and some are nobody's. */
struct sorted {
    int64_t tokens, rows, first[EXPERTS + 1];
    int64_t *choice, *token; /* [tokens * TOP_K]: of rows */
    int64_t *row;            /* [tokens * TOP_K]: of choices */
    float *weight, *by;      /* [tokens * TOP_K]: of choices */
};

static struct sorted sort(int64_t tokens)
{
    int64_t n = tokens * TOP_K;
    struct sorted s = { .tokens = tokens };
    int64_t *expert = room((size_t)n * 8);

    s.choice = room((size_t)n * 8);
    s.token = room((size_t)n * 8);
    s.row = room((size_t)n * 8);
    s.weight = room((size_t)n * 4);
    s.by = room((size_t)n * 4);
    for (int64_t i = 0; i < n; i++) {
        /* of a token three different ones, in no order */
        expert[i] =
            ((int64_t)(rnd() % 3) + i % TOP_K * 3 + i / TOP_K) % EXPERTS;
        if (expert[i] == 4 || rnd() % 11 == 0)
            expert[i] = -1;
        s.weight[i] = normal();
        s.by[i] = normal();
        s.row[i] = -1;
    }
    for (int64_t k = 0; k < EXPERTS; k++) {
        s.first[k] = s.rows;
        for (int64_t i = 0; i < n; i++)
            if (expert[i] == k) {
                s.choice[s.rows] = i;
                s.token[s.rows] = i / TOP_K;
                s.row[i] = s.rows++;
            }
    }
    s.first[EXPERTS] = s.rows;
    free(expert);
    return s;
}

static void drop_sorted(struct sorted *s)
{
    free(s->choice);
    free(s->token);
    free(s->row);
    free(s->weight);
    free(s->by);
}

/* W of all experts [EXPERTS, n], bf16. */
struct experts {
    struct twin w[3];
    const void *there[3][EXPERTS];
};

static struct experts draw_weights(int64_t h, int64_t width)
{
    struct experts x;

    for (int i = 0; i < 3; i++) {
        x.w[i] = bf16_matrix(EXPERTS * h * width,
                             1 / sqrtf((float)(i == 2 ? width : h)));
        for (int64_t k = 0; k < EXPERTS; k++)
            x.there[i][k] = (char *)x.w[i].there + k * h * width * 2;
    }
    return x;
}

static double dot(const double *x, const float *w, int64_t n, int64_t step)
{
    double sum = 0;

    for (int64_t i = 0; i < n; i++)
        sum += x[i] * (double)w[i * step];
    return sum;
}

static double silu(double x, double *slope)
{
    double s = 1 / (1 + exp(-x));

    *slope = s * (1 + x * (1 - s));
    return x * s;
}

static void test_forward(int64_t tokens, int64_t h, int64_t width, bool weighed)
{
    struct sorted s = sort(tokens);
    int64_t n = tokens * TOP_K;
    struct experts x = draw_weights(h, width);
    struct twin in = bf16_matrix(tokens * h, 1), sum = normals(tokens * h, 1);
    double *right = wide(&sum);
    struct forward_experts a = {
        .experts = EXPERTS,
        .tokens = tokens,
        .top_k = TOP_K,
        .h = h,
        .width = width,
        .first = s.first,
        .slot = (int64_t *)(void *)put(s.choice, (size_t)s.rows * 8),
        .row = (int64_t *)(void *)put(s.row, (size_t)n * 8),
        .w = { x.there[0], x.there[1], x.there[2] },
        .gating = { ACT_SILU },
        .in = in.there,
        .by = weighed ? put(s.by, (size_t)n * 4) : NULL,
        .weight = put(s.weight, (size_t)n * 4),
        .sum = sum.there
    };

    for (int64_t k = 0; k < EXPERTS; k++)
        for (int64_t r = s.first[k]; r < s.first[k + 1]; r++) {
            double of[512], mid[512], slope;
            int64_t at = k * h * width, c = s.choice[r];

            for (int64_t i = 0; i < h; i++)
                of[i] = (weighed ? (double)s.by[c] : 1) *
                        (double)in.host[s.token[r] * h + i];
            for (int64_t o = 0; o < width; o++)
                mid[o] = silu(dot(of, x.w[0].host + at + o * h, h, 1), &slope) *
                         dot(of, x.w[1].host + at + o * h, h, 1);
            for (int64_t o = 0; o < h; o++)
                right[s.token[r] * h + o] +=
                    (double)s.weight[c] *
                    dot(mid, x.w[2].host + at + o * width, width, 1);
        }
    OK(memory->experts(gpu, &a, e));
    near("experts", &sum, right, 8e-3);
    memory->release(gpu, (void *)(uintptr_t)a.slot);
    memory->release(gpu, (void *)(uintptr_t)a.row);
    memory->release(gpu, (void *)(uintptr_t)a.by);
    memory->release(gpu, (void *)(uintptr_t)a.weight);
    drop(&in);
    for (int i = 0; i < 3; i++)
        drop(&x.w[i]);
    drop_sorted(&s);
}

/* Row r of expert k: what it adds to the gradients. */
static void back_in_double(const struct sorted *s, const struct experts *x,
                           int64_t k, int64_t r, int64_t h, int64_t width,
                           bool weighed, const struct twin *in,
                           const struct twin *g, double *const to[3],
                           double *gin)
{
    double of[512], gy[512], w = (double)s->weight[s->choice[r]];
    int64_t at = k * h * width, token = s->token[r] * h;

    for (int64_t i = 0; i < h; i++) {
        of[i] = (weighed ? w : 1) * (double)in->host[token + i];
        gy[i] = (weighed ? 1 : w) * (double)g->host[token + i];
    }
    for (int64_t o = 0; o < width; o++) {
        const float *gate = x->w[0].host + at + o * h;
        const float *up = x->w[1].host + at + o * h;
        double a = dot(of, gate, h, 1), b = dot(of, up, h, 1), slope;
        double c = dot(gy, x->w[2].host + at + o, h, width);
        double act = silu(a, &slope), ga = c * b * slope, gb = c * act;

        for (int64_t i = 0; i < h; i++) {
            to[0][at + o * h + i] += ga * of[i];
            to[1][at + o * h + i] += gb * of[i];
            to[2][at + i * width + o] += gy[i] * act * b;
            gin[token + i] +=
                (weighed ? w : 1) * (ga * (double)gate[i] + gb * (double)up[i]);
        }
    }
}

static void test_back(int64_t tokens, int64_t h, int64_t width, bool weighed)
{
    struct sorted s = sort(tokens);
    struct experts x = draw_weights(h, width);
    struct twin in = matrix(tokens * h, 1, true);
    struct twin g = matrix(tokens * h, 1, true), gin = normals(tokens * h, 1);
    struct twin to[3];
    double *right[3], *back_to = wide(&gin);
    float *of_row = room((size_t)s.rows * 4), *lists[3][EXPERTS];
    struct backward_experts a = {
        .of = { .rows = s.rows,
                .h = h,
                .width = width,
                .bf16 = true,
                .token = (int64_t *)(void *)put(s.token, (size_t)s.rows * 8),
                .in = in.there,
                .g = g.there,
                .gin = gin.there,
                .gating = { ACT_SILU },
                .weigh_inputs = weighed,
                .rounded = true },
        .experts = EXPERTS,
        .tokens = tokens,
        .top_k = TOP_K,
        .first = s.first,
        .row = (int64_t *)(void *)put(s.row, (size_t)(tokens * TOP_K) * 8),
        .w = { x.there[0], x.there[1], x.there[2] },
        .weights = { lists[0], lists[1], lists[2] }
    };

    for (int64_t r = 0; r < s.rows; r++)
        of_row[r] = s.weight[s.choice[r]];
    a.of.weight = put(of_row, (size_t)s.rows * 4);
    for (int i = 0; i < 3; i++) {
        to[i] = normals(EXPERTS * h * width, 1);
        right[i] = wide(&to[i]);
        for (int64_t k = 0; k < EXPERTS; k++) /* one is not tuned */
            lists[i][k] = k == 2 ? NULL : to[i].there + k * h * width;
    }
    for (int64_t k = 0; k < EXPERTS; k++) {
        double *keep[3];

        for (int i = 0; i < 3; i++)
            keep[i] =
                k == 2 ? room((size_t)(EXPERTS * h * width) * 8) : right[i];
        for (int64_t r = s.first[k]; r < s.first[k + 1]; r++)
            back_in_double(&s, &x, k, r, h, width, weighed, &in, &g, keep,
                           back_to);
        for (int i = 0; i < 3 && k == 2; i++)
            free(keep[i]);
    }
    OK(back->experts(gpu, &a, e));
    near("experts back", &gin, back_to, 1e-2);
    for (int i = 0; i < 3; i++) {
        near("weights of experts", &to[i], right[i], 1e-2);
        drop(&x.w[i]);
    }
    memory->release(gpu, (void *)(uintptr_t)a.of.token);
    memory->release(gpu, (void *)(uintptr_t)a.of.weight);
    memory->release(gpu, (void *)(uintptr_t)a.row);
    free(of_row);
    drop(&in);
    drop(&g);
    drop_sorted(&s);
}

int main(int argc, char **argv)
{
    static const int64_t tokens[] = { 1, 40, 500 }, h[] = { 64, 40, 136 },
                         width[] = { 32, 72, 200 };

    gradient_open(argc, argv);
    for (int i = 0; i < 3; i++)
        for (int weighed = 0; weighed < 2; weighed++) {
            test_forward(tokens[i], h[i], width[i], weighed);
            test_back(tokens[i], h[i], width[i], weighed);
        }
    return 0;
}
