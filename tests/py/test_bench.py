# SPDX-License-Identifier: MIT
"""The benchmark suite's own honesty: wrong answers are noticed, tables come out as measured.

At a tiny scale, with zrecord, a mapped .npy and loaderx 2.0.0; nothing here looks at a time.
"""

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

BENCH = Path(__file__).resolve().parents[1] / "bench"
ROWS = ("zrecord", "npy-mmap", "loaderx-2.0.0")


@pytest.fixture(scope="module")
def suite():
    """The suite's modules, which import each other by their bare names."""
    sys.path.insert(0, str(BENCH))
    try:
        import backends
        import checks
        import pagecache
        import plans
        import report
        import rounds
        import settings
        import stores
        import workloads
    finally:
        sys.path.remove(str(BENCH))
    modules = (backends, checks, pagecache, plans, report, rounds, settings, stores, workloads)
    return {module.__name__: module for module in modules}


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    """A whole run as the command line makes it, in a process of its own."""
    folder = tmp_path_factory.mktemp("bench")
    result = run(folder, "--backends", ",".join(ROWS))
    assert not [path for path in (folder / "data").iterdir() if path.is_dir()]  # cleaned up
    assert (folder / "out" / "bench.md").read_text().startswith("# Measured")
    return result


def run(folder, *arguments):
    command = [sys.executable, BENCH / "run.py", "--size", "tiny", *arguments]
    done = subprocess.run(
        [*command, "--dir", folder / "data", "--out", folder / "out"],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "out" / "bench.json").read_text())


@pytest.fixture
def workload(suite):
    return suite["workloads"].vision_dense(8, shape=(3, 16, 16))


def opened(suite, tmp_path, workload, row="npy-mmap-raw"):
    found, skipped = suite["backends"].available(tmp_path, workload, [row])
    assert found and found[0].name == row, skipped
    backend = found[0]
    backend.create()
    backend.append()
    backend.finish()
    backend.open()
    return backend


def test_a_run_in_parts(tmp_path):
    """Sections of earlier parts stay, a section that ran again is the newer one."""
    run(tmp_path, "--only", "token Dense", "--backends", "zrecord-raw")
    run(tmp_path, "--only", "vision Dense", "--backends", "zrecord-raw", "--add")
    part = ["--only", "token Dense,single", "--without", "zstd_dict"]
    both = run(tmp_path, *part, "--backends", "zrecord", "--add")
    assert [table["title"] for table in both["tables"]] == ["vision Dense", "token Dense"]
    names = [[row["backend"] for row in table["rows"]] for table in both["tables"]]
    assert names[0] == ["zrecord-raw"] and "zrecord-zstd" in names[1]
    assert not any("zstd_dict" in name for name in names[1])
    assert "single" in both and "batches" not in both


# ---------------------------------------------------------------- answers


def test_right_answers_pass(suite, tmp_path, workload):
    backend = opened(suite, tmp_path, workload)
    suite["checks"].sweep(backend, workload)
    drawn = suite["plans"].rounds(2, 3, len(workload), 5)
    suite["checks"].planned([backend], {backend.name: 3}, drawn, workload)


@pytest.mark.parametrize("row", ["npy-mmap-raw", "zrecord-zstd"])
def test_a_wrong_record_is_noticed(suite, tmp_path, workload, row):
    backend = opened(suite, tmp_path, workload, row)
    right = backend.gather

    def wrong(ids):
        answer = np.array(right(ids))
        answer[list(ids).index(5), 0, 0, 0] ^= 1 if 5 in ids else 0
        return answer

    backend.gather = wrong
    with pytest.raises(suite["checks"].WrongAnswer, match=row):
        suite["checks"].sweep(backend, workload)


def test_a_wrong_plan_stops_the_run(suite, tmp_path, workload, monkeypatch):
    """Every id alone is right, but not their order: only checking plans can see that."""
    backend = opened(suite, tmp_path, workload)
    right = backend.gather
    backend.gather = lambda ids: right(np.sort(ids))
    suite["checks"].sweep(backend, workload)
    workload.batch = 6
    with pytest.raises(suite["checks"].WrongAnswer):
        suite["rounds"].gather([backend], workload, suite["settings"].TINY)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda a: a.astype(np.int16),
        lambda a: a.reshape(len(a), -1),
        lambda a: a[:-1],
        lambda a: a[::-1],
        list,
    ],
)
def test_dtype_shape_order_and_kind_count(suite, workload, spoil):
    ids = np.arange(4)
    right = workload.take(ids)
    suite["checks"].compare("x", right, right, ids)
    with pytest.raises(suite["checks"].WrongAnswer):
        suite["checks"].compare("x", spoil(right), right, ids)


def test_packed_answers_are_taken_apart(suite):
    records = [np.arange(6, dtype=np.int32).reshape(2, 3), np.arange(4, dtype=np.int32)[None]]
    values = np.concatenate([r.reshape(-1) for r in records])
    packed = (values, np.array([0, 6, 10]), np.array([[2, 3], [1, 4]]))
    suite["checks"].compare("x", packed, records, range(2))
    values[7] += 1
    with pytest.raises(suite["checks"].WrongAnswer, match=r"records \[1\]"):
        suite["checks"].compare("x", packed, records, range(2))


# ---------------------------------------------------------------- plans and text


def test_plans_are_fresh_in_every_round(suite):
    drawn = suite["plans"].rounds(4, 5, 10**6, 256)
    assert len({plan.tobytes() for batch in drawn for plan in batch}) == 20
    again = suite["plans"].rounds(4, 5, 10**6, 256)
    assert all(np.array_equal(a, b) for a, b in zip(drawn, again))


def test_token_records_are_16_to_512_long_and_end_to_end(suite, tmp_path):
    ragged = suite["workloads"].token_ragged(200, tmp_path)
    lengths = [len(record) for record in ragged.records]
    assert min(lengths) >= 16 and max(lengths) <= 512
    dense = suite["workloads"].token_dense(200, tmp_path)
    flat = np.concatenate(ragged.records)
    assert np.array_equal(flat, dense.records.reshape(-1)[: len(flat)])
    assert dense.facts["tokens"] >= 200 * 512


def test_dropped_files_are_not_resident(suite, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(os.urandom(1 << 20))
    assert suite["pagecache"].resident(path) == 1.0
    suite["pagecache"].drop(path)
    if suite["pagecache"].resident(path) == 1.0:
        pytest.skip("this file system keeps its pages")  # tmpfs
    assert suite["pagecache"].resident(path) == 0.0


# ---------------------------------------------------------------- results


def test_every_row_of_a_run_has_its_figures(result, suite):
    assert [table["title"] for table in result["tables"]] == list(suite["settings"].WORKLOADS)
    for table in result["tables"]:
        names = [row["backend"] for row in table["rows"]]
        assert "zrecord-raw" in names and "zrecord-zstd" in names and "npy-mmap-raw" in names
        if "loaderx-2.0.0-raw" not in names:
            assert "loaderx-2.0.0-raw" in table["skipped"]
        for row in table["rows"]:
            assert row["gather"]["low"] <= row["gather"]["records_per_second"]
            assert all(math.isfinite(s) for block in row["gather_rounds_seconds"] for s in block)
        assert {row["backend"] for row in table["cold"]} == set(names)
    for name in ("records", "sizes", "batches", "threads", "levels", "single", "loaders"):
        assert result[name]["rows"], name


def test_a_peer_that_is_missing_is_named_with_its_reason(suite, tmp_path, workload, monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    monkeypatch.delitem(sys.modules, "backends.hdf5", raising=False)
    found, skipped = suite["backends"].available(tmp_path, workload, ["hdf5", "npy"])
    assert [backend.name for backend in found] == ["npy-mmap-raw"]
    assert "h5py" in skipped["hdf5-raw"]
    text = suite["report"].left_out(skipped)
    assert "SKIP hdf5-raw, hdf5-gzip" in text and "h5py" in text


def test_readme_tables_round_trip(result, suite):
    report = suite["report"]
    readme = f"before\n\n{report.BEGIN}\nold\n{report.END}\n\nafter\n"
    once = report.rewrite(readme, report.readme_part(result))
    assert report.rewrite(once, report.readme_part(result)) == once
    assert once.startswith("before\n") and once.endswith("\nafter\n") and "\nold\n" not in once
    for table in result["tables"]:
        assert f"### {table['title']}\n" in once
        for row in table["rows"]:
            assert f"\n| {row['backend']} | " in once
    for columns in table_widths(once):
        assert len(columns) == 1, "a row has another number of cells than its head"


def table_widths(text):
    """The different numbers of cells in each table."""
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        yield {line.count("|") for line in table.splitlines()}


def test_readme_without_markers_is_refused(result, suite):
    with pytest.raises(ValueError, match="bench:begin"):
        suite["report"].rewrite("no markers", "part")


def test_results_name_no_place_of_the_machine(result):
    text = json.dumps(result)
    for place in (str(BENCH.parents[1]), "/root", "/home/", "/tmp"):
        assert place not in text


# ---------------------------------------------------------------- loaders


def loader_bench(folder, *options):
    return subprocess.run(
        [sys.executable, BENCH / "loader_bench.py", "--size", "tiny", *options]
        + ["--dir", folder / "data", "--out", folder / "out"],
        capture_output=True,
        text=True,
        timeout=600,
    )


def test_the_loader_tables_are_complete(tmp_path):
    done = loader_bench(tmp_path, "--only", "vision,memory", "--peers", ",".join(ROWS))
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "out" / "loaders.json").read_text())
    rows = {row["loader"]: row for row in result["vision"]["rows"]}
    assert {name.split()[0] for name in rows} == {"zrecord", "loaderx-2.0.0"}
    assert all(row["low"] <= row["batches_per_second"] <= row["high"] for row in rows.values())
    assert all(
        row["peak_pss_nbytes"] >= row["peak_anonymous_nbytes"] > 0 for row in result["memory"]["rows"]
    )
    text = (tmp_path / "out" / "loaders.md").read_text()
    assert "## Images, Dense" in text and "| zrecord raw |" in text
    assert not list((tmp_path / "data").glob("loaders-*"))  # cleaned up


def test_a_loader_that_gives_other_records_is_noticed(tmp_path):
    """The answers of the first batches are compared before anything is timed."""
    sys.path.insert(0, str(BENCH))
    try:
        import loader_bench
        import loader_child
        import workloads
    finally:
        sys.path.remove(str(BENCH))
    images = workloads.vision_dense(300, shape=(3, 16, 16))

    class Lies:
        name = "lies"

        def ask(self, do):
            right = [loader_child.digest(image) for image in images.records[:256]]
            return [right, [*right[:-1], "another"]]

    with pytest.raises(AssertionError, match="lies"):
        loader_bench.check([Lies()], images)


# ---------------------------------------------------------------- mounts


def test_the_mount_table_goes_into_the_readme_with_what_it_was_measured_on(suite, result):
    sys.path.insert(0, str(BENCH))
    try:
        import mount_report
    finally:
        sys.path.remove(str(BENCH))
    figures = {name: {"zrecordfs classic": [1.5, 2.5, 20], "ext4": [3]} for name in mount_report.SHOWN[:2]}
    figures["not shown"] = {"ext4": [1]}
    state = {"user": "root", "load": 0.3, "rounds": 3, "tokens": 20000, "images": 500}
    measured = {"figures": figures, "skipped": {}, "machine": result["machine"], "state": state}
    readme = f"before\n{mount_report.BEGIN}\nprevious\n{mount_report.END}\nafter\n"
    once = mount_report.rewrite(readme, mount_report.readme_part(measured))
    assert mount_report.rewrite(once, mount_report.readme_part(measured)) == once
    assert once.startswith("before\n") and once.endswith("\nafter\n") and "previous" not in once
    assert f"\n| {mount_report.SHOWN[0]} | 2.50 (1.50–20.0) | 3.00 |\n" in once and "not shown" not in once
    assert [len(columns) for columns in table_widths(once)] == [1]
    for told in ("by root", "20,000 tokens", "3 interleaved rounds", "at most 0.3", "--rounds 3"):
        assert told in once
    other = {**measured, "figures": {"other row": {"ext4": [1]}}}
    assert set(mount_report.merged(measured, other)["figures"]) == {*figures, "other row"}
    other["state"] = {**state, "rounds": 5}
    assert mount_report.merged(measured, other) == other, "figures measured otherwise stay out"
    with pytest.raises(ValueError, match="mount:begin"):
        mount_report.rewrite("no markers", "part")
