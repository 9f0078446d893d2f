/* made.h - what a checkpoint of ours says of how its codes were made, for who stores
 * them otherwise: the __metadata__ of its tensor files, and what is known at the end
 * only, which is in its model card.
 *
 * In HEAD it is an object of the program that wrote the codes:
 *
 *     "made":{"layout":"awq","recipe":"forge-calib\nforge-solve --method=gptq",
 *             "text_sha256":"45a7..","sequences":4,"tokens":256,
 *             "method":"GPTQ; of 28 linears 0 rounded to nearest",
 *             "loss":"0.936 of rounding to nearest (..)"}
 *
 * All of it is text of others, which nothing is decided by: it is cut, and has plain
 * characters (cardtext.h) or is left out. */
#ifndef FORGE_MADE_H
#define FORGE_MADE_H

#include "checkpoint/checkpoint.h"
#include "common/io/json.h"
#include "common/io/sha256.h"

enum { MADE_TEXT = 200, MADE_RECIPE = 64 * 1024 };

/* Zero-initialise; made_release() when done.  "", 0 and NULL: not known. */
struct made {
    char layout[32];                         /* that the codes were in */
    char *recipe;                            /* one step per line */
    char text_sha256[SHA256_HEX + 1];        /* of the calibration text */
    int64_t sequences, tokens;               /* that were cut from it */
    char method[MADE_TEXT], loss[MADE_TEXT]; /* as the card says them */
    char base[MADE_TEXT];                    /* the model; not in HEAD */
};

/* What c says; nothing if its files' metadata are not ours.  E_DATA, E_IO, E_TEMP. */
MUST_CHECK int made_read(struct made *m, struct checkpoint *c, struct err *e);
/* *json = the object for HEAD, free() it; NULL: nothing is known.  As made_read(). */
MUST_CHECK int made_facts(struct checkpoint *c, char **json, struct err *e);
/* Take such an object, unless m has one; v NULL: there is none.  E_TEMP. */
MUST_CHECK int made_take(struct made *m, const struct json *v, struct err *e);
void made_release(struct made *m);

#endif
