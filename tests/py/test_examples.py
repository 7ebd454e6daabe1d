# SPDX-License-Identifier: MIT
"""python/examples: they reach the accuracy they state, and resume in the middle as if unbroken."""

import importlib.util
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import zrecord
from conftest import REPO
from mounting import mounted, needs_mount

EXAMPLES = REPO / "python" / "examples"
DIGITS = [REPO / "tests" / "fixtures" / name for name in ("digits.npy", "digits_labels.npy")]
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None,
    reason="torch is not installed (tools/setup.sh tests)",
)


def run(name, *arguments):
    """Accuracy, and the sum of all weights to the last digit."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    accuracy, weights = re.fullmatch(r"accuracy (\S+) weights (\S+)\n", done.stdout).groups()
    return float(accuracy), weights


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """The folder of the image example, and what an unbroken run ends with."""
    folder = tmp_path_factory.mktemp("images")
    return folder, run("train_images.py", folder, "--data", *DIGITS)


def test_the_image_classifier_learns_and_resumes(images):
    folder, (accuracy, weights) = images
    assert accuracy >= 0.95
    assert run("train_images.py", folder, "--stop-after", 100)[1] != weights
    assert run("train_images.py", folder, "--resume") == (accuracy, weights)


@needs_mount
def test_the_image_classifier_trains_from_mounted_files(images, tmp_path):
    """A dataset that opens one file a sample meets the same batches."""
    folder, unbroken = images
    points = [tmp_path / name for name in ("images", "labels")]
    stores = [folder / "train" / point.name for point in points]
    with mounted(stores[0], points[0]), mounted(stores[1], points[1]):
        assert run("train_images.py", folder, "--files", *points) == unbroken


def test_the_language_model_learns_and_resumes(tmp_path):
    """On text that every Python carries."""
    library = Path(sysconfig.get_path("stdlib"))
    texts = [library / f"{name}.py" for name in ("typing", "argparse")]
    accuracy, weights = run("train_tokens.py", tmp_path, "--steps", 70, "--text", *texts)
    assert accuracy >= 0.4
    with zrecord.open(tmp_path / "train") as store:
        assert len({len(record) for record in store[:100]}) > 10  # of all lengths
    assert run("train_tokens.py", tmp_path, "--steps", 70, "--stop-after", 30)[1] != weights
    assert run("train_tokens.py", tmp_path, "--steps", 70, "--resume") == (accuracy, weights)
