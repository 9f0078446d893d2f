/* provenance.h - where a checkpoint comes from: what the HEADs of the streams
 * and the notes of modules say. */
#ifndef FORGE_PROVENANCE_H
#define FORGE_PROVENANCE_H

#include "common/io/sha256.h"
#include "layout/runfacts.h"

/* Zero-initialise; provenance_release() when done. */
struct provenance {
    char **step; /* "forge-grid --group=128"; in the pipeline's order, so that
                    the order of the inputs does not matter */
    size_t n_steps;
    char *
        before; /* the recipe of the model that this was made of, a line a step,
                     or NULL */
    char text[SHA256_HEX + 1]; /* SHA-256 of the calibration text, or "" */
    int64_t sequences, ids;    /* that were cut of it */
    char effort[32];           /* "" where the stream does not say */
    uint64_t modules, nearest; /* with a note; rounded to nearest */
    uint64_t measured;         /* of those, with losses: their sums follow */
    double loss, loss_rtn;
    char *head; /* private: the last one */
};

/* A stream's HEAD, its JSON text; nothing is done where it is the last one
 * again.  NULL is allowed. */
MUST_CHECK int provenance_head(struct provenance *p, const char *head,
                               struct err *e);
/* The note of a module.  E_DATA: no JSON. */
MUST_CHECK int provenance_note(struct provenance *p, const char *text,
                               size_t len, struct err *e);
/* "forge-tokens --seqlen=512; forge-calib; ...", what was before first, with
 * `between` behind each step but the last; free() it.  NULL with *e. */
MUST_CHECK char *provenance_recipe(const struct provenance *p,
                                   const char *between, struct err *e);
/* The "__metadata__" of safetensors files, JSON: strings alone, "format" is
 * "pt".  facts: NULL where nothing is packed.  free() *json. */
MUST_CHECK int provenance_metadata(const struct provenance *p,
                                   const struct run_facts *facts, char **json,
                                   struct err *e);
void provenance_release(struct provenance *p);

#endif
