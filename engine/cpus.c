/* SPDX-License-Identifier: MIT
 *
 * How many threads a call may use: what affinity, cgroup quotas, the environment
 * and the program leave.
 */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "internal.h"

#define MAX_THREADS 256

static _Atomic unsigned chosen_count; /* by zr_set_thread_count; 0: default */

/* Two numbers of one or two files, rounded up to CPUs; 0: no limit there. */
static unsigned quota_cpus(const char *dir, const char *quota_name, const char *period_name)
{
    char path[4096];
    long long quota = 0, period = 0;
    snprintf(path, sizeof path, "%s/%s", dir, quota_name);
    FILE *f = fopen(path, "re");
    if (!f)
        return 0;
    int found = fscanf(f, "%lld %lld", &quota, &period); /* "max 100000" gives none */
    fclose(f);
    if (found == 1 && period_name) {
        snprintf(path, sizeof path, "%s/%s", dir, period_name);
        f = fopen(path, "re");
        if (f && fscanf(f, "%lld", &period) != 1)
            period = 0;
        if (f)
            fclose(f);
    }
    if (found < 1 || quota <= 0 || period <= 0)
        return 0;
    long long cpus = (quota - 1) / period + 1;
    return cpus > MAX_THREADS ? 0 : (unsigned)cpus;
}

/* The tightest quota from the process's group up to the root of its hierarchy. */
static unsigned group_cpus(const char *root, const char *group, bool v2)
{
    char dir[4096];
    unsigned least = 0;
    if (snprintf(dir, sizeof dir, "%s%s", root, group) >= (int)sizeof dir)
        return 0;
    for (char *end = dir + strlen(dir); end >= dir + strlen(root); end = strrchr(dir, '/')) {
        *end = 0;
        unsigned n = v2 ? quota_cpus(dir, "cpu.max", NULL)
                        : quota_cpus(dir, "cpu.cfs_quota_us", "cpu.cfs_period_us");
        if (n && (!least || n < least))
            least = n;
    }
    return least;
}

/* Whether a comma-separated list of controllers has cpu. */
static bool has_cpu(const char *list)
{
    for (const char *p = list; p; p = strchr(p, ','), p = p ? p + 1 : NULL)
        if (!strncmp(p, "cpu", 3) && (p[3] == ',' || !p[3]))
            return true;
    return false;
}

/* CPUs' worth of time that the cgroups grant; 0: no limit.  A line of
 * /proc/self/cgroup is "id:controllers:/path", without controllers in v2. */
static unsigned cgroup_cpus(void)
{
    char line[4096];
    unsigned least = 0;
    FILE *f = fopen("/proc/self/cgroup", "re");
    while (f && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        char *controllers = strchr(line, ':');
        char *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group)
            continue;
        *group++ = 0;
        bool v2 = !*++controllers;
        unsigned n = v2                     ? group_cpus("/sys/fs/cgroup", group, true)
                     : has_cpu(controllers) ? group_cpus("/sys/fs/cgroup/cpu", group, false)
                                            : 0;
        if (n && (!least || n < least))
            least = n;
    }
    if (f)
        fclose(f);
    return least;
}

static unsigned default_thread_count(void)
{
    const char *env = getenv("ZRECORD_THREADS");
    if (env && *env) {
        char *end;
        errno = 0;
        unsigned long n = strtoul(env, &end, 10);
        if (!errno && !*end && n >= 1 && *env != '-')
            return n > MAX_THREADS ? MAX_THREADS : (unsigned)n;
    }
    cpu_set_t set;
    long n =
        sched_getaffinity(0, sizeof set, &set) ? sysconf(_SC_NPROCESSORS_ONLN) : CPU_COUNT(&set);
    unsigned count = n < 1 ? 1 : n > MAX_THREADS ? MAX_THREADS : (unsigned)n;
    unsigned quota = cgroup_cpus();
    return quota && quota < count ? quota : count;
}

unsigned zr_thread_count(void)
{
    unsigned n = atomic_load(&chosen_count);
    if (n)
        return n;
    static _Atomic unsigned cached;
    n = atomic_load(&cached);
    if (!n) {
        n = default_thread_count();
        atomic_store(&cached, n);
    }
    return n;
}

void zr_set_thread_count(unsigned count)
{
    atomic_store(&chosen_count, count > MAX_THREADS ? MAX_THREADS : count);
}
