# SPDX-License-Identifier: MIT
"""How many transforms a DataLoader runs at once (zrecord.gate), on a clock of the test's own."""

import threading
import time

import numpy as np
import pytest
import zrecord
from zrecord.gate import Gate


class Rig:
    """Threads that are numbers: each round, all that are let in do one batch."""

    def __init__(self, most):
        self.now = 0.0
        self.gate = Gate(most, lambda: self.now)
        self.inside = 0

    def run(self, rounds, seconds, cores):
        """`seconds(k)` of a batch while k are inside; `cores(k)` they keep busy.  What was allowed."""
        seen = []
        for _ in range(rounds):
            while self.inside < self.gate.allowed:
                assert self.gate.enter()
                self.inside += 1
            count = self.inside
            for _ in range(count):
                self.gate.begin()
            for _ in range(count):  # one after the other, each as long after the one before
                self.now += seconds(count) / count
                self.gate.end(seconds(count), cores(count) * seconds(count) / count)
                if not self.gate.may_stay():
                    self.gate.leave()
                    self.inside -= 1
            seen.append(self.gate.allowed)
        return seen


def serial(count):
    """Holding one lock, and the more so the more there are."""
    return 0.01 * count * (1 + 0.4 * (count - 1))


def parallel(count):
    return 0.01


@pytest.mark.parametrize("most", [1, 2, 3, 4, 8, 64])
def test_what_holds_the_gil_runs_alone(most):
    rig = Rig(most)
    seen = rig.run(400, serial, lambda k: 1.0)
    assert seen.count(1) > 300 and seen[-1] <= 2


@pytest.mark.parametrize("most", [1, 2, 3, 4, 8, 64])
def test_what_scales_runs_on_all_threads(most):
    seen = Rig(most).run(400, parallel, lambda k: k)
    assert seen.count(most) > 300 and min(seen) >= most // 2


def test_what_waits_is_never_held_back():
    """Files, locks, other transforms: nearly no processor time, so fewer would only be slower."""
    assert set(Rig(8).run(400, lambda k: 0.01 * k, lambda k: 0.1)) == {8}


def test_work_that_changes_is_noticed():
    rig = Rig(8)
    assert rig.run(200, serial, lambda k: 1.0)[-1] <= 2
    assert rig.run(600, parallel, lambda k: k)[-1] == 8
    assert rig.run(600, serial, lambda k: 1.0)[-1] <= 2
    assert rig.run(20, lambda k: 1.0, lambda k: 0.0)[-1] == 8


def test_no_difference_is_no_reason():
    seen = Rig(4).run(400, lambda k: 0.01 * k, lambda k: 1.0)
    assert seen.count(4) > 250


def test_those_inside_that_wait_for_others_get_them():
    rig = Rig(4)
    rig.run(100, serial, lambda k: 1.0)
    rig.gate.allowed = 1
    while rig.inside > 1:
        rig.gate.leave()
        rig.inside -= 1
    while rig.inside < 1:
        rig.gate.enter()
        rig.inside += 1
    rig.gate.begin()
    rig.now += 100
    for _ in range(3):
        assert rig.gate.enter()


def test_stop_lets_everyone_go():
    gate = Gate(4)
    gate.allowed = 1
    assert gate.enter()
    results = []
    threads = [threading.Thread(target=lambda: results.append(gate.enter())) for _ in range(3)]
    for thread in threads:
        thread.start()
    gate.stop()
    for thread in threads:
        thread.join(10)
    assert results == [False] * 3 and not gate.may_stay()


def test_transforms_that_wait_for_each_other_go_on_after_ones_that_do_not(tmp_path):
    """The second kind needs all four threads at once, however few the first kind was left with."""
    with zrecord.Dense.create(tmp_path / "s", np.int64, ()) as store:
        store.append(np.arange(64))
    barrier = threading.Barrier(4)
    together = threading.Event()

    def transform(batch):
        if together.is_set():
            barrier.wait(30)
        else:
            until = time.perf_counter() + 0.004
            while time.perf_counter() < until:
                sum(range(100))
        return batch

    store = zrecord.open(tmp_path / "s")
    with zrecord.DataLoader({"x": store}, 4, 8, transform=transform) as loader:
        for _ in range(60):
            next(loader)
        loader._run.gate._allow(1)
        together.set()
        for _ in range(40):
            next(loader)
        barrier.abort()  # for those that have not enough others any more
