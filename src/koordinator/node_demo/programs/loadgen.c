/* Constant-rate, open-loop load: request i is due at start + i / rate, whatever became of those before it, and its
 * latency counts from that moment, not from when it could be sent.
 *
 *   loadgen --port N --rate PER_SECOND --warm-up SECONDS --seconds SECONDS --out FILE [--disk-every N]
 *           [--connections 512] [--class fifo] [--protocol raw|resp|http, with options as protocols.h says]
 *
 * FILE receives one record per request due after the warm-up, of int64 nanoseconds: when it was due, since the end of
 * the warm-up; latency; how late it was sent though it could be. Requests without an answer at the end have the negated time that they
 * had waited. One line of JSON tells the rest. `--class fifo` runs in a real-time class, which stands for a client on
 * another machine: it waits for no CPU. `other` runs as an ordinary process.
 *
 * It wakes up to send, not for each answer, which would take the CPU from a thread of the service once more, as no client elsewhere
 * does. Answers are read then; when one came is the kernel's receive timestamp of its last packet.
 */
#define _GNU_SOURCE
#include "common.h"
#include "protocols.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/resource.h>

#define EVENTS 256
#define RECEIVED_BYTES (64 << 10) /* at a time */
#define NS_PER_MS 1000000LL
#define STRAGGLERS_NS (NS_PER_S / 2) /* how long answers are waited for after the last request */
#define FIFO_PRIORITY 10

struct record {
    int64_t due_ns, latency_ns, late_ns;
};

static const struct protocol *protocol;
static long total, warm, sent, answered, disk_every;
static int64_t start_ns, freed_ns; /* the latter: when a connection came free after all were busy */
static double period_ns;
static struct record *records;
static int *sockets;
static long *asked;   /* request under way on each connection */
static struct answer *answers;
/* Connections without a request, a ring: each gets its turn, for a server may give them to workers of its own. */
static uint32_t *idle;
static long connections, idle_first, idle_count;

static int64_t due(long request) { return start_ns + (int64_t)(request * period_ns); }

static int from_disk(long request) { return disk_every > 0 && request % disk_every == 0; }

static void be_real_time(const char *class) {
    if (strcmp(class, "other") == 0) return;
    struct sched_param priority = {.sched_priority = FIFO_PRIORITY};
    if (sched_setscheduler(0, SCHED_FIFO, &priority) != 0) die("real-time class: %s", strerror(errno));
}

static void send_due(int64_t now) {
    static char bytes[REQUEST_BYTES];
    while (sent < total && idle_count > 0 && due(sent) <= now) {
        uint32_t connection = idle[idle_first];
        idle_first = (idle_first + 1) % connections;
        idle_count--;
        ssize_t count = protocol->ask(bytes, sent, from_disk(sent));
        if (send(sockets[connection], bytes, count, MSG_NOSIGNAL) != count) die("send: %s", strerror(errno));
        records[sent].late_ns = now - (due(sent) > freed_ns ? due(sent) : freed_ns);
        asked[connection] = sent++;
    }
}

static void receive(uint32_t connection) {
    static char bytes[RECEIVED_BYTES];
    struct answer *answer = &answers[connection];
    int64_t came_ns;
    ssize_t got = receive_noting(sockets[connection], bytes, sizeof bytes, MSG_DONTWAIT, &came_ns);
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) die("the service closed the connection");
    take(answer, bytes, got);
    long request = asked[connection];
    if (!protocol->is_whole(answer, request, from_disk(request))) return;
    answer->got = answer->head_got = 0;
    int64_t at = came_ns + now_ns(CLOCK_MONOTONIC) - now_ns(CLOCK_REALTIME);
    records[request].latency_ns = at - due(request);
    if (idle_count == 0) freed_ns = at;
    answered++;
    idle[(idle_first + idle_count++) % connections] = connection;
}

static void connect_all(int epoll, int port) {
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    for (uint32_t i = 0; i < connections; i++) {
        int one = 1;
        sockets[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (sockets[i] < 0 || connect(sockets[i], (struct sockaddr *)&address, sizeof address) != 0)
            die("connect to port %d: %s", port, strerror(errno));
        setsockopt(sockets[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        setsockopt(sockets[i], SOL_SOCKET, SO_TIMESTAMPNS, &one, sizeof one);
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = i};
        if (epoll_ctl(epoll, EPOLL_CTL_ADD, sockets[i], &event) != 0) die("epoll: %s", strerror(errno));
        idle[i] = i;
    }
    idle_count = connections;
}

static void sleep_until(int64_t at) {
    struct timespec when = {at / NS_PER_S, at % NS_PER_S};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &when, NULL) == EINTR) {}
}

/* Wait for answers where nothing can be sent before one has come: all connections are busy, or all has been sent. */
static void run(int epoll) {
    int64_t end = due(total) + STRAGGLERS_NS, now = now_ns(CLOCK_MONOTONIC);
    while (answered < total && now < end) {
        int can_send = sent < total && idle_count > 0;
        if (can_send) sleep_until(due(sent));
        struct epoll_event events[EVENTS];
        int count = epoll_wait(epoll, events, EVENTS, can_send ? 0 : 1 + (int)((end - now) / NS_PER_MS));
        for (int i = 0; i < count; i++) receive(events[i].data.u32);
        now = now_ns(CLOCK_MONOTONIC);
        send_due(now);
    }
}

static void write_records(const char *path) {
    FILE *file = fopen(path, "wb");
    if (file == NULL) die("%s: %s", path, strerror(errno));
    int64_t now = now_ns(CLOCK_MONOTONIC), first = due(warm);
    for (long i = warm; i < total; i++) {
        if (records[i].latency_ns == 0) records[i].latency_ns = due(i) - now;
        records[i].due_ns = due(i) - first;
    }
    size_t count = total - warm;
    if (fwrite(records + warm, sizeof *records, count, file) != count || fclose(file) != 0)
        die("%s: %s", path, strerror(errno));
}

int main(int argc, char **argv) {
    protocol = choose_protocol(argc, argv);
    connections = number(argc, argv, "--connections", "512");
    double rate = number(argc, argv, "--rate", NULL);
    double warm_s = number(argc, argv, "--warm-up", "0");
    period_ns = NS_PER_S / rate;
    warm = warm_s * rate;
    disk_every = number(argc, argv, "--disk-every", "0");
    total = warm + (long)(number(argc, argv, "--seconds", NULL) * rate);
    if (total <= warm || connections < 1) die("nothing to measure");
    records = checked(calloc(total, sizeof *records));
    sockets = checked(calloc(connections, sizeof *sockets));
    asked = checked(calloc(connections, sizeof *asked));
    idle = checked(calloc(connections, sizeof *idle));
    answers = checked(calloc(connections, sizeof *answers));
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    connect_all(epoll, number(argc, argv, "--port", NULL));
    const char *class = option(argc, argv, "--class", "fifo");
    if (mlockall(MCL_CURRENT) != 0) die("lock memory: %s", strerror(errno));
    be_real_time(class);
    start_ns = now_ns(CLOCK_MONOTONIC) + 10000000;
    run(epoll);
    write_records(option(argc, argv, "--out", NULL));
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    double cpu_s = used.ru_utime.tv_sec + used.ru_stime.tv_sec + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
    printf("{\"requests\": %ld, \"answered\": %ld, \"warmUp\": %ld, \"cpuSeconds\": %.3f}\n",
           total, answered, warm, cpu_s);
    return 0;
}
