"""The log on disk: SQLite in WAL mode, one file per run, one writer, any number of read-only readers with a cursor.

Owns the file format: tables ``meta``, ``entries`` and ``blobs`` (long texts, once each, by hash). Owns no meaning: events come
from `core`. One rule a change must keep: entries are only ever appended; a file this version cannot read is left untouched.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import sqlite3
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from flashevolve_lab.core import SCHEMA, Entry, decode, encode
from flashevolve_lab.errors import LogError
from flashevolve_lab.store.lock import WriterLock, held

FORMAT = 1
BUSY_S = 2.0  # how long a locked file is waited for
LONG = 1024  # texts longer than this (characters) are stored once, as blobs
_MARK = "\x00blob:"
_MARKED = '"\\u0000blob:'  # how a string that begins with the mark looks in JSON
_TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE entries (seq INTEGER PRIMARY KEY, at REAL NOT NULL, kind TEXT NOT NULL, body TEXT NOT NULL);
CREATE TABLE blobs (hash TEXT PRIMARY KEY, text TEXT NOT NULL);
"""
_dumps = json.JSONEncoder(ensure_ascii=True, separators=(",", ":"), allow_nan=False).encode


class Writer:
    """The one writer of a run's file. Use it from one thread."""

    def __init__(self, path: str | os.PathLike[str], *, create: bool = True, every_s: float = 0.0) -> None:
        """Create the file (which must not exist), or open an existing one to go on with it.

        Args:
            path: The file; folders above it are made.
            create: False to go on with an existing file.
            every_s: Write at most this often, in seconds on the wall (for virtual time, where nothing is paid); 0: at once.

        Raises:
            LogError: the file exists already, or is not a run file, or another process is writing it.
        """
        self.path = Path(path)
        _check_new(self.path) if create else _check_whole(self.path)
        self._lock = WriterLock(self.path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._claim()
        except OSError as error:
            raise _unwritable(self.path, error) from error
        try:
            self._open(create)
        except BaseException:
            self._lock.release()
            raise
        self._every_s = every_s
        self._waiting: list[Entry] = []
        self._written_at = time.monotonic()

    def _open(self, create: bool) -> None:
        """Open the file, which is ours now."""
        if create:
            _check_new(self.path)
        try:
            self._db = sqlite3.connect(self.path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
        except (OSError, sqlite3.OperationalError) as error:
            raise _unwritable(self.path, error) from error
        try:
            self._begin(create)
        except sqlite3.OperationalError as error:
            self._db.close()
            raise _unwritable(self.path, error) from error

    def _begin(self, create: bool) -> None:
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")
        if create:
            self._db.executescript(_TABLES)
            self._set("format", str(FORMAT))
            self._set("schema", str(SCHEMA))
        self._set("writer", f"{os.getpid()}@{socket.gethostname()}")

    @property
    def last(self) -> int:
        """The number of the last entry in the file; 0 when there is none."""
        row = self._db.execute("SELECT max(seq) FROM entries").fetchone()
        return int(row[0] or 0)

    def append(self, entries: Sequence[Entry]) -> None:
        """Append entries in one transaction. Their numbers must follow on those in the file."""
        self._waiting += entries
        if time.monotonic() - self._written_at >= self._every_s:
            self.flush()

    def flush(self) -> None:
        """Write what waits."""
        entries, self._waiting = self._waiting, []
        if entries:
            self._write(entries)
        self._written_at = time.monotonic()

    def _write(self, entries: Sequence[Entry]) -> None:
        blobs: dict[str, str] = {}
        rows = []
        for entry in entries:
            kind, body = encode(entry.event)
            text = _dumps(body)
            if len(text) > LONG or _MARKED in text:
                text = _dumps(_shrunk(body, blobs))
            rows.append((entry.seq, entry.at, kind, text))
        self._db.execute("BEGIN")
        try:
            if blobs:
                self._db.executemany("INSERT OR IGNORE INTO blobs VALUES (?, ?)", list(blobs.items()))
            self._db.executemany("INSERT INTO entries VALUES (?, ?, ?, ?)", rows)
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def close(self) -> None:
        """Write what waits, say that nobody writes any more, and close."""
        try:
            self.flush()
        finally:
            try:
                self._set("writer", "")
                self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            finally:
                self._db.close()
                self._lock.release()

    def _set(self, key: str, value: str) -> None:
        self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    def _claim(self) -> None:
        ours = self._lock.claim()
        writer = _writer_of(self.path) if not ours else ""
        if ours is False or (ours is None and _alive(writer)):
            self._lock.release()
            raise _being_written(self.path, writer, certain=ours is False)


class Reader:
    """Reads a run's file, finished or growing, from any process. Use one per thread."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Raises `LogError` when there is no such file, or it is not a run file, or of a newer format."""
        self.path = Path(path)
        self._db = _checked(self.path)
        self._blobs: dict[str, str] = {}

    def entries(self, after: int = 0, limit: int = 1_000_000) -> list[Entry]:
        """Entries numbered above ``after``, in order, at most ``limit``."""
        query = "SELECT seq, at, kind, body FROM entries WHERE seq > ? ORDER BY seq LIMIT ?"
        try:
            rows = self._db.execute(query, (after, limit)).fetchall()
        except sqlite3.DatabaseError as error:
            raise _unreadable(self.path, error) from error
        return [Entry(seq, at, decode(kind, self._body(body))) for seq, at, kind, body in rows]

    @property
    def being_written(self) -> bool:
        """Whether a living process holds the file as its writer."""
        locked = held(self.path)
        return _alive(_writer_in(self._db)) if locked is None else locked

    def refuse_if_written(self) -> None:
        """Raises `LogError`, with what to do, when a living process is writing the file."""
        if self.being_written:
            raise _being_written(self.path, _writer_in(self._db), certain=held(self.path) is not None)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def _body(self, text: str) -> Any:
        try:
            body = json.loads(text)
        except (TypeError, ValueError) as error:  # a cut file may give back rows without their text
            raise _damaged(self.path, error) from error
        return self._grown(body) if _MARKED in text else body

    def _grown(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._blob(value[len(_MARK) :]) if value.startswith(_MARK) else value
        if isinstance(value, list):
            return [self._grown(v) for v in value]
        if isinstance(value, dict):
            return {k: self._grown(v) for k, v in value.items()}
        return value

    def _blob(self, hash: str) -> str:
        if hash not in self._blobs:
            row = self._db.execute("SELECT text FROM blobs WHERE hash = ?", (hash,)).fetchone()
            if row is None:
                raise LogError(f"{self.path} is damaged: the text {hash} is missing. Restore it from a copy.")
            self._blobs[hash] = json.loads(row[0])
        return self._blobs[hash]


def files(folder: str | os.PathLike[str]) -> Iterator[Path]:
    """Run files in a folder, the newest first."""
    found = [p for p in Path(folder).glob("*.sqlite") if p.is_file()]
    yield from sorted(found, key=lambda p: p.stat().st_mtime, reverse=True)


def _shrunk(value: Any, blobs: dict[str, str]) -> Any:
    """The value with long texts replaced by marks; the texts go to ``blobs`` (JSON-encoded, so any Unicode survives)."""
    if isinstance(value, str):
        if len(value) <= LONG and not value.startswith(_MARK):
            return value
        text = _dumps(value)
        hash = hashlib.sha256(text.encode()).hexdigest()[:32]
        blobs[hash] = text
        return _MARK + hash
    if isinstance(value, (list, tuple)):
        return [_shrunk(v, blobs) for v in value]
    if isinstance(value, dict):
        return {k: _shrunk(v, blobs) for k, v in value.items()}
    return value


def _checked(path: Path) -> sqlite3.Connection:
    if not path.is_file():
        raise LogError(f"there is no run file {path}: lab.runs(folder) lists those that exist")
    db = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", timeout=BUSY_S, uri=True, check_same_thread=False)
    try:
        meta = dict(db.execute("SELECT key, value FROM meta").fetchall())
        newest = max(int(meta["format"]) - FORMAT, int(meta["schema"]) - SCHEMA)
    except (sqlite3.DatabaseError, KeyError, ValueError) as error:
        db.close()
        raise _unreadable(path, error) from error
    if newest > 0:
        db.close()
        raise LogError(f"{path} was written by a newer version of flashevolve_lab: install that one; it was left as it is")
    return db


def _check_whole(path: Path) -> None:
    """Raises `LogError` unless every page of the file can be read: nobody goes on with a damaged log."""
    db = _checked(path)
    try:
        found = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    except sqlite3.DatabaseError as error:
        raise _unreadable(path, error) from error
    finally:
        db.close()
    if found != "ok":
        raise _damaged(path, found)


def _check_new(path: Path) -> None:
    if path.exists():
        raise LogError(f"{path} exists already: choose another name, or lab.open / lab.resume it")


def _damaged(path: Path, why: object) -> LogError:
    return LogError(f"{path} is not a run file of flashevolve_lab, or is damaged ({why}); it was left as it is")


def _unreadable(path: Path, error: Exception) -> LogError:
    return _in_use(path) if _is_busy(error) else _damaged(path, error)


def _unwritable(path: Path, error: Exception) -> LogError:
    return _in_use(path) if _is_busy(error) else LogError(f"cannot write {path} ({error}): choose another folder=…")


def _is_busy(error: Exception) -> bool:
    """Whether SQLite waited in vain for another connection."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _in_use(path: Path) -> LogError:
    return LogError(f"another process holds {path} (its database is locked): close it there, then try again")


def _being_written(path: Path, writer: str, *, certain: bool) -> LogError:
    pid, _, host = writer.partition("@")
    by = f"process {pid}" if host == socket.gethostname() else f"process {pid} of the machine {host}"
    what = "stop that run first (run.stop() where it runs, or end that process); lab.open(path) watches it"
    if not certain:
        what += ". Is it gone? Move the file to a disk that has file locks, and resume it there"
    return LogError(f"{path} is being written by {by if pid else 'another process'}: {what}")


def _writer_of(path: Path) -> str:
    """What a file says of its writer; "" when there is no such file."""
    if not path.exists():
        return ""
    db = _checked(path)
    try:
        return _writer_in(db)
    finally:
        db.close()


def _writer_in(db: sqlite3.Connection) -> str:
    row = db.execute("SELECT value FROM meta WHERE key = 'writer'").fetchone()
    return str(row[0]) if row and row[0] else ""


def _alive(writer: str) -> bool:
    """Whether the process "pid@host" may be alive, where there are no locks; that of another machine is believed."""
    pid, _, host = writer.partition("@")
    if not writer or host != socket.gethostname():
        return bool(writer)
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, ValueError):
        return False
    except PermissionError:
        return True
    return True
