/* crc32c.c - see crc32c.h. */
#include "common/io/crc32c.h"

#include <string.h>

#include "common/math/cpu.h"

#if defined(__x86_64__)
#include <nmmintrin.h>
#define CRC    __attribute__((target("sse4.2")))
#define CRC_8  _mm_crc32_u8
#define CRC_64 _mm_crc32_u64
#elif defined(__aarch64__)
#ifdef __clang__
#define CRC    __attribute__((target("crc")))
#define CRC_8  __builtin_arm_crc32cb
#define CRC_64 __builtin_arm_crc32cd
#else
#define CRC    __attribute__((target("+crc")))
#define CRC_8  __builtin_aarch64_crc32cb
#define CRC_64 __builtin_aarch64_crc32cx
#endif
#endif

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

#ifdef CRC
CRC static uint32_t crc32c_instruction(uint32_t crc, const void *data, size_t n)
{
    const unsigned char *p = data;
    uint32_t c = ~crc;

    for (; n >= 8; n -= 8, p += 8) {
        uint64_t x;

        memcpy(&x, p, sizeof(x));
        c = (uint32_t)CRC_64(c, x);
    }
    while (n--)
        c = CRC_8(c, *p++);
    return ~c;
}
#endif

uint32_t crc32c(uint32_t crc, const void *data, size_t n)
{
#ifdef CRC
    if (cpu_uses_crc32c())
        return crc32c_instruction(crc, data, n);
#endif
    return crc32c_table(crc, data, n);
}
