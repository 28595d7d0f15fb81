import json
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from course_pkg.adapters import LoRAConfig, inject, save_adapter
from course_pkg.evaluation.comparison import compare_runs
from course_pkg.evaluation.greedy import Generation
from course_pkg.evaluation.local_model import LocalModel, load_model
from course_pkg.evaluation.multiple_choice import score_questions
from course_pkg.evaluation.run_errors import RunError, TaskError
from course_pkg.evaluation.run_record import (
    compare_records,
    groups_of,
    make_record,
    read_record,
    scores_of,
)
from course_pkg.evaluation.run_report import report, write_report
from course_pkg.evaluation.sample_log import FILE, open_log, read_log
from course_pkg.evaluation.samples import Sample, make_requests
from course_pkg.evaluation.statistics import mean_interval
from course_pkg.evaluation.task_file import load_task
from course_pkg.evaluation.task_run import run_task


class Writer:
    """A model that writes the answer to some items, fails on others, and remembers what it saw."""

    tokenizer = None

    def __init__(self, right=(), fails=(), name="writer", stop_after=None):
        self.right = right
        self.fails = fails
        self.name = name
        self.stop_after = stop_after
        self.asked = []

    @property
    def identity(self):
        return {"model": self.name}

    def answers(self, task, requests, progress):
        for number, request in enumerate(requests):
            if number == self.stop_after:
                raise KeyboardInterrupt
            self.asked.append(request.item.id)
            if request.item.id in self.fails:
                yield [(request, FloatingPointError("the logits are NaN\nat layer 3"))]
            else:
                text = request.item.answers[0] if request.item.id in self.right else "no idea"
                yield [(request, Generation(f" {text}", (), "stop", "\n"))]


@pytest.fixture(scope="module")
def task():
    return load_task("short-answers")


@pytest.fixture
def ids(task):
    return [item.id for item in task.chosen(12)]


def sample(name, **fields):
    return Sample(name, None, "p", {"references": ["x"]}, **fields)


def test_a_run_that_was_interrupted_asks_only_for_the_rest(task, ids, tmp_path):
    first = Writer(stop_after=5)
    with pytest.raises(KeyboardInterrupt):
        run_task(task, first, tmp_path, limit=12)
    second = Writer()
    seen = []
    run = run_task(task, second, tmp_path, limit=12, progress=lambda *at: seen.append(at))
    assert first.asked + second.asked == ids
    assert (run.asked, seen[0], seen[-1]) == (7, (5, 12), (12, 12))
    third = Writer()
    assert run_task(task, third, tmp_path, limit=12).record.samples == run.record.samples
    assert third.asked == []
    larger = Writer()
    run_task(task, larger, tmp_path, limit=15)
    assert len(larger.asked) == 3


def test_a_failed_item_costs_only_itself_and_is_asked_again(task, ids, tmp_path):
    record = run_task(task, Writer(ids, fails=ids[:2]), tmp_path, limit=12).record
    assert record.failed == 2
    assert record.samples[0].error == "FloatingPointError: the logits are NaN"
    assert (record.score.mean, record.score.items) == (1.0, 10)
    again = Writer(ids)
    record = run_task(task, again, tmp_path, limit=12).record
    assert again.asked == ids[:2]
    assert (record.failed, record.score.items) == (0, 12)


def test_another_model_or_task_does_not_continue_a_run(task, tmp_path):
    run_task(task, Writer(), tmp_path, limit=1)
    with pytest.raises(RunError, match=r"another run, with the model 'writer', now 'other': give"):
        run_task(task, Writer(name="other"), tmp_path, limit=1)
    with pytest.raises(RunError, match="another run, with the task_hash"):
        run_task(replace(task, max_new_tokens=8), Writer(), tmp_path, limit=1)


@pytest.mark.parametrize("cut", [1, 30])
def test_a_torn_last_line_is_removed_and_the_rest_is_kept(tmp_path, cut):
    with open_log(tmp_path, {"model": "m"}) as log:
        log.append([sample("a"), sample("b")])
    path = tmp_path / FILE
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    with open_log(tmp_path, {"model": "m"}) as log:
        assert list(log.samples) == ["a"]
        log.append([sample("b")])
    assert path.read_bytes() == whole


def test_a_torn_first_line_begins_the_file_anew_and_a_broken_line_in_the_middle_is_named(tmp_path):
    (tmp_path / FILE).write_bytes(b'{"run": {"mo')
    with open_log(tmp_path, {"model": "m"}) as log:
        log.append([sample("a")])
    assert read_log(tmp_path / FILE)[:2] == ({"model": "m"}, {"a": sample("a")})
    with open_log(tmp_path, {"model": "m"}) as log:
        log.append([sample("a"), sample("b")])
        assert list(read_log(tmp_path / FILE)[1]) == ["a", "b"]  # written before the end
    path = tmp_path / FILE
    lines = path.read_text().split("\n")
    path.write_text("\n".join([lines[0], lines[1][:-3], *lines[2:]]))
    with pytest.raises(RunError, match=r"line 2: not a line that a run wrote"):
        read_log(path)


def test_two_processes_do_not_write_at_once(tmp_path):
    with (
        open_log(tmp_path, {}),
        pytest.raises(RunError, match="another process writes"),
        open_log(tmp_path, {}),
    ):
        pass


def test_half_a_surrogate_from_a_server_is_kept_and_shown_as_a_question_mark(tmp_path, task):
    odd = sample("a", answer={"text": "\ud800 北京", "finish": "end", "extracted": None})
    with open_log(tmp_path, {}) as log:
        log.append([odd])
    assert read_log(tmp_path / FILE)[1]["a"] == odd
    record = run_task(task, Writer(), tmp_path / "run", limit=1).record
    record = replace(record, samples=(replace(record.samples[0], prompt="\ud800 北京"),))
    write_report(record, tmp_path)
    assert "<pre>\n? 北京</pre>" in (tmp_path / "report.html").read_text("utf-8")


def test_a_local_model_scores_as_its_modules_do(tmp_path):
    task = load_task("multiple-choice")
    model = load_model("tiny")
    record = run_task(task, model, tmp_path, limit=6).record
    questions = [request.question for request in make_requests(task, limit=6)]
    direct = score_questions(model.model, model.tokenizer, questions, premise=task.premise)
    for score in record.scores:
        assert score.mean == pytest.approx(direct.accuracy(score.name))
    assert {score.name for score in record.scores} == {"sum", "token", "character", "byte", "pmi"}
    chosen = [scored.answer["choice"] for scored in record.samples]
    assert chosen == [scored.choice("sum") for scored in direct.questions]
    again = read_record(tmp_path)
    for part in ("scores", "samples", "model"):
        assert getattr(again, part) == getattr(record, part)
    stored = json.loads((tmp_path / "record.json").read_text())
    assert stored["versions"].keys() >= {"python", "course", "torch", "transformers"}
    assert stored["task"]["seeds"] == {"examples": 0, "limit": 0}
    assert stored["samples"][0]["prompt"] == questions[0].context


def test_an_item_that_is_too_long_for_the_model_fails_alone(tmp_path):
    task = load_task("multiple-choice")
    long = replace(task.items[1], fields={"question": "word " * 5000})
    task = replace(task, items=(task.items[0], long, *task.items[2:6]))
    record = run_task(task, load_model("tiny"), tmp_path).record
    assert [sample.error is not None for sample in record.samples] == [False, True] + [False] * 4


def test_other_weights_are_another_model_and_an_adapter_changes_its_scores(tmp_path):
    first = load_model("tiny").identity
    second = LocalModel(load_model("tiny").model, None, "tiny", None)
    assert second.identity == first
    last = list(second.model.parameters())[-1]
    last.data.mul_(1.5)
    assert second.identity != first
    model = load_model("tiny").model
    inject(model, LoRAConfig(rank=4, alpha=64))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.fill_(0.05)
    save_adapter(model, tmp_path / "poet")
    task = load_task("multiple-choice")
    adapted = load_model("tiny", tmp_path / "poet")
    assert adapted.identity["weights"] != load_model("tiny").identity["weights"]
    before = run_task(task, load_model("tiny"), tmp_path / "a", limit=2).record
    after = run_task(task, adapted, tmp_path / "b", limit=2).record
    for old, new in zip(before.samples, after.samples, strict=True):
        assert old.prompt == new.prompt
        assert old.answer["options"][0]["log_prob"] != new.answer["options"][0]["log_prob"]
    assert after.name == f"tiny + {tmp_path / 'poet'}"


def test_a_chat_here_is_written_with_the_model_s_template(task, tmp_path):
    task = replace(task, chat=True, examples=task.examples[:1], max_new_tokens=2)
    model = load_model("tiny")
    model.tokenizer.chat_template = None
    with pytest.raises(TaskError, match="the model has no chat template: set `chat = false`"):
        run_task(task, model, tmp_path, limit=1)
    model.tokenizer.chat_template = (
        "{% for turn in messages %}<{{ turn.role }}>{{ turn.content }}\n{% endfor %}<reply>"
    )
    [sample] = run_task(task, model, tmp_path, limit=1).record.samples
    assert sample.prompt.startswith("<user>Question: ")
    assert "\n<assistant>" in sample.prompt and sample.prompt.endswith("\n<reply>")


def test_runs_are_compared_on_the_items_that_both_have_scored(task, ids, tmp_path):
    first = run_task(task, Writer(ids[:4], ids[11:]), tmp_path / "a", limit=12).record
    second = run_task(task, Writer(ids[1:9], name="b"), tmp_path / "b", limit=11).record
    runs = compare_records(read_record(tmp_path / "a"), read_record(tmp_path / "b"))
    assert (first.failed, second.failed, runs.left_out) == (1, 0, 0)
    result = runs.comparison
    assert (result.items, result.wins, result.losses) == (11, 5, 1)
    assert runs.system_mean - runs.baseline_mean == pytest.approx(4 / 11)
    assert runs.notes == ()


def test_intervals_and_comparisons_are_clustered_by_group(task):
    first = [float(n < 12) for n in range(20)]
    second = [float(n < 16) for n in range(20)]
    groups = [f"g{n // 2}" for n in range(20)]

    def record(scores):
        samples = [
            Sample(str(n), groups[n], "p", {}, scores={"exact": score})
            for n, score in enumerate(scores)
        ]
        return make_record(task, {"model": "m"}, samples)

    [score] = record(first).scores
    wanted = mean_interval(first, groups)
    assert (score.mean, score.low, score.high) == (0.6, wanted.low, wanted.high)
    assert wanted != mean_interval(first)
    assert record(first).groups == 10
    comparison = compare_records(record(first), record(second)).comparison
    assert comparison == compare_runs(first, second, groups) != compare_runs(first, second)


def test_items_without_a_group_are_their_own_and_few_groups_have_no_interval():
    samples = [Sample("1", "a", "", {}), Sample("a", None, "", {}), Sample("2", "a", "", {})]
    assert len(set(groups_of(samples))) == 2
    assert groups_of([samples[1]]) is None
    samples = [Sample(str(n), f"g{n % 4}", "", {}, scores={"exact": 1.0}) for n in range(40)]
    [score] = scores_of(samples, "exact")
    assert (score.mean, score.low, score.items, str(score)) == (1.0, None, 40, "1.000")


def test_runs_of_other_items_are_not_compared_and_another_prompt_is_noted(task, ids, tmp_path):
    base = run_task(task, Writer(ids[:4]), tmp_path / "a", limit=12).record
    prompted = replace(task, examples=())
    other = run_task(prompted, Writer(ids[:6]), tmp_path / "b", limit=12).record
    assert "differ in their prompt" in compare_records(base, other).notes[0]
    fewer = replace(task, items=task.items[:100])
    other = run_task(fewer, Writer(), tmp_path / "c", limit=12).record
    with pytest.raises(RunError, match=r"the items of .* differ"):
        compare_records(base, other)


class Page(HTMLParser):
    """The tags of a page and where it would fetch something."""

    def __init__(self, text):
        super().__init__()
        self.tags = []
        self.outside = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.outside += [value for name, value in attributes if name in ("src", "href")]


def test_the_report_escapes_every_text_and_fetches_nothing(task, ids, tmp_path):
    record = run_task(task, Writer(ids[:3], ids[3:4]), tmp_path, limit=12).record
    evil = "<script>alert(1)</script>&amp;"
    first = record.samples[0]
    answer = {"text": f"{evil} x", "finish": evil}
    answer["extracted"] = {"answer": "x", "rule": evil, "start": 0, "end": 8}
    fields = dict.fromkeys(("id", "group", "prompt", "error"), evil)
    bad = replace(first, asked={"references": [evil]}, answer=answer, **fields)
    chat = replace(first, prompt=[{"role": evil, "content": evil}])
    record = replace(
        record,
        samples=(bad, chat, *record.samples[1:]),
        model={"model": evil},
        task={**record.task, "name": evil, "description": evil},
    )
    page = Page(report(record))
    assert "script" not in page.tags and page.outside == []
    assert page.tags.count("details") == 13
    assert "prefers-color-scheme: dark" in report(record)
    assert "default-src 'none'" in report(record)  # no script would run, even if one got in


def test_the_report_marks_what_was_extracted_and_keeps_a_first_line_break(task, ids, tmp_path):
    record = run_task(task, Writer(ids), tmp_path, limit=1).record
    wanted = record.samples[0].asked["references"][0]
    assert f"<mark>{wanted}</mark>" in (tmp_path / "report.html").read_text()
    [sample] = record.samples
    answer = {"text": "\n7", "finish": "stop", "extracted": None}
    page = report(replace(record, samples=(replace(sample, prompt="\nQ", answer=answer),)))
    assert "<pre>\n\nQ</pre>" in page and "<pre>\n\n7</pre>" in page  # browsers drop the first
