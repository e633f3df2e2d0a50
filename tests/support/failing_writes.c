/* Preloaded by tests/test_failing_writes.py: counts the calls that change a folder, and has the
 * N-th of them fail, or kill the process.  Orders and the count are in a file that both map. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static struct orders {
    _Atomic int count; /* of calls so far */
    int at;            /* the call that fails; 0: none */
    int error;         /* with this errno; 0: the process is killed */
    int lasting;       /* whether later calls fail as well, but for those that make room */
    char call[32], path[512]; /* what failed first */
    char folder[512];         /* the calls under it count; empty: none does */
} *orders;

__attribute__((constructor)) static void begin(void) {
    const char *name = getenv("FAILING_WRITES");
    int file = name ? open(name, O_RDWR | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *shared = mmap(NULL, sizeof(struct orders), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (shared != MAP_FAILED)
        orders = shared;
}

enum { NEEDS_ROOM, MAKES_ROOM };

static int fails(const char *call, const char *path, int kind) {
    if (!orders || !orders->folder[0] || strncmp(path, orders->folder, strlen(orders->folder)))
        return 0;
    int number = atomic_fetch_add(&orders->count, 1) + 1;
    int later = orders->lasting && number > orders->at;
    if (!orders->at || (number != orders->at && !later))
        return 0;
    if (orders->lasting && kind == MAKES_ROOM)
        return 0;
    if (!orders->call[0]) {
        snprintf(orders->call, sizeof orders->call, "%s", call);
        snprintf(orders->path, sizeof orders->path, "%s", path);
    }
    if (!orders->error)
        kill(getpid(), SIGKILL);
    errno = orders->error;
    return 1;
}

static int fails_file(const char *call, int file) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t size = readlink(link, path, sizeof path - 1);
    path[size < 0 ? 0 : size] = 0;
    return fails(call, path, NEEDS_ROOM);
}

static int fails_path(const char *call, int folder, const char *path, int kind) {
    char link[64], whole[2 * PATH_MAX];
    if (path[0] == '/')
        return fails(call, path, kind);
    snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    ssize_t size = readlink(folder == AT_FDCWD ? "/proc/self/cwd" : link, whole, PATH_MAX - 1);
    snprintf(whole + (size < 0 ? 0 : size), PATH_MAX, "/%s", path);
    return fails(call, whole, kind);
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define WRAP(type, name, parameters, condition, arguments) \
    type name parameters { return condition ? -1 : NEXT(name) arguments; }
#define OF_FILE(type, name, parameters, arguments) \
    WRAP(type, name, parameters, fails_file(#name, file), arguments)
#define OF_PATH(name, parameters, folder, path, kind, arguments) \
    WRAP(int, name, parameters, fails_path(#name, folder, path, kind), arguments)

OF_FILE(ssize_t, write, (int file, const void *data, size_t size), (file, data, size))
OF_FILE(ssize_t, writev, (int file, const struct iovec *data, int n), (file, data, n))
OF_FILE(ssize_t, pwrite, (int file, const void *data, size_t n, off_t at), (file, data, n, at))
OF_FILE(ssize_t, pwrite64, (int file, const void *data, size_t n, off_t at), (file, data, n, at))
OF_FILE(int, fsync, (int file), (file))
OF_FILE(int, fdatasync, (int file), (file))
OF_FILE(int, ftruncate, (int file, off_t size), (file, size))
OF_FILE(int, ftruncate64, (int file, off_t size), (file, size))

OF_PATH(mkdir, (const char *path, mode_t mode), AT_FDCWD, path, NEEDS_ROOM, (path, mode))
OF_PATH(mkdirat, (int at, const char *path, mode_t mode), at, path, NEEDS_ROOM, (at, path, mode))
OF_PATH(rename, (const char *old, const char *new), AT_FDCWD, new, NEEDS_ROOM, (old, new))
OF_PATH(renameat, (int a, const char *old, int b, const char *new), b, new, NEEDS_ROOM,
        (a, old, b, new))
OF_PATH(renameat2, (int a, const char *old, int b, const char *new, unsigned how), b, new,
        NEEDS_ROOM, (a, old, b, new, how))
OF_PATH(link, (const char *old, const char *new), AT_FDCWD, new, NEEDS_ROOM, (old, new))
OF_PATH(symlink, (const char *to, const char *path), AT_FDCWD, path, NEEDS_ROOM, (to, path))
OF_PATH(unlink, (const char *path), AT_FDCWD, path, MAKES_ROOM, (path))
OF_PATH(unlinkat, (int at, const char *path, int how), at, path, MAKES_ROOM, (at, path, how))
OF_PATH(rmdir, (const char *path), AT_FDCWD, path, MAKES_ROOM, (path))

/* Opening counts where it may write. */
#define OPEN(name, signature, folder, arguments) \
    int name signature { \
        mode_t mode = 0; \
        if (how & O_CREAT || (how & O_TMPFILE) == O_TMPFILE) { \
            va_list rest; \
            va_start(rest, how); \
            mode = va_arg(rest, mode_t); \
            va_end(rest); \
        } \
        int writes = how & (O_CREAT | O_WRONLY | O_RDWR | O_TRUNC); \
        if (writes && fails_path(#name, folder, path, NEEDS_ROOM)) \
            return -1; \
        return NEXT(name) arguments; \
    }
OPEN(open, (const char *path, int how, ...), AT_FDCWD, (path, how, mode))
OPEN(open64, (const char *path, int how, ...), AT_FDCWD, (path, how, mode))
OPEN(openat, (int at, const char *path, int how, ...), at, (at, path, how, mode))
OPEN(openat64, (int at, const char *path, int how, ...), at, (at, path, how, mode))
