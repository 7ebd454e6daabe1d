# SPDX-License-Identifier: MIT
"""From a tree to the members of an archive: names, texts of meta.json, bytes of leaves."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from functools import partial
from json.encoder import encode_basestring_ascii as quoted
from operator import itemgetter
from typing import Any

import numpy as np

from .archive_tree import (
    PLAIN_TYPE,
    ArchiveStack,
    ArchiveTree,
    NestedArray,
    PickledValue,
    ValueDict,
    ValueStack,
    below,
    is_torch,
)
from .store import Dense

UNSAFE = {ord(c): f"%{ord(c):02X}" for c in '/<>:"|?*\\ %\x7f' + "".join(map(chr, range(32)))}
RESERVED = {"shape", "device", "_type"}
LEVELS_MAX = 1024  # below each other; the engine takes subpaths of as many keys
PLAIN_CLASS = "tensordict:TensorDict"

first = itemgetter(0)

NAMES = {
    np.dtype(name): f"torch.{name}"
    for name in "float16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool "
    "complex64 complex128".split()
}
NUMPY_NAMES = set(NAMES.values())
# Dtypes of ml_dtypes, which may never be imported: by name.
EXTENSIONS = {
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
}


def file_name(key: str) -> str:
    """How tensordict names the file or folder of a key."""
    if not key:
        return "%"
    if key in (".", ".."):
        return "%2E" * len(key)
    return key.translate(UNSAFE)


def dtype_name(dtype: Any, where: str) -> str:
    """"torch.float32" of a NumPy or torch dtype; ValueError for those that torch lacks."""
    if not isinstance(dtype, np.dtype):
        text = str(dtype)
        return text if text.startswith("torch.") else dtype_name(np.dtype(dtype), where)
    name = NAMES.get(dtype)
    if name is None and dtype.kind in "biufc" and not dtype.isnative:
        name = NAMES.get(dtype.newbyteorder("="))
    if name is None and dtype.name in EXTENSIONS:
        name = f"torch.{dtype.name}"
    if name is None:
        raise ValueError(f"leaf {where}: an archive cannot hold dtype {dtype!r}")
    return name


@functools.lru_cache(maxsize=64)
def torch_name(dtype: Any) -> str:
    return str(dtype)


class Layout:
    """The members of an archive, in its order, for the engine's writer.

    Parameters
    ----------
    like : bool
        Leave payloads out: they become zeros, and shapes are all that is asked of leaves.
    """

    def __init__(self, like):
        self.like = like
        self.sources = []  # (name, data or None for zeros, nbytes, is_payload)
        self.pending = []  # what is left to add, last first: calls, so that depth costs no stack
        self.above = {}  # id of a tree: its path and it; of those that the one being added is in

    # ------------------------------------------------------------ levels

    def add_root(self, tree, batch_size, names):
        """The root and all below: meta.json first, then files, then folders, each by name."""
        self.add("", tree, batch_size, names)
        while self.pending:
            self.pending.pop()()

    def add_later(self, calls):
        self.pending += reversed(calls)

    def add(self, path, tree, batch_size, names=None):
        """A level; those below are left pending."""
        if id(tree) in self.above:
            outer = repr(self.above[id(tree)][0]) if self.above[id(tree)][0] else "the root"
            raise ValueError(f"level {shortened(path)} is {outer} again: the tree has no end")
        if len(self.above) >= LEVELS_MAX:
            raise ValueError(f"level {shortened(path)} is below {LEVELS_MAX} others, which is the limit")
        self.above[id(tree)] = path, tree
        self.pending.append(partial(self.above.pop, id(tree)))
        if isinstance(tree, ArchiveStack):
            self.add_stack(path, tree)
        elif isinstance(tree, ArchiveTree) and self.is_tensorclass(tree):
            self.add_tensorclass(path, tree, batch_size)
        else:
            self.add_tensordict(path, tree, batch_size, names)

    def is_tensorclass(self, tree):
        return bool(tree.type_name) and "TensorDict" not in tree.type_name

    def add_tensordict(self, path, tree, batch_size, names=None, fields=()):
        if isinstance(tree, ArchiveTree):
            batch_size = tree.batch_size if batch_size is None else batch_size
            names = tree.names if names is None else names
        batch_size = tuple(batch_size or ())
        texts, files, folders = [], [], []
        for key, value in tree.items():
            if key in fields:
                continue
            if not isinstance(key, str):
                raise TypeError(f"keys of a tree are strings, not {key!r}")
            if key in RESERVED:
                raise ValueError(f"{below(path, key)!r}: meta.json needs the key {key!r} for itself")
            if not key.isascii():
                check_text(path, key)
            texts.append(self.add_entry(path, key, value, batch_size, files, folders))
        text = self.tensordict_text(texts, tree, batch_size, names)
        self.text(below(path, "meta.json"), text)
        files.sort(key=first)
        folders.sort(key=first)
        self.check_names(path, files, folders)
        self.sources += files
        self.add_later([partial(add, below(path, name)) for name, add in folders])

    def check_names(self, path, files, folders):
        """Two keys may need one name: "a.memmap" beside "a", or "n.shape" beside a nested "n"."""
        taken = set(map(first, files))
        if len(taken) < len(files):
            name = next(a[0] for a, b in zip(files, files[1:]) if a[0] == b[0])
            raise ValueError(f"{name!r} would be the file of a leaf and of the shapes of another one")
        taken.add(below(path, "meta.json"))
        for name, _ in folders:
            name = below(path, name)
            if name in taken:
                what = "the file of a leaf" if name.endswith(".memmap") else "the level's description"
                raise ValueError(f"{name!r} would be the folder of a key and {what}")

    def tensordict_text(self, texts, tree, batch_size, names):
        keys = tree.keys()
        texts.append(f'"shape": {list(batch_size)}, "device": "cpu", "_type": {quoted(PLAIN_TYPE)}')
        if "_format_version" not in keys:
            texts.append('"_format_version": 1')
        if "_class" not in keys:
            texts.append(f'"_class": "{PLAIN_CLASS}"')
        if names is not None and "_names" not in keys:
            if len(names) != len(batch_size):
                raise ValueError(f"{len(names)} names for the {len(batch_size)} batch dimensions")
            texts.append(f'"_names": {json.dumps(list(names))}')
        return "{" + ", ".join(texts) + "}"

    def add_entry(self, path, key, value, batch_size, files, folders):
        """Puts a leaf into files or a level into folders; the entry's part of meta.json."""
        if self.is_array(value):
            return self.add_leaf(path, key, value, batch_size, files)
        if isinstance(value, NestedArray):
            return self.add_nested(path, key, value, files)
        name = file_name(key)
        if isinstance(value, Mapping) and not isinstance(value, ValueDict):
            kind = "TensorDict"
            if isinstance(value, ArchiveStack):
                kind = "LazyStackedTensorDict"
            elif isinstance(value, ArchiveTree) and self.is_tensorclass(value):
                kind = value.type_name.rpartition(".")[2].removesuffix("'>")
            own = value.batch_size if isinstance(value, ArchiveTree) else batch_size
            folders.append((name, partial(self.add, tree=value, batch_size=own)))
        else:
            kind = "NonTensorStack" if is_value_stack(value) else "NonTensorData"
            folders.append((name, partial(self.add_value, value=value)))
        return f'{quoted(key)}: {{"type": {quoted(kind)}}}'

    def add_stack(self, path, stack):
        meta = {
            "_type": "<class 'tensordict._lazy.LazyStackedTensorDict'>",
            "_format_version": 1,
            "_class": "tensordict:LazyStackedTensorDict",
            "stack_dim": stack.stack_dim,
            "stack_dim_name": stack.stack_dim_name,
        }
        if list(stack) != [str(i) for i in range(len(stack))]:
            raise ValueError(f"{path or 'the root'}: a stack has the keys '0', '1', ... in order")
        self.text(below(path, "meta.json"), json.dumps(meta))
        members = sorted(stack.items(), key=first)
        self.add_later([partial(self.add, below(path, key), member, None) for key, member in members])

    def add_tensorclass(self, path, tree, batch_size):
        values = {key: tree[key] for key in tree.fields if key in tree}
        files = []
        if tree._pickled is not None:
            values = {k: v for k, v in values.items() if is_json(v)}
            files.append(self.blob(below(path, "other.pickle"), tree._pickled.data))
        text = json_text({"_type": tree.type_name, **values}, path)
        self.text(below(path, "meta.json"), text)
        self.sources += files
        self.add_tensordict(below(path, "_tensordict"), tree, batch_size, fields=tree.fields)

    def add_value(self, path, value):
        meta = {"_type": "<class 'tensordict.tensorclass.NonTensorData'>"}
        rest = {"_metadata": None, "_is_non_tensor": True}
        if isinstance(value, PickledValue) and is_value_stack(value):
            meta = self.stack_meta("pickle.pkl")
            self.text(below(path, "meta.json"), json.dumps(meta, separators=(",", ":")))
            self.sources.append(self.blob(below(path, "pickle.pkl"), value.data))
        elif isinstance(value, PickledValue):
            self.text(below(path, "meta.json"), json.dumps({**meta, **rest}))
            self.sources.append(self.blob(below(path, "other.pickle"), value.data))
        elif isinstance(value, ValueStack):
            text = json_text(self.stack_meta(list(value)), path, separators=(",", ":"))
            self.text(below(path, "meta.json"), text)
        else:
            self.text(below(path, "meta.json"), json_text({**meta, "data": value, **rest}, path))

    def stack_meta(self, data):
        return {
            "_type": "<class 'tensordict.tensorclass.NonTensorStack'>",
            "_format_version": 1,
            "_class": "tensordict:NonTensorStack",
            "stack_dim": 0,
            "device": None,
            "data": data,
        }

    def text(self, name, text):
        self.sources.append(self.blob(name, text.encode()))

    def blob(self, name, data):
        return (name, data, len(data), False)

    # ------------------------------------------------------------ leaves

    def is_array(self, value):
        if isinstance(value, (np.ndarray, np.generic, Dense)) or is_torch(value):
            return True
        if not self.like:
            return False
        if hasattr(value, "shape") and hasattr(value, "dtype"):
            return True
        return isinstance(value, tuple) and len(value) == 2 and is_shape(value[0])

    def add_leaf(self, path, key, value, batch_size, files):
        where = below(path, key)
        if isinstance(value, np.ndarray):
            shape, name = value.shape, NAMES.get(value.dtype)
            if name is None:
                name = dtype_name(value.dtype, where)
        elif is_torch(value):
            if value.is_nested:
                return self.add_nested(path, key, nested_of(value, where), files)
            shape, name = tuple(value.shape), torch_name(value.dtype)
        else:
            shape, name = shape_and_name(value, where)
        if batch_size and shape[: len(batch_size)] != batch_size:
            raise ValueError(
                f"leaf {where}: shape {tuple(shape)} does not begin with the batch size {batch_size}"
            )
        nbytes = itemsize_of(name)
        for dim in shape:
            nbytes *= dim
        if nbytes:  # a leaf without elements has no file
            data = None if self.like else self.bytes_of(value)
            files.append((below(path, f"{file_name(key)}.memmap"), data, nbytes, True))
        return (
            f'{quoted(key)}: {{"device": "cpu", "shape": {list(shape)}, '
            f'"dtype": "{name}", "is_nested": false}}'
        )

    def bytes_of(self, value):
        """Something contiguous in native byte order that the engine can write."""
        if isinstance(value, Dense):
            return value
        if is_torch(value):
            return torch_bytes(value)
        value = np.asarray(value)
        if not value.dtype.isnative:
            value = value.astype(value.dtype.newbyteorder("="))
        return np.ascontiguousarray(value)

    def add_nested(self, path, key, value, files):
        where = below(path, key)
        if self.like:
            raise ValueError(f"leaf {where}: a nested tensor cannot be written through")
        name = dtype_name(value.values.dtype, where)
        data = self.bytes_of(value.values)
        shapes = np.ascontiguousarray(value.shapes)
        stem = below(path, file_name(key))
        files.append((f"{stem}.memmap", data, len(value.values) * itemsize_of(name), True))
        files.append((f"{stem}.shape.memmap", shapes, shapes.nbytes, True))
        return (
            f'{quoted(key)}: {{"device": "cpu", "shape": {list(shapes.shape)}, '
            f'"dtype": "{name}", "is_nested": true}}'
        )


def shortened(path):
    return repr(path if len(path) <= 60 else f"{path[:60]}...")


def check_text(path, key):
    try:
        key.encode()
    except UnicodeEncodeError:
        raise ValueError(f"key {below(path, key)!r}: half of a surrogate pair is no text") from None


def is_shape(value):
    return isinstance(value, tuple) and all(isinstance(n, (int, np.integer)) for n in value)


def shape_and_name(value, where):
    if isinstance(value, Dense):
        return (len(value), *value.item_shape), dtype_name(value.dtype, where)
    if isinstance(value, tuple):
        if any(n < 0 for n in value[0]):
            raise ValueError(f"leaf {where}: shape {value[0]} has a negative dimension")
        return tuple(int(n) for n in value[0]), dtype_name(value[1], where)
    return tuple(int(n) for n in value.shape), dtype_name(value.dtype, where)


ITEMSIZES = {"bool": 1, "bfloat16": 2, "complex32": 4, "float4_e2m1fn_x2": 1}


def itemsize_of(name):
    name = name.removeprefix("torch.")
    if name in ITEMSIZES:
        return ITEMSIZES[name]
    if name.startswith("float8"):
        return 1
    return int(np.dtype(name).itemsize)


def torch_bytes(tensor):
    """The elements of a tensor, contiguous: its array, or bytes for dtypes that NumPy lacks."""
    if torch_name(tensor.dtype) in NUMPY_NAMES:  # one call into torch instead of eight
        return np.ascontiguousarray(tensor.numpy(force=True))
    import torch

    tensor = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return tensor.reshape(-1).view(torch.uint8).numpy()


def nested_of(tensor, where):
    import torch

    if tensor.layout is not torch.strided:
        raise ValueError(f"leaf {where}: a jagged nested tensor; use layout=torch.strided")
    parts = tensor.detach().unbind()
    shapes = np.array([tuple(part.shape) for part in parts], np.int64).reshape(len(parts), -1)
    values = torch.cat([part.reshape(-1) for part in parts]) if parts else tensor.new_empty(0)
    return NestedArray(values, shapes)


def is_value_stack(value):
    return isinstance(value, ValueStack) or (isinstance(value, PickledValue) and value._key is None)


def is_json(value):
    if isinstance(value, dict):
        return all(isinstance(k, str) and is_json(v) for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return all(is_json(v) for v in value)
    return value is None or isinstance(value, (str, int, float, bool))


def json_text(meta, path, **options):
    try:
        for key, value in meta.items():
            if not is_json(value):
                raise TypeError(f"{path}: {key} is of type {type(value).__name__}, which JSON cannot hold")
        return json.dumps(meta, **options)
    except RecursionError:
        raise ValueError(f"{path}: is nested too deeply for JSON, or holds itself") from None
