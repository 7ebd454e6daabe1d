# SPDX-License-Identifier: MIT
"""A few seconds of the programs in tests/soak, which run for as long as one likes."""

import subprocess
import sys

import pytest
from conftest import BUILD, REPO
from mounting import Reports, needs_mount, needs_root

pytest.importorskip("zrecord")
pytestmark = needs_mount


def test_mixed_load_for_a_moment(tmp_path, transport):
    reports = Reports(tmp_path / "reports")
    command = [sys.executable, REPO / "tests" / "soak" / "soak.py", "--seconds", "3", "--build", BUILD]
    done = subprocess.run(
        [*command, "--option", f"transport={transport}"],
        capture_output=True, text=True, timeout=300, env=reports.environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    reports.check()


@needs_root
def test_mounts_that_end_at_any_moment_by_any_way(tmp_path, transport):
    reports = Reports(tmp_path / "reports")
    command = [sys.executable, REPO / "tests" / "soak" / "endings.py", "--rounds", "15", "--build", BUILD]
    done = subprocess.run(
        [*command, "--transport", transport, "--seconds", "20"],
        capture_output=True, text=True, timeout=400, env=reports.environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    reports.check()
