# SPDX-License-Identifier: MIT
"""What the packages in whose place zrecord stands offer is here, under the same names.

Public classes and functions, their methods, attributes of their instances, and parameters by
position, compared with the installed wheels of loaderx 2.0.0 and celeres-dl 0.1.0.
"""

import importlib
import inspect
import sys
from pathlib import Path

import numpy as np
import pytest
import zrecord
import zrecord.cdl

REF = Path(sys.executable).parents[1] / "ref"
PLACES = {
    "celeres-dl-0.1.0": ("cdl", "cdl.shuffle", "cdl.sampler", "cdl.loader", "cdl.datasets", "cdl.prefetch"),
    "loaderx-2.0.0": ("loaderx.dataloader", "loaderx.zsampler", "loaderx.zrecord", "loaderx.utils"),
}
# Python's own, or how an object is made and ended.
PLAIN = {*dir(type("Plain", (), {"__slots__": ()})), "__annotations__", "__slots__", "__del__", "__dict__"}
PLAIN |= {"__weakref__", "__abstractmethods__", "__init__", "__dir__"}
# A prefetch thread that takes longer than 30 s is not given up.
OTHER_DEFAULTS = {("AsyncPrefetcher.get", "timeout"), ("SyncPrefetcher.get", "timeout")}
# The transform that does nothing is a function with a name.
OTHER_DEFAULTS |= {("DataLoader", "transform")}


@pytest.fixture(scope="module", params=[(wheel, name) for wheel in PLACES for name in PLACES[wheel]],
                ids=lambda pair: pair[1])  # fmt: skip
def theirs(request):
    wheel, name = request.param
    if not (REF / wheel).is_dir():
        pytest.skip(f"{wheel} is not in {REF}: tools/setup.sh installs it there")
    before = set(sys.modules)
    sys.path.insert(0, str(REF / wheel))
    try:
        yield importlib.import_module(name)
    finally:
        sys.path.remove(str(REF / wheel))
        for extra in set(sys.modules) - before:
            if extra.partition(".")[0] in ("cdl", "loaderx"):
                del sys.modules[extra]


def ours(module):
    return zrecord.cdl if module.__name__.startswith("cdl") else zrecord


def offered(module):
    """Public classes and functions that this module defines."""
    for name, thing in vars(module).items():
        if not name.startswith("_") and getattr(thing, "__module__", "").startswith(module.__name__):
            yield name, thing


def attributes(thing):
    """Public names and the methods behind operators."""
    return {name for name in dir(thing) if name not in PLAIN and (name[0] != "_" or name[:2] == "__")}


def positional(function):
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p for p in inspect.signature(function).parameters.values() if p.kind in kinds]


def compare_parameters(name, theirs, ours):
    try:
        mine = positional(ours)
    except ValueError:  # compiled and made by open() and create() alone
        return
    wanted = positional(theirs)
    assert [p.name for p in mine[: len(wanted)]] == [p.name for p in wanted], name
    assert all(p.default is not p.empty for p in mine[len(wanted) :]), name
    for one, other in zip(mine, wanted):
        if (name, one.name) not in OTHER_DEFAULTS and other.default is not other.empty:
            assert one.default == other.default, (name, one.name)


def test_public_names_methods_and_parameters_are_here(theirs):
    found = list(offered(theirs))
    assert found or theirs.__name__ == "cdl"
    for name, thing in [*found, *((n, getattr(theirs, n)) for n in getattr(theirs, "__all__", ()))]:
        mine = getattr(ours(theirs), name)
        if not callable(thing):
            assert mine == thing
            continue
        if not (isinstance(thing, type) and issubclass(thing, Exception)):
            compare_parameters(name, thing, mine)
        if isinstance(thing, type):
            lost = attributes(thing) - attributes(mine) - attributes(example(name, ours(theirs)))
            assert not lost, (name, lost)
            for method in attributes(thing):
                function = getattr(thing, method)
                if callable(function) and callable(getattr(mine, method, None)) and method[0] != "_":
                    if not isinstance(function, type):
                        compare_parameters(f"{name}.{method}", function, getattr(mine, method))


def example(name, package):
    """An instance of a class, for attributes that only those have."""
    data = np.arange(40.0)
    makers = {
        "SplitMix64": lambda: package.SplitMix64(1),
        "FeistelPermutation": lambda: package.FeistelPermutation(1, 10),
        "CDLShuffle": lambda: package.CDLShuffle(40, 8),
        "CDLSampler": lambda: package.CDLSampler(dataset_size=40, block_size=8),
        "BlockCache": lambda: package.BlockCache(),
        "AsyncPrefetcher": lambda: package.AsyncPrefetcher(len),
        "SyncPrefetcher": lambda: package.SyncPrefetcher(len),
        "NumpyBlockDataset": lambda: package.NumpyBlockDataset(data),
        "CDLLoader": lambda: package.CDLLoader(package.NumpyBlockDataset(data)),
    }
    return makers[name]() if name in makers else None


def instance_attributes(thing):
    """Public attributes that hold plain values."""
    return {
        name: value
        for name in dir(thing)
        if name[0] != "_" and isinstance(value := getattr(thing, name), (int, float, str, bool, tuple))
    }


@pytest.mark.parametrize(
    "name", ["SplitMix64", "FeistelPermutation", "CDLShuffle", "CDLSampler", "CDLLoader", "BlockCache",
             "AsyncPrefetcher", "SyncPrefetcher", "NumpyBlockDataset"])  # fmt: skip
def test_instances_have_the_same_attributes_with_the_same_values(name):
    place = REF / "celeres-dl-0.1.0"
    if not place.is_dir():
        pytest.skip(f"{place} is not there: tools/setup.sh installs it")
    sys.path.insert(0, str(place))
    try:
        import cdl
        import cdl.prefetch

        theirs = instance_attributes(example(name, cdl if hasattr(cdl, name) else cdl.prefetch))
    finally:
        sys.path.remove(str(place))
    mine = instance_attributes(example(name, zrecord.cdl))
    assert {key: mine.get(key) for key in theirs} == theirs


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 5, 16, 17, 255, 256, 257, 1000, 2**20, 2**20 + 1])
def test_the_halves_of_a_network_are_those_of_celeres_dl(size):
    place = REF / "celeres-dl-0.1.0"
    if not place.is_dir():
        pytest.skip(f"{place} is not there: tools/setup.sh installs it")
    sys.path.insert(0, str(place))
    try:
        import cdl

        reference = cdl.FeistelPermutation(7, size)
    finally:
        sys.path.remove(str(place))
    mine = zrecord.cdl.FeistelPermutation(7, size)
    for name in ("half_bits", "half_mask", "full_mask"):
        assert getattr(mine, name) == getattr(reference, name)
