/* workdir.h - what a work directory of forge(1) knows about its run. */
#ifndef FORGE_WORKDIR_H
#define FORGE_WORKDIR_H

#include "arch/hitmap.h"
#include "report/runstream.h"
#include "work/records.h"
#include "work/settings.h"

/* The directories of the run's stages. */
enum stage { STAGE_TOKENS, STAGE_CALIB, STAGE_SOLVE, STAGES };

struct workdir {
    struct work_settings run;
    struct records records;
    struct hitmaps hits;
    int64_t layers, modules;    /* that the run has; -1: it does not say */
    struct tally tokens;        /* calibrated on; 0: not there */
    size_t layers_done;         /* with codes */
    double stage_bytes[STAGES]; /* of the files that are there */
    size_t stage_files[STAGES];
    double bytes_in, bytes_out; /* of the checkpoints' tensors; 0: not there */
    double seconds, peak_bytes; /* of the last call; NAN */
    char *history;              /* HEAD of the first codes, or NULL */
};

/* Read all that is there: a run that is not finished has less.  E_NOINPUT: no
 * such directory, or none of forge quantize; E_DATA: a file in it is wrong. */
MUST_CHECK int workdir_read(struct workdir *w, const char *path, struct err *e);
void workdir_release(struct workdir *w);

/* All hit maps of a stream; E_DATA when it has none. */
MUST_CHECK int hitmaps_read(struct hitmaps *h, const char *path, struct err *e);

#endif
