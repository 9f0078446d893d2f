/* hooks.c - see hooks.h. */
#include "calib/hooks.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "calib/emit.h"
#include "calib/npy_array.h"
#include "checkpoint/checkpoint.h"
#include "common/io/file.h"

struct hooks_file {
    struct checkpoint *c; /* or */
    struct file *npy;
    char *name;       /* of the array */
    uint64_t batches; /* that an input has here, at most; at least 1 */
    uint64_t first;   /* sequence of the first */
};

struct hooks_tensor {
    struct linear linear;         /* one that reads it */
    size_t file, number;          /* number: in the order of files */
    uint64_t batch;               /* of the tokens in this file */
    const char *name;             /* in the file */
    const struct ck_tensor *from; /* NULL: all of an .npy */
    enum dtype dtype;
    uint64_t rows;   /* tokens */
    uint64_t offset; /* in an .npy */
};

/* ---- what there is ---- */

/* The activation's name of a linear's input. */
static void input_name(const struct model_config *c, const struct linear *l,
                       char to[MODULE_PATH_MAX])
{
    model_activation_name(c, l->layer, l->input, l->expert, to);
}

/* A linear that reads the input of this name; false: the model has none. */
static bool find_reader(const struct model_config *c, const char *name,
                        struct linear *l)
{
    char input[MODULE_PATH_MAX];
    struct tensor_name n;
    int64_t begin, end;

    if (model_find_linear(c, name, l))
        return true;
    tensor_name_parse(&n, name);
    if (n.layer < 0 || n.layer >= c->n_layers ||
        n.expert >= model_layer_experts(c, n.layer))
        return false;
    model_linear_range(c, n.layer, n.expert, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        model_linear(c, n.layer, i, l);
        input_name(c, l, input);
        if (!strcmp(input, name))
            return true;
    }
    return false;
}

/* The order of the model: inputs of a layer as its linears read them. */
static int compare_inputs(const struct linear *a, const struct linear *b)
{
    int64_t d = a->layer - b->layer;

    d = d ? d : a->expert - b->expert;
    d = d ? d : (int64_t)a->input - (int64_t)b->input;
    return d < 0 ? -1 : d > 0;
}

static int by_input(const void *a, const void *b)
{
    const struct hooks_tensor *x = a, *y = b;
    int d = compare_inputs(&x->linear, &y->linear);

    return d ? d : x->number < y->number ? -1 : x->number > y->number;
}

/* Length of `name` without the "[N]" of a batch; *batch = N, or 0. */
static size_t split_batch(const char *name, uint64_t *batch)
{
    size_t len = strlen(name), i = len;

    *batch = 0;
    if (!len || name[len - 1] != ']')
        return len;
    for (i = len - 1; i && name[i - 1] >= '0' && name[i - 1] <= '9';)
        i--;
    if (!i || name[i - 1] != '[' || i == len - 1 || len - i > 10)
        return len;
    *batch = strtoull(name + i, NULL, 10);
    return i - 1;
}

/* Whether a and b are of one input in one file, but not batches of one name. */
static bool repeats(const struct hooks_tensor *a, const struct hooks_tensor *b)
{
    uint64_t batch;
    size_t n = split_batch(a->name, &batch);

    return a->file == b->file && !compare_inputs(&a->linear, &b->linear) &&
           (n != split_batch(b->name, &batch) || strncmp(a->name, b->name, n));
}

/* Sort; of the same input in one file the first name stays, with all its batches.
 * Number the sequences. */
static void arrange(struct hooks *h)
{
    size_t n = 0;

    if (h->n)
        qsort(h->tensor, h->n, sizeof(*h->tensor), by_input);
    for (size_t i = 0; i < h->n; i++) {
        const struct hooks_tensor *t = &h->tensor[i];

        if (!n || !repeats(t, &h->tensor[n - 1]))
            h->tensor[n++] = *t;
    }
    for (size_t i = 1; i < h->files; i++)
        h->file[i].first = h->file[i - 1].first + h->file[i - 1].batches;
    h->repeated = h->n - n;
    h->n = n;
}

/* Whether the model has this module.  A tied lm_head has no weight. */
static bool is_module(struct hooks *h, const char *name)
{
    char weight[MODULE_PATH_MAX + 8];
    struct err none;

    if (!strcmp(name, "lm_head"))
        return true;
    if (!h->looked && checkpoint_open(&h->model, h->path, &none))
        h->model = NULL; /* config.json alone will do */
    h->looked = true;
    snprintf(weight, sizeof(weight), "%s.weight", name);
    return h->model && checkpoint_find(h->model, weight);
}

/* A tensor of no linear that is quantized: left out, or refused. */
static int ignore(struct hooks *h, const char *name, struct err *e)
{
    if (!is_module(h, name))
        return err_set(e, E_DATA,
                       "'%.200s': is no linear that is quantized, and no "
                       "input of one",
                       name);
    if (!h->ignored++)
        snprintf(h->ignored_name, sizeof(h->ignored_name), "%s", name);
    return 0;
}

/* Add the tensor t.name of these dimensions to the list. */
static int add(struct hooks *h, struct hooks_tensor t, int ndim,
               const uint64_t *dims, struct err *e)
{
    uint64_t cols = ndim ? dims[ndim - 1] : 0;
    char name[MODULE_PATH_MAX];
    size_t len = split_batch(t.name, &t.batch);

    if (len >= sizeof(name))
        return err_set(e, E_DATA, "'%.200s': is too long a name", t.name);
    snprintf(name, sizeof(name), "%.*s", (int)len, t.name);
    if (!find_reader(&h->config, name, &t.linear))
        return ignore(h, name, e);
    if (!dtype_is_float(t.dtype) || dtype_bits(t.dtype) < 16 || ndim < 2 ||
        cols != (uint64_t)t.linear.cols)
        return err_set(e, E_DATA,
                       "'%.200s': is no [tokens, %" PRId64 "] of 16, 32 or "
                       "64-bit floats",
                       name, t.linear.cols);
    t.rows = 1;
    for (int i = 0; i < ndim - 1; i++)
        t.rows *= dims[i]; /* no overflow: the file has that many elements */
    if (!t.rows)
        return err_set(e, E_DATA, "'%.200s': has no tokens", name);
    if (t.batch >= h->file[t.file].batches)
        h->file[t.file].batches = t.batch + 1;
    if (h->n == h->cap) {
        size_t cap = 2 * h->cap + 64;

        if (mem_grow(&h->tensor, cap * sizeof(*h->tensor), "hooks", e))
            return e->code;
        h->cap = cap;
    }
    t.number = h->n;
    h->tensor[h->n++] = t;
    return 0;
}

static int open_npy(struct hooks *h, const char *path, struct err *e)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    struct hooks_tensor t = { .file = h->files };
    struct hooks_file *f = &h->file[h->files];
    struct npy_array a;

    if (file_open(&f->npy, AT_FDCWD, path, e))
        return e->code;
    h->files++;
    if (npy_array_read(&a, f->npy, e))
        return e->code;
    t.dtype = a.dtype;
    t.offset = a.offset;
    f->name = mem_text(name, strlen(name) - 4, "hooks", e);
    if (!f->name)
        return e->code;
    t.name = f->name;
    return add(h, t, a.ndim, a.dims, e);
}

static int open_tensors(struct hooks *h, const char *path, struct err *e)
{
    struct hooks_file *f = &h->file[h->files];
    int rc = checkpoint_open_stored(&f->c, path, e);

    if (rc)
        return rc;
    h->files++;
    for (size_t i = 0; i < checkpoint_count(f->c) && !rc; i++) {
        const struct ck_tensor *x = checkpoint_tensor(f->c, i);

        rc = add(h,
                 (struct hooks_tensor){ .file = h->files - 1,
                                        .name = x->name,
                                        .from = x,
                                        .dtype = x->dtype },
                 x->ndim, x->dims, e);
    }
    return rc;
}

int hooks_open(struct hooks *h, const char *model, const char *const *path,
               int paths, struct err *e)
{
    int rc = model_config_read(&h->config, model, e);

    if (rc)
        return rc;
    h->path = model;
    h->config.kv_b = h->config.mla.kv_lora; /* there may be its inputs */
    h->file = mem_zero((size_t)paths, sizeof(*h->file), "hooks", e);
    if (!h->file)
        return e->code;
    for (int i = 0; i < paths; i++) {
        size_t n = strlen(path[i]);
        bool npy = n > 4 && !strcmp(path[i] + n - 4, ".npy");

        h->file[i].batches = 1;
        rc = (npy ? open_npy : open_tensors)(h, path[i], e);
        if (rc)
            return strstr(e->msg, path[i]) ? rc :
                                             err_prefix(e, "'%s'", path[i]);
    }
    if (!h->n && h->ignored)
        return err_set(e, E_DATA,
                       "'%s': is no linear that is quantized, and nothing else "
                       "is there",
                       h->ignored_name);
    arrange(h);
    return 0;
}

/* ---- writing ---- */

static int read_tensor(const struct hooks *h, const struct hooks_tensor *t,
                       void *to, size_t bytes, struct err *e)
{
    const struct hooks_file *f = &h->file[t->file];

    return t->from ? checkpoint_read(f->c, t->from, to, e) :
                     file_read(f->npy, to, bytes, t->offset, e);
}

static int write_tensor(struct hooks *h, const struct hooks_tensor *t,
                        struct frame *f, struct stream_writer *w, struct err *e)
{
    uint64_t n = t->rows * (uint64_t)t->linear.cols;
    size_t bytes = (size_t)n * dtype_bits(t->dtype) / 8;
    void *raw = mem_pages(bytes, f->name, e), *wide = raw;
    int rc = raw ? read_tensor(h, t, raw, bytes, e) : e->code;

    if (!rc && f->dtype != t->dtype) {
        wide = mem_pages((size_t)n * sizeof(float), f->name, e);
        if (!wide)
            rc = e->code;
        else if (!to_f32(wide, raw, t->dtype, n))
            rc = err_set(e, E_BUG, "'%s': no floats", f->name);
    }
    f->dims[0] = f->samples = t->rows;
    f->dims[1] = (uint64_t)t->linear.cols;
    f->len = (size_t)n * dtype_bits(f->dtype) / 8;
    f->data = wide;
    if (!rc)
        rc = stream_write(w, f, e);
    if (wide != raw)
        free(wide);
    free(raw);
    return rc;
}

int hooks_write(struct hooks *h, struct stream_writer *w, struct progress *p,
                struct err *e)
{
    char modules[EMIT_MODULES];

    for (size_t i = 0, end; i < h->n; i = end) {
        const struct linear *l = &h->tensor[i].linear;
        struct frame f = { .role = ROLE_ACTIVATION,
                           .dtype = DT_BF16,
                           .ndim = 2,
                           .modules = modules };

        input_name(&h->config, l, f.name);
        emit_modules(&h->config, l->layer, l->input, l->expert, modules);
        for (end = i; end < h->n; end++) {
            if (compare_inputs(&h->tensor[end].linear, l))
                break;
            if (h->tensor[end].dtype != DT_BF16)
                f.dtype = DT_F32;
        }
        for (size_t k = i; k < end; k++) {
            f.sequence =
                1 + h->file[h->tensor[k].file].first + h->tensor[k].batch;
            f.last = k + 1 == end;
            if (write_tensor(h, &h->tensor[k], &f, w, e))
                return e->code;
            progress_step(p, f.name, f.len);
        }
    }
    return 0;
}

void hooks_release(struct hooks *h)
{
    for (size_t i = 0; i < h->files; i++) {
        checkpoint_close(h->file[i].c);
        file_close(h->file[i].npy);
        free(h->file[i].name);
    }
    checkpoint_close(h->model);
    free(h->file);
    free(h->tensor);
    model_config_release(&h->config);
}
