# SPDX-License-Identifier: MIT
"""What every test file shares: where the built programs are, and the rule on skips."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("ZRECORD_BUILD", REPO / "build")).resolve()
CI = os.environ.get("CI") == "true"

# A shell starts its background jobs with SIGINT ignored, which programs inherit.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """A skip hides a missing piece; where everything must be there, it is a failure."""
    report = yield
    if CI and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"skipped although CI=true: {reason}"
    return report


def pytest_configure(config):
    config.addinivalue_line("markers", "keeps_pages: counts on the kernel to keep the pages that it was given")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """A test that counts on the page cache is begun anew when it failed while somebody on this
    machine dropped that, or the kernel pages out what lies idle; a failure without that, or again
    and again, stays one."""
    if not pyfuncitem.get_closest_marker("keeps_pages"):
        return None
    paged = pyfuncitem.config.stash.setdefault(PAGED_OUT, None)
    if paged is None:
        paged = pyfuncitem.config.stash[PAGED_OUT] = paged_out_nbytes()
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    for _ in range(4):
        before = dropped_count()
        try:
            pyfuncitem.obj(**arguments)
            return True
        except AssertionError as failure:
            if dropped_count() == before and paged_out_nbytes() == paged:
                raise
            print(f"begun anew, as pages were dropped or paged out meanwhile: {failure}")
    pyfuncitem.obj(**arguments)
    return True


PAGED_OUT = pytest.StashKey()  # before the first such test: asking takes the kernel half a second


def paged_out_nbytes():
    """What DAMON, a kernel thread that watches which memory lies idle, has paged out on this machine
    where somebody set it up to.  It does so without a trace in /proc/vmstat; cachestat shows such
    pages of mounted files as evicted.  Documentation: admin-guide/mm/damon of the kernel."""
    total = 0
    for state in Path("/sys/kernel/mm/damon/admin/kdamonds").glob("*/state"):
        try:
            if state.read_text().strip() == "on":
                state.write_text("update_schemes_stats")
            for action in state.parent.glob("contexts/*/schemes/*/action"):
                if action.read_text().strip() == "pageout":
                    total += int((action.parent / "stats/sz_applied").read_text())
        except OSError:  # another user's to ask, or just ended
            pass
    return total


def dropped_count():
    """How often page cache or inodes were dropped on this machine."""
    lines = (line.split() for line in Path("/proc/vmstat").read_text().splitlines())
    return sum(int(value) for name, value in lines if name in ("drop_pagecache", "drop_slab"))


@pytest.fixture(scope="session")
def zrecord_tool():
    """Runs build/zrecord with arguments; returns the CompletedProcess, text mode by default."""
    program = BUILD / "zrecord"
    if not program.exists():
        pytest.skip(f"{program} is not built (make all)")

    def run(*args, text=True, timeout=120, **kwargs):
        return subprocess.run(
            [str(program), *map(str, args)], capture_output=True, text=text, timeout=timeout, **kwargs
        )

    return run


def peak_anonymous_mib(child):
    """Waits for a process; the most memory, mapped files left out, that it was seen to hold."""
    peak = 0
    while child.poll() is None:
        status = Path(f"/proc/{child.pid}/status").read_text()
        peak = max([peak, *(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon"))])
        time.sleep(0.001)
    return peak / 1024


def pytest_generate_tests(metafunc):
    """Every test of a real mount runs once over each transport that this machine has."""
    if metafunc.module.__name__.startswith("test_mount") and "transport" in metafunc.fixturenames:
        import mounting

        metafunc.parametrize("transport", mounting.transports(), indirect=True, scope="module")


@pytest.fixture(scope="module", autouse=True)
def transport(request):
    """What mounts use while this module's tests run: "classic", "uring", or None (what comes)."""
    wanted = getattr(request, "param", None)
    if wanted is None:
        yield None
        return
    import mounting

    with mounting.using_transport(wanted):
        yield wanted
