"""The OpenAI-compatible client against a real HTTP server on loopback: what comes back as what, and that no key gets anywhere."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

import flashevolve_lab as lab
from flashevolve_lab.errors import BadReply, ModelError, RateLimited, Refused, SetupError, Transient
from flashevolve_lab.llm import OpenAI, Reply, Request, chat
from flashevolve_lab.llm.simulator import LABEL

KEY = "sk-very-secret-0123456789"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Server:
    """A server that answers as told."""

    url: str = ""
    bodies: list[Any] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    answer: Any = None
    models: Any = None
    cut_off: asyncio.Event = field(default_factory=asyncio.Event)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    async def completions(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(json.loads(await request.text()))
        self.keys.append(request.headers.get("Authorization", ""))
        self.arrived.set()
        try:
            return await _answered(self.answer, request)
        except asyncio.CancelledError:
            self.cut_off.set()
            raise

    async def listing(self, request: web.Request) -> web.StreamResponse:
        self.keys.append(request.headers.get("Authorization", ""))
        return await _answered(self.models, request)


async def _answered(answer: Any, request: web.Request) -> web.StreamResponse:
    if callable(answer):
        return await answer(request)  # type: ignore[no-any-return]
    status, body, headers = answer if isinstance(answer, tuple) else (200, answer, {})
    if isinstance(body, bytes):
        return web.Response(status=status, body=body, headers={"Content-Type": "application/json", **headers})
    return web.json_response(body, status=status, headers=headers)


def said(text: Any = "hello", finish: Any = "stop", **changes: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    answer = {"model": "served-7b", "choices": [{"index": 0, "message": message, "finish_reason": finish}]}
    return {**answer, "usage": {"prompt_tokens": 11, "completion_tokens": 3}, **changes}


def problem(status: int, message: str = "no", **headers: str) -> tuple[int, Any, Any]:
    return status, {"error": {"message": message}}, {name.replace("_", "-"): value for name, value in headers.items()}


@asynccontextmanager
async def serving(answer: Any = None, models: Any = None) -> AsyncIterator[Server]:
    server = Server(answer=said() if answer is None else answer, models={"data": [{"id": "m"}]} if models is None else models)
    app = web.Application()
    app.router.add_post("/v1/chat/completions", server.completions)
    app.router.add_get("/v1/models", server.listing)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    try:
        yield server
    finally:
        await runner.cleanup()


def asked(answer: Any = None, *requests: Request, **options: Any) -> tuple[Any, Server]:
    """The reply, or the error, to one request (or the last of several), and the server."""

    async def work() -> tuple[Any, Server]:
        async with serving(answer) as server:
            llm = OpenAI(server.url, model="m", **options)
            result: Any = None
            try:
                for request in requests or (Request(chat("hi")),):
                    result = await llm.complete(request)
            except Exception as error:
                result = error
            finally:
                await llm.aclose()
            return result, server

    return asyncio.run(work())


def checked(models: Any, **options: Any) -> Any:
    """What `check` raised, or None."""

    async def work() -> Any:
        async with serving(models=models) as server:
            llm = OpenAI(server.url, **{"model": "m", **options})
            try:
                await llm.check()
            except Exception as error:
                return error
            finally:
                await llm.aclose()

    return asyncio.run(work())


# --- what goes out ----------------------------------------------------------------------------------------------------------


def test_a_request_is_sent_as_a_chat_completion() -> None:
    request = Request(chat("hi", system="be brief"), max_tokens=7, temperature=0.25, choices=("yes", "no"))
    _, server = asked(None, request, api_key=KEY, extra_body={"top_p": 0.5})
    [body] = server.bodies
    assert body == {
        "model": "m",
        "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}],
        "max_tokens": 7,
        "temperature": 0.25,
        "structured_outputs": {"choice": ["yes", "no"]},
        "top_p": 0.5,
    }
    assert server.keys == [f"Bearer {KEY}"]


def test_choices_are_not_sent_to_openais_own_server_which_does_not_know_them() -> None:
    request = Request(chat("hi"), choices=("yes", "no"))
    assert "structured_outputs" not in OpenAI(model="m", api_key=KEY)._body(request)
    assert "structured_outputs" in OpenAI("http://localhost:8000/v1", model="m")._body(request)


def test_what_was_not_set_is_not_sent() -> None:
    _, server = asked()
    assert set(server.bodies[0]) == {"model", "messages", "max_tokens"}


def test_odd_unicode_goes_out_and_comes_in_and_lone_surrogates_become_replacement_characters() -> None:
    odd = "\u202e\x00é🜁</script>\u2028"
    request = Request(chat(odd + "\ud800", system="\udfff" + odd), choices=("\ud83d", "b"))
    escaped = json.dumps(said("@")).replace("@", "\\ud800" + json.dumps(odd)[1:-1]).encode()
    reply, server = asked(escaped, request)
    assert [message["content"] for message in server.bodies[0]["messages"]] == ["\ufffd" + odd, odd + "\ufffd"]
    assert reply.text == "\ufffd" + odd
    reply.text.encode()


# --- what comes back --------------------------------------------------------------------------------------------------------


def test_a_reply_carries_text_finish_usage_and_model() -> None:
    assert asked()[0] == Reply("hello", "stop", 11, 3, "served-7b")


@pytest.mark.parametrize(
    ("given", "finish"), [("stop", "stop"), ("length", "length"), ("tool_calls", "unknown"), (None, "unknown")]
)
def test_the_reason_of_the_end_is_translated(given: Any, finish: str) -> None:
    assert asked(said(finish=given))[0].finish == finish


@pytest.mark.parametrize("usage", [None, {}, {"prompt_tokens": None, "completion_tokens": None}])
def test_a_server_that_does_not_count_is_no_error(usage: Any) -> None:
    reply = asked(said(usage=usage))[0]
    assert (reply.text, reply.prompt_tokens, reply.completion_tokens) == ("hello", 0, 0)


def test_an_empty_text_is_a_reply() -> None:
    assert asked(said(""))[0].text == ""


def test_a_content_filter_is_a_refusal() -> None:
    assert isinstance(asked(said("", "content_filter"))[0], Refused)


MALFORMED = {
    "broken JSON": b'{"choices": [',
    "no JSON": b"<html>busy</html>",
    "empty": b"",
    "a list": [],
    "null": b"null",
    "no choices": {"id": 1},
    "empty choices": {"choices": []},
    "null choices": {"choices": None},
    "odd choice": {"choices": ["x"]},
    "no message": {"choices": [{"finish_reason": "stop"}]},
    "null message": {"choices": [{"message": None}]},
    "null content": said(None),
    "parts": said([{"type": "text", "text": "hi"}]),
    "odd usage": said(usage={"prompt_tokens": "many"}),
    "usage list": said(usage=[1, 2]),
    "not UTF-8": b'{"choices": [{"message": {"content": "\xff\xfe"}}]}',
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_reply_that_cannot_be_used_is_a_bad_reply(case: str) -> None:
    error = asked(MALFORMED[case])[0]
    assert isinstance(error, BadReply), error
    assert str(error)


def test_a_429_is_rate_limited_and_says_how_long_to_wait() -> None:
    error = asked(problem(429, "slow down", Retry_After="7.5"))[0]
    assert isinstance(error, RateLimited)
    assert error.retry_after_s == 7.5
    assert "slow down" in str(error)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("0", 0.0), ("-3", 0.0), ("soon", None), ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0), ("nan", None), ("inf", None)],
)
def test_an_odd_retry_after_does_no_harm(header: str, seconds: float | None) -> None:
    assert asked(problem(429, Retry_After=header))[0].retry_after_s == seconds


def test_a_retry_after_may_be_a_date_and_is_reckoned_from_the_servers_clock() -> None:
    dates = {"Retry_After": "Wed, 21 Oct 2015 07:28:40 GMT", "Date": "Wed, 21 Oct 2015 07:28:00 GMT"}
    assert asked(problem(429, **dates))[0].retry_after_s == 40.0


def test_a_429_that_does_not_say_how_long_says_none() -> None:
    assert asked(problem(429))[0].retry_after_s is None


@pytest.mark.parametrize("status", [500, 502, 503, 504, 529, 408, 409])
def test_trouble_of_the_server_is_transient(status: int) -> None:
    error = asked(problem(status, "trouble"))[0]
    assert isinstance(error, Transient)
    assert str(status) in str(error) and "trouble" in str(error)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422])
def test_a_refusal_of_the_server_is_refused(status: int) -> None:
    error = asked(problem(status, "the context is too long"))[0]
    assert isinstance(error, Refused)
    assert "the context is too long" in str(error)


@pytest.mark.parametrize("status", [429, 500, 400])
def test_an_error_page_that_is_no_json_is_still_sorted_by_its_status(status: int) -> None:
    error = asked((status, b"<html>\xff nginx</html>", {"Content-Type": "text/html"}))[0]
    assert type(error) is {429: RateLimited, 500: Transient, 400: Refused}[status]


async def hang_up(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.close()
    return web.Response()


async def half(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b'{"choices": [')
    assert request.transport is not None
    request.transport.close()
    return response


async def hang(request: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    return web.Response()


@pytest.mark.parametrize("answer", [hang_up, half])
def test_a_broken_connection_is_transient(answer: Handler) -> None:
    error = asked(answer)[0]
    assert isinstance(error, Transient), error


def test_a_server_that_is_gone_is_transient() -> None:
    async def work() -> Any:
        llm = OpenAI(f"http://127.0.0.1:{free_port()}/v1", model="m")
        with pytest.raises(Transient, match="the connection to http://127.0.0.1:.* broke"):
            await llm.complete(Request(chat("hi")))
        await llm.aclose()

    asyncio.run(work())


def test_a_server_that_does_not_answer_in_time_is_transient() -> None:
    error, server = asked(hang, timeout_s=0.05)
    assert isinstance(error, Transient)
    assert "0.05 s" in str(error)
    assert len(server.bodies) == 1, "the client itself does not repeat a call"


def test_one_call_is_one_attempt_whatever_the_server_says() -> None:
    for answer in (problem(500), problem(429, Retry_After="0.01"), hang_up):
        assert len(asked(answer)[1].bodies) == 1


def test_a_cancelled_call_closes_its_connection_so_that_the_server_can_stop() -> None:
    async def work() -> None:
        async with serving(hang) as server:
            llm = OpenAI(server.url, model="m")
            call = asyncio.create_task(llm.complete(Request(chat("hi"))))
            await server.arrived.wait()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            async with asyncio.timeout(5):
                await server.cut_off.wait()
            await llm.aclose()

    asyncio.run(work())


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


# --- several loops ----------------------------------------------------------------------------------------------------------


def test_one_model_may_serve_runs_on_several_loops_at_once() -> None:
    """Each loop keeps its own connections; a second run does not take away those of the first."""

    async def work() -> None:
        async with serving() as server:
            llm = OpenAI(server.url, model="m")
            await llm.complete(Request(chat("here")))
            mine = llm._connected()

            async def there() -> str:
                try:
                    return (await llm.complete(Request(chat("there")))).text
                finally:
                    await llm.aclose()

            assert await asyncio.to_thread(asyncio.run, there()) == "hello"
            assert llm._connected() is mine
            assert (await llm.complete(Request(chat("here again")))).text == "hello"
            await llm.aclose()

    asyncio.run(work())


# --- before a run -----------------------------------------------------------------------------------------------------------


def test_a_server_that_has_the_model_passes_and_so_does_one_without_a_listing() -> None:
    assert checked({"data": [{"id": "other"}, {"id": "m"}]}) is None
    assert checked({"data": []}) is None
    assert checked(problem(404)) is None


@pytest.mark.parametrize(
    "odd", [{"data": None}, {"models": ["m"]}, [], b"null", b'"text"', {"data": ["m"]}, {"data": {"m": 1}}], ids=repr
)
def test_an_odd_listing_is_no_reason_to_refuse(odd: Any) -> None:
    assert checked(odd) is None


def test_a_context_that_the_server_tells_is_noted() -> None:
    async def work() -> int | None:
        async with serving(models={"data": [{"id": "m", "max_model_len": 4096}]}) as server:
            llm = OpenAI(server.url, model="m")
            await llm.check()
            await llm.aclose()
            return llm.context_tokens

    assert asyncio.run(work()) == 4096


UNREADY: dict[str, tuple[Any, dict[str, Any], str]] = {
    "model": ({"data": [{"id": "a"}, {"id": "b"}]}, {}, r"http://127.0.0.1:\d+/v1 has no model 'm'; it has a, b"),
    "key": (problem(401, f"bad key {KEY}"), {"api_key": KEY}, "refuses the key: set OPENAI_API_KEY or pass api_key=…"),
    "forbidden": (problem(403, f"not with {KEY}"), {"api_key": KEY}, r"answers 403: .*\[key\]"),
    "trouble": (problem(500, "down"), {}, "answers 500: .*down"),
    "busy": (problem(429, "later"), {}, "answers 429: .*later"),
    "no JSON": (b"{broken", {}, "its list of models is not JSON; is base_url=… the API's address"),
}


@pytest.mark.parametrize("case", UNREADY)
def test_a_server_that_is_not_ready_is_told_before_anything_is_spent(case: str) -> None:
    models, options, words = UNREADY[case]
    error = checked(models, **options)
    assert isinstance(error, SetupError), error
    with pytest.raises(SetupError, match=words):
        raise error


def test_a_server_that_says_it_is_simulated_is_described_so_and_another_is_not() -> None:
    async def described(owner: str) -> dict[str, Any]:
        async with serving(models={"data": [{"id": "m", "owned_by": owner}, {"id": "n", "owned_by": LABEL}]}) as server:
            llm = OpenAI(server.url, model="m")
            await llm.check()
            await llm.aclose()
            return llm.describe()

    assert "simulated" not in asyncio.run(described("vllm"))
    facts = asyncio.run(described(LABEL))
    assert (facts["simulated"], facts["label"]) == (True, LABEL)
    assert "in_process" not in facts, "it answers in real time"


def test_an_unreachable_server_stops_a_start_and_leaves_no_file(tmp_path: Path) -> None:
    land = lab.IndependentRules()
    llm = OpenAI(f"http://127.0.0.1:{free_port()}/v1", model="m")
    with pytest.raises(SetupError, match=r"no server answers at http://127.0.0.1:\d+/v1: start it, or correct base_url"):
        lab.start(lab.simulated_task(land), llm=llm, budget=lab.Budget(metric_calls=1000), folder=tmp_path / "runs")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"model": ""}, "expected the model's name"),
        ({"model": None}, "expected the model's name"),
        ({"base_url": "localhost:8000", "model": "m"}, "expected a URL like 'http://localhost:8000/v1'; got 'localhost:8000'"),
        ({"model": "m"}, r"no key\. Set the environment variable OPENAI_API_KEY, or pass api_key=…, or a base_url=…"),
    ],
)
def test_a_model_that_makes_no_sense_is_refused(arguments: Any, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(SetupError, match=words):
        OpenAI(**arguments)


# --- the key ----------------------------------------------------------------------------------------------------------------

ECHOES = {
    "429": problem(429, f"key {KEY} is over its quota"),
    "500": problem(500, f"cannot bill {KEY}"),
    "400": problem(400, f"Bearer {KEY} is odd"),
    "filter": said(KEY, "content_filter"),
    "text": said(f"your key is {KEY}"),
    "model": said(model=f"m-{KEY}"),
    "no choices": {"error": f"key {KEY}"},
    "null content": said(None, note=f"key {KEY}"),
    "broken": f'{{"key": "{KEY}"'.encode(),
    "page": (500, f"<html>{KEY}</html>".encode(), {"Content-Type": "text/html"}),
}


def told(value: Any) -> str:
    """Everything a person or a log could see of a result."""
    parts = [repr(value), str(value), str(getattr(value, "raw", ""))]
    if isinstance(value, BaseException):
        parts += traceback.format_exception(value)
    return "\n".join(parts)


@pytest.mark.parametrize("key", ["EMPTY", "x", "none", "e"])
def test_a_key_that_is_no_secret_does_not_spoil_what_a_model_says(key: str) -> None:
    text = "Extra: x is EMPTY, none else"
    assert asked(said(text, model="phi-x"), api_key=key)[0] == Reply(text, "stop", 11, 3, "phi-x")
    assert text in str(asked(problem(400, text), api_key=key)[0])


@pytest.mark.parametrize("key", ["sk-\u2019quoted-0123456789", "sk-two\nlines-0123456789"])
def test_a_key_that_http_cannot_carry_is_said_to_be_the_trouble_and_not_shown(key: str) -> None:
    for error in (checked({"data": []}, api_key=key), asked(api_key=key)[0]):
        assert isinstance(error, (SetupError, ModelError)), error
        assert "JSON" not in str(error)
        assert key not in told(error)


@pytest.mark.parametrize("case", ECHOES)
def test_the_key_is_cut_out_of_whatever_a_server_echoes(case: str) -> None:
    result = asked(ECHOES[case], api_key=KEY)[0]
    assert isinstance(result, (Reply, ModelError))
    assert KEY not in told(result)


@pytest.mark.parametrize(
    "models",
    [problem(401, f"bad key {KEY}"), problem(403, KEY), problem(500, KEY), {"data": [{"id": KEY}]}, f"{{{KEY}".encode()],
    ids=repr,
)
def test_the_key_is_in_no_message_of_the_check(models: Any) -> None:
    error = checked(models, api_key=KEY)
    assert isinstance(error, SetupError)
    assert KEY not in told(error)


def test_the_key_is_in_no_description(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    llm = OpenAI(f"https://user:{KEY}@example.org/v1?key={KEY}", model="m", price=(1, 2))
    assert llm.describe()["base_url"] == "https://example.org/v1"
    assert KEY not in repr(llm) + repr(llm.describe()) + str(llm)


def test_the_key_is_nowhere_in_a_run_though_the_server_echoes_it_everywhere(tmp_path: Path) -> None:
    answers = list(ECHOES.values())

    async def work() -> list[str]:
        async with serving() as server:

            async def next_answer(request: web.Request) -> web.StreamResponse:
                return await _answered(answers[len(server.bodies) % len(answers)], request)

            server.answer = next_answer
            llm = OpenAI(server.url, model="m", api_key=KEY)
            land = lab.IndependentRules()
            task = lab.simulated_task(land, 6, 6)
            start = {
                "llm": llm,
                "budget": lab.Budget(llm_calls=200),
                "folder": tmp_path,
                "limits": lab.Limits(backoff_s=1e-4, retries=2),
            }
            run = await asyncio.to_thread(lambda: lab.start(task, **start))  # type: ignore[arg-type]
            ended = await asyncio.to_thread(lambda: _outcome(run))
            assert server.keys.count(f"Bearer {KEY}") > 10
            return [ended, repr(run), repr(run.entries)]

    shown = asyncio.run(work())
    assert "[key]" in shown[2], "the echoes did arrive"
    assert not [text for text in shown if KEY in text]
    assert not [path for path in tmp_path.iterdir() if KEY.encode() in path.read_bytes()]


def _outcome(run: lab.Run) -> str:
    try:
        return str(run.wait(20))
    except lab.RunError as error:
        return told(error)


# --- a whole run ------------------------------------------------------------------------------------------------------------


def test_a_run_over_http_evolves_and_its_calls_are_the_servers_requests(tmp_path: Path) -> None:
    from flashevolve_lab.llm.simulated_server import simulated_server

    land = lab.IndependentRules(n_rules=6, p_improve=1.0)
    with simulated_server(land, speed=lab.FixedLatency(task_s=0.001, reflection_s=0.002)) as server:
        task, reflection = OpenAI(server.base_url, model="sim-task"), OpenAI(server.base_url, model="sim-reflect")
        run = lab.start(
            lab.simulated_task(land, 12, 6),
            llm=task,
            reflection_llm=reflection,
            budget=lab.Budget(metric_calls=150),
            folder=tmp_path,
        )
        status = run.wait(30)
        roles = server.stats()["roles"]
    assert status.best_score > status.seed_score
    assert status.simulated and "(simulated model)" in repr(run), "a simulated model stays labelled behind HTTP"
    assert status.spent["llm_calls"] == roles["task"]["finished"] + roles["reflection"]["finished"]
    assert os.path.getsize(run.path) > 0
