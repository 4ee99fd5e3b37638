"""The palette: apart in grey, apart for the colour-blind, one colour per stage."""

from itertools import combinations, pairwise

import pytest

from flashevolve_lab.plots import HATCHES, LINES, NEUTRAL, STAGES, stage_colours

# How the colour-blind see linear RGB (Machado, Oliveira and Fernandes 2009, severity 1).
BLIND = {
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.01182, 0.04294, 0.968881)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.3039)),
}


def linear(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]


def times(matrix, vector):
    return [sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix]


def lab(rgb):
    xyz = times(((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505)), rgb)
    x, y, z = (v / white for v, white in zip(xyz, (0.9505, 1.0, 1.089), strict=True))
    fx, fy, fz = (v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in (x, y, z))
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)


def luminance(colour):
    return times(((0.2126, 0.7152, 0.0722),), linear(colour))[0]


def contrast(a, b):
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def test_the_stages_of_gepa_are_ten_steps_of_lightness_apart_in_grey():
    lightness = sorted(lab(linear(colour))[0] for colour in STAGES.values())
    assert all(b - a >= 10 for a, b in pairwise(lightness))


@pytest.mark.parametrize("kind", BLIND)
def test_the_colour_blind_can_tell_the_stages_apart(kind):
    seen = [lab([min(1.0, max(0.0, v)) for v in times(BLIND[kind], linear(colour))]) for colour in STAGES.values()]
    assert min(sum((p - q) ** 2 for p, q in zip(a, b, strict=True)) ** 0.5 for a, b in combinations(seen, 2)) > 20


def test_neutral_text_is_readable_on_a_light_and_on_a_dark_page():
    assert contrast(NEUTRAL, "#FFFFFF") > 4 and contrast(NEUTRAL, "#111111") > 4


def test_every_stage_gets_a_colour_of_its_own_and_a_known_one_always_the_same():
    colours = stage_colours(["generate", "rollout", "curate", "gate"])
    assert (colours["rollout"], colours["gate"]) == (STAGES["rollout"], STAGES["gate"])
    assert len(set(colours.values())) == 4


def test_more_stages_than_colours_repeat_rather_than_fail():
    assert len(stage_colours([f"stage {i}" for i in range(30)])) == 30


def test_outcomes_are_told_by_hatch_and_runs_by_dash_and_marker_not_by_colour_alone():
    shapes = [hatch.matplotlib for hatch in HATCHES.values()]
    assert len(set(shapes)) == len(shapes) and len({hatch.plotly for hatch in HATCHES.values()}) == len(shapes)
    assert len({style.plotly_dash for style in LINES}) == len({style.matplotlib_marker for style in LINES}) == len(LINES)
