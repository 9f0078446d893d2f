/* Products of a layer read their input up to the next whole step of rows, as
 * internal.h says, and not beyond: behind it lies memory that nobody may
 * touch. */
#include "test.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "arch/device_bytes.h"
#include "model/internal.h"

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

static void test_rows(const struct model *m, int64_t rows, int64_t outputs)
{
    char *x = guarded((size_t)(rows * COLS) * m->size);
    void *w = calloc((size_t)(outputs * COLS), m->size);
    void *out = calloc((size_t)(rows * outputs), m->size);
    struct loaded l = { .of = { .rows = outputs, .cols = COLS } };
    struct product p = {
        .m = m, .first = &l, .x = x, .rows = rows, .out = out
    };
    struct err e = { 0 };

    fill(m, x, rows);
    fill(m, w, outputs);
    CHECK(product_pack(m, outputs, COLS, &w, &e) == 0);
    l.w = w;
    CHECK(product_run(&p, &e) == 0);
    CHECK(right(m, out, rows, outputs));
    free(w);
    free(out);
}

static void test_all_rows(const struct model *m)
{
    for (int64_t rows = 1; rows <= ROWS_MAX; rows += rows < 200 ? 37 : 7)
        test_rows(m, rows, FEW);
    for (int64_t rows = 1; rows <= 65; rows += 16)
        test_rows(m, rows, MANY);
    test_rows(m, PACKED_ROWS + 1, MANY);
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
