/* notes.c - see notes.h. */
#include "split/notes.h"

#include <stdlib.h>
#include <string.h>

#include "common/io/file.h"

/* Append text as it is. */
static int put(struct notes *n, const char *text, size_t len, struct err *e)
{
    if (mem_grow(&n->text, n->len + len + 1, "notes", e) < 0)
        return e->code;
    memcpy(n->text + n->len, text, len + 1);
    n->len += len;
    return 0;
}

static int end_line(struct notes *n, struct err *e)
{
    if (!n->module[0])
        return 0;
    n->module[0] = 0;
    return put(n, "}\n", 2, e);
}

/* Append the members of an object.  module: begin a line with this name; NULL:
 * go on with the last line.  The line's closing brace is left out. */
static int put_members(struct notes *n, const struct json *object,
                       const char *module, struct err *e)
{
    struct json_writer w;
    int rc;

    jw_init(&w, 0);
    jw_begin(&w, '{');
    if (module)
        jw_key(&w, "module"), jw_string(&w, module);
    for (const struct json *v = json_first(object); v; v = json_after(v))
        jw_key(&w, json_key(v)), jw_value(&w, v);
    if (!w.failed && !module)
        w.text[0] = ','; /* instead of '{': the line goes on */
    rc = w.failed ? err_set(e, E_TEMP, "notes: out of memory") :
                    put(n, w.text, w.len, e);
    free(w.text);
    return rc;
}

int notes_add(struct notes *n, const struct frame *f, struct err *e)
{
    bool same = n->module[0] && !strcmp(n->module, f->name);
    struct json_doc *d;
    int rc;

    if (json_parse(&d, f->data, f->len, f->name, e) < 0)
        return e->code;
    rc = json_type(json_root(d)) == JSON_OBJECT ?
             0 :
             err_set(e, E_DATA, "'%s': its note is no object", f->name);
    if (!rc && !same)
        rc = end_line(n, e);
    if (!rc && (json_first(json_root(d)) || !same))
        rc = put_members(n, json_root(d), same ? NULL : f->name, e);
    if (!rc)
        strcpy(n->module, f->name);
    json_free(d);
    return rc;
}

int notes_publish(struct notes *n, const char *path, struct err *e)
{
    int rc = end_line(n, e);

    if (!rc)
        rc = publish_text(path, n->text ? n->text : "", n->len, e);
    n->len = 0;
    return rc;
}

static bool is_no_note(const void *ctx, const struct frame *f)
{
    (void)ctx;
    return f->role != ROLE_NOTE;
}

int notes_restore(const char *codes, const char *path, struct err *e)
{
    struct notes n = { 0 };
    struct stream_reader *r;
    struct frame f;
    int rc = stream_open(&r, codes, NULL, e);

    if (rc < 0)
        return rc;
    stream_leave_out(r, is_no_note, NULL);
    while ((rc = stream_next(r, &f, e)) > 0) {
        rc = f.role == ROLE_NOTE ? notes_add(&n, &f, e) : 0;
        if (rc < 0)
            break;
    }
    stream_close(r);
    if (!rc)
        rc = notes_publish(&n, path, e);
    notes_release(&n);
    return rc;
}

void notes_release(struct notes *n)
{
    free(n->text);
    *n = (struct notes){ 0 };
}
