/* module_report.c - see module_report.h. */
#include "gptq/solve/module_report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/io/json.h"
#include "common/math/quant.h"
#include "common/math/threads.h"

static const char *const order_names[] = { "natural", "activation", "group",
                                           "inside" };

void module_report_factor(struct module_report *report, const char *module,
                          const struct factor *f, uint64_t samples)
{
    report->samples = samples;
    if (!samples)
        warning("'%s': no token has reached it", module);
    report->tried = f->tried;
    report->n_tried = f->n_tried;
    report->damping = f->tried[f->n_tried - 1];
}

void module_report_codes(struct module_report *report, bool nearest,
                         enum factor_order order, const struct solve_result *r)
{
    if (!nearest) {
        report->method = "gptq";
        report->order = order_names[report->effort ? ORDER_GROUP : order];
    }
    report->measured = true;
    report->loss = r->loss;
    report->loss_rtn = r->loss_nearest;
}

static void losses_json(struct json_writer *w,
                        const struct module_report *report)
{
    jw_key(w, "loss");
    jw_number(w, report->loss);
    jw_key(w, "loss_rtn");
    jw_number(w, report->loss_rtn);
    if (report->loss_gptq > 0) {
        jw_key(w, "loss_gptq");
        jw_number(w, report->loss_gptq);
    }
}

/* The same of each tile of rows: "tiles":{"loss":[1.5,...],"loss_rtn":[2,null,...],
 * "loss_gptq":[...]}. */
static void tiles_json(struct json_writer *w,
                       const struct module_report *report)
{
    static const char *const key[] = { "loss", "loss_rtn", "loss_gptq" };

    jw_key(w, "tiles");
    jw_begin(w, '{');
    for (int i = 0; i < LOSSES; i++) {
        jw_key(w, key[i]);
        jw_begin(w, '[');
        for (uint64_t t = 0; t < report->n_tiles; t++)
            jw_number(w, report->tiles[(uint64_t)i * report->n_tiles + t]);
        jw_end(w, ']');
    }
    jw_end(w, '}');
}

/* module NULL: without the name; seconds: whether to include the seconds. */
static void report_json(struct json_writer *w,
                        const struct module_report *report, const char *module,
                        bool seconds)
{
    jw_begin(w, '{');
    if (module) {
        jw_key(w, "module");
        jw_string(w, module);
    }
    jw_key(w, "method");
    jw_string(w, report->method);
    if (report->order) {
        jw_key(w, "order");
        jw_string(w, report->order);
    }
    if (report->effort) {
        jw_key(w, "effort");
        jw_string(w, report->effort);
        jw_key(w, "corrected");
        jw_bool(w, report->corrected);
        if (report->rows_kept) {
            jw_key(w, "rows_kept");
            jw_int(w, (int64_t)report->rows_kept);
        }
    }
    if (report->measured && report->tiles && !module)
        tiles_json(w, report);
    else if (report->measured)
        losses_json(w, report);
    if (report->n_tried) {
        jw_key(w, "samples");
        jw_int(w, (int64_t)report->samples);
        jw_key(w, "damping");
        jw_number(w, report->damping);
    }
    if (report->n_tried > 1 || (report->n_tried && !report->measured)) {
        jw_key(w, "damping_tried");
        jw_begin(w, '[');
        for (int i = 0; i < report->n_tried; i++)
            jw_number(w, report->tried[i]);
        jw_end(w, ']');
    }
    if (seconds) {
        jw_key(w, "seconds");
        jw_number(w, report->seconds);
    }
    jw_end(w, '}');
}

static int write_note(const struct json_writer *w, const char *module,
                      bool ancillary, struct stream_writer *out, struct err *e)
{
    struct frame f = { .role = ROLE_NOTE,
                       .dtype = DT_U8,
                       .ndim = 1,
                       .dims = { w->len },
                       .ancillary = ancillary,
                       .data = w->text,
                       .len = w->len };

    if (w->failed)
        return err_set(e, E_TEMP, "'%s': out of memory", module);
    snprintf(f.name, sizeof(f.name), "%s", module);
    return stream_write(out, &f, e);
}

/* Codes are lent where l and its readers allow it. */
static int write_codes(const struct frame *w, const struct frame *grids,
                       const uint8_t *codes, struct ledger *l,
                       struct stream_writer *out, struct err *e)
{
    int bits = quant_bits(*(const uint32_t *)grids->data);
    struct frame f = { .role = ROLE_CODES,
                       .dtype = bits == 8 ? DT_U8 : DT_U4,
                       .ndim = 2,
                       .dims = { w->dims[0], w->dims[1] },
                       .group = grids->group,
                       .data = codes,
                       .len = w->dims[0] * quant_row_bytes(w->dims[1], bits) };
    void *room;

    memcpy(f.name, w->name, sizeof(f.name));
    if (stream_is_pipe(out) && ledger_codes(l, f.len, &room, &f.loan)) {
        threads_copy(room, codes, f.len);
        f.data = NULL;
    }
    return stream_write(out, &f, e) < 0 ? e->code : stream_write(out, grids, e);
}

/* The note of the report, and the ancillary one of the seconds. */
static int write_notes(const struct module_report *report, const char *module,
                       struct stream_writer *out, struct err *e)
{
    struct json_writer w, t;
    int rc;

    jw_init(&w, 0);
    report_json(&w, report, NULL, false);
    rc = write_note(&w, module, false, out, e);
    jw_init(&t, 0);
    jw_begin(&t, '{');
    jw_key(&t, "seconds");
    jw_number(&t, report->seconds);
    jw_end(&t, '}');
    if (rc >= 0)
        rc = write_note(&t, module, true, out, e);
    free(w.text);
    free(t.text);
    return rc;
}

int module_write(const struct module_report *report, const struct frame *weight,
                 const struct frame *grids, const uint8_t *codes,
                 const struct module_output *to, struct err *e)
{
    const char *module = weight->name;
    struct json_writer w;
    int rc;

    if (write_codes(weight, grids, codes, to->ledger, to->out, e) < 0 ||
        write_notes(report, module, to->out, e) < 0)
        return e->code;
    if (!to->report)
        return 0;
    jw_init(&w, 0);
    report_json(&w, report, module, true);
    rc = w.failed ? err_set(e, E_TEMP, "'%s': out of memory", module) : 0;
    if (rc >= 0) {
        /* one write per line: lines of processes that share a file do not
         * mix */
        w.text[w.len] = '\n';
        rc = publish_write(to->report, w.text, w.len + 1, e);
    }
    free(w.text);
    return rc;
}

const char *module_summary(char text[MODULE_SUMMARY], uint64_t modules,
                           double loss, double loss_rtn, uint64_t fallbacks,
                           uint64_t rows_kept)
{
    int k = snprintf(text, MODULE_SUMMARY, "%llu modules",
                     (unsigned long long)modules);

    if (loss_rtn > 0)
        k += snprintf(text + k, MODULE_SUMMARY - (size_t)k,
                      ", loss %.4g (round-to-nearest %.4g)", loss, loss_rtn);
    if (fallbacks)
        k += snprintf(text + k, MODULE_SUMMARY - (size_t)k,
                      ", %llu rounded to nearest because their hessian failed",
                      (unsigned long long)fallbacks);
    if (rows_kept)
        snprintf(text + k, MODULE_SUMMARY - (size_t)k,
                 ", %llu rows whose target was too far stayed",
                 (unsigned long long)rows_kept);
    return text;
}
