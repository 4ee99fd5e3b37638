"""Prometheus text of a vLLM server becomes the few numbers a run keeps; anything else is refused or left out."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashevolve_lab.errors import BadReply
from flashevolve_lab.llm import metrics

PAGE = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny {a, b} \\"x\\""} 7.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="tiny"} 3.0
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.25
vllm:prefix_cache_queries_total{engine="0",model_name="tiny"} 1.2e+06
vllm:prefix_cache_hits_total{engine="0",model_name="tiny"} 1140000.0 1395066363000
vllm:generation_tokens_total{engine="0",model_name="tiny"} 512.0
vllm:request_queue_time_seconds_bucket{engine="0",le="0.3",model_name="tiny"} 4.0
vllm:request_queue_time_seconds_sum{engine="0",model_name="tiny"} 1.5
vllm:request_queue_time_seconds_count{engine="0",model_name="tiny"} 6.0
python_gc_objects_collected_total{generation="0"} 12345.0
"""


def test_a_page_of_vllm_becomes_running_waiting_the_cache_and_counters() -> None:
    assert metrics.seen(PAGE) == {
        "running": 7.0,
        "waiting": 3.0,
        "kv_cache": 0.25,
        "generation_tokens": 512.0,
        "prefix_cache_queries": 1.2e6,
        "prefix_cache_hits": 1.14e6,
        "queue_s_sum": 1.5,
        "queue_s_count": 6.0,
    }


def test_the_older_name_of_the_cache_gauge_is_read_and_the_newer_one_goes_first() -> None:
    older = PAGE.replace("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
    assert metrics.seen(older)["kv_cache"] == 0.25
    assert metrics.seen(PAGE + "vllm:gpu_cache_usage_perc 0.9\n")["kv_cache"] == 0.25


def test_several_engines_are_added_up_and_the_fullest_cache_counts() -> None:
    second = PAGE.replace('engine="0"', 'engine="1"').replace("} 0.25", "} 0.75")
    told = metrics.seen(PAGE + second)
    assert (told["running"], told["waiting"], told["kv_cache"], told["generation_tokens"]) == (14.0, 6.0, 0.75, 1024.0)


def test_a_gauge_without_labels_is_read() -> None:
    assert metrics.seen("vllm:num_requests_running 1\nvllm:num_requests_waiting 0\n") == {"running": 1.0, "waiting": 0.0}


def test_what_is_not_told_is_left_out_and_never_a_zero() -> None:
    bare = "\n".join(line for line in PAGE.splitlines() if "cache" not in line and "queue" not in line)
    assert set(metrics.seen(bare)) == {"running", "waiting", "generation_tokens"}


@pytest.mark.parametrize("page", ["", "<html>404</html>", '{"detail": "Not Found"}', "process_cpu_seconds_total 1.0\n",
                                  "vllm:num_requests_running 1.0\n", "vllm:num_requests_running NaN\nvllm:num_requests_waiting NaN"])  # fmt: skip
def test_a_page_without_the_gauges_is_no_vllm_and_says_so(page: str) -> None:
    with pytest.raises(BadReply, match="no vLLM metrics"):
        metrics.seen(page)


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(st.text())
def test_any_text_is_read_or_refused_and_never_breaks(page: str) -> None:
    assert all(value == value for values in metrics.samples(page).values() for value in values)
