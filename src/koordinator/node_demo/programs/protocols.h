/* How requests are put and when an answer is whole, for the services that the load generator speaks to.
 *
 *   raw   8 bytes there and back: our own service; FROM_DISK is set in requests that are to read from the disk
 *   resp  Redis: MGET of --keys random keys of --of, values of --value-bytes; a "disk" request SETs one of them
 *   http  HTTP/1.1: GET --path; a "disk" request GETs --disk-path
 */
#ifndef NODE_DEMO_PROTOCOLS_H
#define NODE_DEMO_PROTOCOLS_H

#include "common.h"

#define REQUEST_BYTES 32768 /* the longest request */
#define HEAD_BYTES 1024     /* of an answer: HTTP's header */
#define TAIL_BYTES 5        /* of an answer in chunks: they end with "0\r\n\r\n" */

/* What has come of the answer to one request. */
struct answer {
    size_t got, head_got; /* bytes */
    char head[HEAD_BYTES + 1], tail[TAIL_BYTES];
};

struct protocol {
    const char *name;
    size_t (*ask)(char *to, long request, int from_disk);        /* bytes of the request */
    int (*is_whole)(struct answer *answer, long request, int from_disk); /* dies when it is a wrong one */
};

static long keys_per_request, key_count, value_bytes;
static const char *path, *disk_path;

/* Keeps the first and the last bytes; what is between is of no interest. */
static void take(struct answer *answer, const char *bytes, size_t count) {
    size_t room = HEAD_BYTES - answer->head_got, kept = count < room ? count : room;
    memcpy(answer->head + answer->head_got, bytes, kept);
    answer->head_got += kept;
    answer->head[answer->head_got] = '\0';
    answer->got += count;
    size_t last = count < TAIL_BYTES ? count : TAIL_BYTES;
    memmove(answer->tail, answer->tail + last, TAIL_BYTES - last);
    memcpy(answer->tail + TAIL_BYTES - last, bytes + count - last, last);
}

static size_t ask_raw(char *to, long request, int from_disk) {
    uint64_t word = request | (from_disk ? FROM_DISK : 0);
    memcpy(to, &word, sizeof word);
    return sizeof word;
}

static int raw_is_whole(struct answer *answer, long request, int from_disk) {
    uint64_t word, expected = request | (from_disk ? FROM_DISK : 0);
    if (answer->got < sizeof word) return 0;
    memcpy(&word, answer->head, sizeof word);
    if (word != expected || answer->got > sizeof word) die("answer %lx to request %ld", (unsigned long)word, request);
    return 1;
}

static uint64_t mixed(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
}

/* By hand: the client is to cost little beside the server. */
static size_t put_key(char *to, uint64_t seed) {
    static const char form[] = "$12\r\nkey:00000000\r\n";
    memcpy(to, form, sizeof form - 1);
    char *digit = to + sizeof form - 4;
    for (uint64_t number = mixed(seed) % key_count; number > 0; number /= 10) *digit-- = '0' + number % 10;
    return sizeof form - 1;
}

static size_t ask_resp(char *to, long request, int from_disk) {
    if (from_disk) {
        size_t used = sprintf(to, "*3\r\n$3\r\nSET\r\n");
        used += put_key(to + used, request);
        used += sprintf(to + used, "$%ld\r\n", value_bytes);
        memset(to + used, 'v', value_bytes);
        memcpy(to + used + value_bytes, "\r\n", 2);
        return used + value_bytes + 2;
    }
    size_t used = sprintf(to, "*%ld\r\n$4\r\nMGET\r\n", keys_per_request + 1);
    for (long i = 0; i < keys_per_request; i++) used += put_key(to + used, request * keys_per_request + i);
    return used;
}

static int resp_is_whole(struct answer *answer, long request, int from_disk) {
    if (answer->got > 0 && answer->head[0] != (from_disk ? '+' : '*'))
        die("answer to request %ld: %.200s", request, answer->head);
    char first[64], each[64];
    size_t whole = 5; /* "+OK\r\n" */
    if (!from_disk)
        whole = sprintf(first, "*%ld\r\n", keys_per_request) +
                keys_per_request * (sprintf(each, "$%ld\r\n", value_bytes) + value_bytes + 2);
    if (answer->got > whole) die("answer to request %ld: %zu bytes, not %zu", request, answer->got, whole);
    return answer->got == whole;
}

static size_t ask_http(char *to, long request, int from_disk) {
    (void)request;
    return sprintf(to, "GET %.512s HTTP/1.1\r\nHost: service\r\nAccept-Encoding: gzip\r\n\r\n",
                   from_disk ? disk_path : path);
}

static int http_is_whole(struct answer *answer, long request, int from_disk) {
    (void)from_disk;
    const char *end = strstr(answer->head, "\r\n\r\n");
    if (end == NULL) {
        if (answer->head_got == HEAD_BYTES) die("answer to request %ld: its header is too long", request);
        return 0;
    }
    if (strncmp(answer->head, "HTTP/1.1 200", 12) != 0) die("answer to request %ld: %.200s", request, answer->head);
    const char *length = strcasestr(answer->head, "\r\nContent-Length: ");
    if (length == NULL || length > end) return memcmp(answer->tail, "0\r\n\r\n", TAIL_BYTES) == 0;
    size_t whole = end + 4 - answer->head + strtoul(length + 18, NULL, 10);
    if (answer->got > whole) die("answer to request %ld: %zu bytes, not %zu", request, answer->got, whole);
    return answer->got == whole;
}

static const struct protocol *choose_protocol(int argc, char **argv) {
    static const struct protocol protocols[] = {
        {"raw", ask_raw, raw_is_whole}, {"resp", ask_resp, resp_is_whole}, {"http", ask_http, http_is_whole}};
    keys_per_request = number(argc, argv, "--keys", "100");
    key_count = number(argc, argv, "--of", "1");
    value_bytes = number(argc, argv, "--value-bytes", "64");
    path = option(argc, argv, "--path", "/");
    disk_path = option(argc, argv, "--disk-path", "/");
    if (key_count < 1 || 64 + 32 * keys_per_request > REQUEST_BYTES || 128 + value_bytes > REQUEST_BYTES)
        die("requests of Redis: no keys, or more than %d bytes", REQUEST_BYTES);
    const char *name = option(argc, argv, "--protocol", "raw");
    for (size_t i = 0; i < sizeof protocols / sizeof *protocols; i++)
        if (strcmp(protocols[i].name, name) == 0) return &protocols[i];
    die("raw, resp or http, not %s", name);
}

#endif
