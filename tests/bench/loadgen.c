/* Load for the relay: applications and an echoing provider in one process with one epoll loop.
 *
 *   applications --(masked audio frames)--> PROXY --> provider (here, plain or TLS)
 *   applications <--(audio frames)-- PROXY <-- provider
 *
 * Both ends share one clock, so latency is one-way and by direction: the first 16 characters of a frame's audio are
 * the time at which it was sent. Frames are sent at a steady rate, each application in a phase of its own, or (-r 0)
 * as fast as they come back, with a window of some frames per connection.
 *
 * Build: cc -O2 -o loadgen loadgen.c -lssl -lcrypto          (relay.py does it)
 * Prints S when the measured time begins, E when it ends, then one line of JSON. Gives up after two minutes.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/sha.h>
#include <openssl/ssl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { CLIENT, SERVER };
typedef struct {
    int fd, side, open, want_out;
    SSL *ssl;
    uint8_t *in, *out;
    size_t inlen, incap, outoff, outlen, outcap;
} conn;

static int proxy_port, server_port, nconn = 1, audio = 160, window = 8, nconnecting;
static double rate = 0, warm = 1, secs = 3;
static const char *cert, *key;
static int ep, lfd, nopen, measuring, started;
static conn **clients;
static uint64_t frames_up, frames_down;
static uint8_t *body[2];          /* payload templates: [CLIENT] goes up, [SERVER] goes down */
static size_t blen[2], ts_off[2];
typedef struct { uint32_t *v; size_t n, cap; } vec;
static vec lat_up, lat_down, late;
static SSL_CTX *ctx;

static uint64_t now_ns(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1000000000ull + t.tv_nsec; }
static void die(const char *m) { fprintf(stderr, "loadgen: %s (errno %s)\n", m, strerror(errno)); exit(1); }
static void push(vec *a, uint64_t ns) {
    if (a->n == a->cap) { a->cap = a->cap ? a->cap * 2 : 1 << 16; a->v = realloc(a->v, a->cap * 4); }
    a->v[a->n++] = ns > 4000000000ull ? 4000000000u : (uint32_t)ns;
}
static int cmp(const void *a, const void *b) { uint32_t x = *(uint32_t *)a, y = *(uint32_t *)b; return x < y ? -1 : x > y; }
static double pct(vec *a, double p) { return a->n ? a->v[(size_t)(p * (a->n - 1))] / 1000.0 : -1; }

static void make_bodies(void) {
    static const char *pre[2] = {"{\"type\":\"input.audio\",\"audio\":\"", "{\"type\":\"reply.audio\",\"data\":\""};
    uint8_t *raw = malloc(audio), *b64 = malloc(audio * 2 + 64);
    srand(7);
    for (int i = 0; i < audio; i++) raw[i] = rand() >> 7;
    int n = EVP_EncodeBlock(b64, raw, audio);
    for (int s = 0; s < 2; s++) {
        size_t p = strlen(pre[s]);
        body[s] = malloc(p + n + 2);
        memcpy(body[s], pre[s], p); memcpy(body[s] + p, b64, n); memcpy(body[s] + p + n, "\"}", 2);
        blen[s] = p + n + 2; ts_off[s] = p;
    }
}

static void ev_set(conn *c, int out) {
    if (c->want_out == out) return;
    c->want_out = out;
    struct epoll_event e = {.events = EPOLLIN | (out ? EPOLLOUT : 0), .data.ptr = c};
    epoll_ctl(ep, EPOLL_CTL_MOD, c->fd, &e);
}
static uint8_t *reserve(conn *c, size_t n) {
    if (c->outoff == c->outlen) c->outoff = c->outlen = 0;
    if (c->outlen + n > c->outcap) { c->outcap = (c->outlen + n) * 2; c->out = realloc(c->out, c->outcap); }
    uint8_t *p = c->out + c->outlen; c->outlen += n; return p;
}
static void flush_out(conn *c) {
    while (c->outoff < c->outlen) {
        ssize_t n;
        if (c->ssl) {
            n = SSL_write(c->ssl, c->out + c->outoff, c->outlen - c->outoff);
            if (n <= 0) { ev_set(c, 1); return; }
        } else {
            n = send(c->fd, c->out + c->outoff, c->outlen - c->outoff, MSG_NOSIGNAL);
            if (n < 0) { if (errno == EAGAIN) { ev_set(c, 1); return; } die("send"); }
        }
        c->outoff += n;
    }
    ev_set(c, 0);
}
static void add_frame(conn *c, int op, const uint8_t *pl, size_t n, int ts) {
    int m = c->side == CLIENT;
    size_t h = n < 126 ? 2 : 4;
    uint8_t *p = reserve(c, h + (m ? 4 : 0) + n);
    p[0] = 0x80 | op;
    p[1] = (m ? 0x80 : 0) | (n < 126 ? n : 126);
    if (h == 4) { p[2] = n >> 8; p[3] = n; }
    p += h;
    uint8_t *q = p + (m ? 4 : 0);
    memcpy(q, pl, n);
    if (ts) { char b[17]; snprintf(b, 17, "%016llx", (unsigned long long)now_ns()); memcpy(q + ts_off[c->side], b, 16); }
    if (m) {
        static uint32_t k = 0x9e3779b9; k = k * 1664525u + 1013904223u;
        memcpy(p, &k, 4);
        for (size_t i = 0; i < n; i++) q[i] ^= p[i & 3];
    }
}
static void audio_frame(conn *c) { add_frame(c, 1, body[c->side], blen[c->side], 1); }

static conn *new_conn(int fd, int side) {
    conn *c = calloc(1, sizeof *c);
    c->fd = fd; c->side = side; c->incap = 4096; c->in = malloc(c->incap);
    int one = 1; setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
    epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e);
    if (side == SERVER && ctx) { c->ssl = SSL_new(ctx); SSL_set_fd(c->ssl, fd); SSL_set_accept_state(c->ssl); }
    return c;
}
static void dial(void) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(proxy_port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (connect(fd, (void *)&a, sizeof a)) die("connect");
    conn *c = new_conn(fd, CLIENT);
    static const char req[] = "GET /v1/ws HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                              "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";
    memcpy(reserve(c, sizeof req - 1), req, sizeof req - 1);
    flush_out(c);
    nconnecting++;
}
static int handshake(conn *c) { /* returns 1 once open */
    uint8_t *end = memmem(c->in, c->inlen, "\r\n\r\n", 4);
    if (!end) return 0;
    end += 4;
    if (c->side == CLIENT) {
        if (memcmp(c->in, "HTTP/1.1 101", 12)) { fwrite(c->in, 1, c->inlen, stderr); die("handshake refused"); }
        clients[nopen++] = c; nconnecting--;
    } else {
        *(end - 1) = 0;
        char *k = strcasestr((char *)c->in, "\r\nsec-websocket-key:");
        if (!k) die("no key");
        k += 20; while (*k == ' ') k++;
        char buf[128]; uint8_t sha[20], b64[64];
        int n = snprintf(buf, sizeof buf, "%.24s258EAFA5-E914-47DA-95CA-C5AB0DC85B11", k);
        SHA1((uint8_t *)buf, n, sha); EVP_EncodeBlock(b64, sha, 20);
        char rsp[256];
        n = snprintf(rsp, sizeof rsp, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: %s\r\n\r\n", b64);
        memcpy(reserve(c, n), rsp, n);
    }
    size_t used = end - c->in;
    memmove(c->in, end, c->inlen - used); c->inlen -= used;
    c->open = 1;
    return 1;
}
static uint64_t ts_of(const uint8_t *p, const uint8_t *mask, size_t off) {
    uint64_t v = 0;
    for (int i = 0; i < 16; i++) { uint8_t ch = p[off + i] ^ (mask ? mask[(off + i) & 3] : 0); v = v << 4 | (ch <= '9' ? ch - '0' : ch - 'a' + 10); }
    return v;
}
static void readable(conn *c) {
    for (;;) {
        if (c->incap - c->inlen < 2048) { c->incap *= 2; c->in = realloc(c->in, c->incap); }
        ssize_t n, room = c->incap - c->inlen;
        if (c->ssl) {
            n = SSL_read(c->ssl, c->in + c->inlen, room);
            if (n <= 0) { int e = SSL_get_error(c->ssl, n); if (e == SSL_ERROR_WANT_READ || e == SSL_ERROR_WANT_WRITE) break; ERR_print_errors_fp(stderr); die("ssl_read"); }
        } else {
            n = recv(c->fd, c->in + c->inlen, room, 0);
            if (n < 0) { if (errno == EAGAIN) break; die("recv"); }
            if (n == 0) die("peer closed");
        }
        c->inlen += n;
        if (!c->ssl && n < room) break;
    }
    if (!c->open && !handshake(c)) return;
    uint64_t t = now_ns();
    size_t off = 0;
    int got = 0;
    while (c->inlen - off >= 2) {
        uint8_t *p = c->in + off, *mask = NULL;
        size_t h = 2, n = p[1] & 127;
        if (n == 126) { if (c->inlen - off < 4) break; n = p[2] << 8 | p[3]; h = 4; } else if (n == 127) die("huge frame");
        if (p[1] & 128) { mask = p + h; h += 4; }
        if (c->inlen - off < h + n) break;
        int op = p[0] & 15;
        if (op <= 1) {
            int from = c->side == CLIENT ? SERVER : CLIENT;
            if (n != blen[from]) die("payload altered");
            uint64_t lat = t - ts_of(p + h, mask, ts_off[from]);
            if (measuring) { if (c->side == SERVER) { frames_up++; push(&lat_up, lat); } else { frames_down++; push(&lat_down, lat); } }
            got++;
        } else if (op == 9) {
            uint8_t tmp[125]; for (size_t i = 0; i < n; i++) tmp[i] = p[h + i] ^ (mask ? mask[i & 3] : 0);
            add_frame(c, 10, tmp, n, 0);
        } else if (op == 8) die("close frame");
        off += h + n;
    }
    if (off) { memmove(c->in, c->in + off, c->inlen - off); c->inlen -= off; }
    if (c->side == SERVER || (rate == 0 && started)) for (int i = 0; i < got; i++) audio_frame(c);
    flush_out(c);
}
static int cmp64(const void *a, const void *b) { uint64_t x = *(uint64_t *)a, y = *(uint64_t *)b; return x < y ? -1 : x > y; }

int main(int argc, char **argv) {
    int o;
    while ((o = getopt(argc, argv, "p:s:n:b:r:w:W:d:c:k:")) > 0) switch (o) {
        case 'p': proxy_port = atoi(optarg); break;  case 's': server_port = atoi(optarg); break;
        case 'n': nconn = atoi(optarg); break;       case 'b': audio = atoi(optarg); break;
        case 'r': rate = atof(optarg); break;        case 'w': window = atoi(optarg); break;
        case 'W': warm = atof(optarg); break;        case 'd': secs = atof(optarg); break;
        case 'c': cert = optarg; break;              case 'k': key = optarg; break;
        default: die("usage: -p proxy_port -s server_port -n conns -b audio_bytes -r frames_per_s(0=saturate) -w window -W warm_s -d secs [-c cert -k key]");
    }
    make_bodies();
    clients = calloc(nconn, sizeof *clients);
    ep = epoll_create1(0);
    if (cert) {
        ctx = SSL_CTX_new(TLS_server_method());
        SSL_CTX_set_mode(ctx, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
        if (SSL_CTX_use_certificate_file(ctx, cert, SSL_FILETYPE_PEM) != 1 || SSL_CTX_use_PrivateKey_file(ctx, key, SSL_FILETYPE_PEM) != 1) die("cert");
    }
    lfd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    int one = 1; setsockopt(lfd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(server_port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (bind(lfd, (void *)&a, sizeof a) || listen(lfd, 4096)) die("listen");
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = NULL};
    epoll_ctl(ep, EPOLL_CTL_ADD, lfd, &e);

    uint64_t period = rate > 0 ? (uint64_t)(1e9 / rate) : 0, *phase = calloc(nconn, 8), k = 0, t0 = 0, tm = 0, te = 0, hard = now_ns() + 120000000000ull;
    srand(11);
    for (int i = 0; i < nconn; i++) phase[i] = period ? (uint64_t)((double)rand() / RAND_MAX * period) : 0;
    qsort(phase, nconn, 8, cmp64);
    struct rusage r0, r1;
    struct epoll_event ev[512];
    int dialed = 0;
    for (;;) {
        while (dialed < nconn && nconnecting < 64) { dial(); dialed++; }
        uint64_t t = now_ns();
        if (t > hard) die("hard time limit");
        if (!started && nopen == nconn) {
            started = 1; t0 = t + 10000000; tm = t0 + warm * 1e9; te = tm + secs * 1e9;
            if (!period) for (int i = 0; i < nconn; i++) { for (int j = 0; j < window; j++) audio_frame(clients[i]); flush_out(clients[i]); }
        }
        int64_t wait = 100000000;
        if (started) {
            if (period) {
                for (;;) {
                    uint64_t due = t0 + k / nconn * period + phase[k % nconn];
                    if (due > t) { wait = due - t; break; }
                    audio_frame(clients[k % nconn]); flush_out(clients[k % nconn]);
                    if (measuring) push(&late, t - due);
                    k++; t = now_ns();
                }
            }
            if (!measuring && t >= tm) { measuring = 1; tm = t; getrusage(RUSAGE_SELF, &r0); puts("S"); fflush(stdout); }
            if (measuring && t >= te) break;
            int64_t w2 = measuring ? te - t : tm - t;
            if (w2 < wait) wait = w2;
        }
        struct timespec ts = {wait / 1000000000, wait % 1000000000};
        int n = epoll_pwait2(ep, ev, 512, &ts, NULL);
        for (int i = 0; i < n; i++) {
            conn *c = ev[i].data.ptr;
            if (!c) { int fd; while ((fd = accept(lfd, NULL, NULL)) >= 0) new_conn(fd, SERVER); continue; }
            if (ev[i].events & EPOLLOUT) flush_out(c);
            if (ev[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) readable(c);
        }
    }
    getrusage(RUSAGE_SELF, &r1);
    te = now_ns();
    puts("E"); fflush(stdout);
    double d = (te - tm) / 1e9;
    double cpu = (r1.ru_utime.tv_sec - r0.ru_utime.tv_sec) + (r1.ru_utime.tv_usec - r0.ru_utime.tv_usec) / 1e6 + (r1.ru_stime.tv_sec - r0.ru_stime.tv_sec) + (r1.ru_stime.tv_usec - r0.ru_stime.tv_usec) / 1e6;
    qsort(lat_up.v, lat_up.n, 4, cmp); qsort(lat_down.v, lat_down.n, 4, cmp); qsort(late.v, late.n, 4, cmp);
    printf("{\"secs\":%.4f,\"up\":%llu,\"down\":%llu,\"lg_cpu\":%.3f,\"up_p50\":%.1f,\"up_p99\":%.1f,\"up_p999\":%.1f,\"down_p50\":%.1f,\"down_p99\":%.1f,\"down_p999\":%.1f,\"late_p99\":%.1f}\n",
           d, (unsigned long long)frames_up, (unsigned long long)frames_down, cpu / d, pct(&lat_up, .5), pct(&lat_up, .99), pct(&lat_up, .999), pct(&lat_down, .5), pct(&lat_down, .99), pct(&lat_down, .999), pct(&late, .99));
    return 0;
}
