/* provenance.c - see provenance.h. */
#include "shard/provenance.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/io/json.h"

/* The tool's position in a pipeline; unknown tools come last. */
static size_t rank(const char *step)
{
    static const char *const order[] = {
        "forge-tokens", "forge-generate", "forge-gradient", "forge-calib",
        "forge-hooks",  "forge-hessian",  "forge-prune",    "forge-weights",
        "forge-grid",   "forge-solve",    "forge-split",    "forge-tune",
        "forge-pack"
    };
    size_t n = strcspn(step, " "), i = 0;

    while (i < ARRAY_LEN(order) &&
           (strlen(order[i]) != n || strncmp(order[i], step, n) != 0))
        i++;
    return i;
}

static bool goes_before(const char *a, const char *b)
{
    size_t x = rank(a), y = rank(b);

    return x < y || (x == y && strcmp(a, b) < 0);
}

/* Insert a step into the list in order, unless it is there; owns text. */
static int add_step(struct provenance *p, char *text, struct err *e)
{
    size_t at;

    for (size_t i = 0; i < p->n_steps; i++)
        if (!strcmp(p->step[i], text)) {
            free(text);
            return 0;
        }
    if (mem_grow(&p->step, (p->n_steps + 1) * sizeof(*p->step), "recipe", e)) {
        free(text);
        return e->code;
    }
    for (at = p->n_steps++; at && goes_before(text, p->step[at - 1]); at--)
        p->step[at] = p->step[at - 1];
    p->step[at] = text;
    return 0;
}

/* Whether an argument belongs into the recipe: all but --layer. */
static bool is_recipe(const struct json *arg, const char **text)
{
    return json_string(arg, text) && strncmp(*text, "--layer=", 8) != 0;
}

/* "TOOL ARGUMENT..." of an entry of HEAD's history; free() it. */
static char *step_text(const struct json *program, struct err *e)
{
    const struct json *args = json_get(program, "args");
    const char *tool = "?", *arg;
    size_t n, at;
    char *text;

    (void)!json_string(json_get(program, "tool"), &tool);
    n = strlen(tool) + 1;
    for (const struct json *v = json_first(args); v; v = json_after(v))
        n += is_recipe(v, &arg) ? strlen(arg) + 1 : 0;
    text = mem_alloc(n, "recipe", e);
    if (!text)
        return NULL;
    at = (size_t)snprintf(text, n, "%s", tool);
    for (const struct json *v = json_first(args); v; v = json_after(v))
        if (is_recipe(v, &arg))
            at += (size_t)snprintf(text + at, n - at, " %s", arg);
    return text;
}

int provenance_head(struct provenance *p, const char *head, struct err *e)
{
    struct json_doc *d;
    int rc = 0;

    if (!head || (p->head && !strcmp(p->head, head)))
        return 0;
    if (mem_grow(&p->head, strlen(head) + 1, "HEAD", e))
        return e->code;
    strcpy(p->head, head);
    if (json_parse(&d, head, strlen(head), "HEAD", e))
        return e->code;
    for (const struct json *v = json_first(json_get(json_root(d), "programs"));
         v && !rc; v = json_after(v)) {
        char *text = step_text(v, e);

        text_note_take(&p->text, v);
        rc = text ? add_step(p, text, e) : e->code;
        if (!rc)
            rc = made_take(&p->made, json_get(v, "made"), e);
    }
    if (!*p->text.sha256) {
        memcpy(p->text.sha256, p->made.text_sha256, sizeof(p->text.sha256));
        p->text.sequences = p->made.sequences;
        p->text.ids = p->made.tokens;
    }
    json_free(d);
    return rc;
}

int provenance_note(struct provenance *p, const char *text, size_t len,
                    struct err *e)
{
    const char *method = "", *effort = NULL;
    const struct json *note;
    struct json_doc *d;
    double loss, rtn;

    if (json_parse(&d, text, len, "note", e))
        return e->code;
    note = json_root(d);
    if (json_string(json_get(note, "method"), &method)) {
        p->modules++;
        p->nearest += strcmp(method, "gptq") != 0;
    }
    if (json_string(json_get(note, "effort"), &effort))
        snprintf(p->effort, sizeof(p->effort), "%s", effort);
    if (json_number(json_get(note, "loss"), &loss) &&
        json_number(json_get(note, "loss_rtn"), &rtn)) {
        p->measured++;
        p->loss += loss;
        p->loss_rtn += rtn;
    }
    json_free(d);
    return 0;
}

/* Print text with `between` in place of newlines. */
static void put_lines(FILE *out, const char *text, const char *between)
{
    for (; *text; text++)
        if (*text == '\n')
            fputs(between, out);
        else
            putc(*text, out);
}

char *provenance_recipe(const struct provenance *p, const char *between,
                        struct err *e)
{
    char *text = NULL;
    size_t len;
    const char *before = p->before ? p->before : p->made.recipe;
    FILE *out = open_memstream(&text, &len);

    if (out && before) {
        put_lines(out, before, between);
        fputs(p->n_steps ? between : "", out);
    }
    for (size_t i = 0; out && i < p->n_steps; i++)
        fprintf(out, "%s%s", i ? between : "", p->step[i]);
    if (out && !fclose(out))
        return text;
    free(text);
    err_set(e, E_TEMP, "recipe: out of memory");
    return NULL;
}

static void pair(struct json_writer *j, const char *key, const char *value)
{
    jw_key(j, key);
    jw_string(j, value);
}

/* A number, which metadata have as text; 0: it is not known. */
static void count(struct json_writer *j, const char *key, int64_t n)
{
    char text[24];

    snprintf(text, sizeof(text), "%" PRId64, n);
    if (n)
        pair(j, key, text);
}

static void text_pairs(struct json_writer *j, const struct text_note *t)
{
    if (!*t->sha256)
        return;
    pair(j, "calibration_text_sha256", t->sha256);
    count(j, "calibration_sequences", t->sequences);
    count(j, "calibration_tokens", t->ids);
}

int provenance_metadata(const struct provenance *p,
                        const struct run_facts *facts, char **json,
                        struct err *e)
{
    char *recipe = provenance_recipe(p, "; ", e), group[24];
    struct json_writer j;

    if (!recipe)
        return e->code;
    jw_init(&j, 0);
    jw_begin(&j, '{');
    pair(&j, "format", "pt");
    pair(&j, "producer", "4bit-forge " FORGE_VERSION);
    if (facts) {
        snprintf(group, sizeof(group), "%" PRIu64, facts->group);
        pair(&j, "layout", layout_name(facts->layout));
        pair(&j, "bits", "4");
        pair(&j, "group_size", group);
        pair(&j, "symmetric", facts->symmetric ? "true" : "false");
        pair(&j, "scale_dtype", dtype_name(facts->scale_dtype));
        if (facts->layout == LAYOUT_INT4PACK)
            pair(&j, "capability", int4pack_name(facts->capability));
    }
    if (*recipe)
        pair(&j, "recipe", recipe);
    jw_known_text(&j, "repacked_from", p->made.layout);
    text_pairs(&j, &p->text);
    jw_end(&j, '}');
    free(recipe);
    if (j.failed) {
        free(j.text);
        return err_set(e, E_TEMP, "metadata: out of memory");
    }
    *json = j.text;
    return 0;
}

void provenance_release(struct provenance *p)
{
    for (size_t i = 0; i < p->n_steps; i++)
        free(p->step[i]);
    free(p->step);
    free(p->before);
    made_release(&p->made);
    free(p->head);
    *p = (struct provenance){ 0 };
}
