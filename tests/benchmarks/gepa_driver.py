"""Runs public gepa on the independent server, in a process of its own, and prints one JSON line.

    python gepa_driver.py '{"base_url": …, "p": 8, "n": 2, "seed": 0, "metric_calls": 6000, …}'

As favourable to gepa as its API allows: a thin keep-alive HTTP client (no SDK), `batch_evaluate` and `batch_complete` on 64 threads, no
log, no run folder. P = N = 1 is sequential gepa. One rule a change must keep: nothing here may slow gepa down.
"""

from __future__ import annotations

import http.client
import json
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from typing import Any
from urllib.parse import urlsplit

import gepa
from gepa.core.adapter import EvaluationBatch, GEPAAdapter
from gepa.strategies.proposal_sampling import PxNSampling, SingleMutationSampling
from gepa.utils import TimeoutStopCondition
from independent_server import SEED_PROMPT, examples, judged, messages_for

WORKERS = 64


class Client:
    """One kept-alive connection a thread."""

    def __init__(self, base_url: str) -> None:
        self._url = urlsplit(base_url)
        self._mine = threading.local()

    def chat(self, model: str, messages: Sequence[Mapping[str, str]]) -> str:
        """The reply's text."""
        if not hasattr(self._mine, "connection"):
            self._mine.connection = http.client.HTTPConnection(str(self._url.hostname), self._url.port, timeout=600)
        connection = self._mine.connection
        body = json.dumps({"model": model, "messages": list(messages)})
        connection.request("POST", self._url.path + "/chat/completions", body, {"Content-Type": "application/json"})
        answer = json.loads(connection.getresponse().read())
        text: str = answer["choices"][0]["message"]["content"]
        return text


class Reflection:
    """A reflection model that sends the reflections of one iteration together."""

    def __init__(self, client: Client, pool: ThreadPoolExecutor) -> None:
        self._client, self._pool = client, pool

    def __call__(self, prompt: Any) -> str:
        return self._client.chat("reflect", [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt)

    def batch_complete(self, requests: Iterable[Any]) -> list[str]:
        """All at once."""
        return list(self._pool.map(self, requests))


class Adapter(GEPAAdapter):  # type: ignore[misc]
    """The task, every batch of rollouts sent together."""

    propose_new_texts = None

    def __init__(self, client: Client, pool: ThreadPoolExecutor) -> None:
        self._client, self._pool = client, pool

    def _rollout(self, pair: tuple[str, Mapping[str, Any]]) -> tuple[str, float, str]:
        prompt, example = pair
        output = self._client.chat("task", messages_for(prompt, example))
        return output, *judged(example, output)

    def batch_evaluate(self, items: Sequence[Any], *, capture_traces: bool = True) -> list[EvaluationBatch]:
        """All pairs of all items at once."""
        done = iter(list(self._pool.map(self._rollout, [(c["prompt"], example) for c, batch in items for example in batch])))
        return [self._packed(batch, [next(done) for _ in batch]) for _, batch in items]

    def evaluate(self, batch: Any, candidate: Any, capture_traces: bool = False) -> EvaluationBatch:
        """One item."""
        return self.batch_evaluate([(candidate, batch)])[0]

    def _packed(self, batch: Any, done: list[tuple[str, float, str]]) -> EvaluationBatch:
        traces = [{"input": e["input"], "output": o, "feedback": f} for e, (o, _, f) in zip(batch, done, strict=True)]
        return EvaluationBatch(outputs=[o for o, _, _ in done], scores=[s for _, s, _ in done], trajectories=traces)

    def make_reflective_dataset(self, candidate: Any, eval_batch: Any, components_to_update: Any) -> dict[str, list[Any]]:
        """Inputs, outputs and feedback."""
        rows = [
            {"Inputs": t["input"], "Generated Outputs": t["output"], "Feedback": t["feedback"]} for t in eval_batch.trajectories
        ]
        return {component: rows for component in components_to_update}


class Watch:
    """gepa's callbacks: what is counted, and the score over metric calls and time."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.proposals = self.accepted = self.skipped = self.metric_calls = 0
        self.best = -1.0
        self.curve: list[tuple[float, int, float]] = []

    def on_proposal_end(self, event: Any) -> None:
        self.proposals += 1

    def on_candidate_accepted(self, event: Any) -> None:
        self.accepted += 1

    def on_evaluation_skipped(self, event: Any) -> None:
        self.skipped += 1

    def on_budget_updated(self, event: Any) -> None:
        self.metric_calls = event["metric_calls_used"]

    def on_valset_evaluated(self, event: Any) -> None:
        self.best = max(self.best, event["average_score"])
        calls = max(self.metric_calls, event["num_examples_evaluated"])  # the seed's are not announced
        self.curve.append((round(time.monotonic() - self.began, 3), calls, round(self.best, 6)))


class Silent:
    """A logger that logs nothing."""

    def log(self, message: str) -> None:
        """Nothing."""


def run(order: Mapping[str, Any]) -> dict[str, Any]:
    """One optimization."""
    single = order["p"] * order["n"] == 1
    client = Client(order["base_url"])
    with ThreadPoolExecutor(WORKERS) as pool:
        cpu, watch = time.process_time(), Watch()
        result = gepa.optimize(
            seed_candidate={"prompt": SEED_PROMPT},
            trainset=examples(order["n_train"]),
            valset=examples(order["n_val"], order["n_train"]),
            adapter=Adapter(client, pool),
            reflection_lm=Reflection(client, pool),
            reflection_minibatch_size=order["minibatch"],
            max_metric_calls=order["metric_calls"],
            stop_callbacks=[TimeoutStopCondition(order["cap_s"])] if order["cap_s"] else None,
            sampling_strategy=SingleMutationSampling() if single else PxNSampling(order["p"], order["n"]),
            callbacks=[watch],
            logger=Silent(),
            seed=order["seed"],
        )
        seconds, cpu = time.monotonic() - watch.began, time.process_time() - cpu
    counts = {"proposals": watch.proposals, "accepted": watch.accepted, "skipped": watch.skipped, "duplicates": 0, "stale": 0}
    row = {"seconds": seconds, "cpu_s": cpu, "metric_calls": result.total_metric_calls, "curve": watch.curve, **counts}
    return {**row, "best": watch.best, "version": version("gepa")}


if __name__ == "__main__":
    print(json.dumps(run(json.loads(sys.argv[1]))))
