/* forge-report - write an HTML page about a quantization run.  See
 * forge-report(1). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/cli/opt.h"
#include "common/io/file.h"
#include "report/page.h"

struct settings {
    struct opt_list eval;
    struct page_params page;
    const char *output, *hitmap, *work;
};

static void parse(struct settings *s, int argc, char **argv)
{
    const struct opt table[] = {
        { OPT_STR, 'o', "output", "FILE",
          "publish the page as FILE [standard output]", &s->output, 0, 0,
          true },
        { OPT_LIST, 0, "eval", "FILE",
          "figures that forge-eval --json gave, by layer or not", &s->eval, 0,
          0, true },
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

    if (argc - i != 1)
        die(E_USAGE, "want one work directory (try --help)");
    s->work = argv[i];
    if (!strcmp(s->output, "-") && isatty(STDOUT_FILENO))
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

static int make(struct html *h, struct settings *s, struct err *e)
{
    struct workdir w;
    int rc = workdir_read(&w, s->work, e);

    if (rc < 0)
        return rc;
    for (int i = 0; rc >= 0 && i < s->eval.count; i++)
        rc = records_read(&w.records, RECORD_FIGURES, s->eval.item[i], e);
    if (rc >= 0 && s->page.compared)
        rc = compare(&w.records, s->page.compared, e);
    if (rc >= 0 && s->hitmap)
        rc = hitmaps_read(&s->page.cheap, s->hitmap, e);
    if (rc >= 0)
        rc = page_write(h, &w, &s->page, e);
    hitmaps_release(&s->page.cheap);
    workdir_release(&w);
    return rc;
}

static int deliver(const struct html *h, const char *path, struct err *e)
{
    if (strcmp(path, "-") != 0)
        return publish_text(path, h->text, h->len, e);
    fwrite(h->text, 1, h->len, stdout);
    return flush_stdout(e);
}

int main(int argc, char **argv)
{
    struct settings s = { .output = "-" };
    struct html h = { 0 };
    struct err e;

    parse(&s, argc, argv);
    if (make(&h, &s, &e) < 0 || deliver(&h, s.output, &e) < 0)
        die_err(&e);
    free(h.text);
    return 0;
}
