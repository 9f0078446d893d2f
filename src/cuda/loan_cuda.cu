/* loan_cuda.cu - memory that other processes map (CUDA IPC).  Handles exist for what
 * cudaMalloc() gives, not for the pool that buffers are taken from. */
#include "cuda/internal.cuh"

#include <stdlib.h>
#include <string.h>

static_assert(sizeof(cudaIpcMemHandle_t) == DEVICE_HANDLE, "a handle fits");

struct block {
    struct block *next;
    void *p;
    size_t n;
};
static struct block *blocks;

int loan_block(struct cuda_context *c, void **p, size_t n, struct err *e)
{
    struct block *b;
    int rc;

    *p = NULL;
    if (c->limit && (n > c->limit || c->used > c->limit - n))
        return err_set(e, E_TEMP, "cuda: more than --gpu-memory allows");
    b = (struct block *)mem_zero(1, sizeof(*b), "cuda", e);
    if (!b)
        return e->code;
    rc = cuda_check(cudaMalloc(&b->p, n), "cudaMalloc", e);
    if (rc >= 0)
        rc = cuda_check(cudaMemsetAsync(b->p, 0, n, c->stream),
                        "cudaMemsetAsync", e);
    if (rc < 0) {
        cudaFree(b->p);
        free(b);
        return rc;
    }
    b->n = n;
    b->next = blocks;
    blocks = b;
    c->used += n;
    *p = b->p;
    return 0;
}

void loan_drop(struct cuda_context *c, void *p)
{
    struct block **at = &blocks, *b;

    while (p && *at && (*at)->p != p)
        at = &(*at)->next;
    b = *at;
    if (!p || !b)
        return;
    *at = b->next;
    c->used -= b->n;
    cudaFree(p); /* waits for what was begun */
    free(b);
}

int loan_handle(struct cuda_context *c, const void *block,
                uint8_t handle[DEVICE_HANDLE], struct err *e)
{
    cudaIpcMemHandle_t h;

    (void)c;
    CUDA_TRY(cudaIpcGetMemHandle(&h, (void *)block));
    memcpy(handle, &h, sizeof(h));
    return 0;
}

int loan_map(struct cuda_context *c, const uint8_t handle[DEVICE_HANDLE],
             const void **p, struct err *e)
{
    cudaIpcMemHandle_t h;
    void *q;

    (void)c;
    memcpy(&h, handle, sizeof(h));
    CUDA_TRY(cudaIpcOpenMemHandle(&q, h, cudaIpcMemLazyEnablePeerAccess));
    *p = q;
    return 0;
}

/* Not on the context's stream: a thread that writes hidden states calls it while the
 * context works. */
int loan_fetch(struct cuda_context *c, void *host, const void *from, size_t n,
               struct err *e)
{
    CUDA_TRY(cudaSetDevice(c->device)); /* of this thread */
    CUDA_TRY(cudaMemcpyAsync(host, from, n, cudaMemcpyDefault, c->fetches));
    CUDA_TRY(cudaStreamSynchronize(c->fetches));
    return 0;
}

int loan_settle(struct cuda_context *c, struct err *e)
{
    CUDA_TRY(cudaSetDevice(c->device));
    CUDA_TRY(cudaStreamSynchronize(c->stream));
    return 0;
}
