/* recorder - a file system (FUSE) with one file, `disk`, that writes down what is
 * done to it: below a loop device, what a file system asks of a disk.
 *
 *     recorder IMAGE LOG MOUNTPOINT
 *
 * The log is a row of records, little-endian:
 *     u8 'W'  u64 offset  u64 length  bytes...    written, not yet flushed
 *     u8 'F'  u64 0       u64 0                   all before it is to last
 *     u8 'M'  u64 0       u64 length  name...     somebody looked up `mark-NAME`
 * in the order in which they came; one thread serves. */
#define FUSE_USE_VERSION 31

#include <errno.h>
#include <fcntl.h>
#include <fuse.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int image, journal;
static off_t size;

static int put(const void *buf, size_t n)
{
    const char *p = buf;

    while (n) {
        ssize_t k = write(journal, p, n);

        if (k <= 0)
            return -EIO;
        p += k;
        n -= (size_t)k;
    }
    return 0;
}

static int record(char kind, uint64_t offset, const void *data, uint64_t n)
{
    unsigned char head[17] = { (unsigned char)kind };

    memcpy(head + 1, &offset, 8);
    memcpy(head + 9, &n, 8);
    if (put(head, sizeof(head)) || put(data, n))
        return -EIO;
    return 0;
}

static int is_disk(const char *path)
{
    return !strcmp(path, "/disk");
}

static int op_getattr(const char *path, struct stat *st,
                      struct fuse_file_info *fi)
{
    (void)fi;
    memset(st, 0, sizeof(*st));
    if (!strncmp(path, "/mark-", 6))
        return record('M', 0, path + 6, strlen(path + 6)) ? -EIO : -ENOENT;
    if (!strcmp(path, "/")) {
        st->st_mode = S_IFDIR | 0755;
        st->st_nlink = 2;
        return 0;
    }
    if (!is_disk(path))
        return -ENOENT;
    st->st_mode = S_IFREG | 0600;
    st->st_nlink = 1;
    st->st_size = size;
    return 0;
}

static int op_open(const char *path, struct fuse_file_info *fi)
{
    (void)fi;
    return is_disk(path) ? 0 : -ENOENT;
}

static int op_read(const char *path, char *buf, size_t n, off_t at,
                   struct fuse_file_info *fi)
{
    ssize_t k = pread(image, buf, n, at);

    (void)path, (void)fi;
    return k < 0 ? -EIO : (int)k;
}

static int op_write(const char *path, const char *buf, size_t n, off_t at,
                    struct fuse_file_info *fi)
{
    (void)path, (void)fi;
    if (pwrite(image, buf, n, at) != (ssize_t)n ||
        record('W', (uint64_t)at, buf, n))
        return -EIO;
    return (int)n;
}

static int op_fsync(const char *path, int data, struct fuse_file_info *fi)
{
    (void)path, (void)data, (void)fi;
    return record('F', 0, "", 0);
}

/* No holes: what is discarded would have to be written down, too. */
static int op_fallocate(const char *path, int mode, off_t at, off_t n,
                        struct fuse_file_info *fi)
{
    (void)path, (void)mode, (void)at, (void)n, (void)fi;
    return -EOPNOTSUPP;
}

int main(int argc, char **argv)
{
    static const struct fuse_operations ops = {
        .getattr = op_getattr,
        .open = op_open,
        .read = op_read,
        .write = op_write,
        .fsync = op_fsync,
        .fallocate = op_fallocate,
    };
    static char foreground[] = "-f", single[] = "-s", opt[] = "-o",
                timeouts[] = "entry_timeout=0,negative_timeout=0";
    char *args[] = { argv[0], foreground, single, opt, timeouts, NULL };
    struct stat st;

    if (argc != 4) {
        fprintf(stderr, "usage: recorder IMAGE LOG MOUNTPOINT\n");
        return 64;
    }
    image = open(argv[1], O_RDWR | O_CLOEXEC);
    journal = open(argv[2], O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (image < 0 || journal < 0 || fstat(image, &st)) {
        perror("recorder");
        return 74;
    }
    size = st.st_size;
    args[5] = argv[3];
    return fuse_main(6, args, &ops, NULL);
}
