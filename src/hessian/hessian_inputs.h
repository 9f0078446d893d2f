/* hessian_inputs.h - reads the input streams of forge-hessian, all at once, and
 * writes what they make: one pass over them. */
#ifndef FORGE_HESSIAN_INPUTS_H
#define FORGE_HESSIAN_INPUTS_H

#include "common/cli/progress.h"
#include "device/ledger.h"
#include "hessian/input_batch.h"

/* The hit map of a layer (arch/hitmap.h), summed over several inputs. */
struct hits {
    struct frame f; /* data: sum */
    float *sum;
};

enum input_state { INPUT_ENDED, INPUT_FRESH, INPUT_READING };

/* For stream_later(): an input, and who reads what it leaves. */
struct leaves {
    struct stream_reader *in;
    struct hessian_set *all;
};

struct hessian_inputs {
    struct stream_reader **in;
    struct leaves *leaves;      /* [n_in] */
    struct input_batch **batch; /* [n_in] */
    enum input_state *state;
    int n_in;
    struct hessian_set *all;
    struct hessian_set_params params;
    struct hits *hits; /* [n_hits] */
    size_t n_hits;
    struct ledger *ledger; /* the caller's, from here on its own */
    bool lent; /* frames have been lent since the last look at their lender */
    /* set by the caller behind hessian_inputs_open() */
    struct stream_writer *out;
    struct progress progress;
};

/* Open n files, or with n = 0 standard input, and the set that r->params asks for,
 * whose n_inputs and ledger are set here.  Errors of stream_open(),
 * hessian_set_open(). */
MUST_CHECK int hessian_inputs_open(struct hessian_inputs *r, char **path, int n,
                                   const char *key, struct err *e);
/* Merge, from n files of moments, what experts' Hessians of r's inputs are blended
 * with.  Behind hessian_inputs_open(); errors of hessian_inputs_run(). */
MUST_CHECK int hessian_inputs_prior(struct hessian_inputs *r, char **path,
                                    int n, const char *key, struct err *e);
/* Read all, and write to r->out.  Errors of hessian_set.h. */
MUST_CHECK int hessian_inputs_run(struct hessian_inputs *r, struct err *e);
void hessian_inputs_close(struct hessian_inputs *r);

#endif
