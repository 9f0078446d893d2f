/* Types, checksums, threads, publishing. */
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <math.h>
#include <stddef.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/io/crc32c.h"
#include "common/io/file.h"
#include "common/io/region.h"
#include "common/math/dtype.h"
#include "common/math/threads.h"
#include "test.h"

static struct err e;

static void test_crc32c(void)
{
    uint8_t data[300];

    CHECK(crc32c(0, "123456789", 9) == 0xe3069283); /* RFC 3720 */
    for (size_t i = 0; i < sizeof(data); i++)
        data[i] = (uint8_t)(i * 7);
    for (size_t n = 0; n < sizeof(data); n++) {
        CHECK(crc32c(0, data, n) == crc32c_table(0, data, n));
        CHECK(crc32c(crc32c(0, data, n / 2), data + n / 2, n - n / 2) ==
              crc32c(0, data, n));
    }
}

static void test_sizes(void)
{
    uint64_t n = 7, big[] = { 1ull << 32, 1ull << 32 };

    CHECK(dtype_size(DT_F32, 0, NULL, &n) && n == 4);
    CHECK(dtype_size(DT_U4, 1, (uint64_t[]){ 2 }, &n) && n == 1);
    CHECK(!dtype_size(DT_U4, 1, (uint64_t[]){ 3 }, &n));
    CHECK(!dtype_size(DT_U8, 2, big, &n));
    CHECK(dtype_size(DT_F32, 3, (uint64_t[]){ ~0ull, ~0ull, 0 }, &n) && !n);
    CHECK(!dtype_size(DT_NONE, 0, NULL, &n));
    CHECK(!dtype_size((enum dtype)99, 0, NULL, &n));
    for (int t = 1; t < DT_COUNT; t++)
        CHECK(dtype_parse(dtype_name((enum dtype)t)) == (enum dtype)t);
    CHECK(dtype_parse("F33") == DT_NONE && dtype_parse("?") == DT_NONE);
}

/* What 2^exponent steps mean, from the definition of the format. */
static double small_float(unsigned code, int ebits, int mbits, int bias)
{
    unsigned mant = code & ((1u << mbits) - 1);
    int exponent = (int)(code >> mbits & ((1u << ebits) - 1));
    double m = ldexp(mant, -mbits);
    double v = exponent ? ldexp(1 + m, exponent - bias) : ldexp(m, 1 - bias);

    return code >> (ebits + mbits) ? -v : v;
}

static bool same_bits(float a, float b)
{
    return !memcmp(&a, &b, sizeof(a));
}

static void test_all_halves(void)
{
    static uint16_t in[65536 + 7], back[65536 + 7];
    static float wide[65536 + 7];
    const enum dtype types[] = { DT_F16, DT_BF16 };

    for (unsigned i = 0; i < ARRAY_LEN(in); i++)
        in[i] = (uint16_t)i;
    for (int k = 0; k < 2; k++) {
        int ebits = k ? 8 : 5, mbits = k ? 7 : 10, bias = k ? 127 : 15;
        unsigned special = ((1u << ebits) - 1) << mbits;

        CHECK(to_f32(wide, in, types[k], ARRAY_LEN(in)));
        CHECK(from_f32(back, types[k], wide, ARRAY_LEN(in)));
        for (unsigned i = 0; i < 65536; i++) {
            float one = k ? f32_from_bf16(in[i]) : f32_from_f16(in[i]);
            uint16_t b = k ? bf16_from_f32(one) : f16_from_f32(one);

            CHECK(same_bits(wide[i], one) && back[i] == b);
            if ((i & special) != special)
                CHECK((double)one == small_float(i, ebits, mbits, bias) &&
                      back[i] == i);
            else if (i & (special ^ 0x7fff))
                CHECK(isnan(one) && isnan(wide[i]));
            else
                CHECK(isinf(one) && back[i] == i);
        }
    }
}

/* Of 5,000 elements of each type, the largest at any place, also if it is not finite. */
static void test_most(void)
{
    static float wide[5000];
    static char raw[8 * ARRAY_LEN(wide) + 1];
    const enum dtype types[] = { DT_F32, DT_F16,     DT_BF16,
                                 DT_F64, DT_F8_E4M3, DT_F8_E5M2 };

    for (size_t k = 0; k < ARRAY_LEN(types); k++)
        for (size_t at = 0; at < ARRAY_LEN(wide); at += 833) {
            enum dtype t = types[k];

            for (size_t i = 0; i < ARRAY_LEN(wide); i++)
                wide[i] = ldexpf(i % 2 ? 1 : -1, (int)(i % 9) - 5);
            wide[at] = at % 2 ? 40 : -40;
            CHECK(from_f32(raw + 1, t, wide, ARRAY_LEN(wide)));
            CHECK(dtype_most(raw + 1, t, ARRAY_LEN(wide)) == 40);
            wide[at] = (float)(at % 2 ? NAN : -INFINITY);
            CHECK(from_f32(raw, t, wide, ARRAY_LEN(wide)));
            CHECK(!isfinite(dtype_most(raw, t, ARRAY_LEN(wide))));
        }
    CHECK(dtype_most(raw, DT_BF16, 0) == 0 && dtype_most(raw, DT_I8, 9) == 0);
}

/* Between each two neighbours: the middle goes to the even one. */
static void check_rounding(enum dtype t, unsigned from, unsigned to,
                           float (*wide)(unsigned))
{
    for (unsigned i = from; i < to; i++) {
        float lo = wide(i), hi = wide(i + 1), mid = lo / 2 + hi / 2;
        float v[3] = { nextafterf(mid, lo), mid, nextafterf(mid, hi) };
        uint16_t out[3] = { 0 };
        uint8_t out8[3];

        if (dtype_bits(t) == 16) {
            CHECK(from_f32(out, t, v, 3));
        } else {
            CHECK(from_f32(out8, t, v, 3));
            for (int k = 0; k < 3; k++)
                out[k] = out8[k];
        }
        CHECK(out[0] == i && out[1] == (i & 1 ? i + 1 : i) && out[2] == i + 1);
    }
}

static float wide_f16(unsigned i)
{
    return (float)small_float(i, 5, 10, 15);
}

static float wide_bf16(unsigned i)
{
    return (float)small_float(i, 8, 7, 127);
}

static float wide_e4m3(unsigned i)
{
    return (float)small_float(i, 4, 3, 7);
}

static float wide_e5m2(unsigned i)
{
    return (float)small_float(i, 5, 2, 15);
}

static void test_rounding(void)
{
    const float big[] = { 65519, 65520, 3e38f, INFINITY };
    uint16_t h[4];
    uint8_t b[4];
    float back[1];

    check_rounding(DT_F16, 0, 0x7bff, wide_f16);
    check_rounding(DT_BF16, 0x100, 0x7f7e, wide_bf16);
    check_rounding(DT_F8_E4M3, 0, 0x7e, wide_e4m3);
    check_rounding(DT_F8_E5M2, 0, 0x7b, wide_e5m2);
    CHECK(from_f32(h, DT_F16, big, 4));
    CHECK(h[0] == 0x7bff && h[1] == 0x7c00 && h[2] == 0x7c00 && h[3] == 0x7c00);
    CHECK(from_f32(b, DT_F8_E4M3, (float[]){ 448, 464, 465, NAN }, 4));
    CHECK(b[0] == 0x7e && b[1] == 0x7e && b[2] == 0x7f && b[3] == 0x7f);
    CHECK(from_f32(b, DT_F8_E8M0, (float[]){ 1, 2, 0.5f, -1 }, 4));
    CHECK(b[0] == 127 && b[1] == 128 && b[2] == 126 && b[3] == 255);
    CHECK(to_f32(back, (uint8_t[]){ 0 }, DT_F8_E8M0, 1) &&
          back[0] == 0x1p-127f);
    CHECK(!to_f32(back, b, DT_I8, 1) && !from_f32(b, DT_U4, back, 1));
}

static void count(void *ctx, size_t begin, size_t end)
{
    unsigned char *seen = ctx;

    for (size_t i = begin; i < end; i++)
        __atomic_fetch_add(&seen[i], 1, __ATOMIC_RELAXED);
}

static void nested(void *ctx, size_t begin, size_t end)
{
    unsigned char *seen = ctx;

    threads_for(end - begin, 1, count, seen + begin);
}

static void test_threads(void)
{
    static unsigned char seen[10000];

    threads_set(3);
    CHECK(threads_count() == 3);
    for (int round = 0; round < 200; round++) {
        threads_for(ARRAY_LEN(seen), 1 + round * 10, round & 1 ? count : nested,
                    seen);
        for (size_t i = 0; i < ARRAY_LEN(seen); i++)
            CHECK(seen[i] == round + 1);
    }
    threads_for(0, 1, count, NULL);
}

static void fail_some(void *ctx, size_t begin, size_t end)
{
    struct err own;

    for (size_t i = end; i-- > begin;)
        if (i % 7 == 3) {
            err_set(&own, E_DATA, "part %zu", i);
            threads_error_add(ctx, i, &own);
        }
}

static void test_threads_error(void)
{
    struct threads_error t;

    threads_error_init(&t);
    threads_for(2, 1, fail_some, &t);
    CHECK(threads_error_take(&t, &e) == 0);
    threads_error_init(&t);
    threads_for(1000, 1, fail_some, &t);
    CHECK(threads_error_take(&t, &e) == e.code && e.code < 0);
    CHECK(!strcmp(e.msg, "part 3"));
}

static void test_publish(void)
{
    char dir[] = "/tmp/forge-test-XXXXXX", path[64], *text;
    struct publish *p;
    struct stat st;
    size_t n;

    CHECK(mkdtemp(dir));
    snprintf(path, sizeof(path), "%s/out", dir);
    CHECK(publish_create(&p, path, &e) == 0);
    CHECK(publish_write(p, "hello", 5, &e) == 0);
    CHECK(access(path, F_OK) != 0); /* no name before it is complete */
    CHECK(publish_commit(p, &e) == 0);
    CHECK(file_slurp(&text, &n, path, 5, &e) == 0);
    CHECK(n == 5 && !strcmp(text, "hello"));
    free(text);
    CHECK(file_slurp(&text, &n, path, 4, &e) == E_DATA);
    CHECK(publish_text(path, "x", 1, &e) == 0);
    CHECK(stat(path, &st) == 0 && st.st_size == 1);
    CHECK(publish_create(&p, path, &e) == 0);
    CHECK(publish_write(p, "lost", 4, &e) == 0);
    publish_discard(p); /* the old one stays */
    CHECK(stat(path, &st) == 0 && st.st_size == 1);
    CHECK(publish_create(&p, dir, &e) == E_CREATE);
    CHECK(publish_create(&p, "/nonexistent/x", &e) == E_CREATE);
    CHECK(publish_text("/dev/full", "x", 1, &e) == E_IO);
    CHECK(unlink(path) == 0 && rmdir(dir) == 0); /* no temporary is left */
}

/* Byte i of the test's files. */
static unsigned char pattern(uint64_t i)
{
    return (unsigned char)((i * 0x9e3779b97f4a7c15u) >> 56);
}

/* Files below, at, and above the sizes where writing changes its way, in
 * pieces of all kinds; each is read again. */
static void test_large(void)
{
    static const size_t MIB = 1 << 20;
    const size_t sizes[] = { 4 * MIB - 1, 4 * MIB + 1, 5 * MIB, 14 * MIB + 4095,
                             40 * MIB };
    const size_t steps[] = { 4097, 5000001, 40 * MIB };
    char dir[] = "/tmp/forge-test-XXXXXX", path[64];
    unsigned char *bytes = malloc(40 * MIB), *back = malloc(40 * MIB);
    struct publish *p;
    struct stat st;
    struct file *f;

    CHECK(mkdtemp(dir) && bytes && back);
    snprintf(path, sizeof(path), "%s/out", dir);
    for (size_t i = 0; i < 40 * MIB; i++)
        bytes[i] = pattern(i);
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++)
        for (size_t k = 0; k < ARRAY_LEN(steps); k++) {
            size_t n = sizes[i], step = steps[k];

            CHECK(publish_create(&p, path, &e) == 0);
            for (size_t at = 0; at < n; at += step)
                CHECK(publish_write(p, bytes + at,
                                    n - at < step ? n - at : step, &e) == 0);
            CHECK(publish_commit(p, &e) == 0);
            CHECK(stat(path, &st) == 0 && (size_t)st.st_size == n);
            CHECK((uint64_t)st.st_blocks * 512 < n + MIB); /* no spare room */
            CHECK(file_open(&f, AT_FDCWD, path, &e) == 0);
            CHECK(file_read(f, back, n, 0, &e) == 0);
            CHECK(!memcmp(bytes, back, n));
            file_close(f);
        }
    CHECK(publish_create(&p, path, &e) == 0);
    CHECK(publish_write(p, bytes, 20 * MIB + 5, &e) == 0);
    publish_discard(p); /* with writes on their way: the old one stays */
    CHECK(stat(path, &st) == 0 && (size_t)st.st_size == 40 * MIB);
    free(bytes);
    free(back);
    CHECK(unlink(path) == 0 && rmdir(dir) == 0);
}

static volatile sig_atomic_t signals;

static void count_signal(int number)
{
    (void)number;
    signals++;
}

/* Signals arrive while a cold file is read, as they do where a job is stopped and
 * goes on. */
static void test_signals(void)
{
    const size_t n = 40 << 20;
    const struct itimerval often = { { 0, 100 }, { 0, 100 } }, never = { 0 };
    char dir[] = "/tmp/forge-test-XXXXXX", path[64];
    unsigned char *bytes = malloc(n), *back = malloc(n);
    struct sigaction count = { .sa_handler = count_signal }, before;
    struct publish *p;
    struct file *f;

    CHECK(mkdtemp(dir) && bytes && back);
    snprintf(path, sizeof(path), "%s/out", dir);
    for (size_t i = 0; i < n; i++)
        bytes[i] = pattern(i);
    CHECK(publish_create(&p, path, &e) == 0);
    CHECK(publish_write(p, bytes, n, &e) == 0 && publish_commit(p, &e) == 0);
    CHECK(file_open(&f, AT_FDCWD, path, &e) == 0);
    CHECK(sigaction(SIGALRM, &count, &before) == 0);
    CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
    for (int i = 0; i < 3; i++) {
        memset(back, 0, n);
        CHECK(file_read(f, back, n, 0, &e) == 0);
        CHECK(!memcmp(bytes, back, n));
    }
    CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
    CHECK(sigaction(SIGALRM, &before, NULL) == 0);
    CHECK(signals);
    file_close(f);
    free(bytes);
    free(back);
    CHECK(unlink(path) == 0 && rmdir(dir) == 0);
}

/* A size limit stands for a full disk: the error comes up at a later write or
 * at commit, and nothing is published. */
static void test_large_fails(void)
{
    const size_t mib = 1 << 20;
    char dir[] = "/tmp/forge-test-XXXXXX", path[64], *bytes = calloc(mib, 1);
    struct rlimit old, limit;
    struct publish *p;
    int failed = 0;

    CHECK(mkdtemp(dir) && bytes && getrlimit(RLIMIT_FSIZE, &old) == 0);
    snprintf(path, sizeof(path), "%s/out", dir);
    signal(SIGXFSZ, SIG_IGN);
    for (size_t n = 7; n < 30; n += 8) {
        limit = (struct rlimit){ 6 * mib + 100, old.rlim_max };
        CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
        CHECK(publish_create(&p, path, &e) == 0);
        for (size_t i = 0; i < n && !failed; i++)
            failed = publish_write(p, bytes, mib, &e);
        if (!failed)
            failed = publish_commit(p, &e);
        else
            publish_discard(p);
        CHECK(failed == E_IO && strstr(e.msg, path));
        CHECK(access(path, F_OK) != 0);
        failed = 0;
        CHECK(setrlimit(RLIMIT_FSIZE, &old) == 0);
    }
    free(bytes);
    CHECK(rmdir(dir) == 0); /* no temporary is left */
}

/* From now on this process's kernel answers `error` to the call when bits of
 * its third argument (0: any) are set.  False where that is not allowed. */
static bool refuse(int call, unsigned bits, int error)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)call, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
                 offsetof(struct seccomp_data, args[2])),
        bits ? (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, bits, 0,
                                            1) :
               (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JA, 0, 0, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = { ARRAY_LEN(code), code };

    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/* Memory that becomes a file: what was there is kept, what is new is zero. */
static void test_region(void)
{
    const size_t small = 1 << 20, large = REGION_MEMORY + 1;
    struct region r;
    char *p;

    region_init(&r, "/nonexistent");
    CHECK(region_reserve(&r, 0, &e) == 0 && r.p);
    CHECK(region_reserve(&r, REGION_MEMORY, &e) == 0);
    CHECK(region_reserve(&r, large, &e) == E_CREATE);
    CHECK(strstr(e.msg, "'/nonexistent'"));
    region_release(&r);

    region_init(&r, getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    CHECK(region_reserve(&r, small, &e) == 0);
    memset(r.p, 7, small);
    CHECK(region_reserve(&r, large, &e) == 0 && r.file);
    p = r.p;
    CHECK(p[0] == 7 && p[small - 1] == 7 && !p[r.cap - 1]);
    memset(p + small, 8, small);
    region_leave(&r, 1, 2 * small);
    CHECK(p[1] == 7 && p[2 * small - 1] == 8 && !p[2 * small]);
    CHECK(region_reserve(&r, 2 * large, &e) == 0);
    p = r.p;
    CHECK(p[small - 1] == 7 && p[2 * small - 1] == 8 && !p[2 * large - 1]);
    region_release(&r);
    region_release(&r);
}

/* A full disk is met when room is taken, not as a signal when it is used. */
static void test_region_full(void)
{
    struct rlimit old, limit;
    struct region r;

    CHECK(getrlimit(RLIMIT_FSIZE, &old) == 0);
    limit = (struct rlimit){ REGION_MEMORY, old.rlim_max };
    signal(SIGXFSZ, SIG_IGN);
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    region_init(&r, "/tmp");
    CHECK(region_reserve(&r, REGION_MEMORY + 1, &e) == E_IO);
    CHECK(strstr(e.msg, "no room for a temporary file"));
    region_release(&r);
    CHECK(setrlimit(RLIMIT_FSIZE, &old) == 0);
}

/* What the file system or the kernel may lack: files without a name, io_uring,
 * O_DIRECT.  The same must come out. */
static void test_without(void)
{
    static const struct {
        int call, error;
        unsigned bits;
    } lack[] = {
        { SYS_openat, EOPNOTSUPP, O_TMPFILE & ~O_DIRECTORY },
        { SYS_io_uring_setup, EPERM, 0 },
        { SYS_openat, EINVAL, O_DIRECT },
        { SYS_fallocate, EOPNOTSUPP, 0 },
    };

    for (size_t i = 0; i < ARRAY_LEN(lack); i++) {
        int status = -1;
        pid_t child = fork();

        if (child == 0) {
            if (refuse(lack[i].call, lack[i].bits, lack[i].error)) {
                test_publish();
                test_large();
                test_large_fails();
                test_region();
            }
            _exit(0);
        }
        CHECK(child > 0 && waitpid(child, &status, 0) == child);
        CHECK(status == 0);
    }
}

static void test_file(void)
{
    char buf[8];
    struct file *f;

    CHECK(file_open(&f, AT_FDCWD, "/nonexistent", &e) == E_NOINPUT);
    CHECK(file_open(&f, AT_FDCWD, "/tmp", &e) == E_DATA);
    CHECK(file_open(&f, AT_FDCWD, "/dev/null", &e) == E_DATA);
    CHECK(file_open(&f, AT_FDCWD, "/proc/self/exe", &e) == 0);
    CHECK(file_read(f, buf, 4, 0, &e) == 0 && !memcmp(buf, "\177ELF", 4));
    CHECK(file_read(f, buf, 1, file_size(f), &e) == E_DATA);
    CHECK(file_read(f, buf, 0, file_size(f), &e) == 0);
    file_close(f);
    file_close(NULL);
}

int main(void)
{
    each_level(test_crc32c);
    test_sizes();
    each_level(test_all_halves);
    test_most();
    each_level(test_rounding);
    test_threads();
    test_threads_error();
    test_publish();
    test_without(); /* first: a child cannot use its parent's ring */
    test_large();
    test_signals();
    test_large_fails();
    test_region();
    test_region_full();
    test_file();
    return 0;
}
