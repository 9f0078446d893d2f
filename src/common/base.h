/* base.h - error codes, memory, messages on stderr: what every file of src/
 * may include.
 *
 * Rule: library modules return a negative E_* and fill a struct err; only a
 * tool's main(), base.c, opt.c and tool.c end the process.  `make lint` checks
 * it. */
#ifndef FORGE_BASE_H
#define FORGE_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* nvcc compiles .cu files as C++: a header that they include puts its
 * declarations between C_BEGIN and C_END. */
#ifdef __cplusplus
#define C_BEGIN extern "C" {
#define C_END   }
#else
#define C_BEGIN
#define C_END
#endif

/* Payloads of a stream (common/io/stream.h) are little-endian numbers that are
 * used where they were read, without conversion. */
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "4bit-forge streams are little-endian and are read in place"
#endif

#define ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))
#define NORETURN     __attribute__((noreturn))
#define MUST_CHECK   __attribute__((warn_unused_result))
#define PRINTF(f, a) __attribute__((format(printf, f, a)))

#ifndef FORGE_VERSION
#define FORGE_VERSION "0.1.0"
#endif

/* Error codes of all library functions; 0 is success.  A tool that fails exits
 * with status -code: the values are those of sysexits(3), listed in
 * 4bit-forge(7). */
enum {
    E_USAGE = -64,   /* the command line is wrong */
    E_DATA = -65,    /* input corrupt, cut short, mismatched or unsupported */
    E_NOINPUT = -66, /* an input does not exist or cannot be opened */
    E_DEVICE = -69,  /* no usable GPU */
    E_BUG = -70,     /* an internal contradiction: a defect of this program */
    E_CREATE = -73,  /* an output cannot be created */
    E_IO = -74,      /* a read or write failed; the disk is full */
    E_TEMP = -75,    /* may succeed later or elsewhere: out of memory,
                      * descriptors */
    E_CONFIG = -78   /* settings contradict each other or the model */
};

/* Exit status 1: the tool ran correctly and its answer is "no" (forge-verify
 * found a difference, forge-eval a limit exceeded). */
enum { EXIT_NO = 1 };

/* An error: what a library function that returns a negative E_* has filled
 * in. */
struct err {
    int code;      /* one of E_* */
    char msg[512]; /* one line, lower case, no full stop, no newline */
    bool told;     /* a message about this failure has been printed by
                    * another tool of the pipe, or will be: print none */
};

C_BEGIN

/* Fill *e and return code, so that a function can `return err_set(...)`.  If
 * fmt ends in ':', strerror(errno) is appended, and errno EPIPE sets e->told:
 * the reader at the other end of the pipe has ended and prints its own
 * reason. */
int err_set(struct err *e, int code, const char *fmt, ...) PRINTF(3, 4);
/* Prepend the formatted text and ": " to e->msg; returns e->code. */
int err_prefix(struct err *e, const char *fmt, ...) PRINTF(2, 3);
/* The E_* code for errnum, the errno of a failed open(2) for reading: E_TEMP
 * for ENOMEM, EMFILE and ENFILE, E_IO for EIO, else E_NOINPUT. */
int err_open_code(int errnum);

/* "@(#)4bit-forge VERSION", in the form that what(1) searches for: the version
 * of a binary can be read without running it. */
enum { WHAT_PREFIX = 15 }; /* bytes before VERSION */
extern const char forge_what[];
extern const char *progname; /* last component of argv[0], for messages */
extern int verbosity;        /* -1 quiet, 0 normal, 1 verbose */

/* First call of every main(): sets progname; ignores SIGXFSZ and SIGPIPE, so
 * that exceeded limits and closed pipes are errors of write(2); standard input, output
 * and error that are closed stay unusable, but no other file takes their place. */
void base_init(const char *argv0);
/* Print one line, unless e->told, and end the process at once (_exit, no
 * atexit handlers) with status -code.  die() formats as err_set() does. */
NORETURN void die(int code, const char *fmt, ...) PRINTF(2, 3);
NORETURN void die_err(const struct err *e);
/* What die() and die_err() call before the end; NULL: nothing.  opt_parse() sets
 * it in tools that write a stream: the next tool of the pipe is told. */
extern void (*die_tells)(const struct err *why);
/* Print "progname: e->msg" unless e->told, and go on.  A tool calls it before
 * it tells the next tool of the pipe, which then prints nothing
 * (tool_report_error()). */
void err_print(const struct err *e);
/* Flush stdio's standard output.  E_IO: it cannot be written. */
MUST_CHECK int flush_stdout(struct err *e);
/* One line on stderr by one write(2), so that lines of tools in a pipe do not
 * mix.  warning() prefixes "warning: "; info() prints under --verbose only.
 * Silent under --quiet. */
void warning(const char *fmt, ...) PRINTF(1, 2);
void info(const char *fmt, ...) PRINTF(1, 2);
/* As warning(), without the prefix: for facts that the user should know but
 * need not act on. */
void remark(const char *fmt, ...) PRINTF(1, 2);

/* Memory for library code.  NULL: *e is E_TEMP, "where: cannot allocate N
 * bytes".  mem_alloc() and mem_grow() leave it uninitialised, mem_zero()
 * zeroes count * size bytes.  The caller releases it by free().  n = 0 gives a
 * pointer that is not NULL. */
MUST_CHECK void *mem_alloc(size_t n, const char *where, struct err *e);
MUST_CHECK void *mem_zero(size_t count, size_t size, const char *where,
                          struct err *e);
/* A copy of the first n bytes of s with a NUL appended; the caller frees it. */
MUST_CHECK char *mem_text(const char *s, size_t n, const char *where,
                          struct err *e);
/* realloc: pp is the address of a pointer to heap memory (or to NULL), which
 * is replaced by one to n bytes.  On failure it is unchanged and still the
 * caller's. */
MUST_CHECK int mem_grow(void *pp, size_t n, const char *where, struct err *e);
/* n uninitialised bytes aligned to 4096, from 2 MiB on to 2 MiB with
 * transparent huge pages asked for: for O_DIRECT and pinned transfers.  free()
 * it. */
MUST_CHECK void *mem_pages(size_t n, const char *where, struct err *e);
/* At least n bytes by mem_pages() at *pp, the address of a pointer, whose size is
 * *cap (0: none).  The content is lost when they grow.  On failure the pointer is
 * NULL and *cap is 0. */
MUST_CHECK int mem_reserve(void *pp, size_t *cap, size_t n, const char *where,
                           struct err *e);

/* Size arithmetic for numbers from outside: *r = a * b or a + b; true on
 * overflow (__builtin_mul_overflow, __builtin_add_overflow). */
#define size_mul(a, b, r) __builtin_mul_overflow(a, b, r)
#define size_add(a, b, r) __builtin_add_overflow(a, b, r)

/* CLOCK_MONOTONIC in seconds. */
double seconds_now(void);
/* Put n numbers, none of them NaN, into ascending order. */
void sort_doubles(double *v, size_t n);

C_END

#endif
