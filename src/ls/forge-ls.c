/* forge-ls - list streams and checkpoints, check them, print tensors: forge-ls(1). */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint/checkpoint.h"
#include "checkpoint/digests.h"
#include "common/cli/tool.h"
#include "ls/show.h"

struct settings {
    struct tool tool;
    int verify, json;
    const char *head, *stats, *histogram, *ref_root;
    /* derived from the above: */
    const char *name; /* the tensor to print; NULL: list all */
    struct show_options show;
};

struct seen {
    uint64_t tensors, matches;
    struct progress progress;
};

static int parse(int argc, char **argv, struct settings *s)
{
    const struct opt table[] = {
        { OPT_FLAG, 0, "verify", NULL,
          "read and check every byte; exit 1 if one is wrong", &s->verify, 0, 0,
          true },
        { OPT_FLAG, 0, "json", NULL, "one JSON object a line", &s->json, 0, 0,
          true },
        { OPT_STR, 0, "head", "NAME", "first values of the tensor NAME",
          &s->head, 0, 0, true },
        { OPT_STR, 0, "stats", "NAME",
          "min, max, mean, std, zeros, non-finite values", &s->stats, 0, 0,
          true },
        { OPT_STR, 0, "histogram", "NAME", "16 bins from min to max",
          &s->histogram, 0, 0, true },
        { OPT_STR, 0, "ref-root", "DIR",
          "directory of the files that REF frames name", &s->ref_root, 0, 0,
          true },
        TOOL_COMMON(&s->tool),
        TOOL_END,
    };
    int i = opt_parse(argc, argv, "[OPTION]... [PATH]...",
                      "List the tensors of streams and checkpoints: role, "
                      "name, type, shape, bytes.",
                      table);

    tool_apply(&s->tool);
    if (!!s->head + !!s->stats + !!s->histogram + !!s->verify > 1)
        die(E_USAGE,
            "--verify, --head, --stats and --histogram exclude each other");
    s->name = s->head ? s->head : s->stats ? s->stats : s->histogram;
    s->show.json = s->json;
    s->show.what = s->head      ? SHOW_HEAD :
                   s->stats     ? SHOW_STATS :
                   s->histogram ? SHOW_HISTOGRAM :
                                  SHOW_LINE;
    return i;
}

static bool wanted(const struct settings *s, const char *name)
{
    return !s->verify && (!s->name || !strcmp(s->name, name));
}

/* Print a frame; its payload, at offset `at`, is read only if it is the tensor
 * asked for. */
static int show_frame(const struct settings *s, struct stream_reader *r,
                      struct frame *f, uint64_t at, const char *path,
                      struct err *e)
{
    void *payload = NULL;
    int rc = 0;

    if (s->name && !f->data) {
        payload = mem_alloc(f->len, f->name, e);
        if (!payload)
            return e->code;
        rc = stream_payload(r, at, payload, f->len, e);
        f->data = payload;
    }
    if (rc == 0)
        rc = show_tensor(s->show, f, path, NULL, e);
    free(payload);
    return rc;
}

static int list_stream(const struct settings *s, const char *path,
                       struct seen *seen, struct err *e)
{
    struct stream_expect expect = { .ref_root = s->ref_root };
    struct stream_reader *r;
    uint64_t at, bytes = 0;
    struct frame f;
    int rc;

    if (stream_open(&r, path, &expect, e) < 0)
        return e->code;
    while ((rc = s->verify ? stream_next(r, &f, e) :
                             stream_skim(r, &f, &at, e)) > 0) {
        uint64_t now = stream_bytes(r, NULL);

        seen->tensors++;
        progress_step(&seen->progress, f.name, now - bytes);
        bytes = now;
        if (!wanted(s, f.name))
            continue;
        seen->matches++;
        if ((rc = show_frame(s, r, &f, at, path, e)) < 0)
            break;
    }
    stream_close(r);
    return rc;
}

static int list_tensor(const struct settings *s, struct checkpoint *c,
                       const struct ck_tensor *t, const char *path,
                       struct seen *seen, struct err *e)
{
    struct frame f = {
        .role = ROLE_TENSOR, .dtype = t->dtype, .ndim = t->ndim, .len = t->bytes
    };
    void *payload = NULL;
    int rc = 0;

    memcpy(f.dims, t->dims, sizeof(f.dims));
    snprintf(f.name, sizeof(f.name), "%s", t->name);
    if (s->verify || (s->name && wanted(s, f.name))) {
        payload = mem_pages(t->bytes, t->name, e);
        if (!payload)
            return e->code;
        rc = checkpoint_read(c, t, payload, e);
        f.data = payload;
    }
    seen->tensors++;
    progress_step(&seen->progress, f.name, payload ? t->bytes : 0);
    if (rc == 0 && wanted(s, f.name)) {
        seen->matches++;
        rc = show_tensor(s->show, &f, path, t->file, e);
    }
    free(payload);
    return rc;
}

static int list_checkpoint(const struct settings *s, const char *path,
                           struct seen *seen, struct err *e)
{
    struct checkpoint *c;
    uint64_t listed = 0;
    struct stat st;
    int rc = 0;

    if (checkpoint_open_stored(&c, path, e) < 0)
        return e->code;
    if (s->verify && !stat(path, &st) && S_ISDIR(st.st_mode) &&
        digests_hold(path, &listed, e))
        rc = e->code;
    for (size_t i = 0; i < checkpoint_count(c) && rc == 0; i++) {
        const struct ck_tensor *t = checkpoint_tensor(c, i);

        if (!listed) {
            rc = list_tensor(s, c, t, path, seen, e);
            continue;
        }
        seen->tensors++; /* read and compared */
        progress_step(&seen->progress, t->name, t->bytes);
    }
    checkpoint_close(c);
    return rc;
}

/* Whether path is a directory, or a file with a name of a checkpoint's file
 * that does not begin as a stream does. */
static bool is_checkpoint(const char *path)
{
    size_t n = strlen(path);
    char magic[4] = "";
    struct stat st;
    int fd;

    if (stat(path, &st) || S_ISDIR(st.st_mode))
        return true;
    if (!S_ISREG(st.st_mode) ||
        !((n > 12 && !strcmp(path + n - 12, ".safetensors")) ||
          (n > 4 && !strcmp(path + n - 4, ".bin"))))
        return false;
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || read(fd, magic, sizeof(magic)) < 0)
        magic[0] = 0;
    if (fd >= 0)
        close(fd);
    return memcmp(magic, "FTS1", sizeof(magic)) != 0;
}

/* Handle a path; returns 0 or an exit status.  Under --verify the caller goes
 * on with the next path after an error. */
static int visit(const struct settings *s, const char *path, struct seen *seen)
{
    struct err e = { .msg = "" };
    uint64_t before = seen->tensors;
    bool is_stdin = !strcmp(path, "-");
    int rc = !is_stdin && is_checkpoint(path) ?
                 list_checkpoint(s, path, seen, &e) :
                 list_stream(s, path, seen, &e);

    if (rc < 0 && (!s->verify || e.code != E_DATA))
        die_err(&e);
    if (!s->verify)
        return 0;
    if (rc == 0)
        printf("%s: ok, %llu tensors\n", is_stdin ? "<stdin>" : path,
               (unsigned long long)(seen->tensors - before));
    else
        err_print(&e);
    return rc == 0 ? 0 : EXIT_NO;
}

int main(int argc, char **argv)
{
    struct settings s = { .tool = { 0 } };
    struct seen seen = { 0 };
    int i = parse(argc, argv, &s), status = 0;
    struct err e;

    signal(SIGPIPE, SIG_DFL); /* `forge-ls FILE | head` ends quietly */
    if (s.tool.progress == PROGRESS_AUTO && !s.verify)
        s.tool.progress = PROGRESS_NEVER; /* the list shows the progress */
    progress_start(&seen.progress, s.tool.progress, "tensors", 0);
    if (i == argc)
        status = visit(&s, "-", &seen);
    for (; i < argc; i++)
        status |= visit(&s, argv[i], &seen);
    if (flush_stdout(&e) < 0)
        die_err(&e);
    verbosity = s.verify && status ? -1 : verbosity; /* the reason was said */
    if (s.verify || s.tool.progress != PROGRESS_NEVER)
        progress_finish(&seen.progress, NULL);
    if (s.name && !seen.matches) {
        fprintf(stderr, "%s: no tensor is named '%s'\n", progname, s.name);
        status = EXIT_NO;
    }
    return status;
}
