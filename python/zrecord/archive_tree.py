# SPDX-License-Identifier: MIT
"""What an archive's levels look like in Python: dicts of arrays that know their batch size.

The engine makes the trees; here is what they can do, and the levels that are no plain dict.
"""

from __future__ import annotations

import copy
import functools
import json
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np

__all__ = [
    "ArchiveStack",
    "ArchiveTree",
    "NestedArray",
    "PickledValue",
    "ValueDict",
    "ValueStack",
]


def flat_key(key: Any) -> tuple[str, ...]:
    """("a", ("b", "c")) as ("a", "b", "c")."""
    if isinstance(key, str):
        return (key,)
    if isinstance(key, tuple):
        return tuple(part for item in key for part in flat_key(item))
    raise TypeError(f"keys are strings or tuples of strings, not {key!r}")


class ArchiveTree(dict[str, Any]):
    """One level of an archive: arrays, further levels and values by key.

    An ordinary dict in every respect; besides, ``tree["a", "b"]`` is ``tree["a"]["b"]``.

    Attributes
    ----------
    batch_size : tuple of int
        The leading dimensions that all its leaves share.
    names : tuple of str or None, or None
        Of these dimensions.
    type_name : str
        The class of this level where it is no plain TensorDict, as meta.json has it.
    fields : tuple of str
        Keys that meta.json itself holds: the values of a tensorclass.

    Notes
    -----
    Pickled by reference: the receiver opens the same file, and fails when another archive is
    at the path by then.  Changes made to copy-on-write leaves (mode ``"r"``) do not travel.
    Once a key was set or removed, a tree is pickled by value, as it is always deep-copied.
    """

    batch_size: tuple[int, ...] = ()
    names: tuple[str | None, ...] | None = None
    type_name: str = ""
    fields: tuple[str, ...] = ()
    _pickled: PickledValue | None = None
    _origin: Any = None  # (archive, how to open it again); of a root only
    _changed: bool = False

    def __missing__(self, key: Any) -> Any:
        if isinstance(key, tuple) and key:
            value: Any = self
            for part in flat_key(key):
                value = value[part]
            return value
        raise KeyError(key)

    def leaves(self) -> Iterator[tuple[tuple[str, ...], Any]]:
        """All arrays below, as (key, array) with key a tuple of strings."""
        levels: list[tuple[tuple[str, ...], Iterator[tuple[str, Any]]]] = [((), iter(self.items()))]
        while levels:  # a stack of our own, as trees may be deeper than Python's
            path, items = levels[-1]
            for key, value in items:
                if isinstance(value, ArchiveTree):
                    levels.append(((*path, key), iter(value.items())))
                    break
                if is_leaf(value):
                    yield (*path, key), value
            else:
                levels.pop()

    def records(self) -> dict[str, Any]:
        """The leaves as readers of records, by "a/b": rows of their common first dimension.

        Each is a :class:`zrecord.Dense` that gathers from the mapping; together they are the
        streams of a :class:`zrecord.DataLoader`, which also takes the tree itself.

        Raises
        ------
        ValueError
            Leaves differ in their first dimension, or one has no elements or no dimension.
        """
        from .archive import archive_records

        return archive_records(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain nested dicts of the same leaves."""
        return {k: v.to_dict() if isinstance(v, ArchiveTree) else v for k, v in self.items()}

    @property
    def intact(self) -> bool:
        """False once the file was found to be cut short or failing below the mapping.

        Leaves then read as zeros instead of ending the process.
        """
        return self._origin is None or bool(self._origin[0].intact)

    # ------------------------------------------------------------ copies and pickles

    def _attributes(self):
        state = dict(self.__dict__)
        state.pop("_origin", None)
        return state

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self._origin is not None and not self._is_changed():
            archive, reopen, arguments = self._origin
            return reopen, (*arguments, archive.identity)
        return _rebuild, (type(self), list(self.items()), self._attributes())

    def _is_changed(self):
        levels = [self]
        while levels:
            level = levels.pop()
            if level._changed:
                return True
            levels += [v for v in level.values() if isinstance(v, ArchiveTree)]
        return False

    def __copy__(self) -> ArchiveTree:
        return _rebuild(type(self), self.items(), self._attributes())

    def copy(self) -> ArchiveTree:
        return self.__copy__()

    def __deepcopy__(self, memo: dict[int, Any]) -> ArchiveTree:
        items = [(key, copy.deepcopy(value, memo)) for key, value in self.items()]
        return _rebuild(type(self), items, copy.deepcopy(self._attributes(), memo))

    # ------------------------------------------------------------ changes

    def __setitem__(self, key: str, value: Any) -> None:
        self._changed = True
        super().__setitem__(key, value)

    def __delitem__(self, key: str) -> None:
        self._changed = True
        super().__delitem__(key)

    def __ior__(self, other: Any) -> ArchiveTree:  # type: ignore[override,misc]
        self.update(other)
        return self

    def update(self, *args: Any, **kwargs: Any) -> None:
        self._changed = True
        super().update(*args, **kwargs)

    def setdefault(self, key: str, default: Any = None) -> Any:
        self._changed = True
        return super().setdefault(key, default)

    def pop(self, *args: Any) -> Any:
        self._changed = True
        return super().pop(*args)

    def popitem(self) -> tuple[str, Any]:
        self._changed = True
        return super().popitem()

    def clear(self) -> None:
        self._changed = True
        super().clear()


def _rebuild(cls, items, attributes):
    tree = cls()
    dict.update(tree, items)
    tree.__dict__.update(attributes)
    return tree


class ArchiveStack(ArchiveTree):
    """A lazy stack: levels ``"0"``, ``"1"``, ... whose leaves may differ in shape.

    ``stack[1]`` is ``stack["1"]``; any other key gives that entry of all members, stacked along
    `stack_dim` into a new array.

    Attributes
    ----------
    stack_dim : int
    stack_dim_name : str or None
    """

    stack_dim: int = 0
    stack_dim_name: str | None = None

    def __missing__(self, key: Any) -> Any:
        if isinstance(key, int) and not isinstance(key, bool):
            index = key + len(self) if key < 0 else key
            if 0 <= index < len(self):
                return self[str(index)]
            raise IndexError(f"index {key} into a stack of {len(self)}")
        if isinstance(key, tuple):
            return super().__missing__(key)
        if not len(self) or not all(key in member for member in self.values()):
            raise KeyError(key)
        return stack_entries([member[key] for member in self.values()], self)


def stack_entries(entries, stack):
    if all(isinstance(entry, ArchiveTree) for entry in entries):
        made = ArchiveStack()
        dict.update(made, {str(i): entry for i, entry in enumerate(entries)})
        made.stack_dim, made.stack_dim_name = stack.stack_dim, stack.stack_dim_name
        made.batch_size = stacked_size(made)
        return made
    if all(isinstance(entry, np.ndarray) for entry in entries):
        return np.stack(entries, axis=stack.stack_dim)
    if is_torch(entries[0]):
        import torch

        return torch.stack(entries, dim=stack.stack_dim)
    return ValueStack(entries)


def stacked_size(stack):
    """Of the members' batch sizes, which differ at most where they are unknown (-1)."""
    sizes = [member.batch_size for member in stack.values() if isinstance(member, ArchiveTree)]
    if not sizes or len({len(size) for size in sizes}) != 1:
        return ()
    size = [dims[0] if len(set(dims)) == 1 else -1 for dims in zip(*sizes)]
    size.insert(stack.stack_dim, len(stack))
    return tuple(size)


class NestedArray(list[Any]):
    """A nested tensor: arrays of one dtype and rank and their own shapes.

    A list of arrays, views of `values`.

    Attributes
    ----------
    values : numpy.ndarray or torch.Tensor
        All elements, one dimension.
    shapes : numpy.ndarray
        (n, rank), int64.
    """

    values: Any
    shapes: np.ndarray[Any, np.dtype[np.int64]]

    def __init__(self, values: Any, shapes: np.ndarray[Any, Any]) -> None:
        shapes = np.ascontiguousarray(shapes, dtype=np.int64)
        if shapes.ndim != 2 or (shapes < 0).any():
            raise ValueError("shapes must be (n, rank) and not negative")
        counts = [int(np.prod([int(d) for d in shape], dtype=object)) for shape in shapes]
        if sum(counts) > len(values):
            raise ValueError(f"{sum(counts)} elements by their shapes, {len(values)} are there")
        parts, at = [], 0
        for shape, count in zip(shapes, counts):
            parts.append(values[at : at + count].reshape(tuple(int(d) for d in shape)))
            at += count
        super().__init__(parts)
        self.values = values[:at]
        self.shapes = shapes

    def __reduce__(self) -> Any:
        return NestedArray, (self.values, self.shapes)

    def __deepcopy__(self, memo: dict[int, Any]) -> NestedArray:
        return NestedArray(copy.deepcopy(self.values, memo), self.shapes.copy())


class ValueStack(list[Any]):
    """Values of a batch that are no tensors, one for each element (a NonTensorStack)."""


class ValueDict(dict[str, Any]):
    """A dict that is one value, saved as JSON, and no level of arrays."""


class PickledValue:
    """A value that was saved as a pickle, not unpickled: that could run any code.

    Attributes
    ----------
    data : bytes
    """

    def __init__(self, data: bytes, key: str | None = None) -> None:
        self.data = data
        self._key = key

    def load(self) -> Any:
        """Unpickle it.  Only for files that you trust."""
        value = pickle.loads(self.data)
        return value if self._key is None else value[self._key]

    def __repr__(self) -> str:
        return f"PickledValue({len(self.data)} bytes)"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PickledValue):
            return NotImplemented
        return (self.data, self._key) == (other.data, other._key)

    def __hash__(self) -> int:
        return hash((self.data, self._key))


@functools.lru_cache(maxsize=64)
def is_torch_type(cls):
    return cls.__module__.partition(".")[0] in ("torch", "tensordict") and hasattr(
        cls, "untyped_storage"
    )


def is_torch(value):
    return is_torch_type(type(value))


def is_leaf(value):
    return isinstance(value, (np.ndarray, NestedArray)) or is_torch(value)


# ---------------------------------------------------------------- levels of other kinds

TENSORDICT, STACK, TENSORCLASS, VIEW, VALUE = range(5)
PLAIN_TYPE = "<class 'tensordict._td.TensorDict'>"


class Levels:
    """Makes what is no plain tensordict out of what the engine found.

    Parameters
    ----------
    allow_pickle : bool
    """

    def __init__(self, allow_pickle):
        self.allow_pickle = allow_pickle

    def __call__(self, archive, kind, path, text, entries):
        meta = self.object(archive, below(path, "meta.json"), text)
        make = (self.tensordict, self.stack, self.tensorclass, self.view, self.value)[kind]
        return make(archive, path, meta, entries)

    def object(self, archive, name, text):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as exc:
            raise ValueError(f"{archive.path}: {name}: is not JSON: {exc}") from exc
        if not isinstance(value, dict):
            raise ValueError(f"{archive.path}: {name}: is no JSON object")
        return value

    def tensordict(self, archive, path, meta, tree):
        if isinstance(meta.get("_names"), list):
            tree.names = tuple(meta["_names"])
        if meta.get("_type") != PLAIN_TYPE:
            tree.type_name = str(meta.get("_type", ""))
        return tree

    def stack(self, archive, path, meta, entries):
        stack = ArchiveStack()
        dict.update(stack, entries)
        if not isinstance(meta["stack_dim"], int):
            raise ValueError(f"{archive.path}: {below(path, 'meta.json')}: its stack_dim is no number")
        stack.stack_dim = meta["stack_dim"]
        stack.stack_dim_name = meta.get("stack_dim_name")
        stack.type_name = str(meta.get("_type", ""))
        stack.batch_size = stacked_size(stack)
        return stack

    def tensorclass(self, archive, path, meta, entries):
        (tree,) = entries.values()
        if not isinstance(tree, ArchiveTree):
            raise ValueError(f"{archive.path}: {path}/_tensordict holds no tensors")
        tree.type_name = str(meta.pop("_type", ""))
        fields = {k: v for k, v in meta.items() if k not in ("_class", "_format_version")}
        data = archive.read(below(path, "other.pickle"))
        if data is not None:
            types = self.json_types(archive, path)
            if types is not None:
                fields.update(types)
            elif self.allow_pickle:
                fields.update(pickle.loads(data))
            tree._pickled = PickledValue(data)
        tree.fields = tuple(key for key in fields if key not in tree)
        dict.update(tree, {key: fields[key] for key in tree.fields})
        return tree

    def view(self, archive, path, meta, entries):
        (source,) = entries.values()
        try:
            return apply_operation(source, meta["custom_op"], meta["custom_op_kwargs"])
        except (KeyError, TypeError, ValueError, AttributeError) as exc:
            raise ValueError(f"{archive.path}: {path}: a view that cannot be made: {exc}") from exc

    def value(self, archive, path, meta, entries):
        if "data" in meta and "stack_dim" in meta:
            data = meta["data"]
            if data == "pickle.pkl":
                stack = self.unpickled(archive, path, "pickle.pkl", None)
                return ValueStack(stack) if isinstance(stack, list) else stack
            if not isinstance(data, list):
                raise ValueError(f"{archive.path}: {below(path, 'meta.json')}: its data is no list")
            return ValueStack(data)
        if "data" in meta:
            data = meta["data"]
            return ValueDict(data) if isinstance(data, dict) else data
        types = self.json_types(archive, path)
        if types is not None and "data" in types:
            return types["data"]
        if meta.get("_is_non_tensor"):
            return self.unpickled(archive, path, "other.pickle", "data")
        raise ValueError(
            f"{archive.path}: {path or '.'}: a level of class {meta.get('_type')!r} is not known here"
        )

    def json_types(self, archive, path):
        name = below(path, "json_types.json")
        text = archive.read(name)
        if text is None:
            return None
        names = self.object(archive, name, text).get("types", {})
        if not isinstance(names, dict) or not all(isinstance(n, str) for n in names.values()):
            raise ValueError(f"{archive.path}: {name}: its types are no names")
        known = {"dict": dict, "list": list, "tuple": tuple, "OrderedDict": _ordered_dict()}
        return {key: known[name] for key, name in names.items() if name in known}

    def unpickled(self, archive, path, name, key):
        data = archive.read(below(path, name))
        if data is None:
            raise ValueError(f"{archive.path}: {below(path, name)} is missing")
        value = PickledValue(data, key)
        return value.load() if self.allow_pickle else value


def _ordered_dict():
    from collections import OrderedDict

    return OrderedDict


def below(path, name):
    return f"{path}/{name}" if path else name


def apply_operation(tree, name, arguments):
    """The saved view (squeeze, unsqueeze, transpose, permute, view) of a tree's batch dimensions."""
    old = tuple(tree.batch_size)
    new, move = _operation(name, dict(arguments), old)

    def change(node, rest=()):
        made = _rebuild(type(node), (), node._attributes())
        for key, value in dict.items(node):
            if isinstance(value, ArchiveTree):
                dict.__setitem__(made, key, change(value))
            elif is_leaf(value) and not isinstance(value, NestedArray):
                dict.__setitem__(made, key, move(value, tuple(value.shape)[len(old) :]))
            else:
                dict.__setitem__(made, key, value)
        made.batch_size = new + tuple(node.batch_size)[len(old) :]
        made.names = None
        return made

    return change(tree)


def _operation(name, arguments, old):
    rank = len(old)
    if name == "view":
        size = np.empty(old, np.bool_).reshape([int(n) for n in arguments["size"]]).shape
        return size, lambda a, rest: a.reshape(size + rest)
    if name == "unsqueeze":
        dim = int(arguments["dim"])
        dim += rank + 1 if dim < 0 else 0
        size = old[:dim] + (1,) + old[dim:]
        return size, lambda a, rest: a.reshape(size + rest)
    if name == "squeeze":
        dims = arguments.get("dim")
        dims = range(rank) if dims is None else [dims] if isinstance(dims, int) else dims
        gone = {int(d) % rank for d in dims if old[int(d) % rank] == 1}
        size = tuple(n for i, n in enumerate(old) if i not in gone)
        return size, lambda a, rest: a.reshape(size + rest)
    order = list(range(rank))
    if name == "transpose":
        i, j = int(arguments["dim0"]), int(arguments["dim1"])
        order[i], order[j] = order[j], order[i]
    elif name == "permute":
        order = [int(d) % rank for d in arguments["dims"]]
        if sorted(order) != list(range(rank)):
            raise ValueError("no permutation of its dimensions")
    else:
        raise ValueError(f"operation {name!r} is not known")
    size = tuple(old[i] for i in order)
    return size, lambda a, rest: (a.permute if is_torch(a) else a.transpose)(
        order + list(range(rank, rank + len(rest)))
    )
