# SPDX-License-Identifier: MIT
"""DataLoader: endless batches from several stores at once, prepared ahead by threads."""

from __future__ import annotations

import array
import atexit
import contextlib
import importlib
import operator
import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from . import _core
from .errors import ZrecordWarning, add_note
from .gate import LOOK_SECONDS, Bell, Gate
from .sampler import Mode, Sampler
from .store import Dense, Ragged

__all__ = ["DataLoader"]

# How long close() waits for a transform that does not come back before it goes on without it.
JOIN_SECONDS = 5.0

STEP_MAX = 2**63 - 1
_COUNT_MAX = 2**31 - 1  # of threads, and of batches ahead

_END = object()
_runs: weakref.WeakSet[_Run] = weakref.WeakSet()


def identity(batch):
    """The default transform; batches then skip the transform threads."""
    return batch


def _integer(value, name, least, most=STEP_MAX):
    if isinstance(value, bool):
        raise TypeError(f"{name} must be an integer")
    try:
        value = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer") from None
    if value < least:
        raise ValueError(f"{name} must be {'positive' if least else 'at least 0'}")
    if value > most:
        raise ValueError(f"{name} must be at most {most}, not {value}")
    return value


def _named(streams):
    """As a dict of our own."""
    try:
        if not isinstance(streams, (Dense, Ragged)):  # whose records might pass for pairs
            return dict(streams)
    except (TypeError, ValueError):
        pass
    kind = type(streams).__name__
    raise TypeError(f"streams must map names to stores, like {{'image': store}}, not {kind}")


class _Position:
    """Which steps were consumed: all below `step`, and those of `ahead`, which lie above it."""

    def __init__(self, step=0, ahead=()):
        self.step = step
        self.ahead = set(ahead)
        self.count = 0  # given by this loader

    def consume(self, step):
        self.count += 1
        self.ahead.add(step)
        self.settle()

    def settle(self):
        """Move `step` past those of `ahead` that it has reached."""
        while self.step in self.ahead:
            self.step += 1
            self.ahead.discard(self.step - 1)

    def numbers(self):
        """(step, ahead), also inside a signal handler that came in the middle of settle."""
        step, ahead = self.step, set(self.ahead)
        while step in ahead:
            step += 1
        return step, sorted(one for one in ahead if one > step)


class _Run:
    """The feed and the transform threads of a loader from one position on.

    It does not refer to the loader, so that a loader nobody holds any more can end it.  The feed
    gathers ahead in a thread of the engine's; transform threads take from it and fill `finished`.
    The fields below `lock` belong to it.  A signal handler or a finaliser may come while its own
    thread holds the lock, and call the loader: so the lock lets its holder in again.
    """

    def __init__(self, feed, transform, workers, ordered, position):
        self.feed = feed
        self.transform = transform
        self.ordered = ordered
        self.pid = os.getpid()
        self.started = time.monotonic()
        self.lock = threading.RLock()
        self.ready = Bell()  # consumers wait for a finished batch
        self.gone = Bell()  # close() waits for the threads
        self.finished = {}  # step -> batch, in the order of completion
        self.position = position
        self.failure = None  # (step, exception)
        self.stopped = False
        self.closed = False  # all threads have ended
        self.wait_seconds = 0.0  # of consumers, where there are transforms
        self.transform_seconds = 0.0
        self.gate = Gate(workers)
        self.running = set()  # transform threads
        self.closers = set()  # those of them whose transform called close()
        self.threads = []
        _runs.add(self)
        try:
            for _ in range(workers):
                self._start_thread()
        except BaseException:
            self.stop()
            raise

    # ------------------------------------------------------------ threads

    def _start_thread(self):
        thread = threading.Thread(target=self._run_thread, name="zrecord-transform", daemon=True)
        self.threads.append(thread)
        self.running.add(thread)
        try:
            thread.start()
        except BaseException:
            self.running.discard(thread)
            raise

    def _run_thread(self):
        me = threading.current_thread()
        try:
            self._transform_loop()
        finally:
            with self.lock:
                self.running.discard(me)
            self.gone.ring()

    def _transform_loop(self):
        more = True
        while more and self.gate.enter():
            try:
                more = self._transform_next()
                while more and self.gate.may_stay():
                    more = self._transform_next()
            finally:
                self.gate.leave()

    def _transform_next(self):
        """Whether there was a batch."""
        try:
            taken = self.feed.take(True)
        except BaseException as exc:
            self._fail(self.feed.failed_step, exc)
            return False
        if taken is None:
            return False
        self._transform(*taken)
        return True

    def _transform(self, step, batch):
        self.gate.begin()
        start, cpu_start = time.perf_counter(), time.thread_time()
        try:
            batch = self.transform(batch)
        except BaseException as exc:
            add_note(exc, f"DataLoader: transforming the batch of step {step}")
            self._fail(step, exc)
            return
        finally:
            seconds = time.perf_counter() - start
            self.gate.end(seconds, time.thread_time() - cpu_start)
        with self.lock:
            self.transform_seconds += seconds
            if not self.stopped:
                self.finished[step] = batch
                self.ready.ring()

    def _fail(self, step, exc):
        """Keep the failure that the consumer meets first; what comes behind it is not given."""
        if isinstance(exc, StopIteration):  # would look like the end of the loader
            error = RuntimeError("the transform raised StopIteration")
            error.__cause__ = exc
            exc = error
        self.feed.stop()  # it gives in order: whatever comes before the failure was taken
        with self.lock:
            if self.failure is None or (self.ordered and step < self.failure[0]):
                self.failure = (step, exc)
            self.ready.ring()

    # ------------------------------------------------------------ consumers

    def take(self):
        """The next batch, or _END after stop(); raises what a thread raised."""
        return self._take_finished() if self.threads else self._take_gathered()

    def _take_gathered(self):
        taken = self.feed.take(False)
        if taken is None:
            return _END
        with self.lock:
            self.position.consume(taken[0])
        return taken[1]

    def _take_finished(self):
        start = time.perf_counter()
        try:
            while not self.stopped:
                with self.lock:
                    step = self._finished_step()
                    if step is not None:
                        self.wait_seconds += time.perf_counter() - start
                        return self._give(step)
                self.ready.wait(LOOK_SECONDS)
            return _END
        finally:
            if self.finished or self.failure or self.stopped:
                self.ready.ring()

    def _give(self, step):
        """The batch, which counts as given and leaves its room even where an interrupt loses it."""
        self.position.count += 1
        try:
            return self.finished.pop(step, _END)  # gone where a signal handler closed
        finally:
            try:
                self.position.ahead.add(step)
            finally:
                self.feed.release()

    def _finished_step(self):
        """Of the batch to give now, or None; raises the failure when it is its turn."""
        if self.stopped:
            return None
        self.position.settle()
        if self.failure and not (self.ordered and self.position.step < self.failure[0]):
            self._end()
            self.finished.clear()
            raise self.failure[1]
        if not self.ordered:
            with contextlib.suppress(RuntimeError):  # emptied by a signal handler that closed
                return next(iter(self.finished), None)
            return None
        step = self.position.step
        return step if step in self.finished else None

    def stop(self):
        """Wake everyone; no batch is given any more.  Does not wait."""
        if self.stopped:  # also where a generator ends so late that `os` is gone
            return
        if self.pid == os.getpid():  # else the threads, and who held the lock, are not here
            with self.lock:
                self._end()

    def _end(self):
        self.stopped = True
        self.feed.stop()
        self.gate.stop()
        self.ready.ring()

    def close(self, seconds):
        """Wait for the threads of a stopped run and let go of its batches; whether all ended."""
        if self.closed or self.pid != os.getpid():
            return True
        ended = self._wait_for_threads(seconds)
        for thread in self.threads if ended else ():
            if thread not in self.closers and thread.ident:
                thread.join()
        self.feed.close()
        with self.lock:
            self.finished.clear()
        self.closed = ended
        return ended

    def _wait_for_threads(self, seconds):
        """Whether all ended but those whose transform called close()."""
        me = threading.current_thread()
        until = time.monotonic() + seconds
        while True:
            with self.lock:
                staying = frozenset()
                if me in self.running:
                    self.closers.add(me)
                    staying = self.closers
                ended = self.running <= staying
            left = until - time.monotonic()
            if ended or left <= 0:
                self.gone.ring()
                return ended
            if self.lock._is_owned():  # by what a signal handler interrupted: threads need it to end
                free = threading.Condition(self.lock)
                with free:
                    free.wait(min(left, LOOK_SECONDS))
            else:
                self.gone.wait(min(left, LOOK_SECONDS))

    # ------------------------------------------------------------ figures

    def stats(self):
        """As of DataLoader.stats()."""
        engine = self.feed.stats()
        seconds = time.monotonic() - self.started
        with self.lock:
            wait = self.wait_seconds if self.threads else engine["wait_seconds"]
            figures = {
                "batches": self.position.count,
                "seconds": seconds,
                "wait_seconds": wait,
                "gather_seconds": engine["gather_seconds"],
                "transform_seconds": self.transform_seconds,
                "ready": len(self.finished) if self.threads else engine["ready"],
                "under_way": engine["under_way"],
            }
        if wait < 0.05 * seconds:
            slowest = "consumer"
        elif self.transform_seconds > engine["gather_seconds"] * len(self.threads):
            slowest = "transform"
        else:
            slowest = "gather"
        return {**figures, "slowest": slowest}


@atexit.register
def _stop_all():
    """Threads must not be inside the engine while the interpreter goes away."""
    runs = list(_runs)
    for run in runs:
        run.stop()
    for run in runs:
        run.close(JOIN_SECONDS)


def _bar(step):
    """A tqdm bar without an end, or None with a warning."""
    try:
        tqdm = importlib.import_module("tqdm.auto").tqdm
    except ImportError:
        warnings.warn("progress=True needs tqdm, which is not here", ZrecordWarning, stacklevel=3)
        return None
    return tqdm(initial=step, unit="batch")


class DataLoader:
    """Endless, step-based loader over stores that are read at the same ids.

    A batch is a dict ``{name: values}``: for a Dense stream an array ``(n, *item_shape)``, for a
    Ragged one a list of arrays, or with `packed` the tuple that :meth:`Ragged.packed` gives.  A
    thread of the engine draws ids and gathers all streams ahead of the consumer, without the GIL;
    `transform_workers` threads call `transform` on what it gathered.  With the default transform
    there are none.

    Parameters
    ----------
    streams : mapping of str to Dense or Ragged
        Opened for reading, all of the same length.  They stay the caller's to close, after the
        loader.
    transform_workers : int
    batch_size : int
        Records of a step, over all ranks.
    prefetch_size : int
        Finished batches kept ready.  Never more than `prefetch_size` + `transform_workers`
        batches exist that were not handed out.  The reads of as many further ones, at most 64, are
        queued where data is not in memory.
    mode : Sampler.Mode or int
        By default CYCLIC.
    seed : int
    transform : callable
        From batch dict to what the loader gives; called from several threads at once.
    ordered : bool
        Give batches in the order of their steps.  Otherwise as their transforms end, which is
        the same with the default transform.
    start_step : int
        The first step to give.
    rank, world_size : int
        This loader gives the part ``[rank * n // world_size, (rank + 1) * n // world_size)`` of
        the n ids of each step, so that the ranks together give each batch once.
    packed : bool, str or iterable of str
        Ragged streams given packed: all of them, or those named.
    sampler : Sampler
        In place of `batch_size`, `mode` and `seed`; for modes with options of their own.
    progress : bool
        Count batches on a tqdm bar, where tqdm is installed.

    Raises
    ------
    TypeError, ValueError
        An argument is wrong; lengths differ.

    Notes
    -----
    A gather that fails raises the engine's error from ``next``; its message names store, record,
    stream and step.  What a transform raises comes out of ``next`` with a note that names the
    step.  The loader has ended then.  With ``ordered=True`` the batches before it are given
    first.  Any number of threads may call ``next``.  A forked child cannot use it: make one
    there.
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
        start_step: int = 0,
        rank: int = 0,
        world_size: int = 1,
        packed: bool | str | Iterable[str] = False,
        sampler: Sampler | None = None,
        progress: bool = False,
    ) -> None:
        if isinstance(streams, dict) and hasattr(streams, "records"):  # an archive
            streams = streams.records()
        self.streams = _named(streams)
        length = self._common_length()
        workers = _integer(transform_workers, "transform_workers", 1, _COUNT_MAX)
        self._prefetch = _integer(prefetch_size, "prefetch_size", 1, _COUNT_MAX)
        if not callable(transform):
            raise TypeError("transform must be callable")
        self.sampler = self._sampler(sampler, length, batch_size, mode, seed)
        self._transform = transform
        self._workers = 0 if transform is identity else workers
        self._ordered = bool(ordered)
        self._world_size = _integer(world_size, "world_size", 1)
        self._rank = _integer(rank, "rank", 0)
        if self._rank >= self._world_size:
            raise ValueError(f"rank {rank} must be below world_size {world_size}")
        self._packed = self._packed_flags(packed)
        step = _integer(start_step, "start_step", 0)
        self._run = self._start(_Position(step))
        self._bar = _bar(step) if progress else None

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

    @staticmethod
    def _sampler(sampler, length, batch_size, mode, seed):
        if sampler is None:
            return Sampler(length, batch_size, mode, seed)
        if not isinstance(sampler, Sampler):
            raise TypeError("sampler must be a zrecord.Sampler")
        if sampler.length != length:
            raise ValueError(f"the sampler is for {sampler.length} records, not {length}")
        return sampler

    def _packed_flags(self, packed):
        ragged = {name for name, stream in self.streams.items() if isinstance(stream, Ragged)}
        if isinstance(packed, str):
            packed = (packed,)
        wanted = (ragged if packed else set()) if isinstance(packed, bool) else set(packed)
        if wanted - ragged:
            raise ValueError(f"packed names streams that are not Ragged: {sorted(wanted - ragged)}")
        return tuple(name in wanted for name in self.streams)

    def _start(self, position):
        feed = _core.Feed(
            tuple(self.streams),
            tuple(self.streams.values()),
            self._packed,
            self.sampler,
            self._rank,
            self._world_size,
            position.step,
            array.array("Q", sorted(position.ahead)),
            self._prefetch + max(1, self._workers),
            self._prefetch,
        )
        return _Run(feed, self._transform, self._workers, self._ordered, position)

    def __iter__(self) -> DataLoader:
        return self

    def __next__(self) -> Any:
        batch = self._own_run().take()
        if batch is _END:
            raise StopIteration
        if self._bar is not None:
            self._bar.update()
        return batch

    def _own_run(self):
        if self._run.pid != os.getpid():  # the threads are not here, and its locks may be held
            raise RuntimeError("a DataLoader does not survive fork: make one in the child")
        return self._run

    def __len__(self) -> int:
        raise TypeError("an endless loader has no length")

    def __repr__(self) -> str:
        run = getattr(self, "_run", None)
        if run is None or run.stopped:
            return "<zrecord.DataLoader, closed>"
        s, names = self.sampler, ", ".join(map(str, self.streams))
        return (
            f"<zrecord.DataLoader of {names}: {s.length} records, batch_size={s.batch_size}, "
            f"mode={Mode(s.mode).name}, seed={s.seed}, step={run.position.numbers()[0]}>"
        )

    def __reduce__(self) -> Any:
        raise TypeError("a DataLoader cannot be pickled: pickle its streams and its state_dict()")

    def stats(self) -> dict[str, Any]:
        """Where the time goes, since the loader or :meth:`load_state_dict` began.

        Returns
        -------
        dict
            ``batches`` given and ``seconds`` since; ``wait_seconds`` that consumers spent inside
            ``next``; ``gather_seconds`` and ``transform_seconds``, summed over threads; batches
            ``ready`` now and ``under_way``; and the ``slowest``: ``'consumer'`` where the loader
            keeps up, else ``'gather'`` or ``'transform'``.
        """
        return self._own_run().stats()

    def state_dict(self) -> dict[str, Any]:
        """Position of the consumer, for :meth:`load_state_dict`.

        Counts the batches that ``next`` gave, not those prepared ahead.  Where batches come out of
        order, ``ahead`` lists the steps given beyond the first missing one, so that no batch is lost
        or repeated; with ``ordered=True`` it is empty.  Plain data; the cost does not depend on
        the step.  A state with an empty ``ahead`` is that of every rank, and may go on with another
        `world_size`.

        Returns
        -------
        dict
        """
        run = self._own_run()
        with run.lock:
            step, ahead = run.position.numbers()
        return {"version": 1, "step": step, "ahead": ahead, **self._config()}

    def _config(self):
        s = self.sampler
        config = {"length": s.length, "batch_size": s.batch_size, "mode": s.mode, "seed": s.seed}
        if s.mode == Mode.BLOCK:
            config |= {"block_size": s.block_size, "interleave": s.interleave}
        return config

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where :meth:`state_dict` was taken.

        Raises
        ------
        ValueError
            It is of a loader with another length, batch size, mode or seed.
        TypeError
            It is no mapping, or holds what is no number.
        """
        if not isinstance(state, Mapping):
            raise TypeError(f"a state is a mapping, not {type(state).__name__}")
        for key, mine in {"version": 1, **self._config()}.items():
            if state.get(key) != mine:
                raise ValueError(f"state has {key} {state.get(key)!r}, this loader {mine!r}")
        if missing := {"step", "ahead"} - state.keys():
            raise ValueError(f"state lacks {sorted(missing)}")
        step = _integer(state["step"], "step", 0)
        ahead = [_integer(one, "a step of ahead", 0) for one in state["ahead"]]
        if any(one <= step for one in ahead):
            raise ValueError(f"state has steps ahead that are not: {ahead}, at step {step}")
        self._end()
        self._run = self._start(_Position(step, ahead))

    def close(self) -> None:
        """End the threads and drop what was prepared.  The stores stay open.

        Wakes consumers in other threads, whose ``next`` ends.  Waits for transforms under way,
        but not for ever: one that is stuck is left behind with a RuntimeWarning.
        """
        if self._bar is not None:
            self._bar.close()
        self._end()

    def _end(self):
        self._run.stop()
        if not self._run.close(JOIN_SECONDS):
            warnings.warn(
                f"DataLoader: a thread did not end within {JOIN_SECONDS:g} s and is left behind",
                RuntimeWarning,
                stacklevel=3,
            )

    def __enter__(self) -> DataLoader:
        return self

    def __exit__(self, exc_type: object, exc: object, traceback: object) -> None:
        self.close()

    def __del__(self) -> None:
        # A garbage collection may come to this inside the run's lock: only what needs no lock.
        run = getattr(self, "_run", None)
        if run is not None:
            run.stopped = True
            run.feed.stop()
            run.gate.stop()
