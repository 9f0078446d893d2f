/* forge-report - write an HTML page about a quantization run.  See
 * forge-report(1). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/cli/opt.h"
#include "common/io/file.h"
#include "report/data.h"
#include "report/outputs.h"
#include "report/page.h"
#include "report/sizes.h"

struct settings {
    struct opt_list eval, compare;
    struct page_params page;
    const char *hitmap, *work;
};

static void parse(struct settings *s, int argc, char **argv)
{
    const struct opt table[] = {
        { OPT_OUTPUT, 'o', "output", "FILE",
          "publish the page as FILE [standard output]", &s->page.output, 0, 0,
          true },
        { OPT_LIST, 0, "eval", "FILE",
          "figures that forge-eval --json gave, by layer or not", &s->eval, 0,
          0, true },
        { OPT_LIST, 0, "compare", "NAME=FILE",
          "figures of another checkpoint of the model, on the same tokens",
          &s->compare, 0, 0, true },
        { OPT_STR, 0, "json", "FILE", "write all that is shown as JSON, too",
          &s->page.json, 0, 0, true },
        { OPT_STR, 0, "csv", "FILE", "write the linear layers as CSV, too",
          &s->page.csv, 0, 0, true },
        { OPT_STR, 0, "hitmap", "FILE",
          "hit maps of another pass, to compare the run's with", &s->hitmap, 0,
          0, true },
        { OPT_STR, 0, "beside", "WORK", "show the loss of another run, too",
          &s->page.compared, 0, 0, true },
        { OPT_STR, 0, "title", "TEXT",
          "what the page calls the model [name of its directory]",
          &s->page.title, 0, 0, true },
        { OPT_END, 0, NULL, NULL, NULL, NULL, 0, 0, false },
    };
    int i = opt_parse(argc, argv, "[option...] WORK",
                      "Make an HTML page about a run from its work directory.",
                      table);
    struct err e;

    if (argc - i != 1)
        die(E_USAGE, "want one work directory (try --help)");
    s->work = argv[i];
    if (outputs_check(s->page.output, s->page.json, s->page.csv, &e) < 0)
        die_err(&e);
    if (!strcmp(s->page.output, "-") && isatty(STDOUT_FILENO))
        die(E_USAGE, "will not write a page to a terminal: use -o FILE");
}

static int compare(struct records *r, const char *path, struct err *e)
{
    struct workdir other;
    int rc = workdir_read(&other, path, e);

    if (rc < 0)
        return rc;
    records_compare(r, &other.records);
    workdir_release(&other);
    return 0;
}

static int evaluations(struct workdir *w, struct settings *s, struct err *e)
{
    int rc = 0;

    for (int i = 0; rc >= 0 && i < s->eval.count; i++)
        rc = records_read(&w->records, RECORD_FIGURES, s->eval.item[i], e);
    for (int i = 0; rc >= 0 && i < s->compare.count; i++)
        rc = peers_new(s->compare.item, i, e) < 0 ?
                 e->code :
                 peers_add(&s->page.peers, s->compare.item[i], e);
    return rc < 0 ? rc : peers_check(&s->page.peers, &w->records, e);
}

static int read_all(struct workdir *w, struct settings *s, struct err *e)
{
    int rc = sizes_read(w, e);

    if (rc >= 0)
        rc = evaluations(w, s, e);
    if (rc >= 0 && s->page.compared)
        rc = compare(&w->records, s->page.compared, e);
    if (rc >= 0 && s->hitmap)
        rc = hitmaps_read(&s->page.cheap, s->hitmap, e);
    return rc;
}

/* ---- outputs ---- */

typedef int data_maker(const struct page *, char **, size_t *, struct err *);

static int write_data(const struct page *p, data_maker *make, const char *path,
                      struct err *e)
{
    char *text;
    size_t len;
    int rc;

    if (!path)
        return 0;
    rc = make(p, &text, &len, e);
    if (rc >= 0)
        rc = publish_text(path, text, len, e);
    free(text);
    return rc;
}

static int write_page(const struct page *p, const char *output, struct err *e)
{
    struct html h = { 0 };
    int rc = page_write(&h, p, e);

    if (rc >= 0 && strcmp(output, "-") != 0) {
        rc = publish_text(output, h.text, h.len, e);
    } else if (rc >= 0) {
        fwrite(h.text, 1, h.len, stdout);
        rc = flush_stdout(e);
    }
    free(h.text);
    return rc;
}

static int write_all(const struct settings *s, const struct workdir *w,
                     struct err *e)
{
    struct page p;
    int rc = page_open(&p, w, &s->page, e);

    if (rc >= 0)
        rc = write_data(&p, data_json, s->page.json, e);
    if (rc >= 0)
        rc = write_data(&p, data_csv, s->page.csv, e);
    if (rc >= 0)
        rc = write_page(&p, s->page.output, e);
    page_close(&p);
    return rc;
}

static int report(struct settings *s, struct err *e)
{
    struct workdir w;
    int rc = workdir_read(&w, s->work, e);

    if (rc < 0)
        return rc;
    rc = read_all(&w, s, e);
    if (rc >= 0)
        rc = write_all(s, &w, e);
    hitmaps_release(&s->page.cheap);
    peers_release(&s->page.peers);
    workdir_release(&w);
    return rc;
}

int main(int argc, char **argv)
{
    struct settings s = { .page.output = "-" };
    struct err e;

    parse(&s, argc, argv);
    if (report(&s, &e) < 0)
        die_err(&e);
    return 0;
}
