/* hooks.h - inputs of linears that other programs have written to files, such as
 * forward hooks of PyTorch, as frames of activations.
 *
 *     X.safetensors, X.pt, X.pth, X.bin   tensors by name (.pt: torch.save of a
 *                                         dict of tensors; checkpoint.h)
 *     NAME.npy                            one array (numpy.save)
 *
 * A name is the path of a linear, whose input it is, or that of an activation
 * (model_activation_name()).  Of linears that read the same input, the first one
 * of a file counts.  NAME[0], NAME[1], ... are batches of the tokens of NAME, which
 * a list of tensors is read as (pickle.h).  Tensors of other modules that the model
 * has, such as lm_head, are left out. */
#ifndef FORGE_HOOKS_H
#define FORGE_HOOKS_H

#include "arch/config.h"
#include "common/cli/progress.h"
#include "common/io/stream.h"

/* Zero-initialise; hooks_release() when done. */
struct hooks {
    struct model_config config;
    struct hooks_file *file;
    size_t files;
    struct hooks_tensor *tensor; /* in the order of the model, then of files */
    size_t n, cap;
    uint64_t
        repeated; /* tensors left out: another of the file is the same input */
    uint64_t ignored; /* tensors left out: of modules that are not quantized */
    char ignored_name[MODULE_PATH_MAX]; /* the first of these */
    const char *path;                   /* of the model, for hooks_open() */
    struct checkpoint *model;           /* its tensors' names, if looked at */
    bool looked;
};

/* Look at the files, without their tensors.  E_DATA: a name that the model does
 * not have, a tensor of another type or width, a damaged file, no tensor that is used;
 * E_NOINPUT, E_TEMP; errors of model_config_read(). */
MUST_CHECK int hooks_open(struct hooks *h, const char *model,
                          const char *const *path, int paths, struct err *e);
/* Write an activation frame for each tensor, one input after the other: BF16 if all
 * of an input's tensors are, else F32.  E_DATA, E_IO, E_TEMP. */
MUST_CHECK int hooks_write(struct hooks *h, struct stream_writer *w,
                           struct progress *p, struct err *e);
void hooks_release(struct hooks *h);

#endif
