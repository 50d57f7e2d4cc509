/* Preloaded by tests: the process sees another clock, other folders' order, another number of processors, other cache
 * sizes, another /proc/cpuinfo and another host name. Says in a log that it was there.
 *
 *   VARIED_SECONDS     added to the clock and to the times of files
 *   VARIED_REVERSED    folders are listed backwards
 *   VARIED_PROCESSORS  their number
 *   VARIED_CPUINFO     read in place of /proc/cpuinfo
 *   VARIED_HOST        name of the host
 *   VARIED_LOG         gets a line when a process begins (`here`), and one for the first of each kind of answer that is
 *                      another one: what it was, a tab, the process's command
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

static long seconds, processors;
static int reversed;
static const char *information, *host, *log_path;
enum { CLOCK = 1, FILE_TIMES = 2, ORDER = 4, PROCESSORS = 8, INFORMATION = 16, HOST = 32 };
static unsigned answered;

#define NEXT(name) ((__typeof__(&name))next(#name))
static void *next(const char *name) { return dlsym(RTLD_NEXT, name); }

static long number(const char *name) {
    const char *text = getenv(name);
    return text ? atol(text) : 0;
}

/* System calls, so that nothing else that is preloaded sees them. */
static void say(const char *what) {
    char line[2048];
    if (!log_path) return;
    size_t size = (size_t)snprintf(line, sizeof line, "%s\t", what);
    int command = (int)syscall(SYS_openat, AT_FDCWD, "/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    long length = syscall(SYS_read, command, line + size, sizeof line - size - 1);
    syscall(SYS_close, command);
    for (long each = 0; each < length; each++, size++)
        if (line[size] == 0 || line[size] == '\n') line[size] = ' ';
    line[size++] = '\n';
    int file = (int)syscall(SYS_openat, AT_FDCWD, log_path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    syscall(SYS_write, file, line, size);
    syscall(SYS_close, file);
}

static void tell(unsigned kind, const char *what) {
    if (!(__atomic_fetch_or(&answered, kind, __ATOMIC_RELAXED) & kind)) say(what);
}

__attribute__((constructor)) static void begin(void) {
    seconds = number("VARIED_SECONDS");
    reversed = getenv("VARIED_REVERSED") != NULL;
    processors = number("VARIED_PROCESSORS");
    information = getenv("VARIED_CPUINFO");
    host = getenv("VARIED_HOST");
    log_path = getenv("VARIED_LOG");
    say("here");
}

/* The clock. */

int clock_gettime(clockid_t clock, struct timespec *at) {
    int status = NEXT(clock_gettime)(clock, at);
    if (!status && seconds && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI)) {
        at->tv_sec += seconds;
        tell(CLOCK, "clock");
    }
    return status;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    int status = NEXT(gettimeofday)(at, zone);
    if (!status && seconds) {
        at->tv_sec += seconds;
        tell(CLOCK, "clock");
    }
    return status;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}

/* The times of files: a file that is written now is as new as the clock says. */

#define SHIFT(result)                                                                                              \
    if (!status && seconds) {                                                                                      \
        (result)->st_atim.tv_sec += seconds;                                                                       \
        (result)->st_mtim.tv_sec += seconds;                                                                       \
        (result)->st_ctim.tv_sec += seconds;                                                                       \
        tell(FILE_TIMES, "file times");                                                                            \
    }                                                                                                              \
    return status;

#define STATS(suffix)                                                                                              \
    int stat##suffix(const char *restrict path, struct stat##suffix *restrict result) {                            \
        int status = NEXT(stat##suffix)(path, result);                                                             \
        SHIFT(result)                                                                                              \
    }                                                                                                              \
    int lstat##suffix(const char *restrict path, struct stat##suffix *restrict result) {                           \
        int status = NEXT(lstat##suffix)(path, result);                                                            \
        SHIFT(result)                                                                                              \
    }                                                                                                              \
    int fstat##suffix(int file, struct stat##suffix *result) {                                                     \
        int status = NEXT(fstat##suffix)(file, result);                                                            \
        SHIFT(result)                                                                                              \
    }                                                                                                              \
    int fstatat##suffix(int folder, const char *restrict path, struct stat##suffix *restrict result, int flags) {  \
        int status = NEXT(fstatat##suffix)(folder, path, result, flags);                                           \
        SHIFT(result)                                                                                              \
    }

#undef stat
STATS()
STATS(64)

int statx(int folder, const char *restrict path, int flags, unsigned mask, struct statx *restrict result) {
    int status = NEXT(statx)(folder, path, flags, mask, result);
    if (!status && seconds) {
        result->stx_atime.tv_sec += seconds;
        result->stx_mtime.tv_sec += seconds;
        result->stx_ctime.tv_sec += seconds;
        result->stx_btime.tv_sec += seconds;
        tell(FILE_TIMES, "file times");
    }
    return status;
}

static void shifted_back(struct timespec *to, const struct timespec *from) {
    for (int each = 0; each < 2; each++) {
        to[each] = from[each];
        if (from[each].tv_nsec != UTIME_NOW && from[each].tv_nsec != UTIME_OMIT) to[each].tv_sec -= seconds;
    }
}

int utimensat(int folder, const char *path, const struct timespec times[2], int flags) {
    struct timespec real[2];
    if (times) shifted_back(real, times);
    return NEXT(utimensat)(folder, path, times ? real : NULL, flags);
}

int futimens(int file, const struct timespec times[2]) {
    struct timespec real[2];
    if (times) shifted_back(real, times);
    return NEXT(futimens)(file, times ? real : NULL);
}

/* Folders: all entries are read at first, and given from the last to the first. */

struct listing {
    DIR *folder;
    struct dirent64 **entries;
    size_t count, left;
    int error;
    struct listing *next;
};
static struct listing *listings;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void forget(DIR *folder) {
    pthread_mutex_lock(&lock);
    for (struct listing **at = &listings; *at; at = &(*at)->next)
        if ((*at)->folder == folder) {
            struct listing *gone = *at;
            *at = gone->next;
            for (size_t each = 0; each < gone->count; each++) free(gone->entries[each]);
            free(gone->entries);
            free(gone);
            break;
        }
    pthread_mutex_unlock(&lock);
}

static struct listing *listing_of(DIR *folder) {
    pthread_mutex_lock(&lock);
    struct listing *found = listings;
    while (found && found->folder != folder) found = found->next;
    if (!found && (found = calloc(1, sizeof *found))) {
        struct dirent64 *entry;
        found->folder = folder;
        errno = 0;
        while ((entry = NEXT(readdir64)(folder))) {
            struct dirent64 **longer = realloc(found->entries, (found->count + 1) * sizeof *longer);
            if (!longer) abort();
            found->entries = longer;
            if (!(longer[found->count] = malloc(sizeof *entry))) abort();
            memcpy(longer[found->count++], entry, entry->d_reclen < sizeof *entry ? entry->d_reclen : sizeof *entry);
        }
        found->error = errno;
        found->left = found->count;
        found->next = listings;
        listings = found;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

struct dirent64 *readdir64(DIR *folder) {
    if (!reversed) return NEXT(readdir64)(folder);
    int before = errno;
    struct listing *found = listing_of(folder);
    tell(ORDER, "order");
    errno = found->left ? before : found->error ? found->error : before;
    return found->left ? found->entries[--found->left] : NULL;
}

struct dirent *readdir(DIR *folder) { return (struct dirent *)readdir64(folder); }

void rewinddir(DIR *folder) {
    forget(folder);
    NEXT(rewinddir)(folder);
}

int closedir(DIR *folder) {
    forget(folder);
    return NEXT(closedir)(folder);
}

/* Processors. */

static int affinity(size_t size, cpu_set_t *set) {
    CPU_ZERO_S(size, set);
    for (long each = 0; each < processors; each++) CPU_SET_S((size_t)each, size, set);
    tell(PROCESSORS, "processors");
    return 0;
}

int sched_getaffinity(pid_t process, size_t size, cpu_set_t *set) {
    return processors ? affinity(size, set) : NEXT(sched_getaffinity)(process, size, set);
}

int pthread_getaffinity_np(pthread_t thread, size_t size, cpu_set_t *set) {
    return processors ? affinity(size, set) : NEXT(pthread_getaffinity_np)(thread, size, set);
}

long sysconf(int name) {
    if (processors) {
        tell(PROCESSORS, "processors");
        if (name == _SC_NPROCESSORS_ONLN || name == _SC_NPROCESSORS_CONF) return processors;
        if (name == _SC_LEVEL1_DCACHE_SIZE) return 48 << 10;
        if (name == _SC_LEVEL2_CACHE_SIZE) return 2 << 20;
        if (name == _SC_LEVEL3_CACHE_SIZE) return 60 << 20;
    }
    return NEXT(sysconf)(name);
}

int get_nprocs(void) { return processors ? (int)processors : NEXT(get_nprocs)(); }
int get_nprocs_conf(void) { return processors ? (int)processors : NEXT(get_nprocs_conf)(); }

static const char *elsewhere(const char *path) {
    if (!information || !path || strcmp(path, "/proc/cpuinfo") != 0) return path;
    tell(INFORMATION, "cpuinfo");
    return information;
}

#define OPENS(suffix)                                                                                              \
    int open##suffix(const char *path, int flags, ...) {                                                           \
        va_list rest;                                                                                              \
        va_start(rest, flags);                                                                                     \
        mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(rest, mode_t) : 0;                                  \
        va_end(rest);                                                                                              \
        return NEXT(open##suffix)(elsewhere(path), flags, mode);                                                   \
    }                                                                                                              \
    int openat##suffix(int folder, const char *path, int flags, ...) {                                             \
        va_list rest;                                                                                              \
        va_start(rest, flags);                                                                                     \
        mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(rest, mode_t) : 0;                                  \
        va_end(rest);                                                                                              \
        return NEXT(openat##suffix)(folder, elsewhere(path), flags, mode);                                         \
    }                                                                                                              \
    FILE *fopen##suffix(const char *restrict path, const char *restrict mode) {                                    \
        return NEXT(fopen##suffix)(elsewhere(path), mode);                                                         \
    }

OPENS()
OPENS(64)

/* The host. */

int uname(struct utsname *name) {
    int status = NEXT(uname)(name);
    if (!status && host) {
        snprintf(name->nodename, sizeof name->nodename, "%s", host);
        snprintf(name->release, sizeof name->release, "%s", "9.9.9-varied");
        snprintf(name->version, sizeof name->version, "%s", "#1 another kernel");
        tell(HOST, "host");
    }
    return status;
}

int gethostname(char *name, size_t size) {
    if (!host) return NEXT(gethostname)(name, size);
    tell(HOST, "host");
    snprintf(name, size, "%s", host);
    return 0;
}
