/* request.h - what `forge quantize` was asked for, and what was found out about
 * it before any work. */
#ifndef FORGE_REQUEST_H
#define FORGE_REQUEST_H

#include "common/cli/progress.h"
#include "forge/job.h"
#include "forge/plan.h"
#include "forge/pruning.h"
#include "work/place.h"

struct request {
    struct job j;
    const char *model, *out, *text; /* as they were given; text NULL: none */
    const char *work;               /* NULL: OUT.work */
    char work_path[PATH_MAX];       /* absolute */
    struct prune_request prune;     /* keep 0: nothing is pruned */
    char pruned[PATH_MAX];          /* what is quantized then */
    int sym, asym, dry_run, quiet, progress;
    double rate; /* GFLOP/s; 0: measured */
    struct plan plan;
    struct place place;
};

/* check.c: all that can be known before any work, in the first second, by the
 * code that will need it later. */
MUST_CHECK int check_paths(struct request *r, struct err *e);
/* What is quantized, which need not be what was given: after pruning. */
MUST_CHECK int check_model(struct request *r, struct err *e);
/* A device that is not there, or no word. */
MUST_CHECK int check_device(const struct job *j, struct err *e);
/* FORGE_LAUNCH is one that forge-run knows.  E_USAGE. */
MUST_CHECK int check_launch(struct err *e);
/* All tools are there, and of this version. */
MUST_CHECK int check_tools(struct err *e);
/* room.c: what it will take. */
struct room {
    double work, out; /* bytes of disk */
    double memory;    /* bytes */
    double seconds[EFFORTS], flops[EFFORTS];
    double rate; /* GFLOP/s of products that were measured, or given */
};
/* measure: run products for half a second where no rate was given. */
void room_plan(const struct request *r, bool measure, struct room *room);
/* E_IO: the disk has no room; E_TEMP: the memory. */
MUST_CHECK int room_check(const struct request *r, const struct room *room,
                          struct err *e);
void room_print(const struct request *r, const struct room *room);

/* making.c: write the settings, run make, say what came of it.  estimate:
 * seconds, 0: none.  What a step failed with; E_TEMP also for make itself; minus
 * 128 less the signal where that stopped us. */
MUST_CHECK int make_run(struct request *r, double estimate, struct err *e);

/* keys.c: hashes of what is read, and what follows from them. */
MUST_CHECK int keys_make(struct request *r, struct err *e);
/* The directory in WORK of the pruned model, by what it is made of. */
MUST_CHECK int keys_pruned(struct request *r, struct err *e);

#endif
