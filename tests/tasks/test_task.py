"""The checks of a task, of a prompt and of a metric's return value, before anything is spent."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from flashevolve_lab.errors import SetupError
from flashevolve_lab.llm.seam import Reply
from flashevolve_lab.tasks import Prompt, Score, Task, scored, shown

ROWS = [{"input": "2+2", "answer": "4"}]


def program(components: Any, example: Any, llm: Any) -> str:
    return "4"


def metric(example: Any, output: Any) -> float:
    return 1.0


def task(**changes: Any) -> Task:
    parts: dict[str, Any] = {"train": ROWS, "val": ROWS, "seed": "Add.", "program": program, "metric": metric}
    return Task(**{**parts, **changes})


def test_a_plain_text_seed_becomes_one_component_called_prompt() -> None:
    assert task().components == {"prompt": "Add."}


def test_a_seed_of_several_components_is_kept_as_given() -> None:
    assert task(seed={"plan": "a", "act": "b"}).components == {"plan": "a", "act": "b"}


@pytest.mark.parametrize("seed", [None, 3, {}, ["a"]])
def test_a_seed_that_is_no_text_and_no_mapping_is_refused(seed: Any) -> None:
    with pytest.raises(SetupError, match="seed: expected a text, or a mapping"):
        task(seed=seed)


@pytest.mark.parametrize("seed", [{"prompt": None}, {1: "text"}])
def test_a_seed_must_map_names_to_texts(seed: Any) -> None:
    with pytest.raises(SetupError, match="must map a name to a text"):
        task(seed=seed)


@pytest.mark.parametrize("split", ["train", "val"])
@pytest.mark.parametrize("examples", [None, "rows.jsonl", {"input": "x"}, iter(ROWS), 5])
def test_examples_that_are_no_list_are_refused_with_their_name(split: str, examples: Any) -> None:
    with pytest.raises(SetupError, match=f"{split}: expected a list of examples"):
        task(**{split: examples})


@pytest.mark.parametrize("split", ["train", "val"])
def test_an_empty_split_is_refused(split: str) -> None:
    with pytest.raises(SetupError, match=f"{split}: expected at least one example; got none"):
        task(**{split: []})


@pytest.mark.parametrize("part", ["program", "metric"])
def test_a_program_or_metric_that_cannot_be_called_is_refused(part: str) -> None:
    with pytest.raises(SetupError, match=f"{part}: expected a function .*got str"):
        task(**{part: "function"})


@pytest.mark.parametrize("part", ["program", "metric"])
def test_a_program_or_metric_with_another_signature_is_refused_and_its_signature_shown(part: str) -> None:
    with pytest.raises(SetupError, match=rf"{part}: expected a function .*signature \(only\)"):
        task(**{part: lambda only: only})


def test_a_callable_whose_signature_cannot_be_read_is_taken_on_trust() -> None:
    assert task(metric=max).metric is max


def test_a_prompt_for_a_component_the_seed_lacks_is_refused() -> None:
    with pytest.raises(SetupError, match="Prompt.component='system'. is not in the seed, which has .'prompt'"):
        task(program=Prompt(component="system"))


@pytest.mark.parametrize("split", ["train", "val"])
def test_a_prompt_whose_field_an_example_lacks_is_refused_with_the_fields_it_has(split: str) -> None:
    with pytest.raises(SetupError, match="example 1 has no such field; it has .'question'"):
        task(program=Prompt(), **{split: [*ROWS, {"question": "?"}]})


def test_a_prompt_over_examples_that_are_no_mappings_is_refused() -> None:
    with pytest.raises(SetupError, match="example 0 has no such field; it has str"):
        task(program=Prompt(), train=["2+2"])


@pytest.mark.parametrize(
    "wrong", [{"max_tokens": -1}, {"max_tokens": 0}, {"max_tokens": 2.5}, {"temperature": -1}, {"temperature": "0"}], ids=repr
)
def test_a_prompt_with_a_bound_that_makes_no_sense_is_refused_with_its_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(SetupError, match=rf"Prompt\({next(iter(wrong))}=…\): expected .* got"):
        Prompt(**wrong)


def test_a_prompt_sends_the_component_as_system_and_the_field_as_user_message() -> None:
    class Asker:
        async def complete(self, messages: Any, **options: Any) -> Reply:
            return Reply(f"{options['system']} {messages} {options['choices']}")

    answer = asyncio.run(Prompt(choices=("4", "5"))({"prompt": "Add."}, ROWS[0], Asker()))  # type: ignore[arg-type]
    assert answer == "Add. 2+2 ('4', '5')"


@pytest.mark.parametrize("judged", [1, 1.0, True, (1.0, ""), (1, None), Score(1.0)])
def test_a_metric_may_return_a_number_a_pair_or_a_score(judged: Any) -> None:
    assert scored(judged) == Score(1.0, "")


def test_feedback_is_kept_as_text() -> None:
    assert scored((0.5, ["missing", "unit"])) == Score(0.5, "['missing', 'unit']")


@pytest.mark.parametrize("judged", [math.nan, math.inf, "0.5", None, [1.0], {}, (math.nan, "x"), Score(math.inf)])
def test_a_value_that_is_no_finite_number_is_refused(judged: Any) -> None:
    with pytest.raises(SetupError, match="a metric returns a number.*it returned"):
        scored(judged)


def test_a_tuple_of_another_length_than_two_is_refused() -> None:
    with pytest.raises(SetupError, match="it returned a tuple of 3"):
        scored((1.0, "good", "extra"))


def test_a_mapping_is_shown_field_by_field_and_anything_else_as_text() -> None:
    assert (shown({"a": 1, "b": 2}), shown(7)) == ("a: 1\nb: 2", "7")


def test_the_fingerprint_changes_with_data_and_seed_and_with_nothing_else() -> None:
    same, other_data, other_seed = task(), task(val=[{"input": "1+1", "answer": "2"}]), task(seed="Add!")
    assert task().fingerprint() == same.fingerprint() == task(metric=lambda e, o: 0).fingerprint()
    changed = {key for key in same.fingerprint() if same.fingerprint()[key] != other_data.fingerprint()[key]}
    assert changed == {"val"}
    assert same.fingerprint()["seed"] != other_seed.fingerprint()["seed"]


@pytest.mark.parametrize("parallel", [0, -1, 2.5, "one", True])
def test_how_many_programs_run_at_once_is_a_number_of_at_least_one(parallel: Any) -> None:
    with pytest.raises(SetupError, match="parallel: expected a number of programs of at least 1, or None"):
        task(parallel=parallel)
    assert task(parallel=1).parallel == 1
