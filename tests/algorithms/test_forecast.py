"""What a model call of a task will need, before anything is spent."""

from __future__ import annotations

import flashevolve_lab as lab
from flashevolve_lab.algorithms.forecast import tokens_of_a_call
from flashevolve_lab.llm import Request, chat

ROWS = [{"input": "short"}, {"input": "long " * 100}]


def task(program: object) -> lab.Task:
    return lab.Task(
        train=ROWS, val=ROWS, seed={"prompt": "Say it. " * 10, "other": "x"}, program=program, metric=lambda e, o: 0.5
    )  # type: ignore[arg-type]


def test_a_prompt_reserves_at_most_its_longest_input_and_its_whole_answer() -> None:
    longest = Request(chat(ROWS[1]["input"], system="Say it. " * 10)).input_tokens_estimate()
    mean, most = tokens_of_a_call(task(lab.Prompt(max_tokens=77)))
    assert most == longest + 77
    assert mean < longest


def test_of_another_program_only_the_seeds_shortest_text_is_known() -> None:
    known = Request(chat("x")).input_tokens_estimate()
    assert tokens_of_a_call(task(lambda components, example, llm: "")) == (known, known)


def test_a_budget_of_tokens_is_refused_only_when_no_call_fits() -> None:
    one = task(lab.Prompt())
    most = tokens_of_a_call(one)[1]
    gepa = lab.GEPA(minibatch=2)
    proposals, how = gepa.forecast(one, {"tokens": most - 1})
    assert proposals == 0 and f"one call alone may need {most:,}" in how
    assert gepa.forecast(one, {"tokens": most})[0] >= 1
    few, many = (gepa.forecast(one, {"tokens": tokens})[0] for tokens in (20_000, 200_000))
    assert 1 < few < many
    assert gepa.forecast(one, {"tokens": 10**9, "proposals": 7})[0] == 7
