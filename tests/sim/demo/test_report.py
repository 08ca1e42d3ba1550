"""The JSON object, the page and the plot that a demo leaves behind."""

import json
from html.parser import HTMLParser

import pytest

from sim.demo.chart import draw_chart, endings, marks, render_page, scales, write_chart
from sim.demo.display import result_lines
from sim.demo.result import DemoResult, YardstickResult
from sim.demo.swarm_view import SwarmView
from tests.sim.demo.scene import manifest, options, whole_result

PROMISED_KEYS = {
    *("peers", "rounds_sealed", "loss_first", "loss_last", "loss_alone", "anchors_equal"),
    *("killed", "joined_late", "pids", "first_seal_s", "wall_s"),
}
LOADING_ATTRIBUTES = ("src", "href", "srcset", "action", "data", "poster", "xlink:href")


@pytest.fixture
def result():
    return whole_result(options())


@pytest.fixture
def empty():
    """What is left of a demo that failed before its first seal."""
    chosen = options()
    return DemoResult(
        options=chosen,
        manifest=manifest(chosen),
        view=SwarmView(num_rounds=40),
        measured=YardstickResult(),
        anchors_equal=None,
        wall_s=60.2,
        error="node B died: <no> & why",
    )


class Page(HTMLParser):
    """Tags, attributes and text of a page, and whether every tag is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def test_json_has_every_promised_key_with_its_type(result):
    body = json.loads(json.dumps(result.as_json()))
    assert set(body) >= PROMISED_KEYS
    assert (body["peers"], body["rounds_sealed"], body["killed"], body["joined_late"]) == (
        *(4, 40, 1, 1),
    )
    assert body["anchors_equal"] is True
    assert len(body["pids"]) == len(set(body["pids"])) == 2 * (4 + 1)
    assert all(isinstance(body[key], float) for key in ("loss_first", "first_seal_s", "wall_s"))
    assert body["killed_round"]["outcome"] == "not listed"
    assert "C" in body["exchanges"]["B"]
    assert body["first_seal_s"] == 4.5


def test_json_of_a_demo_that_failed_early_has_the_same_keys(result, empty):
    body = empty.as_json()
    assert set(body) == set(result.as_json())
    assert (body["rounds_sealed"], body["first_seal_s"], body["anchors_equal"]) == (0, None, None)


def test_swarm_is_ahead_by_the_difference_to_one_node_alone(result, empty):
    assert result.ahead == pytest.approx(0.12)
    assert empty.ahead is None


def test_page_loads_nothing_from_anywhere(result):
    text = render_page(result)
    page = Page(text)
    for outside in ("http:", "https:", "src=", "@import", "javascript:"):
        assert outside not in text
    assert "url(" not in text.replace("url(#plot)", "")
    assert not {"script", "link", "img", "iframe", "object", "base"} & set(page.tags)
    assert not [name for name, _ in page.attributes if name in LOADING_ATTRIBUTES]
    assert page.open == []


def test_page_names_both_schemes(result):
    text = render_page(result)
    assert 'name="color-scheme" content="light dark"' in text
    assert "prefers-color-scheme: dark" in text


def test_page_shows_story_nodes_losses_and_sample(result):
    text = " ".join(Page(render_page(result)).words)
    for shown in (
        *("was killed in round 14", "E came late", "40 of 40", "82 s", "latecomer", "killed"),
        *(f"{result.measured.loss_last:.3f}", f"{result.measured.loss_alone:.3f}", "--seed 3"),
    ):
        assert shown in text


def test_text_of_the_model_is_escaped(result):
    text = render_page(result)
    assert "&lt;b&gt;&amp;" in text
    assert "<b>&" not in text


def test_page_of_a_demo_that_measured_nothing_says_so(empty):
    text = " ".join(Page(render_page(empty)).words)
    assert "Nothing was measured." in text
    assert "(no sample was made)" in text


def test_chart_draws_both_curves_and_both_marks(result):
    chart = draw_chart(result)
    for part in ('class="line swarm"', 'class="line alone"', "A killed", "E contributes"):
        assert part in chart


def test_marks_stand_at_the_kill_and_at_the_latecomers_first_round(result):
    assert [(mark.kind, mark.round) for mark in marks(result)] == [("kill", 14), ("late", 18)]


def test_axes_leave_out_the_steep_start(result):
    spans = scales(result.swarm, result.alone)
    assert spans is not None
    lowest = min(loss for _, loss in [*result.swarm, *result.alone])
    assert spans.loss_low <= lowest < spans.loss_high < 4.0 < result.measured.loss_first
    assert 4 <= len(spans.ticks) <= 9


@pytest.mark.parametrize("curve", [((0, 5.5),), ((0, 5.5), (1, 2.9)), ((3, 2.0), (7, 2.0))])
def test_axes_exist_for_the_shortest_curves(curve):
    spans = scales(curve, ())
    assert spans is not None
    assert spans.loss_low < spans.loss_high
    assert spans.rounds >= 1


def test_upper_ending_comes_first(result):
    assert [ending.kind for ending in endings(result)] == ["alone", "swarm"]


def test_one_loss_has_one_number_wherever_it_stands(result):
    labels = {ending.kind: ending.label for ending in endings(result)}
    assert labels == {
        "swarm": f"swarm {result.measured.loss_last:.3f}",
        "alone": f"alone {result.measured.loss_alone:.3f}",
    }
    assert {node.validation for node in result.nodes if node.status == "finished"} == {
        result.measured.loss_last
    }
    page = " ".join(Page(render_page(result)).words)
    lines = " ".join(result_lines(result))
    for number in (result.measured.loss_last, result.measured.loss_alone):
        assert f"{number:.3f}" in page
        assert f"{number:.3f}" in lines


def test_plot_is_a_png(result, tmp_path):
    write_chart(result, tmp_path / "loss.png")
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG\r\n")


def test_plot_of_nothing_is_no_file(empty, tmp_path):
    write_chart(empty, tmp_path / "loss.png")
    assert not (tmp_path / "loss.png").exists()
