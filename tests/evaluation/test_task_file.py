import json
from pathlib import Path

import pytest

from course_pkg.evaluation.greedy import Generation
from course_pkg.evaluation.run_errors import TaskError
from course_pkg.evaluation.samples import make_requests
from course_pkg.evaluation.task_file import load_task, task_names
from course_pkg.evaluation.task_run import sample_of
from course_pkg.lm.tiny import tiny_tokenizer

CHOICE = """\
items = "items.jsonl"

[prompt]
question = "Q: {question}\\nA:"

[examples]
items = "examples.jsonl"
count = 1

[multiple-choice]
normalization = "character"
"""
ITEMS = [
    {"id": "a", "question": "1 + 1?", "options": ["2", "3"], "answer": 0, "group": "sums"},
    {"id": "b", "question": "2 + 2?", "options": ["3", "4"], "answer": 1, "group": "sums"},
]
EXAMPLES = [{"id": "e", "question": "0 + 0?", "options": ["0", "1"], "answer": 0}]
GENERATION = CHOICE.partition("[multiple")[0] + '[generation]\nrules = ["first line"]\n'


def write(folder, text=CHOICE, items=ITEMS, examples=EXAMPLES):
    """A task file with its items; an item may also be a line of text."""
    for name, rows in (("items", items), ("examples", examples)):
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    path = folder / "sums.toml"
    path.write_text(text)
    return path


def fault(path):
    """The error of a task that cannot be read."""
    with pytest.raises(TaskError) as error:
        load_task(path)
    return str(error.value)


def test_a_prompt_has_the_examples_before_the_question_and_letters_for_the_options(tmp_path):
    first, second = make_requests(load_task(write(tmp_path)))
    assert first.question.context == "Q: 0 + 0?\nA: 0\n\nQ: 1 + 1?\nA:"
    assert (first.question.options, first.question.answer) == (("2", "3"), 0)
    assert (second.item.id, second.item.group) == ("b", "sums")
    text = CHOICE.replace("{question}\\n", "{question}\\n{options}\\n") + 'options = "letters"\n'
    _, second = make_requests(load_task(write(tmp_path, text)))
    assert second.question.context.endswith("A: A\n\nQ: 2 + 2?\nA. 3\nB. 4\nA:")
    assert (second.question.options, second.question.answer) == (("A", "B"), 1)


def test_a_fault_of_the_task_file_is_named_with_its_line(tmp_path, subtests):
    for old, new, line, says in (
        ("[prompt]", "[prompt", 3, "not TOML"),
        ("[prompt]", "[prompts]", 3, "unknown key 'prompts': use some of description, items"),
        ('"character"', '"letters"', 11, "normalization must be one of sum, token, character"),
        ("normalization", "normalizing", 11, "unknown key 'normalizing'"),
        ('"character"', '"pmi"', 11, 'add one, such as premise = "Answer:"'),
        ("count = 1", "count = 2", 8, "2 examples are wanted, but the file has 1"),
        ('"items.jsonl"', '"none.jsonl"', 1, "none.jsonl: correct the name"),
        ('items = "items.jsonl"', "", 1, "the top of the file has no 'items': add it"),
        ("{question}", "{question", 4, "write {{ for a brace"),
        ("A:", "A: {answer}", 4, "would show the question's answer"),
        ("A:", "A: ", 4, "ends in white space"),
        ("{question}", "{question:>3000000000}", 4, "write the name alone in braces"),
        ("{question}", "{question!r}", 4, "write the name alone in braces"),
        ("[prompt]\n", '[generation]\nrules = ["boxed"]\n[prompt]\n', 3, "found both"),
    ):
        with subtests.test(old=old, new=new):
            path = write(tmp_path, CHOICE.replace(old, new, 1))
            error = fault(path)
            assert str(path) in error and f"line {line}" in error and says in error


def test_a_file_or_an_item_that_is_nested_deep_is_a_fault_like_others(tmp_path):
    path = write(tmp_path, "items = " + "[" * 5000 + "]" * 5000)
    with pytest.raises(TaskError, match="nested too deeply"):
        load_task(path)
    deep = '{"question": ' + "[" * 100_000
    for line, says in ((deep, "nested too deeply"), ('{"id": ' + "1" * 5000 + "}", "more digits")):
        with pytest.raises(TaskError, match=f"line 1: the line is not JSON .*{says}"):
            load_task(write(tmp_path, items=[line]))


def test_a_chat_template_that_refuses_the_turns_is_quoted(tmp_path):
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{{ raise_exception('System role not supported') }}"
    text = CHOICE.replace("[prompt]", '[prompt]\nchat = true\ndescription = "Be brief."')
    task = load_task(write(tmp_path, text))
    with pytest.raises(TaskError, match=r"refuses the turns system, user.*System role not supp"):
        make_requests(task, tokenizer=tokenizer)


def test_a_fault_of_an_item_is_named_with_its_line(tmp_path, subtests):
    for second, says in (
        ("{", "the line is not JSON"),
        ("[1]", "expected an object"),
        ({"question": "x", "answer": 0}, "the item has no 'options': write a list of 2"),
        ({"question": "x", "options": "ab", "answer": 0}, "options must be a list, got 'ab'"),
        ({"question": "x", "options": ["a", " "], "answer": 0}, "options[1] is blank"),
        ({"question": "x", "options": ["a", "a"], "answer": 0}, "the same text twice"),
        ({"question": "x", "options": ["a", "b"]}, "has no 'answer'"),
        ({"question": "x", "options": ["a", "b"], "answer": 2}, "but there are 2 options"),
        ({"text": "x", "options": ["a", "b"], "answer": 0}, "needs the field 'question'"),
        ({"id": "a", "question": "x", "options": ["a", "b"], "answer": 0}, "also in line 1"),
        (EXAMPLES[0], "is one of its own examples"),
    ):
        with subtests.test(second=second, says=says):
            error = fault(write(tmp_path, items=[ITEMS[0], second]))
            assert "items.jsonl, line 2: " in error and says in error


def test_a_fault_of_a_rule_is_named_with_its_line(tmp_path, subtests):
    for rules, says in (
        ('"first line"', "rules must be a list"),
        ('["nonsense"]', "a rule must be one of whole text, first line"),
        ('[{name = "own", pattern = "("}]', "is no regular expression"),
        ('[{name = "own"}]', "has name, pattern and perhaps which, got name"),
        ('[{name = "own", pattern = "a", which = "all"}]', "which must be one of first, last"),
    ):
        with subtests.test(rules=rules, says=says):
            items = [{"question": "2?", "answers": ["two"]}]
            text = GENERATION.replace('["first line"]', rules)
            error = fault(write(tmp_path, text, items, items))
            assert "line 11: " in error and says in error


def test_a_task_may_have_a_rule_of_its_own(tmp_path):
    items = [{"question": "Is ice cold?", "answers": ["yes"]}]
    examples = [{"question": "Is ice hot?", "answers": ["no"]}]
    own = '[{name = "yes or no", pattern = "yes|no", which = "last"}]'
    path = write(tmp_path, GENERATION.replace('["first line"]', own), items, examples)
    task = load_task(path)
    [request] = make_requests(task)
    sample = sample_of(task, request, Generation("no, I mean yes!", (), "end"))
    assert (sample.answer["extracted"]["rule"], sample.scores["exact"]) == ("yes or no", 1.0)
    path.write_text(path.read_text().replace("yes|no", "yes|no|maybe"))
    assert load_task(path).hash != task.hash


def test_a_task_may_have_further_metrics_and_report_one_of_them(tmp_path):
    items = [{"question": "What is on the mat?", "answers": ["a dog", "the cat on the mat"]}]
    examples = [{"question": "What is red?", "answers": ["a rose"]}]
    text = GENERATION + 'metrics = ["rouge-1", "rouge-2"]\nreport = "rouge-2"\n'
    task = load_task(write(tmp_path, text, items, examples))
    [request] = make_requests(task)
    sample = sample_of(task, request, Generation("the cat sat on the mat", (), "end"))
    assert sample.scores["rouge-1"] == pytest.approx(2 * 5 / (6 + 5))
    assert sample.scores["rouge-2"] == pytest.approx(2 * 3 / (5 + 4))  # the-cat, on-the, the-mat
    assert (task.metric, sample.scores["exact"]) == ("rouge-2", 0.0)
    with pytest.raises(TaskError, match="line 12: report must be one of exact, quasi, f1, got"):
        load_task(write(tmp_path, GENERATION + 'report = "rouge-2"\n', items, examples))


def test_an_unknown_task_lists_the_known_ones_and_an_answer_must_survive_normalization(tmp_path):
    with pytest.raises(TaskError, match=r"give one of .*, multiple-choice, .*, or a TOML file"):
        load_task("multiple_choice")
    items = [{"question": "Which letter is first?", "answers": ["A"]}]
    text = GENERATION + 'normalization = "quasi"\n'
    with pytest.raises(TaskError, match="line 1: an item, '1': nothing is left"):
        load_task(write(tmp_path, text, items, [{"question": "2?", "answers": ["two"]}]))


def test_options_that_cannot_follow_the_prompt_are_refused_before_a_model_is_loaded(tmp_path):
    spaced = [ITEMS[0], ITEMS[1] | {"options": [" 3", " 4"]}]
    with pytest.raises(TaskError, match="line 2: an item, 'b': two spaces meet between ' ' and"):
        load_task(write(tmp_path, items=spaced))
    chat = CHOICE.replace("[prompt]", "[prompt]\nchat = true")
    assert len(load_task(write(tmp_path, chat, spaced)).items) == 2, "no delimiter is written"


def test_the_hash_changes_with_all_that_is_asked_or_scored_and_with_nothing_else(tmp_path):
    base = load_task(write(tmp_path))
    hashes = {base.hash}
    for old, new in (("Q:", "q:"), ("character", "byte"), ("count = 1", "count = 0")):
        task = load_task(write(tmp_path, CHOICE.replace(old, new)))
        assert task.items_hash == base.items_hash
        hashes.add(task.hash)
    task = load_task(write(tmp_path, items=[ITEMS[0], {**ITEMS[1], "answer": 0}]))
    assert task.items_hash != base.items_hash
    hashes.add(task.hash)
    assert len(hashes) == 5
    described = load_task(write(tmp_path, 'description = "x"\n' + CHOICE))
    assert described.hash == base.hash


def test_a_smaller_limit_asks_for_some_of_the_items_of_a_larger_one():
    task = load_task("multiple-choice")
    few = [item.id for item in task.chosen(10)]
    more = [item.id for item in task.chosen(30)]
    assert more[:10] == few != [item.id for item in task.items[:10]]
    assert sorted(item.id for item in task.chosen(300)) == sorted(item.id for item in task.items)


def test_a_built_in_task_has_groups_and_examples_from_other_data(subtests):
    for name in task_names():
        with subtests.test(name=name):
            task = load_task(name)
            assert task.description and len(task.items) >= 60
            assert all(item.group for item in task.items)
            assert {item.id for item in task.examples}.isdisjoint(item.id for item in task.items)


def test_the_task_in_the_readme_can_be_read(tmp_path):
    readme = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
    text = readme.partition("```toml\n")[2].partition("```")[0]
    item = readme.partition('`{"question"')[2].partition("`")[0]
    path = write(tmp_path, text, items=[])
    (tmp_path / "questions.jsonl").write_text('{"question"' + item)
    [read] = load_task(path).items
    assert (read.answers, read.group) == (("5", "five"), "sums")
