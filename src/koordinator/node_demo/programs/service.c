/* The latency-sensitive service: a TCP server on loopback whose requests cost a fixed amount of work and, where the
 * request says so, a read from the disk (a cache miss).
 *
 *   service --calibrate MICROSECONDS [--hot-mib N --cold-mib N]    prints how many loops cost that much CPU time here
 *   service --loops N --port N [--threads 4] [--hot-mib N --cold-mib N] [--disk-file FILE]
 *           [--metrics-port N [--metrics-address 127.0.0.1]]
 *
 * A request is 8 bytes, the answer the same 8 bytes. Threads share one epoll set, so no request waits for a certain
 * thread while another is idle. The work computes in the first- and second-level caches; with --hot-mib it reads from a
 * working set instead, of which that many MiB are read most. On the metrics port the service tells the latencies of its
 * requests, from the moment that the kernel received one until it was answered.
 */
#define _GNU_SOURCE
#include "common.h"
#include "histogram.h"

#include <netinet/tcp.h>
#include <sys/epoll.h>

#define CALIBRATION_ROUNDS 2000
#define CALIBRATION_NS 100000 /* of a round, about */
#define CALIBRATION_TRIAL_NS 100000000 /* of the trial that says how many loops a round is, at least */
#define CALIBRATION_TRIAL_LOOPS 10000L
#define DISK_BYTES (64LL << 20)
#define PAGE 4096

static long loops;
static struct working_set set; /* without words where the work computes */
static int epoll, disk = -1;

static uint64_t work(uint64_t *table, uint64_t seed, long count) {
    return set.words == NULL ? spin(table, seed, count) : roam(&set, seed, count);
}

static void make_working_set(double hot_mib, double cold_mib) {
    if (hot_mib == 0) return;
    uint64_t mib = (1 << 20) / sizeof(uint64_t);
    for (set.hot_count = 1; set.hot_count < hot_mib * mib; set.hot_count *= 2) {}
    for (set.count = set.hot_count; set.count < (hot_mib + cold_mib) * mib; set.count *= 2) {}
    set.words = checked(aligned_alloc(4096, set.count * sizeof(uint64_t)));
    for (uint64_t i = 0; i < set.count; i++) set.words[i] = i * 2654435761ULL;
}

static int compare(const void *one, const void *other) {
    int64_t a = *(const int64_t *)one, b = *(const int64_t *)other;
    return (a > b) - (a < b);
}

/* CPU time of this thread that so many loops take, in nanoseconds. */
static int64_t time_work(uint64_t *table, uint64_t *seed, long count) {
    int64_t start = now_ns(CLOCK_THREAD_CPUTIME_ID);
    *seed = work(table, *seed, count);
    return now_ns(CLOCK_THREAD_CPUTIME_ID) - start;
}

/* Median CPU time of a round; what disturbs a few rounds does not count. Where the clock moves by ticks (an emulated CPU) most
 * rounds take none: there the trial is what is known. */
static void *time_rounds(void *ns_per_loop) {
    uint64_t *table = new_table(), x = 88172645463325252ULL;
    int64_t taken[CALIBRATION_ROUNDS], trial_ns;
    long trial = CALIBRATION_TRIAL_LOOPS;
    while ((trial_ns = time_work(table, &x, trial)) < CALIBRATION_TRIAL_NS) trial *= 2;
    long count = 1 + CALIBRATION_NS / ((double)trial_ns / trial);
    for (int round = 0; round < CALIBRATION_ROUNDS; round++) taken[round] = time_work(table, &x, count);
    qsort(taken, CALIBRATION_ROUNDS, sizeof *taken, compare);
    int64_t median = taken[CALIBRATION_ROUNDS / 2];
    *(double *)ns_per_loop = median > 0 ? (double)median / count : (double)trial_ns / trial;
    return x == 0 ? NULL : ns_per_loop; /* the result is used, so the compiler keeps the work */
}

/* With all CPUs busy, as they will be: two of them may share one core. */
static void calibrate(double microseconds) {
    int cpus = sysconf(_SC_NPROCESSORS_ONLN);
    pthread_t threads[cpus];
    double medians[cpus], sum = 0;
    for (int i = 0; i < cpus; i++)
        if (pthread_create(&threads[i], NULL, time_rounds, &medians[i]) != 0) die("no thread: %s", strerror(errno));
    for (int i = 0; i < cpus; i++) {
        if (pthread_join(threads[i], NULL) != 0) die("no thread to join");
        sum += medians[i];
    }
    printf("%.0f\n", microseconds * 1000.0 * cpus / sum);
    exit(0);
}

static void rearm(int operation, int connection) {
    struct epoll_event event = {.events = EPOLLIN | EPOLLONESHOT, .data.fd = connection};
    if (epoll_ctl(epoll, operation, connection, &event) != 0) close(connection);
}

/* The next request, and when the kernel received it; 0 when the connection has ended. */
static int64_t receive(int connection, uint64_t *request) {
    int64_t at_ns;
    return receive_noting(connection, request, sizeof *request, MSG_WAITALL, &at_ns) == sizeof *request ? at_ns : 0;
}

static void serve(int connection, uint64_t *table, char *page, struct histogram *latencies) {
    uint64_t request;
    int64_t received_ns = receive(connection, &request);
    if (received_ns == 0) {
        close(connection);
        return;
    }
    if (request & FROM_DISK) {
        int64_t at = (int64_t)(request * 2654435761ULL % (DISK_BYTES / PAGE)) * PAGE;
        if (disk < 0) die("a read from the disk is asked for, but there is no --disk-file");
        if (pread(disk, page, PAGE, at) != PAGE) die("disk: %s", strerror(errno));
    }
    table[0] += work(table, request, loops);
    if (send(connection, &request, sizeof request, MSG_NOSIGNAL) != sizeof request) {
        close(connection);
        return;
    }
    count_latency(latencies, now_ns(CLOCK_REALTIME) - received_ns);
    rearm(EPOLL_CTL_MOD, connection);
}

static void *answer(void *latencies) {
    uint64_t *table = new_table();
    char *page = checked(aligned_alloc(PAGE, PAGE));
    for (;;) {
        struct epoll_event event;
        if (epoll_wait(epoll, &event, 1, -1) == 1) serve(event.data.fd, table, page, latencies);
    }
    return NULL;
}

static int listen_on(const char *at, int port) {
    int one = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    if (inet_pton(AF_INET, at, &address.sin_addr) != 1) die("not an IPv4 address: %s", at);
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof address) != 0 ||
        listen(listener, SOMAXCONN) != 0)
        die("port %d: %s", port, strerror(errno));
    return listener;
}

static void start(void *(*run)(void *), void *argument) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, run, argument) != 0) die("no thread: %s", strerror(errno));
}

int main(int argc, char **argv) {
    make_working_set(number(argc, argv, "--hot-mib", "0"), number(argc, argv, "--cold-mib", "0"));
    double microseconds = number(argc, argv, "--calibrate", "0");
    if (microseconds > 0) calibrate(microseconds);
    loops = number(argc, argv, "--loops", NULL);
    const char *file = option(argc, argv, "--disk-file", "");
    if (*file != '\0') disk = open_blocks(file, DISK_BYTES);
    int listener = listen_on("127.0.0.1", number(argc, argv, "--port", NULL));
    int metrics_port = number(argc, argv, "--metrics-port", "0"), threads = number(argc, argv, "--threads", "4");
    make_histograms(threads);
    if (metrics_port > 0)
        start(tell_histogram,
              (void *)(intptr_t)listen_on(option(argc, argv, "--metrics-address", "127.0.0.1"), metrics_port));
    epoll = epoll_create1(EPOLL_CLOEXEC);
    for (int i = 0; i < threads; i++) start(answer, &histograms[i]);
    for (;;) {
        int one = 1, connection = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (connection < 0) {
            if (errno == EINTR || errno == ECONNABORTED) continue;
            die("accept: %s", strerror(errno));
        }
        setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        setsockopt(connection, SOL_SOCKET, SO_TIMESTAMPNS, &one, sizeof one);
        rearm(EPOLL_CTL_ADD, connection);
    }
}
