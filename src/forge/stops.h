/* stops.h - where a run in parts (forge quantize --parts) stops for codes: the
 * points of all layers whose inputs are read by linears that are quantized, in the
 * order of the forward pass. */
#ifndef FORGE_STOPS_H
#define FORGE_STOPS_H

#include "arch/config.h"
#include "forge/job.h"

enum { STOP_POINT = 16, STOP_FILE = 64 };

struct stop {
    int64_t layer;
    char point[STOP_POINT]; /* of forge-calib --until; "all" where layers do not
                             * wait for codes (--propagate original) */
    int64_t shares; /* in which its modules are solved: at most --parts */
    int64_t spread; /* in the first of how many the rows of linears that are no
                       * experts' are: stop_rows() */
    int64_t
        pieces; /* in which the moments of all parts are merged before shares read
                     * them: --parts; 0: each share merges them */
    uint64_t moments; /* bytes of moments of a part of the tokens */
    uint64_t
        by_rows; /* of these: of cross moments with outputs of linears, of which a share
                       * reads those of its rows */
    uint64_t rows; /* bytes of states or rows that experts' shares read, of all
                       * tokens */
    uint64_t outputs; /* bytes of experts' outputs, of all tokens */
    uint64_t codes;   /* bytes of its modules' codes */
    uint64_t
        whole; /* bytes of the moments of each of its inputs, also experts' */
    /* Operations, as of struct plan.  A token's, in both streams: through the stop's
     * modules, in moments that a part sums, in those that a share sums. */
    double forward, sums, share_sums;
    double factor, solve;     /* in each share; in all shares together */
    double solve_modules;     /* of `solve`: of linears that are no experts' */
    double expert_factors;    /* of `solve`: the factors of experts' Hessians */
    int64_t modules, experts; /* numbers of such linears, and of experts */
    int64_t units;    /* tiles of 48 rows of such linears, or whole ones */
    uint64_t weights; /* bytes of bf16 of both streams */
    /* Of `forward` and `weights`: of experts, whose operations are those of three passes:
     * the model's, the reference's, and the checkpoint's over the tokens that the model
     * routes. */
    double expert_forward;
    uint64_t expert_weights;
};

struct stops {
    struct stop *stop;
    size_t n;
};

/* to = the name of a file of a stop, as pipeline.mk has it: moments and states of part
 * `number`, codes and experts' outputs of that share, merged moments of that piece. */
enum stop_file {
    STOP_MOMENTS,
    STOP_STATES,
    STOP_CODES,
    STOP_OUTPUTS,
    STOP_MERGED
};
const char *stop_file_name(const struct stop *s, enum stop_file which,
                           int64_t number, char to[STOP_FILE]);

/* Whether all rows of a linear are solved together: those that have an F
 * (gptq/solve/fisher_descent.h), and on a GPU, whose sums depend on their number. */
bool stop_keeps_whole(const struct job *j, const struct linear *l);
/* The input class whose stop it is where linears that read `in` are solved: its own, and
 * of an expert's gate and up that of its down. */
enum input_class stop_of(enum input_class in);
/* Whether a share of this stop solves whole experts, from states that parts publish. */
bool stop_of_experts(const struct stop *s);
/* A stop's point: a name of forge-calib --until. */
const char *stop_point(enum input_class in);

/* Errors of model_config_read(). */
MUST_CHECK int stops_list(struct stops *s, const struct job *j, struct err *e);
void stops_release(struct stops *s);
/* Bytes that the parts, pieces and shares of a layer write into the work directory, states
 * aside: of the layer that takes most.  *whole: those of its codes, and of the moments
 * of its inputs. */
uint64_t stops_layer_bytes(const struct stops *s, int64_t parts,
                           uint64_t *whole);
/* Of these, what stays until the next layer is done: for experts' stops. */
uint64_t stops_kept_bytes(const struct stops *s);
/* Steps of parts, of shares, and of pieces that are merged, of the layer that has most. */
void stops_layer_steps(const struct stops *s, int64_t parts, int64_t steps[3]);
/* The index of the stop of this layer and point; s->n: there is none. */
size_t stops_find(const struct stops *s, int64_t layer, const char *point);

#endif
