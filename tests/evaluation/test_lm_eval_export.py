import ast
import json
import re
import string
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from course_pkg.evaluation.answer_extraction import RULES
from course_pkg.evaluation.answer_match import normalize
from course_pkg.evaluation.lm_eval_export import QUASI, export_to_lm_eval
from course_pkg.evaluation.run_errors import TaskError
from course_pkg.evaluation.samples import make_requests
from course_pkg.evaluation.task_file import load_task


def test_each_line_has_the_whole_prompt_with_its_examples(tmp_path):
    task = load_task("multiple-choice-letters")
    path = export_to_lm_eval(task, tmp_path)
    config = yaml.safe_load(path.read_text())
    items = Path(config["dataset_kwargs"]["data_files"]["test"])
    lines = [json.loads(line) for line in items.read_text("utf-8").splitlines()]
    questions = [request.question for request in make_requests(task)]
    assert [line["prompt"] for line in lines] == [question.context for question in questions]
    choices = [ast.literal_eval(line["choices"]) for line in lines]  # as lm-eval reads them
    assert choices == [list(question.options) for question in questions]
    assert config["num_fewshot"] == 0 and config["target_delimiter"] == " "


def test_answers_that_are_dates_stay_texts_in_lm_eval_s_loader(tmp_path):
    from datasets import load_dataset

    task = load_task("short-answers")
    dates = [replace(item, answers=("1989-11-09",)) for item in task.items[:3]]
    config = yaml.safe_load(
        export_to_lm_eval(replace(task, items=tuple(dates)), tmp_path).read_text()
    )
    path, options = config["dataset_path"], config["dataset_kwargs"]
    rows = load_dataset(path, **options, split="test", cache_dir=str(tmp_path / "cache"))
    assert {row["references"] for row in rows} == {"['1989-11-09']"}
    assert config["doc_to_target"] == "{{references}}"


def test_nothing_is_replaced_that_the_export_did_not_write(tmp_path):
    task = load_task("short-answers")
    path = export_to_lm_eval(task, tmp_path)
    items = tmp_path / "short-answers.lm-eval.jsonl"
    fewer = replace(task, items=task.items[:3])
    assert export_to_lm_eval(fewer, tmp_path) == path
    assert len(items.read_text().splitlines()) == 3, "its own files are written anew"
    for file in (items, path):
        written = file.read_text()
        file.write_text(written + "\n# mine")
        with pytest.raises(TaskError, match=f"{re.escape(file.name)} exists, and is not as this"):
            export_to_lm_eval(task, tmp_path)
        assert file.read_text() == written + "\n# mine"
        file.write_text(written)
    path.unlink()
    with pytest.raises(TaskError, match="jsonl exists"):  # nothing says whose it is
        export_to_lm_eval(task, tmp_path)


def test_what_the_format_cannot_say_is_refused(tmp_path, subtests):
    for name, change, says in (
        ("short-answers", {"chat": True}, "apply_chat_template"),
        ("short-answers", {"rules": (RULES["boxed"], RULES["last number"])}, "use one rule"),
        ("short-answers", {"normalization": "number"}, "other than 'number'"),
        ("short-answers", {"report": "f1"}, 'report = "exact"'),
        ("multiple-choice", {"normalization": "pmi"}, "use one of sum, character, byte"),
    ):
        with subtests.test(name=name, change=change):
            with pytest.raises(TaskError, match=says):
                export_to_lm_eval(replace(load_task(name), **change), tmp_path / "x")
            assert not (tmp_path / "x").exists()


def test_the_deleted_patterns_leave_what_quasi_leaves(subtests):
    texts = ["The  Eiffel-Tower!", "  in the Louvre, Paris ", "a", "An apple a day...", "theatre"]
    for text in (*texts, "the-cat", "Paris (the city)", "É à la", string.punctuation, ""):
        with subtests.test(text=text):
            left = text
            for pattern in QUASI:
                left = re.sub(pattern, "", left)
            assert left.lower() == normalize(text, "quasi")
