/* report.h - prints forge-eval's results. */
#ifndef FORGE_REPORT_H
#define FORGE_REPORT_H

#include <stdio.h>

#include "eval/score.h"
#include "eval/similarity.h"

/* What was evaluated on what. */
struct report_subject {
    const char *original, *other;
    const char *dtype;  /* computed in: "f32" */
    const char *text;   /* what the text is called, or NULL */
    const char *sha256; /* of the text; "": not known */
    size_t sequences;
    size_t seqlen; /* tokens of the longest sequence */
    bool states;   /* hidden states were compared, not predictions */
};

struct report {
    const struct report_subject *of;
    int64_t layer; /* --by-layer: the other's last layer; -1: the whole model */
    struct score_result r;
    struct similarity_result s; /* instead of r, if of->states */
};

/* JSON objects of p[n], one a line; E_TEMP, E_IO. */
MUST_CHECK int report_json(FILE *out, const struct report *p, size_t n,
                           struct err *e);
/* The same as the file `path`; E_CREATE, too. */
MUST_CHECK int report_file(const char *path, const struct report *p, size_t n,
                           struct err *e);
/* A table of names and values; E_IO. */
MUST_CHECK int report_table(FILE *out, const struct report *p, struct err *e);
/* A table of p[n] with --by-layer, one row per layer; E_IO. */
MUST_CHECK int report_rows(FILE *out, const struct report *p, size_t n,
                           struct err *e);

#endif
