/* forge - quantize a checkpoint to 4 bits, and look at the result; see
 * forge(1).
 *
 * "forge X" runs the command X of the table, or else the tool forge-X. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/math/cpu.h"
#include "forge/arguments.h"
#include "forge/command.h"
#include "forge/env.h"

/* run NULL: not a command, but a tool that --help lists with the commands */
static const struct {
    const char *name;
    int (*run)(int argc, char **argv, struct err *e);
    const char *operands, *help;
} commands[] = {
    { "quantize", command_quantize, "MODEL OUT --text FILE",
      "make a 4-bit checkpoint" },
    { "prune", command_prune, "MODEL OUT --keep K --text FILE",
      "leave out experts of a mixture" },
    { "repack", command_repack, "IN OUT --layout X",
      "store 4 bits in another layout" },
    { "eval", command_eval, "ORIGINAL OTHER --text FILE",
      "compare two checkpoints" },
    { "generate", NULL, "MODEL [PROMPT]", "text from a checkpoint" },
    { "text", NULL, "MODEL [FILE...]", "chats, parquet, ... as text" },
    { "tokens", command_tokens, "MODEL [--ids]", "the tokens of a text" },
    { "report", command_report, "WORK [-o FILE]", "an HTML page about a run" },
    { "status", command_status, "WORK [--json]", "how far a run is" },
    { "verify", NULL, "OUT", "check every byte" },
    { "gc", command_gc, "WORK [--settings]", "remove what killed runs left" },
    { "stage", command_stage, NULL, NULL },
};

static void help(void)
{
    printf("usage: forge COMMAND [OPTION]...\n"
           "Turn a Hugging Face checkpoint into a 4-bit GPTQ checkpoint.\n\n");
    for (size_t i = 0; i < ARRAY_LEN(commands); i++)
        if (commands[i].help)
            printf("  forge %-8s %-31s %s\n", commands[i].name,
                   commands[i].operands, commands[i].help);
    printf("\nforge COMMAND --help lists a command's options. forge X runs the "
           "tool forge-X,\nwhere X is no command.\n\n"
           "  -h --help                      show this and exit\n"
           "  -V --version                   show the version and exit\n");
}

/* Print the version in the form of the tools. */
static void version(void)
{
    struct err e;

    if (cpu_choose(env_text("FORGE_CPU"), &e) < 0)
        die_err(&e);
    printf("forge (4bit-forge) %s, cpu %s\n", FORGE_VERSION,
           cpu_level_name(cpu_level()));
}

/* Print the commands for shells' completion. */
static void complete(void)
{
    for (size_t i = 0; i < ARRAY_LEN(commands); i++)
        if (commands[i].help)
            printf("%s\n", commands[i].name);
    printf("--help\n--version\n");
}

NORETURN static void flush_and_exit(void)
{
    struct err e;

    if (flush_stdout(&e) < 0)
        die_err(&e);
    exit(0);
}

NORETURN static void other_tool(char **argv)
{
    char tool[64], names[512];
    int at = 0;

    snprintf(tool, sizeof(tool), "forge-%s", argv[0]);
    if (!strchr(argv[0], '/')) {
        char *name = argv[0];

        argv[0] = tool;
        execvp(tool, argv);
        argv[0] = name;
    }
    for (size_t i = 0; i < ARRAY_LEN(commands); i++)
        if (commands[i].help)
            at += snprintf(names + at, sizeof(names) - (size_t)at, "%s%s",
                           at ? "|" : "", commands[i].name);
    die(E_USAGE, "unknown command '%s'%s", argv[0], opt_hint(argv[0], names));
}

/* Of tools that take a model: an id in the Hugging Face cache, which they do not
 * know, becomes the directory of its snapshot. */
static void find_snapshot(const char *tool, char **argv)
{
    static char place[PATH_MAX];
    struct err e;

    if (strcmp(tool, "text") != 0 && strcmp(tool, "generate") != 0)
        return;
    for (; *argv; argv++) {
        const char *model = *argv;

        if (*model != '-' && access(model, F_OK) &&
            find_model(&model, place, &e) >= 0) {
            *argv = place;
            return;
        }
    }
}

/* Of `forge verify`, argv[1] on: a file is a GGUF one. */
NORETURN static void verify(int argc, char **argv)
{
    static char word[] = "gguf", option[] = "--verify";
    struct stat st;
    char **to;
    struct err e;

    if (argc < 3 || stat(argv[argc - 1], &st) || !S_ISREG(st.st_mode))
        other_tool(argv + 1);
    to = mem_zero((size_t)argc + 1, sizeof(*to), "arguments", &e);
    if (!to)
        die_err(&e);
    to[0] = word;
    to[1] = option;
    memcpy(to + 2, argv + 2, (size_t)(argc - 2) * sizeof(*to));
    other_tool(to);
}

static void options(const char *word)
{
    if (!strcmp(word, "-h") || !strcmp(word, "--help") || !strcmp(word, "help"))
        help();
    else if (!strcmp(word, "-V") || !strcmp(word, "--version"))
        version();
    else if (!strcmp(word, "--complete"))
        complete();
    else
        die(E_USAGE, "unknown option '%s' (try --help)", word);
    flush_and_exit();
}

int main(int argc, char **argv)
{
    static char name[] = "forge", ask[] = "--help";
    struct err e = { 0 };
    size_t i = 0;
    int rc;

    base_init(name);
    if (argc < 2)
        die(E_USAGE, "want a command (try --help)");
    if (argc == 3 && !strcmp(argv[1], "help")) {
        argv[1] = argv[2];
        argv[2] = ask;
    }
    if (argv[1][0] == '-' || !strcmp(argv[1], "help"))
        options(argv[1]);
    if (env_setup(&e) < 0)
        die_err(&e);
    while (i < ARRAY_LEN(commands) && strcmp(argv[1], commands[i].name) != 0)
        i++;
    if (!strcmp(argv[1], "verify"))
        verify(argc, argv);
    if (i == ARRAY_LEN(commands) || !commands[i].run) {
        find_snapshot(argv[1], argv + 2);
        other_tool(argv + 1);
    }
    argv[1] = name;
    rc = commands[i].run(argc - 1, argv + 1, &e);
    if (rc < 0) {
        err_print(&e);
        return -rc;
    }
    return rc;
}
