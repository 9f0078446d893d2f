/* request.h - a call of forge quantize: its arguments, and what is checked and
 * planned before any work. */
#ifndef FORGE_REQUEST_H
#define FORGE_REQUEST_H

#include "common/cli/progress.h"
#include "forge/gpu.h"
#include "forge/job.h"
#include "forge/plan.h"
#include "forge/pruning.h"
#include "work/place.h"

enum { NOT_GIVEN = -1, GROUP_NOT_GIVEN = -2 }; /* an option of struct job */

struct request {
    struct job j;
    const char *model, *out, *text; /* as given; text NULL: none, "-": to be
                                     * read from standard input */
    char found[PATH_MAX];     /* the model's directory, if an id was given */
    const char *work;         /* as given; NULL: OUT.work */
    const char *scratch;      /* as given; NULL: none */
    char work_path[PATH_MAX]; /* absolute path of the work directory */
    struct opt_list texts, modules, skip, grids; /* as given */
    struct prune_request prune;                  /* keep 0: do not prune */
    char pruned[PATH_MAX]; /* the pruned model, which is then quantized */
    int sym, asym, dry_run, quiet, progress;
    double bits; /* --bits, for each weight; 0: --group and --grid say */
    uint64_t shard_size;    /* --shard-size; 0: that of check_model() */
    bool hashed;            /* the weights are: keys.c */
    uint64_t states_memory; /* --states-memory; UINT64_MAX: not given */
    double rate;            /* --rate, GFLOP/s; 0: measure it */
    struct gpu gpu;
    struct plan plan;
    bool fisher[EFFORTS];            /* which efforts solve rows together */
    uint64_t gguf_bytes;             /* of the file of layout gguf */
    double layer_bytes, layer_whole; /* with --parts: stops_layer_bytes() */
    double layer_kept;               /* stops_kept_bytes() */
    int64_t layer_steps[3];          /* and stops_layer_steps() */
    struct place place;
    bool ended; /* make_run() has printed the last JSON event */
};

/* Whether forge-gradient runs: for rows together, or for --bits. */
static inline bool request_gradients(const struct request *r)
{
    return r->j.fisher || r->bits > 0;
}

/* The default effort solves rows together in models of this hidden size at most: for a
 * weight that takes multiply-adds in proportion to the width, where a forward pass takes
 * one for each token. */
enum { FISHER_HIDDEN = 2048 };

/* check.c: checks before any work, within a second, by the code that later uses
 * what is checked. */
/* Resolve and check model, text, OUT and work directory, and set r->j's
 * paths. */
MUST_CHECK int check_paths(struct request *r, struct err *e);
/* Whether --text - was given. */
bool text_piped(const struct request *r);
/* Check the model r->j.model (with --keep: the pruned one), and set r->plan. */
MUST_CHECK int check_model(struct request *r, struct err *e);
/* E_USAGE: FORGE_LAUNCH is not one that forge-run knows, or FORGE_RETRIES no number. */
MUST_CHECK int check_launch(struct err *e);
/* E_NOINPUT: a tool is missing; E_CONFIG: it is of another version. */
MUST_CHECK int check_tools(struct err *e);
/* room.c: the resources that the run needs. */
struct room {
    double work, out; /* bytes of disk: work directory, OUT */
    double passing;   /* of work, what is gone before OUT is begun */
    double scratch;   /* on --scratch of this machine, before OUT is begun */
    /* and of the work directory, if there are so many: files of hidden states to
     * go on from after a kill */
    double resume;
    double memory; /* bytes, without those of states that are files */
    double mapped; /* most pages of such files that stay in memory (region.h) */
    /* of work and memory, states of all tokens */
    double states_disk, states_memory;
    double
        states_kept; /* what forge-calib is allowed, so that some or all of those that
                         * would be in files are in memory */
    /* forge-gradient's part of memory and, its states, of work; 0: not run */
    double gradient, gradient_states;
    double tune, tune_files;                 /* the same of forge-tune */
    double seconds[EFFORTS], flops[EFFORTS]; /* of each effort */
    double rate; /* GFLOP/s of bf16 products, measured or given */
};
/* Estimate *room.  measure: if no rate was given, measure it for half a
 * second. */
void room_plan(const struct request *r, bool measure, struct room *room);
/* E_IO: as room_check_disks(); E_TEMP: not enough memory.  A note where files to go on
 * from have no room. */
MUST_CHECK int room_check(const struct request *r, const struct room *room,
                          struct err *e);
/* room_disk.c: E_IO: not enough free disk space, besides what an earlier run has made; of
 * directories on one disk, for both. */
MUST_CHECK int room_check_disks(const struct request *r,
                                const struct room *room, struct err *e);
/* Say, once, that files to go on from have no room, if that is so. */
void room_note_resume(const struct request *r, const struct room *room);
/* Print the estimate (--dry-run). */
void room_print(const struct request *r, const struct room *room);

/* room_states.c: set room->states_disk and states_memory.  Where r->gpu has the
 * facts of a device, states are there first. */
void room_states(const struct request *r, struct room *room);
/* Whether they are so many that it matters. */
bool room_states_large(const struct request *r);

/* gpu_room.c: the GPU memory that the run needs, after gpu_learn(). */
/* Whether --tune was not given and the effort tunes on a GPU. */
bool tune_open(const struct job *j);
/* Set the steps of --tune, and their sequences, where they were not given. */
void tune_settle(struct request *r);
/* E_TEMP: --device cuda was given, and the device has not enough. */
MUST_CHECK int gpu_room_check(const struct request *r, struct err *e);
/* GPU memory that all tools but forge-calib need at least; and forge-calib for a
 * layer. */
double gpu_room_others(const struct request *r);
double gpu_room_layer(const struct request *r);
/* What forge-calib may take of the GPU in the loop, where the tools beside it are known and
 * leave more than half of it, and a layer; 0: half of what is free. */
double gpu_room_states(const struct request *r);
/* Print what it needs, and what is there (--dry-run). */
void gpu_room_print(const struct request *r);

/* making.c: write the settings, run make, and print the result, and r->ended.  estimate:
 * seconds; 0: none.  0; the E_* of the step that failed; E_TEMP: make itself
 * failed; -(128 + signal): a signal stopped us. */
MUST_CHECK int make_run(struct request *r, double estimate, struct err *e);

/* Whether a run with --parts goes through one pipe on this machine, part after part,
 * rather than in steps: nothing else could run at the same time. */
bool make_in_pipe(const struct job *j);

/* keys.c: hash the inputs, and set r->j's keys. */
MUST_CHECK int keys_make(struct request *r, struct err *e);
/* path = a file in WORK, named by a key of what the rules of --bits depend on. */
MUST_CHECK int keys_bits(struct request *r, char path[PATH_MAX], struct err *e);
/* Set r->pruned: the pruned model's directory in WORK, named by a key of its
 * inputs. */
MUST_CHECK int keys_pruned(struct request *r, struct err *e);

#endif
