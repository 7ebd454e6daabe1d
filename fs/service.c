/* SPDX-License-Identifier: MIT
 *
 * The main thread of a mount (service.h).  sd_notify is one datagram, so libsystemd
 * is not needed for it.
 *
 * A mount is idle when no request came for the given time and no file or folder of
 * it is in use, which the kernel knows and says by refusing to unmount.  Files that
 * lie in the page cache are read without a request; so with a timeout, names are
 * remembered for half of it only (node.c), and whoever opens files shows.
 */
#include "service.h"

#include "mountpoint.h"
#include "report.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

void service_notify(const char *state)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t nbytes = path ? strlen(path) : 0;
    if (nbytes < 2 || nbytes >= sizeof address.sun_path || !strchr("/@", path[0]))
        return;
    memcpy(address.sun_path, path, nbytes);
    if (path[0] == '@')
        address.sun_path[0] = '\0'; /* a name outside the filesystem */
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return;
    socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + nbytes);
    if (sendto(fd, state, strlen(state), MSG_NOSIGNAL, (void *)&address, length) < 0)
        report(LOG_WARNING, "NOTIFY_SOCKET %s: %s", path, strerror(errno));
    close(fd);
}

static double now_sec(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* When a quarter of the timeout has passed, or at once on a signal. */
static bool got_signal(const sigset_t *signals, unsigned timeout_sec)
{
    struct timespec period = {.tv_sec = timeout_sec / 4,
                              .tv_nsec = (long)(timeout_sec % 4) * 250000000};
    int got;
    do
        got = timeout_sec ? sigtimedwait(signals, NULL, &period) : sigwaitinfo(signals, NULL);
    while (got < 0 && errno == EINTR);
    return got > 0;
}

void service_await_end(const sigset_t *signals, const struct service_watch *watch)
{
    uint64_t seen = watch->request_count(watch->ctx);
    double since = now_sec();
    while (!got_signal(signals, watch->timeout_sec)) {
        uint64_t count = watch->request_count(watch->ctx);
        if (count != seen) {
            seen = count;
            since = now_sec();
        } else if (now_sec() - since >= watch->timeout_sec) {
            if (mountpoint_detach(watch->mountpoint) == 0) {
                report(LOG_INFO, "nothing was asked of %s for %u s: unmounted", watch->mountpoint,
                       watch->timeout_sec);
                mountpoint_remove_made(watch->mountpoint);
            }
            since = now_sec(); /* in use: look again after as long */
            seen = watch->request_count(watch->ctx);
        }
    }
}
