/* Batch work that takes whatever it gets, and counts what it has done.
 *
 *   hog cpu    --counters FILE --loops N [--threads N]      one unit: the CPU work of one request of the service
 *   hog memory --counters FILE [--threads N] [--mib 64]     one unit: 1 MiB streamed through the caches
 *   hog disk   --counters FILE --disk-file FILE [--threads N] [--block-kib 16]    one unit: such a block
 *                                                                           written to or read from the disk
 *   hog network --counters FILE [--threads N] [--mib-per-s 0]    one unit: 1 MiB sent by TCP on loopback, to a server
 *                                                           of the thread's own; 0 is without a bound
 *   hog awake  [--threads N]                                no work, but CPUs that never idle: one thread on each, in
 *                                                           the class that runs when nobody else wants to
 *
 * FILE holds one uint64 per thread, in shared memory.
 */
#define _GNU_SOURCE
#include "common.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#define MIB (1 << 20)
#define DISK_BYTES (256LL << 20)
#define SYNC_EVERY 16 /* writes between two fdatasync */
#define CHUNK (64 << 10) /* of a stream */

static uint64_t *counters;
static long loops, mib, block_bytes, mib_per_s;
static int disk;

static void start(void *(*run)(void *), void *argument) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, run, argument) != 0) die("no thread: %s", strerror(errno));
}

static void *burn_cpu(void *counter) {
    uint64_t *table = new_table(), x = 88172645463325252ULL;
    for (;; ++*(volatile uint64_t *)counter) x = spin(table, x, loops);
    return NULL;
}

static void *stream_memory(void *counter) {
    char *from = checked(aligned_alloc(4096, (size_t)mib * MIB)), *to = checked(aligned_alloc(4096, (size_t)mib * MIB));
    memset(from, 1, (size_t)mib * MIB);
    for (;;)
        for (long i = 0; i < mib; i++, ++*(volatile uint64_t *)counter)
            memcpy(to + (size_t)i * MIB, from + (size_t)i * MIB, MIB);
    return NULL;
}

static void *hammer_disk(void *counter) {
    char *block = checked(aligned_alloc(4096, block_bytes));
    memset(block, 'd', block_bytes);
    uint64_t x = (uintptr_t)counter | 1;
    for (long i = 0;; i++, ++*(volatile uint64_t *)counter) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        int64_t at = (int64_t)(x % (DISK_BYTES / block_bytes)) * block_bytes;
        ssize_t done = i % 2 == 0 ? pwrite(disk, block, block_bytes, at) : pread(disk, block, block_bytes, at);
        if (done != block_bytes) die("disk: %s", strerror(errno));
        if (i % SYNC_EVERY == 0 && fdatasync(disk) != 0) die("fdatasync: %s", strerror(errno));
    }
    return NULL;
}

/* The other side of a stream: takes what comes. */
static void *receive_stream(void *listener) {
    char *chunk = checked(aligned_alloc(4096, CHUNK));
    int connection = accept4((int)(intptr_t)listener, NULL, NULL, SOCK_CLOEXEC);
    if (connection < 0) die("accept: %s", strerror(errno));
    while (recv(connection, chunk, CHUNK, 0) > 0) {}
    die("a stream ended");
}

/* Sends 1 MiB at a time, no faster than the bound; what it could not send in time it does not make up for. */
static void *send_stream(void *counter) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), stream = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener < 0 || stream < 0 || bind(listener, (struct sockaddr *)&address, size) != 0 || listen(listener, 1) != 0 ||
        getsockname(listener, (struct sockaddr *)&address, &size) != 0)
        die("a port of loopback: %s", strerror(errno));
    start(receive_stream, (void *)(intptr_t)listener);
    if (connect(stream, (struct sockaddr *)&address, size) != 0) die("connect: %s", strerror(errno));
    char *chunk = checked(aligned_alloc(4096, CHUNK));
    memset(chunk, 'n', CHUNK);
    int64_t due = now_ns(CLOCK_MONOTONIC), period = mib_per_s > 0 ? NS_PER_S / mib_per_s : 0;
    for (;; ++*(volatile uint64_t *)counter) {
        for (long left = MIB; left > 0;) {
            ssize_t sent = send(stream, chunk, left < CHUNK ? left : CHUNK, MSG_NOSIGNAL);
            if (sent < 0) die("send: %s", strerror(errno));
            left -= sent;
        }
        if (period == 0) continue;
        int64_t now = now_ns(CLOCK_MONOTONIC);
        due = due + period > now ? due + period : now;
        struct timespec until = {due / NS_PER_S, due % NS_PER_S};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
    }
    return NULL;
}

static void *keep_awake(void *number) {
    cpu_set_t allowed, own;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) die("CPUs: %s", strerror(errno));
    int cpu = -1;
    for (intptr_t left = (intptr_t)number % CPU_COUNT(&allowed); left >= 0;)
        if (CPU_ISSET(++cpu, &allowed)) left--;
    CPU_ZERO(&own);
    CPU_SET(cpu, &own);
    struct sched_param none = {0};
    if (sched_setaffinity(0, sizeof own, &own) != 0 || sched_setscheduler(0, SCHED_IDLE, &none) != 0)
        die("the idle class on CPU %d: %s", cpu, strerror(errno));
    for (volatile uint64_t i = 0;; i++) {}
    return NULL;
}

int main(int argc, char **argv) {
    if (argc < 2) die("cpu, memory, disk, network or awake?");
    void *(*work)(void *) = NULL;
    int threads = number(argc, argv, "--threads", "2");
    if (strcmp(argv[1], "awake") == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* it is in no group that is tidied up */
        for (intptr_t i = 0; i < threads; i++) start(keep_awake, (void *)i);
        pause();
    }
    if (strcmp(argv[1], "cpu") == 0) {
        work = burn_cpu;
        loops = number(argc, argv, "--loops", NULL);
    } else if (strcmp(argv[1], "memory") == 0) {
        work = stream_memory;
        mib = number(argc, argv, "--mib", "64");
    } else if (strcmp(argv[1], "disk") == 0) {
        work = hammer_disk;
        block_bytes = 1024 * (long)number(argc, argv, "--block-kib", "16");
        disk = open_blocks(option(argc, argv, "--disk-file", NULL), DISK_BYTES);
    } else if (strcmp(argv[1], "network") == 0) {
        work = send_stream;
        mib_per_s = number(argc, argv, "--mib-per-s", "0");
    } else {
        die("cpu, memory, disk, network or awake, not %s", argv[1]);
    }
    counters = map_counters(option(argc, argv, "--counters", NULL), threads);
    for (int i = 0; i < threads; i++) start(work, counters + i);
    pause();
    return 0;
}
