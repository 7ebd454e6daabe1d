# SPDX-License-Identifier: MIT
"""Finds the container below a path inside a mount of zrecordfs, which is read directly then."""

from __future__ import annotations

import json
import os
from typing import Any

from .errors import make_error

__all__ = ["container_below"]

_E_INVALID, _E_NOT_FOUND, _E_STATE = -3, -11, -16  # of the engine
_MOUNT_TYPE = "fuse.zrecordfs"


def _is_mount(device: int) -> bool:
    """Whether that st_dev is a mount of zrecordfs: nobody else's .control is believed."""
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
            for line in lines:
                mount, _, filesystem = line.partition(" - ")
                if mount.split(" ", 3)[2] == number:
                    return filesystem.split(" ", 1)[0] == _MOUNT_TYPE
    except OSError:
        pass
    return False


def _read_status(folder: str) -> dict[str, Any] | None:
    try:
        with open(os.path.join(folder, ".control"), "rb") as file:
            status: dict[str, Any] = json.load(file)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status


def _status_above(path: str, device: int) -> dict[str, Any] | None:
    """The status of the nearest folder that has one: a record's, a view's, a shard's."""
    while os.stat(path).st_dev == device:
        status = _read_status(path)
        if status is not None or path == os.path.dirname(path):
            return status
        path = os.path.dirname(path)
    return None


def _place_of(described: dict[str, Any]) -> str:
    raw = described.get("path_hex")  # where the path is not UTF-8
    return os.fsdecode(bytes.fromhex(raw)) if raw else str(described["path"])


def _choose(path: str, status: dict[str, Any]) -> dict[str, Any]:
    if status["store"] is not None:
        chosen: dict[str, Any] = status["store"]
        return chosen
    names = [store["name"] for store in status["stores"]]
    places = [_place_of(archive) for archive in status["archives"]]
    if not names and len(places) == 1:
        message = f"{path} shows an archive, no store: zrecord.load_archive({places[0]!r}) reads it"
        raise make_error(_E_INVALID, message, None, 0, path)
    shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
    message = f"{path} is a folder of a mounted tree with {len(names)} stores, not one: {shown}"
    raise make_error(_E_INVALID, message, None, 0, path)


def _check_same(path: str, place: str, described: dict[str, Any]) -> None:
    """What the mount shows may be gone, or replaced, since it opened it."""
    try:
        mtime_ns = os.stat(os.path.join(place, "meta.zr")).st_mtime_ns
    except OSError as error:
        reason = f"the store behind this mount, {place}, cannot be reached: {error.strerror}"
        raise make_error(_E_NOT_FOUND, f"{path}: {reason}", None, error.errno, path) from None
    if mtime_ns != described["mtime_ns"]:
        message = f"{path}: another store is at {place} than the one mounted here"
        raise make_error(_E_STATE, message, None, 0, path)


def container_below(path: str) -> str:
    """The store that a path inside a mount of zrecordfs shows, else the path itself.

    Parameters
    ----------
    path : str
        Absolute.  In a mount: the folder of a store, or anything in it (a record, a view).

    Raises
    ------
    ZrecordError
        The path is a folder of a tree and no store, or the store behind the mount is not there
        any more.
    """
    try:
        if os.path.exists(os.path.join(path, "meta.zr")):
            return path
        device = os.stat(path).st_dev
        status = _status_above(path, device) if _is_mount(device) else None
    except OSError:
        return path  # opening it says why
    if status is None:
        return path
    described = _choose(path, status)
    place = _place_of(described)
    _check_same(path, place, described)
    return place
