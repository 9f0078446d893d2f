/* forge-device - which GPU the other tools would compute on.  See
 * forge-device(1). */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/cli/tool.h"
#include "common/cli/units.h"
#include "common/io/json.h"
#include "device/device.h"

static void parse(struct device_choice *c, struct tool *t, int *json, int argc,
                  char **argv)
{
    const struct opt table[] = {
        { OPT_FLAG, 0, "json", NULL, "print one JSON object", json, 0, 0,
          true },
        GPU_OPTIONS(c),
        { OPT_FLAG, 'v', "verbose", NULL, "print why there is none",
          &t->verbose, 0, 0, true },
        TOOL_END,
    };
    int i = opt_parse(argc, argv, "[option...]",
                      "Print the GPU that tools compute on.", table);

    if (argc > i)
        die(E_USAGE, "'%s': takes no operand (try --help)", argv[i]);
    tool_apply(t);
}

static int print_json(const struct device_facts *f, struct err *e)
{
    struct json_writer w;
    int rc = 0;

    jw_init(&w, 0);
    jw_begin(&w, '{');
    jw_key(&w, "device"), jw_string(&w, f->stamp);
    jw_key(&w, "memory"), jw_int(&w, (int64_t)f->memory);
    jw_key(&w, "free"), jw_int(&w, (int64_t)f->free);
    jw_key(&w, "room"), jw_int(&w, (int64_t)f->room);
    jw_end(&w, '}');
    if (w.failed)
        rc = err_set(e, E_TEMP, "out of memory");
    else
        printf("%s\n", w.text);
    free(w.text);
    return rc;
}

static void print_text(const struct device_facts *f)
{
    char a[UNIT_TEXT], b[UNIT_TEXT], c[UNIT_TEXT];

    if (*f->stamp)
        printf("%s\n%s of memory, %s free, %s for the states of tokens\n",
               f->stamp, size_text(a, (double)f->memory),
               size_text(b, (double)f->free), size_text(c, (double)f->room));
    else
        printf("the CPU\n");
}

int main(int argc, char **argv)
{
    struct device_choice c = { .factors = true };
    struct device_facts f = { .stamp = "" };
    struct tool tool = { 0 };
    struct err e;
    int json = 0, rc;

    parse(&c, &tool, &json, argc, argv);
    rc = device_open(&c, NULL, &e);
    if (rc >= 0 && device_gpu())
        rc = device_functions()->facts(device_gpu(), c.factors, &f, &e);
    if (rc >= 0 && json)
        rc = print_json(&f, &e);
    else if (rc >= 0)
        print_text(&f);
    if (rc < 0 || flush_stdout(&e) < 0)
        die_err(&e);
    return 0;
}
