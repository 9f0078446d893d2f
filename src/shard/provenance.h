/* provenance.h - the history of a checkpoint, collected from the HEADs of
 * streams and the notes of modules: for the card and the safetensors
 * metadata. */
#ifndef FORGE_PROVENANCE_H
#define FORGE_PROVENANCE_H

#include "checkpoint/made.h"
#include "layout/runfacts.h"
#include "work/textnote.h"

/* Zero-initialise; provenance_release() when done. */
struct provenance {
    char **step; /* [n_steps] "forge-grid --group=128", in the pipeline's order,
                    independent of the order of the inputs */
    size_t n_steps;
    char *before; /* recipe of the source model (card_recipe()), one step per
                     line; or NULL; owned */
    struct made
        made; /* of codes that came out of a 4-bit checkpoint; its text is
                         `text`, where no other is known */
    struct text_note text;     /* of the calibration text */
    char effort[32];           /* "": unknown */
    uint64_t modules, nearest; /* with a note; of them rounded to nearest */
    uint64_t measured;         /* of them with losses, whose sums follow */
    double loss, loss_rtn;
    char *head; /* private: the last HEAD */
};

/* Add a stream's HEAD, its JSON text.  The same text as in the last call, or
 * NULL, changes nothing.  E_DATA, E_TEMP. */
MUST_CHECK int provenance_head(struct provenance *p, const char *head,
                               struct err *e);
/* Add a module's note.  E_DATA: no JSON; E_TEMP. */
MUST_CHECK int provenance_note(struct provenance *p, const char *text,
                               size_t len, struct err *e);
/* The recipe, "forge-tokens --seqlen=512; forge-calib; ...": p->before, or that of
 * p->made, then the steps, separated by `between`; free() it.  NULL with *e. */
MUST_CHECK char *provenance_recipe(const struct provenance *p,
                                   const char *between, struct err *e);
/* *json = the "__metadata__" object of safetensors files: values are strings,
 * "format" is "pt".  facts NULL: nothing is packed.  free() *json. */
MUST_CHECK int provenance_metadata(const struct provenance *p,
                                   const struct run_facts *facts, char **json,
                                   struct err *e);
void provenance_release(struct provenance *p);

#endif
