/* SPDX-License-Identifier: MIT
 *
 * Numbers for what exists only because somebody asked for it: the frozen text of
 * a control file, a selection, the folder of an epoch.  They live until the
 * kernel forgets them.
 *
 * The kernel opens files here without asking (ENOSYS for open holds for the
 * whole connection), so a file whose text changes needs another way to be fresh:
 * every lookup of it gets a number of its own, with the text frozen for it.
 */
#ifndef ZRECORDFS_MINTED_H
#define ZRECORDFS_MINTED_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct minted_table;
struct node_kind;
struct source;

struct minted {
    /* Constant while it is pinned. */
    uint64_t ino;
    const struct node_kind *kind;
    struct source *source; /* not a hold */
    char *name;            /* what was asked for; NULL for texts, which have none */
    void *bytes;           /* by kind: a text, a selection */
    size_t nbytes;
    uint64_t id;         /* by kind: a seed */
    atomic_bool is_used; /* for kinds that do something once */

    /* Under the table's lock. */
    struct minted *chain;
    struct minted *older, *newer; /* of those with a name that can be forgotten */
    uint64_t folder_ino;          /* where that is; 0 when not in that list */
    uint64_t lookup_count;        /* what the kernel still holds */
    unsigned pin_count;
};

/* Live ones are bounded: their number, and the bytes of all.  NULL when memory
 * runs out. */
struct minted_table *minted_new(size_t max_count, size_t max_nbytes);
/* Takes NULL. */
void minted_free(struct minted_table *t);

/* What is to be minted; name (or NULL) is copied, bytes (malloc'ed) are taken over in every
 * case.  The same kind, source and name have one number, which follows from them. */
struct minted_wish {
    const struct node_kind *kind;
    struct source *source;
    const char *name;
    bool is_unique; /* a number of its own although it has a name */
    uint64_t salt;  /* what else the number of a name follows from */
    void *bytes;
    size_t nbytes;
    uint64_t id;
    uint64_t folder_ino; /* where its name is, for minted_take_surplus; 0: never there */
};
/* Gives it with one lookup, and pinned until minted_unpin.  0, ENFILE when too many
 * are alive, or ENOMEM.  Thread safe, as all of these. */
int minted_get(struct minted_table *t, const struct minted_wish *wish, struct minted **out);
/* Pins what has that number until minted_unpin; NULL when there is nothing.  What is
 * pinned outlives its forgetting. */
struct minted *minted_pin(struct minted_table *t, uint64_t ino);
/* Takes NULL. */
void minted_unpin(struct minted_table *t, struct minted *m);
/* One more lookup of what is there; false when it is not. */
bool minted_lookup_again(struct minted_table *t, uint64_t ino);
/* The kernel gives back that many lookups.  Unknown numbers are ignored. */
void minted_forget(struct minted_table *t, uint64_t ino, uint64_t lookup_count);

/* The oldest name when there are more than kept_count that were given a folder: each is
 * given once, and malloc'ed.  NULL when there are not. */
char *minted_take_surplus(struct minted_table *t, size_t kept_count, uint64_t *folder_ino);
bool minted_has_surplus(struct minted_table *t, size_t kept_count);

void minted_usage(struct minted_table *t, size_t *count, size_t *nbytes);

#endif
