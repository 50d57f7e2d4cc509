// Preloaded into a process, gives it a clock that is SHIFT seconds ahead, and STEP seconds more after each look.
//
// Files are still dated by the system's clock. What measures time (CLOCK_MONOTONIC) is left alone.

#include <atomic>

#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long long now(timespec *found) {
    static std::atomic<long long> looks{0};
    syscall(SYS_clock_gettime, CLOCK_REALTIME, found);
    found->tv_sec += SHIFT + STEP * looks++;
    return found->tv_sec;
}

extern "C" {

int clock_gettime(clockid_t which, timespec *found) noexcept {
    if (which != CLOCK_REALTIME && which != CLOCK_REALTIME_COARSE) return int(syscall(SYS_clock_gettime, which, found));
    now(found);
    return 0;
}

time_t time(time_t *found) noexcept {
    timespec precise;
    time_t seconds = now(&precise);
    if (found != nullptr) *found = seconds;
    return seconds;
}

int gettimeofday(timeval *__restrict found, void *__restrict) noexcept {
    timespec precise;
    now(&precise);
    found->tv_sec = precise.tv_sec;
    found->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

}  // extern "C"
