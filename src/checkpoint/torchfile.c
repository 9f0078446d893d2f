/* torchfile.c - the archive of torch.save. */
#include "checkpoint/torchfile.h"

int torchfile_list(struct ck_list *l, struct file *f, const char *what,
                   char **text, size_t *len, struct err *e)
{
    (void)l, (void)f;
    *text = NULL;
    *len = 0;
    return err_set(e, E_DATA, "%s: .bin files are not read yet", what);
}
