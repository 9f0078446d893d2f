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

/* Relative error of a packed triangle on the device of `tokens` tokens, of the
 * square that cuBLAS made of them. */
static double triangle_error(const float *h, const float *square, uint64_t cols,
                             uint64_t tokens)
{
    uint64_t elements = cols * (cols + 1) / 2;
    float *got = (float *)malloc((elements + cols * cols) * 4);
    float *want = got + elements;
    double wrong = 0, size = 0;

    MUSTC(cudaMemcpy(got, h, elements * 4, cudaMemcpyDeviceToHost));
    MUSTC(cudaMemcpy(want, square, cols * cols * 4, cudaMemcpyDeviceToHost));
    for (uint64_t i = 0; i < cols; i++)
        for (uint64_t j = 0; j <= i; j++) {
            double w = want[j * cols + i] * 2.0 / tokens;
            double d = got[i * (i + 1) / 2 + j] - w;

            wrong += d * d;
            size += w * w;
        }
    free(got);
    return sqrt(wrong / size);
}

/* ms, TFLOP/s of the triangles, and the error of the last input's H. */
static void say_ragged(const char *how, double ms, double flops, double error)
{
    printf("  %-9s %9.3f ms, %4.0f TFLOP/s", how, ms, flops / ms / 1e9);
    if (error >= 0)
        printf("; error %.1e of cuBLAS", error);
    printf("\n");
    must(error < 1e-3 ? 0 : err_set(&why, E_BUG, "error %g", error), how);
}

/* The triangles t[n] in one launch of each kernel that there is, and by cuBLAS one
 * after the other (squares in panels, without the packing). */
static void compare_ragged(uint64_t cols, const struct cuda_tokens *t, int n,
                           double flops)
{
    float *square = (float *)device(cols * cols * 4);
    uint64_t elements = cols * (cols + 1) / 2;
    const struct cuda_tokens *last = &t[n - 1];
    double peer = timed(
        [&] {
            for (int i = 0; i < n; i++)
                MUST(hessian_panels(c, t[i].x, t[i].tokens, cols, 1024, true,
                                    square, &why));
        },
        5);
    auto run = [&](const char *how, decltype(&ragged_device) fn) {
        MUSTC(cudaMemset(t[0].h, 0xa5, n * elements * 4));
        double ms = timed([&] { MUST(fn(c, cols, t, n, &why)); }, 5);

        say_ragged(how, ms, flops,
                   triangle_error(last->h, square, cols, last->tokens));
    };

    say_ragged("cuBLAS", peer, flops, -1);
    if (ragged_wgmma_runs(c))
        run("wgmma", ragged_wgmma);
    run("mma.sync", ragged_mma);
    MUSTC(cudaFree(square));
}

/* n inputs with 1/4 to 7/4 of `mean` tokens, or `mean` each. */
static void ragged(uint64_t cols, int n, uint64_t mean, bool even)
{
    uint64_t elements = cols * (cols + 1) / 2, all = 0;
    struct cuda_tokens *t = (struct cuda_tokens *)calloc(n, sizeof(*t));
    float *h = (float *)device(n * elements * 4);
    __nv_bfloat16 *x;

    for (int i = 0; i < n; i++) {
        t[i].tokens =
            even ? mean : mean / 4 + (uint64_t)i * 2654435761u % (mean * 3 / 2);
        all += t[i].tokens;
    }
    x = random_bf16(all * cols, 1);
    all = 0;
    for (int i = 0; i < n; i++) {
        t[i].x = x + all * cols;
        all += t[i].tokens;
    }
    std::sort(t, t + n,
              [](const struct cuda_tokens &a, const struct cuda_tokens &b) {
                  return a.tokens > b.tokens;
              });
    for (int i = 0; i < n; i++)
        t[i].h = h + i * elements;
    printf("hessians of %d inputs of width %llu, %llu tokens in all:\n", n,
           (unsigned long long)cols, (unsigned long long)all);
    compare_ragged(cols, t, n, (double)all * cols * (cols + 1));
    free(t);
    MUSTC(cudaFree(x));
    MUSTC(cudaFree(h));
}

void bench_hessian(void)
{
    hessian(7168, 65536);
    hessian(2048, 65536);
}

void bench_ragged(void)
{
    ragged(2048, 256, 512, false);
    ragged(2048, 256, 2048, false);
    ragged(2048, 8, 65536, true);
    ragged(2048, 1, 2048, true); /* as experts come that are lent */
    ragged(7168, 1, 2048, true);
    ragged(7168, 8, 2048, false);
    ragged(7168, 8, 16384, false);
    ragged(7168, 1, 65536, true);
    ragged(7168, 4, 65536, true);
}
