"""The process between the lab and `vllm serve`: starts it, says when it is healthy, and takes it down with the lab.

Owns vLLM's whole process group, its log file, and the few lines that tell why it ended. Knows no models. One rule a change must
keep: when this process's standard input closes, or it is terminated, or vLLM ends, nothing of vLLM is left running.

    python -m flashevolve_lab.llm.vllm_child --port 8000 --log FILE --model NAME -- vllm serve NAME --port 8000
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NoReturn

LOOK_S = 0.5  # between two looks at /health
GRACE_S = 4.0  # vLLM may take to end by itself
ERRORS, LINES, WIDTH = 4, 7, 300  # of what is quoted from the log, at most
TAIL = 200_000  # bytes of the log that are looked through
_ERROR = re.compile(r"\b\w*(?:Error|Exception): \S|\berror: ")
_PREFIX = re.compile(r"^(?:\([^)]*\) *)?(?:(?:DEBUG|INFO|WARNING|ERROR) [\d-]+ [\d:]+ \[[^\]]*\] *)?")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class Served:
    """`vllm serve` in a process group of its own, writing to a log file."""

    def __init__(self, command: list[str], log: Path) -> None:
        self.log = log
        with log.open("wb") as written:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=written, stderr=subprocess.STDOUT, start_new_session=True
            )

    @property
    def ended(self) -> int | None:
        """Its exit code, or None while it runs."""
        return self._process.poll()

    def wait(self) -> int:
        """Blocks until it has ended; its exit code."""
        return self._process.wait()

    def end(self, grace_s: float = GRACE_S) -> None:
        """Terminates it, waits ``grace_s`` seconds, and kills whatever of its group is left."""
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            if grace_s > 0:
                os.killpg(self._process.pid, signal.SIGTERM)
                self._process.wait(grace_s)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def lines(self) -> list[str]:
        """The last lines it wrote, without blank ones, colours and its logger's prefix."""
        with self.log.open("rb") as written:
            written.seek(max(0, self.log.stat().st_size - TAIL))
            text = _COLOUR.sub("", written.read().decode("utf-8", "replace"))
        lines = (_PREFIX.sub("", line.rstrip("\r")).rstrip() for line in text.split("\n"))
        return [line[:WIDTH] for line in lines if line.strip()]


def why(lines: list[str]) -> list[str]:
    """What to quote of a log that ended badly: the first different errors in it, then its last lines."""
    errors = list(dict.fromkeys(line.strip() for line in lines if _ERROR.search(line)))[:ERRORS]
    last = [line for line in lines[-LINES:] if line.strip() not in errors]
    return [*errors, *(["…"] if errors and last else []), *last]


def healthy(port: int) -> bool:
    """Whether the server answers its ``/health`` with 200."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2.0)
    with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    return False


def wait_healthy(served: Served, port: int) -> bool:
    """Blocks until the server is healthy (True) or has ended (False); says its last line as it changes."""
    said = ""
    while served.ended is None:
        if healthy(port):
            return True
        last = (served.lines() or [""])[-1]
        if last != said:
            print(last, file=sys.stderr, flush=True)
            said = last
        time.sleep(LOOK_S)
    return False


def watch_input(served: Served) -> None:
    """Ends everything when standard input closes: the lab has stopped it, or is gone."""

    def read() -> None:
        with contextlib.suppress(OSError, ValueError):
            while sys.stdin.buffer.read(1024):
                pass
        leave(served, 0)

    threading.Thread(target=read, name="stdin", daemon=True).start()


def leave(served: Served, code: int, grace_s: float = GRACE_S) -> NoReturn:
    """Ends vLLM, then this process, at once."""
    served.end(grace_s)
    os._exit(code)


def main() -> None:
    """The command line; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="flashevolve_lab.llm.vllm_child", description="Run vllm serve with the lab's life.")
    parser.add_argument("--port", type=int, required=True, help="the port that vllm serve was told")
    parser.add_argument("--log", type=Path, required=True, help="where its output goes")
    parser.add_argument("--model", required=True, help="the model's name on the server")
    parser.add_argument("command", nargs="+", help="after --: vllm serve and its arguments")
    options = parser.parse_args()
    served = Served(options.command, options.log)
    signal.signal(signal.SIGTERM, lambda *_: leave(served, 0, grace_s=0.0))
    watch_input(served)
    if wait_healthy(served, options.port):
        base_url = f"http://127.0.0.1:{options.port}/v1"
        print(json.dumps({"port": options.port, "base_url": base_url, "model": options.model}), flush=True)
    code = served.wait()
    print("\n".join(why(served.lines())), file=sys.stderr, flush=True)
    leave(served, code if code > 0 else 1, grace_s=0.0)


if __name__ == "__main__":
    main()
