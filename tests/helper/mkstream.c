/* mkstream - a stream for the tests, from words that a reviewer can read.
 * Each operand is one frame:
 *
 *     ROLE:NAME:DTYPE:DIMS[:OPTION]...     hessian:m.0.attn_in:F32:2x3x3:block=3
 *     note:NAME:JSON
 *     error:CODE:MESSAGE                   (and nothing after it)
 *     cut                                  (no END)
 *
 * Options: modules=A,B  samples=N  sequence=N  block=N  group=N
 *          scale=F16|BF16  last  ancillary  fill=X  ref=PATH@OFFSET
 * Payload: floats 0, 1, 2, ... (or all X); other types the bytes 0, 1, 2, ...
 * (QMETA4: grids of 4 bits).
 * -k KEY, -f FACTS and -o FILE set what struct stream_output has. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "common/io/file.h"
#include "common/io/frame.h"
#include "common/math/quant.h"

static struct err err;
static struct stream_writer *writer;

NORETURN static void fail(void)
{
    stream_abort(writer, &err);
    die_err(&err);
}

static void *must(void *p)
{
    if (!p) {
        err_set(&err, E_TEMP, "out of memory");
        fail();
    }
    return p;
}

static void parse_dims(struct frame *f, const char *s)
{
    char *end;

    while (*s) {
        f->dims[f->ndim++] = strtoull(s, &end, 10);
        s = *end ? end + 1 : end;
    }
}

static void parse_option(struct frame *f, char *s, double *fill, bool *filled,
                         char **ref)
{
    char *value = strchr(s, '=');
    uint64_t n;

    if (value)
        *value++ = 0;
    n = value ? strtoull(value, NULL, 10) : 1;
    if (!strcmp(s, "modules")) {
        for (char *p = value; (p = strchr(p, ',')); p++)
            *p = '\n';
        f->modules = value;
    } else if (!strcmp(s, "samples")) {
        f->samples = n;
    } else if (!strcmp(s, "sequence")) {
        f->sequence = n;
    } else if (!strcmp(s, "block")) {
        f->block = (uint32_t)n;
    } else if (!strcmp(s, "group")) {
        f->group = (uint32_t)n;
    } else if (!strcmp(s, "scale")) {
        f->scale_dtype = dtype_parse(value);
    } else if (!strcmp(s, "last")) {
        f->last = true;
    } else if (!strcmp(s, "ancillary")) {
        f->ancillary = true;
    } else if (!strcmp(s, "fill")) {
        *fill = strtod(value, NULL);
        *filled = true;
    } else if (!strcmp(s, "ref")) {
        *ref = value;
    } else {
        die(E_USAGE, "unknown option '%s'", s);
    }
}

static void *payload(const struct frame *f, double fill, bool filled)
{
    uint8_t *bytes = must(malloc(f->len + 1));
    size_t n = f->len * 8 / (dtype_bits(f->dtype) ? dtype_bits(f->dtype) : 8);
    float *values = must(malloc((n + 1) * sizeof(*values)));

    for (size_t i = 0; i < n; i++)
        values[i] = filled ? (float)fill : (float)i;
    if (!from_f32(bytes, f->dtype, values, n))
        for (size_t i = 0; i < f->len; i++)
            bytes[i] = (uint8_t)(filled ? (size_t)fill : i);
    for (size_t i = 3; f->dtype == DT_QMETA4 && i < f->len; i += 4)
        bytes[i] &= (uint8_t)~QUANT_EIGHT;
    free(values);
    return bytes;
}

static void write_ref(struct stream_writer *w, struct frame *f, char *where)
{
    struct frame_ref ref = { .path = where };
    char *at = strrchr(where, '@');
    struct file *file;
    void *p = must(malloc(f->len + 1));

    if (at) {
        *at = 0;
        ref.offset = strtoull(at + 1, NULL, 10);
    }
    if (file_open(&file, AT_FDCWD, where, &err) == 0) {
        if (file_read(file, p, f->len, ref.offset, &err) == 0)
            ref.hash = XXH3_64bits(p, f->len);
        file_close(file);
    }
    free(p);
    if (stream_write_ref(w, f, &ref, &err) < 0)
        fail();
}

static void write_note(struct stream_writer *w, char *name, char *text)
{
    struct frame f = { .role = ROLE_NOTE, .dtype = DT_U8, .ndim = 1 };

    snprintf(f.name, sizeof(f.name), "%s", name);
    f.data = text;
    f.dims[0] = f.len = strlen(text);
    if (stream_write(w, &f, &err) < 0)
        fail();
}

static void write_operand(struct stream_writer *w, char *s)
{
    char *role = strsep(&s, ":"), *name = strsep(&s, ":"), *word, *ref = NULL;
    struct frame f = { .role = role_parse(role) };
    double fill = 0;
    bool filled = false;
    void *data;

    if (!name || !s || !f.role)
        die(E_USAGE, "'%s': no ROLE:NAME:...", role);
    if (f.role == ROLE_NOTE) {
        write_note(w, name, s);
        return;
    }
    snprintf(f.name, sizeof(f.name), "%s", name);
    f.dtype = dtype_parse(strsep(&s, ":"));
    parse_dims(&f, s ? strsep(&s, ":") : "");
    while ((word = strsep(&s, ":")))
        parse_option(&f, word, &fill, &filled, &ref);
    if (!dtype_size(f.dtype, f.ndim, f.dims, &f.len))
        die(E_USAGE, "'%s': no such shape", f.name);
    if (ref) {
        write_ref(w, &f, ref);
        return;
    }
    f.data = data = payload(&f, fill, filled);
    if (stream_write(w, &f, &err) < 0)
        fail();
    free(data);
}

int main(int argc, char **argv)
{
    struct stream_output out = { 0 };
    struct stream_writer *w;
    int c;

    base_init(argv[0]);
    while ((c = getopt(argc, argv, "k:f:o:")) != -1)
        if (c == 'k')
            out.key = optarg;
        else if (c == 'f')
            out.facts = optarg;
        else if (c == 'o')
            out.path = optarg;
        else
            return -E_USAGE;
    if (stream_create(&w, &out, &err) < 0)
        die_err(&err);
    writer = w;
    for (; optind < argc; optind++) {
        char *s = argv[optind];

        if (!strcmp(s, "cut")) {
            stream_abort(w, NULL);
            return 0;
        }
        if (!strncmp(s, "error:", 6)) {
            err_set(&err, -atoi(s + 6), "%s", strchr(s + 6, ':') + 1);
            stream_abort(w, &err);
            return 0;
        }
        write_operand(w, s);
    }
    writer = NULL;
    if (stream_finish(w, &err) < 0)
        die_err(&err);
    return 0;
}
