/* base.h - what every tool needs before it can do anything.
 *
 * Rule of the house: library modules return an error and fill a struct err;
 * only a tool's main(), base.c, opt.c and tool.c may die().  `make lint` checks it. */
#ifndef FORGE_BASE_H
#define FORGE_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* .cu files are C++ to the compiler: what they include sits between these. */
#ifdef __cplusplus
#define C_BEGIN extern "C" {
#define C_END   }
#else
#define C_BEGIN
#define C_END
#endif

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

/* Error codes of the library.  A tool that fails exits with minus the code:
 * the numbers are those of sysexits(3), and 4bit-forge(7) lists them. */
enum {
    E_USAGE = -64,   /* the command line is wrong: fix it */
    E_DATA = -65,    /* input corrupt, cut short, mismatched or unsupported */
    E_NOINPUT = -66, /* an input does not exist or cannot be opened */
    E_DEVICE = -69,  /* no usable device */
    E_BUG = -70,     /* this program is wrong */
    E_CREATE = -73,  /* the output cannot be created */
    E_IO = -74,      /* read or write failed, disk full */
    E_TEMP = -75,    /* may work later or elsewhere: out of memory */
    E_CONFIG = -78   /* the settings contradict each other or the model */
};

/* Exit status 1 of a tool whose question was answered with no. */
enum { EXIT_NO = 1 };

struct err {
    int code;      /* one of E_* */
    char msg[512]; /* one line, lower case, no full stop, no newline */
    bool told;     /* a tool before or behind this one in its pipe says why */
};

C_BEGIN

/* Fill *e and return code, so that a function can `return err_set(...)`.  A
 * format that ends in ':' gets strerror(errno) appended; where that is EPIPE,
 * whoever read has said why, or was told to stop: e->told. */
int err_set(struct err *e, int code, const char *fmt, ...) PRINTF(3, 4);
/* Put "fmt: " before the message that *e holds; returns e->code. */
int err_prefix(struct err *e, const char *fmt, ...) PRINTF(2, 3);
/* The E_* code that fits errno after a failed open(2) for reading
 * (E_NOINPUT or E_IO), or E_TEMP for ENOMEM. */
int err_open_code(int errnum);

/* "@(#)4bit-forge VERSION", which every program carries, as what(1) finds it:
 * its version can be told without running it. */
enum { WHAT_PREFIX = 15 }; /* what comes before the version */
extern const char forge_what[];
extern const char *progname;
extern int verbosity; /* -1 quiet, 0 normal, 1 verbose */

void base_init(const char *argv0);
/* A message as err_set()'s on stderr, unless it is told already, and the end,
 * with status -code. */
NORETURN void die(int code, const char *fmt, ...) PRINTF(2, 3);
NORETURN void die_err(const struct err *e);
/* Only the line.  A tool says why before it passes the error on; the tools
 * behind it are then told and say nothing. */
void err_print(const struct err *e);
/* What was printed is out.  E_IO: it cannot be written. */
MUST_CHECK int flush_stdout(struct err *e);
/* One line on stderr, by one write(2); silent under --quiet (not die). */
void warning(const char *fmt, ...) PRINTF(1, 2);
void info(const char *fmt, ...) PRINTF(1, 2);
/* The same of what should be known but is no cause for worry. */
void remark(const char *fmt, ...) PRINTF(1, 2);

/* Memory of a library: NULL with *e = E_TEMP, "where: cannot allocate ...".
 * The memory is uninitialised (mem_alloc, mem_grow) or zero (mem_zero);
 * free() it.  Zero bytes give a unique pointer. */
MUST_CHECK void *mem_alloc(size_t n, const char *where, struct err *e);
MUST_CHECK void *mem_zero(size_t count, size_t size, const char *where,
                          struct err *e);
/* The first n bytes of s, with a NUL behind them. */
MUST_CHECK char *mem_text(const char *s, size_t n, const char *where,
                          struct err *e);
/* Grow *p to n bytes; on failure *p is untouched and still the caller's. */
MUST_CHECK int mem_grow(void *pp, size_t n, const char *where, struct err *e);
/* Aligned to 4096, for O_DIRECT and pinned transfers; uninitialised. */
MUST_CHECK void *mem_pages(size_t n, const char *where, struct err *e);

/* Checked size arithmetic for numbers that came from outside: true on
 * overflow, as the compiler's builtins. */
#define size_mul(a, b, r) __builtin_mul_overflow(a, b, r)
#define size_add(a, b, r) __builtin_add_overflow(a, b, r)

/* Seconds of a clock that is never set back. */
double seconds_now(void);

C_END

#endif
