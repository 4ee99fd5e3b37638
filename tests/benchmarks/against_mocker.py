"""Throughput on a scheduler that is not ours: NVIDIA's simulated vLLM, the mocker of `ai-dynamo` (Apache-2.0).

    python3 -m venv FOLDER
    FOLDER/bin/pip install --no-deps ai-dynamo ai-dynamo-runtime
    FOLDER/bin/pip install uvloop pyyaml prometheus_client msgspec packaging pydantic typing_extensions
    python tests/benchmarks/against_mocker.py FOLDER/bin/python                  # five minutes

The mocker models vLLM's scheduler (continuous batching, KV blocks, prefix cache, preemption) in real time and answers with random
tokens. So nothing here is about quality: a proposal is whatever text came, and **scores are keyed draws** (of the text and the
example: 1 in five is a success, for every text), made only so that children pass the gate about as often as in real runs. What is real
is the load and the time. (Its sockets for KV events listen on all interfaces, whatever it is told: mind where you run it.) Each system runs alone, in turn, for the same seconds, on the same data, minibatch 3, 50 validation samples.

The mocker writes as many tokens as it may, so how long an answer is, is said by the request: the same for all (``--lengths even``), or a
keyed log-normal draw with the same mean (``long-tailed``, sigma 0.8), as real models' are. What waits for the slowest suffers by the tail.

- proposals/min: distinct new children with a first gate verdict, over the whole run (start and drain included).
- running: the server's own count of requests inside it, mean of the samples in the middle 60% of the run.
- tokens/s: written by the server, over the whole run.

Prints one table; there is no target to miss (the exit code is 1 when a system failed).
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import math
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from independent_server import SEED_PROMPT, examples

SLOTS, N_TRAIN, N_VAL, MINIBATCH = 64, 100, 50, 3
TASK_TOKENS, REFLECTION_TOKENS, SIGMA, SUCCESS = 32, 256, 0.8, 0.2
MODEL = "mock"
Row = dict[str, Any]
SYSTEMS: Mapping[str, Row] = {
    "gepa sequential": {"p": 1, "n": 1},
    "gepa 8x2": {"p": 8, "n": 2},
    "lab Sequential": {"depth": 0},
    "lab Pipelined(16)": {"depth": 16},
    "lab Pipelined(32)": {"depth": 32},
    "lab Pipelined(64)": {"depth": 64},
}


def drawn(prompt: str, example: Mapping[str, Any]) -> float:
    """The score: a keyed draw, no judgement of any answer."""
    digest = hashlib.blake2b(f"{prompt}\0{example['input']}".encode("utf-8", "replace"), digest_size=8).digest()
    return float(int.from_bytes(digest, "big") / 2**64 < SUCCESS)


def length(order: Row, mean: int, *asked: str) -> int:
    """How many tokens to ask for: the mean, or a draw keyed by what is asked."""
    if order["lengths"] == "even":
        return mean
    return max(1, min(8 * mean, round(random.Random("\0".join(asked)).lognormvariate(math.log(mean) - SIGMA**2 / 2, SIGMA))))


# --- one system, in a process of its own ------------------------------------------------------------------------------------


def run_lab(order: Row) -> Row:
    """Ours."""
    import flashevolve_lab as lab

    async def rollout(components: Mapping[str, str], example: Mapping[str, Any], llm: Any) -> str:
        prompt, asked = components["prompt"], str(example["input"])
        await llm.complete(asked, system=prompt, max_tokens=length(order, TASK_TOKENS, prompt, asked))
        return components["prompt"]  # what the draw is keyed by: the answer itself is random

    class AsItCame:
        """Proposes the text that came."""

        async def propose(self, brief: lab.Brief, llm: Any) -> lab.Draft:
            told = "\n\n".join(f"{r.input}\n{r.output}\n{r.feedback}" for r in brief.records)
            asked = f"Improve this instruction:\n{brief.current}\n\n{told}"
            reply = await llm.complete(asked, max_tokens=length(order, REFLECTION_TOKENS, brief.current, told))
            return lab.Draft(reply.text, reply.text)

        def describe(self) -> Row:
            return {"name": "AsItCame", "label": "random text of a simulated server; scores are keyed draws"}

    task = lab.Task(
        train=examples(N_TRAIN),
        val=examples(N_VAL, N_TRAIN),
        seed=SEED_PROMPT,
        program=rollout,
        metric=lab.quick(lambda example, output: (drawn(output, example), "a keyed draw")),
        name="mocker",
    )
    with tempfile.TemporaryDirectory() as folder:
        cpu, began = time.process_time(), time.monotonic()
        run = lab.start(
            task,
            lab.GEPA(minibatch=MINIBATCH, cache=False, proposer=AsItCame()),
            llm=lab.OpenAI(order["base_url"], model=MODEL, api_key="none"),
            schedule=lab.Pipelined(order["depth"]) if order["depth"] else lab.Sequential(),
            staleness=lab.Full(),
            budget=lab.Budget(seconds=order["seconds"]),
            limits=lab.Limits(concurrency=SLOTS),
            folder=folder,
        )
        status = run.wait()
        seconds, cpu = time.monotonic() - began, time.process_time() - cpu
    counts = {"proposals": status.proposals, "accepted": status.accepted, "failed_calls": status.failed_calls}
    return {"seconds": seconds, "cpu_s": cpu, "metric_calls": status.spent["metric_calls"], **counts}


def run_gepa(order: Row) -> Row:
    """Public gepa, as favourably as `gepa_driver` runs it."""
    import gepa
    from gepa.strategies.proposal_sampling import PxNSampling, SingleMutationSampling
    from gepa.utils import TimeoutStopCondition
    from gepa_driver import WORKERS, Adapter, Client, Reflection, Silent, Watch, messages_for

    class Mock(Client):
        def chat(self, model: str, messages: Sequence[Mapping[str, str]]) -> str:
            mean = REFLECTION_TOKENS if model == "reflect" else TASK_TOKENS
            most = length(order, mean, *(m["content"] for m in messages))
            text = self.post({"model": MODEL, "messages": list(messages), "max_tokens": most})
            return f"```\n{text}\n```" if model == "reflect" else text

        def post(self, body: Row) -> str:
            request = urllib.request.Request(
                f"{order['base_url']}/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=600) as answer:
                return str(json.load(answer)["choices"][0]["message"]["content"])

    class Drawn(Adapter):
        def _rollout(self, pair: tuple[str, Mapping[str, Any]]) -> tuple[str, float, str]:
            prompt, example = pair
            output = self._client.chat("task", messages_for(prompt, example))
            return output, drawn(prompt, example), "a keyed draw"

    client, single = Mock(order["base_url"]), order["p"] * order["n"] == 1
    with ThreadPoolExecutor(WORKERS) as pool:
        cpu, watch = time.process_time(), Watch()
        gepa.optimize(
            seed_candidate={"prompt": SEED_PROMPT},
            trainset=examples(N_TRAIN),
            valset=examples(N_VAL, N_TRAIN),
            adapter=Drawn(client, pool),
            reflection_lm=Reflection(client, pool),
            reflection_minibatch_size=MINIBATCH,
            stop_callbacks=[TimeoutStopCondition(order["seconds"])],
            sampling_strategy=SingleMutationSampling() if single else PxNSampling(order["p"], order["n"]),
            callbacks=[watch],
            logger=Silent(),
            seed=0,
        )
        seconds, cpu = time.monotonic() - watch.began, time.process_time() - cpu
    counts = {"proposals": watch.proposals, "accepted": watch.accepted, "failed_calls": 0}
    return {"seconds": seconds, "cpu_s": cpu, "metric_calls": watch.metric_calls, **counts}


# --- the mocker -------------------------------------------------------------------------------------------------------------


def tokenizer_of_words(folder: Path) -> Path:
    """A model folder as the mocker reads one: 32,000 words, so that random tokens are random words."""
    words = {f"w{i}": i for i in range(32_000)}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "w0"},
    }
    template = "{% for m in messages %}{{ m['role'] }} {{ m['content'] }}\n{% endfor %}"
    named = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "w1", "unk_token": "w0", "chat_template": template}
    sizes = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 32_000}
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "max_position_embeddings": 32_768, **sizes}
    config |= {"bos_token_id": 1, "eos_token_id": 1}
    for name, content in (("tokenizer", tokenizer), ("tokenizer_config", named), ("config", config)):
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


class Mocker:
    """The running mocker: where it answers, and what it counts itself."""

    def __init__(self, port: int, system_port: int) -> None:
        self.base_url = f"http://127.0.0.1:{port}/v1"
        self._counts = f"http://127.0.0.1:{system_port}/metrics"
        self._frontend = f"http://127.0.0.1:{port}/metrics"

    def listed(self) -> bool:
        """Whether it serves its model."""
        with contextlib.suppress(OSError, ValueError):
            return bool(json.loads(read(f"{self.base_url}/models"))["data"])
        return False

    def running(self) -> float:
        """Requests inside the worker."""
        return total(read(self._counts), "dynamo_component_inflight_requests")

    def tokens(self) -> float:
        """Tokens written since its start."""
        return total(read(self._frontend), "dynamo_frontend_output_tokens_total")


def read(url: str) -> str:
    """A page."""
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())


def total(page: str, name: str) -> float:
    """The sum of a metric over its label sets."""
    lines = (line for line in page.splitlines() if line.startswith((name + "{", name + " ")))
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


@contextlib.contextmanager
def mocking(python: str, folder: Path) -> Iterator[Mocker]:
    """Its worker and its front end, on loopback, until the end of the block."""
    port, worker_port, other_port = free_ports(3)
    hosts = ("DYN_TCP_RPC_HOST", "DYN_TCP_RESPONSE_STREAM_HOST", "DYN_EVENT_PLANE_HOST", "DYN_SYSTEM_HOST")
    planes = {
        "DYN_DISCOVERY_BACKEND": "file",
        "DYN_REQUEST_PLANE": "tcp",
        "DYN_EVENT_PLANE": "zmq",
        "DYN_LOG": "warn",
        "DYN_FILE_KV": str(folder / "kv"),
    }
    environment = {**os.environ, **dict.fromkeys(hosts, "127.0.0.1"), **planes}
    for name in ("kv", "model"):
        (folder / name).mkdir()
    model = ["--model-path", str(tokenizer_of_words(folder / "model")), "--model-name", MODEL]
    worker = [
        "dynamo.mocker",
        *model,
        "--max-num-seqs",
        str(SLOTS),
        "--num-gpu-blocks-override",
        "16384",
        "--no-router-kv-events",
    ]
    front = ["dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", str(port)]
    with contextlib.ExitStack() as stack, (folder / "log").open("wb") as log:
        for command, system_port in ((worker, worker_port), (front, other_port)):
            ports = {"DYN_SYSTEM_PORT": str(system_port)}
            process = subprocess.Popen(
                [python, "-m", *command], env={**environment, **ports}, stdout=log, stderr=subprocess.STDOUT
            )
            stack.callback(process.wait)
            stack.callback(process.terminate)
        mocker = Mocker(port, worker_port)
        until = time.monotonic() + 60
        while not mocker.listed():
            if time.monotonic() > until:
                raise SystemExit(f"the mocker does not answer after 60 s; it said:\n{(folder / 'log').read_text()[-3000:]}")
            time.sleep(0.5)
        yield mocker


def free_ports(count: int) -> list[int]:
    """Free ports of loopback, below 32,768: the mocker reads its system port as a signed 16-bit number."""
    found: list[int] = []
    for port in range(20_000 + os.getpid() % 10_000, 32_768):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            break
    return found


def measure(name: str, mocker: Mocker, seconds: float, lengths: str) -> Row:
    """One system on the mocker."""
    while mocker.running():
        time.sleep(0.5)
    samples, over, before = [], threading.Event(), mocker.tokens()

    def sample() -> None:
        while not over.wait(0.25):
            samples.append(mocker.running())

    sampling = threading.Thread(target=sample)
    sampling.start()
    order = json.dumps({**SYSTEMS[name], "base_url": mocker.base_url, "seconds": seconds, "lengths": lengths})
    done = subprocess.run([sys.executable, __file__, "--order", order], stdout=subprocess.PIPE, text=True)
    over.set()
    sampling.join()
    if done.returncode:
        return {"system": name, "error": f"exit status {done.returncode}"}
    row = {"system": name, **json.loads(done.stdout.splitlines()[-1])}
    busy = [n for n in samples if n]  # without the start of the interpreter
    middle = busy[len(busy) // 5 : len(busy) - len(busy) // 5]
    row["running"] = statistics.mean(middle) if middle else 0.0
    row["tokens_per_s"] = (mocker.tokens() - before) / row["seconds"]
    return {**row, "per_min": 60 * row["proposals"] / row["seconds"]}


def show(rows: Sequence[Row], lengths: str) -> None:
    """The table."""
    good = [row for row in rows if "error" not in row]
    base = next((row["per_min"] for row in good if row["system"] == "gepa sequential"), None)
    print(
        f"\nNVIDIA mocker, {SLOTS} sequences at most, {lengths} answers; texts are random, scores are keyed draws (throughput only)"
    )
    print(
        f"{'system':20}{'proposals/min':>14}{'x seq':>8}{'running':>9}{'tokens/s':>10}{'accepted':>10}{'metric calls':>14}{'CPU, s':>8}"
    )
    for row in good:
        times = f"{row['per_min'] / base:.1f}" if base else "-"
        print(
            f"{row['system']:20}{row['per_min']:14.1f}{times:>8}{row['running']:9.1f}{row['tokens_per_s']:10.0f}"
            f"{row['accepted']:10}{row['metric_calls']:14.0f}{row['cpu_s']:8.1f}"
        )


def main() -> int:
    """Measure and print; 1 when a system failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dynamo", nargs="?", help="the Python that has ai-dynamo installed")
    parser.add_argument("--seconds", type=float, default=45.0, help="of each system")
    parser.add_argument("--lengths", choices=("long-tailed", "even"), default="long-tailed", help="of answers")
    parser.add_argument("--only", nargs="+", choices=SYSTEMS, help="systems to run, by name")
    parser.add_argument("--json", type=Path, help="where to write everything measured")
    parser.add_argument("--order", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.order:
        order = json.loads(given.order)
        print(json.dumps(run_gepa(order) if "p" in order else run_lab(order)))
        return 0
    if not given.dynamo:
        parser.error("say which Python has ai-dynamo: see the text above")
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder, mocking(given.dynamo, Path(folder)) as mocker:
        for name in given.only or SYSTEMS:
            rows.append(measure(name, mocker, given.seconds, given.lengths))
            print({key: round(v, 1) if isinstance(v, float) else v for key, v in rows[-1].items()}, flush=True)
            if given.json:
                given.json.write_text(
                    json.dumps(
                        {"seconds": given.seconds, "lengths": given.lengths, "load": os.getloadavg(), "rows": rows}, indent=1
                    )
                )
    show(rows, given.lengths)
    return int(any("error" in row for row in rows))


if __name__ == "__main__":
    sys.exit(main())
