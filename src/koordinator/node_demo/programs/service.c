/* The latency-sensitive service: a TCP server on loopback whose requests cost a fixed amount of CPU work and, where the
 * request says so, a read from the disk (a cache miss).
 *
 *   service --calibrate MICROSECONDS          prints how many loops cost that much CPU time here
 *   service --loops N --port N [--threads 4] [--disk-file FILE]
 *
 * A request is 8 bytes, the answer the same 8 bytes. Threads share one epoll set, so no request waits for a certain
 * thread while another is idle.
 */
#define _GNU_SOURCE
#include "common.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#define CALIBRATION_ROUNDS 2000
#define CALIBRATION_LOOPS 100000L
#define DISK_BYTES (64LL << 20)
#define PAGE 4096

static long loops;
static int epoll, disk = -1;

static int compare(const void *one, const void *other) {
    int64_t a = *(const int64_t *)one, b = *(const int64_t *)other;
    return (a > b) - (a < b);
}

/* Median CPU time of a round in nanoseconds; what disturbs a few rounds does not count. */
static void *time_rounds(void *median) {
    uint64_t *table = new_table(), x = 88172645463325252ULL;
    int64_t taken[CALIBRATION_ROUNDS];
    for (int round = 0; round < CALIBRATION_ROUNDS; round++) {
        int64_t start = now_ns(CLOCK_THREAD_CPUTIME_ID);
        x = spin(table, x, CALIBRATION_LOOPS);
        taken[round] = now_ns(CLOCK_THREAD_CPUTIME_ID) - start;
    }
    qsort(taken, CALIBRATION_ROUNDS, sizeof *taken, compare);
    *(int64_t *)median = taken[CALIBRATION_ROUNDS / 2];
    return x == 0 ? NULL : median; /* the result is used, so the compiler keeps the work */
}

/* With all CPUs busy, as they will be: two of them may share one core. */
static void calibrate(double microseconds) {
    int cpus = sysconf(_SC_NPROCESSORS_ONLN);
    pthread_t threads[cpus];
    int64_t medians[cpus], sum = 0;
    for (int i = 0; i < cpus; i++)
        if (pthread_create(&threads[i], NULL, time_rounds, &medians[i]) != 0) die("no thread: %s", strerror(errno));
    for (int i = 0; i < cpus; i++) {
        if (pthread_join(threads[i], NULL) != 0) die("no thread to join");
        sum += medians[i];
    }
    printf("%.0f\n", microseconds * 1000.0 * CALIBRATION_LOOPS * cpus / sum);
    exit(0);
}

static void rearm(int operation, int connection) {
    struct epoll_event event = {.events = EPOLLIN | EPOLLONESHOT, .data.fd = connection};
    if (epoll_ctl(epoll, operation, connection, &event) != 0) close(connection);
}

static void serve(int connection, uint64_t *table, char *page) {
    uint64_t request;
    ssize_t got = recv(connection, &request, sizeof request, MSG_WAITALL);
    if (got != sizeof request) {
        close(connection);
        return;
    }
    if (request & FROM_DISK) {
        int64_t at = (int64_t)(request * 2654435761ULL % (DISK_BYTES / PAGE)) * PAGE;
        if (disk < 0) die("a read from the disk is asked for, but there is no --disk-file");
        if (pread(disk, page, PAGE, at) != PAGE) die("disk: %s", strerror(errno));
    }
    table[0] += spin(table, request, loops);
    if (send(connection, &request, sizeof request, MSG_NOSIGNAL) != sizeof request) {
        close(connection);
        return;
    }
    rearm(EPOLL_CTL_MOD, connection);
}

static void *work(void *unused) {
    uint64_t *table = new_table();
    char *page = checked(aligned_alloc(PAGE, PAGE));
    for (;;) {
        struct epoll_event event;
        if (epoll_wait(epoll, &event, 1, -1) == 1) serve(event.data.fd, table, page);
    }
    return unused;
}

static int listen_on(int port) {
    int one = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof address) != 0 ||
        listen(listener, SOMAXCONN) != 0)
        die("port %d: %s", port, strerror(errno));
    return listener;
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "--calibrate") == 0) calibrate(number(argc, argv, "--calibrate", NULL));
    loops = number(argc, argv, "--loops", NULL);
    const char *file = option(argc, argv, "--disk-file", "");
    if (*file != '\0') disk = open_blocks(file, DISK_BYTES);
    int listener = listen_on(number(argc, argv, "--port", NULL));
    epoll = epoll_create1(EPOLL_CLOEXEC);
    for (int i = number(argc, argv, "--threads", "4"); i > 0; i--) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, work, NULL) != 0) die("no thread: %s", strerror(errno));
    }
    for (;;) {
        int one = 1, connection = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (connection < 0) {
            if (errno == EINTR || errno == ECONNABORTED) continue;
            die("accept: %s", strerror(errno));
        }
        setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        rearm(EPOLL_CTL_ADD, connection);
    }
}
