/* Any bytes as a .bin file; tensors that are accepted can be read. */
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "checkpoint/torchfile.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void read_all(const struct ck_list *l, struct file *f)
{
    struct err e;

    for (size_t i = 0; i < l->count; i++) {
        void *buf;

        if (l->item[i].bytes > 1 << 20)
            continue;
        buf = malloc(l->item[i].bytes ? l->item[i].bytes : 1);
        if (ck_entry_read(&l->item[i], f, buf, &e))
            abort(); /* it said that this lies in the file */
        free(buf);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    struct ck_list l = { 0 };
    struct file *f;
    struct err e;
    char *text;
    size_t len;

    if (write(fd, data, n) != (ssize_t)n || file_from_fd(&f, fd, "f", &e)) {
        close(fd);
        return 0;
    }
    if (!torchfile_list(&l, f, "'f'", &text, &len, &e)) {
        free(text);
        read_all(&l, f);
    }
    ck_list_release(&l);
    file_close(f);
    return 0;
}
