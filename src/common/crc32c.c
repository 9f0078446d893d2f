/* crc32c.c - see crc32c.h. */
#include "common/crc32c.h"

#include <nmmintrin.h>
#include <string.h>

static uint32_t table[256];

__attribute__((constructor)) static void build(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;

        for (int k = 0; k < 8; k++)
            c = c & 1 ? c >> 1 ^ 0x82f63b78u : c >> 1;
        table[i] = c;
    }
}

uint32_t crc32c_table(uint32_t crc, const void *data, size_t n)
{
    const unsigned char *p = data;

    for (crc = ~crc; n--; p++)
        crc = crc >> 8 ^ table[(crc ^ *p) & 0xff];
    return ~crc;
}

__attribute__((target("sse4.2"))) static uint32_t
crc32c_sse42(uint32_t crc, const void *data, size_t n)
{
    const unsigned char *p = data;
    uint64_t c = ~crc;

    for (; n >= 8; n -= 8, p += 8) {
        uint64_t x;

        memcpy(&x, p, sizeof(x));
        c = _mm_crc32_u64(c, x);
    }
    while (n--)
        c = _mm_crc32_u8((uint32_t)c, *p++);
    return ~(uint32_t)c;
}

uint32_t crc32c(uint32_t crc, const void *data, size_t n)
{
    return __builtin_cpu_supports("sse4.2") ? crc32c_sse42(crc, data, n) :
                                              crc32c_table(crc, data, n);
}
