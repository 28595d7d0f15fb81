"""The suites' items are what course_pkg/data/README.md says: balanced and in pairs."""

from collections import Counter, defaultdict

import pytest

from course_pkg.studies.benchmarks.suites import (
    EMPTY,
    GLUE,
    SUPERGLUE,
    load_shape,
    shape_names,
    suite_average,
)
from course_pkg.studies.benchmarks.task_metrics import LABEL_METRICS, TEXT_METRICS

SHAPES = {name: load_shape(name) for name in shape_names()}
SIZES = {"entailment": 36, "several-answers": 48}


def test_a_shape_has_items_examples_of_other_groups_labels_and_prompts_that_fit():
    for name, shape in SHAPES.items():
        assert len(shape.items) == SIZES.get(name, 24) and len(shape.examples) == 4
        everything = shape.items + shape.examples
        assert len({item.id for item in everything}) == len(everything)
        contents = {(*item.fields.values(), item.options) for item in everything}
        assert len(contents) == len(everything), "an item is there twice"
        groups = {item.group for item in shape.items}
        assert groups.isdisjoint(item.group for item in shape.examples)
        if name != "cloze":
            counts = Counter(item.label for item in shape.items)
            assert len(counts) == len(shape.labels) and len(set(counts.values())) == 1
            if len(shape.labels) == 2:
                assert Counter(item.label for item in shape.examples) == {0: 2, 1: 2}
        for prompt in shape.prompts:
            for item in shape.items:
                text = prompt.template.render(item.fields).text
                assert "{" not in text and not text[-1].isspace()
                assert len(set(prompt.options(item))) == len(prompt.options(item)) > item.label
            if prompt.words:
                assert len(prompt.words) == len(shape.labels)
            empty = prompt.empty(shape.items[0])
            assert EMPTY in empty.values()
            assert all(empty[field] == shape.items[0].fields[field] for field in prompt.kept)


def test_pairs_have_one_item_of_each_label():
    for name in ("acceptability", "paraphrase", "two-way-entailment", "pronouns"):
        labels = defaultdict(list)
        for item in SHAPES[name].items:
            labels[item.group].append(item.label)
        assert all(sorted(pair) == [0, 1] for pair in labels.values())


def test_every_task_has_a_shape_and_metrics_that_exist():
    known = {*LABEL_METRICS, *TEXT_METRICS, "exact match"}
    assert (len(GLUE), len(SUPERGLUE)) == (9, 8)
    for task in GLUE + SUPERGLUE:
        assert task.shape in SHAPES and set(task.metrics) <= known


def test_the_average_gives_each_task_one_vote_and_a_missing_metric_is_an_error():
    perfect = {task.name: dict.fromkeys(task.metrics, 1.0) for task in GLUE}
    assert suite_average(GLUE, perfect) == 1
    perfect["CoLA"]["Matthews"] = 0.0
    assert suite_average(GLUE, perfect) == pytest.approx(8 / 9)
    perfect["MRPC"]["F1"] = 0.0
    assert suite_average(GLUE, perfect) == pytest.approx(7.5 / 9)
    with pytest.raises(ValueError, match="no 'accuracy' for the task MRPC"):
        suite_average(GLUE[2:3], {"MRPC": {"F1": 0.5}})
    with pytest.raises(ValueError, match="shape must be one of acceptability"):
        load_shape("sarcasm")
