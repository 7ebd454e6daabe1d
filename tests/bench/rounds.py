# SPDX-License-Identifier: MIT
"""Interleaved rounds: every backend gets the same fresh plans, one block after the other.

A block is as many plans of the round as fit into a fixed time, so that slow backends do not set
the length of a run.  A round's rate is its records over its seconds; the table shows the median of
the rounds and their spread, and the latency of single plans over all rounds.

Warm means used a moment ago: before its turn each backend's files are read through and some plans
of another draw run untimed, or what the machine does to memory that idles while the others have
their turns would be charged to the fast ones.
"""

import statistics
import time

import checks
import pagecache
import plans

WARMING = 10  # a tenth of a turn's plans go before it


def shares(backends, workload, settings):
    """How many plans of a round each backend runs, from the time of one."""
    result = {}
    for backend in backends:
        probe = plans.draw(2, len(workload), workload.batch, 11)
        seconds = max(min(backend.time(probe)), 1e-7)
        fitting = int(settings.block_seconds / seconds)
        result[backend.name] = max(1, min(settings.plans, fitting))
    return result


def gather(backends, workload, settings):
    """Checks, then rounds; for each backend a list of rounds, each the seconds of its plans."""
    share = shares(backends, workload, settings)
    drawn = plans.rounds(settings.rounds, settings.plans, len(workload), workload.batch)
    checks.planned(backends, share, drawn, workload)
    untimed = plans.draw(settings.plans, len(workload), workload.batch, 17)
    seconds = {backend.name: [] for backend in backends}
    for number, batch_plans in enumerate(drawn):
        for backend in rotated(backends, number):
            pagecache.touch(backend.path)
            backend.time(untimed[: share[backend.name] // WARMING])
            seconds[backend.name].append(backend.time(batch_plans[: share[backend.name]]))
    return seconds


def rotated(backends, number):
    """Another order in every round, so that nobody always follows the same neighbour."""
    if not backends:
        return []
    start = number * 7 % len(backends)
    order = backends[start:] + backends[:start]
    return order if number % 2 else order[::-1]


def rates(rounds, batch):
    """Records a second of each round."""
    return [batch * len(seconds) / sum(seconds) for seconds in rounds]


def percentile(values, fraction):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(fraction * len(ordered)))]


def summary(rounds, batch):
    """Median and spread of the rates, and the 95th percentile of one plan's seconds."""
    rate = rates(rounds, batch)
    return {
        "records_per_second": statistics.median(rate),
        "low": min(rate),
        "high": max(rate),
        "p95_seconds": percentile([s for seconds in rounds for s in seconds], 0.95),
        "plans": sum(map(len, rounds)),
    }


def timed(work, *arguments):
    """Seconds that a call takes."""
    start = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - start
