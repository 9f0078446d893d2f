/* stream_ref.c - see stream_ref.h. */
#include "common/io/stream_ref.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/io/file.h"

/* Whether the text of the path alone cannot leave the directory. */
static bool stays_below(const char *path)
{
    while (*path) {
        size_t n = strcspn(path, "/");

        if (!n || (n == 1 && path[0] == '.') ||
            (n == 2 && path[0] == '.' && path[1] == '.'))
            return false;
        path += n;
        if (*path == '/' && !*++path)
            return false;
    }
    return true;
}

static int open_below(int dirfd, const char *path)
{
    struct open_how how = {
        .flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK,
        .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS,
    };
    long fd = syscall(SYS_openat2, dirfd, path, &how, sizeof(how));

    if (fd < 0 && (errno == ENOSYS || errno == EPERM)) {
        how.flags |= O_NOFOLLOW; /* no openat2: an old kernel or a sandbox */
        fd = openat(dirfd, path, (int)how.flags);
    }
    return (int)fd;
}

int ref_open(struct file **f, const char *root, const char *path, struct err *e)
{
    int dirfd, fd;

    if (!*path || !stays_below(path))
        return err_set(e, E_DATA, "'%s': path leaves the directory", path);
    dirfd = open(root, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (dirfd < 0)
        return err_set(e, err_open_code(errno), "cannot open '%s':", root);
    fd = open_below(dirfd, path);
    if (fd < 0) {
        err_set(
            e, errno == EXDEV || errno == ELOOP ? E_DATA : err_open_code(errno),
            errno == EXDEV || errno == ELOOP ?
                "'%s': path leaves the directory" :
                "cannot open '%s':",
            path);
        close(dirfd);
        return e->code;
    }
    close(dirfd);
    if (file_from_fd(f, fd, path, e) < 0) {
        close(fd);
        return e->code;
    }
    return 0;
}
