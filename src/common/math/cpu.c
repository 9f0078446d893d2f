/* cpu.c - see cpu.h. */
#include "common/math/cpu.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#if defined(__aarch64__)
#include <sys/auxv.h>
#elif defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

static const char *const names[CPU_LEVELS] = {
    [CPU_PLAIN] = "plain",       [CPU_AVX2] = "avx2",
    [CPU_AVX512] = "avx512",     [CPU_AVX512BF16] = "avx512bf16",
    [CPU_AMX] = "amx",           [CPU_NEON] = "neon",
    [CPU_NEONBF16] = "neonbf16",
};

static bool has[CPU_LEVELS], has_vbmi, has_crc32c,
    has_vnni[2]; /* of 256 and 512 bits */
static atomic_bool without_vnni;
static atomic_int used;
static pthread_once_t once = PTHREAD_ONCE_INIT;

#if defined(__x86_64__)
/* CPUID leaf 7 (older compilers lack the name for __builtin_cpu_supports()),
 * and arch_prctl(2), by which Linux permits the tile state. */
static bool has_amx(void)
{
    enum { REQ_XCOMP_PERM = 0x1023, TILE_DATA = 18 };
    enum { AMX_BF16 = 1 << 22, AMX_TILE = 1 << 24 };
    unsigned a = 7, b, c = 0, d;

    __asm__("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
    return (d & AMX_BF16) && (d & AMX_TILE) &&
           !syscall(SYS_arch_prctl, REQ_XCOMP_PERM, TILE_DATA);
}

/* CPUID leaf 7.1: VNNI in 256 bits without AVX-512. */
static bool has_avxvnni(void)
{
    enum { AVX_VNNI = 1 << 4 };
    unsigned a = 7, b, c = 1, d;

    __asm__("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
    return a & AVX_VNNI;
}

static void look(void)
{
    __builtin_cpu_init();
    /* every CPU with AVX2 and FMA has F16C */
    has[CPU_AVX2] =
        __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    has[CPU_AVX512] = has[CPU_AVX2] && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
    has[CPU_AVX512BF16] =
        has[CPU_AVX512] && __builtin_cpu_supports("avx512bf16");
    has[CPU_AMX] = has[CPU_AVX512BF16] && has_amx();
    has_vbmi = __builtin_cpu_supports("avx512vbmi");
    has_crc32c = __builtin_cpu_supports("sse4.2");
    has_vnni[0] = has[CPU_AVX2] && has_avxvnni();
    has_vnni[1] = has[CPU_AVX512] && __builtin_cpu_supports("avx512vnni");
}
#elif defined(__aarch64__)
static void look(void)
{
    enum { HWCAP_CRC32_BIT = 1 << 7, HWCAP2_BF16_BIT = 1 << 14 };

    has[CPU_NEON] = true;
    has[CPU_NEONBF16] = getauxval(AT_HWCAP2) & HWCAP2_BF16_BIT;
    has_crc32c = getauxval(AT_HWCAP) & HWCAP_CRC32_BIT;
}
#else
static void look(void)
{
}
#endif

static void prepare(void)
{
    has[CPU_PLAIN] = true;
    look();
    for (int l = 0; l < CPU_LEVELS; l++)
        if (has[l])
            used = l;
}

const char *cpu_level_name(enum cpu_level l)
{
    return names[l];
}

bool cpu_level_known(const char *name)
{
    int l = 0;

    while (l < CPU_LEVELS && strcmp(names[l], name))
        l++;
    return l < CPU_LEVELS;
}

bool cpu_has(enum cpu_level l)
{
    pthread_once(&once, prepare);
    return has[l];
}

enum cpu_level cpu_level(void)
{
    pthread_once(&once, prepare);
    return (enum cpu_level)used;
}

bool cpu_is_intel(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_is("intel");
#else
    return false;
#endif
}

bool cpu_slow_pairs(void)
{
    return cpu_has(CPU_AVX512BF16) && cpu_is_intel();
}

/* Levels of the other architecture are numbered, but never present. */
bool cpu_uses(enum cpu_level l)
{
    return cpu_has(l) && l <= cpu_level();
}

bool cpu_uses_vbmi(void)
{
    return cpu_uses(CPU_AVX512) && has_vbmi;
}

bool cpu_uses_vnni(void)
{
    return cpu_uses(CPU_AVX2) && has_vnni[cpu_uses(CPU_AVX512)] &&
           !without_vnni;
}

void cpu_set_vnni(bool use)
{
    without_vnni = !use;
}

bool cpu_uses_crc32c(void)
{
    return (cpu_uses(CPU_AVX2) || cpu_uses(CPU_NEON)) && has_crc32c;
}

void cpu_set(enum cpu_level l)
{
    if (cpu_has(l))
        used = l;
}

/* The levels of this machine: "plain, avx2". */
static void known(char *to, size_t n)
{
    size_t at = 0;

    *to = 0;
    for (int l = 0; l < CPU_LEVELS; l++)
        if (cpu_has((enum cpu_level)l))
            at += (size_t)snprintf(to + at, n - at, "%s%s", at ? ", " : "",
                                   names[l]);
}

int cpu_choose(const char *name, struct err *e)
{
    char here[128];
    int l = 0;

    if (!name || !*name)
        return 0;
    while (l < CPU_LEVELS && strcmp(names[l], name))
        l++;
    known(here, sizeof(here));
    if (l == CPU_LEVELS)
        return err_set(e, E_USAGE, "FORGE_CPU: '%s' is none of %s", name, here);
    if (!cpu_has((enum cpu_level)l))
        return err_set(e, E_CONFIG, "FORGE_CPU: this machine has %s, not %s",
                       here, name);
    cpu_set((enum cpu_level)l);
    return 0;
}
