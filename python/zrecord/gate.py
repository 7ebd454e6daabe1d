# SPDX-License-Identifier: MIT
"""How many transforms run at once: as many as there are threads, unless fewer get more done.

Python code that holds the GIL most of the time, but lets go of it at every small array operation,
is slower in four threads than in one: they hand the GIL to each other.  So the gate now and then
tries half as many, or twice as many again, and keeps what finished more batches a second.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable

__all__ = ["Bell", "Gate"]

# A thread that an exception ends just after the bell woke it wakes nobody else: so those look.
LOOK_SECONDS = 0.1

_WINDOW, _WINDOW_SECONDS = 6, 0.03  # at least: batches, and their time, that are compared
_BETTER = 1.1  # times as many a second, for a change to stay
_BUSY_CORES = 0.5  # transforms that compute less than this wait for something: let all of them
_REST_MAX = 64  # windows between tries that fail
_STUCK_SECONDS = 0.5  # or 8 transforms, if these take longer


class Bell:
    """Wakes threads that wait for a change; they look at what changed, under its lock, themselves.

    One of them at a time: whoever leaves while there is more for others rings again.  Nobody waits
    inside a lock, as with threading.Condition, where a KeyboardInterrupt that comes while the lock
    is let go leaves it so and becomes a RuntimeError.
    """

    def __init__(self) -> None:
        self._rung: queue.SimpleQueue[None] = queue.SimpleQueue()  # of at most one token, or few

    def ring(self) -> None:
        if self._rung.empty():
            self._rung.put(None)

    def wait(self, seconds: float) -> None:
        """Until the bell rings, or so long."""
        with contextlib.suppress(queue.Empty):
            self._rung.get(timeout=seconds)


class Gate:
    """Lets up to `allowed` of `most` threads in, and moves `allowed` by what they get done.

    Parameters
    ----------
    most : int
        Threads there are.
    clock : callable
        Seconds, for tests.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self.allowed = most
        self._most = most
        self._clock = clock
        self._lock = threading.RLock()
        self._bell = Bell()
        self._stopped = False
        # Below: under the lock.
        self._inside = 0
        self._busy = 0  # of them, those that have something to do
        self._changed = clock()  # when one of them began or ended
        self._longest = 0.0  # seconds of one, of late
        self._start = clock()
        self._done, self._cpu = 0, 0.0  # since then
        self._before: tuple[int, float] | None = None  # what is being compared with
        self._down = True
        self._rest, self._rest_next = 0, 2

    def enter(self) -> bool:
        """Wait to be let in; False after stop()."""
        while not self._stopped:
            with self._lock:
                if self._inside >= self.allowed and self._is_stuck():
                    self._allow(self._most)
                if self._inside < self.allowed:
                    self._inside += 1
                    self._ring_for_more()
                    return True
            self._bell.wait(LOOK_SECONDS)
        self._bell.ring()
        return False

    def may_stay(self) -> bool:
        """Whether one who is inside may do the next one too."""
        return not self._stopped and self._inside <= self.allowed

    def begin(self) -> None:
        """There is something to do."""
        with self._lock:
            self._busy += 1
            self._changed = self._clock()

    def end(self, seconds: float, cpu_seconds: float) -> None:
        """It is done, and took so long."""
        with self._lock:
            self._busy -= 1
            self._changed = self._clock()
            self._longest = max(seconds, 0.9 * self._longest)
            self._cpu += cpu_seconds
            self._done += 1
            if self._inside > self.allowed:  # those of before a change are still there
                self._begin_window()
                return
            elapsed = self._changed - self._start
            if self._done >= max(_WINDOW, self.allowed + 2) and elapsed >= _WINDOW_SECONDS:
                rate, cores = self._done / elapsed, self._cpu / elapsed
                self._begin_window()
                self._judge(rate, cores)

    def leave(self) -> None:
        """Let the next one in."""
        with self._lock:
            self._inside -= 1
            self._ring_for_more()

    def stop(self) -> None:
        """Let everyone go."""
        self._stopped = True
        self._bell.ring()

    def _is_stuck(self):
        """Whether those inside may wait for those outside."""
        still = self._clock() - self._changed
        return self._busy >= self.allowed and still > max(_STUCK_SECONDS, 8 * self._longest)

    def _ring_for_more(self):
        if self._inside < self.allowed:
            self._bell.ring()

    def _begin_window(self):
        self._start, self._done, self._cpu = self._clock(), 0, 0.0

    def _allow(self, count, before=None):
        self.allowed, self._before = count, before
        self._begin_window()
        self._ring_for_more()

    def _judge(self, rate, cores):
        if cores < _BUSY_CORES:
            self._allow(self._most)
            self._down, self._rest = True, 2
        elif self._before is None:
            if self._rest:
                self._rest -= 1
            else:
                self._try(rate)
        elif rate > _BETTER * self._before[1]:
            self._rest_next = 2
            self._try(rate)
        else:
            self._allow(self._before[0])
            self._turn()

    def _turn(self):
        """The other way, after a while."""
        self._down = not self._down
        self._rest = self._rest_next
        self._rest_next = min(2 * self._rest_next, _REST_MAX)

    def _try(self, rate):
        count = max(1, self.allowed // 2) if self._down else min(self._most, 2 * self.allowed)
        if count == self.allowed:
            self._allow(count)
            self._turn()
        else:
            self._allow(count, (self.allowed, rate))
