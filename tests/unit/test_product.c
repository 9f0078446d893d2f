/* Products of a layer, one or several at a time, of floats and of 4-bit weights.  They read
 * their input up to the next whole step of rows, as internal.h says, and not beyond: behind
 * it lies memory that nobody may touch. */
#include "test.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "arch/device_bytes.h"
#include "model/internal.h"
#include "w4a16/w4a16.h"

enum { PERIOD = 13, COLS = 80, ROWS_MAX = 520, PAGE = 4096 };
/* Outputs: few, and so many that a product packs its input. */
enum { FEW = 48, MANY = 544 };

/* n bytes that end at a page which cannot be read. */
static char *guarded(size_t n)
{
    size_t whole = (n + PAGE - 1) / PAGE * PAGE;
    char *p = mmap(NULL, whole + PAGE, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (p == MAP_FAILED || mprotect(p + whole, PAGE, PROT_NONE))
        abort();
    return p + whole - n;
}

static float value(int64_t i, int64_t k)
{
    return (float)((i * 7 + k * 3) % PERIOD - 6);
}

static void fill(const struct model *m, void *to, int64_t rows)
{
    for (int64_t i = 0; i < rows * COLS; i++) {
        float v = value(i / COLS, i % COLS);

        if (m->bf16)
            ((uint16_t *)to)[i] = bf16_from_f32(v);
        else
            ((float *)to)[i] = v;
    }
}

/* Sums of small integers are exact in f32; stored as bf16 they are rounded. */
static bool right(const struct model *m, const void *out, int64_t rows,
                  int64_t outputs)
{
    float want[PERIOD][PERIOD] = { { 0 } }; /* rows repeat */

    for (int64_t i = 0; i < PERIOD; i++)
        for (int64_t o = 0; o < PERIOD; o++)
            for (int64_t k = 0; k < COLS; k++)
                want[i][o] += value(i, k) * value(o, k);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t o = 0; o < outputs; o++) {
            int64_t at = i * outputs + o;
            float sum = want[i % PERIOD][o % PERIOD];

            if (m->bf16 ? ((const uint16_t *)out)[at] != bf16_from_f32(sum) :
                          ((const float *)out)[at] != sum)
                return false;
        }
    return true;
}

static void load(const struct model *m, int64_t outputs, struct loaded *l)
{
    struct err e = { 0 };

    *l = (struct loaded){ .of = { .rows = outputs, .cols = COLS } };
    l->w = calloc((size_t)(outputs * COLS), m->size);
    fill(m, l->w, outputs);
    CHECK(product_pack(m, outputs, COLS, &l->w, &e) == 0);
}

/* The same weights as codes of compressed-tensors, with scales of 1. */
struct words {
    uint32_t codes[MANY * COLS / 8];
    float scales[MANY * COLS / 16];
};

static void load_words(int64_t outputs, struct words *words, struct loaded *l)
{
    struct forge_w4a16_linear from = { .layout = FORGE_W4A16_COMPRESSED_TENSORS,
                                       .outputs = outputs,
                                       .inputs = COLS,
                                       .group = 16,
                                       .codes = words->codes,
                                       .scales = words->scales,
                                       .scale_type = FORGE_W4A16_F32 };
    struct err e = { 0 };

    memset(words, 0, sizeof(*words));
    for (int64_t i = 0; i < outputs * COLS; i++) {
        words->codes[i / 8] |= (uint32_t)(value(i / COLS, i % COLS) + 8)
                               << i % 8 * 4;
        words->scales[i / 16] = 1;
    }
    *l = (struct loaded){ .of = { .rows = outputs, .cols = COLS } };
    CHECK(w4_prepare(&l->q, &from, &e) == 0);
}

static void test_rows(const struct model *m, int64_t rows,
                      struct loaded *const *l, int n)
{
    char *x = guarded((size_t)(rows * COLS) * m->size);
    struct product p[PRODUCTS_MOST];
    struct err e = { 0 };

    fill(m, x, rows);
    for (int i = 0; i < n; i++) {
        size_t outputs = (size_t)(rows * l[i]->of.rows) * m->size;

        p[i] = (struct product){
            .m = m, .first = l[i], .x = x, .rows = rows, .out = malloc(outputs)
        };
        memset(p[i].out, 0xff, outputs);
    }
    CHECK(products_run(p, n, &e) == 0);
    for (int i = 0; i < n; i++) {
        CHECK(right(m, p[i].out, rows, l[i]->of.rows));
        free(p[i].out);
    }
}

static void test_all_rows(const struct model *m)
{
    static struct words room[2];
    struct loaded few, many, words[2];
    struct loaded *floats[] = { &few, &many, &few };
    struct loaded *codes[] = { &words[1], &words[0], &words[1] };
    struct loaded *mixed[] = { &words[0], &many, &words[1] };

    load(m, FEW, &few);
    load(m, MANY, &many);
    load_words(FEW, &room[0], &words[0]);
    load_words(MANY, &room[1], &words[1]);
    for (int64_t rows = 1; rows <= ROWS_MAX; rows += rows < 200 ? 37 : 7)
        test_rows(m, rows, floats, 1);
    for (int64_t rows = 1; rows <= 65; rows += 16)
        test_rows(m, rows, floats, 3);
    test_rows(m, PACKED_ROWS + 1, floats, 2);
    test_rows(m, 0, codes, 3);
    for (int64_t rows = 1; rows <= 65; rows += 3) {
        test_rows(m, rows, codes, 3);
        test_rows(m, rows, mixed, 3);
    }
    for (int i = 0; i < 2; i++)
        forge_w4a16_release(words[i].q);
    free(few.w);
    free(many.w);
}

static void test_bf16(void)
{
    test_all_rows(&(struct model){
        .dtype = DT_BF16, .bf16 = true, .size = 2, .k = kernels_best() });
}

int main(void)
{
    each_level(test_bf16);
    test_all_rows(
        &(struct model){ .dtype = DT_F32, .size = 4, .k = kernels_best() });
    return 0;
}
