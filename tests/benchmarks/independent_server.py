"""A small OpenAI-compatible server with a synthetic, learnable task: the one world that every benchmarked system is measured in.

Standard library only, and nothing of flashevolve_lab: the capacity is enforced and the busy time is counted here, whoever asks.
One rule a change must keep: answer and latency are a pure function of (seed, request), so that two systems that send the same
requests see the same world, in whatever order they send them.

The task: example i needs rule i mod n. A rollout (any other model name) is right iff the system prompt holds "RULE-<i mod n>.". A
reflection (model name with "reflect") reads the rules that the feedback asks for and, with probability ``--p-improve``, returns the
prompt of the first fenced block with ONE of them added; otherwise with one rule fewer. A patch (model name with "patch") unites the
rules of all fenced blocks; asked about several revisions ("Revision 1:" …), it first decides on each: patch, or discard when the last
block (the current version) has all its rules.

    python independent_server.py --port 0 --slots 64      prints {"port": …} and serves on 127.0.0.1 until its stdin closes

POST /v1/chat/completions   GET /v1/models
POST /reset {"seed": 3}     forget all counts (wait for `in_service` 0 first); optional new seed
GET /stats                  counts since the reset; `first` is the first arrival; `area` is slot-seconds of service so far, `record` samples of it every 0.1 s as
                            [seconds, area], `reflections` the [arrival, end of service] of each
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import math
import random
import re
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

SEED_PROMPT = "Answer the question. Follow these rules: "
SAMPLE_S = 0.1
_RULE = re.compile(r"RULE-(\d+)\.")
_WANTED = re.compile(r"required rule is RULE-(\d+)\.")
_REVISION = re.compile(r"^Revision \d+:$", re.MULTILINE)
_NEEDED = re.compile(r"needs rule (\d+)")

Message = Mapping[str, str]


# --- the task, for the drivers --------------------------------------------------------------------------------------------


def examples(n: int, start: int = 0, rules: int = 100) -> list[dict[str, Any]]:
    """``n`` examples numbered from ``start``."""
    return [{"input": f"Question {i}: this item needs rule {i % rules}", "rule": i % rules} for i in range(start, start + n)]


def messages_for(prompt: str, example: Mapping[str, Any]) -> list[dict[str, str]]:
    """A rollout's request."""
    return [{"role": "system", "content": prompt}, {"role": "user", "content": example["input"]}]


def judged(example: Mapping[str, Any], output: str) -> tuple[float, str]:
    """Score and feedback of an answer."""
    if output == f"ANSWER {example['rule']}":
        return 1.0, "Correct."
    return 0.0, f"Wrong. The required rule is RULE-{example['rule']}."


# --- the world: pure ------------------------------------------------------------------------------------------------------


def kind_of(model: str) -> str:
    """What a model's name stands for."""
    return "patch" if "patch" in model else "reflect" if "reflect" in model else "task"


def answer(settings: argparse.Namespace, model: str, messages: Sequence[Message]) -> tuple[str, float]:
    """Reply text and seconds of service."""
    kind = kind_of(model)
    full = "\n".join(f"{m['role']}:{m['content']}" for m in messages)
    key = f"{settings.seed}|{kind}|{full}".encode("utf-8", "surrogatepass")
    draw = random.Random(hashlib.blake2b(key, digest_size=8).digest())
    text = _TEXT[kind](settings, messages, full, draw)
    mean, sigma = (settings.task_s, settings.task_sigma) if kind == "task" else (settings.reflect_s, settings.reflect_sigma)
    return text, draw.lognormvariate(math.log(mean) - sigma * sigma / 2, sigma) if mean > 0 else 0.0


def _rollout(settings: argparse.Namespace, messages: Sequence[Message], full: str, draw: random.Random) -> str:
    system = "".join(m["content"] for m in messages if m["role"] == "system")
    needed = _NEEDED.search("".join(m["content"] for m in messages if m["role"] == "user"))
    rule = needed[1] if needed else ""
    return f"ANSWER {rule}" if rule in _RULE.findall(system) else "I do not know"


def _reflection(settings: argparse.Namespace, messages: Sequence[Message], full: str, draw: random.Random) -> str:
    wanted = {int(n) for n in _WANTED.findall(full)}
    rules = {int(n) for n in _RULE.findall(next(iter(_blocks(full)), ""))}
    if wanted and draw.random() < settings.p_improve:
        rules.add(draw.choice(sorted(wanted - rules or wanted)))
    elif rules:
        rules.remove(draw.choice(sorted(rules)))
    return _fenced("Here is the improved instruction.", rules, draw)


def _patch(settings: argparse.Namespace, messages: Sequence[Message], full: str, draw: random.Random) -> str:
    rules = {int(n) for block in _blocks(full) for n in _RULE.findall(block)}
    if rules and draw.random() >= settings.p_patch:
        rules.remove(draw.choice(sorted(rules)))
    remark = "Both instructions, united."
    if (count := len(_REVISION.findall(full))) > 1:  # several revisions, then the current version: a line of verdict for each
        of = [{int(n) for n in _RULE.findall(block)} for block in _blocks(full)]
        fresh = [revision - of[-1] for revision in of[:count]]
        verdicts = [f"DECISION {n}: {'patch' if new else 'discard'}\nREASON {n}: {len(new)} new rules" for n, new in enumerate(fresh, 1)]
        remark = "\n".join(verdicts)
        if not any(fresh):
            return remark
    return _fenced(remark, rules, draw)


def _blocks(text: str) -> list[str]:
    return text.split("```")[1::2]


def _fenced(remark: str, rules: set[int], draw: random.Random) -> str:
    marks = " ".join(f"RULE-{rule}." for rule in sorted(rules))
    return f"{remark}\n```\nAnswer the question (variant {draw.getrandbits(32):08x}). Follow these rules: {marks}\n```"


_TEXT = {"task": _rollout, "reflect": _reflection, "patch": _patch}


# --- the counts -----------------------------------------------------------------------------------------------------------


class Meter:
    """What is in service, and what was served, since the last reset."""

    def __init__(self) -> None:
        self.in_service = 0
        self.waiting = 0
        self.reset()

    def reset(self) -> None:
        """Forget everything but what is in service."""
        self.began = self._moved = time.monotonic()
        self.area = 0.0
        self.peak = 0
        self.first: float | None = None
        self.calls = {"task": 0, "reflect": 0, "patch": 0}
        self.busy = {"task": 0.0, "reflect": 0.0, "patch": 0.0}
        self.tokens = {"prompt": 0, "completion": 0}
        self.reflections: list[list[float]] = []
        self.record: list[tuple[float, float]] = [(0.0, 0.0)]

    def move(self, change: int) -> None:
        """Service begins (+1), ends (-1), or is only looked at (0)."""
        now = time.monotonic()
        self.area += self.in_service * (now - self._moved)
        self._moved = now
        self.in_service += change
        self.peak = max(self.peak, self.in_service)

    def at(self) -> float:
        """Seconds since the reset."""
        return time.monotonic() - self.began

    def sample(self) -> None:
        """Add one point to the record."""
        self.move(0)
        self.record.append((round(self._moved - self.began, 4), round(self.area, 4)))

    def stats(self) -> dict[str, Any]:
        """All of it, as JSON."""
        self.sample()
        names = ("in_service", "waiting", "first", "area", "peak", "calls", "busy", "tokens", "reflections", "record")
        return {"seconds": self.at(), **{name: getattr(self, name) for name in names}}


# --- the server -----------------------------------------------------------------------------------------------------------


class Server:
    """Answers over HTTP, at most ``slots`` requests in service at once; the others wait in order of arrival."""

    def __init__(self, settings: argparse.Namespace) -> None:
        self.settings = settings
        self.meter = Meter()
        self._slots = asyncio.Semaphore(settings.slots)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One kept-alive connection."""
        gone = (asyncio.IncompleteReadError, ConnectionError)
        with contextlib.suppress(*gone), contextlib.closing(writer):
            while True:
                method, path, body = await _read(reader)
                status, reply = await self._reply(method, path, body)
                content = json.dumps(reply).encode()
                head = f"HTTP/1.1 {status} .\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
                writer.write(head.encode() + content)
                await writer.drain()

    async def _reply(self, method: str, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
        if path.endswith("/chat/completions"):
            return 200, await self._complete(json.loads(body))
        if path.endswith("/models"):
            return 200, {"object": "list", "data": [{"id": name, "object": "model"} for name in ("task", "reflect", "patch")]}
        if path == "/stats":
            return 200, self.meter.stats()
        if path == "/reset" and method == "POST":
            self.settings.seed = json.loads(body or b"{}").get("seed", self.settings.seed)
            self.meter.reset()
            return 200, {}
        return 404, {"error": {"message": f"nothing at {path}"}}

    async def _complete(self, request: dict[str, Any]) -> dict[str, Any]:
        meter, kind = self.meter, kind_of(request["model"])
        text, seconds = answer(self.settings, request["model"], request["messages"])
        prompt_tokens, completion_tokens = sum(len(m["content"]) for m in request["messages"]) // 4, len(text) // 4
        arrived = meter.at()
        meter.first = arrived if meter.first is None else meter.first
        meter.waiting += 1
        async with self._slots:
            meter.waiting -= 1
            meter.move(+1)
            began = time.monotonic()
            try:
                await asyncio.sleep(seconds)
            finally:
                meter.move(-1)
        meter.calls[kind] += 1
        meter.busy[kind] += time.monotonic() - began
        meter.tokens["prompt"] += prompt_tokens
        meter.tokens["completion"] += completion_tokens
        if kind != "task":
            meter.reflections.append([round(arrived, 4), round(meter.at(), 4)])
        return _completion(request["model"], text, prompt_tokens, completion_tokens)

    async def sample(self) -> None:
        """Keep the record going."""
        while True:
            await asyncio.sleep(SAMPLE_S)
            self.meter.sample()


async def _read(reader: asyncio.StreamReader) -> tuple[str, str, bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin1")
    line, _, fields = head.partition("\r\n")
    method, path, _ = line.split(" ", 2)
    length = re.search(r"content-length: *(\d+)", fields, re.IGNORECASE)
    return method, path, await reader.readexactly(int(length[1])) if length else b""


def _completion(model: str, text: str, prompt_tokens: int, completion_tokens: int) -> dict[str, Any]:
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}
    return {"id": "chatcmpl-0", "object": "chat.completion", "created": 0, "model": model, "choices": [choice], "usage": usage}


async def main(settings: argparse.Namespace) -> None:
    """Serve until standard input closes (so that the server never outlives who started it)."""
    server = Server(settings)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", settings.port, backlog=4096, limit=1 << 22)
    print(json.dumps({"port": listening.sockets[0].getsockname()[1]}), flush=True)
    sampling = asyncio.create_task(server.sample(), name="record")
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    sampling.cancel()
    listening.close()
    asyncio.get_running_loop().set_exception_handler(
        lambda loop, context: None
    )  # connections cut while serving: not worth a word


def settings(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--task-s", type=float, default=0.25, help="mean seconds of a rollout")
    parser.add_argument("--reflect-s", type=float, default=2.5, help="mean seconds of a reflection or patch")
    parser.add_argument("--task-sigma", type=float, default=0.6)
    parser.add_argument("--reflect-sigma", type=float, default=0.6)
    parser.add_argument("--p-improve", type=float, default=0.2)
    parser.add_argument("--p-patch", type=float, default=0.9)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    asyncio.run(main(settings()))
