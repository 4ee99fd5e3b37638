"""Ready tasks: what is read, what is refused, and how answers are judged."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from flashevolve_lab.errors import SetupError
from flashevolve_lab.tasks import Prompt
from flashevolve_lab.tasks.datasets import DATASETS, label_score, load_task, number_in, number_score, read_rows

ROOT = Path(__file__).resolve().parents[2]
REVIEWS = ROOT / "data" / "reviews"
SHARED = ROOT.parent / "shared" / "data"


def folder_of(place: Path, rows: list[Any]) -> Path:
    for name in ("train.jsonl", "val.jsonl"):
        (place / name).write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return place


def test_the_reviews_are_balanced_labelled_and_share_no_row_between_the_splits() -> None:
    task = load_task("reviews", REVIEWS)
    for split in (task.train, task.val):
        assert Counter(row["answer"] for row in split) == dict.fromkeys(("positive", "negative"), len(split) // 2)
    texts = [row["input"] for row in (*task.train, *task.val)]
    assert len(set(texts)) == len(texts) >= 120


def test_the_reviews_constrain_answers_to_the_two_labels() -> None:
    program = load_task("reviews", REVIEWS).program
    assert isinstance(program, Prompt)
    assert program.choices == ("positive", "negative")
    assert program.temperature == 0.0


def test_limits_take_the_first_rows() -> None:
    whole, part = load_task("reviews", REVIEWS), load_task("reviews", REVIEWS, n_train=5, n_val=3)
    assert (part.train, part.val) == (whole.train[:5], whole.val[:3])


@pytest.mark.parametrize("limits", [{"n_train": 0}, {"n_val": -1}])
def test_a_limit_below_one_is_refused_by_its_name(limits: dict[str, int]) -> None:
    with pytest.raises(SetupError, match=f"{next(iter(limits))}: expected at least 1"):
        load_task("reviews", REVIEWS, **limits)


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data folder is not beside this checkout")
@pytest.mark.parametrize(("name", "sizes"), [("formula", (500, 300)), ("symptom_diagnosis", (200, 50))])
def test_the_shared_data_sets_load_whole(name: str, sizes: tuple[int, int]) -> None:
    task = load_task(name, SHARED / name)
    assert (len(task.train), len(task.val)) == sizes


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data folder is not beside this checkout")
@pytest.mark.parametrize("name", ["formula", "symptom_diagnosis"])
def test_the_right_answer_of_every_shared_row_scores_one(name: str) -> None:
    task = load_task(name, SHARED / name)
    answer = DATASETS[name].answer
    assert all(task.metric(row, f"{row[answer]}").value == 1.0 for row in (*task.train, *task.val))


def test_an_unknown_name_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(SetupError, match="no data set is called 'review'. Choose one of: reviews, formula"):
        load_task("review", REVIEWS)


def test_a_path_that_is_no_folder_is_refused_with_the_files_it_should_hold(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="is no folder. Give the one with train.jsonl and val.jsonl"):
        load_task("reviews", tmp_path / "nowhere")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="train.jsonl does not exist"):
        load_task("reviews", tmp_path)


def test_an_empty_file_is_refused_with_the_fields_expected(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="train.jsonl is empty. .* input, answer"):
        load_task("reviews", folder_of(tmp_path, []))


def test_a_broken_line_is_refused_with_its_number(tmp_path: Path) -> None:
    path = folder_of(tmp_path, [{"input": "a", "answer": "b"}]) / "train.jsonl"
    path.write_text(path.read_text() + "\n\n{broken\n", encoding="utf-8")
    with pytest.raises(SetupError, match="train.jsonl, line 3 is not JSON"):
        load_task("reviews", tmp_path)


def test_a_row_that_is_no_object_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="line 1: expected a JSON object, got list"):
        load_task("reviews", folder_of(tmp_path, [["a", "b"]]))


def test_a_row_without_a_field_is_refused_with_the_fields_it_has(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="line 1 lacks answer; it has input, label. Is it the right data set"):
        load_task("reviews", folder_of(tmp_path, [{"input": "a", "label": "b"}]))


def test_a_file_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SetupError, match="cannot be read .* UTF-8"):
        read_rows(tmp_path / "train.jsonl", ["input"])


@pytest.mark.parametrize("output", ["positive", " Positive. ", "POSITIVE\n"])
def test_a_label_is_compared_without_case_spaces_and_full_stop(output: str) -> None:
    assert label_score({"answer": "positive"}, output).value == 1.0


def test_the_feedback_on_a_wrong_label_names_the_right_one_and_quotes_at_most_a_line() -> None:
    score = label_score({"answer": "positive"}, "n" * 10_000)
    assert score.value == 0.0
    assert "the right answer is 'positive'" in score.feedback
    assert len(score.feedback) < 200


@pytest.mark.parametrize(
    ("text", "number"),
    [("-3.5", -3.5), ("It is $1,234.50.", 1234.5), ("12%", 12.0), ("2 + 2 = 4", 4.0), (".5", 0.5), ("none", None),
     ("5-3", 3.0), ("__import__('os')", None), ("1e400", float("inf"))],
)  # fmt: skip
def test_the_last_number_of_an_answer_counts(text: str, number: float | None) -> None:
    assert number_in(text) == number


@pytest.mark.parametrize(
    ("output", "value"), [("2.0", 1.0), ("2.01", 1.0), ("2.02", 0.0), ("2", 1.0), ("", 0.0), ("1e400", 0.0)]
)
def test_a_number_is_right_within_a_hundredth(output: str, value: float) -> None:
    assert number_score({"target": "2.0"}, output).value == value


def test_a_large_number_is_right_within_a_thousandth_of_it() -> None:
    assert number_score({"target": "27432.79"}, "27,430").value == 1.0
    assert number_score({"target": "27432.79"}, "27,300").value == 0.0


@pytest.mark.parametrize("output", ["I do not know", "3"])
def test_the_feedback_on_a_wrong_number_gives_the_expected_one(output: str) -> None:
    assert "expected 27432.79" in number_score({"target": "27432.79"}, output).feedback
