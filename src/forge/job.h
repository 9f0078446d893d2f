/* job.h - one quantization: what was asked for, and the keys that follow from
 * it.  WORK/settings.json is a job; steps read it, and nothing in it is believed
 * before it has been checked. */
#ifndef FORGE_JOB_H
#define FORGE_JOB_H

#include <limits.h>

#include "common/base.h"
#include "common/cli/opt.h"
#include "gptq/solve/solve_refined.h"
#include "layout/layout.h"

enum method { METHOD_GPTQ, METHOD_RTN };
#define METHOD_WORDS "gptq|rtn"

enum propagate { PROPAGATE_QUANTIZED, PROPAGATE_ORIGINAL, PROPAGATE_BOTH };
#define PROPAGATE_WORDS "quantized|original|both"

enum {
    KEY_LEN = 16,
    STAGE_DIR = 32,
    DEVICE_LEN = 16,
    CPU_LEN = 16,
    HOST_LEN = 256
};

/* A file of the model's weights: what it was when it was hashed. */
struct weights_file {
    char name[256];
    uint64_t size, inode;
    int64_t mtime, mtime_ns, ctime, ctime_ns;
    uint64_t hash; /* XXH3-64 of its bytes */
};

struct job {
    char model[PATH_MAX], text[PATH_MAX], out[PATH_MAX]; /* absolute */
    int layout, method, effort, propagate;
    int64_t sequences, seqlen, group, blend, threads, jobs;
    int64_t layers, modules;
    bool symmetric, bf16_scales;
    char device[DEVICE_LEN];
    char cpu[CPU_LEN];               /* the level that all its tools use */
    uint64_t gpu_memory, shard_size; /* gpu_memory 0: all there is */
    char tkey[KEY_LEN + 1], ckey[KEY_LEN + 1], skey[KEY_LEN + 1];
    double seconds;  /* how long all was thought to take; 0: not known */
    int64_t started; /* seconds since 1970 of the last call */
    int64_t before;  /* modules that it found done */
    uint64_t bytes_in;
    double most;         /* the largest weight of all linears; 0: not known */
    char host[HOST_LEN]; /* where the weights were hashed */
    struct weights_file *file;
    size_t files;
    uint64_t fingerprint; /* of headers and index; not written down */
};

/* The directory of a stage in WORK. */
const char *job_tokens_dir(const struct job *j, char dir[STAGE_DIR]);
const char *job_calib_dir(const struct job *j, char dir[STAGE_DIR]);
const char *job_solve_dir(const struct job *j, char dir[STAGE_DIR]);
/* Whether rows are solved together, by the moments of gradients. */
static inline bool job_fisher(const struct job *j)
{
    return j->effort == EFFORT_BEST && j->method == METHOD_GPTQ;
}

/* The options of forge-grid and forge-solve, as words behind one another; what
 * keys are made of, too. */
enum { JOB_WORDS = 12, JOB_WORD = OPT_WORD };
struct job_words {
    char text[JOB_WORDS][JOB_WORD];
    int n;
};
void job_grid(const struct job *j, struct job_words *w);
void job_solve(const struct job *j, struct job_words *w);

/* What pipeline.mk wants to know: assignments of words that cannot be anything
 * else to make. */
enum { JOB_VARIABLES = 7 };
struct job_variables {
    char *text[JOB_VARIABLES];
};
MUST_CHECK int job_variables(const struct job *j, struct job_variables *v,
                             struct err *e);
void job_variables_release(struct job_variables *v);

/* Publish it as WORK/settings.json. */
MUST_CHECK int job_write(const struct job *j, const char *work, struct err *e);
/* Errors of settings_read(); E_DATA: something in it is not as job_write() has
 * it. */
MUST_CHECK int job_read(struct job *j, const char *work, struct err *e);
void job_release(struct job *j);

#endif
