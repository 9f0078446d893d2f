/* runfacts.c - see runfacts.h. */
#include "layout/runfacts.h"

#include <stdlib.h>

#include "common/io/json.h"

int run_facts_write(const struct run_facts *r, char **text, struct err *e)
{
    struct json_writer j;

    jw_init(&j, 0);
    jw_begin(&j, '{');
    jw_key(&j, "layout");
    jw_string(&j, layout_name(r->layout));
    jw_key(&j, "bits");
    jw_int(&j, r->bits);
    jw_key(&j, "group");
    jw_int(&j, (int64_t)r->group);
    jw_key(&j, "symmetric");
    jw_bool(&j, r->symmetric);
    jw_key(&j, "scale_dtype");
    jw_string(&j, dtype_name(r->scale_dtype));
    if (r->mixed) {
        jw_key(&j, "mixed");
        jw_bool(&j, true);
    }
    if (r->act_order) {
        jw_key(&j, "act_order");
        jw_bool(&j, true);
    }
    if (r->layout == LAYOUT_INT4PACK) {
        jw_key(&j, "capability");
        jw_string(&j, int4pack_name(r->capability));
    }
    jw_end(&j, '}');
    if (j.failed) {
        free(j.text);
        return err_set(e, E_TEMP, "run note: out of memory");
    }
    *text = j.text;
    return 0;
}

static bool understood(struct run_facts *r, const struct json *root)
{
    const char *layout = "", *dtype = "", *capability = "";
    int64_t bits = 0, group = 0;

    if (!json_string(json_get(root, "layout"), &layout) ||
        !layout_parse(layout, &r->layout) ||
        !json_int(json_get(root, "bits"), &bits) || (bits != 4 && bits != 8) ||
        !json_int(json_get(root, "group"), &group) || group < 1 ||
        !json_bool(json_get(root, "symmetric"), &r->symmetric) ||
        !json_string(json_get(root, "scale_dtype"), &dtype))
        return false;
    r->bits = (int)bits;
    r->group = (uint64_t)group;
    r->scale_dtype = dtype_parse(dtype);
    r->act_order = r->mixed = false;
    (void)!json_bool(json_get(root, "mixed"), &r->mixed);
    (void)!json_bool(json_get(root, "act_order"), &r->act_order);
    (void)!json_string(json_get(root, "capability"), &capability);
    r->capability = int4pack_parse(capability);
    if (r->layout == LAYOUT_INT4PACK && r->capability == INT4PACK_UNKNOWN)
        return false;
    return r->scale_dtype == DT_F16 || r->scale_dtype == DT_BF16;
}

int run_facts_read(struct run_facts *r, const char *text, size_t len,
                   const char *where, struct err *e)
{
    struct json_doc *d;
    int rc = 0;

    if (json_parse(&d, text, len, where, e))
        return e->code;
    if (!understood(r, json_root(d)))
        rc = err_set(e, E_DATA,
                     "%s: no run note of a forge-pack that this version "
                     "knows",
                     where);
    json_free(d);
    return rc;
}

bool run_facts_agree(const struct run_facts *a, const struct run_facts *b)
{
    return a->layout == b->layout && a->bits == b->bits &&
           a->group == b->group && a->symmetric == b->symmetric &&
           a->scale_dtype == b->scale_dtype && a->mixed == b->mixed &&
           (a->layout != LAYOUT_INT4PACK || a->capability == b->capability);
}

bool run_facts_equal(const struct run_facts *a, const struct run_facts *b)
{
    return run_facts_agree(a, b) && a->act_order == b->act_order;
}
