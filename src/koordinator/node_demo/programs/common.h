/* What the three programs share: clocks, the work that costs CPU time, options, counters that others can read. */
#ifndef NODE_DEMO_COMMON_H
#define NODE_DEMO_COMMON_H

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define NS_PER_S 1000000000LL
#define FROM_DISK (1ULL << 63) /* in a request: its data is not in the service's memory */
#define TABLE_WORDS 8192 /* 64 KiB: larger than the first-level cache, so the work feels its neighbours a little */

static inline int64_t now_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * NS_PER_S + t.tv_nsec;
}

static void __attribute__((noreturn, format(printf, 1, 2))) die(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(1);
}

static inline void *checked(void *memory) {
    if (memory == NULL || memory == MAP_FAILED) die("no memory: %s", strerror(errno));
    return memory;
}

/* Receive as recv does. `at_ns` is when the kernel received the last packet of it, on CLOCK_REALTIME: with SO_TIMESTAMPNS set;
 * now where the kernel did not note it. */
static inline ssize_t receive_noting(int connection, void *to, size_t room, int flags, int64_t *at_ns) {
    union {
        char room[CMSG_SPACE(sizeof(struct timespec))];
        struct cmsghdr aligned;
    } control;
    struct iovec part = {to, room};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    ssize_t got = recvmsg(connection, &message, flags);
    struct cmsghdr *header = got > 0 ? CMSG_FIRSTHDR(&message) : NULL;
    if (header == NULL || header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_TIMESTAMPNS) {
        *at_ns = now_ns(CLOCK_REALTIME);
        return got;
    }
    struct timespec at;
    memcpy(&at, CMSG_DATA(header), sizeof at);
    *at_ns = at.tv_sec * NS_PER_S + at.tv_nsec;
    return got;
}

/* Value of "--name VALUE" among the arguments, or the default. */
static inline const char *option(int argc, char **argv, const char *name, const char *otherwise) {
    for (int i = 1; i + 1 < argc; i++)
        if (strcmp(argv[i], name) == 0) return argv[i + 1];
    if (otherwise == NULL) die("%s is missing", name);
    return otherwise;
}

static inline double number(int argc, char **argv, const char *name, const char *otherwise) {
    const char *text = option(argc, argv, name, otherwise);
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end != '\0' || value < 0) die("%s: not a number: %s", name, text);
    return value;
}

/* Pseudo-random steps through a table; `loops` steps cost the same CPU time on an undisturbed CPU. */
static inline uint64_t spin(uint64_t *table, uint64_t seed, long loops) {
    uint64_t x = seed | 1;
    for (long i = 0; i < loops; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        uint64_t *word = &table[x % TABLE_WORDS];
        x += *word;
        *word = x;
    }
    return x;
}

/* A shared working set: most reads fall into its first part, which a last-level cache can hold, the others anywhere. */
struct working_set {
    uint64_t *words;
    uint64_t count, hot_count; /* of words; powers of two */
};
#define COLD_EVERY 4 /* one read in so many goes beyond the hot part */

/* Reads that depend on each other, at pseudo-random places of a working set: what they cost is the time of its misses. */
static inline uint64_t roam(const struct working_set *set, uint64_t seed, long loops) {
    uint64_t x = seed | 1;
    for (long i = 0; i < loops; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x += set->words[x & ((i % COLD_EVERY == 0 ? set->count : set->hot_count) - 1)];
    }
    return x;
}

static inline uint64_t *new_table(void) {
    uint64_t *table = checked(aligned_alloc(64, TABLE_WORDS * sizeof(uint64_t)));
    memset(table, 1, TABLE_WORDS * sizeof(uint64_t));
    return table;
}

/* A file of `count` counters in shared memory: whoever reads the file sees how much has been done. */
static inline uint64_t *map_counters(const char *path, int count) {
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (file < 0 || ftruncate(file, count * sizeof(uint64_t)) != 0) die("%s: %s", path, strerror(errno));
    void *memory = mmap(NULL, count * sizeof(uint64_t), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    return checked(memory);
}

/* A file of really allocated blocks (holes would be read without touching the disk), open past the page cache. */
static inline int open_blocks(const char *path, int64_t bytes) {
    enum { STEP = 1 << 20 };
    int file = open(path, O_RDWR | O_CREAT | O_DIRECT | O_CLOEXEC, 0600);
    if (file < 0) die("%s: %s", path, strerror(errno));
    struct stat found;
    if (fstat(file, &found) == 0 && found.st_size >= bytes) return file;
    char *block = checked(aligned_alloc(4096, STEP));
    memset(block, 'k', STEP);
    for (int64_t at = 0; at < bytes; at += STEP)
        if (pwrite(file, block, STEP, at) != STEP) die("%s: %s", path, strerror(errno));
    free(block);
    if (fsync(file) != 0) die("%s: %s", path, strerror(errno));
    return file;
}

#endif
