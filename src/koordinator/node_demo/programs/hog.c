/* Batch work that takes whatever it gets, and counts what it has done.
 *
 *   hog cpu    --counters FILE --loops N [--threads N]      one unit: the CPU work of one request of the service
 *   hog memory --counters FILE [--threads N] [--mib 64]     one unit: 1 MiB streamed through the caches
 *   hog disk   --counters FILE --disk-file FILE [--threads N] [--block-kib 16]    one unit: such a block
 *                                                                           written to or read from the disk
 *
 * FILE holds one uint64 per thread, in shared memory.
 */
#define _GNU_SOURCE
#include "common.h"

#include <pthread.h>

#define MIB (1 << 20)
#define DISK_BYTES (256LL << 20)
#define SYNC_EVERY 16 /* writes between two fdatasync */

static uint64_t *counters;
static long loops, mib, block_bytes;
static int disk;

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

int main(int argc, char **argv) {
    if (argc < 2) die("cpu, memory or disk?");
    void *(*work)(void *) = NULL;
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
    } else {
        die("cpu, memory or disk, not %s", argv[1]);
    }
    int threads = number(argc, argv, "--threads", "2");
    counters = map_counters(option(argc, argv, "--counters", NULL), threads);
    for (int i = 0; i < threads; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, work, counters + i) != 0) die("no thread: %s", strerror(errno));
    }
    pause();
    return 0;
}
