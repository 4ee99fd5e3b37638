"""The simulated model server over HTTP: OpenAI-compatible, on loopback only, in a process of its own.

Owns the web routes, the child process's command line and its handle, `SimulatedServer`. What is answered, when, and how
often it fails is decided by `llm.simulator`. One rule a change must keep: a client that goes away frees its slot at
once, and the process ends with the parent that started it, however that dies.

    python -m flashevolve_lab.llm.simulated_server --port 8000      # by hand: prints {"port": …, "base_url": …}
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import json
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from aiohttp import web

from flashevolve_lab.errors import ModelError, RateLimited, SetupError
from flashevolve_lab.llm.child_server import ChildServer, start_child
from flashevolve_lab.llm.landscapes import (
    ConflictingRules,
    IndependentRules,
    Landscape,
    UnitingRules,
    content_key,
    role_of,
)
from flashevolve_lab.llm.seam import Message, Request
from flashevolve_lab.llm.simulator import LABEL, Batching, Faults, FixedLatency, Simulated, Speed, facts

MODELS = ("sim-task", "sim-reflect", "sim-patch")
DEFAULT_MAX_TOKENS = 4096
"""What a request without ``max_tokens`` may generate."""

_KINDS: Mapping[str, Callable[..., Any]] = {
    "IndependentRules": IndependentRules,
    "ConflictingRules": ConflictingRules,
    "UnitingRules": UnitingRules,
    "FixedLatency": FixedLatency,
    "Batching": Batching,
    "Faults": Faults,
}
_SIMULATED = web.AppKey("simulated", Simulated)


class SimulatedServer:
    """A running simulated model server. Made by `simulated_server`; a context manager that stops it at the end.

    Attributes:
        base_url: What an OpenAI client takes as its ``base_url``.
        landscape: What it knows: `tasks.simulated_task(server.landscape)` is the matching task.
    """

    def __init__(self, child: ChildServer, landscape: Landscape, speed: Speed) -> None:
        self._child = child
        self.landscape = landscape
        self.speed = speed
        self.base_url = child.base_url

    @property
    def port(self) -> int:
        """The TCP port on 127.0.0.1."""
        return self._child.port

    @property
    def pid(self) -> int:
        """The process id of the server."""
        return self._child.pid

    @property
    def alive(self) -> bool:
        """Whether the process is still running."""
        return self._child.alive

    def stats(self) -> dict[str, Any]:
        """The server's own truth: counts and busy seconds per role, in service and waiting (`Machine.stats`)."""
        return self._child.get("/stats")

    def reset(self) -> None:
        """Zeroes the statistics."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5.0)
        with contextlib.closing(connection):
            connection.request("POST", "/reset")
            connection.getresponse().read()

    def stop(self) -> None:
        """Ends the process; requests in service are cut off. Twice is once."""
        self._child.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = f"at {self.base_url}, pid {self.pid}" if self.alive else "stopped"
        what = f"{type(self.landscape).__name__}, {self.speed.slots} slots"
        return f"<SimulatedServer {state}; {what}; not a language model>"


def simulated_server(
    landscape: Landscape | None = None,
    *,
    speed: Speed | None = None,
    faults: Faults | None = None,
    seed: int = 0,
    port: int = 0,
    startup_s: float = 60.0,
) -> SimulatedServer:
    """Starts a simulated model server in a child process, bound to 127.0.0.1, and waits until it listens.

    Args:
        landscape, speed, faults, seed: as in `Simulated`; the built-in kinds only, since they travel as JSON.
        port: TCP port; 0 takes a free one.
        startup_s: Seconds it may take to start.

    Raises:
        SetupError: for settings that cannot travel, or when it does not start (with its last words).
    """
    here = Simulated(landscape, speed=speed, faults=faults, seed=seed)
    arguments = ["--port", str(port), "--settings", json.dumps(settings_of(here)), "--end-with-input"]
    child = start_child(__name__, arguments, name="simulated server", startup_s=startup_s)
    return SimulatedServer(child, here.landscape, here.speed)


def settings_of(simulated: Simulated) -> dict[str, Any]:
    """What makes the same `Simulated` in another process, as JSON-able values; `from_settings` is the way back.

    Raises:
        SetupError: when a part is not one of the built-in kinds.
    """
    parts = {name: facts(getattr(simulated, name)) for name in ("landscape", "speed", "faults")}
    for name, part in parts.items():
        if part["kind"] not in _KINDS:
            raise SetupError(
                f"{name}: expected one of {sorted(_KINDS)}; got {part['kind']}. "
                "A landscape of your own works in process: lab.Simulated(landscape)."
            )
    return {**parts, "seed": simulated.seed}


def from_settings(settings: Mapping[str, Any]) -> Simulated:
    """The `Simulated` of `settings_of`; what is left out has its default.

    Raises:
        SetupError: for an unknown kind or field.
    """
    parts = {name: _made(name, value) for name, value in settings.items() if name != "seed"}
    try:
        return Simulated(**parts, seed=int(settings.get("seed", 0)))
    except TypeError as error:
        raise SetupError(f"settings: expected landscape, speed, faults and seed; got {sorted(settings)}") from error


def application(simulated: Simulated) -> web.Application:
    """The web application; to be run with ``handler_cancellation=True``, which is what frees the slots."""
    app = web.Application(client_max_size=64 * 2**20)
    app[_SIMULATED] = simulated
    app.router.add_post("/v1/chat/completions", _completion)
    app.router.add_get("/v1/models", _models)
    app.router.add_get("/health", _health)
    app.router.add_get("/stats", _stats)
    app.router.add_post("/reset", _reset)
    app.router.add_get("/metrics", _metrics)
    return app


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line: serves until interrupted, or until its input ends with ``--end-with-input``."""
    parser = argparse.ArgumentParser(description=LABEL)
    parser.add_argument("--port", type=int, default=0, help="TCP port on 127.0.0.1; 0 takes a free one")
    parser.add_argument("--settings", type=json.loads, default={}, help="JSON: landscape, speed, faults, seed")
    parser.add_argument("--end-with-input", action="store_true", help="end when standard input closes")
    options = parser.parse_args(arguments)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(from_settings(options.settings), options.port, options.end_with_input))


async def _serve(simulated: Simulated, port: int, end_with_input: bool) -> None:
    runner = web.AppRunner(application(simulated), access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", port, backlog=1024)
        await site.start()
        port = runner.addresses[0][1]
        print(json.dumps({"port": port, "base_url": f"http://127.0.0.1:{port}/v1", "label": LABEL}), flush=True)
        ended = asyncio.Event()
        if end_with_input:
            _watch_input(asyncio.get_running_loop(), ended)
        await ended.wait()
    finally:
        await runner.cleanup()


def _watch_input(loop: asyncio.AbstractEventLoop, ended: asyncio.Event) -> None:
    def wait() -> None:
        while os.read(sys.stdin.fileno(), 4096):  # not sys.stdin.read(), whose lock would break a shutdown by Ctrl-C
            pass
        loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=wait, name="input-watch", daemon=True).start()


async def _completion(request: web.Request) -> web.Response:
    try:
        body = await request.json()
        asked = _asked(body)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return _problem(400, f"expected a chat completion request with messages and model; {error!r}")
    try:
        reply = await request.app[_SIMULATED].complete(asked)
    except RateLimited as error:
        wait = {} if error.retry_after_s is None else {"Retry-After": f"{error.retry_after_s:g}"}
        return _problem(429, str(error), wait)
    except ModelError as error:
        return _problem(500, str(error))
    usage = {"prompt_tokens": reply.prompt_tokens, "completion_tokens": reply.completion_tokens}
    message = {"role": "assistant", "content": reply.text}
    return web.json_response(
        {
            "id": f"simulated-{content_key(asked.role, asked.messages)}",
            "object": "chat.completion",
            "created": 0,
            "model": body["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": reply.finish, "logprobs": None}],
            "usage": {**usage, "total_tokens": sum(usage.values())},
        }
    )


def _asked(body: Mapping[str, Any]) -> Request:
    if not body["messages"]:
        raise ValueError("messages is empty")
    if body.get("stream"):
        raise ValueError("stream is not supported: set it to false")
    limit = int(body.get("max_tokens") or body.get("max_completion_tokens") or DEFAULT_MAX_TOKENS)
    if limit < 1:
        raise ValueError(f"max_tokens is {limit}, and must be at least 1")
    constraint = body.get("structured_outputs") or {}
    return Request(
        messages=tuple(map(_message, body["messages"])),
        max_tokens=limit,
        role=role_of(str(body["model"])),
        choices=tuple(constraint.get("choice") or body.get("guided_choice") or ()),
        priority=float(body.get("priority") or 0.0),
    )


def _message(message: Mapping[str, Any]) -> Message:
    """A message as plain text: OpenAI also allows a list of parts, and null."""
    content = message.get("content") or ""
    if not isinstance(content, str):
        content = "\n".join(part.get("text", "") for part in content)
    return {"role": str(message["role"]), "content": content}


async def _models(request: web.Request) -> web.Response:
    models = [{"id": name, "object": "model", "created": 0, "owned_by": LABEL} for name in MODELS]
    return web.json_response({"object": "list", "data": models})


async def _health(request: web.Request) -> web.Response:
    return web.json_response({"status": "ok", "label": LABEL})


async def _stats(request: web.Request) -> web.Response:
    stats = request.app[_SIMULATED].machine().stats()
    kinds = {"rollout": _in_short(stats, "task"), "reflect": _in_short(stats, "reflection", "patch")}
    return web.json_response({"label": LABEL, **stats, **kinds})


def _in_short(stats: Mapping[str, Any], *roles: str) -> dict[str, float]:
    """Some roles together, in the words of the reference benchmark, so that it can measure others on this server."""
    counts = [stats["roles"][role] for role in roles]
    words = {"n": "arrived", "busy": "busy_s", "cur": "in_service", "max": "max_in_service"}
    return {word: sum(count[name] for count in counts) for word, name in words.items()}


async def _reset(request: web.Request) -> web.Response:
    request.app[_SIMULATED].machine().reset()
    return web.json_response({"ok": True})


async def _metrics(request: web.Request) -> web.Response:
    machine = request.app[_SIMULATED].machine()
    tokens = [(count.prompt_tokens, count.completion_tokens) for count in machine.counts.values()]
    values = {
        "vllm:num_requests_running": ("gauge", machine.in_service),
        "vllm:num_requests_waiting": ("gauge", machine.waiting),
        "vllm:prompt_tokens_total": ("counter", sum(asked for asked, _ in tokens)),
        "vllm:generation_tokens_total": ("counter", sum(said for _, said in tokens)),
    }
    label = '{model_name="simulated"}'
    lines = [f"# TYPE {name} {kind}\n{name}{label} {float(value)}" for name, (kind, value) in values.items()]
    return web.Response(text="\n".join(lines) + "\n", content_type="text/plain")


def _problem(status: int, message: str, headers: Mapping[str, str] | None = None) -> web.Response:
    error = {"message": message, "type": "simulated_error", "param": None, "code": status}
    return web.json_response({"error": error}, status=status, headers=headers)


def _made(name: str, value: Any) -> Any:
    """A settings object from its facts."""
    fields = dict(value)
    kind = fields.pop("kind", None)
    if kind not in _KINDS:
        raise SetupError(f"{name}: expected a kind among {sorted(_KINDS)}; got {kind!r}")
    try:
        return _KINDS[kind](**fields)
    except TypeError as error:
        raise SetupError(f"{name}: {kind} does not take these fields: {error}") from error


if __name__ == "__main__":
    main()
