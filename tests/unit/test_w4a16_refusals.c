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

/* Of 8 outputs and 16 inputs. */
static struct forge_w4a16_linear small(void)
{
    static const uint32_t words[16];
    static const float scales[16];

    return (struct forge_w4a16_linear){ .layout = FORGE_W4A16_GPTQ,
                                        .outputs = 8,
                                        .inputs = 16,
                                        .group = 8,
                                        .codes = words,
                                        .scales = scales,
                                        .scale_type = FORGE_W4A16_F32 };
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
    struct forge_w4a16_linear l = small();
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

/* Pointers that are missing where something is read or written. */
static void test_null(void)
{
    float x[16] = { 0 }, y[8];
    struct forge_w4a16_linear l = small(), no_codes = l, no_scales = l;
    struct forge_w4a16_rows rx = { FORGE_W4A16_F32, x, 16 },
                            ry = { FORGE_W4A16_F32, y, 8 },
                            none = { FORGE_W4A16_F32, NULL, 16 },
                            odd = { (enum forge_w4a16_type)9, y, 8 };
    const int64_t first[2] = { 0, 1 };
    const struct forge_w4a16 *two[2] = { NULL, NULL };
    struct forge_w4a16 *w;
    char why[200];

    no_codes.codes = NULL;
    no_scales.scales = NULL;
    CHECK(forge_w4a16_prepare(NULL, &l, why, sizeof(why)) == -78);
    CHECK(forge_w4a16_prepare(&w, NULL, why, sizeof(why)) == -78);
    CHECK(forge_w4a16_prepare(&w, &no_codes, NULL, 0) == -78);
    CHECK(forge_w4a16_prepare(&w, &no_scales, NULL, 0) == -78);
    CHECK(forge_w4a16_prepare(&w, &l, NULL, 0) == 0);
    two[0] = w;
    CHECK(forge_w4a16_memory(NULL) == 0 && forge_w4a16_memory(w) > 0);
    CHECK(forge_w4a16_multiply(NULL, &rx, 1, &ry, why, sizeof(why)) == -78);
    CHECK(forge_w4a16_multiply(w, NULL, 1, &ry, NULL, 0) == -78);
    CHECK(forge_w4a16_multiply(w, &rx, 1, NULL, NULL, 0) == -78);
    CHECK(forge_w4a16_multiply(w, &none, 1, &ry, why, sizeof(why)) == -78);
    CHECK(strstr(why, "x is NULL"));
    CHECK(forge_w4a16_multiply(w, &rx, 1, &none, why, sizeof(why)) == -78);
    CHECK(strstr(why, "y is NULL"));
    CHECK(forge_w4a16_multiply(w, &none, 0, &none, NULL, 0) == 0);
    CHECK(forge_w4a16_multiply(w, &rx, 0, &odd, NULL, 0) == -78);
    CHECK(forge_w4a16_multiply(w, &rx, INT64_C(1) << 62, &ry, why,
                               sizeof(why)) == -78);
    CHECK(forge_w4a16_several(two, 2, &rx, 1, &ry, NULL, 0) == -78);
    CHECK(forge_w4a16_several(NULL, 0, &rx, 1, NULL, NULL, 0) == 0);
    CHECK(forge_w4a16_grouped(NULL, first, 1, &rx, &ry, NULL, 0) == -78);
    CHECK(forge_w4a16_grouped(two, NULL, 1, &rx, &ry, NULL, 0) == -78);
    CHECK(forge_w4a16_grouped(two + 1, first, 1, &rx, &ry, NULL, 0) == -78);
    forge_w4a16_release(w);
}

int main(void)
{
    test_null();
    test_refusals();
    test_product_refusals();
    return 0;
}
