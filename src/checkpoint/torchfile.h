/* torchfile.h - the zip archives that torch.save writes (pytorch_model.bin).
 *
 *     ARCHIVE/data.pkl    a pickled dict: names to tensors
 *     ARCHIVE/data/KEY    the storages, not compressed
 *     ARCHIVE/byteorder   "little", if present
 *
 * The pickle is run by a machine that can only build tensors (pickle.h). */
#ifndef FORGE_TORCHFILE_H
#define FORGE_TORCHFILE_H

#include "checkpoint/entry.h"

enum { TORCHFILE_PICKLE_MAX = 32 * 1024 * 1024 };

/* Append the tensors of f to l, in the order of the pickle.  *text [*len]:
 * data.pkl, free() it; NULL on error.  what: the quoted file name, for
 * messages.  E_DATA: a damaged archive, an older format of torch.save, a
 * pickle that needs more than tensors (by name), a tensor that exceeds its
 * storage; E_IO, E_TEMP. */
MUST_CHECK int torchfile_list(struct ck_list *l, struct file *f,
                              const char *what, char **text, size_t *len,
                              struct err *e);

#endif
