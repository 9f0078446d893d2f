/* forge-pack - put 4-bit codes into the tensors that a runtime loads. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cli/tool.h"
#include "device/device.h"
#include "layout/layout.h"
#include "pack/advice.h"
#include "pack/emit.h"
#include "pack/gather.h"
#include "pack/pack_table.h"
#include "pack/packer.h"
#include "pack/preflight.h"
#include "pack/rounder.h"

struct settings {
    struct tool tool;
    int layout;     /* enum layout */
    int capability; /* enum int4pack_capability */
    int64_t group;  /* 0: the first module's */
    int symmetric, asymmetric, act_order, mixed, rtn;
    int scale_dtype; /* of --rtn: index into the words of --scale-dtype */
    const char *check;
    struct device_choice device;
    const char *input;
};

/* The state of a run. */
struct work {
    const struct settings *set;
    struct stream_reader *in;
    struct stream_writer *out;
    struct packer *packer;
    struct pack_run run;
    struct gather held;
    struct rounder rounder; /* of --rtn */
    struct progress progress;
    uint64_t modules, plain; /* packed; weights that passed as they were */
    unsigned advised;        /* bits of layout_advice() printed so far */
};

static void parse(struct settings *s, int argc, char **argv)
{
    const struct opt table[] = {
        { OPT_CHOICE, 'l', "layout", LAYOUT_ALL_WORDS,
          "layout to write [compressed-tensors]", &s->layout, 0, 0, false },
        { OPT_CHOICE, 0, "capability", INT4PACK_WORDS,
          "layout int4pack: of the CPU that will run it [this one]",
          &s->capability, 0, 0, false },
        { OPT_INT, 'g', "group", "N",
          "inputs per scale that the stream must have [any; with --check 128]",
          &s->group, 8, 1 << 20, false },
        { OPT_FLAG, 0, "symmetric", NULL, "refuse asymmetric modules",
          &s->symmetric, 0, 0, false },
        { OPT_FLAG, 0, "asymmetric", NULL,
          "store zero points even where all are 8", &s->asymmetric, 0, 0,
          false },
        { OPT_FLAG, 0, "act-order", NULL,
          "store the order of inputs even where groups are runs of them",
          &s->act_order, 0, 0, false },
        { OPT_FLAG, 0, "mixed", NULL,
          "modules may have grids of different kinds", &s->mixed, 0, 0, false },
        { OPT_FLAG, 0, "rtn", NULL,
          "round weights to nearest first, on the grid that spans each group",
          &s->rtn, 0, 0, false },
        { OPT_CHOICE, 0, "scale-dtype", "f16|bf16",
          "with --rtn: type in which scales are stored [f16]", &s->scale_dtype,
          0, 0, false },
        { OPT_STR, 0, "check", "MODEL",
          "pack nothing: check that a runtime would load MODEL in this layout, "
          "and over how many devices",
          &s->check, 0, 0, true },
        GPU_OPTIONS(&s->device),
        TOOL_STREAM(&s->tool),
        TOOL_COMMON(&s->tool),
        TOOL_END,
    };
    int i =
        opt_parse(argc, argv, "[options] [FILE]",
                  "Pack codes and grids into the tensors of a layout.", table);

    if (s->symmetric && s->asymmetric)
        die(E_USAGE, "--symmetric and --asymmetric exclude each other");
    if (s->mixed && (s->symmetric || s->asymmetric || s->group))
        die(E_USAGE, "--mixed has no --group, --symmetric or --asymmetric");
    if (s->rtn && s->mixed)
        die(E_USAGE, "--rtn has grids of one kind");
    if (argc - i > (s->check ? 0 : 1))
        die(E_USAGE, "'%s': one operand too many (try --help)", argv[argc - 1]);
    s->input = i < argc ? argv[i] : NULL;
    if (s->layout == LAYOUT_INT4PACK && s->capability == INT4PACK_UNKNOWN)
        die(E_USAGE, "torch's tiles on this CPU are not known: want "
                     "--capability, of the CPU that will run it");
}

/* --check: the answer is the exit status. */
static int check(const struct settings *s)
{
    struct preflight p = { .model = s->check,
                           .layout = (enum layout)s->layout,
                           .grids = { .group =
                                          s->group ? (uint64_t)s->group : 128,
                                      .symmetric = !s->asymmetric },
                           .table = verbosity >= 0 };
    uint64_t linears = 0;
    struct err e;

    if (preflight_check(&p, &linears, &e)) {
        (void)!fflush(stdout);
        die_err(&e);
    }
    if (flush_stdout(&e))
        die_err(&e);
    info("'%s': %" PRIu64 " linears can be packed as %s, group %" PRIu64,
         p.model, linears, layout_name(p.layout), p.grids.group);
    return 0;
}

static int pack(struct work *w, const struct pack_module *m, struct err *e)
{
    struct packed_tensor t[LAYOUT_PARTS_MAX];
    int n = packer_module(w->packer, m, t, e);

    if (n < 0)
        return n;
    pack_advise(&w->run, m, &w->advised);
    if (emit_tensors(w->out, m->name, t, n, e))
        return e->code;
    if (!w->modules++ && emit_run_note(w->out, &w->run, false, e))
        return e->code;
    progress_step(&w->progress, m->name,
                  m->rows * m->cols / 8 * (uint64_t)m->bits);
    return 0;
}

/* Pack and write the module held, if there is one. */
static int flush(struct work *w, struct err *e)
{
    struct pack_module m;
    int n = gather_module(&w->held, &m, e);

    if (n <= 0 || (n = pack(w, &m, e)) < 0)
        return n;
    gather_clear(&w->held);
    return 0;
}

/* --rtn: round a weight, and pack it. */
static int round_weight(struct work *w, const struct frame *f, struct err *e)
{
    struct pack_module m;

    if (rounder_module(&w->rounder, f, &m, e) < 0 || pack(w, &m, e) < 0)
        return e->code;
    return emit_rounded(w->out, f->name, e);
}

static int take(struct work *w, const struct frame *f, struct err *e)
{
    if (gather_wants(f)) {
        if (gather_other(&w->held, f) && flush(w, e))
            return e->code;
        return gather_add(&w->held, f, e);
    }
    if (flush(w, e))
        return e->code;
    if (w->set->rtn && f->role == ROLE_WEIGHT && !f->ancillary)
        return round_weight(w, f, e);
    if (f->role == ROLE_WEIGHT && !f->ancillary) {
        w->plain++;
        return emit_weight(w->out, f, e);
    }
    return stream_write(w->out, f, e);
}

static int open_all(struct work *w, struct err *e)
{
    const struct settings *s = w->set;
    const struct stream_expect expect = { .key = s->tool.expect_key };
    const struct stream_output out = { .path = s->tool.output,
                                       .key = s->tool.key };
    const struct layout_shape any = { "", 8, 8 };

    w->run = (struct pack_run){
        .layout = (enum layout)s->layout,
        .group = (uint64_t)s->group,
        .capability = (enum int4pack_capability)s->capability,
        .act_order = s->act_order ? 1 : -1,
        .mixed = s->mixed,
        .symmetric = s->symmetric  ? 1 :
                     s->asymmetric ? 0 :
                                     -1,
    };
    rounder_init(&w->rounder, (uint64_t)s->group, !s->asymmetric,
                 s->scale_dtype ? DT_BF16 : DT_F16, w->run.layout);
    if (w->run.layout == LAYOUT_GPTQ && s->asymmetric)
        return layout_check(LAYOUT_GPTQ, false, 8, &any, &any, 1, e);
    if (device_open(&s->device, &pack_plugin, e) ||
        packer_open(&w->packer, &w->run, e) ||
        stream_open(&w->in, s->input, &expect, e))
        return e->code;
    return stream_create(&w->out, &out, e);
}

static int run(struct work *w, struct err *e)
{
    struct frame f;
    int rc = stream_next(w->in, &f, e);

    if (rc >= 0 && stream_inherit(w->out, stream_head(w->in), e))
        return e->code;
    for (; rc > 0; rc = stream_next(w->in, &f, e))
        if (take(w, &f, e))
            return err_prefix(e, "'%s': frame %" PRIu64,
                              w->set->input ? w->set->input : "<stdin>",
                              stream_frame_number(w->in));
    if (rc < 0 || flush(w, e))
        return e->code;
    if (w->plain && !w->modules)
        return err_set(e, E_DATA, "no codes: is forge-solve missing?");
    return emit_run_note(w->out, &w->run, true, e);
}

int main(int argc, char **argv)
{
    struct settings set = { .layout = LAYOUT_CT,
                            .capability = (int)int4pack_here() };
    struct work w = { .set = &set };
    struct err e;

    parse(&set, argc, argv);
    tool_apply(&set.tool);
    if (set.check) {
        die_tells = NULL; /* no stream is asked for */
        return check(&set);
    }
    if (open_all(&w, &e))
        die_err(&e);
    progress_start(&w.progress, set.tool.progress, "modules", 0);
    if (run(&w, &e))
        tool_fail(w.out, &e);
    tool_finish(w.out, &w.progress, NULL);
    stream_close(w.in);
    packer_close(w.packer);
    gather_release(&w.held);
    rounder_release(&w.rounder);
    return 0;
}
