"""What a vLLM-like server tells of itself at ``/metrics`` (Prometheus text), as the few numbers a run keeps.

Owns the names we read and the parsing. Owns no request and no address. One rule a change must keep: a page without the two
gauges of requests running and waiting is no such server, and says so; a name that is missing otherwise is left out, never 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isfinite
from types import MappingProxyType

from flashevolve_lab.errors import BadReply

RUNNING = ("vllm:num_requests_running",)
WAITING = ("vllm:num_requests_waiting",)
KV_CACHE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")  # the second: the name until 0.10
FACTS: Mapping[str, str] = MappingProxyType(
    {
        "prompt_tokens": "vllm:prompt_tokens_total",
        "generation_tokens": "vllm:generation_tokens_total",
        "preemptions": "vllm:num_preemptions_total",
        "prefix_cache_queries": "vllm:prefix_cache_queries_total",
        "prefix_cache_hits": "vllm:prefix_cache_hits_total",
        "queue_s_sum": "vllm:request_queue_time_seconds_sum",
        "queue_s_count": "vllm:request_queue_time_seconds_count",
        "first_token_s_sum": "vllm:time_to_first_token_seconds_sum",
        "first_token_s_count": "vllm:time_to_first_token_seconds_count",
        "between_tokens_s_sum": "vllm:inter_token_latency_seconds_sum",
        "between_tokens_s_count": "vllm:inter_token_latency_seconds_count",
    }
)
"""Our name → the server's counter. Times in seconds as sum and count, so that a mean over any stretch is a difference."""

_LINE = re.compile(r"(?P<name>[a-zA-Z_:][\w:]*)(?:\{.*\})?[ \t]+(?P<value>[^ \t]+)(?:[ \t]+-?\d+)?[ \t]*")


def samples(page: str) -> dict[str, list[float]]:
    """Metric name → its values, one for each label set, of a page in Prometheus' text format.

    Labels are not told apart. Comments are skipped, and so are lines that are none of the format and values that are not finite.
    """
    found: dict[str, list[float]] = {}
    for line in page.splitlines():
        match = _LINE.fullmatch(line.strip()) if not line.startswith("#") else None
        value = _number(match["value"]) if match else None
        if match and value is not None:
            found.setdefault(match["name"], []).append(value)
    return found


def seen(page: str) -> dict[str, float]:
    """A ``/metrics`` page as what `LLM.seen` gives: ``running``, ``waiting``, perhaps ``kv_cache`` (0..1), and counters.

    Over several label sets (engines of one server) requests and counters are added up; the KV cache is the fullest engine's.

    Raises:
        BadReply: the page has no vLLM gauges.
    """
    found = samples(page)
    running, waiting = _first(found, RUNNING), _first(found, WAITING)
    if not running or not waiting:
        raise BadReply("/metrics has no vllm:num_requests_running and vllm:num_requests_waiting: no vLLM metrics", page[:500])
    told = {"running": sum(running), "waiting": sum(waiting)}
    if caches := _first(found, KV_CACHE):
        told["kv_cache"] = max(caches)
    return told | {name: sum(found[metric]) for name, metric in FACTS.items() if metric in found}


def _first(found: Mapping[str, list[float]], names: tuple[str, ...]) -> list[float]:
    return next((found[name] for name in names if name in found), [])


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if isfinite(value) else None
