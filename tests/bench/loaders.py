# SPDX-License-Identifier: MIT
"""Batches a second of the DataLoader, beside loaderx 2.0.0's.

Both read the same store with the same seed.  A round gives each loader a run of its own, one after
the other, so that neither prepares batches while the other is timed; the first batches of a run
are not counted.  Batches are looked at, not only received: one element of every record is summed.
"""

import shutil
import statistics
import time
from pathlib import Path

import backends as registry
import checks
import zrecord

WARMUP = 5


def touch(batch):
    """A cheap consumer that still reads from every record."""
    values = batch["x"]
    if isinstance(values, list):
        return sum(int(record.flat[0]) for record in values)
    return int(values.reshape(len(values), -1)[:, ::4096].sum())


def run(loader, seconds):
    """Batches a second."""
    try:
        for _ in range(WARMUP):
            touch(next(loader))
        count, start = 0, time.perf_counter()
        while (spent := time.perf_counter() - start) < seconds or not count:
            touch(next(loader))
            count += 1
        return count / max(spent, 1e-9)
    finally:
        loader.close()


def contenders(workload, path):
    """What makes each loader, by its name; and why one is missing."""
    makers, skipped = {}, {}
    ours = zrecord.open(path)
    batch = workload.batch
    makers["zrecord"] = lambda **kw: zrecord.DataLoader({"x": ours}, batch_size=batch, **kw)
    makers["zrecord ordered, own transform"] = lambda **kw: zrecord.DataLoader(
        {"x": ours}, batch_size=batch, transform=lambda one: one, ordered=True, **kw
    )
    try:
        from backends import loaderx

        package = loaderx.reference()
        kind = package.Ragged if workload.ragged else package.Dense
        theirs = kind.open(path)
        makers["loaderx-2.0.0"] = lambda **kw: package.DataLoader(
            {"x": theirs}, batch_size=batch, **kw
        )
    except (ImportError, registry.Missing) as error:
        skipped["loaderx-2.0.0"] = str(error)
    return makers, skipped


def check(makers, workload):
    """The first sequential batch of each loader holds the first records."""
    ids = range(min(workload.batch, len(workload)))
    for name, make in makers.items():
        loader = make(transform_workers=1, mode=0)
        try:
            got = next(loader)["x"][: len(ids)]
            checks.compare(name, got, workload.take(list(ids)), ids)
        finally:
            loader.close()


def table(some, folder, settings):
    """Every workload raw and zstd, an identity transform."""
    rows, skipped = [], {}
    for workload in some:
        for codec in ("raw", "zstd"):
            path = Path(folder) / f"loader-{codec}"
            shutil.rmtree(path, ignore_errors=True)
            shape = () if workload.ragged else (workload.records.shape[1:],)
            kind = zrecord.Ragged if workload.ragged else zrecord.Dense
            with kind.create(path, workload.dtype, *shape, codec) as store:
                store.append(workload.records)
            makers, missing = contenders(workload, path)
            skipped.update(missing)
            check(makers, workload)
            rates = {name: [] for name in makers}
            for number in range(settings.scaling_rounds):
                order = list(makers.items())
                for name, make in order if number % 2 else reversed(order):
                    rates[name].append(run(make(), 5 * settings.scaling_seconds))
            for name, rate in rates.items():
                rows.append(
                    {
                        "workload": f"{workload.name} {codec}",
                        "loader": name,
                        "batches_per_second": statistics.median(rate),
                        "low": min(rate),
                        "high": max(rate),
                    }
                )
            shutil.rmtree(path)
    return {"rows": rows, "skipped": skipped}
