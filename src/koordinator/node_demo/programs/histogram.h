/* A histogram of latencies that each thread fills for itself, and a port that tells the sum of all in Prometheus' text
 * format. Its thread is none of the workers: a scrape costs them nothing but the few cache lines that it reads. */
#ifndef NODE_DEMO_HISTOGRAM_H
#define NODE_DEMO_HISTOGRAM_H

#include "common.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/time.h>

#define HISTOGRAM_NAME "demo_request_duration_seconds"
#define BOUNDS 57 /* 0.1 ms to 1.6 s, four per doubling: a percentile read from them is at most 19 % too high */
#define FIRST_BOUND_NS 100000.0
#define GROWTH 1.189207115002721 /* the fourth root of two */
#define TEXT_BYTES 8192
#define SCRAPER_PATIENCE_S 1

struct histogram {
    uint64_t counts[BOUNDS + 1], sum_ns;
} __attribute__((aligned(64)));

static int64_t histogram_bounds_ns[BOUNDS];
static struct histogram *histograms;
static int histogram_count;

static void make_histograms(int threads) {
    double bound = FIRST_BOUND_NS;
    for (int i = 0; i < BOUNDS; i++, bound *= GROWTH) histogram_bounds_ns[i] = bound;
    histograms = checked(aligned_alloc(64, threads * sizeof *histograms));
    memset(histograms, 0, threads * sizeof *histograms);
    histogram_count = threads;
}

/* Only the thread that owns a histogram writes it. */
static inline void count_latency(struct histogram *own, int64_t latency_ns) {
    int i = 0;
    while (i < BOUNDS && latency_ns > histogram_bounds_ns[i]) i++;
    __atomic_store_n(&own->counts[i], own->counts[i] + 1, __ATOMIC_RELAXED);
    __atomic_store_n(&own->sum_ns, own->sum_ns + latency_ns, __ATOMIC_RELAXED);
}

static size_t histogram_text(char *to, size_t room) {
    uint64_t below = 0, sum_ns = 0;
    size_t used = snprintf(to, room, "# TYPE " HISTOGRAM_NAME " histogram\n");
    for (int bound = 0; bound <= BOUNDS; bound++) {
        for (int i = 0; i < histogram_count; i++) below += __atomic_load_n(&histograms[i].counts[bound], __ATOMIC_RELAXED);
        if (bound < BOUNDS)
            used += snprintf(to + used, room - used, HISTOGRAM_NAME "_bucket{le=\"%.6f\"} %lu\n",
                             histogram_bounds_ns[bound] / 1e9, (unsigned long)below);
    }
    for (int i = 0; i < histogram_count; i++) sum_ns += __atomic_load_n(&histograms[i].sum_ns, __ATOMIC_RELAXED);
    used += snprintf(to + used, room - used, HISTOGRAM_NAME "_bucket{le=\"+Inf\"} %lu\n" HISTOGRAM_NAME "_sum %.9f\n"
                     HISTOGRAM_NAME "_count %lu\n", (unsigned long)below, sum_ns / 1e9, (unsigned long)below);
    return used;
}

/* Whatever is asked for: there is one page. */
static void answer_scrape(int connection) {
    static char text[TEXT_BYTES], page[TEXT_BYTES + 256];
    struct timeval patience = {.tv_sec = SCRAPER_PATIENCE_S};
    setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(connection, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    if (recv(connection, text, sizeof text, 0) > 0) {
        size_t length = histogram_text(text, sizeof text);
        int size = snprintf(page, sizeof page,
                            "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n"
                            "Content-Length: %zu\r\nConnection: close\r\n\r\n%s", length, text);
        send(connection, page, size, MSG_NOSIGNAL);
    }
    close(connection);
}

static void *tell_histogram(void *listener) {
    for (;;) {
        int connection = accept4((int)(intptr_t)listener, NULL, NULL, SOCK_CLOEXEC);
        if (connection >= 0) answer_scrape(connection);
        else if (errno != EINTR && errno != ECONNABORTED) die("accept of a scrape: %s", strerror(errno));
    }
    return NULL;
}

#endif
