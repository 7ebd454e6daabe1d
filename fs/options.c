/* SPDX-License-Identifier: MIT
 *
 * Parsing of the command line.  One table holds every option that takes part in
 * -o lists; the same names work as long options, with "-" for "_".  Besides them
 * come the words that mount(8) and fstab add and that mean nothing here.
 */
#include "options.h"

#include "transport.h"
#include "warm.h"
#include "zrecord.h"

#define FUSE_USE_VERSION 35
#include <fuse_lowlevel.h>

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_CACHE_MIB = 64, MAX_THREADS = 64, MAX_SPIN_USEC = 1000, MAX_TIMEOUT_SEC = 31536000 };

static const char HELP[] =
    "Usage: zrecordfs [options] SOURCE MOUNTPOINT\n"
    "Shows the records of a store as read-only .npy files, one file a record; of a\n"
    "folder that holds stores and archives (.tdz) at any depth, the same tree; of an\n"
    "archive its levels, leaves and rows.\n"
    "\n"
    "  -f                   stay in the foreground, log to stderr\n"
    "  -d                   the same, and print every request\n"
    "  -s                   one thread (threads=1), with io_uring one a CPU\n"
    "  -o LIST              options, comma-separated:\n"
    "     allow_other           other users may read too\n"
    "     uid=N gid=N           owner shown (default: that of the store)\n"
    "     umask=OCTAL           permission bits taken away from 0444 and 0555\n"
    "     readdirplus=auto|always|never\n"
    "                           listings bring attributes along (auto: always up\n"
    "                           to 300,000 records, then as the kernel sees fit)\n"
    "     threads=N             threads that serve requests (default: by the CPUs)\n"
    "     transport=auto|classic|uring\n"
    "                           uring: FUSE over io_uring, for the fastest cold reads;\n"
    "                           auto: where the kernel offers it (.control says how)\n"
    "     spin=US               microseconds to wait actively for the next request\n"
    "                           while requests keep coming (classic); 0: just sleep\n"
    "     cache=BYTES           memory for decoded records of which the kernel has\n"
    "                           asked for a part only (default 64M)\n"
    "     shard=K               folders of K records each\n"
    "     classes=STREAM        in a tree: a folder for each label in the store STREAM,\n"
    "                           with the records of the stores beside it\n"
    "     preview               .views/preview/*.png of records that are images\n"
    "     prefetch=auto|off|K   records decoded ahead of a reader that goes in order,\n"
    "                           straight into the page cache (auto: by their size)\n"
    "     timeout=S             unmount when nothing was asked for S seconds and no\n"
    "                           file is open (default: never)\n"
    "     checksums             compare each record read with its checksum (costs\n"
    "                           a few per cent; finds flipped bytes in raw stores)\n"
    "     rw                    writes to leaves and rows reach their archive where it\n"
    "                           is uncompressed, alone or in a tree; its checksums\n"
    "                           follow when it is unmounted\n"
    "     control=ro|rw         rw: .control takes commands that are written to it, at\n"
    "                           the price of more messages (zrecord ctl needs neither)\n"
    "     show_control          list .control and .views too (they can always be opened)\n"
    "     and those of mount(8): ro, nodev, nosuid, noexec, noatime ...\n"
    "  -h, --help           this text\n"
    "  -V, --version        versions\n"
    "Every name in the list works as a long option as well: --allow-other, --uid=0.\n"
    "\n"
    "cat MOUNTPOINT/.control shows the status.  fusermount3 -u MOUNTPOINT (or umount)\n"
    "ends it.  Exit codes: 0 mounted, 1 failed, 2 wrong usage.\n";

static int usage(const char *format, const char *word)
{
    fputs("zrecordfs: ", stderr);
    fprintf(stderr, format, word); /* NOLINT(clang-diagnostic-format-nonliteral) */
    fputs("; zrecordfs --help lists what there is\n", stderr);
    return -1;
}

static bool parse_number(const char *text, int base, unsigned long max, unsigned long *value)
{
    char *end;
    if (!text || !isdigit((unsigned char)text[0]))
        return false;
    errno = 0;
    unsigned long parsed = strtoul(text, &end, base);
    if (errno || *end || parsed > max)
        return false;
    *value = parsed;
    return true;
}

bool options_parse_nbytes(const char *text, uint64_t *nbytes)
{
    static const char UNITS[] = "KMGT";
    char *end;
    if (!text || !isdigit((unsigned char)text[0]))
        return false;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno)
        return false;
    unsigned shift = 0;
    const char *unit = *end ? strchr(UNITS, toupper((unsigned char)*end)) : NULL;
    if (unit) {
        shift = 10U * (unsigned)(unit - UNITS + 1);
        end++;
    }
    if (*end || value > UINT64_MAX >> shift)
        return false;
    *nbytes = (uint64_t)value << shift;
    return true;
}

static bool set_flag(bool *flag, const char *value)
{
    *flag = true;
    return value == NULL;
}

static bool set_allow_other(struct options *o, const char *value)
{
    return set_flag(&o->allow_other, value);
}

static bool set_show_control(struct options *o, const char *value)
{
    return set_flag(&o->show_control, value);
}

static bool set_checksums(struct options *o, const char *value)
{
    return set_flag(&o->checksums, value);
}

static bool set_debug(struct options *o, const char *value)
{
    o->foreground = true;
    return set_flag(&o->debug, value);
}

static bool set_uid(struct options *o, const char *value)
{
    unsigned long number = 0;
    o->has_uid = parse_number(value, 10, UINT32_MAX - 1, &number);
    o->uid = (uid_t)number;
    return o->has_uid;
}

static bool set_gid(struct options *o, const char *value)
{
    unsigned long number = 0;
    o->has_gid = parse_number(value, 10, UINT32_MAX - 1, &number);
    o->gid = (gid_t)number;
    return o->has_gid;
}

static bool set_umask(struct options *o, const char *value)
{
    unsigned long number = 0;
    bool ok = parse_number(value, 8, 0777, &number);
    o->umask = (mode_t)number;
    return ok;
}

static bool set_threads(struct options *o, const char *value)
{
    unsigned long number = 0;
    bool ok = parse_number(value, 10, MAX_THREADS, &number);
    o->threads = (unsigned)number;
    return ok;
}

static bool set_spin(struct options *o, const char *value)
{
    unsigned long number = 0;
    bool ok = parse_number(value, 10, MAX_SPIN_USEC, &number);
    o->spin_usec = (int)number;
    return ok;
}

static bool set_timeout(struct options *o, const char *value)
{
    unsigned long number = 0;
    bool ok = parse_number(value, 10, MAX_TIMEOUT_SEC, &number);
    o->timeout_sec = (unsigned)number;
    return ok;
}

static bool set_prefetch(struct options *o, const char *value)
{
    unsigned long number = 0;
    bool is_number = parse_number(value, 10, WARM_MAX_AHEAD, &number);
    if (is_number)
        o->prefetch = (int)number;
    else if (value && strcmp(value, "off") == 0)
        o->prefetch = WARM_OFF;
    else
        return value && strcmp(value, "auto") == 0;
    return true;
}

static bool set_cache(struct options *o, const char *value)
{
    return options_parse_nbytes(value, &o->cache_nbytes);
}

static bool set_transport(struct options *o, const char *value)
{
    return value && transport_parse(value, &o->transport);
}

static bool set_preview(struct options *o, const char *value)
{
    return set_flag(&o->preview, value);
}

static bool set_classes(struct options *o, const char *value)
{
    o->classes = value;
    return value && *value && *value != '.' && !strchr(value, '/');
}

static bool set_control(struct options *o, const char *value)
{
    o->writable_control = value && strcmp(value, "rw") == 0;
    return o->writable_control || (value && strcmp(value, "ro") == 0);
}

static bool set_shard(struct options *o, const char *value)
{
    unsigned long number = 0;
    bool ok = parse_number(value, 10, ULONG_MAX, &number);
    o->shard_length = number;
    return ok && number > 0;
}

static const char *const READDIRPLUS_NAMES[] = {"auto", "always", "never"};

static bool set_readdirplus(struct options *o, const char *value)
{
    for (int i = 0; value && i < 3; i++) {
        if (strcmp(value, READDIRPLUS_NAMES[i]) == 0) {
            o->readdirplus = i;
            return true;
        }
    }
    return false;
}

const char *options_readdirplus_name(int value)
{
    return READDIRPLUS_NAMES[value];
}

/* A setter is false for a value it does not take; NULL means that none came. */
static const struct own_option {
    const char *name;
    bool (*set)(struct options *o, const char *value);
    int has_arg;
} OWN[] = {
    {"allow_other", set_allow_other, no_argument},
    {"show_control", set_show_control, no_argument},
    {"checksums", set_checksums, no_argument},
    {"debug", set_debug, no_argument},
    {"uid", set_uid, required_argument},
    {"gid", set_gid, required_argument},
    {"umask", set_umask, required_argument},
    {"readdirplus", set_readdirplus, required_argument},
    {"threads", set_threads, required_argument},
    {"transport", set_transport, required_argument},
    {"spin", set_spin, required_argument},
    {"cache", set_cache, required_argument},
    {"control", set_control, required_argument},
    {"preview", set_preview, no_argument},
    {"classes", set_classes, required_argument},
    {"shard", set_shard, required_argument},
    {"prefetch", set_prefetch, required_argument},
    {"timeout", set_timeout, required_argument},
};
enum { OWN_COUNT = sizeof OWN / sizeof OWN[0] };

static const char *const KERNEL_WORDS[] = {
    "nodev",      "dev",        "nosuid",      "suid",          "noexec",  "exec", "noatime",
    "nodiratime", "norelatime", "strictatime", "nostrictatime", "dirsync", "sync", "async",
};

/* rw among them: mount(8) adds it unless told otherwise, and only archives have
 * anything to write. */
static const char *const IGNORED_WORDS[] = {
    "ro",     "rw",       "defaults",   "auto",     "noauto",     "user",     "nouser",
    "users",  "nousers",  "owner",      "noowner",  "group",      "nogroup",  "_netdev",
    "nofail", "relatime", "atime",      "diratime", "silent",     "loud",     "mand",
    "nomand", "iversion", "noiversion", "lazytime", "nolazytime", "nonempty", "default_permissions",
};

static bool is_word(const char *text, const char *const *words, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(text, words[i]) == 0)
            return true;
    return false;
}
#define IS_WORD(text, words) is_word(text, words, sizeof(words) / sizeof *(words))

static bool is_ignored(const char *text)
{
    static const char *const PREFIXES[] = {"x-", "X-", "comment=", "user=", "fsname=", "subtype="};
    for (size_t i = 0; i < sizeof PREFIXES / sizeof *PREFIXES; i++)
        if (strncmp(text, PREFIXES[i], strlen(PREFIXES[i])) == 0)
            return true;
    return IS_WORD(text, IGNORED_WORDS);
}

static int add_kernel_word(struct options *o, const char *word)
{
    size_t used = strlen(o->kernel);
    int written =
        snprintf(o->kernel + used, sizeof o->kernel - used, "%s%s", used ? "," : "", word);
    if (written < 0 || (size_t)written >= sizeof o->kernel - used)
        return usage("too many options at '%s'", word);
    return 0;
}

/* One word of an -o list; changes it in place. */
static int apply_word(struct options *o, char *word)
{
    if (strcmp(word, "rw") == 0 || strcmp(word, "ro") == 0)
        o->writable_leaves = word[1] == 'w';
    if (word[0] == '\0' || is_ignored(word))
        return 0;
    if (IS_WORD(word, KERNEL_WORDS))
        return add_kernel_word(o, word);
    char *value = strchr(word, '=');
    size_t name_nbytes = value ? (size_t)(value - word) : strlen(word);
    for (size_t i = 0; i < OWN_COUNT; i++) {
        if (strlen(OWN[i].name) != name_nbytes || strncmp(OWN[i].name, word, name_nbytes) != 0)
            continue;
        if (OWN[i].set(o, value ? value + 1 : NULL))
            return 0;
        return usage(value ? "option '%s' does not take that value" : "option '%s' needs a value",
                     word);
    }
    return usage("unknown option '%s'", word);
}

static int apply_list(struct options *o, char *list)
{
    char *rest = list;
    for (char *word = strsep(&rest, ","); word; word = strsep(&rest, ","))
        if (apply_word(o, word) < 0)
            return -1;
    return 0;
}

enum { LONG_OWN = 1000 };

/* Long options: "allow_other" and, where that differs, "allow-other". */
static void make_long_options(struct option *longs, char (*dashed)[32])
{
    static const struct option FIXED[] = {
        {"help", no_argument, NULL, 'h'},
        {"version", no_argument, NULL, 'V'},
        {"foreground", no_argument, NULL, 'f'},
        {"options", required_argument, NULL, 'o'},
    };
    size_t n = 0;
    for (size_t i = 0; i < sizeof FIXED / sizeof *FIXED; i++)
        longs[n++] = FIXED[i];
    for (size_t i = 0; i < OWN_COUNT; i++) {
        struct option option = {OWN[i].name, OWN[i].has_arg, NULL, LONG_OWN + (int)i};
        longs[n++] = option;
        snprintf(dashed[i], sizeof dashed[i], "%s", OWN[i].name);
        char *underscore = strchr(dashed[i], '_');
        if (!underscore)
            continue;
        *underscore = '-';
        option.name = dashed[i];
        longs[n++] = option;
    }
    longs[n] = (struct option){0};
}

static void print_version(void)
{
    printf("zrecordfs %s\nlibzstd %s\nlibfuse %s\n", zr_version(), zr_zstd_version(),
           fuse_pkgversion());
}

static int apply_own(struct options *o, const struct own_option *own, const char *value)
{
    if (own->set(o, value))
        return 0;
    return usage("option '--%s' does not take that value", own->name);
}

/* 0 to go on, 1 when all is said, -1 for wrong usage. */
static int apply_option(struct options *o, int key)
{
    switch (key) {
    case 'f':
        o->foreground = true;
        return 0;
    case 'd':
        o->foreground = o->debug = true;
        return 0;
    case 's':
        o->threads = 1;
        return 0;
    case 'o':
        return apply_list(o, optarg);
    case 'h':
        fputs(HELP, stdout);
        return 1;
    case 'V':
        print_version();
        return 1;
    default:
        break;
    }
    if (key >= LONG_OWN)
        return apply_own(o, &OWN[key - LONG_OWN], optarg);
    fputs("zrecordfs --help lists what there is\n", stderr); /* getopt has named it */
    return -1;
}

static int take_operands(struct options *o, int count, char **operands)
{
    if (count < 2)
        return usage(count ? "MOUNTPOINT is missing after '%s'" : "%s are missing",
                     count ? operands[0] : "SOURCE and MOUNTPOINT");
    if (count > 2)
        return usage("one SOURCE and one MOUNTPOINT, not also '%s'", operands[2]);
    o->source = operands[0];
    o->mountpoint = operands[1];
    return 0;
}

enum options_result options_parse(struct options *o, int argc, char **argv)
{
    struct option longs[2 * OWN_COUNT + 5];
    char dashed[OWN_COUNT][32];
    make_long_options(longs, dashed);
    *o = (struct options){
        .spin_usec = -1, .prefetch = WARM_AUTO, .cache_nbytes = (uint64_t)DEFAULT_CACHE_MIB << 20};

    for (int key; (key = getopt_long(argc, argv, "fdso:hV", longs, NULL)) != -1;) {
        int result = apply_option(o, key);
        if (result)
            return result > 0 ? OPTIONS_DONE : OPTIONS_USAGE;
    }
    return take_operands(o, argc - optind, argv + optind) < 0 ? OPTIONS_USAGE : OPTIONS_RUN;
}
