/* parts_cuda.cu - what a stream's time went into: events between the parts. */
#include "cuda/internal.cuh"

#include <stdlib.h>

enum { MARKS = 8192 };

struct timeline {
    cudaEvent_t at[MARKS];
    enum cuda_part part[MARKS]; /* that begins there */
    int count, made;
    double sum[CUDA_PARTS];
};

/* Add up what is between the marks so far; the last one begins the next
 * stretch. */
static void settle(struct timeline *t)
{
    if (t->count < 2 ||
        cudaEventSynchronize(t->at[t->count - 1]) != cudaSuccess)
        return;
    for (int i = 0; i + 1 < t->count; i++) {
        float ms = 0;

        cudaEventElapsedTime(&ms, t->at[i], t->at[i + 1]);
        t->sum[t->part[i]] += ms * 1e-3;
    }
    cudaEvent_t last = t->at[t->count - 1];

    t->at[t->count - 1] = t->at[0];
    t->at[0] = last;
    t->part[0] = t->part[t->count - 1];
    t->count = 1;
}

void mark(struct cuda_context *c, enum cuda_part part)
{
    struct timeline *t = c->time;

    if (!t || (t->count && t->part[t->count - 1] == part))
        return;
    if (t->count == MARKS)
        settle(t);
    if (t->count == t->made &&
        cudaEventCreate(&t->at[t->made++]) != cudaSuccess)
        return;
    cudaEventRecord(t->at[t->count], c->stream);
    t->part[t->count++] = part;
}

int cuda_parts(struct cuda_context *c, double seconds[CUDA_PARTS],
               struct err *e)
{
    if (!c->time) {
        c->time = (struct timeline *)mem_zero(1, sizeof(*c->time), "cuda", e);
        if (!c->time)
            return e->code;
    }
    mark(c, CUDA_PARTS); /* any that differs */
    settle(c->time);
    c->time->part[0] = CUDA_WAITING;
    for (int i = 0; i < CUDA_PARTS; i++) {
        seconds[i] = c->time->sum[i];
        c->time->sum[i] = 0;
    }
    CUDA_TRY(cudaGetLastError());
    return 0;
}

void timeline_close(struct timeline *t)
{
    for (int i = 0; t && i < t->made; i++)
        cudaEventDestroy(t->at[i]);
    free(t);
}
