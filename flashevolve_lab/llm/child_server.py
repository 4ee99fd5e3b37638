"""A server of ours in a process of its own: start, wait until ready, watch, stop.

Owns the child's life: it is started as ``python -m MODULE``, prints one JSON line with its ``port`` when ready, and
ends when its standard input closes, which the operating system does when the parent dies, however it dies. Knows
nothing of models or requests. One rule a change must keep: no path leaves a process behind, and a child that fails at
its start is reported with its own last words.
"""

from __future__ import annotations

import atexit
import contextlib
import http.client
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Self

from flashevolve_lab.errors import SetupError

LAST_WORDS = 12
"""Lines of the child's standard error kept for the error message."""
TELL_S = 5.0
"""Seconds between two words on a child that is not ready yet."""
Waiting = Callable[[float, str], None]
"""Told, while a child is not ready yet: seconds since its start, and the last line it wrote to its standard error."""


class ChildServer:
    """A running child server on loopback. Made by `start_child`; a context manager that stops it at the end.

    Attributes:
        name: What it is called in messages.
        info: The JSON line it printed when it became ready.
    """

    def __init__(self, name: str, process: subprocess.Popen[str]) -> None:
        self.name = name
        self.info: Mapping[str, Any] = {}
        self._process = process
        self._errors: deque[str] = deque(maxlen=LAST_WORDS)
        self._ready: queue.Queue[Mapping[str, Any] | None] = queue.Queue()
        self._readers = [
            threading.Thread(target=reader, name=f"{name}-{reader.__name__}", daemon=True)
            for reader in (self._read_output, self._read_errors)
        ]
        for thread in self._readers:
            thread.start()
        atexit.register(self.stop)

    @property
    def port(self) -> int:
        """The TCP port on loopback."""
        return int(self.info["port"])

    @property
    def base_url(self) -> str:
        """What an OpenAI client takes as ``base_url``: scheme, address, port and ``/v1``."""
        return str(self.info.get("base_url", f"http://127.0.0.1:{self.port}/v1"))

    @property
    def pid(self) -> int:
        """The process id of the child."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process is still running."""
        return self._process.poll() is None

    def last_words(self) -> str:
        """The last lines the child wrote to its standard error; of one that has ended, to its very end."""
        if not self.alive:
            self._readers[1].join(timeout=1.0)
        return "\n".join(self._errors)

    def get(self, path: str, *, timeout_s: float = 5.0) -> dict[str, Any]:
        """A JSON object from a path of the server, such as ``/stats``.

        Raises:
            OSError: when nobody answers within ``timeout_s`` seconds.
        """
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        with contextlib.closing(connection):
            connection.request("GET", path)
            return dict(json.loads(connection.getresponse().read()))

    def stop(self, *, grace_s: float = 5.0) -> None:
        """Ends the child: closes its input, terminates after ``grace_s`` seconds, kills at last. Twice is once."""
        atexit.unregister(self.stop)
        _close(self._process.stdin)
        _end(self._process, grace_s)
        for thread in self._readers:
            thread.join(timeout=1.0)
        _close(self._process.stdout)
        _close(self._process.stderr)

    def wait_ready(self, startup_s: float, waiting: Waiting | None = None) -> None:
        """Blocks until the child has printed its line, at most ``startup_s`` seconds; tells ``waiting`` how it goes.

        Raises:
            SetupError: when it ended first (with its last words) or is not ready in time.
        """
        try:
            info = self._first_line(startup_s, waiting)
        except queue.Empty:
            raise SetupError(
                f"{self.name}: not ready after {startup_s:g} s. On a slow or busy machine give it longer "
                f"(startup_s={2 * startup_s:g}).{self._quoted_last_words()}"
            ) from None
        if info is None:
            code = self._process.wait()
            self._readers[1].join(timeout=1.0)
            raise SetupError(f"{self.name}: ended at its start with exit code {code}.{self._quoted_last_words()}")
        self.info = info

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        code = self._process.poll()
        state = f"at {self.base_url}, pid {self.pid}" if code is None and self.info else f"ended with exit code {code}"
        return f"<{self.name} {state}>"

    def _first_line(self, startup_s: float, waiting: Waiting | None) -> Mapping[str, Any] | None:
        began = time.monotonic()
        while True:
            passed_s = time.monotonic() - began
            try:
                return self._ready.get(timeout=min(TELL_S, max(0.0, startup_s - passed_s)))
            except queue.Empty:
                if time.monotonic() - began >= startup_s:
                    raise
            if waiting is not None:
                waiting(time.monotonic() - began, self._errors[-1] if self._errors else "")

    def _quoted_last_words(self) -> str:
        return f" Its last words:\n{self.last_words()}" if self._errors else " It wrote nothing to its standard error."

    def _read_output(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            info = _ready_line(line)
            if info is not None:
                self._ready.put(info)
        self._ready.put(None)

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._errors.append(line.rstrip())


def start_child(
    module: str,
    arguments: Sequence[str] = (),
    *,
    name: str,
    startup_s: float = 60.0,
    environment: Mapping[str, str] | None = None,
    waiting: Waiting | None = None,
) -> ChildServer:
    """Starts ``python -m module arguments…`` and waits until it is ready.

    The child gets a session of its own, so that interrupting the notebook's kernel does not interrupt it too.

    Args:
        module: Dotted name of a module of this package that serves when run.
        arguments: Its command-line arguments.
        name: What it is called in messages.
        startup_s: Seconds it may take to become ready.
        environment: Further variables of its environment.
        waiting: Told every `TELL_S` seconds until it is ready.

    Raises:
        SetupError: when it ends or does not become ready in time; nothing is left running.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        errors="replace",
        env={**_environment(), **(environment or {})},
        start_new_session=True,
    )
    child = ChildServer(name, process)
    try:
        child.wait_ready(startup_s, waiting)
    except BaseException:
        child.stop(grace_s=0.0)
        raise
    return child


def _environment() -> dict[str, str]:
    """The parent's environment, with this package importable however the parent found it."""
    home = str(Path(__file__).resolve().parents[2])
    path = [home, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), "PYTHONUNBUFFERED": "1"}


def _ready_line(line: str) -> dict[str, Any] | None:
    with contextlib.suppress(json.JSONDecodeError):
        info = json.loads(line)
        if isinstance(info, dict) and "port" in info:
            return info
    return None


def _end(process: subprocess.Popen[str], grace_s: float) -> None:
    if _ended(process, grace_s):
        return
    process.terminate()
    if not _ended(process, 2.0):
        process.kill()
        process.wait()


def _ended(process: subprocess.Popen[str], wait_s: float) -> bool:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=wait_s)
    return process.returncode is not None


def _close(stream: IO[str] | None) -> None:
    if stream is not None:
        with contextlib.suppress(OSError):
            stream.close()
