/* workdir.h - reads what a work directory of forge(1) says about its run. */
#ifndef FORGE_WORKDIR_H
#define FORGE_WORKDIR_H

#include "arch/hitmap.h"
#include "report/runstream.h"
#include "work/records.h"
#include "work/settings.h"

/* The stages, each with a subdirectory. */
enum stage { STAGE_TOKENS, STAGE_CALIB, STAGE_SOLVE, STAGES };

struct workdir {
    struct work_settings run;
    struct records records;
    struct hitmaps hits;
    int64_t layers, modules;    /* of the whole run; -1: not known */
    struct tally tokens;        /* of the calibration; 0: not known */
    size_t layers_done;         /* layers with codes */
    double stage_bytes[STAGES]; /* bytes of the files of a stage */
    size_t stage_files[STAGES]; /* their number */
    /* by sizes_read(); 0: not known.  Bytes of the tensors of the model and of
     * OUT, and the number of the model's parameters */
    double bytes_in, bytes_out;
    uint64_t params;
    double seconds, peak_bytes; /* of the last call of forge quantize; NAN */
    char *history;              /* HEAD of the first codes, or NULL */
};

/* Read the directory at path; a run that is not finished has less.
 * workdir_release() *w.  E_NOINPUT: no such directory, or no work directory of
 * forge quantize; E_DATA: a file in it is wrong; E_TEMP. */
MUST_CHECK int workdir_read(struct workdir *w, const char *path, struct err *e);
void workdir_release(struct workdir *w);

/* Add all hit maps of a stream to h.  E_DATA: it has none; E_NOINPUT;
 * E_TEMP. */
MUST_CHECK int hitmaps_read(struct hitmaps *h, const char *path, struct err *e);

#endif
