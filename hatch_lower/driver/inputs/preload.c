/* What a process asks of the file system, its environment and the network, written to the file HATCH_LOWER_RECORD.
 *
 * Loaded with LD_PRELOAD, so native code and child processes are in it too. Each function below calls the next one of
 * its name and notes what came of it. A record is one kind, one path (absolute, not normalized) and one zero byte, in
 * one write at the end of the log; `log.py` reads it. Before the path is the state of what
 * was found there, where the call tells it: device, inode, mode, size, times of modification and of change.
 *
 * Everything here may run in a signal handler, between vfork and exec, or before main: notes are taken with system
 * calls alone, without locks, memory from the heap, or a descriptor that is kept (a program may close or replace all
 * of its descriptors). What cannot be noted marks the log by its sticky bit, which needs neither space nor a
 * descriptor. What was noted once is not noted again by the same process: the order of first notes is kept.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <ftw.h>
#include <glob.h>
#include <link.h>
#include <netdb.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <unistd.h>
#include <wordexp.h>

enum kind {
    OPENED = 'R', WRITTEN = 'W', UPDATED = 'B', MISSING = 'M', DENIED = 'D', LOOKED_AT = 'S', LINKS = 'K', LISTED = 'L',
    LISTED_BY_PROGRAMS = 'F', VARIABLES = 'V', NETWORK = 'N', EXECUTED = 'X', PROCESSES = 'P', INCOMPLETE = 'I',
    TIMED = 'T', LINKED = 'H', BOUND = 'U'
};
/* The recorder adds notes of what this library cannot know (`hatch_lower_note`); of their kinds these matter here. */
enum { FOLDERS_MADE = 'G', REMOVED = 'O', VARIABLE_SET = 'Z' };
enum { WITH_TARGET = 'a' - 'A' }; /* added to OPENED and UPDATED: the path that a link led to follows */
enum { UNKNOWN, OFF, ON };
enum { SLOTS = 1 << 15, PROBES = 16, LONGEST = 4096 };

static char log_path[LONGEST];
static char library_path[LONGEST];
static int state = UNKNOWN;
static uint64_t recorded[SLOTS]; /* hashes of the records written; a full row only means that some are repeated */
static int is_recorder;          /* this is the recorded program or a fork of it, not one that it runs */
static int quiet_process;        /* more than 0: only what is written, and processes, are noted */
static __thread int quiet_thread;

/* ---- records ---- */

/* The caller sees no errno but that of the function it called. */
static long system_call(long number, long first, const void *second, long third, long fourth)
{
    int error = errno;
    long result = syscall(number, first, second, third, fourth);
    errno = error;
    return result;
}

static uint64_t hashed(uint64_t hash, const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++)
        hash = (hash ^ (unsigned char)text[i]) * 1099511628211u;
    return hash;
}

static uint64_t *slot_of(uint64_t hash, uint64_t wanted)
{
    size_t start = (size_t)((hash * 11400714819323198485u) >> 49);
    for (size_t i = 0; i < PROBES; i++) {
        uint64_t *slot = &recorded[(start + i) % SLOTS];
        if (__atomic_load_n(slot, __ATOMIC_RELAXED) == wanted)
            return slot;
    }
    return NULL;
}

struct state {
    int known;
    uint64_t numbers[6];
};
static const struct state NO_STATE;

#define NANOSECONDS(moment) ((uint64_t)(moment).tv_sec * 1000000000u + (uint64_t)(moment).tv_nsec)
#define STATE_OF(found) \
    ((struct state){1, {(uint64_t)(found)->st_dev, (uint64_t)(found)->st_ino, (found)->st_mode, \
                        (uint64_t)(found)->st_size, NANOSECONDS((found)->st_mtim), NANOSECONDS((found)->st_ctim)}})

static struct state state_of_descriptor(int descriptor)
{
    struct stat found;
    int error = errno;
    int known = descriptor >= 0 && fstat(descriptor, &found) == 0;
    errno = error;
    return known ? STATE_OF(&found) : NO_STATE;
}

/* Whether a kind is noted at any time: it says that what follows is no input, or which processes there were. */
static int is_always_noted(int kind)
{
    return kind == WRITTEN || kind == PROCESSES || kind == LINKED || kind == FOLDERS_MADE || kind == REMOVED ||
           kind == VARIABLE_SET;
}

/* Writes hexadecimal numbers, each with a comma behind it. */
static void state_text(const struct state *state, char *to)
{
    for (size_t i = 0; state->known && i < sizeof state->numbers / sizeof *state->numbers; i++) {
        int shift = 60;
        while (shift > 0 && !(state->numbers[i] >> shift))
            shift -= 4;
        for (; shift >= 0; shift -= 4)
            *to++ = "0123456789abcdef"[state->numbers[i] >> shift & 15];
        *to++ = ',';
    }
    *to = 0;
}

static void emit_state(int kind, const struct state *state, const char *base, const char *path, const char *target)
{
    char text[6 * 17 + 1];
    char first = (char)(kind == LISTED && !is_recorder ? LISTED_BY_PROGRAMS : kind);
    if (!is_always_noted(kind) && (quiet_thread || __atomic_load_n(&quiet_process, __ATOMIC_RELAXED)))
        return;
    state_text(state, text);
    size_t lengths[] = {strlen(text), strlen(base), strlen(path) + 1, *target ? strlen(target) + 1 : 0};
    uint64_t hash = hashed(hashed(14695981039346656037u, &first, 1), text, lengths[0]);
    hash = hashed(hashed(hashed(hash, base, lengths[1]), path, lengths[2]), target, lengths[3]);
    hash += hash == 0;
    if (slot_of(hash, hash))
        return;
    struct iovec parts[] = {
        {&first, 1}, {text, lengths[0]}, {(void *)base, lengths[1]}, {(void *)path, lengths[2]},
        {(void *)target, lengths[3]}
    };
    long wanted = (long)(1 + lengths[0] + lengths[1] + lengths[2] + lengths[3]);
    long written = -1;
    long log = system_call(SYS_openat, AT_FDCWD, log_path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (log >= 0) {
        written = system_call(SYS_writev, log, parts, 5, 0);
        system_call(SYS_close, log, NULL, 0, 0);
    }
    if (written != wanted) {
        system_call(SYS_fchmodat, AT_FDCWD, log_path, S_ISVTX | 0600, 0);
        return;
    }
    uint64_t none = 0, *slot = slot_of(hash, 0);
    if (slot)
        __atomic_compare_exchange_n(slot, &none, hash, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

static void emit(int kind, const char *base, const char *path, const char *target)
{
    emit_state(kind, &NO_STATE, base, path, target);
}

/* For the recorded program itself: whoever records may look at things that the program did not ask for. */
void hatch_lower_quiet(int step, int everywhere)
{
    if (everywhere)
        __atomic_add_fetch(&quiet_process, step, __ATOMIC_RELAXED);
    else
        quiet_thread += step;
}

/* Called by the recorded program itself: from here on everything is noted again, whether it was before or not. */
void hatch_lower_forget(void)
{
    is_recorder = 1;
    for (size_t i = 0; i < SLOTS; i++)
        __atomic_store_n(&recorded[i], 0, __ATOMIC_RELAXED);
}

static const char *variable(const char *name)
{
    size_t length = strlen(name);
    for (char **each = environ; each && *each; each++)
        if (strncmp(*each, name, length) == 0 && (*each)[length] == '=')
            return *each + length + 1;
    return NULL;
}

static long link_target(const char *path, char *to)
{
    long length = system_call(SYS_readlinkat, AT_FDCWD, path, (long)to, LONGEST - 1);
    if (length >= 0)
        to[length] = 0;
    return length;
}

static long descriptor_path(int descriptor, char *to)
{
    char name[40] = "/proc/self/fd/";
    char digits[12], *last = digits + sizeof digits - 1;
    if (descriptor < 0)
        return -1;
    *last = 0;
    for (int rest = descriptor; last == digits + sizeof digits - 1 || rest; rest /= 10)
        *--last = (char)('0' + rest % 10);
    strcat(name, last);
    return link_target(name, to);
}

static __attribute__((noinline)) void begin(void)
{
    const char *path = variable("HATCH_LOWER_RECORD");
    if (!path || path[0] != '/' || strlen(path) >= sizeof log_path) {
        __atomic_store_n(&state, OFF, __ATOMIC_RELEASE);
        return;
    }
    strcpy(log_path, path);
    __atomic_store_n(&state, ON, __ATOMIC_RELEASE);
    char executable[LONGEST];
    int known = link_target("/proc/self/exe", executable) > 0;
    emit(known ? PROCESSES : INCOMPLETE, "", known ? executable : "/proc is not there", "");
}

static int active(void)
{
    int known = __atomic_load_n(&state, __ATOMIC_ACQUIRE);
    if (known == UNKNOWN && environ) {
        begin();
        known = __atomic_load_n(&state, __ATOMIC_ACQUIRE);
    }
    return known == ON;
}

static __attribute__((noinline)) void emit_relative(int kind, const struct state *state, int folder, const char *path,
                                                    const char *target)
{
    char base[LONGEST + 1];
    int known = folder == AT_FDCWD ? system_call(SYS_getcwd, (long)base, (void *)LONGEST, 0, 0) > 0
                                   : descriptor_path(folder, base) > 0;
    if (!known || base[0] != '/' || strlen(path) >= LONGEST) {
        emit(INCOMPLETE, "", "a relative path could not be resolved", "");
        return;
    }
    size_t end = strlen(base);
    strcpy(base + end, base[end - 1] == '/' ? "" : "/");
    end = strlen(base);
    if (strncmp(base, target, end) == 0 && strcmp(path, target + end) == 0)
        target = "";
    emit_state(kind + (*target ? WITH_TARGET : 0), state, base, path, target);
}

/* Notes a path that the kernel was given with the folder's descriptor. */
static void note_with_target(int kind, const struct state *state, int folder, const char *path, const char *target)
{
    if (!path || !*path)
        return;
    if (strnlen(path, LONGEST) == LONGEST)
        emit(INCOMPLETE, "", "a path is too long", "");
    else if (path[0] != '/')
        emit_relative(kind, state, folder, path, target);
    else if (!*target || strcmp(path, target) == 0)
        emit_state(kind, state, "", path, "");
    else
        emit_state(kind + WITH_TARGET, state, "", path, target);
}

static void note_state(int kind, struct state state, int folder, const char *path)
{
    if (active())
        note_with_target(kind, &state, folder, path, "");
}

static void note(int kind, int folder, const char *path)
{
    note_state(kind, NO_STATE, folder, path);
}

/* For the recorded program itself, whose recorder knows more than the calls tell: one log has the order of all. */
void hatch_lower_note(int kind, const char *text)
{
    if (active())
        emit(kind, "", text, "");
}

static void note_failure(int folder, const char *path)
{
    int error = errno;
    if (error == ENOENT || error == ENOTDIR)
        note(MISSING, folder, path);
    else if (error == EACCES || error == EPERM)
        note(DENIED, folder, path);
    else if (error != EFAULT && error != EBADF && error != ENAMETOOLONG)
        note(LOOKED_AT, folder, path);
}

static void note_result(int kind, int folder, const char *path, int worked)
{
    if (worked)
        note(kind, folder, path);
    else
        note_failure(folder, path);
}

/* Notes a folder of which only a descriptor is known. */
static __attribute__((noinline)) void note_descriptor(int kind, int descriptor)
{
    char path[LONGEST];
    if (active() && descriptor_path(descriptor, path) > 0 && path[0] == '/') {
        struct state state = state_of_descriptor(descriptor);
        emit_state(kind, &state, "", path, "");
    }
}

/* A file that was there is opened by its path; where links led to is noted with it, for links can be gone later. */
static __attribute__((noinline)) void note_content(int kind, int folder, const char *path, int descriptor)
{
    char target[LONGEST];
    int known = descriptor_path(descriptor, target) > 0 && target[0] == '/';
    struct state state = state_of_descriptor(descriptor);
    note_with_target(kind, &state, folder, path, known ? target : "");
}

static void note_open(int folder, const char *path, int flags, int descriptor)
{
    int created = (flags & O_TRUNC) || (flags & (O_CREAT | O_EXCL)) == (O_CREAT | O_EXCL);
    int readable = (flags & O_ACCMODE) == O_RDONLY && !(flags & O_CREAT);
    if (!active() || (flags & O_TMPFILE) == O_TMPFILE)
        return;
    if (descriptor < 0 && errno == ENOTDIR && (flags & O_DIRECTORY))
        note(LOOKED_AT, folder, path);
    else if (descriptor < 0)
        note_failure(folder, path);
    else if (flags & O_PATH)
        note(LOOKED_AT, folder, path);
    else if (flags & O_DIRECTORY)
        note_state(LISTED, state_of_descriptor(descriptor), folder, path);
    else if (created)
        note(WRITTEN, folder, path);
    else
        note_content(readable ? OPENED : UPDATED, folder, path, descriptor);
}

static void note_stream(const char *path, const char *mode, FILE *stream)
{
    int flags = strchr(mode, '+') ? O_RDWR : mode[0] == 'r' ? O_RDONLY : O_WRONLY;
    if (path)
        note_open(AT_FDCWD, path, flags | (mode[0] == 'w' ? O_TRUNC : 0), stream ? fileno(stream) : -1);
}

static void note_listing(const char *path, int worked, int descriptor)
{
    if (!worked && errno == ENOTDIR)
        note(LOOKED_AT, AT_FDCWD, path);
    else if (!worked)
        note_failure(AT_FDCWD, path);
    else
        note_state(LISTED, state_of_descriptor(descriptor), AT_FDCWD, path);
}

static void note_look(int folder, const char *path, int worked, struct state state)
{
    if (worked)
        note_state(LOOKED_AT, state, folder, path);
    else
        note_failure(folder, path);
}

/* Who asks for few things and a time among them wants the time: `ls -t` and `stat --format %Y` do. */
static void note_statx(int folder, const char *path, int worked, unsigned mask, const struct statx *found)
{
    struct state state = NO_STATE;
    if (worked && (found->stx_mask & STATX_BASIC_STATS) == STATX_BASIC_STATS)
        state = (struct state){1, {makedev(found->stx_dev_major, found->stx_dev_minor), found->stx_ino, found->stx_mode,
                                   found->stx_size, NANOSECONDS(found->stx_mtime), NANOSECONDS(found->stx_ctime)}};
    note_look(folder, path, worked, state);
    if (worked && (mask & (STATX_MTIME | STATX_CTIME)) && (mask & STATX_BASIC_STATS) != STATX_BASIC_STATS)
        note(TIMED, folder, path);
}

/* The file stays what it is, though its time of change does not. */
static void note_link(int from, const char *old, int to, const char *new, int result)
{
    int error = errno;
    struct stat found;
    note_result(OPENED, from, old, result == 0);
    if (result == 0) {
        note(WRITTEN, to, new);
        if (fstatat(to, new, &found, AT_SYMLINK_NOFOLLOW) == 0)
            note_state(LINKED, STATE_OF(&found), to, new);
    }
    errno = error;
}

static void note_move(int from, const char *source, int to, const char *target, int result)
{
    if (result != 0) {
        note_failure(from, source);
        return;
    }
    note(UPDATED, from, source);
    note(WRITTEN, to, target);
}

static void note_reason(const char *reason, const char *detail)
{
    if (active() && detail)
        emit(INCOMPLETE, reason, strnlen(detail, LONGEST) < LONGEST ? detail : "", "");
}

/* An address is noted as the hexadecimal digits of its structure, a name as it is after an @. `local` is the kind of a
 * note of an address on this machine; 0: none. */
static void note_address(const struct sockaddr *address, socklen_t length, int local)
{
    static const char digits[] = "0123456789abcdef";
    char text[2 * sizeof(struct sockaddr_storage) + 1];
    const unsigned char *bytes = (const unsigned char *)address;
    size_t size = 0;
    if (!address || length < sizeof address->sa_family || !active())
        return;
    if (address->sa_family != AF_INET && address->sa_family != AF_INET6 && (!local || address->sa_family != AF_UNIX))
        return;
    for (; size < length && size < sizeof(struct sockaddr_storage); size++) {
        text[2 * size] = digits[bytes[size] >> 4];
        text[2 * size + 1] = digits[bytes[size] & 15];
    }
    text[2 * size] = 0;
    emit(address->sa_family == AF_UNIX ? local : NETWORK, "", text, "");
}

static void note_name(const char *name)
{
    if (name && active())
        emit(NETWORK, "@", strnlen(name, LONGEST) < LONGEST ? name : "", "");
}

static int is_inherited(char *const environment[])
{
    int found = 0;
    for (; environment && *environment; environment++) {
        const char *text = *environment;
        found |= strncmp(text, "HATCH_LOWER_RECORD=", 19) == 0 && strcmp(text + 19, log_path) == 0 ? 1 : 0;
        found |= strncmp(text, "LD_PRELOAD=", 11) == 0 && strstr(text + 11, library_path) ? 2 : 0;
    }
    return found == 3;
}

/* Noted before the call, which does not come back; whether the program can be executed is asked first. */
static int note_program(int folder, const char *path, char *const environment[])
{
    int error = errno;
    if (!active() || !path)
        return 0;
    if (*path && syscall(SYS_faccessat, folder, path, X_OK) != 0) {
        note_failure(folder, path);
        errno = error; /* the call itself will say why */
        return 0;
    }
    if (*path)
        note(EXECUTED, folder, path);
    else
        note_descriptor(EXECUTED, folder);
    if (!is_inherited(environment))
        note_reason("a process was started without the preloaded library: ", path);
    return 1;
}

static __attribute__((noinline)) void note_search(const char *name, char *const environment[])
{
    char path[LONGEST];
    const char *folders = variable("PATH");
    if (!active() || !name)
        return;
    if (strchr(name, '/')) {
        note_program(AT_FDCWD, name, environment);
        return;
    }
    for (const char *entry = folders ? folders : "/bin:/usr/bin"; entry;) {
        const char *end = strchrnul(entry, ':');
        size_t length = (size_t)(end - entry);
        if (length + strlen(name) + 2 > sizeof path) {
            note_reason("a path is too long", "");
            return;
        }
        memcpy(path, length ? entry : ".", length ? length : 1);
        path[length ? length : 1] = '/';
        strcpy(path + (length ? length : 1) + 1, name);
        if (note_program(AT_FDCWD, path, environment))
            return;
        entry = *end ? end + 1 : NULL;
    }
}

/* ---- the next function of a name ---- */

struct next {
    const char *name;
    void *function;
};
extern struct next __start_nexts[] __attribute__((visibility("hidden")));
extern struct next __stop_nexts[] __attribute__((visibility("hidden")));

static long unavailable(void)
{
    errno = ENOSYS;
    return -1;
}

static void *next_of(struct next *next)
{
    void *function = __atomic_load_n(&next->function, __ATOMIC_ACQUIRE);
    if (function)
        return function;
    int error = errno;
    function = dlsym(RTLD_NEXT, next->name);
    if (!function)
        function = (void *)unavailable; /* in an older C library; whoever asks for it there expects that */
    __atomic_store_n(&next->function, function, __ATOMIC_RELEASE);
    errno = error;
    return function;
}

static int note_object(struct dl_phdr_info *object, size_t size, void *data)
{
    (void)size, (void)data;
    if (object->dlpi_name && strchr(object->dlpi_name, '/') && strcmp(object->dlpi_name, library_path))
        note(OPENED, AT_FDCWD, object->dlpi_name);
    return 0;
}

/* All are looked up before the program runs: dlsym must not be called in a signal handler or after vfork. */
static __attribute__((constructor)) void start(void)
{
    Dl_info here;
    if (dladdr((void *)start, &here) && here.dli_fname && strlen(here.dli_fname) < sizeof library_path)
        strcpy(library_path, here.dli_fname);
    for (struct next *next = __start_nexts; next < __stop_nexts; next++)
        next_of(next);
    active();
}

/* The dynamic linker opens libraries with system calls of its own; what it has loaded is noted at the end. */
static __attribute__((destructor)) void finish(void)
{
    if (active())
        dl_iterate_phdr(note_object, NULL);
}

#define NEXT(name) \
    static struct next next_##name __attribute__((section("nexts"), used)) = {#name, NULL};

#define WRAP(type, name, parameters, arguments, noted) \
    NEXT(name) \
    type name parameters \
    { \
        type result = ((type(*) parameters)next_of(&next_##name)) arguments; \
        noted; \
        return result; \
    }

/* Like WRAP, noted before the call. */
#define WRAP_BEFORE(type, name, parameters, arguments, noted) \
    NEXT(name) \
    type name parameters \
    { \
        noted; \
        return ((type(*) parameters)next_of(&next_##name)) arguments; \
    }

/* ---- contents ---- */

#define WITH_MODE(flags) \
    mode_t mode = 0; \
    if (((flags) & O_CREAT) || ((flags) & O_TMPFILE) == O_TMPFILE) { \
        va_list rest; \
        va_start(rest, flags); \
        mode = va_arg(rest, mode_t); \
        va_end(rest); \
    }

#define WRAP_OPEN(name) \
    NEXT(name) \
    int name(const char *path, int flags, ...) \
    { \
        WITH_MODE(flags) \
        int result = ((int (*)(const char *, int, ...))next_of(&next_##name))(path, flags, mode); \
        note_open(AT_FDCWD, path, flags, result); \
        return result; \
    }

#define WRAP_OPENAT(name) \
    NEXT(name) \
    int name(int folder, const char *path, int flags, ...) \
    { \
        WITH_MODE(flags) \
        int result = ((int (*)(int, const char *, int, ...))next_of(&next_##name))(folder, path, flags, mode); \
        note_open(folder, path, flags, result); \
        return result; \
    }

WRAP_OPEN(open)
WRAP_OPEN(open64)
WRAP_OPENAT(openat)
WRAP_OPENAT(openat64)
WRAP(int, __open_2, (const char *path, int flags), (path, flags), note_open(AT_FDCWD, path, flags, result))
WRAP(int, __open64_2, (const char *path, int flags), (path, flags), note_open(AT_FDCWD, path, flags, result))
WRAP(int, __openat_2, (int at, const char *path, int flags), (at, path, flags), note_open(at, path, flags, result))
WRAP(int, __openat64_2, (int at, const char *path, int flags), (at, path, flags), note_open(at, path, flags, result))
WRAP(int, creat, (const char *path, mode_t mode), (path, mode), note_open(AT_FDCWD, path, O_TRUNC, result))
WRAP(int, creat64, (const char *path, mode_t mode), (path, mode), note_open(AT_FDCWD, path, O_TRUNC, result))

WRAP(FILE *, fopen, (const char *path, const char *mode), (path, mode), note_stream(path, mode, result))
WRAP(FILE *, fopen64, (const char *path, const char *mode), (path, mode), note_stream(path, mode, result))
WRAP(FILE *, freopen, (const char *path, const char *mode, FILE *stream), (path, mode, stream),
     note_stream(path, mode, result))
WRAP(FILE *, freopen64, (const char *path, const char *mode, FILE *stream), (path, mode, stream),
     note_stream(path, mode, result))

WRAP(int, rename, (const char *old, const char *new), (old, new), note_move(AT_FDCWD, old, AT_FDCWD, new, result))
WRAP(int, renameat, (int from, const char *old, int to, const char *new), (from, old, to, new),
     note_move(from, old, to, new, result))
WRAP(int, renameat2, (int from, const char *old, int to, const char *new, unsigned flags),
     (from, old, to, new, flags), note_move(from, old, to, new, result))
WRAP(int, link, (const char *old, const char *new), (old, new), note_link(AT_FDCWD, old, AT_FDCWD, new, result))
WRAP(int, linkat, (int from, const char *old, int to, const char *new, int flags), (from, old, to, new, flags),
     note_link(from, old, to, new, result))

/* ---- whether and what it is ---- */

#define STAT(at, path) note_look(at, path, result == 0, result == 0 ? STATE_OF(to) : NO_STATE)
#define ACCESS(at, path) note_result(LOOKED_AT, at, path, result == 0)

WRAP(int, stat, (const char *path, struct stat *to), (path, to), STAT(AT_FDCWD, path))
WRAP(int, stat64, (const char *path, struct stat64 *to), (path, to), STAT(AT_FDCWD, path))
WRAP(int, lstat, (const char *path, struct stat *to), (path, to), STAT(AT_FDCWD, path))
WRAP(int, lstat64, (const char *path, struct stat64 *to), (path, to), STAT(AT_FDCWD, path))
WRAP(int, fstatat, (int at, const char *path, struct stat *to, int flags), (at, path, to, flags), STAT(at, path))
WRAP(int, fstatat64, (int at, const char *path, struct stat64 *to, int flags), (at, path, to, flags), STAT(at, path))
WRAP(int, statx, (int at, const char *path, int flags, unsigned mask, struct statx *to), (at, path, flags, mask, to),
     note_statx(at, path, result == 0, mask, to))
WRAP(int, __xstat, (int version, const char *path, struct stat *to), (version, path, to), STAT(AT_FDCWD, path))
WRAP(int, __xstat64, (int version, const char *path, struct stat64 *to), (version, path, to), STAT(AT_FDCWD, path))
WRAP(int, __lxstat, (int version, const char *path, struct stat *to), (version, path, to), STAT(AT_FDCWD, path))
WRAP(int, __lxstat64, (int version, const char *path, struct stat64 *to), (version, path, to), STAT(AT_FDCWD, path))
WRAP(int, __fxstatat, (int version, int at, const char *path, struct stat *to, int flags),
     (version, at, path, to, flags), STAT(at, path))
WRAP(int, __fxstatat64, (int version, int at, const char *path, struct stat64 *to, int flags),
     (version, at, path, to, flags), STAT(at, path))
WRAP(int, access, (const char *path, int mode), (path, mode), ACCESS(AT_FDCWD, path))
WRAP(int, euidaccess, (const char *path, int mode), (path, mode), ACCESS(AT_FDCWD, path))
WRAP(int, eaccess, (const char *path, int mode), (path, mode), ACCESS(AT_FDCWD, path))
WRAP(int, faccessat, (int at, const char *path, int mode, int flags), (at, path, mode, flags), ACCESS(at, path))
WRAP(int, chdir, (const char *path), (path), ACCESS(AT_FDCWD, path))

#define FOLLOWED(at, path, worked) note_result((worked) ? LINKS : LOOKED_AT, at, path, (worked) || errno == EINVAL)

WRAP(ssize_t, readlink, (const char *path, char *to, size_t size), (path, to, size),
     FOLLOWED(AT_FDCWD, path, result >= 0))
WRAP(ssize_t, readlinkat, (int at, const char *path, char *to, size_t size), (at, path, to, size),
     FOLLOWED(at, path, result >= 0))
WRAP(ssize_t, __readlink_chk, (const char *path, char *to, size_t size, size_t room), (path, to, size, room),
     FOLLOWED(AT_FDCWD, path, result >= 0))
WRAP(ssize_t, __readlinkat_chk, (int at, const char *path, char *to, size_t size, size_t room),
     (at, path, to, size, room), FOLLOWED(at, path, result >= 0))
WRAP(char *, realpath, (const char *path, char *to), (path, to), FOLLOWED(AT_FDCWD, path, result != NULL))
WRAP(char *, __realpath_chk, (const char *path, char *to, size_t room), (path, to, room),
     FOLLOWED(AT_FDCWD, path, result != NULL))
WRAP(char *, canonicalize_file_name, (const char *path), (path), FOLLOWED(AT_FDCWD, path, result != NULL))

/* ---- listings ---- */

typedef int select_entry(const struct dirent *);
typedef int order_entries(const struct dirent **, const struct dirent **);
typedef int select_entry64(const struct dirent64 *);
typedef int order_entries64(const struct dirent64 **, const struct dirent64 **);

WRAP(DIR *, opendir, (const char *path), (path), note_listing(path, result != NULL, result ? dirfd(result) : -1))
WRAP(DIR *, fdopendir, (int folder), (folder), note_descriptor(LISTED, folder))
WRAP(ssize_t, getdents64, (int folder, void *to, size_t size), (folder, to, size), note_descriptor(LISTED, folder))
WRAP(int, scandir, (const char *path, struct dirent ***to, select_entry *select, order_entries *order),
     (path, to, select, order), note_listing(path, result >= 0, -1))
WRAP(int, scandir64, (const char *path, struct dirent64 ***to, select_entry64 *select, order_entries64 *order),
     (path, to, select, order), note_listing(path, result >= 0, -1))
WRAP(int, scandirat, (int at, const char *path, struct dirent ***to, select_entry *select, order_entries *order),
     (at, path, to, select, order), note_result(LISTED, at, path, result >= 0))
WRAP(int, scandirat64,
     (int at, const char *path, struct dirent64 ***to, select_entry64 *select, order_entries64 *order),
     (at, path, to, select, order), note_result(LISTED, at, path, result >= 0))

/* These walk folders inside the C library, where nothing of it can be seen. */
WRAP_BEFORE(int, glob, (const char *pattern, int flags, int (*error)(const char *, int), glob_t *to),
            (pattern, flags, error, to), note_reason("glob(3) was called: ", pattern))
WRAP_BEFORE(int, glob64, (const char *pattern, int flags, int (*error)(const char *, int), glob64_t *to),
            (pattern, flags, error, to), note_reason("glob(3) was called: ", pattern))
WRAP_BEFORE(int, wordexp, (const char *words, wordexp_t *to, int flags), (words, to, flags),
            note_reason("wordexp(3) was called: ", words))
WRAP_BEFORE(int, ftw, (const char *path, __ftw_func_t each, int depth), (path, each, depth),
            note_reason("ftw(3) was called: ", path))
WRAP_BEFORE(int, ftw64, (const char *path, __ftw64_func_t each, int depth), (path, each, depth),
            note_reason("ftw(3) was called: ", path))
WRAP_BEFORE(int, nftw, (const char *path, __nftw_func_t each, int depth, int flags), (path, each, depth, flags),
            note_reason("nftw(3) was called: ", path))
WRAP_BEFORE(int, nftw64, (const char *path, __nftw64_func_t each, int depth, int flags), (path, each, depth, flags),
            note_reason("nftw(3) was called: ", path))
WRAP_BEFORE(FTS *, fts_open, (char *const *paths, int flags, int (*order)(const FTSENT **, const FTSENT **)),
            (paths, flags, order), note_reason("fts(3) was called: ", paths[0]))
WRAP_BEFORE(FTS64 *, fts64_open, (char *const *paths, int flags, int (*order)(const FTSENT64 **, const FTSENT64 **)),
            (paths, flags, order), note_reason("fts(3) was called: ", paths[0]))

/* ---- variables ---- */

/* The environment is as it was when the process started until someone sets a variable: no lookup of dlsym is needed
 * for a value that is asked for before this library has started. */
#define WRAP_VARIABLE(get) \
    NEXT(get) \
    char *get(const char *name) \
    { \
        void *next = __atomic_load_n(&next_##get.function, __ATOMIC_ACQUIRE); \
        char *value = next ? ((char *(*)(const char *))next)(name) : (char *)variable(name); \
        note_variable(name); \
        return value; \
    }

static void note_variable(const char *name)
{
    if (active())
        emit(VARIABLES, "", strnlen(name, LONGEST) < LONGEST ? name : "", "");
}

WRAP_VARIABLE(getenv)
WRAP_VARIABLE(secure_getenv)

/* ---- network ---- */

WRAP(int, connect, (int at, const struct sockaddr *address, socklen_t length), (at, address, length),
     note_address(result == 0 || errno != EFAULT ? address : NULL, length, NETWORK))
WRAP(int, bind, (int at, const struct sockaddr *address, socklen_t length), (at, address, length),
     note_address(result == 0 || errno != EFAULT ? address : NULL, length, result == 0 ? BOUND : 0))
WRAP(ssize_t, sendto,
     (int at, const void *data, size_t size, int flags, const struct sockaddr *address, socklen_t length),
     (at, data, size, flags, address, length),
     note_address(result >= 0 || errno != EFAULT ? address : NULL, length, NETWORK))
WRAP(ssize_t, sendmsg, (int at, const struct msghdr *message, int flags), (at, message, flags),
     if (result >= 0) note_address(message->msg_name, message->msg_namelen, NETWORK))
WRAP(int, getaddrinfo,
     (const char *name, const char *service, const struct addrinfo *hints, struct addrinfo **to),
     (name, service, hints, to), note_name(name))
WRAP(struct hostent *, gethostbyname, (const char *name), (name), note_name(name))
WRAP(struct hostent *, gethostbyname2, (const char *name, int family), (name, family), note_name(name))
WRAP(int, gethostbyname_r,
     (const char *name, struct hostent *to, char *room, size_t size, struct hostent **result_to, int *error),
     (name, to, room, size, result_to, error), note_name(name))
WRAP(int, gethostbyname2_r,
     (const char *name, int family, struct hostent *to, char *room, size_t size, struct hostent **result_to,
      int *error),
     (name, family, to, room, size, result_to, error), note_name(name))

/* ---- processes ---- */

WRAP_BEFORE(int, execve, (const char *path, char *const arguments[], char *const environment[]),
            (path, arguments, environment), note_program(AT_FDCWD, path, environment))
WRAP_BEFORE(int, execv, (const char *path, char *const arguments[]), (path, arguments),
            note_program(AT_FDCWD, path, environ))
WRAP_BEFORE(int, execvp, (const char *name, char *const arguments[]), (name, arguments), note_search(name, environ))
WRAP_BEFORE(int, execvpe, (const char *name, char *const arguments[], char *const environment[]),
            (name, arguments, environment), note_search(name, environment))
WRAP_BEFORE(int, execveat,
            (int at, const char *path, char *const arguments[], char *const environment[], int flags),
            (at, path, arguments, environment, flags), note_program(at, path, environment))
WRAP_BEFORE(int, fexecve, (int program, char *const arguments[], char *const environment[]),
            (program, arguments, environment), note_program(program, "", environment))
WRAP_BEFORE(int, posix_spawn,
            (pid_t *to, const char *path, const posix_spawn_file_actions_t *actions, const posix_spawnattr_t *how,
             char *const arguments[], char *const environment[]),
            (to, path, actions, how, arguments, environment), note_program(AT_FDCWD, path, environment))
WRAP_BEFORE(int, posix_spawnp,
            (pid_t *to, const char *name, const posix_spawn_file_actions_t *actions, const posix_spawnattr_t *how,
             char *const arguments[], char *const environment[]),
            (to, name, actions, how, arguments, environment), note_search(name, environment))
WRAP_BEFORE(int, system, (const char *command), (command), note_program(AT_FDCWD, "/bin/sh", environ))
WRAP_BEFORE(FILE *, popen, (const char *command, const char *mode), (command, mode),
            note_program(AT_FDCWD, "/bin/sh", environ))

/* The C library's own forms with a list of arguments call its own execve; these call the ones above. */
#define WITH_ARGUMENTS(first, after) \
    va_list rest; \
    size_t count = 1; \
    va_start(rest, first); \
    while (va_arg(rest, char *)) \
        count++; \
    va_end(rest); \
    char *arguments[count + 1]; \
    va_start(rest, first); \
    arguments[0] = (char *)first; \
    for (size_t i = 1; i <= count; i++) \
        arguments[i] = va_arg(rest, char *); \
    after; \
    va_end(rest);

int execl(const char *path, const char *first, ...)
{
    WITH_ARGUMENTS(first, (void)0)
    return execve(path, arguments, environ);
}

int execlp(const char *name, const char *first, ...)
{
    WITH_ARGUMENTS(first, (void)0)
    return execvp(name, arguments);
}

int execle(const char *path, const char *first, ...)
{
    char *const *environment;
    WITH_ARGUMENTS(first, environment = va_arg(rest, char *const *))
    return execve(path, arguments, environment);
}
