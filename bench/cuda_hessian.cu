/* cuda_hessian.cu - the Hessian's part of cuda_bench: one large input by cuBLAS,
 * in chunks and panels of several sizes, and the experts of a layer. */
#include "cuda_bench.cuh"

/* ---- Hessian ---- */

static double relative_error(const float *got, const float *want, uint64_t n)
{
    float *a = (float *)malloc(n * n * 4), *b = (float *)malloc(n * n * 4);
    double wrong = 0, all = 0;

    MUSTC(cudaMemcpy(a, got, n * n * 4, cudaMemcpyDeviceToHost));
    MUSTC(cudaMemcpy(b, want, n * n * 4, cudaMemcpyDeviceToHost));
    for (uint64_t j = 0; j < n; j++)
        for (uint64_t i = j; i < n; i++) {
            double d = (double)a[j * n + i] - b[j * n + i];

            wrong += d * d;
            all += (double)b[j * n + i] * b[j * n + i];
        }
    free(a);
    free(b);
    return sqrt(wrong / all);
}

static void hessian(uint64_t cols, uint64_t tokens)
{
    static const uint64_t panels[] = { 256, 512, 896, 1024, 1792 };
    static const uint64_t chunks[] = { 4096, 16384, 65536 };
    __nv_bfloat16 *x = random_bf16(tokens * cols, 1);
    float *h = (float *)device(cols * cols * 4), *f;
    float *want = (float *)device(cols * cols * 4);
    const float one = 1, zero = 0;
    double square, peer, flops = (double)tokens * cols * (cols + 1);

    f = (float *)device(tokens * cols * 4);
    bench_f32_kernel<<<4096, 256, 0, c->stream>>>(f, 1, 1, 0);
    square = timed(
        [&] {
            MUSTB(cublasGemmEx(c->blas.handle, CUBLAS_OP_N, CUBLAS_OP_T,
                               (int)cols, (int)cols, (int)tokens, &one, x,
                               CUDA_R_16BF, (int)cols, x, CUDA_R_16BF,
                               (int)cols, &zero, want, CUDA_R_32F, (int)cols,
                               CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
        },
        5);
    bench_f32_kernel<<<4096, 256, 0, c->stream>>>(f, tokens * cols, 1, 1);
    peer = timed(
        [&] {
            MUSTB(cublasSgemm(c->blas.handle, CUBLAS_OP_N, CUBLAS_OP_T,
                              (int)cols, (int)cols, (int)tokens, &one, f,
                              (int)cols, f, (int)cols, &zero, h, (int)cols));
        },
        3);
    printf("hessian, %llu inputs, %llu tokens: whole square bf16 %.3f ms, f32 "
           "%.2f ms\n",
           (unsigned long long)cols, (unsigned long long)tokens, square, peer);
    for (uint64_t chunk : chunks)
        for (uint64_t panel : panels) {
            double ms;

            MUSTC(cudaMemset(h, 0xa5, cols * cols * 4));
            ms = timed(
                [&] {
                    for (uint64_t t = 0; t < tokens; t += chunk)
                        MUST(hessian_panels(c, x + t * cols, chunk, cols, panel,
                                            t == 0, h, &why));
                },
                5);
            printf("  chunk %5llu panel %4llu: %7.3f ms, %4.0f TFLOP/s of the "
                   "triangle, %4.1fx f32; error %.1e of the square's\n",
                   (unsigned long long)chunk, (unsigned long long)panel, ms,
                   flops / ms / 1e9, peer / ms, relative_error(h, want, cols));
        }
    MUSTC(cudaFree(f));
    MUSTC(cudaFree(x));
    MUSTC(cudaFree(h));
    MUSTC(cudaFree(want));
}

/* ---- the Hessians of a layer's experts ---- */

/* n inputs with 1/4 to 7/4 of `mean` tokens: packed triangles in one launch,
 * and by cuBLAS one after the other (squares, without the packing). */
static void ragged(uint64_t cols, int n, uint64_t mean)
{
    uint64_t elements = cols * (cols + 1) / 2, all = 0;
    struct cuda_tokens *t = (struct cuda_tokens *)malloc(n * sizeof(*t));
    float *square = (float *)device(cols * cols * 4);
    float *h = (float *)device(n * elements * 4), *got;
    __nv_bfloat16 *x;
    double ms, peer, wrong = 0, size = 0, flops;

    for (int i = 0; i < n; i++) {
        t[i].tokens = mean / 4 + (uint64_t)i * 2654435761u % (mean * 3 / 2);
        t[i].h = h + i * elements;
        all += t[i].tokens;
    }
    x = random_bf16(all * cols, 1);
    all = 0;
    for (int i = 0; i < n; i++) {
        t[i].x = x + all * cols;
        all += t[i].tokens;
    }
    flops = (double)all * cols * (cols + 1);
    ms = timed([&] { MUST(ragged_device(c, cols, t, n, &why)); }, 5);
    peer = timed(
        [&] {
            for (int i = 0; i < n; i++)
                MUST(hessian_panels(c, t[i].x, t[i].tokens, cols, 1024, true,
                                    square, &why));
        },
        5);
    /* square holds the last one's */
    got = (float *)malloc((elements + cols * cols) * 4);
    MUSTC(cudaMemcpy(got, t[n - 1].h, elements * 4, cudaMemcpyDeviceToHost));
    MUSTC(cudaMemcpy(got + elements, square, cols * cols * 4,
                     cudaMemcpyDeviceToHost));
    for (uint64_t i = 0; i < cols; i++)
        for (uint64_t j = 0; j <= i; j++) {
            double want = got[elements + j * cols + i] * 2.0 / t[n - 1].tokens;
            double d = got[i * (i + 1) / 2 + j] - want;

            wrong += d * d;
            size += want * want;
        }
    wrong = sqrt(wrong / size);
    must(wrong < 1e-3 ? 0 : err_set(&why, E_BUG, "error %g", wrong), "ragged");
    printf("hessians of %d inputs of width %llu, %llu tokens in all: %.3f ms, "
           "%.0f TFLOP/s of the triangles; one after the other by cuBLAS %.3f "
           "ms; error %.1e of it\n",
           n, (unsigned long long)cols, (unsigned long long)all, ms,
           flops / ms / 1e9, peer, wrong);
    free(t);
    free(got);
    MUSTC(cudaFree(x));
    MUSTC(cudaFree(h));
    MUSTC(cudaFree(square));
}

void bench_hessian(void)
{
    hessian(7168, 65536);
    hessian(2048, 65536);
}

void bench_ragged(void)
{
    ragged(2048, 256, 2048);
    ragged(2048, 256, 512);
    ragged(7168, 8, 2048);
    ragged(7168, 8, 16384);
}
