/* context_cuda.cu - a device, its libraries and buffers; the tables of all
 * stages. */
#include "cuda/internal.cuh"

#include "pack/pack_table.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

int cuda_check(cudaError_t rc, const char *call, struct err *e)
{
    if (rc == cudaSuccess)
        return 0;
    if (rc == cudaErrorMemoryAllocation) {
        cudaGetLastError(); /* a failed allocation is no sticky error */
        return err_set(e, E_TEMP, "cuda: out of GPU memory");
    }
    return err_set(e, E_DEVICE, "cuda: %.*s: %s", (int)strcspn(call, "("), call,
                   cudaGetErrorString(rc));
}

int library_failed(struct err *e, const char *lib, int status, const char *call)
{
    /* status 2 is ALLOC_FAILED in both libraries (3 in older cuBLAS) */
    if (status == 2 || status == 3)
        return err_set(e, E_TEMP, "cuda: %s: out of GPU memory", lib);
    return err_set(e, E_DEVICE, "cuda: %s: %.*s: status %d", lib,
                   (int)strcspn(call, "("), call, status);
}

/* Stream-ordered allocation from the device's pool: unlike cudaMalloc() and
 * cudaFree() it does not wait for the GPU. */
int buffer_open(struct cuda_context *c, struct device_buffer *b, size_t n,
                struct err *e)
{
    if (c->limit && (n > c->limit || c->used > c->limit - n))
        return err_set(e, E_TEMP, "cuda: more than --gpu-memory allows");
    CUDA_TRY(cudaMallocAsync(&b->data, n, c->stream));
    b->cap = n;
    c->used += n;
    return 0;
}

void buffer_close(struct cuda_context *c, struct device_buffer *b)
{
    if (b->data)
        cudaFreeAsync(b->data, c->stream);
    c->used -= b->cap;
    b->data = NULL;
    b->cap = 0;
}

int buffer_need(struct cuda_context *c, struct device_buffer *b, size_t n,
                struct err *e)
{
    if (n <= b->cap)
        return 0;
    buffer_close(c, b);
    return buffer_open(c, b, n, e);
}

void context_trim(struct cuda_context *c)
{
    cudaMemPool_t pool;

    for (size_t i = 0; i < ARRAY_LEN(c->buffer); i++)
        buffer_close(c, &c->buffer[i]);
    cudaStreamSynchronize(c->stream);
    if (cudaDeviceGetDefaultMemPool(&pool, c->device) == cudaSuccess)
        cudaMemPoolTrimTo(pool, 0);
    cudaGetLastError();
}

int context_room(struct cuda_context *c, size_t *n, struct err *e)
{
    size_t free_bytes, total;

    CUDA_TRY(cudaMemGetInfo(&free_bytes, &total));
    *n = free_bytes / 2;
    if (c->limit)
        *n = c->limit - c->used < free_bytes ? c->limit - c->used : free_bytes;
    return 0;
}

uint64_t slice_of(const struct cuda_context *c)
{
    return c->limit && c->limit / 8 < SLICE ? c->limit / 8 : SLICE;
}

/* ---- transfers ---- */

/* *piece = the next pinned piece, after the copy that used it has ended. */
static int next_piece(struct cuda_context *c, struct piece **piece,
                      struct err *e)
{
    struct piece *p = *piece = &c->piece[c->next_piece++ % PIECES];

    if (!p->data) {
        CUDA_TRY(cudaEventCreateWithFlags(&p->done, cudaEventDisableTiming));
        CUDA_TRY(cudaHostAlloc(&p->data, PIECE, cudaHostAllocDefault));
        return 0;
    }
    CUDA_TRY(cudaEventSynchronize(p->done));
    return 0;
}

/* A large copy is done by SENDERS threads, each by a piece of its own: one reads or
 * writes the host's memory at 10 GB/s. */
enum { SENDERS = PIECES, LARGE = 6 << 20 };
struct sender {
    struct cuda_context *c;
    char *device, *host;
    size_t n;
    bool up;
    int number;
    bool running;
    pthread_t thread;
    int rc;
    struct err e;
};

static int send_pieces(struct sender *s, struct err *e)
{
    struct cuda_context *c = s->c;
    struct piece *p = &c->piece[s->number];

    CUDA_TRY(cudaSetDevice(c->device));
    for (size_t at = (size_t)s->number * PIECE; at < s->n;
         at += SENDERS * PIECE) {
        size_t k = s->n - at < PIECE ? s->n - at : PIECE;

        CUDA_TRY(cudaEventSynchronize(p->done));
        if (s->up)
            memcpy(p->data, s->host + at, k);
        CUDA_TRY(cudaMemcpyAsync(s->up ? s->device + at : (char *)p->data,
                                 s->up ? (char *)p->data : s->device + at, k,
                                 cudaMemcpyDefault, c->stream));
        CUDA_TRY(cudaEventRecord(p->done, c->stream));
        if (s->up)
            continue;
        CUDA_TRY(cudaEventSynchronize(p->done));
        memcpy(s->host + at, p->data, k);
    }
    return 0;
}

static void *run_sender(void *sender)
{
    struct sender *s = (struct sender *)sender;

    s->rc = send_pieces(s, &s->e);
    return NULL;
}

/* What no thread can be made for is done by this one. */
static int send_large(struct cuda_context *c, void *device, void *host,
                      size_t n, bool up, struct err *e)
{
    struct sender s[SENDERS];
    struct piece *piece;
    int rc;

    for (int i = 0; i < SENDERS; i++)
        if ((rc = next_piece(c, &piece, e)) < 0)
            return rc;
    for (int i = SENDERS - 1; i >= 0; i--) {
        s[i] = { c, (char *)device, (char *)host, n, up, i };
        s[i].running =
            i && !pthread_create(&s[i].thread, NULL, run_sender, &s[i]);
        if (!s[i].running)
            run_sender(&s[i]);
    }
    for (int i = 0; i < SENDERS; i++) {
        if (s[i].running)
            pthread_join(s[i].thread, NULL);
        if (!rc && s[i].rc < 0) {
            rc = s[i].rc;
            *e = s[i].e;
        }
    }
    return rc;
}

int upload(struct cuda_context *c, void *to, const void *from, size_t n,
           struct err *e)
{
    struct piece *p;
    int rc;

    if (n >= LARGE)
        return send_large(c, to, (void *)from, n, true, e);

    if (n <= 65536) { /* up to 64 KiB the driver stages the copy itself */
        CUDA_TRY(
            cudaMemcpyAsync(to, from, n, cudaMemcpyHostToDevice, c->stream));
        return 0;
    }
    for (size_t at = 0; at < n; at += PIECE) {
        size_t k = n - at < PIECE ? n - at : PIECE;

        if ((rc = next_piece(c, &p, e)) < 0)
            return rc;
        memcpy(p->data, (const char *)from + at, k);
        CUDA_TRY(cudaMemcpyAsync((char *)to + at, p->data, k,
                                 cudaMemcpyHostToDevice, c->stream));
        CUDA_TRY(cudaEventRecord(p->done, c->stream));
    }
    return 0;
}

int bring(struct cuda_context *c, void *to, const void *from, size_t n,
          bool there, struct err *e)
{
    if (!there)
        return upload(c, to, from, n, e);
    CUDA_TRY(cudaMemcpyAsync(to, from, n, cudaMemcpyDeviceToDevice, c->stream));
    return 0;
}

int on_device(struct cuda_context *c, const float *from, size_t n,
              struct device_buffer *room, const float **there, struct err *e)
{
    struct cudaPointerAttributes a;
    int rc;

    CUDA_TRY(cudaPointerGetAttributes(&a, from));
    *there = from;
    if (a.type == cudaMemoryTypeDevice)
        return 0;
    if ((rc = buffer_need(c, room, n, e)) < 0 ||
        (rc = upload(c, room->data, from, n, e)) < 0)
        return rc;
    *there = (const float *)room->data;
    return 0;
}

/* Copies are started PIECES - 1 ahead of the one that is waited for. */
int download(struct cuda_context *c, void *to, const void *from, size_t n,
             struct err *e)
{
    struct piece *p[PIECES];
    size_t begun = 0, pieces = (n + PIECE - 1) / PIECE;
    int rc;

    if (n >= LARGE)
        return send_large(c, (void *)from, to, n, false, e);

    for (size_t i = 0; i < pieces; i++) {
        size_t at = i * PIECE;

        for (; begun < pieces && begun < i + PIECES; begun++) {
            size_t a = begun * PIECE;

            if ((rc = next_piece(c, &p[begun % PIECES], e)) < 0)
                return rc;
            CUDA_TRY(cudaMemcpyAsync(p[begun % PIECES]->data,
                                     (const char *)from + a,
                                     n - a < PIECE ? n - a : PIECE,
                                     cudaMemcpyDeviceToHost, c->stream));
            CUDA_TRY(cudaEventRecord(p[begun % PIECES]->done, c->stream));
        }
        CUDA_TRY(cudaEventSynchronize(p[i % PIECES]->done));
        memcpy((char *)to + at, p[i % PIECES]->data,
               n - at < PIECE ? n - at : PIECE);
    }
    return 0;
}

int context_scales(struct cuda_context *c, enum dtype t, const float **scales,
                   struct err *e)
{
    float *host;
    int rc;

    if (t != DT_F32 && t != DT_F16 && t != DT_BF16)
        return err_set(e, E_CONFIG, "%s is no dtype of scales", dtype_name(t));
    *scales = c->scales[t];
    if (*scales)
        return 0;
    host = (float *)mem_alloc(Q_COUNT * sizeof(*host), "cuda", e);
    if (!host)
        return e->code;
    for (uint32_t q = 0; q < Q_COUNT; q++)
        host[q] = quant_grid(q, t).scale;
    rc = cuda_check(cudaMalloc(&c->scales[t], Q_COUNT * sizeof(*host)),
                    "cudaMalloc", e);
    if (!rc)
        rc = upload(c, c->scales[t], host, Q_COUNT * sizeof(*host), e);
    free(host);
    *scales = c->scales[t];
    return rc;
}

static int count_devices(void)
{
    int n = 0;

    if (cudaGetDeviceCount(&n) != cudaSuccess) {
        cudaGetLastError();
        return 0;
    }
    return n;
}

static int start(struct cuda_context *c, int device, struct err *e)
{
    struct cudaDeviceProp p;
    uint64_t keep = UINT64_MAX;
    cudaMemPool_t pool;

    c->device = device;
    CUDA_TRY(cudaSetDevice(device));
    CUDA_TRY(cudaGetDeviceProperties(&p, device));
    if (p.major < 8)
        return err_set(e, E_DEVICE,
                       "cuda: %s has compute capability %d.%d: want 8.0 or "
                       "later",
                       p.name, p.major, p.minor);
    c->processors = p.multiProcessorCount;
    c->shared_memory = (int)p.sharedMemPerBlockOptin;
    CUDA_TRY(cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking));
    CUDA_TRY(cudaStreamCreateWithFlags(&c->fetches, cudaStreamNonBlocking));
    CUDA_TRY(cudaDeviceGetDefaultMemPool(&pool, device));
    CUDA_TRY(
        cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep));
    CUDA_TRY(cudaMalloc(&c->bad, sizeof(*c->bad)));
    return 0;
}

int cuda_open(struct cuda_context **out, int device, uint64_t memory,
              struct err *e)
{
    struct cuda_context *c;
    int rc, n = count_devices();

    *out = NULL;
    if (n == 0)
        return err_set(e, E_DEVICE, "cuda: no usable device");
    if (device < 0 || device >= n)
        return err_set(e, E_DEVICE, "cuda: no device %d: there are %d", device,
                       n);
    c = (struct cuda_context *)mem_zero(1, sizeof(*c), "cuda", e);
    if (!c)
        return e->code;
    c->limit = memory;
    rc = start(c, device, e);
    if (rc < 0) {
        if (c->stream)
            cudaStreamDestroy(c->stream);
        if (c->fetches)
            cudaStreamDestroy(c->fetches);
        free(c);
        return rc;
    }
    *out = c;
    return 0;
}

/* A device has one primary context, whoever makes it. */
void context_begin(int device)
{
    if (cudaSetDevice(device) != cudaSuccess || cudaFree(NULL) != cudaSuccess)
        cudaGetLastError();
}

int context_prepare(struct cuda_context *c, bool factors, struct err *e)
{
    int rc = need_blas(c, e);

    return rc < 0 || !factors ? rc : need_solver(c, e);
}

/* ---- the tables ---- */

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT const struct device_table forge_device_table = {
    DEVICE_TABLE_VERSION,
    count_devices,
    cuda_open,
    context_begin,
    context_prepare,
    loan_block,
    loan_drop,
    loan_handle,
    loan_map,
    loan_fetch,
    loan_settle,
    context_facts,
};
EXPORT const struct hessian_table forge_hessian_table = { HESSIAN_TABLE_VERSION,
                                                          cuda_hessian_open,
                                                          cuda_hessian_add,
                                                          cuda_hessian_finish,
                                                          cuda_hessian_close,
                                                          cuda_cross_open,
                                                          cuda_cross_add,
                                                          cuda_cross_finish,
                                                          cuda_cross_close,
                                                          cuda_hessians,
                                                          cuda_finite,
                                                          cuda_diagonal,
                                                          cuda_blend,
                                                          upload };
EXPORT const struct grid_table forge_grid_table = { GRID_TABLE_VERSION,
                                                    cuda_grid };
EXPORT const struct solve_table forge_solve_table = {
    SOLVE_TABLE_VERSION, cuda_factors_build, cuda_factors_drift,
    cuda_factors_read,   cuda_factors_free,  cuda_solve,
    cuda_solve_refined,  cuda_nearest
};
EXPORT const struct pack_table forge_pack_table = { PACK_TABLE_VERSION,
                                                    cuda_pack, cuda_round };
