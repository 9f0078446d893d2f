/* stage_tools.h - a step of pipeline.mk, and the tools that steps run, with the
 * options that all steps pass. */
#ifndef FORGE_STAGE_TOOLS_H
#define FORGE_STAGE_TOOLS_H

#include "forge/job.h"
#include "forge/pipes.h"
#include "forge/stops.h"

enum { PATH_ROOM = 80 };

struct stage {
    struct job j;
    const char *name;
    bool kv_b;          /* kv_b_proj is quantized */
    int64_t layer;      /* -1: none */
    struct stops stops; /* --parts: of the model */
    size_t stop;        /* the step's, in stops; SIZE_MAX: none */
    int64_t number;     /* of its part or share */
    const char *states; /* a file that it goes on from and that others may
                         * remove; NULL: none */
    char T[STAGE_DIR], C[STAGE_DIR], S[STAGE_DIR], U[STAGE_DIR], P[STAGE_DIR];
    struct job_words grid, solve;
    char threads[WORD], memory[WORD], propagate[OPT_WORD], counts[6][WORD];
    char path[6][PATH_ROOM], called[256 + 8];
    char report[32], ledger[32], along[32]; /* "": none */
    char **text;                            /* of stage_text() */
    size_t texts;
    struct pipes p;
};

/* to = "DIR/NAME"; "DIR/NAME-LAYER.fts"; returned. */
const char *stage_path(char to[PATH_ROOM], const char *dir, const char *name);
const char *stage_layer_path(char to[PATH_ROOM], const char *dir,
                             const char *name, int64_t layer);
/* A formatted text that lives as long as s; "" without memory, which no tool
 * takes for a path. */
const char *stage_text(struct stage *s, const char *fmt, ...) PRINTF(2, 3);
void stage_release(struct stage *s);

struct command *stage_tool(struct stage *s, const char *name);
/* One whose output depends on the device: it must be the run's. */
struct command *stage_device_tool(struct stage *s, const char *name);
/* forge-calib, which is told whether kv_b_proj is quantized. */
struct command *stage_calib(struct stage *s);
/* The next tool on the device may read what this one makes there. */
void stage_lend(struct stage *s, struct command *c);
/* --modules and --skip of the run. */
void stage_choice(struct stage *s, struct command *c);
/* forge-weights, which is told the linears that are quantized. */
struct command *stage_weights(struct stage *s);
/* Lend what tools in a ring can: before the first of them.  E_TEMP. */
MUST_CHECK int stage_ring(struct stage *s, struct err *e);
/* forge-hessian, which blends experts' Hessians. */
struct command *stage_hessian(struct stage *s);
/* Both of the pipe that makes F of the outputs (gptq/solve/fisher_descent.h), which lend
 * each other their memory; the caller adds what they read and write.  E_TEMP. */
MUST_CHECK int stage_gradients(struct stage *s, struct command **gradient,
                               struct command **hessian, struct err *e);
/* The file of weights of tokens; it lives as long as s. */
const char *stage_weights_path(struct stage *s);
/* Let it weigh tokens, if the job does. */
void stage_weigh(struct stage *s, struct command *c);
struct command *stage_grid(struct stage *s);
/* forge-pack --rtn, on the grids of job_grid(). */
struct command *stage_round_tool(struct stage *s);
/* Add forge-solve, whose report, a line of JSON per module, is passed on by
 * us.  E_TEMP. */
MUST_CHECK int stage_solve_tool(struct stage *s, struct command **c,
                                struct err *e);
/* Add forge-split, which publishes each layer's report and codes when the layer
 * is complete. */
void stage_split(struct stage *s);
/* The same of tuned codes, without reports. */
void stage_split_tuned(struct stage *s);
/* Tell a tool which share of how many the step is. */
void stage_share_of(struct stage *s, struct command *c);
/* Add forge-weights --join, forge-grid, forge-solve and stage_split(); or, of a share of
 * experts, a forge-split that publishes codes alone, in files called so.  The ring's
 * end.  E_TEMP. */
MUST_CHECK int stage_ring_end(struct stage *s, const char *codes,
                              struct err *e);

/* The outcome rc of the step's pipe.  Where that is E_DATA, and a file of the work
 * directory that a tool of it reads is damaged: *e names the file, and what to do. */
int stage_damaged(const struct stage *s, int rc, struct err *e);

/* Check a checkpoint that a run has made in its work directory by the list of digests
 * in it.  Errors of digests_hold(), with what to do. */
MUST_CHECK int stage_checkpoint(const char *dir, struct err *e);

#endif
