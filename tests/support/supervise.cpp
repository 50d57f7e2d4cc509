// Runs a command and strikes when it, or any process that it starts, is about to change a file for the N-th time.
//
//   supervise LOG ACTION POINT FOLDER... -- COMMAND...
//
// Points are the system calls that make, write, rename or remove something below one of the folders, counted from 1 in
// the order in which they are made; of the writes to one file only the first, second, fourth, eighth … are. LOG gets a
// line for each: `<number> <call> <path> <program>`. POINT is a number, or `CALL:TEXT` for the first such call on a path
// that has the text in it, `CALL:TEXT:N` for the N-th. When it comes
//
//   list      nothing happens
//   kill      the process that makes the call is killed before it is made
//   kill-all  so are all the others, before any of them makes another such call
//   full      the call, and all later ones that take space, points or not, fail for lack of space
//   once      the call fails for lack of space, unless it takes none
//   interrupt the process that makes the call gets SIGINT, as from Ctrl-C, and again at its next change
//
// The kernel stops the processes and asks (seccomp, user notification), so that nothing that they do goes unseen,
// whatever library they have; what is written through a memory map is not seen. The exit status is the command's;
// 77 if the kernel refuses.

#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
#define SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV (1UL << 5)
#endif

namespace {

constexpr int REFUSED = 77;
constexpr unsigned NONE = 9;  // no such argument

#if defined(__x86_64__)
constexpr unsigned ARCHITECTURE = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr unsigned ARCHITECTURE = AUDIT_ARCH_AARCH64;
#else
constexpr unsigned ARCHITECTURE = 0;
#endif

struct Call {
    const char *name;
    int number;
    unsigned descriptor;  // the argument with the file's descriptor, or that of the folder that its path begins in
    unsigned path;        // the argument with the path
    unsigned flags;       // that with the flags of `open`
    bool takes_space;
};

const std::vector<Call> CALLS = {
    {"write", SYS_write, 0, NONE, NONE, true},
    {"write", SYS_pwrite64, 0, NONE, NONE, true},
    {"write", SYS_writev, 0, NONE, NONE, true},
    {"write", SYS_pwritev, 0, NONE, NONE, true},
    {"write", SYS_pwritev2, 0, NONE, NONE, true},
    {"write", SYS_sendfile, 0, NONE, NONE, true},
    {"write", SYS_copy_file_range, 2, NONE, NONE, true},
    {"truncate", SYS_ftruncate, 0, NONE, NONE, true},
    {"allocate", SYS_fallocate, 0, NONE, NONE, true},
    {"open", SYS_openat, 0, 1, 2, true},
    {"mkdir", SYS_mkdirat, 0, 1, NONE, true},
    {"rename", SYS_renameat2, 2, 3, NONE, true},
    {"link", SYS_linkat, 2, 3, NONE, true},
    {"symlink", SYS_symlinkat, 1, 2, NONE, true},
    {"unlink", SYS_unlinkat, 0, 1, NONE, false},
#ifdef SYS_renameat
    {"rename", SYS_renameat, 2, 3, NONE, true},
#endif
#ifdef SYS_open
    {"open", SYS_open, NONE, 0, 1, true},
    {"mkdir", SYS_mkdir, NONE, 0, NONE, true},
    {"rename", SYS_rename, NONE, 1, NONE, true},
    {"link", SYS_link, NONE, 1, NONE, true},
    {"symlink", SYS_symlink, NONE, 1, NONE, true},
    {"unlink", SYS_unlink, NONE, 0, NONE, false},
    {"unlink", SYS_rmdir, NONE, 0, NONE, false},
#endif
};

// The descriptor from which the kernel is heard, for this process and all that it starts.
int listen() {
    std::vector<sock_filter> program = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, arch)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCHITECTURE, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    for (const Call &call : CALLS) {
        program.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)));
        unsigned char length = call.flags == NONE ? 1 : 3;
        program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, unsigned(call.number), 0, length));
        if (call.flags != NONE) {
            unsigned offset = offsetof(seccomp_data, args) + 8 * call.flags;  // little endian
            program.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offset));
            program.push_back(BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, O_CREAT | O_TRUNC, 0, 1));
        }
        program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF));
    }
    program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
    sock_fprog filter = {static_cast<unsigned short>(program.size()), program.data()};
    if (ARCHITECTURE == 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return -1;
    unsigned long flags = SECCOMP_FILTER_FLAG_NEW_LISTENER;
    long made = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags | SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, &filter);
    if (made < 0) made = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &filter);
    return int(made);
}

void send_descriptor(int socket, int descriptor) {
    char byte = 0, space[CMSG_SPACE(sizeof(int))] = {};
    iovec data = {&byte, 1};
    msghdr message = {};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = space;
    message.msg_controllen = sizeof space;
    cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
    sendmsg(socket, &message, 0);
}

int receive_descriptor(int socket) {
    char byte = 0, space[CMSG_SPACE(sizeof(int))] = {};
    iovec data = {&byte, 1};
    msghdr message = {};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = space;
    message.msg_controllen = sizeof space;
    if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) <= 0 || CMSG_FIRSTHDR(&message) == nullptr) return -1;
    int descriptor = -1;
    memcpy(&descriptor, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(int));
    return descriptor;
}

std::string link_target(const std::string &path) {
    char target[4096];
    ssize_t length = readlink(path.c_str(), target, sizeof target);
    return length < 0 ? "" : std::string(target, size_t(length));
}

std::string text_of(unsigned pid, unsigned long long address) {
    char text[4096];
    size_t got = 0;  // a page at a time: the next one may not be there
    while (got < sizeof text) {
        size_t piece = 4096 - (address + got) % 4096;
        if (piece > sizeof text - got) piece = sizeof text - got;
        iovec here = {text + got, piece}, there = {reinterpret_cast<void *>(address + got), piece};
        ssize_t length = process_vm_readv(pid_t(pid), &here, 1, &there, 1, 0);
        if (length <= 0) return "";
        if (memchr(text + got, 0, size_t(length)) != nullptr) return text;
        got += size_t(length);
    }
    return "";
}

std::string path_of(const Call &call, const seccomp_notif &request) {
    std::string process = "/proc/" + std::to_string(request.pid);
    auto descriptor = [&] { return process + "/fd/" + std::to_string(int(request.data.args[call.descriptor])); };
    if (call.path == NONE) return link_target(descriptor());
    std::string path = text_of(request.pid, request.data.args[call.path]);
    if (!path.empty() && path[0] == '/') return path;
    bool here = call.descriptor == NONE || int(request.data.args[call.descriptor]) == AT_FDCWD;
    return link_target(here ? process + "/cwd" : descriptor()) + "/" + path;
}

bool is_change(const Call &call, const seccomp_notif &request, const std::string &path,
               const std::vector<std::string> &folders) {
    bool below = false;
    for (const std::string &folder : folders) below |= path.rfind(folder + "/", 0) == 0;
    if (!below) return false;
    struct stat found;
    bool exists = lstat(path.c_str(), &found) == 0;
    if (strcmp(call.name, "mkdir") == 0) return !exists;
    if (strcmp(call.name, "unlink") == 0) return exists;
    if (call.flags == NONE) return true;
    if (exists && !S_ISREG(found.st_mode)) return false;
    return !exists || (request.data.args[call.flags] & O_TRUNC) != 0;
}

std::string program_of(unsigned pid) {
    std::string name;
    if (FILE *file = fopen(("/proc/" + std::to_string(pid) + "/cmdline").c_str(), "r")) {
        for (int each = getc(file); each != EOF; each = getc(file)) name += each == 0 ? ' ' : char(each);
        fclose(file);
    }
    for (const char *part : {"hatch_lower.driver.worker", "hatchling"})
        if (name.find(part) != std::string::npos) return part;
    name = name.substr(0, name.find(' '));
    return name.substr(name.rfind('/') + 1);
}

// Where to strike.
class Point {
  public:
    explicit Point(const std::string &text) {
        size_t first = text.find(':');
        if (first == std::string::npos) {
            number = std::stol(text);
            return;
        }
        size_t second = text.find(':', first + 1);
        name = text.substr(0, first);
        part = text.substr(first + 1, second == std::string::npos ? second : second - first - 1);
        number = second == std::string::npos ? 1 : std::stol(text.substr(second + 1));
    }

    // Whether this point is it; it is asked about each point once.
    bool is_at(const Call &call, const std::string &path) {
        if (name.empty() || (name == call.name && path.find(part) != std::string::npos)) seen++;
        else return false;
        return seen == number;
    }

  private:
    std::string name, part;
    long number = 0, seen = 0;
};

// Kill all descendants: those of the killed become this process's children.
void kill_children() {
    std::string path = "/proc/self/task/" + std::to_string(getpid()) + "/children";
    for (;;) {
        int pid = 0;
        if (FILE *file = fopen(path.c_str(), "r")) {
            while (fscanf(file, "%d", &pid) == 1) kill(pid, SIGKILL);
            fclose(file);
        }
        if (waitpid(-1, nullptr, 0) < 0) return;
    }
}

int status_of(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status); }

// Answer the kernel until no process is left that it asks about.
int serve(int listener, pid_t command, FILE *log, const std::string &action, Point point,
          const std::vector<std::string> &folders) {
    long count = 0;
    int status = 0;
    bool full = false;
    int interrupts = 0;
    std::map<std::string, long> writes;
    for (;;) {
        pollfd waiting = {listener, POLLIN, 0};
        if (poll(&waiting, 1, -1) < 0) continue;
        if ((waiting.revents & POLLIN) == 0) break;  // nobody is left
        seccomp_notif request = {};
        if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &request) != 0) continue;
        const Call *call = nullptr;
        for (const Call &each : CALLS)
            if (each.number == request.data.nr) call = &each;
        std::string path = path_of(*call, request);
        bool strikes = false, changes = is_change(*call, request, path, folders);
        if (changes) {
            long written = strcmp(call->name, "write") == 0 ? ++writes[path] : 1;
            bool counts = (written & (written - 1)) == 0;
            if (counts) {
                fprintf(log, "%ld %s %s %s\n", ++count, call->name, path.c_str(), program_of(request.pid).c_str());
            }
            strikes = counts && point.is_at(*call, path);
            full |= strikes && action == "full";
            strikes |= full;
        }
        if (strikes && action == "kill-all") {
            kill(pid_t(request.pid), SIGKILL);
            kill_children();
            return 128 + SIGKILL;
        }
        if (strikes && action == "kill") {
            kill(pid_t(request.pid), SIGKILL);
            continue;
        }
        if (action == "interrupt" && changes && interrupts < 2 && (strikes || interrupts > 0)) {
            kill(pid_t(request.pid), SIGINT);
            interrupts++;
        }
        seccomp_notif_resp answer = {};
        answer.id = request.id;
        answer.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
        if (strikes && call->takes_space && (action == "full" || action == "once")) {
            answer.flags = 0;
            answer.error = -ENOSPC;
        }
        ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &answer);  // fails only if the process has been killed meanwhile
    }
    for (int each = 0, found = 0; (found = waitpid(-1, &each, 0)) > 0;)
        if (found == command) status = status_of(each);
    return status;
}

}  // namespace

int main(int count, char **arguments) {
    int separator = 4;
    while (separator < count && strcmp(arguments[separator], "--") != 0) separator++;
    if (separator + 1 >= count) return 2;
    std::vector<std::string> folders(arguments + 4, arguments + separator);
    FILE *log = fopen(arguments[1], "we");
    int sockets[2];
    if (log == nullptr || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0) return 2;
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    pid_t command = fork();
    if (command == 0) {
        int listener = listen();
        if (listener < 0) _exit(REFUSED);
        send_descriptor(sockets[1], listener);
        close(listener);
        execvp(arguments[separator + 1], arguments + separator + 1);
        _exit(127);
    }
    close(sockets[1]);
    int listener = receive_descriptor(sockets[0]);
    if (listener < 0) return REFUSED;
    int status = serve(listener, command, log, arguments[2], Point(arguments[3]), folders);
    fclose(log);
    return status;
}
