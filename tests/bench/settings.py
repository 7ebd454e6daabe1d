# SPDX-License-Identifier: MIT
"""How much of everything a run does: full, quick, or tiny (for the suite's own tests)."""

from dataclasses import dataclass, replace

WORKLOADS = ("vision Dense", "vision Ragged", "token Dense", "token Ragged")


@dataclass
class Settings:
    name: str
    counts: dict  # records of each workload
    rounds: int = 9
    block_seconds: float = 0.25  # of one backend in one round
    plans: int = 400  # of one round, at most
    writes: int = 5  # repeats of an append, at most
    write_seconds: float = 6.0  # and no further repeat after these
    cold_rounds: int = 7
    cold_slowest: float = 2.0  # seconds a warm batch; slower ones are not in the cold table
    largest_length: int = 10**8
    scaling_seconds: float = 0.2
    scaling_rounds: int = 5
    record_nbytes: int = 256 << 20  # of all records of one size together
    level_counts: tuple = (500, 40_000)  # images and sequences in the table of levels
    levels: tuple = (1, 3, 6, 9, 12, 15, 19)
    slow_codecs: dict = None  # left out, by the first word of a workload

    def without(self, workload):
        return (self.slow_codecs or {}).get(workload.name.split()[0], ())

    def leaving_out(self, codecs):
        """The same without these codecs on any workload."""
        kinds = {name.split()[0] for name in WORKLOADS}
        return replace(self, slow_codecs={kind: tuple(codecs) for kind in kinds})


FULL = Settings(
    "full",
    {"vision Dense": 2000, "vision Ragged": 2000, "token Dense": 200_000, "token Ragged": 200_000},
)
QUICK = Settings(
    "quick",
    {"vision Dense": 600, "vision Ragged": 500, "token Dense": 40_000, "token Ragged": 40_000},
    rounds=5,
    block_seconds=0.1,
    plans=100,
    writes=3,
    write_seconds=0.6,
    cold_rounds=3,
    cold_slowest=0.3,
    largest_length=10**6,
    scaling_seconds=0.08,
    scaling_rounds=3,
    record_nbytes=64 << 20,
    level_counts=(100, 8_000),
    levels=(1, 3, 6, 9, 12),
    slow_codecs={"vision": ("zstd_dict",)},
)
TINY = Settings(
    "tiny",
    {"vision Dense": 20, "vision Ragged": 20, "token Dense": 300, "token Ragged": 300},
    rounds=2,
    block_seconds=0.001,
    plans=3,
    writes=1,
    cold_rounds=1,
    cold_slowest=60,
    largest_length=10**3,
    scaling_seconds=0.001,
    scaling_rounds=1,
    record_nbytes=1 << 16,
    level_counts=(8, 200),
    levels=(3,),
    slow_codecs={"vision": ("zstd_dict",)},
)
ALL = {settings.name: settings for settings in (FULL, QUICK, TINY)}
