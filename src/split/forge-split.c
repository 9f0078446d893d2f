/* forge-split - write a file for each layer of a stream, published as soon as
 * the layer is complete, and pass the stream on.  See forge-split(1). */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "arch/tensor_name.h"
#include "common/cli/tool.h"
#include "common/io/file.h"
#include "common/io/sync.h"
#include "device/ledger.h"
#include "split/along.h"
#include "split/notes.h"
#include "split/rows.h"
#include "work/inputs.h"

struct settings {
    struct tool tool;
    const char *files, *report; /* with a % */
    const char *loans, *along, *work, *input;
};

struct run {
    const struct settings *s;
    struct stream_reader *in;
    struct ledger *ledger;
    struct stream_writer *out;
    struct progress progress;
    /* The current layer; file NULL: none. */
    struct stream_writer *file;
    int64_t layer;
    char path[PATH_MAX];
    struct notes notes;  /* its report */
    struct rows rows;    /* of linears, until all have come */
    struct along *along; /* NULL: none */
    int64_t *done;       /* numbers of the layers published */
    size_t n_done;
};

static void check_name(const char *files)
{
    if (!strchr(files, '%') || strlen(files) > PATH_MAX - 32)
        die(E_USAGE, "'%s': want a name with a %% for the layer's number",
            files);
}

static void parse(struct settings *s, int argc, char **argv)
{
    const struct opt table[] = { { OPT_STR, 0, "report", "FILES",
                                   "write the notes of each layer's modules to "
                                   "FILES, a line of JSON each",
                                   &s->report, 0, 0, true },
                                 { OPT_STR, 0, "along", "PIPE",
                                   "write all layers' files to PIPE, too, in "
                                   "order, while they are written",
                                   &s->along, 0, 0, true },
                                 INPUTS_OPTION(&s->work),
                                 LOANS_OPTION(&s->loans),
                                 TOOL_COMMON(&s->tool),
                                 TOOL_STREAM(&s->tool),
                                 TOOL_END };
    int i = opt_parse(argc, argv, "[option...] FILES [FILE] > stream",
                      "Publish each layer of a stream as a file; % in FILES is "
                      "the layer's number.",
                      table);

    if (argc - i < 1 || argc - i > 2)
        die(E_USAGE, "want FILES and at most one FILE (try --help)");
    s->files = argv[i];
    s->input = argv[i + 1];
    check_name(s->files);
    check_name(s->report ? s->report : "%");
    tool_apply(&s->tool);
}

static int publish_report(struct run *r, struct err *e)
{
    char path[PATH_MAX];

    if (!r->s->report)
        return 0;
    layer_path(r->s->report, r->layer, path);
    return notes_publish(&r->notes, path, e);
}

/* Publish the report, then the layer's file: once that exists, both are
 * complete. */
static int finish_layer(struct run *r, struct err *e)
{
    struct stream_writer *w = r->file;

    if (!w)
        return 0;
    r->file = NULL;
    if (mem_grow(&r->done, (r->n_done + 1) * sizeof(*r->done), "layers", e) <
            0 ||
        inputs_check(r->s->work, e) < 0 || publish_report(r, e) < 0) {
        stream_abort(w, e);
        return e->code;
    }
    r->done[r->n_done++] = r->layer;
    if (stream_finish(w, e) < 0)
        return e->code;
    along_end(r->along);
    return 0;
}

static int begin_layer(struct run *r, int64_t layer, struct err *e)
{
    struct stream_output out = { .path = r->path, .key = r->s->tool.key };

    for (size_t i = 0; i < r->n_done; i++)
        if (r->done[i] == layer)
            return err_set(e, E_DATA, "layer %lld comes again",
                           (long long)layer);
    layer_path(r->s->files, layer, r->path);
    if (stream_create(&r->file, &out, e) < 0)
        return e->code;
    r->layer = layer;
    if (r->along)
        along_begin(r->along, layer, stream_reader_of(r->file));
    return stream_inherit(r->file, stream_head(r->in), e);
}

/* Write a frame that belongs to a layer into the layer's file. */
static int keep(struct run *r, const struct frame *f, struct err *e)
{
    struct tensor_name name;
    int64_t layer;
    uint64_t number;

    tensor_name_parse(&name, f->name);
    layer = name.layer;
    if (layer < 0)
        return 0;
    if (sync_read(f,
                  &number)) /* the mark with a layer's name: it is complete */
        return name.part.len || name.expert >= 0 || name.companion ?
                   0 :
                   finish_layer(r, e);
    if (r->file && layer != r->layer && finish_layer(r, e) < 0)
        return e->code;
    if (!r->file && begin_layer(r, layer, e) < 0)
        return e->code;
    if (r->s->report && f->role == ROLE_NOTE && notes_add(&r->notes, f, e) < 0)
        return e->code;
    if (stream_write(r->file, f, e) < 0)
        return e->code;
    along_there(r->along, stream_there(r->file));
    return 0;
}

/* *here = f with its payload, which may be lent. */
static int see(struct run *r, const struct frame *f, struct frame *here,
               struct err *e)
{
    *here = *f;
    here->loan.lent = 0;
    here->about = 0;
    return ledger_payload(r->ledger, f, &here->data, e);
}

/* On first: the calibration waits for codes; but a mark says that they are in the
 * file. */
static int put(struct run *r, const struct frame *f, struct err *e)
{
    uint64_t number;
    struct frame here;
    bool mark = sync_read(f, &number);

    if (see(r, f, &here, e) < 0 || (!mark && stream_write(r->out, f, e) < 0) ||
        keep(r, &here, e) < 0 || (mark && stream_write(r->out, f, e) < 0))
        return e->code;
    ledger_return(r->ledger, &f->loan);
    return 0;
}

static int run(struct run *r, struct err *e)
{
    bool first = true;
    struct frame f, whole;
    int rc;

    while ((rc = stream_next(r->in, &f, e)) > 0) {
        if (first && stream_inherit(r->out, stream_head(r->in), e) < 0)
            return e->code;
        first = false;
        rc = f.loan.lent ? 0 : rows_take(&r->rows, &f, e);
        if (rc < 0 || (!rc && put(r, &f, e) < 0))
            return e->code;
        while ((rc = rows_next(&r->rows, &whole, e)) > 0)
            if (put(r, &whole, e) < 0)
                return e->code;
        if (rc < 0)
            return rc;
        progress_step(&r->progress, f.name, f.len);
    }
    if (rc >= 0)
        rc = rows_end(&r->rows, e);
    return rc < 0 ? rc : finish_layer(r, e);
}

static int open_all(struct run *r, struct err *e)
{
    struct stream_expect expect = { .key = r->s->tool.expect_key,
                                    .loans = r->s->loans };
    struct stream_output out = { .path = r->s->tool.output,
                                 .key = r->s->tool.key };

    if (ledger_open(&r->ledger, r->s->loans, e) < 0 ||
        ledger_reads(r->ledger, LEDGER_FILES, e) < 0 ||
        stream_open(&r->in, r->s->input, &expect, e) < 0 ||
        stream_create(&r->out, &out, e) < 0 ||
        (r->s->along && along_open(&r->along, r->s->along, r->s->files, e) < 0))
        return e->code;
    stream_tie(r->in, r->out);
    return 0;
}

int main(int argc, char **argv)
{
    struct settings s = { .files = NULL };
    struct run r = { .s = &s };
    struct err e;

    parse(&s, argc, argv);
    if (open_all(&r, &e) < 0)
        die_err(&e);
    progress_start(&r.progress, s.tool.progress, "tensors", 0);
    if (run(&r, &e) < 0) {
        stream_abort(r.file, &e);
        tool_fail(r.out, &e);
    }
    tool_finish(r.out, &r.progress, NULL);
    if (along_close(r.along, &e) < 0)
        die_err(&e);
    stream_close(r.in);
    ledger_close(r.ledger);
    notes_release(&r.notes);
    rows_release(&r.rows);
    free(r.done);
    return 0;
}
