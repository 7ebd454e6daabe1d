# SPDX-License-Identifier: MIT
"""A short form of longrun.py; the long one is `make check-longrun`."""

import subprocess
import sys
from pathlib import Path

LONGRUN = Path(__file__).with_name("longrun.py")


def test_a_disturbed_loader_loses_nothing_and_memory_stays_flat():
    done = subprocess.run(
        [sys.executable, "-W", "error", LONGRUN, "--epochs", "6", "--records", "6000"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 epochs, every batch once" in done.stdout
