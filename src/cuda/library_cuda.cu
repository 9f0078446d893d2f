/* library_cuda.cu - loads cuBLAS and cuSOLVER when a stage first multiplies or
 * factors: loading them and creating their handles is half of a process's
 * start-up time, and forge-grid and forge-pack need neither. */
#include "cuda/internal.cuh"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

struct entry {
    const char *name;
    void **to;
};

/* Look up the functions of lib<name>.so.<version>, the major version that the
 * plug-in was compiled against, beside the plug-in or where the system's loader
 * finds it. */
static int load(const char *name, int version, const struct entry *list, int n,
                struct err *e)
{
    char path[64];
    void *so;

    snprintf(path, sizeof(path), "lib%s.so.%d", name, version);
    so = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
    if (!so) {
        const char *why = dlerror();

        return err_set(e, E_DEVICE, "cuda: %s", why ? why : path);
    }
    for (int i = 0; i < n; i++) {
        *list[i].to = dlsym(so, list[i].name);
        if (!*list[i].to)
            return err_set(e, E_DEVICE, "cuda: %s has no %s", path,
                           list[i].name);
    }
    return 0;
}

/* Append ", TITLE 12.9.1" to the stamp. */
static int add_version(struct device_facts *f, const char *title,
                       const char *name, int version, const char *property,
                       struct err *e)
{
    decltype(&cublasGetProperty) get; /* cuSOLVER's is alike */
    const struct entry list[] = { { property, (void **)&get } };
    size_t n = strlen(f->stamp);
    int v[3];
    int rc = load(name, version, list, 1, e);

    if (rc < 0)
        return rc;
    if (get(MAJOR_VERSION, &v[0]) || get(MINOR_VERSION, &v[1]) ||
        get(PATCH_LEVEL, &v[2]))
        return err_set(e, E_DEVICE, "cuda: %s has no version", title);
    snprintf(f->stamp + n, sizeof(f->stamp) - n, ", %s %d.%d.%d", title, v[0],
             v[1], v[2]);
    return 0;
}

int context_facts(struct cuda_context *c, bool factors, struct device_facts *f,
                  struct err *e)
{
    struct cudaDeviceProp p;
    size_t room, free_bytes, total;
    int rc;

    CUDA_TRY(cudaGetDeviceProperties(&p, c->device));
    memset(f, 0, sizeof(*f));
    snprintf(f->stamp, sizeof(f->stamp), "%.128s", p.name);
    CUDA_TRY(cudaMemGetInfo(&free_bytes, &total));
    f->memory = total;
    f->free = free_bytes;
    if ((rc = context_room(c, &room, e)) < 0 ||
        (rc = add_version(f, "cuBLAS", "cublas", CUBLAS_VER_MAJOR,
                          "cublasGetProperty", e)) < 0)
        return rc;
    f->room = room;
    return factors ? add_version(f, "cuSOLVER", "cusolver", CUSOLVER_VER_MAJOR,
                                 "cusolverGetProperty", e) :
                     0;
}

int need_blas(struct cuda_context *c, struct err *e)
{
    struct cuda_blas *b = &c->blas;
    const struct entry list[] = {
        { "cublasCreate_v2", (void **)&b->create },
        { "cublasSetStream_v2", (void **)&b->set_stream },
        { "cublasGemmEx", (void **)&b->gemm },
        { "cublasGemmStridedBatchedEx", (void **)&b->gemm_batched },
        { "cublasStrsm_v2", (void **)&b->trsm },
    };
    int rc;

    if (b->handle)
        return 0;
    rc = load("cublas", CUBLAS_VER_MAJOR, list, ARRAY_LEN(list), e);
    if (rc < 0)
        return rc;
    BLAS_TRY(b->create(&b->handle));
    BLAS_TRY(b->set_stream(b->handle, c->stream));
    return 0;
}

int need_solver(struct cuda_context *c, struct err *e)
{
    struct cuda_solver *s = &c->solver;
    const struct entry list[] = {
        { "cusolverDnCreate", (void **)&s->create },
        { "cusolverDnSetStream", (void **)&s->set_stream },
        { "cusolverDnSpotrf_bufferSize", (void **)&s->potrf_room },
        { "cusolverDnSpotrf", (void **)&s->potrf },
    };
    int rc;

    if (s->handle)
        return 0;
    rc = load("cusolver", CUSOLVER_VER_MAJOR, list, ARRAY_LEN(list), e);
    if (rc < 0)
        return rc;
    SOLVER_TRY(s->create(&s->handle));
    SOLVER_TRY(s->set_stream(s->handle, c->stream));
    return 0;
}
