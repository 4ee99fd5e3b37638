"""Word-level differences: sides stay whole, islands join, and nothing is slow."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashevolve_lab.widgets.difference import difference, differences

TEXTS = st.text(st.sampled_from("ab\n ."), max_size=60) | st.text(max_size=30)


def joined(segments):
    return "".join(text for _, text in segments)


def only(segments):
    return [text for kind, text in segments if kind == "only"]


@given(TEXTS, TEXTS)
def test_the_segments_of_a_side_joined_are_that_sides_text(old, new):
    found = difference(old, new)
    assert (joined(found.old), joined(found.new)) == (old, new)


@given(TEXTS, TEXTS)
def test_what_is_the_same_on_both_sides_is_the_same_text(old, new):
    found = difference(old, new)
    same = [joined(pair for pair in side if pair[0] == "same") for side in (found.old, found.new)]
    assert same[0] == same[1]
    assert found.equal == (old == new)


@given(TEXTS, TEXTS)
def test_segments_are_not_empty_and_alternate(old, new):
    for side in (difference(old, new).old, difference(old, new).new):
        assert all(text for _, text in side)
        assert all(a[0] != b[0] for a, b in zip(side, side[1:], strict=False))


def test_a_changed_word_is_marked_on_both_sides():
    found = difference("Answer with one short word.", "Answer with one long word.")
    assert (only(found.old), only(found.new)) == (["short "], ["long "])
    assert (found.gone, found.added) == (1, 1)


def test_one_or_two_equal_words_between_changes_join_them():
    found = difference("start here a equal words b and so it ends", "start here X equal words Y and so it ends")
    assert only(found.new) == ["X equal words Y "]


def test_three_equal_words_between_changes_stay():
    found = difference("start here a three equal words b and so it ends", "start here X three equal words Y and so it ends")
    assert only(found.new) == ["X ", "Y "]


def test_white_space_alone_is_a_difference():
    assert only(difference("one\ntwo", "one two").new) == [" "]


def test_a_text_without_spaces_differs_by_character_where_words_are_characters():
    assert only(difference("日本語の文章を短く書く", "日本語の文章を長く書く").new) == ["長"]


@pytest.mark.parametrize("odd", ["\ud800 lone", "\x00\x07 control", "<b>&amp;</b>", "\u202eright to left\u202c", "é é"])
def test_odd_characters_stay_as_they_are(odd):
    found = difference("before " + odd, odd + " after")
    assert (joined(found.old), joined(found.new)) == ("before " + odd, odd + " after")


def test_components_that_one_side_lacks_are_empty_there():
    found = differences({"a": "one", "gone": "x"}, {"a": "one", "new": "y"})
    assert found["a"].equal
    assert (only(found["gone"].old), found["gone"].new) == (["x"], ())
    assert (found["new"].old, only(found["new"].new)) == ((), ["y"])


def test_two_texts_of_200_kb_that_share_most_are_compared_word_by_word():
    words = [f"word{i * 7919 % 3001}" for i in range(25_000)]
    changed = ["changed" if i % 50 == 0 else word for i, word in enumerate(words)]
    found = difference(" ".join(words), " ".join(changed))
    assert 500 <= found.added == found.gone <= 600


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (" ".join(f"a{i}" for i in range(30_000)), " ".join(f"b{i}" for i in range(30_000))),
        ("a " * 100_000, "a " * 90_000 + "b " * 10_000),
        ("x" * 200_000, "x" * 199_999 + "y"),
        ("漢字" * 100_000, "漢字" * 80_000 + "東" * 40_000),
        (" " * 200_000, "\n" * 200_000),
        ("a b " * 50_000, "b a " * 50_000),
    ],
    ids=["unrelated", "repeated", "one word", "ideographs", "white space", "turned"],
)
def test_no_pair_of_200_kb_takes_long(old, new):
    began = time.perf_counter()
    found = difference(old, new)
    assert time.perf_counter() - began < 5
    assert (joined(found.old), joined(found.new)) == (old, new)
