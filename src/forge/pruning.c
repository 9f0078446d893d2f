/* pruning.c - see pruning.h; and the command line of forge prune. */
#include "forge/pruning.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint/expertmap.h"
#include "checkpoint/sidecar.h"
#include "forge/arguments.h"
#include "forge/command.h"
#include "forge/disk.h"
#include "forge/pipes.h"
#include "prune/prune.h"

int prune_check(const struct prune_request *p, const char *model, struct err *e)
{
    struct model_config config;
    struct checkpoint *c;
    struct stat st;
    int rc;

    if (stat(model, &st) || !S_ISDIR(st.st_mode))
        return err_set(e, E_NOINPUT, "'%s': no such directory", model);
    if (p->hitmap && (stat(p->hitmap, &st) || !S_ISREG(st.st_mode)))
        return err_set(e, E_NOINPUT, "'%s': no such file", p->hitmap);
    if (!p->hitmap && check_text(p->text, e) < 0)
        return e->code;
    rc = model_config_read(&config, model, e);
    if (rc)
        return rc;
    rc = expert_count_check(&config, p->keep, e);
    model_config_release(&config);
    if (rc || (rc = checkpoint_open(&c, model, e)))
        return rc;
    rc = check_plain(model, checkpoint_storage(c) != STORAGE_PLAIN, e);
    checkpoint_close(c);
    return rc ? rc : sidecars_check(model, e);
}

/* Write the map of experts to keep to the descriptor `map`, from the given hit
 * maps or from a pass over the text. */
static int make_map(const struct prune_request *p, const char *model, int map,
                    struct err *e)
{
    char keep[WORD], by[WORD], threads[WORD], n[WORD], len[WORD];
    char progress[WORD];
    struct command *c;
    struct pipes pipes;

    pipes_init(&pipes);
    pipes.out = map;
    pipes.captured = p->captured;
    number_word(threads, p->threads);
    if (!p->hitmap) {
        command_add(pipes_add(&pipes, "forge-tokens"), "-q", "--sequences",
                    number_word(n, p->sequences), "--seqlen",
                    number_word(len, p->seqlen), "--", model, p->text, NULL);
        c = pipes_add(&pipes, "forge-calib");
        command_add(c, "-q", "--hitmap", "--threads", threads, NULL);
        if (p->device)
            command_add(c, "--device", p->device, NULL);
        if (p->gpu)
            command_add(c, "--expect-device", p->gpu, NULL);
        command_add(c, "--", model, NULL);
    }
    c = pipes_add(&pipes, "forge-prune");
    command_add(c, "--from", model, "--keep", number_word(keep, p->keep),
                "--by", opt_word(PRUNE_WORDS, p->by, by), "--threads", threads,
                "--progress", opt_word(PROGRESS_WORDS, p->progress, progress),
                NULL);
    if (p->quiet)
        command_add(c, "-q", NULL);
    if (p->hitmap)
        command_add(c, "--", p->hitmap, NULL);
    return pipes_run(&pipes, e);
}

static int write_model(const struct prune_request *p, const char *model,
                       const char *out, int map, struct err *e)
{
    char path[32], mode[WORD], threads[WORD], size[WORD], progress[WORD];
    struct command *c;
    struct pipes pipes;

    snprintf(path, sizeof(path), "/proc/self/fd/%d", map);
    opt_word(EXPERT_MODES, p->mode, mode);
    number_word(threads, p->threads);
    pipes_init(&pipes);
    pipes.captured = p->captured;
    command_add(pipes_add(&pipes, "forge-weights"), "-q", "--threads", threads,
                "--expert-map", path, "--mode", mode, "--", model, NULL);
    c = pipes_add(&pipes, "forge-shard");
    command_add(c, "--threads", threads, "--progress",
                opt_word(PROGRESS_WORDS, p->progress, progress), "--expert-map",
                path, "--mode", mode, "--shard-size",
                number_word(size, (int64_t)p->shard_size), "--from", model,
                NULL);
    if (p->quiet)
        command_add(c, "-q", NULL);
    command_add(c, "--", out, NULL);
    return pipes_run(&pipes, e);
}

int prune_make(const struct prune_request *p, const char *model,
               const char *out, struct err *e)
{
    int map = memfd_create("expert-map", 0), rc; /* inherited by the tools */

    if (map < 0)
        return err_set(e, E_TEMP, "the map of experts:");
    rc = make_map(p, model, map, e);
    if (!rc)
        rc = write_model(p, model, out, map, e);
    close(map);
    return rc;
}

/* E_IO: OUT's disk has no room for all tensors, of experts those that are kept. */
static int check_room(const struct prune_request *p, const char *model,
                      const char *given, const char *out, struct err *e)
{
    struct model_config config;
    struct checkpoint *c;
    double need = 0;
    int rc = model_config_read(&config, model, e);

    if (rc)
        return rc;
    rc = checkpoint_open(&c, model, e);
    for (size_t i = 0; !rc && i < checkpoint_count(c); i++) {
        const struct ck_tensor *t = checkpoint_tensor(c, i);
        struct tensor_name name;

        tensor_name_parse(&name, t->name);
        if (!config.tied || strcmp(t->name, "lm_head.weight") != 0)
            need += name.expert < 0 ? (double)t->bytes :
                                      (double)t->bytes * (double)p->keep /
                                          (double)config.moe.n_experts;
    }
    if (!rc) {
        const struct disk_claim claim = {
            given, out, disk_shards(need, need, (double)p->shard_size)
        };

        rc = disk_check(&claim, e);
        checkpoint_close(c);
    }
    model_config_release(&config);
    return rc;
}

int command_prune(int argc, char **argv, struct err *e)
{
    struct prune_request p = { .sequences = 128,
                               .seqlen = 512,
                               .shard_size = SHARD_SIZE };
    struct opt_list texts = { 0 };
    const struct opt table[] = {
        { OPT_INT, 0, "keep", "K", "experts to keep in each layer", &p.keep, 1,
          65536, false },
        { OPT_LIST, 0, "text", "FILE",
          "gather the router's statistics on FILE: text, JSON lines, .npy",
          &texts, 0, 0, false },
        { OPT_STR, 0, "hitmap", "FILE",
          "take the router's statistics from FILE instead", &p.hitmap, 0, 0,
          false },
        { OPT_CHOICE, 0, "by", PRUNE_WORDS,
          "statistic that ranks the experts [tokens]", &p.by, 0, 0, false },
        { OPT_CHOICE, 0, "mode", EXPERT_MODES,
          "prune: a smaller model; remap: the router stays whole and a map "
          "goes beside it [prune]",
          &p.mode, 0, 0, false },
        { OPT_INT, 0, "sequences", "N", "sequences of the text [128]",
          &p.sequences, 1, 1000000, false },
        { OPT_INT, 0, "seqlen", "T", "tokens in each sequence [512]", &p.seqlen,
          1, 1000000, false },
        { OPT_SIZE, 0, "shard-size", "SIZE",
          "most bytes in a file of OUT [5GB]", &p.shard_size, 0, 0, false },
        COMMAND_COMMON(&p.threads, &p.progress, &p.quiet),
        { OPT_END, 0, NULL, NULL, NULL, NULL, 0, 0, false },
    };
    int i = opt_parse(argc, argv,
                      "prune MODEL OUT --keep K (--text FILE | "
                      "--hitmap FILE) [option]...",
                      "Make a model with fewer experts.", table);
    char model[PATH_MAX], out[PATH_MAX], place[PATH_MAX];
    const char *given = argv[i];

    if (argc - i != 2)
        return err_set(e, E_USAGE, "want MODEL and OUT (try --help)");
    if (!p.keep)
        return err_set(e, E_USAGE, "want --keep K (try --help)");
    verbosity = p.quiet ? -1 : 0;
    if (only_text(&texts, &p.text, e) < 0 || find_model(&given, place, e) < 0 ||
        prune_check(&p, given, e) < 0 || path_absolute(given, model, e) < 0 ||
        path_absolute(argv[i + 1], out, e) < 0 ||
        check_out(argv[i + 1], out, model, e) < 0 ||
        check_room(&p, given, argv[i + 1], out, e) < 0)
        return e->code;
    return prune_make(&p, given, argv[i + 1], e);
}
