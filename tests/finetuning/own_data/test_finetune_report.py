"""The report of a run: self-contained, escaped, and with claims as strong as the data."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from course_pkg.finetuning.own_data.finetune_report import next_steps, report, summary
from course_pkg.finetuning.own_data.loss_chart import loss_chart
from course_pkg.finetuning.own_data.result import DataSizes, Result
from course_pkg.finetuning.own_data.settings import FinetuneSettings
from course_pkg.finetuning.own_data.validation_losses import AnswerPair, Losses
from course_pkg.finetuning.training_state import Evaluation, History, StepRecord
from tests.tables import each_row

STEPS = [StepRecord(n, 4 - n / 4, 1e-3, 1.0, 50, 0.5) for n in range(1, 9)]
RESULT = Result(
    data="mine.jsonl",
    validation_file=None,
    formats=("Alpaca",),
    settings=FinetuneSettings(Path("mine.jsonl"), Path("out")).identity
    | {"alpha": 16.0, "learning_rate": 1e-3},
    sizes=DataSizes(90, 3, 90, 5000, 2000, 120, ("line 7",), ("line 9",)),
    history=History(STEPS, [Evaluation(4, 2.5), Evaluation(8, 2.75)]),
    before=Losses((30.0, 62.0, 91.0), (10, 20, 30)),
    after=Losses((25.0, 50.0, 75.0), (10, 20, 30)),
    samples=(AnswerPair("line 3", "Why <b>?", "<script>x</script>", "fine & short", "ref"),),
    kept=4,
    trained=1000,
    parameters=100_000,
    versions={"python": "3.11"},
    finished="2026-01-01T00:00:00+00:00",
)


class Tags(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


def test_the_page_runs_and_fetches_nothing_and_shows_texts_as_they_are():
    text = report(RESULT, Path("out"))
    tags = Tags(text).found
    names = {name for name, _ in tags}
    assert names.isdisjoint({"script", "link", "img", "iframe", "object", "b"})
    assert not [
        value for _, attrs in tags for name, value in attrs.items() if name in ("src", "href")
    ]
    assert "default-src 'none'" in text and "&lt;script&gt;x&lt;/script&gt;" in text
    for part in ("Why &lt;b&gt;?", "fine &amp; short", "line 7", "line 9", "120 were cut"):
        assert part in text


@each_row(
    ("after", "says"),
    [
        ((25.0, 50.0, 75.0), ": lower."),
        ((35.0, 70.0, 105.0), ": higher."),
        ((25.0, 64.0, 95.0), ": not clearly different."),
    ],
)
def test_the_summary_says_lower_or_higher_only_if_the_interval_excludes_no_change(after, says):
    text = summary(replace(RESULT, after=Losses(after, RESULT.before.tokens)))
    assert says in text or says.startswith("interval")
    low, high = re.search(r"interval (\S+)% to (\S+)%", text.replace("−", "-")).groups()
    verdict = (
        "lower" if float(high) < 0 else "higher" if float(low) > 0 else "not clearly different"
    )
    assert text.endswith(f": {verdict}.")


def test_one_validation_example_gives_no_interval():
    one = Losses((30.0,), (10,)), Losses((25.0,), (10,))
    text = summary(replace(RESULT, before=one[0], after=one[1]))
    assert text == (
        "Validation perplexity: 20.09 before, 12.18 after. "
        "One validation example gives no interval."
    )


def test_the_page_admits_a_chosen_step_and_few_examples_and_only_then():
    text = report(RESULT, Path("out"))
    assert "weights of step 4 of 8" in text and "3 validation examples are few" in text
    many = Losses((30.0, 29.0) * 15, (10,) * 30)
    text = report(replace(RESULT, kept=8, before=many, after=many), Path("out"))
    assert "chosen by the lowest" not in text and "are few" not in text


def test_the_chart_places_the_points_and_says_them_in_words():
    svg = loss_chart(RESULT.history, 3.05, kept=4)
    assert "Validation loss: 3.05 at step 0, 2.50 at step 4, 2.75 at step 8" in svg
    circle = re.search(r'class="kept" cx="([\d.]+)" cy="([\d.]+)"', svg)
    squares = re.findall(r'<rect x="([\d.]+)" y="([\d.]+)"', svg)
    assert float(circle[1]) == pytest.approx(float(squares[1][0]) + 3.5)
    heights = [float(y) for _, y in squares[:3]]
    assert heights[0] < heights[2] < heights[1], "a lower loss is further down"
    ticks = [float(t) for t in re.findall(r'text-anchor="end">([\d.]+)</text>', svg)]
    assert 2.0 in ticks and 3.5 in ticks


def test_the_commands_fit_the_method_the_data_and_the_shell():
    plain = dict(next_steps("me/model", Path("my adapter"), "lora", chat=False))
    assert "chat" not in plain and '"prompt"' in plain["ask it"][0]
    assert plain["serve"] == ["course serve --model me/model --adapter 'my-adapter=my adapter'"]
    dora = dict(next_steps("tiny", Path("a"), "dora", chat=True))
    assert dora["serve"] == [
        "course export a --base tiny --format hf --output a-merged",
        "course serve --model a-merged --served-model-name a",
    ]
