"""The simulated server over real HTTP on loopback, in its own process, through the openai client."""

import asyncio
import http.client
import json
import os
import select
import subprocess
import sys
from pathlib import Path

import openai
import pytest

from flashevolve_lab.errors import SetupError
from flashevolve_lab.llm.landscapes import ConflictingRules, IndependentRules, UnitingRules
from flashevolve_lab.llm.simulated_server import from_settings, settings_of, simulated_server
from flashevolve_lab.llm.simulator import Batching, Faults, FixedLatency, Simulated

FAST = FixedLatency(task_s=0.002, reflection_s=0.004, slots=4)
ONE_HOUR = FixedLatency(task_s=3600.0, task_sigma=0.0, slots=1)


@pytest.fixture(scope="module")
def server():
    with simulated_server(IndependentRules(p_improve=1.0), speed=FAST) as running:
        yield running


@pytest.fixture
def slow_server():
    with simulated_server(speed=ONE_HOUR) as running:
        yield running


def client(running, **options):
    return openai.AsyncOpenAI(base_url=running.base_url, api_key="none", max_retries=0, **options)


def talk(running, conversation, **options):
    """Runs ``conversation(client)`` and closes the client."""

    async def work():
        async with client(running, **options) as api:
            return await conversation(api)

    return asyncio.run(work())


def get(running, path, method="GET", body=None):
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=5)
    connection.request(method, path, body)
    answer = connection.getresponse()
    content = answer.read().decode()
    connection.close()
    return answer, content


def question(i, *rules):
    system = "Answer. " + " ".join(f"RULE-{rule}." for rule in rules)
    return [
        {"role": "system", "content": system},
        {"role": "user", "content": f"Simulated question {i}: this item needs rule {i}"},
    ]


def test_the_openai_client_gets_the_landscapes_answer_and_its_usage(server):
    reply = talk(
        server, lambda api: api.chat.completions.create(model="sim-task", messages=question(7, 7), max_tokens=64)
    )
    assert reply.choices[0].message.content == "ANSWER 7"
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens > 0


def test_the_model_name_says_the_role(server):
    server.reset()
    content = [{"type": "text", "text": "Improve.\n```\nRULE-1.\n```\nWrong. The required rule is RULE-2."}]

    async def both(api):
        messages = [{"role": "user", "content": content}]
        return [
            await api.chat.completions.create(model=name, messages=messages) for name in ("sim-reflect", "my-patch")
        ]

    improved, patched = talk(server, both)
    assert "RULE-2." in improved.choices[0].message.content
    assert "RULE-2." not in patched.choices[0].message.content
    roles = server.stats()["roles"]
    assert [roles[role]["finished"] for role in ("task", "reflection", "patch")] == [0, 1, 1]


def test_the_slots_are_enforced_and_counted_by_the_server(server):
    server.reset()

    async def many(api):
        await asyncio.gather(*[api.chat.completions.create(model="sim-task", messages=question(i)) for i in range(30)])

    talk(server, many)
    stats = server.stats()
    assert stats["max_in_service"] == 4
    assert stats["max_waiting"] > 0
    assert stats["roles"]["task"]["finished"] == 30
    assert 0.0 < stats["busy_s"] <= 4 * stats["elapsed_s"] + 1e-9
    assert (stats["rollout"]["n"], stats["reflect"]["n"]) == (30, 0)
    assert stats["rollout"]["busy"] == stats["busy_s"]


def test_models_health_and_metrics_are_served(server):
    models = talk(server, lambda api: api.models.list())
    assert [model.id for model in models.data] == ["sim-task", "sim-reflect", "sim-patch"]
    assert json.loads(get(server, "/health")[1])["status"] == "ok"
    metrics = get(server, "/metrics")[1]
    assert 'vllm:num_requests_running{model_name="simulated"} 0.0' in metrics
    assert 'vllm:num_requests_waiting{model_name="simulated"} 0.0' in metrics


@pytest.mark.parametrize("body", ["no json", "[]", '{"model": "m"}', '{"model": "m", "messages": []}'])
def test_a_request_that_is_no_chat_completion_gets_a_400_that_says_what_is_expected(server, body):
    answer, content = get(server, "/v1/chat/completions", "POST", body)
    assert answer.status == 400
    assert "expected a chat completion request" in json.loads(content)["error"]["message"]


def test_choices_of_vllm_and_hostile_text_travel_both_ways(server):
    async def chosen(api):
        extra = {"structured_outputs": {"choice": ["yes", "no"]}, "priority": -1}
        messages = [{"role": "user", "content": "\u202e</script>\x00 é 🜁"}]
        return await api.chat.completions.create(model="t", messages=messages, extra_body=extra)

    assert talk(server, chosen).choices[0].message.content in {"yes", "no"}


def test_a_client_that_goes_away_frees_its_slot(slow_server):
    async def give_up(api):
        first = asyncio.create_task(api.chat.completions.create(model="sim-task", messages=question(1)))
        await until(lambda stats: stats["in_service"] == 1)
        second = asyncio.create_task(api.chat.completions.create(model="sim-task", messages=question(2)))
        await until(lambda stats: stats["waiting"] == 1)
        first.cancel()
        await until(lambda stats: stats["roles"]["task"]["cancelled"] == 1 and stats["waiting"] == 0)
        second.cancel()
        await until(lambda stats: stats["in_service"] == 0)
        return True

    async def until(condition):
        async with asyncio.timeout(5):
            while not condition(await asyncio.to_thread(slow_server.stats)):
                pass

    assert talk(slow_server, give_up)


def test_faults_arrive_as_http_errors_with_retry_after():
    with simulated_server(faults=Faults(rate_limited=0.5, server_error=0.5, retry_after_s=3.0), speed=FAST) as running:

        async def errors(api):
            calls = [api.chat.completions.create(model="sim-task", messages=question(i)) for i in range(20)]
            return await asyncio.gather(*calls, return_exceptions=True)

        caught = talk(running, errors)
    assert {type(error) for error in caught} == {openai.RateLimitError, openai.InternalServerError}
    limited = next(error for error in caught if isinstance(error, openai.RateLimitError))
    assert limited.response.headers["retry-after"] == "3"


def test_stop_ends_the_process_even_with_a_request_in_service_and_twice_is_once(slow_server):
    connection = http.client.HTTPConnection("127.0.0.1", slow_server.port, timeout=5)
    body = json.dumps({"model": "m", "messages": question(1)})
    connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
    while not slow_server.stats()["in_service"]:
        pass
    assert f"at {slow_server.base_url}" in repr(slow_server)
    slow_server.stop()
    slow_server.stop()
    connection.close()
    assert not slow_server.alive
    assert "stopped" in repr(slow_server)


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="watching a foreign process needs Linux")
def test_the_server_ends_when_its_parent_dies():
    code = (
        "import os; from flashevolve_lab.llm.simulated_server import simulated_server\n"
        "print(simulated_server().pid, flush=True); os.kill(os.getpid(), 9)"
    )
    root = str(Path(__file__).parents[2])
    there = {**os.environ, "PYTHONPATH": root}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, cwd=root, env=there)
    try:
        watch = os.pidfd_open(int(done.stdout))
    except ProcessLookupError:
        return
    assert select.select([watch], [], [], 5)[0], "still running 5 s after its parent was killed"
    os.close(watch)


def test_settings_survive_the_way_to_the_child():
    for landscape in (IndependentRules(n_rules=7), ConflictingRules(group=3), UnitingRules(unite=3)):
        for speed in (FixedLatency(slots=3), Batching(task_tokens=9.0, max_waiting=2)):
            there = Simulated(landscape, speed=speed, faults=Faults(hang=0.1, retry_after_s=None), seed=5)
            back = from_settings(json.loads(json.dumps(settings_of(there))))
            assert (back.landscape, back.speed, back.faults, back.seed) == (landscape, speed, there.faults, 5)


def test_a_landscape_of_ones_own_cannot_travel_and_the_error_says_what_to_do():
    class Mine(IndependentRules):
        pass

    with pytest.raises(SetupError, match=r"lab\.Simulated\(landscape\)"):
        simulated_server(Mine())


@pytest.mark.parametrize(
    "settings", [{"speed": {"kind": "Fast"}}, {"speed": {"kind": "Batching", "x": 1}}, {"sped": {}}]
)
def test_unknown_settings_are_refused(settings):
    with pytest.raises(SetupError):
        from_settings(settings)
