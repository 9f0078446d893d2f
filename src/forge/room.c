/* room.c - estimates disk space, memory and time of a quantization; see
 * request.h. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "arch/device_bytes.h"
#include "common/cli/units.h"
#include "common/io/memory.h"
#include "common/io/region.h"
#include "common/math/threads.h"
#include "forge/env.h"
#include "forge/rate.h"
#include "forge/request.h"
#include "forge/stops.h"

/* The fraction of the measured operations per second that whole runs reach:
 * doc/lab-notes.md, "Runs and estimates". */
static const double product_share = 0.35, vector_share = 0.6;
/* Start-up time of the programs of a run. */
static const double start_seconds = 0.3;
static const double measured_for = 0.25; /* seconds per measurement, of two */

static double least(double a, double b)
{
    return a < b ? a : b;
}

static double threads_of(const struct job *j)
{
    return j->threads ? (double)j->threads : threads_count();
}

/* forge-gradient, which runs before the layers: of a window of tokens the residual
 * stream before and behind each layer's attention, what stands in front of norms behind,
 * f32 gradients, and twice those that are being written; and what
 * it begins with, of all tokens that have weights. */
static void plan_gradient(const struct request *r, double tokens,
                          struct room *room)
{
    const struct plan *p = &r->plan;
    double row = (double)p->hidden_size * 2, region = REGION_MEMORY, states, x;
    double most = r->bits > 0 ? GRADIENT_TOKENS :
                                (double)effort_fisher_tokens(r->j.effort);
    double window = least(tokens, most);
    int regions = p->norms_behind ? 2 : 1;

    states = 2 * (double)p->layers * window * row;
    x = (job_weighs(&r->j) ? tokens : window) * row;
    room->gradient_states = regions * states + (x > region ? x : 0);
    room->gradient = (32 << 20) + p->gradient_bytes +
                     threads_of(&r->j) * p->gradient_thread_bytes +
                     regions * least(states, region) + least(x, region) +
                     window * (p->adds_scaled ? 6 : 4) * row;
}

/* forge-tune, which runs behind the layers: codes, and v and Adam's moments of all
 * weights that have them; of a layer the gradients, and it in f32, twice; the head; of a
 * batch gradients, routers' logits and choices of all layers, and the residual stream and
 * what o reads, which are in a file beyond REGION_MEMORY. */
static void plan_tune(const struct request *r, struct room *room)
{
    const struct plan *p = &r->plan;
    double row = (double)p->hidden_size * 4, seqlen = (double)r->j.seqlen;
    double batch = (double)r->j.tune_batch * seqlen, region = REGION_MEMORY;
    double states = (3 * (double)p->layers + 1) * batch * row;

    room->tune =
        (double)p->quantized * (12 + 17.0 / 32) +
        3 * 2 * (double)p->layer_bytes + 2 * p->head_flops + batch * 8 * row +
        threads_of(&r->j) * 12 * (1 << 20) +
        batch * (double)p->layers * 4 * (double)(p->routes + 3 * p->top_k) +
        least(states, region);
    room->tune_files = (states > region ? states : 0) +
                       (double)job_tune_sequences(&r->j) * seqlen * 4 +
                       (double)p->quantized * 17 / 32;
}

/* Of all tokens, in both streams, at two points: the files of the last states and of
 * the next. */
static double parts_states(const struct request *r)
{
    const struct plan *p = &r->plan;
    int streams = r->j.propagate == PROPAGATE_BOTH ? 2 : 1;
    double tokens = (double)r->j.sequences * (double)r->j.seqlen;
    double cols = sqrt((double)p->hessian_bytes / 2); /* the widest input's */

    return 2 * tokens * 2 * (streams * 2 * (double)p->row + cols);
}

/* Weights that forge-weights reads ahead (checkpoint/ahead.c): 16 at most, within
 * 512 MiB or three of the largest; 8-bit floats as bf16, which readers without a GPU
 * get. */
static double ahead_bytes(const struct plan *p)
{
    return fmax((double)p->layer_bytes,
                fmin(512 << 20, 16 * (double)p->layer_bytes));
}

/* Of the result.  With --bits the default grid is what the plan knows until the others
 * are chosen. */
static double bytes_out(const struct request *r)
{
    const struct plan *p = &r->plan;
    double bits = 4 + 16.0 / (double)r->j.group;

    return (double)p->bytes_out +
           (r->bits > 0 && !r->j.grids.n ?
                (r->bits - bits) / 8 * (double)p->quantized :
                0);
}

/* Files of hidden states, of one or both streams: the last and the next.  None is
 * written behind the last layer. */
static double hidden_files(const struct request *r, double tokens)
{
    int streams = r->j.propagate == PROPAGATE_BOTH ? 2 : 1;

    return streams * tokens * 2 * (double)r->plan.row *
           least(2, (double)r->plan.layers - 1);
}

/* States that would be in files are in memory, all of them, if they take up to half of
 * what is left, in a loop that runs here; with --states-memory, up to that. */
static void keep_states(const struct request *r, struct room *room)
{
    const double spare = 64 << 20; /* regions grow by steps */
    bool given = r->states_memory != UINT64_MAX, all;
    double most = given ? (double)r->states_memory :
                          (memory_available() - room->memory) / 2;

    if (env_away() || r->j.propagate == PROPAGATE_ORIGINAL ||
        (r->j.parts > 1 && !make_in_pipe(&r->j)) || room->states_disk <= 0 ||
        most <= 0)
        return;
    all = room->states_disk + spare <= most;
    if (!all && !given)
        return;
    room->states_kept = all ? room->states_disk + spare : most;
    room->memory += room->states_kept;
    if (all) {
        room->work -= room->states_disk;
        room->states_disk = 0;
    }
}

/* Memory of --method rtn: linears that are read ahead, and those on their way from tool to
 * tool, but no Hessians (measured: 1.4 to 1.6 layers of Llama's sizes, 0.7 to 0.9 by
 * SEARCH_ABSMAX), and the tools. */
static double rtn_bytes(const struct request *r)
{
    double layers = r->j.search == SEARCH_ABSMAX ? 1 : 2;

    return layers * (double)r->plan.layer_bytes + (64 << 20);
}

/* Of --method gptq: twice the widest Hessian as a square, a layer in f32, a batch of tokens,
 * the packed inputs of a product, and states; weights that are read ahead, codes and
 * Hessians that are lent. */
static double gptq_bytes(const struct request *r, const struct room *room)
{
    const struct plan *p = &r->plan;
    const struct job *j = &r->j;
    double hessian = (double)p->hessian_bytes, cols = sqrt(hessian / 2);
    double moments = cols * (double)p->hidden_size; /* cross moments */
    double bytes = hessian * 4 + (double)p->layer_bytes * 2 +
                   2048.0 * (double)p->state_bytes * 8 +
                   PACKED_ROWS * cols * 2 + room->states_memory +
                   ahead_bytes(p) +
                   p->lent_bytes[j->propagate == PROPAGATE_BOTH];

    /* above EFFORT_FAST: cross moments, in two tools, and each thread's memory
     * for the candidates of its rows (measured: 67 MB at 11,008 inputs) */
    if (j->effort != EFFORT_FAST)
        bytes += 2 * 4 * moments + threads_of(j) * 32 * 4 * 48 * cols;
    if (j->parts > 1) /* sums of parts, in double */
        bytes += hessian * 2 + (j->effort == EFFORT_FAST ? 0 : 8 * moments);
    return bytes;
}

/* Disk space.  The work directory holds codes; the states of all tokens in
 * temporary files; and the hidden states to resume from, which are needed where a
 * step of its own takes them up.  The result is written beside OUT first. */
static void plan_bytes(const struct request *r, struct room *room)
{
    const struct plan *p = &r->plan;
    const struct job *j = &r->j;
    double tokens =
        j->method == METHOD_RTN ? 0 : (double)j->sequences * (double)j->seqlen;

    room_states(r, room);
    if (request_gradients(r))
        plan_gradient(r, tokens, room);
    if (j->search != SEARCH_ABSMAX) /* codes */
        room->work = (double)p->quantized * 17 / 32;
    room->work += room->states_disk;
    if (j->propagate == PROPAGATE_ORIGINAL)
        room->work += hidden_files(r, tokens);
    else
        room->resume = hidden_files(r, tokens);
    /* moments of a layer, experts' outputs of the one before, and states at a point, those
     * before and the next */
    if (j->parts > 1 && !make_in_pipe(&r->j))
        room->work += r->layer_bytes + r->layer_kept +
                      (*j->scratch ? 0 : parts_states(r));
    /* linears come through a pipe, which is a file until their shard is written */
    room->out =
        bytes_out(r) * 2 - (double)p->bytes_out + (double)p->bytes_packed;
    if (j->layout ==
        JOB_GGUF) { /* made of a checkpoint in the work directory */
        room->work += (double)p->bytes_out;
        room->out = (double)r->gguf_bytes;
    }
    if (request_gradients(
            r)) /* F of the outputs, beside forge-gradient's states */
        room->work += room->gradient_states + 8.0 * (double)p->layers *
                                                  (double)p->hidden_size *
                                                  (double)p->hidden_size;
    if (job_weighs(j))
        room->work += tokens * 4.0 * (double)p->weighers;
    if (j->propagate == PROPAGATE_ORIGINAL && tokens > 0)
        room->work += (double)p->layers * (double)p->layer_hessian_bytes;
    room->memory = j->method == METHOD_RTN ? rtn_bytes(r) : gptq_bytes(r, room);
    room->memory = fmax(room->memory, room->gradient);
    keep_states(r, room);
    room->mapped = fmin(room->states_disk, (double)region_share());
    if (j->tune) {
        plan_tune(r, room);
        room->memory = fmax(room->memory, room->tune);
        room->work += room->tune_files;
    }
}

/* Of the work directory, what is gone before OUT is begun, which a loop writes beside its
 * layers.  Codes stay, and what --tune adds. */
static double passing_bytes(const struct request *r, const struct room *room)
{
    const struct job *j = &r->j;
    bool original = j->propagate == PROPAGATE_ORIGINAL;
    bool steps = j->parts > 1 && !make_in_pipe(j);
    double tokens = (double)j->sequences * (double)j->seqlen;
    double bytes = room->gradient_states;

    if (j->method == METHOD_RTN)
        return 0;
    if (!original && !steps && !j->tune && j->layout != JOB_GGUF)
        return bytes;
    if (original)
        bytes += hidden_files(r, tokens);
    if (steps)
        bytes += r->layer_bytes + r->layer_kept +
                 (*j->scratch ? 0 : parts_states(r));
    return bytes + room->states_disk;
}

static void plan_flops(const struct request *r, int effort, double *products,
                       double *vectors)
{
    const struct plan *p = &r->plan;
    const struct job *j = &r->j;
    double tokens = (double)j->sequences * (double)j->seqlen;
    bool both = effort == j->effort ?
                    j->propagate == PROPAGATE_BOTH :
                    effort != EFFORT_FAST && j->propagate != PROPAGATE_ORIGINAL;

    *products = *vectors = 0;
    if (j->method == METHOD_RTN)
        return;
    *products = tokens * (p->token_flops + (both ? p->second_flops : 0));
    *vectors = p->solve_flops[effort] + (both ? p->target_flops[effort] : 0);
    if (r->fisher[effort]) { /* forward, and backward twice that */
        bool all = effort == EFFORT_BEST && tokens <= WEIGHTED_TOKENS;
        double most = (double)effort_fisher_tokens(effort);

        *products += (3 * p->token_flops + 2 * p->head_flops) *
                     (all ? tokens : least(tokens, most));
        *vectors += p->fisher_flops[effort];
    }
    /* tokens are drawn; of each of a step the original's forward pass, the codes', theirs
     * again in the backward pass, and that; the head for all but one of these */
    if (j->tune && effort == j->effort)
        *products +=
            (double)j->seqlen *
            ((double)job_tune_sequences(j) * (p->token_flops + p->head_flops) +
             (double)(j->tune_batch * j->tune) *
                 (5 * p->token_flops + 3 * p->head_flops));
}

void room_plan(const struct request *r, bool measure, struct room *room)
{
    double product_rate = r->rate * 1e9, vector_rate = r->rate * 1e9;

    memset(room, 0, sizeof(*room));
    plan_bytes(r, room);
    room->passing = passing_bytes(r, room);
    if (r->j.parts > 1 && *r->j.scratch && !make_in_pipe(&r->j) && !env_away())
        room->scratch = parts_states(r);
    if (r->rate <= 0 && measure) {
        product_rate = rate_products(measured_for) * product_share;
        vector_rate = rate_vectors(measured_for) * vector_share;
    }
    room->rate = product_rate / 1e9;
    for (int i = 0; i < EFFORTS; i++) {
        double products, vectors;

        plan_flops(r, i, &products, &vectors);
        room->flops[i] = products + vectors;
        if (product_rate > 0)
            room->seconds[i] =
                start_seconds + products / product_rate + vectors / vector_rate;
    }
}

int room_check(const struct request *r, const struct room *room, struct err *e)
{
    double memory = memory_available();
    char a[UNIT_TEXT], b[UNIT_TEXT];

    if (room_check_disks(r, room, e) < 0)
        return e->code;
    if (memory > 0 && room->memory > memory)
        return err_set(e, E_TEMP, "needs %s of memory, %s are available",
                       size_text(a, room->memory), size_text(b, memory));
    room_note_resume(r, room);
    return 0;
}

/* ---- --dry-run ---- */

static void print_efforts(const struct request *r, const struct room *room)
{
    char flops[UNIT_TEXT], span[UNIT_TEXT], effort[OPT_WORD];

    printf("work to do, by --effort\n");
    for (int i = 0; i < EFFORTS; i++)
        printf("  %-10s %sFLOP, about %s%s\n",
               opt_word(EFFORT_WORDS, i, effort),
               count_text(flops, room->flops[i]),
               span_text(span, room->seconds[i]),
               i == r->j.effort ? " (this run)" : "");
    if (r->rate > 0)
        printf("  at %.0f GFLOP/s\n", room->rate);
    else
        printf("  on the CPU, at the %.0f GFLOP/s that runs are expected to "
               "reach here, by a measurement just now\n",
               room->rate);
}

static void print_parts(const struct request *r)
{
    const struct job *j = &r->j;
    const int64_t *step = r->layer_steps;
    int streams = j->propagate == PROPAGATE_BOTH ? 2 : 1;
    double entering = (double)j->sequences * (double)j->seqlen * streams * 2 *
                      (double)r->plan.row;
    char a[UNIT_TEXT], b[UNIT_TEXT];

    printf("parts        %lld", (long long)j->parts);
    if (make_in_pipe(j)) {
        printf(", one after the other in one pipe (--jobs 1)\n");
        return;
    }
    printf("; a layer writes up to %s into the work directory: moments of each "
           "part, experts' inputs and outputs, codes (its codes and the "
           "moments of every "
           "input: %s)\n",
           size_text(a, r->layer_bytes), size_text(b, r->layer_whole));
    printf("steps        %lld in a layer: %lld of parts, ",
           (long long)(step[0] + step[1] + step[2]), (long long)step[0]);
    if (step[2])
        printf("%lld that merge, ", (long long)step[2]);
    printf("%lld of shares\n", (long long)step[1]);
    printf("states       %s %s", size_text(a, parts_states(r)),
           *j->scratch ? "on scratch" : "in the work directory");
    if (*j->scratch)
        printf("; in the work directory %s in every eighth layer",
               size_text(b, entering));
    putchar('\n');
}

static const char *weights_text(const struct job *j)
{
    return job_weighs(j) ? " with weights by their gradients" :
           j->fisher && j->effort == EFFORT_BEST ?
                           " without weights, which up to 131072 have" :
                           "";
}

void room_print(const struct request *r, const struct room *room)
{
    const struct plan *p = &r->plan;
    const struct job *j = &r->j;
    char a[UNIT_TEXT], b[UNIT_TEXT], way[OPT_WORD];

    printf("model        %s: %lld layers, %sparameters, %s\n", r->model,
           (long long)p->layers, count_text(a, (double)p->parameters),
           size_text(b, (double)p->bytes_in));
    printf(
        "quantize     %lld linears with %sparameters: method %s, group %lld, "
        "%s, layout %s\n",
        (long long)p->modules, count_text(a, (double)p->quantized),
        j->method == METHOD_RTN ? "rtn" : "gptq", (long long)job_group_word(j),
        j->symmetric ? "symmetric" : "asymmetric", job_layout_name(j));
    if (j->method == METHOD_GPTQ)
        printf("calibration  %lld tokens%s, propagate %s\n",
               (long long)(j->sequences * j->seqlen), weights_text(j),
               opt_word(PROPAGATE_WORDS, j->propagate, way));
    if (j->parts > 1)
        print_parts(r);
    printf("output       %s: about %s\n", r->out,
           size_text(a, j->layout == JOB_GGUF ? (double)r->gguf_bytes :
                                                bytes_out(r)));
    if (r->bits > 0)
        printf(
            "bits         %g for each weight: grids are chosen at the start\n",
            r->bits);
    printf("work         %s: up to %s", r->work_path, size_text(a, room->work));
    if (room->states_disk > 0)
        printf(", of it %s for states", size_text(a, room->states_disk));
    if (room->resume > 0)
        printf("; %s more for hidden states to go on from, if there is room",
               size_text(a, room->resume));
    putchar('\n');
    printf("memory       about %s", size_text(a, room->memory));
    if (j->method == METHOD_GPTQ)
        printf(", of it %s for the widest Hessian",
               size_text(b, (double)p->hessian_bytes * 2));
    if (room->mapped > 0)
        printf("; and the system keeps up to %s of states in memory while "
               "there is enough",
               size_text(a, room->mapped));
    putchar('\n');
    if (request_gradients(r))
        printf("gradients    before that, about %s of memory; of work %s\n",
               size_text(a, room->gradient),
               size_text(b, room->gradient_states));
    if (j->tune)
        printf(
            "tuning       behind that, %lld steps of %lld sequences: about %s "
            "of memory; of work %s\n",
            (long long)j->tune, (long long)j->tune_batch,
            size_text(a, room->tune), size_text(b, room->tune_files));
    if (j->method == METHOD_GPTQ && strcmp(j->device, "cpu") != 0)
        gpu_room_print(r);
    if (j->method == METHOD_GPTQ)
        print_efforts(r, room);
}
