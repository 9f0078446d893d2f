/* mkmodel - the weights of a Llama of any size, random, as model.safetensors:
 *
 *     mkmodel FILE VOCABULARY HIDDEN INNER HEADS KV-HEADS LAYERS
 *
 * Weights are normal with variance 1 / inputs, so that activations keep their
 * size; bf16.  Heads have HIDDEN / HEADS dims. */
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base.h"
#include "common/math/dtype.h"
#include "common/math/threads.h"

enum { TENSORS_MAX = 2048 };

struct tensor {
    char name[96];
    uint64_t rows, cols, at; /* cols 0: a norm of rows ones */
};

static struct tensor list[TENSORS_MAX];
static uint64_t count, bytes;
static int fd;
static uint64_t data; /* where the tensors begin */

static void add(const char *name, uint64_t rows, uint64_t cols)
{
    struct tensor *t = &list[count++];

    snprintf(t->name, sizeof(t->name), "%s.weight", name);
    t->rows = rows;
    t->cols = cols;
    t->at = bytes;
    bytes += rows * (cols ? cols : 1) * 2;
}

static void add_layer(uint64_t i, uint64_t h, uint64_t inner, uint64_t kv)
{
    const struct {
        const char *name;
        uint64_t rows, cols;
    } part[] = {
        { "self_attn.q_proj", h, h },         { "self_attn.k_proj", kv, h },
        { "self_attn.v_proj", kv, h },        { "self_attn.o_proj", h, h },
        { "mlp.gate_proj", inner, h },        { "mlp.up_proj", inner, h },
        { "mlp.down_proj", h, inner },        { "input_layernorm", h, 0 },
        { "post_attention_layernorm", h, 0 },
    };
    char name[80];

    for (size_t p = 0; p < ARRAY_LEN(part); p++) {
        snprintf(name, sizeof(name), "model.layers.%llu.%s",
                 (unsigned long long)i, part[p].name);
        add(name, part[p].rows, part[p].cols);
    }
}

/* Nearly normal: the sum of 12 uniform numbers less 6. */
static float normal(uint64_t *x)
{
    float sum = 0;

    for (int i = 0; i < 3; i++) {
        uint64_t y;

        *x ^= *x << 13;
        *x ^= *x >> 7;
        *x ^= *x << 17;
        y = *x * 0x2545f4914f6cdd1d;
        sum += (float)((y & 65535) + (y >> 16 & 65535) + (y >> 32 & 65535) +
                       (y >> 48));
    }
    return sum / 65535 - 6;
}

static void must_write(const void *p, size_t n, uint64_t at)
{
    for (ssize_t k; n;
         p = (const char *)p + k, n -= (size_t)k, at += (uint64_t)k)
        if ((k = pwrite(fd, p, n, (off_t)at)) <= 0)
            die(E_IO, "cannot write:");
}

static void rows_of(void *tensor, size_t begin, size_t end)
{
    const struct tensor *t = tensor;
    uint64_t cols = t->cols ? t->cols : 1;
    uint16_t *row = malloc(cols * sizeof(*row));

    if (!row)
        die(E_TEMP, "out of memory");
    for (size_t r = begin; r < end; r++) {
        uint64_t x = (t->at + r + 1) * 0x9e3779b97f4a7c15;

        for (uint64_t c = 0; c < cols; c++)
            row[c] =
                bf16_from_f32(t->cols ? normal(&x) / sqrtf((float)t->cols) : 1);
        must_write(row, cols * sizeof(*row), data + t->at + r * cols * 2);
    }
    free(row);
}

static void write_header(void)
{
    char *text = malloc(count * 256 + 64), *p = text + 8;
    uint64_t n;

    if (!text)
        die(E_TEMP, "out of memory");
    p += sprintf(p, "{");
    for (uint64_t i = 0; i < count; i++) {
        const struct tensor *t = &list[i];
        uint64_t end = t->at + t->rows * (t->cols ? t->cols : 1) * 2;
        char dims[64];

        snprintf(dims, sizeof(dims), t->cols ? "%llu,%llu" : "%llu",
                 (unsigned long long)t->rows, (unsigned long long)t->cols);
        p += sprintf(p,
                     "%s\"%s\":{\"dtype\":\"BF16\",\"shape\":[%s],"
                     "\"data_offsets\":[%llu,%llu]}",
                     i ? "," : "", t->name, dims, (unsigned long long)t->at,
                     (unsigned long long)end);
    }
    p += sprintf(p, "}");
    while ((p - text) % 8)
        *p++ = ' ';
    n = (uint64_t)(p - text) - 8;
    memcpy(text, &n, 8);
    must_write(text, n + 8, 0);
    data = n + 8;
    free(text);
}

int main(int argc, char **argv)
{
    uint64_t n[6], kv;

    base_init(argv[0]);
    if (argc != 8)
        die(E_USAGE, "want FILE VOCABULARY HIDDEN INNER HEADS KV-HEADS LAYERS");
    for (int i = 0; i < 6; i++)
        n[i] = strtoull(argv[i + 2], NULL, 10);
    if (!n[3] || n[5] > 64)
        die(E_USAGE, "at least one head, 64 layers at most");
    kv = n[1] / n[3] * n[4];
    add("model.embed_tokens", n[0], n[1]);
    for (uint64_t i = 0; i < n[5]; i++)
        add_layer(i, n[1], n[2], kv);
    add("model.norm", n[1], 0);
    add("lm_head", n[0], n[1]);
    fd = open(argv[1], O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (fd < 0)
        die(E_CREATE, "'%s':", argv[1]);
    write_header();
    for (uint64_t i = 0; i < count; i++)
        threads_for(list[i].rows, 16, rows_of, &list[i]);
    return close(fd) ? E_IO : 0;
}
