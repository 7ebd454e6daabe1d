# SPDX-License-Identifier: MIT
"""Checking every record of a store."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

from . import _core
from .store import Dense, Ragged
from .store import open as open_store

__all__ = ["Finding", "VerifyResult", "verify"]


class Finding(NamedTuple):
    """One thing that is wrong."""

    record: int | None
    """The record, or None for the store as a whole."""
    code: int
    message: str


class VerifyResult(NamedTuple):
    """What :func:`verify` found."""

    checked: int
    """Records decoded."""
    bad: int
    """Records with a finding."""
    checksums_compared: bool
    """False without a sidecar: records were decoded, but not compared."""
    findings: list[Finding]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.bad and not self.findings


def verify(
    source: str | bytes | os.PathLike[str] | Dense | Ragged,
    progress: Callable[[int, int], object] | None = None,
) -> VerifyResult:
    """Decode every record and compare it with its checksum.

    Parameters
    ----------
    source : path-like, Dense or Ragged
        A store, or one opened for reading.
    progress : callable, optional
        Called now and then as ``progress(done, total)``; what it raises ends the work.

    Returns
    -------
    VerifyResult
        Every bad record, not only the first.
    """
    if not isinstance(source, (Dense, Ragged)):
        with open_store(source) as store:
            return verify(store, progress)
    checked, bad, compared, findings = _core.verify(source, progress)
    return VerifyResult(checked, bad, compared, [Finding(*finding) for finding in findings])
