"""Who writes a file: an operating-system lock on ``<file>.lock``, held for the writer's life, however that ends.

Owns the lock file and nothing of the run's file. One rule a change must keep: the lock dies with its process (a killed one, a
removed container), so a claim never rests on a process number, which another process may have by now. Where the system or the
file system has no such locks, `held` says None and the caller falls back to what the file says.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

PATIENCE_S = 0.2  # a reader that looks holds the lock for microseconds: a claim tries again for this long
_open: set[int] = set()


class WriterLock:
    """The claim of one writer on one file. `claim` it, `release` it."""

    def __init__(self, path: Path) -> None:
        self._path = _beside(path)
        self._fd: int | None = None

    def claim(self) -> bool | None:
        """True: it is ours; False: another writer has it; None: there are no locks here."""
        if fcntl is None:
            return None
        until = time.monotonic() + PATIENCE_S
        while True:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            got = _locked(fd, fcntl.LOCK_EX)
            if got and not _same_file(fd, self._path):  # the one before removed it meanwhile
                os.close(fd)
                continue
            if got is not False or time.monotonic() >= until:
                break
            os.close(fd)
            time.sleep(0.005)
        if got is False:
            os.close(fd)
        else:
            self._fd = fd
            _open.add(fd)
        return got

    def release(self) -> None:
        """Remove the lock file and let go. Twice is once."""
        fd, self._fd = self._fd, None
        if fd is not None:
            _open.discard(fd)
            with contextlib.suppress(OSError):  # its folder is gone
                self._path.unlink()
            os.close(fd)


def held(path: Path) -> bool | None:
    """Whether a living process writes this file; None where that cannot be told from the lock."""
    if fcntl is None:
        return None
    try:
        fd = os.open(_beside(path), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:  # not ours to read
        return None
    try:
        free = _locked(fd, fcntl.LOCK_SH)
    finally:
        os.close(fd)
    return None if free is None else not free


def _beside(path: Path) -> Path:
    return path.with_name(path.name + ".lock")


def _locked(fd: int, how: int) -> bool | None:
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return None
    return True


def _same_file(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False


def _forget() -> None:
    """In a forked child: the lock is its parent's, and must not outlive it here."""
    for fd in _open:
        with contextlib.suppress(OSError):
            os.close(fd)
    _open.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
