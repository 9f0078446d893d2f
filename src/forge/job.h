/* job.h - a quantization job: its options, and the keys of its stages'
 * directories.  It is stored as WORK/settings.json, from which the steps read
 * it; every member is checked when it is read. */
#ifndef FORGE_JOB_H
#define FORGE_JOB_H

#include <limits.h>

#include "arch/device_bytes.h"
#include "arch/gridrules.h"
#include "common/cli/opt.h"
#include "common/math/quant.h"
#include "gguf/convert.h"
#include "gptq/solve/solve_refined.h"
#include "layout/layout.h"
#include "work/inputs.h"

enum method { METHOD_GPTQ, METHOD_RTN };
#define METHOD_WORDS "gptq|rtn"
/* --search of METHOD_RTN: forge-grid's search for a scale, or the scale that spans a
 * group's weights, with which forge-pack --rtn packs as it reads: no codes in
 * between. */
enum { SEARCH_AUTO, SEARCH_ABSMAX };
#define SEARCH_WORDS "auto|absmax"

/* --layout: the layouts of serving engines, or one GGUF file, made of the
 * checkpoint in WORK/packed-KEY, which is in layout compressed-tensors. */
#define JOB_LAYOUTS LAYOUT_WORDS "|gguf"
enum { JOB_GGUF = 4 };

enum propagate { PROPAGATE_QUANTIZED, PROPAGATE_ORIGINAL, PROPAGATE_BOTH };
#define PROPAGATE_WORDS "quantized|original|both"

enum {
    KEY_LEN = 16,
    STAGE_DIR = 32,
    SCRATCH_DIR = 64,
    DEVICE_LEN = 16,
    CPU_LEN = 16,
    GPU_LEN = 200,
    JOB_GLOBS = 512,
    PARTS_MAX = 128,
    TUNE_MAX = 1000000,
    TUNE_BATCH_MAX = 1024,
    TUNE_FRESH = 4096,
    STEP_COST_AUTO = -1,
    STEP_COST_MAX = 1000000
};

/* Globs of --modules or --skip, or rules of --grid. */
struct globs {
    char **item;
    int n;
};

struct job {
    char model[PATH_MAX], text[PATH_MAX], out[PATH_MAX]; /* absolute */
    int layout; /* index into JOB_LAYOUTS */
    int method, search, effort, propagate, rest;
    int64_t sequences, seqlen, group, blend, threads, jobs;
    int64_t layers, modules;
    int64_t parts; /* of the tokens: stops.h; 1: one pipe */
    int64_t step;  /* what a share costs to start, in 1e9 multiply-adds of the
                    * solver: stops.h; 0 to STEP_COST_MAX, or STEP_COST_AUTO */
    bool away;     /* steps run where FORGE_LAUNCH says, not here */
    /* Directory of a part's states on each node, absolute; "": the work
     * directory. */
    char scratch[PATH_MAX];
    struct globs only, skip; /* --modules, --skip */
    struct globs grids;      /* --grid, rules of arch/gridrules.h */
    bool symmetric, bf16_scales;
    bool fisher; /* rows are solved together: gptq/solve/fisher_descent.h */
    char device[DEVICE_LEN];
    char cpu[CPU_LEN]; /* CPU level that all its tools use (cpu.h) */
    char gpu[GPU_LEN]; /* stamp of the GPU that they use (device.h), "": the
                        * CPU; method rtn gives the same bytes on both: "" */
    uint64_t gpu_memory, shard_size; /* bytes; gpu_memory 0: no limit */
    /* what forge-calib may hold of the GPU in the loop, where there is no limit;
     * 0: half of what is free */
    uint64_t gpu_states;
    uint64_t
        states_memory; /* what it may hold of the host in states that would be files
                             * else; 0: none */
    /* keys of the stages tokens, calib, solve: hashes of options and inputs */
    char tkey[KEY_LEN + 1], ckey[KEY_LEN + 1], skey[KEY_LEN + 1];
    int64_t tune;           /* steps of forge-tune, 0: none */
    int64_t tune_batch;     /* sequences of each */
    char ukey[KEY_LEN + 1]; /* of what it makes; without it skey */
    char *command;     /* the last call's words, as a list in JSON; or NULL */
    double seconds;    /* estimated duration; 0: not known */
    int64_t started;   /* time of the last call, seconds since 1970 */
    int64_t before;    /* modules that the last call found solved */
    uint64_t bytes_in; /* of the model's tensors */
    double most;       /* the largest |w| of all linears; 0: not known */
    struct known_inputs in; /* files that the keys are made of */
    uint64_t fingerprint;   /* of headers and index; not stored */
};

/* dir = the name of a stage's directory in WORK, with its key; returned. */
const char *job_tokens_dir(const struct job *j, char dir[STAGE_DIR]);
const char *job_calib_dir(const struct job *j, char dir[STAGE_DIR]);
const char *job_solve_dir(const struct job *j, char dir[STAGE_DIR]);
/* Of the codes that become the checkpoint: tuned, or those of the solver. */
const char *job_codes_dir(const struct job *j, char dir[STAGE_DIR]);
const char *job_packed_dir(const struct job *j, char dir[STAGE_DIR]);
/* The same of the directory in j->scratch, of the work directory with this inode: others
 * may have the same key. */
const char *job_scratch_dir(const struct job *j, uint64_t inode,
                            char dir[SCRATCH_DIR]);
/* The layout that codes are packed in, and the word of --layout. */
enum layout job_layout(const struct job *j);
const char *job_layout_name(const struct job *j);
/* Sequences of --tune, the text's and the model's own: each is in one step, or where they
 * are more than TUNE_FRESH in two. */
static inline int64_t job_tune_sequences(const struct job *j)
{
    int64_t all = j->tune * j->tune_batch, half = (all + 1) / 2;

    return all < TUNE_FRESH ? all : half > TUNE_FRESH ? half : TUNE_FRESH;
}

/* Whether the job weighs tokens (hessian/token_weights.h), which takes a backward pass
 * over all of them: in effort best, where they are so many at most. */
enum { WEIGHTED_TOKENS = 1 << 17 };
static inline bool job_weighs(const struct job *j)
{
    return j->fisher && j->effort == EFFORT_BEST &&
           j->sequences * j->seqlen <= WEIGHTED_TOKENS;
}

/* Tokens that F is of, in whole batches. */
enum { FISHER_TOKENS_DEFAULT = 2048 };
static inline int64_t effort_fisher_tokens(int effort)
{
    return effort == EFFORT_BEST ? GRADIENT_TOKENS : FISHER_TOKENS_DEFAULT;
}

/* The options of forge-grid and forge-solve as words of a command line, from
 * which keys are made too. */
enum { JOB_WORDS = 12, JOB_WORD = OPT_WORD };
struct job_words {
    char text[JOB_WORDS][JOB_WORD];
    int n;
};
void job_grid(const struct job *j, struct job_words *w);
void job_solve(const struct job *j, struct job_words *w);

/* Append a copy of a glob.  E_USAGE: it is empty or too long, or they are more than
 * JOB_GLOBS; E_TEMP. */
MUST_CHECK int globs_add(struct globs *g, const char *glob, struct err *e);
/* j->group as users know it: -1 for GROUP_ALL. */
static inline int64_t job_group_word(const struct job *j)
{
    return j->group == GROUP_ALL ? -1 : j->group;
}

/* The linears that j quantizes, and their grids; j's memory. */
struct module_choice job_choice(const struct job *j);
/* The model's configuration, with the choice applied; model_config_release().
 * Errors of model_config_read(). */
MUST_CHECK int job_config(const struct job *j, struct model_config *c,
                          struct err *e);
struct grid_rules job_grids(const struct job *j);

/* Set j->command: "forge", name and argv[1..argc-1].  E_TEMP. */
MUST_CHECK int job_command(struct job *j, const char *name, int argc,
                           char **argv, struct err *e);
/* Write WORK/settings.json, atomically. */
MUST_CHECK int job_write(const struct job *j, const char *work, struct err *e);
/* Read it; job_release() *j.  Errors of settings_read(); E_DATA: a member is
 * missing or not of the form that job_write() gives it.  The command is not
 * read. */
MUST_CHECK int job_read(struct job *j, const char *work, struct err *e);
void job_release(struct job *j);

#endif
