"""`vllm`: a vLLM server in one call, started here or running already, with its metrics in the run.

Owns the command line of `vllm serve`, finding its executable, and `VLLM`, the model it gives back. The process is
`llm.vllm_child`'s, the calls are `llm.openai`'s. One rule a change must keep: a key travels in the environment, never in an
argument, a log or a message.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self
from urllib.parse import urlsplit

from flashevolve_lab.errors import BadReply, SetupError
from flashevolve_lab.llm import metrics
from flashevolve_lab.llm.child_server import ChildServer, start_child
from flashevolve_lab.llm.openai import SECRET, OpenAI

DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {"scheduling-policy": "priority", "enable-prefix-caching": True, "disable-uvicorn-access-log": True}
)
"""Arguments of `vllm serve` unless told otherwise: work nearest to a commit first, and prompts that begin alike are read once."""
_OURS = {
    "api-key": "pass api_key=… (an argument would be seen in the list of processes)",
    "hf-token": "set the environment variable HF_TOKEN, or pass environment={'HF_TOKEN': …}",
    "host": "it serves on loopback only",
    "port": "pass port=…",
    "model": "it is the first argument",
}
LOOK_S = 10.0  # a running server may take to answer
END_S = 10.0  # vLLM may take to end by itself


@dataclass(frozen=True, slots=True)
class Started:
    """A server that was started here. ``args``: of `vllm serve`; ``stop_with_run``: it ends with the first run that used it."""

    child: ChildServer
    log: Path
    args: Mapping[str, Any]
    stop_with_run: bool = False


class VLLM(OpenAI):
    """A model on a vLLM server. Use it like `OpenAI`; what the server tells of its load goes into the log of every run.

    Made by `vllm`. A server that was started ends with `close` (also as a context manager), with this Python process however
    that ends, or with the first run that ends (``stop_with_run``); one that was running already is left alone.

    Attributes:
        base_url, model: As for `OpenAI`.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        started: Started | None = None,
        api_key: str = "none",
        priority: bool = False,
        timeout_s: float = 600.0,
        price: tuple[float, float] | None = None,
        context_tokens: int | None = None,
        extra_body: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(
            base_url,
            model,
            api_key=api_key,
            timeout_s=timeout_s,
            price=price,
            context_tokens=context_tokens,
            extra_body=extra_body,
            metrics=True,
            priority=priority,
        )
        self._started = started

    @property
    def log(self) -> Path | None:
        """The file with the server's output, if it was started here."""
        return None if self._started is None else self._started.log

    @property
    def alive(self) -> bool | None:
        """Whether the started server's process runs; None for a server of somebody else's."""
        return None if self._started is None else self._started.child.alive

    def describe(self) -> dict[str, Any]:
        """Kind, address, model and the arguments it was started with; no key."""
        own = {"started": True, "args": dict(self._started.args)} if self._started else {"started": False}
        return {**super().describe(), "kind": "vllm", **own}

    async def check(self) -> None:
        """As for `OpenAI`; a started server that has ended says why."""
        if self._started is not None and not self._started.child.alive:
            raise SetupError(f"the vLLM server has ended; start it again with lab.vllm(…). {self._last_words(self._started)}")
        await super().check()

    def run_ended(self) -> None:
        """A run that used the model has ended (see `LLM`)."""
        if self._started is not None and self._started.stop_with_run:
            self.close()

    def close(self) -> None:
        """Ends a server that was started here; what it is generating is lost. Twice is once; another's is left alone."""
        if self._started is not None:
            self._started.child.stop(grace_s=END_S)

    stop = close

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._started is None:
            return f"<VLLM {self.model} at {self.base_url}, running elsewhere>"
        child = self._started.child
        state = f"serving at {self.base_url} (pid {child.pid})" if child.alive else "stopped"
        return f"<VLLM {self.model}, {state}>"

    def _last_words(self, started: Started) -> str:
        return _without(self._key, f"Its last words:\n{started.child.last_words()}\n(all it said: {started.log})")


def vllm(
    model: str | os.PathLike[str] | None = None,
    *,
    base_url: str | None = None,
    args: Mapping[str, Any] | None = None,
    port: int = 0,
    executable: str | os.PathLike[str] | None = None,
    environment: Mapping[str, str] | None = None,
    api_key: str | None = None,
    priority: bool | None = None,
    startup_s: float = 900.0,
    stop_with_run: bool = False,
    log: str | os.PathLike[str] | None = None,
    progress: Callable[[str], None] | None = print,
    timeout_s: float = 600.0,
    price: tuple[float, float] | None = None,
    context_tokens: int | None = None,
    extra_body: Mapping[str, Any] | None = None,
) -> VLLM:
    """A model on vLLM: starts ``vllm serve MODEL`` on loopback and waits until it is healthy, or uses a running server.

    A started server ends with `VLLM.close`, with this Python process however that ends, or with a run. Requests carry the run's
    priorities (work nearest to a commit goes first inside the server too) and the server's load goes into the run.

    Args:
        model: A name on a hub, or a folder. With ``base_url``: its name there, by default the first that the server lists.
        base_url: A vLLM that runs already, like ``"http://localhost:8000"``. It is not started, stopped or configured.
        args: Arguments of `vllm serve` by name (``-`` or ``_``): ``{"max-model-len": 4096, "enforce-eager": True}``. True and
            False are switches (``--x``, ``--no-x``), None takes a default of ours away, a list is several values, a mapping is
            JSON. Ours: `DEFAULTS`.
        port: TCP port on loopback; 0 takes a free one.
        executable: Of vLLM; by default `vllm` beside this Python, then on the PATH. It may belong to another environment.
        environment: Further environment variables for it, e.g. ``{"CUDA_VISIBLE_DEVICES": "1"}``.
        api_key: A key that the server is to ask for (started), or asks for (running); by default from ``VLLM_API_KEY``.
        priority: Whether to send priorities; by default if it was started with ``scheduling-policy`` priority. For a running
            server say True if it was: others refuse requests that carry one.
        startup_s: Seconds it may take to load the model.
        stop_with_run: End the started server once the first run that used it has ended.
        log: Where its output goes; by default a file of its own in the temporary folder.
        progress: Told in words, every few seconds, how the start goes; None for silence.
        timeout_s, price, context_tokens, extra_body: As for `OpenAI`.

    Raises:
        SetupError: vLLM is not installed, an argument is wrong, the server ended at its start or took too long (with what it said
            last), or nothing that tells vLLM's metrics runs at ``base_url``.
    """
    key = api_key or os.environ.get("VLLM_API_KEY") or ""
    made = partial(
        VLLM,
        api_key=key or "none",
        timeout_s=timeout_s,
        price=price,
        context_tokens=context_tokens,
        extra_body=extra_body,
    )
    if base_url is not None:
        _refuse_for_a_running_server(args=args, port=port, executable=executable, log=log, stop_with_run=stop_with_run)
        url = _with_v1(base_url)
        return made(url, _running(url, None if model is None else str(model), key), priority=bool(priority))
    if model is None:
        raise SetupError("vllm(model): expected a model's name or folder, or base_url=… of a running server; got neither")
    given = arguments(model, args)
    name = str(_first(given.get("served-model-name"), model))
    port = port or _free_port()
    command = [found(executable), "serve", str(model), "--host", "127.0.0.1", "--port", str(port), *command_line(given)]
    place = _log_file(log)
    child = _started(command, name, port, place, startup_s, _environment(environment, key), _telling(name, progress), key)
    by_priority = given.get("scheduling-policy") == "priority" if priority is None else priority
    return made(child.base_url, name, priority=by_priority, started=Started(child, place, given, stop_with_run))


def arguments(model: str | os.PathLike[str], args: Mapping[str, Any] | None) -> dict[str, Any]:
    """The defaults with a caller's arguments over them, by their names on the command line.

    Raises:
        SetupError: they are no mapping, or name what is set otherwise.
    """
    if not isinstance(args, Mapping | None):
        raise SetupError(f"vllm(args=…): expected a mapping like {{'max-model-len': 4096}}; got {args!r}")
    given: dict[str, Any] = dict(DEFAULTS)
    if Path(model).is_dir():
        given["served-model-name"] = Path(model).resolve().name
    for written, value in (args or {}).items():
        name = str(written).lstrip("-").replace("_", "-")
        if name in _OURS:
            raise SetupError(f"vllm(args=…): not {name!r} here: {_OURS[name]}")
        if name.startswith("no-") and value is True:
            name, value = name.removeprefix("no-"), False
        given[name] = value
    return {name: value for name, value in given.items() if value is not None}


def command_line(given: Mapping[str, Any]) -> list[str]:
    """Arguments as `vllm serve` takes them."""
    words: list[str] = []
    for name, value in given.items():
        if isinstance(value, bool):
            words.append(f"--{name}" if value else f"--no-{name}")
        elif isinstance(value, Mapping):
            words += [f"--{name}", json.dumps(value)]
        elif isinstance(value, list | tuple):
            words += [f"--{name}", *map(str, value)]
        else:
            words += [f"--{name}", str(value)]
    return words


def found(executable: str | os.PathLike[str] | None) -> str:
    """The path of vLLM's executable: the given one, else the one beside this Python, else the one on the PATH.

    Raises:
        SetupError: there is none.
    """
    if executable is not None:
        if path := shutil.which(str(Path(executable).expanduser())):
            return path
        raise SetupError(f"vllm(executable=…): no program is at {executable}")
    beside = Path(sys.executable).with_name("vllm")
    if path := shutil.which(str(beside)) or shutil.which("vllm"):
        return path
    raise SetupError(
        "vLLM is not installed here: no program `vllm` is beside this Python or on the PATH. Run: pip install 'flashevolve-lab[vllm]', "
        "or give executable='/path/to/another/environment/bin/vllm', or base_url='http://…' of a server that runs already"
    )


def _started(
    command: list[str],
    name: str,
    port: int,
    log: Path,
    startup_s: float,
    environment: Mapping[str, str],
    waiting: Callable[[float, str], None] | None,
    key: str,
) -> ChildServer:
    ours = ["--port", str(port), "--log", str(log), "--model", name, "--", *command]
    try:
        return start_child(
            "flashevolve_lab.llm.vllm_child", ours, name="vLLM", startup_s=startup_s, environment=environment, waiting=waiting
        )
    except SetupError as error:
        raise SetupError(f"{_without(key, str(error))}\n(all it said: {log})") from None


def _environment(environment: Mapping[str, str] | None, key: str) -> dict[str, str]:
    return {**{str(k): str(v) for k, v in (environment or {}).items()}, **({"VLLM_API_KEY": key} if key else {})}


def _telling(name: str, progress: Callable[[str], None] | None) -> Callable[[float, str], None] | None:
    if progress is None:
        return None
    return lambda seconds, last: progress(f"vLLM is loading {name}, {seconds:.0f} s so far{f': {last[:120]}' if last else ''}")


def _log_file(log: str | os.PathLike[str] | None) -> Path:
    if log is not None:
        place = Path(log).expanduser().resolve()
        place.parent.mkdir(parents=True, exist_ok=True)
        return place
    handle, path = tempfile.mkstemp(prefix="vllm-", suffix=".log")
    os.close(handle)
    return Path(path)


def _free_port() -> int:
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# --- a server that runs already -------------------------------------------------------------------------------------------


def _refuse_for_a_running_server(**given: Any) -> None:
    named = [name for name, value in given.items() if value]
    if named:
        raise SetupError(f"vllm(base_url=…): that server runs already, so {', '.join(named)} cannot be set here")


def _with_v1(base_url: str) -> str:
    parts = urlsplit(str(base_url))
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SetupError(f"vllm(base_url=…): expected a URL like 'http://localhost:8000'; got {base_url!r}")
    if parts.username or parts.query:
        raise SetupError("vllm(base_url=…): expected an address without a user name or a query; pass a key as api_key=…")
    return str(base_url).rstrip("/").removesuffix("/v1") + "/v1"


def _running(url: str, model: str | None, key: str) -> str:
    """The model's name on a running server, which tells vLLM's metrics."""
    page = _page(url.removesuffix("/v1") + "/metrics", key)
    try:
        metrics.seen(page)
    except BadReply:
        raise SetupError(
            f"{url.removesuffix('/v1')}/metrics tells no vLLM metrics: is it a vLLM? For any other server use "
            f"lab.OpenAI({url!r}, model=…)"
        ) from None
    if model is not None:
        return model
    listed = _page(f"{url}/models", key)
    try:
        return str(json.loads(listed)["data"][0]["id"])
    except (ValueError, KeyError, IndexError, TypeError):
        raise SetupError(f"{url}/models lists no model: say which, vllm('NAME', base_url=…)") from None


def _page(url: str, key: str) -> str:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"} if key else {})
    try:
        with urllib.request.urlopen(request, timeout=LOOK_S) as answer:
            return str(answer.read().decode("utf-8", "replace"))
    except urllib.error.HTTPError as error:
        error.close()
        if error.code in (401, 403):
            raise SetupError(f"{url} refuses the key: pass api_key=… or set VLLM_API_KEY") from None
        raise SetupError(f"{url} answers {error.code}: is it a vLLM?") from None
    except (OSError, ValueError) as error:
        raise SetupError(f"no server answers at {url}: start it, or correct base_url=… ({_without(key, str(error))})") from None


def _first(names: Any, model: str | os.PathLike[str]) -> Any:
    """The name that the server gives the model."""
    if isinstance(names, list | tuple):
        return names[0] if names else model
    return model if names is None else names


def _without(key: str, message: str) -> str:
    return message.replace(key, "[key]") if len(key) >= SECRET else message
