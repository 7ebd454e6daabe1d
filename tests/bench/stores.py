# SPDX-License-Identifier: MIT
"""The store tables: write, random gather and disk of every backend on the same records.

Columns and methodology are those of loaderx 2.0.0's own tables, with rounds added: logical bytes
over the seconds of append calls or of gathers, allocated blocks on disk, no fsync requested.
"""

import os
import shutil
import statistics
from pathlib import Path

import backends as registry
import checks
import pagecache
import plans
import rounds


def table(name, workload, folder, settings, threads, only=None):
    """One store table and its cold counterpart, and the names of all that could not take part."""
    folder = Path(folder)
    found, skipped = registry.available(folder, workload, only, settings.without(workload))
    found = written(found, skipped)
    bare, missing = [], {}
    if registry.wanted("limit", only):
        bare, missing = registry.limits(folder, workload, found, threads)
    skipped.update(missing)
    writes = write_all(found, workload, folder, settings)
    writes.update(write_limits(bare, folder, settings, threads))
    everyone = found + bare
    os.sync()  # or writing back would run beside the rounds
    try:
        for backend in everyone:
            backend.open()
        for backend in everyone:
            checks.sweep(backend, workload)
        seconds = rounds.gather(everyone, workload, settings)
    finally:
        for backend in everyone:
            close_quietly(backend)
    warm = [row(b, workload, writes, seconds[b.name]) for b in everyone]
    cold = cold_rows(found, workload, folder, settings, seconds, only)
    clear(found)
    return {
        "title": name,
        "note": workload.note,
        "records": len(workload),
        "batch": workload.batch,
        "logical_nbytes": workload.nbytes,
        "rows": warm,
        "cold": cold,
        "skipped": skipped,
    }


def close_quietly(backend):
    """Close; where opening had failed there is nothing to close, and that failure is the news."""
    try:
        backend.close()
    except (AttributeError, RuntimeError):
        pass


def written(found, skipped):
    """Readers of other backends' files only with those."""
    names = {backend.name for backend in found}
    kept = []
    for backend in found:
        if backend.reads and backend.reads not in names:
            skipped[backend.name] = f"{backend.reads} is not there"
        else:
            kept.append(backend)
    return kept


# ---------------------------------------------------------------- writing


def write_all(found, workload, folder, settings):
    """Seconds of the appends of each backend, in interleaved rounds; the last store is kept."""
    folder.mkdir(parents=True, exist_ok=True)
    seconds = {backend.name: [] for backend in found if not backend.reads}
    for number in range(settings.writes):
        for backend in rounds.rotated(found, number):
            if backend.reads or sum(seconds[backend.name]) > settings.write_seconds:
                continue
            shutil.rmtree(backend.path, ignore_errors=True)
            backend.create()
            seconds[backend.name].append(rounds.timed(backend.append))
            backend.finish()
        os.sync()
    return seconds


def write_limits(bare, folder, settings, threads):
    """The same for the bare programs, which write what zrecord's raw store holds."""
    seconds = {}
    for limit in bare:
        if limit.threads != threads or not (folder / "zrecord-raw").is_dir():
            continue
        seconds[limit.name] = []
        while len(seconds[limit.name]) < settings.writes:
            target = folder / "limit-append"
            seconds[limit.name].append(limit.written(folder / "zrecord-raw", target))
            if sum(seconds[limit.name]) > settings.write_seconds:
                break
    return seconds


def clear(found):
    for backend in found:
        shutil.rmtree(backend.path, ignore_errors=True)


# ---------------------------------------------------------------- rows


def row(backend, workload, writes, seconds):
    """All that the table and the plots need, and the raw rounds."""
    gathered = rounds.summary(seconds, workload.batch)
    mean = workload.nbytes / len(workload)
    result = {
        "backend": backend.name,
        "limit": backend.limit,
        "gather": gathered,
        "gather_bytes_per_second": gathered["records_per_second"] * mean,
        "gather_rounds_seconds": seconds,
    }
    if writes.get(backend.name):
        result["write_bytes_per_second"] = workload.nbytes / statistics.median(writes[backend.name])
        result["write_rounds_seconds"] = writes[backend.name]
    if not backend.reads:
        result["disk_nbytes"] = pagecache.disk_nbytes(backend.path)
        result["ratio"] = workload.nbytes / result["disk_nbytes"]
    return result


# ---------------------------------------------------------------- cold


def cold_rows(found, workload, folder, settings, warm_seconds, only):
    """One batch after the page cache let go of the files; opening is not timed."""
    contenders = [
        backend
        for backend in found
        if statistics.median(map(min, warm_seconds[backend.name])) <= settings.cold_slowest
    ]
    if any(b.name == "zrecord-raw" for b in found) and registry.wanted("limit", only):
        contenders += cold_limit(workload, folder)
    rows = {backend.name: [] for backend in contenders}
    left = dict.fromkeys(rows, 0.0)
    drawn = plans.rounds(settings.cold_rounds, 1, len(workload), workload.batch, 13)
    for number, plan in enumerate(drawn):
        for backend in rounds.rotated(contenders, number):
            pagecache.drop(backend.path)
            left[backend.name] = max(left[backend.name], pagecache.resident(backend.path))
            backend.open()
            try:
                rows[backend.name].append(backend.time(plan))
                checks.compare(
                    backend.name, backend.answer(plan[0]), workload.take(plan[0]), plan[0]
                )
            finally:
                backend.close()
    mean = workload.nbytes / len(workload)
    return [
        {
            "backend": backend.name,
            "limit": backend.limit,
            "gather": (summary := rounds.summary(rows[backend.name], workload.batch)),
            "gather_bytes_per_second": summary["records_per_second"] * mean,
            "gather_rounds_seconds": rows[backend.name],
            "resident_after_drop": left[backend.name],
        }
        for backend in contenders
    ]


def cold_limit(workload, folder):
    from backends import limit

    try:
        bare = limit.Cold("limit-raw, io_uring", folder, workload, "zrecord-raw", 1)
        bare.open()
        bare.close()
    except (registry.Missing, RuntimeError):  # no io_uring here, or not for us
        return []
    return [bare]
