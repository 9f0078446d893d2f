/* forge_w4a16.h: what is refused. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "forge_w4a16.h"
#include "test.h"

static void refused(struct forge_w4a16_linear l, int code, const char *says)
{
    struct forge_w4a16 *w;
    char why[200] = "";

    CHECK(forge_w4a16_prepare(&w, &l, why, sizeof(why)) == code);
    CHECK(strstr(why, says) && !w);
}

static void test_refusals(void)
{
    uint32_t words[64] = { 0 };
    float scales[64] = { 1, 1, 1, 1, 1, 1, 1, 1 };
    int32_t g_idx[16] = { 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 2 };
    struct forge_w4a16_linear l = { .layout = FORGE_W4A16_AWQ,
                                    .outputs = 12,
                                    .inputs = 16,
                                    .group = 8,
                                    .codes = words,
                                    .scales = scales,
                                    .scale_type = FORGE_W4A16_F32 };

    refused(l, -78, "12 outputs");
    l.outputs = 8;
    scales[13] = INFINITY;
    refused(l, -65, "output 5, group 1 is not finite");
    scales[13] = 1;
    l.layout = FORGE_W4A16_GPTQ;
    l.g_idx = g_idx;
    refused(l, -65, "input 15 in group 2 of 2");
    g_idx[0] = -1; /* as if it were not in use */
    refused(l, -65, "input 0 in group -1 of 2");
    l.inputs = 0;
    refused(l, -78, "no such shape");
}

/* -78: a product of n linears with rows from..to-1, in three ways. */
static void product_refused(const struct forge_w4a16 *w, int64_t n,
                            int64_t from, int64_t to, int64_t ldx, int64_t ldy,
                            const char *says)
{
    float x[4 * 16] = { 0 }, y[4 * 8];
    const int64_t first[3] = { from, to, to };
    const struct forge_w4a16 *two[2] = { w, w };
    struct forge_w4a16_rows rx = { FORGE_W4A16_F32, x + 32, ldx };
    struct forge_w4a16_rows ry[2] = { { FORGE_W4A16_F32, y + 16, ldy },
                                      { FORGE_W4A16_F32, y + 16, ldy } };
    char why[200] = "";

    CHECK(forge_w4a16_grouped(two, first, n, &rx, ry, why, sizeof(why)) == -78);
    CHECK(strstr(why, says));
    if (from)
        return;
    *why = 0;
    CHECK(forge_w4a16_several(two, n, &rx, to, ry, why, sizeof(why)) == -78);
    CHECK(n < 0 ? strstr(why, says) != NULL : *why);
    CHECK(n < 0 || forge_w4a16_multiply(w, &rx, to, ry, NULL, 0) == -78);
}

static void test_product_refusals(void)
{
    uint32_t words[16] = { 0 };
    float scales[16] = { 0 };
    struct forge_w4a16_linear l = { .layout = FORGE_W4A16_GPTQ,
                                    .outputs = 8,
                                    .inputs = 16,
                                    .group = 8,
                                    .codes = words,
                                    .scales = scales,
                                    .scale_type = FORGE_W4A16_F32 };
    struct forge_w4a16 *w;

    CHECK(forge_w4a16_prepare(&w, &l, NULL, 0) == 0);
    product_refused(w, 1, -2, 1, 16, 8, "out of order");
    product_refused(w, 1, INT64_MIN, INT64_MAX, 16, 8, "out of order");
    product_refused(w, 1, 0, -1, 16, 8, "out of order");
    product_refused(w, -1, 0, 1, 16, 8, "no such number of linears");
    product_refused(w, 2, 0, 2, 15, 8, "rows of x overlap");
    product_refused(w, 2, 0, 2, 16, 7, "rows of y overlap");
    product_refused(w, 2, 1, 2, 16, 7, "rows of y overlap"); /* row 1 */
    forge_w4a16_release(w);
}

int main(void)
{
    test_refusals();
    test_product_refusals();
    return 0;
}
