/* publishdir.h - writes a collection of tensors as a checkpoint directory. */
#ifndef FORGE_PUBLISHDIR_H
#define FORGE_PUBLISHDIR_H

#include "common/cli/progress.h"
#include "shard/shardplan.h"
#include "shard/verify.h"

struct publication {
    const char *model;   /* the source directory */
    uint64_t shard_size; /* bytes of data per shard, at most */
    int64_t sample;      /* linears to compare after writing */
    bool in_order;       /* the layers come in order (order.h) */
    /* Linears that are quantized, and come: all other tensors are taken from the source.
     * NULL: all come. */
    const struct module_choice *quantized;
    const struct expert_map *map; /* experts to prune; NULL: none */
    enum expert_mode mode;
    struct progress *progress;
};

struct outdir;
struct publisher;

/* Begin a checkpoint in o, which the caller commits or releases; p and o must outlive
 * the publisher.  The source and its config are read here.  Errors of
 * model_config_read(), checkpoint_open(), checkpoint_prune(), weights_plan(),
 * collect_others(). */
MUST_CHECK int publisher_open(struct publisher **u, const struct publication *p,
                              const struct outdir *o, struct err *e);
/* Where the inputs are collected, by collect() or publisher_pipe(). */
struct collection *publisher_collection(struct publisher *u);
/* collect_pipe(), which writes each shard as soon as its tensors have come and the run
 * note tells how they were packed.  Errors of collect_pipe() and writing. */
MUST_CHECK int publisher_pipe(struct publisher *u,
                              const struct stream_expect *expect,
                              struct err *e);
/* All inputs are collected: plan, write what is not written, and verify.  All that can
 * be checked without the payloads is checked before (complete.h).  *shards: number of
 * weight files.  Errors of complete_check(), quant_dict(), shard_plan_take(),
 * verify_checkpoint(), reading and writing; E_DATA also: a name came twice; E_TEMP
 * also: a signal. */
MUST_CHECK int publisher_finish(struct publisher *u, int *shards,
                                struct verify_report *r, struct err *e);
void publisher_close(struct publisher *u); /* NULL is allowed */

#endif
