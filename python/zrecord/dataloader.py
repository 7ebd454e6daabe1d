# SPDX-License-Identifier: MIT
"""DataLoader: endless batches from several stores at once, prepared ahead by threads."""

from __future__ import annotations

import _thread
import atexit
import contextlib
import operator
import os
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from .sampler import Sampler
from .store import Dense, Ragged

__all__ = ["DataLoader"]

# How long close() waits for a transform that does not come back before it goes on without it.
JOIN_SECONDS = 5.0

_END = object()
_runs: weakref.WeakSet[_Run] = weakref.WeakSet()


def identity(batch):
    """The default transform; batches then skip the transform threads."""
    return batch


def _positive(value, name):
    if isinstance(value, bool):
        raise TypeError(f"{name} must be an integer")
    try:
        value = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer") from None
    if value < 1:
        raise ValueError(f"{name} must be positive")
    return value


def _note(exc, text):
    if hasattr(exc, "add_note"):  # Python 3.11
        exc.add_note(text)


class _Position:
    """Which steps were consumed: all below `step`, and those of `ahead`, which lie above it."""

    def __init__(self, step=0, ahead=()):
        self.step = step
        self.ahead = set(ahead)

    def consume(self, step):
        self.ahead.add(step)
        while self.step in self.ahead:
            self.ahead.remove(self.step)
            self.step += 1

    def steps(self):
        """The steps not consumed yet, in order."""
        step, skip = self.step, frozenset(self.ahead)
        while True:
            if step not in skip:
                yield step
            step += 1


class _Run:
    """The threads and queues of a loader from one position on.

    It does not refer to the loader, so that a loader nobody holds any more can end it.  All
    fields below `lock` belong to it.  Batches under way, from the start of their gather until a
    consumer takes them, are never more than `limit`.
    """

    def __init__(self, streams, sampler, transform, workers, limit, ordered, position):
        self.streams = streams
        self.sampler = sampler
        self.transform = transform
        self.limit = limit
        self.ordered = ordered
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.room = threading.Condition(self.lock)  # the gather thread waits for fewer under way
        self.work = threading.Condition(self.lock)  # transform threads wait for a gathered batch
        self.ready = threading.Condition(self.lock)  # consumers wait for a finished batch
        self.gathered = deque()
        self.finished = {}  # step -> batch, in the order of completion
        self.under_way = 0
        self.position = position
        self.failure = None  # (step, exception)
        self.stopped = False
        loops = [self._gather_loop] + [self._transform_loop] * workers
        self.threads = [
            threading.Thread(target=loop, name=f"zrecord-{loop.__name__.strip('_')}", daemon=True)
            for loop in loops
        ]
        _runs.add(self)
        try:
            for thread in self.threads:
                thread.start()
        except BaseException:
            self.stop()
            raise

    # ------------------------------------------------------------ threads

    def _gather_loop(self):
        for step in self.position_steps():
            if not self._wait_for_room():
                return
            try:
                batch = self._gather(step)
            except BaseException as exc:
                self._fail(step, exc)
                return
            self._hand_on(step, batch)
            batch = None  # or it would live until the next one is there

    def position_steps(self):
        with self.lock:
            return self.position.steps()

    def _wait_for_room(self):
        with self.lock:
            while self.under_way >= self.limit and not self.stopped:
                self.room.wait()
            if self.stopped or self.failure:
                return False
            self.under_way += 1
            return True

    def _gather(self, step):
        if self.sampler.step != step:
            self.sampler.seek(step)
        ids = self.sampler.next()
        batch = {}
        for name, stream in self.streams.items():
            try:
                batch[name] = stream.gather(ids)
            except BaseException as exc:
                _note(exc, f"DataLoader: gathering stream {name!r} ({stream.path}) at step {step}")
                raise
        return batch

    def _hand_on(self, step, batch):
        if self.transform is identity:
            self._finish(step, batch)
            return
        with self.lock:
            if not self.stopped:
                self.gathered.append((step, batch))
                self.work.notify()

    def _transform_loop(self):
        while True:
            with self.lock:
                while not self.gathered and not self.stopped:
                    self.work.wait()
                if self.stopped:
                    return
                step, batch = self.gathered.popleft()
            try:
                batch = self.transform(batch)
            except BaseException as exc:
                _note(exc, f"DataLoader: transforming the batch of step {step}")
                self._fail(step, exc)
            else:
                self._finish(step, batch)
            batch = None

    def _finish(self, step, batch):
        with self.lock:
            if not self.stopped:
                self.finished[step] = batch
                self.ready.notify_all()

    def _fail(self, step, exc):
        """Keep the failure that the consumer meets first, and gather no more."""
        if isinstance(exc, StopIteration):  # would look like the end of the loader
            error = RuntimeError("the transform raised StopIteration")
            error.__cause__ = exc
            exc = error
        with self.lock:
            if self.failure is None or (self.ordered and step < self.failure[0]):
                self.failure = (step, exc)
            self.room.notify_all()
            self.ready.notify_all()

    # ------------------------------------------------------------ consumers

    def take(self):
        """The next batch, or _END after stop(); raises what a thread raised."""
        with self.lock:
            while not self.stopped:
                if self.failure and not (self.ordered and self.position.step < self.failure[0]):
                    self._end()
                    self.drop()
                    raise self.failure[1]
                step = self._finished_step()
                if step is not None:
                    self.under_way -= 1
                    self.room.notify()
                    self.position.consume(step)
                    return self.finished.pop(step)
                self.ready.wait()
        return _END

    def _finished_step(self):
        if not self.ordered:
            return next(iter(self.finished), None)
        step = self.position.step
        return step if step in self.finished else None

    def stop(self):
        """Wake everyone; no batch is given any more.  Does not wait."""
        if self.pid == os.getpid():  # else the threads, and who held the lock, are not here
            with self.lock:
                self._end()

    def _end(self):
        self.stopped = True
        for condition in (self.room, self.work, self.ready):
            condition.notify_all()

    def drop(self):
        """Let go of the batches of a stopped run."""
        self.gathered.clear()
        self.finished.clear()

    def join(self, seconds):
        """Wait for the threads; whether all have ended."""
        if self.pid != os.getpid():
            return True
        deadline = time.monotonic() + seconds
        for thread in self.threads:
            if thread is not threading.current_thread() and thread.ident is not None:
                thread.join(max(0.0, deadline - time.monotonic()))
        return not any(t.is_alive() for t in self.threads if t is not threading.current_thread())


@atexit.register
def _stop_all():
    """Threads must not be inside the engine while the interpreter goes away."""
    runs = list(_runs)
    for run in runs:
        run.stop()
    for run in runs:
        run.join(JOIN_SECONDS)


class DataLoader:
    """Endless, step-based loader over stores that are read at the same ids.

    A batch is a dict ``{name: values}``: for a Dense stream an array ``(n, *item_shape)``, for a
    Ragged one a list of arrays.  One thread draws ids and gathers all streams; `transform_workers`
    threads call `transform` on what it gathered.  With the default transform there are none.

    Parameters
    ----------
    streams : mapping of str to Dense or Ragged
        Opened for reading, all of the same length.  They stay the caller's to close.
    transform_workers : int
    batch_size : int
    prefetch_size : int
        Finished batches kept ready.  Never more than `prefetch_size` + `transform_workers`
        batches exist that were not handed out.
    mode : Sampler.Mode or int
        By default CYCLIC.
    seed : int
    transform : callable
        From batch dict to what the loader gives; called from several threads at once.
    ordered : bool
        Give batches in the order of their steps.  Otherwise as their transforms end, which is
        the same with the default transform.

    Raises
    ------
    TypeError, ValueError
        An argument is wrong; lengths differ.

    Notes
    -----
    An exception in a thread is raised by ``next``, with a note that names stream and step; the
    loader has ended then.  With ``ordered=True`` the batches before it are given first.
    Any number of threads may call ``next``.  A forked child cannot use it: make one there.
    """

    def __init__(
        self,
        streams: Mapping[str, Dense | Ragged],
        transform_workers: int = 4,
        batch_size: int = 256,
        prefetch_size: int = 4,
        mode: int = 2,
        seed: int = 42,
        transform: Callable[[dict[str, Any]], Any] = identity,
        *,
        ordered: bool = False,
    ) -> None:
        self.streams = dict(streams)
        length = self._common_length()
        workers = _positive(transform_workers, "transform_workers")
        prefetch_size = _positive(prefetch_size, "prefetch_size")
        if not callable(transform):
            raise TypeError("transform must be callable")
        self.sampler = Sampler(length, batch_size, mode, seed)
        self._transform = transform
        self._workers = 0 if transform is identity else workers
        self._limit = prefetch_size + max(1, self._workers)
        self._ordered = bool(ordered)
        self._run = self._start(_Position())

    def _common_length(self):
        if not self.streams:
            raise ValueError("a loader needs at least one stream")
        for name, stream in self.streams.items():
            if not isinstance(stream, (Dense, Ragged)) or stream._writable or stream.closed:
                raise ValueError(f"stream {name!r} is not a store opened for reading: {stream!r}")
        lengths = {name: len(stream) for name, stream in self.streams.items()}
        if len(set(lengths.values())) != 1:
            raise ValueError(f"streams differ in their number of records: {lengths}")
        return next(iter(lengths.values()))

    def _start(self, position):
        s = self.sampler
        sampler = Sampler(s.length, s.batch_size, s.mode, s.seed)
        return _Run(
            self.streams,
            sampler,
            self._transform,
            self._workers,
            self._limit,
            self._ordered,
            position,
        )

    def __iter__(self) -> DataLoader:
        return self

    def __next__(self) -> Any:
        if self._run.pid != os.getpid():
            raise RuntimeError("a DataLoader does not survive fork: make one in the child")
        batch = self._run.take()
        if batch is _END:
            raise StopIteration
        return batch

    def __len__(self) -> int:
        raise TypeError("an endless loader has no length")

    def state_dict(self) -> dict[str, Any]:
        """Position of the consumer, for :meth:`load_state_dict`.

        Counts the batches that ``next`` gave, not those prepared ahead.  Where batches come out of
        order, ``ahead`` lists the steps given beyond the first missing one, so that no batch is lost
        or repeated; with ``ordered=True`` it is empty.  Plain data; the cost does not depend on
        the step.

        Returns
        -------
        dict
        """
        run = self._run
        with run.lock:
            step, ahead = run.position.step, sorted(run.position.ahead)
        s = self.sampler
        config = {"length": s.length, "batch_size": s.batch_size, "mode": s.mode, "seed": s.seed}
        return {"version": 1, "step": step, "ahead": ahead, **config}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where :meth:`state_dict` was taken.

        Raises
        ------
        ValueError
            It is of a loader with another length, batch size, mode or seed.
        """
        mine = self.state_dict()
        for key in ("version", "length", "batch_size", "mode", "seed"):
            if state.get(key) != mine[key]:
                raise ValueError(f"state has {key} {state.get(key)!r}, this loader {mine[key]!r}")
        position = _Position(operator.index(state["step"]), map(operator.index, state["ahead"]))
        self.close()
        self._run = self._start(position)

    def close(self) -> None:
        """End the threads and drop what was prepared.  The stores stay open.

        Wakes consumers in other threads, whose ``next`` ends.  Waits for transforms under way,
        but not for ever: one that is stuck is left behind with a RuntimeWarning.
        """
        run = getattr(self, "_run", None)
        if run is None:
            return
        run.stop()
        ended = run.join(JOIN_SECONDS)
        run.drop()
        if not ended:
            warnings.warn(
                f"DataLoader: a thread did not end within {JOIN_SECONDS:g} s and is left behind",
                RuntimeWarning,
                stacklevel=2,
            )

    def __enter__(self) -> DataLoader:
        return self

    def __exit__(self, exc_type: object, exc: object, traceback: object) -> None:
        self.close()

    def __del__(self) -> None:
        # A garbage collection may come to this inside the lock, so someone else has to take it.
        run = getattr(self, "_run", None)
        if run is not None and not run.stopped:
            with contextlib.suppress(RuntimeError):  # the interpreter is going away
                _thread.start_new_thread(run.stop, ())
