"""A small OpenAI-compatible chat server for one real model on this machine's CPU.

Owns the HTTP side, the thread that drives openvino-genai's continuous batching, and the life of the process: it prints
one JSON line with its port when ready and ends when its standard input closes. One rule a change must keep: only the
batching thread touches the pipeline, and an answer nobody waits for any more stops generating at the next step.

    python -m flashevolve_lab.llm.local_server --model PATH --port 0
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import os
import queue
import secrets
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any

from aiohttp import web

DEFAULT_MAX_TOKENS, CACHE_GB = 256, 1
UNSUPPORTED = ("stream", "tools", "logprobs", "guided_json", "guided_regex", "guided_grammar")


class BadRequest(ValueError):
    """A request this server cannot serve; the message says what to change."""


@dataclass(frozen=True, slots=True)
class Order:
    """What to generate.

    Attributes:
        messages: Chat messages, each with ``role`` and a text ``content``.
        max_tokens: Upper bound of the answer, in tokens; None: `DEFAULT_MAX_TOKENS` or what fits.
        temperature: 0 is greedy; above, sampling from the nucleus ``top_p`` with ``seed``.
        choices: When not empty, the answer is exactly one of these. ``stop``: texts that end it.
    """

    messages: tuple[dict[str, str], ...]
    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0
    choices: tuple[str, ...] = ()
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """A generated text, why it ended (``"stop"`` or ``"length"``), and its tokens by the model's own tokenizer."""

    text: str
    finish: str
    prompt_tokens: int
    completion_tokens: int


@dataclass(slots=True)
class Stats:
    """Since the start: requests by how they ended, tokens of the finished ones, steps of the pipeline."""

    served: int = 0
    cancelled: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    steps: int = 0


@dataclass(frozen=True, slots=True)
class Seat:
    """One sequence in the pipeline: its handle, who waits for it, its prompt's size in tokens."""

    handle: Any
    future: Future[Answer]
    prompt_tokens: int


class Batcher:
    """The thread that owns the pipeline. ``submit`` from anywhere; cancelling the future ends the generation."""

    def __init__(self, build: Callable[[], Any], genai: Any, *, context: int) -> None:
        self.stats = Stats()
        self._build, self._genai, self._context = build, genai, context
        self._pipeline = build()
        self._inbox: queue.Queue[tuple[Order, Future[Answer]] | None] = queue.Queue()
        self._seats: list[Seat] = []
        self._count = 0
        self._open = True
        self._thread = threading.Thread(target=self._run, name="batcher", daemon=True)
        self._thread.start()

    @property
    def in_flight(self) -> int:
        """Requests accepted and not yet answered, dropped or failed."""
        return len(self._seats) + self._inbox.qsize()

    def submit(self, order: Order) -> Future[Answer]:
        """A future of the answer. Fails with `BadRequest` when the order does not fit the model's context."""
        future: Future[Answer] = Future()
        self._inbox.put((order, future))
        return future

    def close(self, timeout_s: float) -> None:
        """Drops what is in flight and ends the thread, waiting at most ``timeout_s`` seconds for the current step."""
        self._open = False
        self._inbox.put(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while self._open:
            self._admit()
            self._drop_unwanted()
            self._step()
            self._settle()

    def _admit(self) -> None:
        """Takes what waits; blocks only when nothing is being generated."""
        first = not self._seats
        while first or not self._inbox.empty():
            taken, first = self._inbox.get(), False
            if taken is not None and not taken[1].cancelled():
                self._seat(*taken)

    def _seat(self, order: Order, future: Future[Answer]) -> None:
        try:
            self._seats.append(self._seated(order, future))
        except BadRequest as error:
            self._fail(future, error)
        except Exception as error:  # a foreign library's: it fails this one request, never the thread
            self._fail(future, RuntimeError(str(error)))

    def _seated(self, order: Order, future: Future[Answer]) -> Seat:
        tokenizer = self._pipeline.get_tokenizer()
        prompt = tokenizer.apply_chat_template(list(order.messages), add_generation_prompt=True)
        ids = tokenizer.encode(prompt, add_special_tokens=False).input_ids
        size = int(ids.shape[1])
        config = generation_config(self._genai, order, room=self._context - size)
        self._count += 1
        return Seat(self._pipeline.add_request(self._count, ids, config), future, size)

    def _drop_unwanted(self) -> None:
        for seat in [s for s in self._seats if s.future.cancelled()]:
            seat.handle.cancel()
            self._seats.remove(seat)
            self.stats.cancelled += 1

    def _step(self) -> None:
        """One token for every sequence. After an error the pipeline cannot be used again: fail all, build a new one."""
        try:
            if self._pipeline.has_non_finished_requests():
                self._pipeline.step()
                self.stats.steps += 1
        except RuntimeError as error:
            for seat in self._seats:
                self._fail(seat.future, error)
            self._seats.clear()
            self._pipeline = self._build()

    def _settle(self) -> None:
        status = self._genai.GenerationStatus
        done = [s for s in self._seats if s.handle.get_status() != status.RUNNING]
        for seat in done:
            self._seats.remove(seat)
            if seat.handle.get_status() == status.FINISHED:
                self._deliver(seat)
            else:
                self._fail(seat.future, RuntimeError("dropped by the pipeline: its key-value cache is too small"))

    def _deliver(self, seat: Seat) -> None:
        output = seat.handle.read_all()[0]
        text = self._pipeline.get_tokenizer().decode(output.generated_ids)
        finish = "length" if output.finish_reason == self._genai.GenerationFinishReason.LENGTH else "stop"
        answer = Answer(text, finish, seat.prompt_tokens, len(output.generated_ids))
        self.stats.prompt_tokens += answer.prompt_tokens
        self.stats.completion_tokens += answer.completion_tokens
        if seat.future.set_running_or_notify_cancel():
            self.stats.served += 1
            seat.future.set_result(answer)
        else:
            self.stats.cancelled += 1

    def _fail(self, future: Future[Answer], error: Exception) -> None:
        self.stats.failed += 1
        if future.set_running_or_notify_cancel():
            future.set_exception(error)


def generation_config(genai: Any, order: Order, *, room: int) -> Any:
    """openvino-genai's configuration for an order, with ``room`` tokens left in the context after the prompt.

    Raises:
        BadRequest: when prompt and answer together exceed the context.
    """
    max_tokens = order.max_tokens or min(DEFAULT_MAX_TOKENS, room)
    if room < 1 or max_tokens > room:
        raise BadRequest(f"the prompt leaves room for {max(0, room)} tokens, max_tokens is {max_tokens}: shorten one")
    config = genai.GenerationConfig(max_new_tokens=max_tokens)
    config.apply_chat_template = False
    config.do_sample = order.temperature > 0
    if config.do_sample:
        config.temperature, config.top_p, config.rng_seed = order.temperature, order.top_p, order.seed
    if order.stop:
        config.stop_strings = set(order.stop)
    if order.choices:
        structured = genai.StructuredOutputConfig
        words = reduce(or_, [structured.ConstString(choice) for choice in order.choices])
        config.structured_output_config = structured(compound_grammar=words)
    return config


def order_from(body: Any) -> Order:
    """The order in the JSON body of a chat request.

    Raises:
        BadRequest: for anything missing, of the wrong type, or unsupported.
    """
    if not isinstance(body, Mapping):
        raise BadRequest(f"expected a JSON object, got {type(body).__name__}")
    _refuse_unsupported(body)
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequest("messages: expected a list of at least one {role, content}")
    return Order(
        messages=tuple(_message(message) for message in messages),
        max_tokens=_max_tokens(body),
        temperature=_number(body, "temperature", 1.0, low=0.0, high=2.0),
        top_p=_number(body, "top_p", 1.0, low=1e-6, high=1.0),
        seed=int(_number(body, "seed", secrets.randbits(31), low=0, high=2**63)),
        choices=_choices(body),
        stop=_texts("stop", body.get("stop")),
    )


def _refuse_unsupported(body: Mapping[str, Any]) -> None:
    asked = [key for key in UNSUPPORTED if body.get(key)] + ["n > 1"] * (body.get("n") not in (None, 1))
    if (body.get("response_format") or {}).get("type", "text") != "text":
        asked.append("response_format")
    if asked:
        raise BadRequest(f"unsupported here: {', '.join(asked)}. Constrain answers with {{'choices': ['yes', 'no']}}")


def _message(message: Any) -> dict[str, str]:
    content = message.get("content") if isinstance(message, Mapping) else None
    if isinstance(content, list):
        content = "".join(part.get("text", "") for part in content if isinstance(part, Mapping))
    if not isinstance(content, str):
        raise BadRequest("messages: each one needs a role and a text content")
    return {"role": str(message.get("role", "user")), "content": content.encode("utf-8", "replace").decode("utf-8")}


def _max_tokens(body: Mapping[str, Any]) -> int | None:
    key = "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
    return None if body.get(key) is None else int(_number(body, key, 1, low=1, high=2**31))


def _number(body: Mapping[str, Any], key: str, default: float, *, low: float, high: float) -> float:
    value = body.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise BadRequest(f"{key}: expected a number from {low:g} to {high:g}, got {value!r}")
    return value


def _choices(body: Mapping[str, Any]) -> tuple[str, ...]:
    structured = body.get("structured_outputs") or {}
    if not isinstance(structured, Mapping) or set(structured) - {"choice"}:
        raise BadRequest("structured_outputs: only {'choice': [text, …]} is supported here")
    given = [body.get("choices"), body.get("guided_choice"), structured.get("choice")]
    return next((_texts("choices", texts) for texts in given if texts is not None), ())


def _texts(key: str, value: Any) -> tuple[str, ...]:
    value = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(value, list) or not all(isinstance(text, str) and text for text in value):
        raise BadRequest(f"{key}: expected a list of texts that are not empty")
    return tuple(value)


class ChatApp:
    """The HTTP side: four routes over a `Batcher`."""

    def __init__(self, batcher: Batcher, model: str) -> None:
        self._batcher, self._model = batcher, model
        self.app = web.Application(client_max_size=16 * 2**20)
        self.app.router.add_post("/v1/chat/completions", self.chat)
        self.app.router.add_get("/v1/models", self.models)
        self.app.router.add_get("/health", self.health)
        self.app.router.add_get("/stats", self.show_stats)

    async def chat(self, request: web.Request) -> web.Response:
        """One chat completion. When the client goes away aiohttp cancels this handler, and with it the future."""
        try:
            body = await request.json()
            order = order_from(body)
            self._check_model(body)
            answer = await asyncio.wrap_future(self._batcher.submit(order))
        except (BadRequest, json.JSONDecodeError) as error:
            return _error(400, "invalid_request_error", str(error))
        except RuntimeError as error:
            return _error(500, "server_error", f"the pipeline failed: {error}")
        return web.json_response(self._completion(answer))

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": self._model, "object": "model"}]})

    async def health(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "ok", "model": self._model})

    async def show_stats(self, request: web.Request) -> web.Response:
        return web.json_response({"in_flight": self._batcher.in_flight, **asdict(self._batcher.stats)})

    def _check_model(self, body: Mapping[str, Any]) -> None:
        if body.get("model") not in (None, "", self._model):
            raise BadRequest(f"model: this server has {self._model!r}, got {body['model']!r}")

    def _completion(self, answer: Answer) -> dict[str, Any]:
        choice = {"index": 0, "message": {"role": "assistant", "content": answer.text}, "finish_reason": answer.finish}
        usage = {"prompt_tokens": answer.prompt_tokens, "completion_tokens": answer.completion_tokens}
        return {
            "id": f"chatcmpl-{secrets.token_hex(8)}",
            "object": "chat.completion",
            "created": 0,
            "model": self._model,
            "choices": [choice],
            "usage": {**usage, "total_tokens": sum(usage.values())},
        }


def _error(status: int, kind: str, message: str) -> web.Response:
    return web.json_response({"error": {"message": message, "type": kind, "code": status}}, status=status)


def pipeline_builder(genai: Any, model: str, *, slots: int) -> Callable[[], Any]:
    """A function that loads the model: at most ``slots`` sequences at once, `CACHE_GB` of key-value cache."""

    def build() -> Any:
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size, scheduler.max_num_seqs, scheduler.enable_prefix_caching = CACHE_GB, slots, True
        return genai.ContinuousBatchingPipeline(model, scheduler, "CPU")

    return build


async def serve(batcher: Batcher, model: str, port: int) -> None:
    """Serves on loopback until standard input closes; prints the JSON line when ready. ``port`` 0 takes a free one."""
    app = ChatApp(batcher, model).app
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    port = runner.addresses[0][1]
    print(json.dumps({"port": port, "base_url": f"http://127.0.0.1:{port}/v1", "model": model}), flush=True)
    await input_closed()
    await runner.cleanup()


async def input_closed() -> None:
    """Returns when standard input ends. A daemon thread reads it, so that a terminal or a pipe works the same."""
    loop, closed = asyncio.get_running_loop(), asyncio.Event()

    def read() -> None:
        while sys.stdin.buffer.read(1024):
            pass
        loop.call_soon_threadsafe(closed.set)

    threading.Thread(target=read, name="stdin", daemon=True).start()
    await closed.wait()


def main() -> None:
    """The command line; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="flashevolve_lab.llm.local_server", description="Serve a small local model.")
    parser.add_argument("--model", required=True, help="a GGUF file or an OpenVINO model folder")
    parser.add_argument("--port", type=int, default=0, help="TCP port on loopback; 0 takes a free one")
    parser.add_argument("--slots", type=int, default=64, help="most sequences generated at once")
    parser.add_argument("--context", type=int, default=4096, help="most tokens of prompt and answer together")
    options = parser.parse_args()
    genai = importlib.import_module("openvino_genai")
    build = pipeline_builder(genai, options.model, slots=options.slots)
    batcher = Batcher(build, genai, context=options.context)
    asyncio.run(serve(batcher, Path(options.model).stem, options.port))
    batcher.close(timeout_s=2.0)
    os._exit(0)  # a step of the pipeline may still run: the process must not wait for it


if __name__ == "__main__":
    main()
