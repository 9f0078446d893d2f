/* torchfile.h - the zip files that torch.save writes (pytorch_model.bin).
 *
 *     ARCHIVE/data.pkl    a pickled dict: names to tensors
 *     ARCHIVE/data/KEY    one storage each, stored, not compressed
 *     ARCHIVE/byteorder   "little" when it is there
 *
 * The pickle is run by a machine that can build tensors and nothing else
 * (pickle.h). */
#ifndef FORGE_TORCHFILE_H
#define FORGE_TORCHFILE_H

#include "checkpoint/entry.h"

enum { TORCHFILE_PICKLE_MAX = 32 * 1024 * 1024 };

/* Append the tensors of f to l, in the order of the pickle.  *text (len
 * bytes, free() it): data.pkl.  what: the file's name in messages, quoted.
 * E_DATA: a damaged archive, an older format of torch.save, a pickle that
 * asks for more than tensors, by name; a tensor that is not inside its
 * storage.  *text is NULL then. */
MUST_CHECK int torchfile_list(struct ck_list *l, struct file *f,
                              const char *what, char **text, size_t *len,
                              struct err *e);

#endif
