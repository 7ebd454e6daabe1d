# SPDX-License-Identifier: MIT
"""The sampler benchmark's own honesty, and what its quality table must show; no times are judged."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

BENCH = Path(__file__).resolve().parents[1] / "bench"


def run(script, out, *arguments):
    done = subprocess.run(
        [sys.executable, BENCH / script, "--out", out, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    name = script.removesuffix(".py")
    assert (out / f"{name}.md").read_text().startswith("# ")
    return json.loads((out / f"{name}.json").read_text())


@pytest.fixture(scope="module")
def quality(tmp_path_factory):
    out = tmp_path_factory.mktemp("quality")
    result = run("shuffle_quality.py", out, "--records", 20_000, "--block-size", 200, "--seeds", 6)
    return {row["order"]: row for row in result["rows"]}


def test_blocks_are_read_once_and_samples_at_random_are_mixed(quality):
    full = quality["full shuffle (NumPy)"]
    for name, row in quality.items():
        if "BLOCK" in name or "celeres" in name:
            assert row["seeks"] <= 100 and row["locality"] == pytest.approx(99.5)
        assert abs(row["entropy"] - full["entropy"]) < 0.5, name
    assert full["locality"] < 2 and quality["in order"]["seeks"] == 1


def test_interleaving_approaches_a_full_shuffle(quality):
    gaps = [
        quality["full shuffle (NumPy)"]["entropy_sorted"] - quality[name]["entropy_sorted"]
        for name in ("BLOCK", *(f"BLOCK, interleave={k}" for k in (4, 16, 64)))
    ]
    assert gaps == sorted(gaps, reverse=True) and gaps[0] > 80 and gaps[-1] < 5
    assert abs(quality["BLOCK, interleave=64"]["serial_correlation"]) < 0.05


def test_training_is_as_good_as_with_a_full_shuffle(quality):
    """On data stored as it comes, within the noise of the seeds; they are fixed."""
    full = np.array(quality["full shuffle (NumPy)"]["accuracy"]["as they come"])
    for name, row in quality.items():
        if name != "in order":
            scores = np.array(row["accuracy"]["as they come"])
            noise = np.hypot(full.std(), scores.std()) / len(full) ** 0.5
            assert abs(scores.mean() - full.mean()) < 4 * noise + 0.005, name
            assert scores.mean() > 0.88, name


def test_a_run_of_loaders_gives_its_tables(tmp_path):
    arguments = ("--only", "blocks", "--rounds", 1, "--count", 4000, "--dir", tmp_path / "data")
    blocks = run("samplers.py", tmp_path, *arguments)["blocks"]
    names = {row["backend"] for row in blocks["warm"]}
    assert names == {row["backend"] for row in blocks["cold"]}
    assert {"CDLLoader, zrecord raw", "CDLLoader, HDF5", "celeres-dl CDLLoader, HDF5"} <= names
    assert not blocks["skipped"] and not list((tmp_path / "data").iterdir())
