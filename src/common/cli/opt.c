/* opt.c - see opt.h. */
#include "common/cli/opt.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/cli/units.h"
#include "common/io/file.h"
#include "common/io/stream.h"
#include "common/math/cpu.h"

enum {
    LEFT_COLUMN = 30,
    HELP_WIDTH = 79, /* a terminal of 80 columns does not break it */
    RECORD_MAX = 8192,
    WORD_MAX = 48,
    HINT_MAX = 160
};

static char record[RECORD_MAX] = "[]";

/* Print words from column `at` on, in lines that begin at column `indent`. */
static void wrap(const char *words, int at, int indent)
{
    for (int n; *words; words += n + strspn(words + n, " ")) {
        n = (int)strcspn(words, " ");
        if (at > indent && at + 1 + n > HELP_WIDTH)
            at = printf("\n%*s", indent, "") - 1;
        at += printf("%s%.*s", at > indent ? " " : "", n, words);
    }
    putchar('\n');
}

static void help(const char *synopsis, const char *summary,
                 const struct opt *table)
{
    char left[96];

    wrap(synopsis, printf("usage: %s", progname), 7);
    wrap(summary, 0, 0);
    putchar('\n');
    for (const struct opt *o = table; o->type != OPT_END; o++) {
        snprintf(left, sizeof(left), "%c%c --%s%s%s", o->letter ? '-' : ' ',
                 o->letter ? o->letter : ' ', o->name, o->arg ? " " : "",
                 o->arg ? o->arg : "");
        printf("  %-*s%s", LEFT_COLUMN + 1, left,
               strlen(left) > LEFT_COLUMN ? "\n" : "");
        if (strlen(left) > LEFT_COLUMN)
            printf("%*s", LEFT_COLUMN + 3, "");
        wrap(o->help, LEFT_COLUMN + 3, LEFT_COLUMN + 3);
    }
    printf("  %-*s %s\n", LEFT_COLUMN, "-h --help", "show this and exit");
    printf("  %-*s %s\n", LEFT_COLUMN, "-V --version",
           "show the version and exit");
}

static void finish_stdout(void)
{
    struct err e;

    if (flush_stdout(&e) < 0)
        die_err(&e);
    exit(0);
}

const char *opt_word(const char *words, int i, char to[OPT_WORD])
{
    for (; i; i--)
        words += strcspn(words, "|") + 1;
    snprintf(to, OPT_WORD, "%.*s", (int)strcspn(words, "|"), words);
    return to;
}

static void complete(const struct opt *table)
{
    for (const struct opt *o = table; o->type != OPT_END; o++)
        printf("--%s%s%s\n", o->name, o->arg ? " " : "", o->arg ? o->arg : "");
    printf("--help\n--version\n");
}

/* ---- what may have been meant ---- */

static bool same_letter(char a, char b)
{
    return tolower((unsigned char)a) == tolower((unsigned char)b);
}

/* Optimal string alignment distance, whatever the case: the number of insertions,
 * deletions, replacements and swaps of neighbours that turn a[n] into b[m]. */
static int distance(const char *a, int n, const char *b, int m)
{
    int d[WORD_MAX + 1][WORD_MAX + 1];

    for (int i = 0; i <= n; i++)
        for (int j = 0; j <= m; j++) {
            int best;

            if (!i || !j) {
                d[i][j] = i + j;
                continue;
            }
            best = d[i - 1][j - 1] + !same_letter(a[i - 1], b[j - 1]);
            best = d[i - 1][j] + 1 < best ? d[i - 1][j] + 1 : best;
            best = d[i][j - 1] + 1 < best ? d[i][j - 1] + 1 : best;
            if (i > 1 && j > 1 && same_letter(a[i - 1], b[j - 2]) &&
                same_letter(a[i - 2], b[j - 1]) && d[i - 2][j - 2] + 1 < best)
                best = d[i - 2][j - 2] + 1;
            d[i][j] = best;
        }
    return d[n][m];
}

/* How far `word` is from the n characters given: 0 if it begins with them,
 * else their distance if that is at most a third of the length, else
 * WORD_MAX. */
static int farness(const char *given, const char *word, int n)
{
    int k = (int)strlen(given), d;

    if (k < 2 || k > WORD_MAX || n > WORD_MAX)
        return WORD_MAX;
    if (k < n && !strncasecmp(given, word, (size_t)k))
        return 0;
    d = distance(given, k, word, n);
    return d <= (k > n ? k : n) / 3 ? d : WORD_MAX;
}

const char *opt_hint(const char *given, const char *words)
{
    static char text[HINT_MAX];
    int best = WORD_MAX - 1, found = 0, at = 0;

    for (const char *w = words; *w; w += strcspn(w, "|"), w += *w == '|') {
        int n = (int)strcspn(w, "|"), d = farness(given, w, n);

        if (d > best || (d == best && found == 3))
            continue;
        if (d < best)
            found = at = 0;
        best = d;
        at += snprintf(text + at, (size_t)(HINT_MAX - at), "%s'%.*s'",
                       found ? " or " : " (did you mean ", n, w);
        found++;
    }
    if (!found)
        return " (try --help)";
    snprintf(text + at, (size_t)(HINT_MAX - at), "?)");
    return text;
}

NORETURN static void unknown(const struct opt *table, const char *arg)
{
    char words[4096], given[WORD_MAX + 2];
    int at = 0;

    words[0] = 0;
    for (const struct opt *o = table; o->type != OPT_END; o++)
        at += snprintf(words + at, sizeof(words) - (size_t)at, "%s--%s",
                       at ? "|" : "", o->name);
    snprintf(given, sizeof(given), "%.*s", (int)strcspn(arg, "="), arg);
    die(E_USAGE, "unknown option '%s'%s", arg,
        opt_hint(!strncmp(given, "--", 2) ? given : "", words));
}

/* ---- values ---- */

static int choose(const struct opt *o, const char *value)
{
    const char *word = o->arg;

    for (int i = 0;; i++) {
        size_t n = strcspn(word, "|");

        if (strlen(value) == n && !strncmp(word, value, n))
            return i;
        if (!word[n])
            die(E_USAGE, "--%s: '%s' is none of %s%s", o->name, value, o->arg,
                opt_hint(value, o->arg));
        word += n + 1;
    }
}

static void append(struct opt_list *l, const char *value)
{
    const char **p = realloc(l->item, (size_t)(l->count + 1) * sizeof(*p));

    if (!p)
        die(E_TEMP, "out of memory");
    l->item = p;
    l->item[l->count++] = value;
}

static void store_number(const struct opt *o, const char *value)
{
    char *end;
    int64_t n = 0;
    double v;

    errno = 0;
    if (o->type == OPT_INT)
        v = (double)(n = strtoimax(value, &end, 10));
    else
        v = strtod(value, &end);
    if (end == value || *end || errno || !(v >= o->min && v <= o->max))
        die(E_USAGE, "--%s: '%s' is not a number from %.15g to %.15g", o->name,
            value, o->min, o->max);
    if (o->type == OPT_INT)
        *(int64_t *)o->dst = n;
    else
        *(double *)o->dst = v;
}

static void store_size(const struct opt *o, const char *value)
{
    if (o->max > 0 && !strcmp(value, "0"))
        *(uint64_t *)o->dst = 0;
    else if (!size_parse(value, o->dst))
        die(E_USAGE,
            "--%s: '%s' is no size (such as 5GB, 512MiB, 1.5G, 1000000)",
            o->name, value);
}

static void store_output(const struct opt *o, const char *value)
{
    if (!*value)
        die(E_USAGE, "--%s: '' is no file", o->name);
    file_guard(value);
    *(const char **)o->dst = value;
}

static void store(const struct opt *o, const char *value)
{
    switch (o->type) {
    case OPT_STR: *(const char **)o->dst = value; break;
    case OPT_OUTPUT: store_output(o, value); break;
    case OPT_SIZE: store_size(o, value); break;
    case OPT_CHOICE: *(int *)o->dst = choose(o, value); break;
    case OPT_LIST: append(o->dst, value); break;
    case OPT_INT:
    case OPT_FLOAT: store_number(o, value); break;
    case OPT_FLAG:
    case OPT_END: break;
    }
}

/* False: it does not fit. */
static bool append_record(const char *name, const char *between,
                          const char *quoted)
{
    size_t n = strlen(record) - 1; /* over the ']' */

    return (size_t)snprintf(record + n, sizeof(record) - n, "%s\"--%s%s%s\"]",
                            n > 1 ? "," : "", name, between,
                            quoted) < sizeof(record) - n;
}

void opt_record(const char *option)
{
    if (!append_record(option, "", ""))
        die(E_USAGE, "--%s: too many options", option);
}

/* Append an option to `record`, as a JSON string.  One that does not fit is a
 * usage error: an incomplete record would be wrong. */
static void record_option(const struct opt *o, const char *value)
{
    const char *v = o->local ? o->arg : value ? value : "";
    char quoted[1024];
    size_t k = 0;

    if (o->local && o->local != OPT_FILE)
        return;
    for (; *v && k < sizeof(quoted) - 8; v++) {
        if ((unsigned char)*v < 0x20)
            k += (size_t)sprintf(quoted + k, "\\u%04x", *v);
        else {
            if (*v == '"' || *v == '\\')
                quoted[k++] = '\\';
            quoted[k++] = *v;
        }
    }
    quoted[k] = 0;
    if (*v || !append_record(o->name, value ? "=" : "", quoted))
        die(E_USAGE, "--%s: value is too long", o->name);
}

static const struct opt *find(const struct opt *table, const char *arg,
                              const char **value)
{
    for (const struct opt *o = table; o->type != OPT_END; o++) {
        size_t n = strlen(o->name);

        if (arg[1] == '-' && !strncmp(arg + 2, o->name, n) &&
            (!arg[2 + n] || arg[2 + n] == '=')) {
            *value = arg[2 + n] ? arg + 3 + n : NULL;
            return o;
        }
        if (arg[1] != o->letter || !o->letter)
            continue;
        if (o->type == OPT_INT && arg[2] >= '0' && arg[2] <= '9')
            *value = arg + 2; /* -j2 */
        if (!arg[2] || *value)
            return o;
    }
    return NULL;
}

/* Move argv[from..to] in front of the operands that begin at *first. */
static void move_before(char **argv, int *first, int from, int to)
{
    for (; from <= to; from++, ++*first) {
        char *moved = argv[from];

        memmove(argv + *first + 1, argv + *first,
                (size_t)(from - *first) * sizeof(*argv));
        argv[*first] = moved;
    }
}

/* The output of a tool that writes a stream: NULL or "-" is standard output. */
static const char **output;

static void tell_reader(const struct err *why)
{
    if (!*output || !strcmp(*output, "-"))
        stream_refuse(why);
}

const char *opt_for_stream;

static bool wants_stream(char **argv)
{
    size_t n = opt_for_stream ? strlen(opt_for_stream) : 0;

    while (n && *argv &&
           (strncmp(*argv, opt_for_stream, n) ||
            ((*argv)[n] && (*argv)[n] != '=')))
        argv++;
    return !n || *argv;
}

/* The table's rows are TOOL_STREAM's (tool.h) if there is a key to store. */
static void expect_reader(const struct opt *table, char **argv)
{
    const char *value;

    if (!find(table, "--key", &value) || !wants_stream(argv))
        return;
    output = find(table, "--output", &value)->dst;
    die_tells = tell_reader;
}

int opt_parse(int argc, char **argv, const char *synopsis, const char *summary,
              const struct opt *table)
{
    int first = 1;
    struct err e;

    base_init(argv[0]);
    expect_reader(table, argv);
    if (cpu_choose(getenv("FORGE_CPU"), &e) < 0)
        die_err(&e);
    strcpy(record, "[]");
    stream_args = record;
    if (argc == 2 && !strcmp(argv[1], "--complete")) {
        complete(table);
        finish_stdout();
    }
    for (int i = 1; i < argc; i++) {
        const char *value = NULL;
        const struct opt *o;
        int at = i;

        if (argv[i][0] != '-' || !argv[i][1])
            continue;
        if (!strcmp(argv[i], "--")) {
            move_before(argv, &first, i, i);
            break;
        }
        if (!strcmp(argv[i], "-h") || !strcmp(argv[i], "--help")) {
            help(synopsis, summary, table);
            finish_stdout();
        }
        if (!strcmp(argv[i], "-V") || !strcmp(argv[i], "--version")) {
            printf("%s (4bit-forge) %s, cpu %s\n", progname, FORGE_VERSION,
                   cpu_level_name(cpu_level()));
            finish_stdout();
        }
        o = find(table, argv[i], &value);
        if (!o)
            unknown(table, argv[i]);
        if (o->type == OPT_FLAG) {
            if (value)
                die(E_USAGE, "--%s takes no value", o->name);
            ++*(int *)o->dst;
        } else if (!value && ++i == argc) {
            die(E_USAGE, "--%s wants %s", o->name, o->arg);
        } else if (!value && !strncmp(argv[i], "--", 2)) {
            die(E_USAGE, "--%s wants %s, not '%s'", o->name, o->arg, argv[i]);
        } else {
            store(o, value ? value : argv[i]);
        }
        record_option(o, o->type == OPT_FLAG ? NULL : value ? value : argv[i]);
        move_before(argv, &first, at, i);
    }
    return first;
}
