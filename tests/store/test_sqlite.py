"""The log on disk: one writer, many readers, exact texts, and files that are not ours left as they are."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flashevolve_lab as lab
from flashevolve_lab.core import SCHEMA, Entry, Spend, check
from flashevolve_lab.core.events import ArtifactMade, CallFinished, Committed, RunStarted, SettingChanged, Warned
from flashevolve_lab.errors import LogError
from flashevolve_lab.store import FORMAT, Reader, Writer, files
from flashevolve_lab.store.sqlite import LONG, _alive
from flashevolve_lab.testing import log_contract
from flashevolve_lab.views.columns import NAMES

STARTED = RunStarted("r", "2026-01-01", 0, "wall", {}, ("a",), {}, {}, {}, {})


def warned(n: int, text: str = "x") -> Entry:
    """An entry with this number and text."""
    return Entry(n, float(n), Warned("w", text))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the run's file goes."""
    return tmp_path / "folder" / "run.sqlite"


def written(path: Path, *texts: str) -> Path:
    """A closed run file with these texts."""
    log = Writer(path)
    log.append([warned(i, text) for i, text in enumerate(texts, 1)])
    log.close()
    return path


def texts_in(path: Path) -> list[str]:
    """All texts of a run file."""
    reader = Reader(path)
    try:
        return [entry.event.message for entry in reader.entries() if isinstance(entry.event, Warned)]
    finally:
        reader.close()


@pytest.fixture
def reader(path: Path) -> Any:
    """Opens the file for reading, and closes it in the end."""
    opened: list[Reader] = []

    def open_it() -> Reader:
        opened.append(Reader(path))
        return opened[-1]

    yield open_it
    for one in opened:
        one.close()


# --- what goes in comes out -----------------------------------------------------------------------------------------------


def test_the_store_keeps_the_contract_of_logs(path: Path) -> None:
    log_contract(lambda: Writer(path), lambda: Reader(path))


def test_readers_follow_by_cursor_while_another_connection_writes(path: Path, reader: Callable[[], Reader]) -> None:
    log = Writer(path)
    follower, seen = reader(), []
    wrote = threading.Event()

    def write() -> None:
        for n in range(1, 301):
            log.append([warned(2 * n - 1), warned(2 * n)])
        wrote.set()

    writing = threading.Thread(target=write)
    writing.start()
    while True:
        last = wrote.is_set()
        fresh = follower.entries(after=seen[-1] if seen else 0)
        assert len(fresh) % 2 == 0, "a transaction is seen whole or not at all"
        seen += [entry.seq for entry in fresh]
        if last and not fresh:
            break
    writing.join()
    assert seen == list(range(1, 601))
    log.close()


def test_a_reader_in_another_process_sees_what_is_appended_at_once(path: Path) -> None:
    log = Writer(path)
    log.append([warned(1, "from here")])
    code = f"from flashevolve_lab.store import Reader; print(Reader({str(path)!r}).entries()[0].event.message)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "from here", done.stderr
    log.close()


def test_a_limit_takes_the_oldest(path: Path, reader: Callable[[], Reader]) -> None:
    written(path, *"abcdef")
    assert [entry.seq for entry in reader().entries(after=1, limit=3)] == [2, 3, 4]


HARD = st.one_of(
    st.text(st.characters(exclude_characters="".join(map(chr, range(0xDC00, 0xE000)))), max_size=30),
    st.text(max_size=5).map(lambda text: "\x00blob:" + text),
    st.text(max_size=5).map(lambda text: text * 600 + "\udfff"),
    st.just('"\\u0000blob:'),
)


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(st.lists(st.tuples(HARD, HARD, HARD), min_size=1, max_size=4))
def test_any_text_comes_back_exactly(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str, str]]) -> None:
    path = tmp_path_factory.mktemp("hard") / "run.sqlite"
    entries = [Entry(i, 0.5, ArtifactMade(a, {b: c, c: a}, b, (a, c), "seed", b, c)) for i, (a, b, c) in enumerate(rows, 1)]
    log = Writer(path)
    log.append(entries)
    log.close()
    back = Reader(path)
    assert back.entries() == entries
    back.close()


def test_texts_that_begin_with_the_blob_mark_come_back_exactly(path: Path) -> None:
    texts = [
        "\x00blob:",
        "\x00blob:0123456789abcdef0123456789abcdef",
        "\x00blob:" + "y" * 3000,
        'say "\\u0000blob:" or "\x00blob:',
    ]
    assert texts_in(written(path, *texts)) == texts


def test_structured_values_come_back_exactly(path: Path, reader: Callable[[], Reader]) -> None:
    entries = [
        Entry(1, 0.0, STARTED),
        Entry(2, 0.1, SettingChanged("slots", {}, {"a": 3, "deep": [1, 2.5, None, True, {"x": "y" * 2000}]})),
        Entry(3, 1 / 3, CallFinished("c0", "ok", Spend(0, 1, 30, 0.000123, 0), 10, 20, "stop", "m", "t" * 1500)),
        Entry(4, 1e9 + 1e-6, Committed(3, "a3", "p9", 7, {"0": 0.1, "11": 1 / 3}, 12)),
    ]
    log = Writer(path)
    log.append(entries)
    log.close()
    assert reader().entries() == entries


def test_a_long_text_is_stored_once_however_often_it_is_written(path: Path) -> None:
    long = "a prompt. " * LONG
    written(path, long, "short", long, long + "!")
    db = sqlite3.connect(path)
    assert db.execute("SELECT count(*) FROM blobs").fetchone() == (2,)
    assert db.execute("SELECT max(length(body)) FROM entries").fetchone()[0] < LONG
    db.close()
    assert texts_in(path) == [long, "short", long, long + "!"]


def test_a_missing_blob_is_damage_and_says_so(path: Path) -> None:
    written(path, "z" * 5000)
    db = sqlite3.connect(path)
    db.execute("DELETE FROM blobs")
    db.commit()
    db.close()
    with pytest.raises(LogError, match="damaged"):
        texts_in(path)


def test_a_number_that_json_does_not_know_is_refused_and_nothing_of_its_transaction_is_written(path: Path) -> None:
    log = Writer(path)
    with pytest.raises(ValueError):
        log.append([warned(1), Entry(2, 0.0, SettingChanged("x", 0, float("nan")))])
    log.append([warned(1, "next")])
    log.close()
    assert texts_in(path) == ["next"]


def test_a_number_that_is_there_already_is_refused_and_nothing_of_its_transaction_is_written(path: Path) -> None:
    log = Writer(path)
    log.append([warned(1, "first")])
    with pytest.raises(sqlite3.IntegrityError):
        log.append([warned(2, "second"), warned(1, "again")])
    log.close()
    assert texts_in(path) == ["first"]


# --- one writer -----------------------------------------------------------------------------------------------------------


def test_an_existing_file_is_not_overwritten(path: Path) -> None:
    before = written(path, "precious").read_bytes()
    with pytest.raises(LogError, match="exists already.*another name"):
        Writer(path)
    assert path.read_bytes() == before


def test_a_second_writer_is_refused_while_the_first_lives_and_the_first_goes_on(path: Path) -> None:
    first = Writer(path)
    with pytest.raises(LogError, match=f"being written by process {os.getpid()}: stop that run first"):
        Writer(path, create=False)
    first.append([warned(1, "still mine")])
    first.close()
    assert texts_in(path) == ["still mine"]


def test_a_second_writer_in_another_process_is_refused_too(path: Path) -> None:
    first = Writer(path)
    code = f"from flashevolve_lab.store import Writer; Writer({str(path)!r}, create=False)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "LogError" in done.stderr and "stop that run first" in done.stderr
    first.close()


def test_after_a_close_the_next_writer_goes_on(path: Path, reader: Callable[[], Reader]) -> None:
    written(path, "one")
    assert not reader().being_written
    log = Writer(path, create=False)
    assert reader().being_written
    log.append([warned(2, "two")])
    log.close()
    assert texts_in(path) == ["one", "two"]


def test_the_file_of_a_writer_that_was_killed_is_whole_and_is_taken_over(path: Path, reader: Callable[[], Reader]) -> None:
    code = (
        "import os, signal; from flashevolve_lab.core import Entry; from flashevolve_lab.core.events import Warned;"
        f"from flashevolve_lab.store import Writer; log = Writer({str(path)!r});"
        "log.append([Entry(1, 0.0, Warned('w', 'before'))]); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code], timeout=60)
    assert not reader().being_written
    log = Writer(path, create=False)
    log.append([warned(2, "after")])
    log.close()
    assert texts_in(path) == ["before", "after"]


@pytest.mark.parametrize("writer", ["", "nonsense", f"x@{socket.gethostname()}", "17@a-container-that-is-gone"])
def test_what_a_file_says_of_its_writer_keeps_nobody_out_when_no_process_holds_the_lock(path: Path, writer: str) -> None:
    claim(written(path, "one"), writer or f"{os.getpid()}@{socket.gethostname()}")  # this number is somebody else's by now
    log = Writer(path, create=False)
    log.append([warned(2, "two")])
    log.close()
    assert texts_in(path) == ["one", "two"]


def test_of_two_that_claim_a_file_at_the_same_time_one_wins(path: Path) -> None:
    written(path, "one")
    start, logs, refused = threading.Barrier(8), [], []

    def take() -> None:
        start.wait()
        try:
            logs.append(Writer(path, create=False))
        except LogError:
            refused.append(1)

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(logs), len(refused)) == (1, 7)
    logs[0].close()


def test_the_lock_lies_beside_the_file_while_it_is_written_and_is_removed_at_the_close(path: Path) -> None:
    lock = path.with_name("run.sqlite.lock")
    log = Writer(path)
    assert lock.exists()
    log.close()
    assert not lock.exists()


def test_one_who_only_looks_does_not_keep_a_writer_out(path: Path, reader: Callable[[], Reader]) -> None:
    written(path, "one")
    look, over = reader(), threading.Event()

    def watch() -> None:
        while not over.is_set():
            assert isinstance(look.being_written, bool)

    watching = threading.Thread(target=watch)
    watching.start()
    for _ in range(20):
        Writer(path, create=False).close()
    over.set()
    watching.join()


def test_a_forked_child_does_not_keep_the_claim_of_its_parent(path: Path) -> None:
    code = (
        f"import os, signal, time; from flashevolve_lab.store import Writer; log = Writer({str(path)!r}); child = os.fork()\n"
        "if child == 0: time.sleep(60)\n"
        "print(child, flush=True); time.sleep(0.1); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert done.stdout is not None
    child = int(done.stdout.readline())
    done.wait()
    try:
        Writer(path, create=False).close()
    finally:
        os.kill(child, signal.SIGKILL)
        done.stdout.close()


def test_a_database_that_another_process_has_locked_is_not_called_damaged(path: Path) -> None:
    other = sqlite3.connect(written(path, "one"), isolation_level=None)
    other.execute("PRAGMA locking_mode=EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    try:
        with pytest.raises(LogError, match="another process holds .*database is locked.*close it there"):
            Reader(path)
    finally:
        other.close()
    assert texts_in(path) == ["one"]


@pytest.mark.parametrize(
    ("writer", "alive"),
    [("", False), (f"x@{socket.gethostname()}", False), (f"{os.getpid()}@{socket.gethostname()}", True), ("1@elsewhere", True)],
)
def test_without_locks_a_process_of_this_machine_is_looked_up_and_one_of_another_is_believed(writer: str, alive: bool) -> None:
    assert _alive(writer) is alive


def claim(path: Path, writer: str) -> None:
    """Write down somebody as the writer."""
    db = sqlite3.connect(path)
    db.execute("INSERT OR REPLACE INTO meta VALUES ('writer', ?)", (writer,))
    db.commit()
    db.close()


# --- files of earlier versions --------------------------------------------------------------------------------------------


def test_a_file_of_format_1_as_it_was_first_written_opens_folds_and_gives_its_tables(tmp_path: Path) -> None:
    path = Path(shutil.copy(Path(__file__).parent / "samples" / "format1.sqlite", tmp_path))
    run = lab.open(path)
    assert len(run.entries) == 121
    assert (run.status.state, run.status.kind, run.status.proposals, run.best.score) == ("stopped", "budget", 2, 0.5)
    check(run.state)
    for name in NAMES:
        run.frame(name)
    assert len(run.frame("calls")) == 24
    assert run.status.simulated


# --- the relaxed writer ---------------------------------------------------------------------------------------------------


def test_a_relaxed_writer_keeps_entries_back_until_it_is_flushed_or_closed(path: Path, reader: Callable[[], Reader]) -> None:
    log = Writer(path, every_s=3600.0)
    look = reader()
    log.append([warned(1)])
    log.append([warned(2)])
    assert look.entries() == []
    log.flush()
    assert [entry.seq for entry in look.entries()] == [1, 2]
    log.append([warned(3)])
    log.close()
    assert [entry.seq for entry in look.entries(after=2)] == [3]


def test_a_writer_is_strict_unless_told_otherwise(path: Path, reader: Callable[[], Reader]) -> None:
    log = Writer(path)
    log.append([warned(1)])
    assert len(reader().entries()) == 1
    log.close()


# --- files that are not ours ----------------------------------------------------------------------------------------------


def foreign_database(path: Path) -> None:
    """Somebody's SQLite file."""
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE recipes (name TEXT)")
    db.commit()
    db.close()


def foreign_meta(path: Path) -> None:
    """Somebody's SQLite file that has a table of the same name."""
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE meta (key TEXT, value TEXT)")
    db.execute("INSERT INTO meta VALUES ('format', 'banana')")
    db.commit()
    db.close()


def newer(key: str, value: int) -> Callable[[Path], None]:
    """A run file of a later version."""

    def make(path: Path) -> None:
        written(path, "one")
        db = sqlite3.connect(path)
        db.execute("UPDATE meta SET value = ? WHERE key = ?", (str(value), key))
        db.commit()
        db.close()

    return make


def truncated(path: Path) -> None:
    """Half of a run file."""
    written(path, *("filler " * 100 + str(i) for i in range(300)))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])


NOT_OURS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a text": (lambda path: path.write_text("not a database at all, but long enough to look like one" * 20), "not a run file"),
    "an empty file": (lambda path: path.write_bytes(b""), "not a run file"),
    "a header only": (lambda path: path.write_bytes(b"SQLite format 3\x00" + b"\x00" * 84), "not a run file"),
    "a foreign database": (foreign_database, "not a run file"),
    "a foreign table of the same name": (foreign_meta, "not a run file"),
    "a newer format": (newer("format", FORMAT + 1), "newer version"),
    "a newer schema": (newer("schema", SCHEMA + 1), "newer version"),
    "a truncated file": (truncated, "damaged"),
}


@pytest.mark.parametrize("case", NOT_OURS)
def test_a_file_that_is_not_ours_or_not_whole_is_refused_and_left_as_it_is(tmp_path: Path, case: str) -> None:
    make, says = NOT_OURS[case]
    path = tmp_path / "it.sqlite"
    make(path)
    before = path.read_bytes()
    with pytest.raises(LogError, match=says):
        texts_in(path)
    with pytest.raises(LogError, match=says):
        Writer(path, create=False)
    with pytest.raises(LogError, match="exists already"):
        Writer(path)
    assert path.read_bytes() == before


def test_a_run_file_cut_anywhere_is_refused_or_read_whole_but_never_fails_otherwise(tmp_path: Path) -> None:
    texts = ["filler " * 50 + str(i) for i in range(40)]
    whole = written(tmp_path / "whole.sqlite", *texts).read_bytes()
    for cut in range(0, len(whole), len(whole) // 40):
        path = tmp_path / f"{cut}.sqlite"
        path.write_bytes(whole[:cut])
        with pytest.raises(LogError):
            texts_in(path)
        assert path.read_bytes() == whole[:cut]


def test_a_file_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    path = tmp_path / "no.sqlite"
    with pytest.raises(LogError, match=r"no run file.*lab\.runs"):
        Reader(path)
    with pytest.raises(LogError, match="no run file"):
        Writer(path, create=False)
    assert not path.exists()


def test_a_reader_never_writes(path: Path, reader: Callable[[], Reader]) -> None:
    written(path, "one")
    before = path.read_bytes()
    reader().entries()
    assert path.read_bytes() == before


def test_a_copy_of_a_finished_run_is_one_file(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.sqlite"
    shutil.copy(written(path, "one", "two"), copy)
    assert texts_in(copy) == ["one", "two"]


def test_files_lists_the_newest_first_and_only_runs(tmp_path: Path) -> None:
    for age, name in enumerate(("old", "older", "oldest")):
        path = written(tmp_path / f"{name}.sqlite", "x")
        os.utime(path, (1e9 - age, 1e9 - age))
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "folder.sqlite").mkdir()
    assert [path.stem for path in files(tmp_path)] == ["old", "older", "oldest"]
    assert list(files(tmp_path / "nowhere")) == []
