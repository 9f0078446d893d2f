/* ckdump - what checkpoint.h says of a checkpoint, for tests.
 *
 *     ckdump DIR OUT               all tensors: "name dtype dims" a line (tabs), and
 *                                  their payloads one after the other in OUT
 *     ckdump DIR OUT linear M...   checkpoint_linear() of modules M
 *     ckdump DIR OUT bf16 M...     checkpoint_linear_bf16()
 *     ckdump DIR OUT parts M...    checkpoint_quantized(): codes, zeros,
 *                                  scales
 *
 * Errors as the tools report them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/checkpoint.h"

static void put(const void *p, size_t n, FILE *out)
{
    if (fwrite(p, 1, n, out) != n)
        die(E_IO, "cannot write");
}

static void all(struct checkpoint *c, FILE *out)
{
    struct err e;

    for (size_t i = 0; i < checkpoint_count(c); i++) {
        const struct ck_tensor *t = checkpoint_tensor(c, i);
        void *p = mem_alloc(t->bytes, t->name, &e);

        if (!p || checkpoint_read(c, t, p, &e))
            die_err(&e);
        printf("%s\t%s", t->name, dtype_name(t->dtype));
        for (int k = 0; k < t->ndim; k++)
            printf("\t%llu", (unsigned long long)t->dims[k]);
        putchar('\n');
        put(p, t->bytes, out);
        free(p);
    }
}

static void linear(struct checkpoint *c, const char *m, bool narrow, FILE *out)
{
    uint64_t rows, cols;
    struct err e;
    uint16_t *h = NULL;
    float *w = NULL;
    int r = narrow ? checkpoint_linear_bf16(c, m, &h, &rows, &cols, &e) :
                     checkpoint_linear(c, m, &w, &rows, &cols, &e);

    if (r)
        die_err(&e);
    printf("%s %llu %llu\n", m, (unsigned long long)rows,
           (unsigned long long)cols);
    put(narrow ? (void *)h : w, rows * cols * (narrow ? 2 : 4), out);
    free(w);
    free(h);
}

static void parts(struct checkpoint *c, const char *m, FILE *out)
{
    struct ck_quantized q;
    struct err e;
    int r = checkpoint_quantized(c, m, &q, &e);

    if (r < 0)
        die_err(&e);
    if (!r) {
        printf("%s plain\n", m);
        return;
    }
    printf("%s %llu %llu %llu %llu %s\n", m, (unsigned long long)q.rows,
           (unsigned long long)q.cols, (unsigned long long)q.groups,
           (unsigned long long)q.group, dtype_name(q.scale_dtype));
    put(q.codes, q.rows * q.cols * (unsigned)q.bits / 8, out);
    put(q.zeros, q.rows * q.groups, out);
    put(q.scales, q.rows * q.groups * dtype_bits(q.scale_dtype) / 8, out);
    ck_quantized_release(&q);
}

int main(int argc, char **argv)
{
    struct checkpoint *c;
    struct err e;
    FILE *out;

    base_init(argv[0]);
    if (argc < 3)
        die(E_USAGE, "ckdump DIR OUT [linear|bf16|parts MODULE...]");
    if (checkpoint_open(&c, argv[1], &e))
        die_err(&e);
    out = fopen(argv[2], "wb");
    if (!out)
        die(E_CREATE, "'%s': cannot create", argv[2]);
    if (argc == 3)
        all(c, out);
    for (int i = 4; i < argc; i++)
        if (strcmp(argv[3], "parts") == 0)
            parts(c, argv[i], out);
        else
            linear(c, argv[i], strcmp(argv[3], "bf16") == 0, out);
    if (fclose(out))
        die(E_IO, "cannot write '%s'", argv[2]);
    checkpoint_close(c);
    return 0;
}
