/* SPDX-License-Identifier: MIT
 *
 * The daemon's main thread while requests are served: it tells a service manager
 * how things are, ends an idle mount, and waits for the signals that end it.
 */
#ifndef ZRECORDFS_SERVICE_H
#define ZRECORDFS_SERVICE_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

/* Sends lines such as "READY=1" to the socket that systemd names in NOTIFY_SOCKET;
 * does nothing without one. */
void service_notify(const char *state);

struct service_watch {
    const char *mountpoint; /* absolute */
    unsigned timeout_sec;   /* unmount when nothing was asked for so long; 0 never */
    uint64_t (*request_count)(void *ctx);
    void *ctx;
};
/* Returns when one of the signals has come; unmounting an idle mount makes the
 * transport send one. */
void service_await_end(const sigset_t *signals, const struct service_watch *watch);

#endif
