/* w4a16_prepare_cuda.cu - brings a 4-bit linear of any layout into the order of
 * w4a16_internal.cuh.  Each output byte is written once; the caller's words are
 * read once from memory, and their nibbles from the caches. */
#include "cuda/w4a16_internal.cuh"

#include <inttypes.h>
#include <stdlib.h>

static const char what[] = "4-bit linear";

/* ---- kernels ---- */

/* The caller's tensors on the device. */
struct source {
    enum forge_w4a16_layout layout;
    enum forge_w4a16_type scale_type;
    int64_t outputs, inputs, groups;
    const uint32_t *codes, *zeros;
    const void *scales;
    const int32_t *input; /* of a place; NULL: the place */
    const int32_t *group; /* the caller's group of one of meta's, -1: none;
                           * NULL: the same */
};

static __device__ __forceinline__ int awq_nibble(int64_t o)
{
    return 0x73625140 >> 4 * (o % 8) & 15;
}

static __device__ __forceinline__ uint32_t code_at(const struct source &s,
                                                   int64_t o, int64_t k)
{
    switch (s.layout) {
    case FORGE_W4A16_COMPRESSED_TENSORS:
        return s.codes[o * ((s.inputs + 7) / 8) + k / 8] >> 4 * (k % 8) & 15;
    case FORGE_W4A16_AWQ:
        return s.codes[k * (s.outputs / 8) + o / 8] >> 4 * awq_nibble(o) & 15;
    default: return s.codes[k / 8 * s.outputs + o] >> 4 * (k % 8) & 15;
    }
}

static __global__ void __launch_bounds__(256)
    codes_kernel(struct source s, int64_t strips, int64_t blocks, uint4 *to)
{
    int64_t i = (int64_t)blockIdx.x * 8 + threadIdx.x / 32;
    int64_t strip = i % strips, block = i / strips;
    int lane = threadIdx.x % 32;
    uint32_t word[4];

    if (block >= blocks)
        return;
    for (int w = 0; w < 4; w++) {
        int64_t place =
            block * W4_PLACES + w % 2 * W4_HALF + lane % 4 * 8 + w / 2 * 4;

        word[w] = 0;
        for (int n = 0; n < 8; n++) {
            int64_t o = strip * W4_STRIP + lane / 4 + (n & 1) * 8;
            int64_t k = place + (n & 2) + n / 4;
            uint32_t code = 8;

            if (s.input)
                k = s.input[k];
            if (o < s.outputs && k >= 0 && k < s.inputs)
                code = code_at(s, o, k);
            word[w] |= code << 4 * n;
        }
    }
    to[(strip * blocks + block) * 32 + lane] =
        make_uint4(word[0], word[1], word[2], word[3]);
}

static __device__ __forceinline__ uint32_t zero_at(const struct source &s,
                                                   int64_t o, int64_t g)
{
    int64_t words = (s.outputs + 7) / 8;
    uint32_t z;

    if (!s.zeros)
        return 8;
    if (s.layout == FORGE_W4A16_COMPRESSED_TENSORS)
        return s.zeros[o / 8 * s.groups + g] >> 4 * (o % 8) & 15;
    z = s.zeros[g * words + o / 8];
    if (s.layout == FORGE_W4A16_AWQ)
        return z >> 4 * awq_nibble(o) & 15;
    if (s.layout == FORGE_W4A16_GPTQ) /* all eight of a word, with carries */
        z += 0x11111111;
    return z >> 4 * (o % 8) & 15;
}

static __device__ __forceinline__ float scale_at(const struct source &s,
                                                 int64_t o, int64_t g)
{
    int64_t at = s.layout == FORGE_W4A16_COMPRESSED_TENSORS ? o * s.groups + g :
                                                              g * s.outputs + o;

    if (s.scale_type == FORGE_W4A16_F32)
        return ((const float *)s.scales)[at];
    if (s.scale_type == FORGE_W4A16_F16)
        return __half2float(((const __half *)s.scales)[at]);
    return __bfloat162float(((const __nv_bfloat16 *)s.scales)[at]);
}

/* *bad: the least o * groups + g whose scale is not finite. */
static __global__ void __launch_bounds__(256)
    meta_kernel(struct source s, int64_t n, int64_t groups, uint32_t *to,
                unsigned long long *bad)
{
    int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x;
    int64_t o = i / W4_STRIP / groups * W4_STRIP + i % W4_STRIP;
    int64_t g = i / W4_STRIP % groups;
    uint32_t bits;

    if (i >= n)
        return;
    if (s.group)
        g = s.group[g];
    if (o >= s.outputs || g < 0 || g >= s.groups) {
        to[i] = 8;
        return;
    }
    bits = __float_as_uint(scale_at(s, o, g));
    if ((bits & 0x7f800000) == 0x7f800000)
        atomicMin(bad, (unsigned long long)(o * s.groups + g));
    to[i] = (bits + 8 & ~15u) | zero_at(s, o, g);
}

/* ---- the host's part ---- */

/* Memory of a prepare(): what is the host's is copied to the device. */
struct staging {
    struct device_buffer codes, scales, zeros, group;
    int64_t *first;          /* [groups + 1], of w4_sort() */
    int32_t *input, *source; /* of a place; of meta's groups */
    int32_t *g_idx;          /* the host's */
};

static void staging_close(struct cuda_context *c, struct staging *t)
{
    buffer_close(c, &t->codes);
    buffer_close(c, &t->scales);
    buffer_close(c, &t->zeros);
    buffer_close(c, &t->group);
    free(t->first);
    free(t->input);
    free(t->source);
    free(t->g_idx);
}

/* *there = from[n bytes] on the device. */
static int stage(struct cuda_context *c, const void *from, size_t n,
                 struct device_buffer *room, const void **there, struct err *e)
{
    const float *p = NULL;
    int rc = from ? on_device(c, (const float *)from, n, room, &p, e) : 0;

    *there = p;
    return rc;
}

/* Host memory p [n] to a new buffer. */
static int keep(struct cuda_context *c, struct device_buffer *b,
                const int32_t *p, int64_t n, struct err *e)
{
    size_t bytes = (size_t)n * sizeof(*p);
    int rc = buffer_open(c, b, bytes, e);

    return rc < 0 ? rc : upload(c, b->data, p, bytes, e);
}

/* Places of inputs that are out of order, or in groups of no whole halves: each
 * group is padded to halves, and has its scale in meta for each of them. */
static int sort(struct cuda_w4 *w, const struct w4_order *o, struct staging *t,
                struct err *e)
{
    int64_t used, *first, at = 0;
    int32_t *input;
    int rc;

    t->first = first =
        (int64_t *)mem_alloc((size_t)(o->groups + 1) * 8, what, e);
    if (!first)
        return e->code;
    if ((rc = w4_sort(o, W4_HALF, first, &t->input, e)) < 0)
        return rc;
    used = first[o->groups];
    w->depth = (int64_t)round_up((uint64_t)used, W4_DEEP);
    w->groups = w->depth / W4_HALF;
    w->halves = 1;
    input = (int32_t *)mem_alloc((size_t)w->depth * sizeof(*input), what, e);
    t->source = (int32_t *)mem_alloc((size_t)w->groups * 4, what, e);
    if (!input || !t->source) {
        free(input);
        return e->code;
    }
    for (int64_t i = 0; i < w->depth; i++)
        input[i] = i < used ? t->input[i] : -1;
    for (int64_t g = 0; g < o->groups; g++)
        for (; at < first[g + 1] / W4_HALF; at++)
            t->source[at] = (int32_t)g;
    for (; at < w->groups; at++)
        t->source[at] = -1;
    free(t->input);
    t->input = input;
    if ((rc = keep(w->c, &t->group, t->source, w->groups, e)) < 0)
        return rc;
    return keep(w->c, &w->input, t->input, w->depth, e);
}

/* Depth, groups and places. */
static int arrange(struct cuda_w4 *w, struct w4_order *o, struct staging *t,
                   struct err *e)
{
    if (o->g_idx) {
        size_t n = (size_t)o->cols * sizeof(*t->g_idx);

        t->g_idx = (int32_t *)mem_alloc(n, what, e);
        if (!t->g_idx)
            return e->code;
        CUDA_TRY(cudaMemcpy(t->g_idx, o->g_idx, n, cudaMemcpyDefault));
        o->g_idx = t->g_idx;
    }
    if (w4_order_check(o, e) < 0)
        return e->code;
    if (o->g_idx || (o->groups > 1 && o->group % W4_HALF))
        return sort(w, o, t, e);
    w->depth = (int64_t)round_up((uint64_t)o->cols, W4_DEEP);
    w->halves = o->groups > 1 ? o->group / W4_HALF : w->depth / W4_HALF;
    w->groups = (w->depth / W4_HALF + w->halves - 1) / w->halves;
    return 0;
}

/* s's tensors, on the device. */
static int stage_all(struct cuda_w4 *w, const struct forge_w4a16_linear *l,
                     struct source *s, struct staging *t, struct err *e)
{
    int64_t wide = (l->inputs + 7) / 8, words = (l->outputs + 7) / 8;
    size_t codes = (size_t)(l->layout == FORGE_W4A16_AWQ ? l->inputs * words :
                                                           wide * l->outputs) *
                   4;
    size_t scales = (size_t)(l->outputs * s->groups) *
                    (l->scale_type == FORGE_W4A16_F32 ? 4 : 2);
    size_t zeros = (size_t)(words * s->groups) * 4;
    const void *z;
    int rc;

    if ((rc = stage(w->c, l->codes, codes, &t->codes, (const void **)&s->codes,
                    e)) < 0 ||
        (rc = stage(w->c, l->scales, scales, &t->scales, &s->scales, e)) < 0 ||
        (rc = stage(w->c, l->zeros, zeros, &t->zeros, &z, e)) < 0)
        return rc;
    s->zeros = (const uint32_t *)z;
    s->input = (const int32_t *)w->input.data;
    s->group = (const int32_t *)t->group.data;
    return 0;
}

static int fill(struct cuda_w4 *w, const struct forge_w4a16_linear *l,
                struct staging *t, struct err *e)
{
    struct w4_order o = w4_order(l);
    int64_t strips = (l->outputs + W4_STRIP - 1) / W4_STRIP, blocks, n;
    struct source s = { l->layout, l->scale_type, l->outputs, l->inputs,
                        o.groups };
    unsigned long long bad = ~0ull;
    struct cuda_context *c = w->c;
    int rc;

    if ((rc = arrange(w, &o, t, e)) < 0 || (rc = stage_all(w, l, &s, t, e)) < 0)
        return rc;
    blocks = w->depth / W4_PLACES;
    n = strips * W4_STRIP * w->groups;
    if (blocks * strips / 8 >= INT32_MAX || n / 256 >= INT32_MAX ||
        w->depth / W4_HALF >= 1 << 16) /* w4_group() */
        return err_set(e, E_CONFIG, "%s: too large for the GPU", what);
    if ((rc = buffer_open(c, &w->codes, (size_t)(strips * blocks) * 512, e)) <
            0 ||
        (rc = buffer_open(c, &w->meta, (size_t)n * 4, e)) < 0)
        return rc;
    CUDA_TRY(cudaMemsetAsync(c->bad, 0xff, sizeof(*c->bad), c->stream));
    codes_kernel<<<(unsigned)((strips * blocks + 7) / 8), 256, 0, c->stream>>>(
        s, strips, blocks, (uint4 *)w->codes.data);
    LAUNCHED();
    meta_kernel<<<(unsigned)((n + 255) / 256), 256, 0, c->stream>>>(
        s, n, w->groups, (uint32_t *)w->meta.data, c->bad);
    LAUNCHED();
    if ((rc = download(c, &bad, c->bad, sizeof(bad), e)) < 0)
        return rc;
    if (bad != ~0ull)
        return err_set(e, E_DATA,
                       "%s: the scale of output %" PRId64 ", group %" PRId64
                       " is not finite",
                       what, (int64_t)bad / s.groups, (int64_t)bad % s.groups);
    return 0;
}

int cuda_w4_prepare(struct cuda_context *c, struct cuda_w4 **out,
                    const struct forge_w4a16_linear *l, struct err *e)
{
    struct staging t = {};
    struct cuda_w4 *w;
    int rc = w4_check(l, e);

    *out = NULL;
    if (rc < 0)
        return rc;
    w = (struct cuda_w4 *)mem_zero(1, sizeof(*w), what, e);
    if (!w)
        return e->code;
    w->c = c;
    w->outputs = l->outputs;
    w->inputs = l->inputs;
    w->scale_type = l->scale_type;
    rc = fill(w, l, &t, e);
    staging_close(c, &t);
    if (rc < 0) {
        cuda_w4_release(w);
        return rc;
    }
    *out = w;
    return 0;
}

void cuda_w4_release(struct cuda_w4 *w)
{
    if (!w)
        return;
    buffer_close(w->c, &w->codes);
    buffer_close(w->c, &w->meta);
    buffer_close(w->c, &w->input);
    free(w);
}

size_t cuda_w4_memory(const struct cuda_w4 *w)
{
    return w->codes.cap + w->meta.cap + w->input.cap;
}
