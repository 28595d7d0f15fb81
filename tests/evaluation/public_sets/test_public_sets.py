import sys
from types import SimpleNamespace

import pytest

from course_pkg.evaluation.public_sets import (
    find_public_set,
    load_public_set,
    public_sets,
    public_task,
)
from course_pkg.evaluation.run_errors import TaskError
from course_pkg.evaluation.samples import make_requests

COMMIT = "0123456789abcdef0123456789abcdef01234567"
PAIR = {"sentence1": "It rained.", "sentence2": "The street got wet."}
LETTERED = {"A": "1", "B": "2", "C": "3", "D": "4"}
# One original row for each set, with the columns of the real one, and what it must become.
ROWS = {
    "gsm8k": ({"question": "Two and two?", "answer": "2 + 2 = <<2+2=4>>4.\n#### 4"}, "4"),
    "svamp": ({"Body": "Ann has 3 pens.", "Question": "How many?", "Answer": "3.0"}, "3.0"),
    "math-500": ({"problem": "Find $1+1$.", "answer": "2", "solution": "\\boxed{2}"}, "2"),
    "mmlu": ({"question": "Ice is", "choices": ["hot", "cold", "red", "sad"], "answer": 1}, "cold"),
    "boolq": ({"passage": "Ice is cold.", "question": "is ice cold", "label": 1, "idx": 0}, "yes"),
    "superglue-cb": ({"premise": "It snows.", "hypothesis": "It is hot", "label": 1}, "False"),
    "superglue-copa": (
        {"premise": "He slept.", "question": "cause", "choice1": "Tired.", "choice2": "Awake.",
         "label": 0},
        "Tired.",
    ),
    "superglue-wic": ({**PAIR, "word": "wet", "label": 0}, "no"),
    "glue-cola": ({"sentence": "Me sleeps.", "label": 0, "idx": 0}, "no"),
    "glue-sst2": ({"sentence": "a fine film", "label": 1, "idx": 0}, "positive"),
    "glue-mrpc": ({**PAIR, "label": 0, "idx": 0}, "no"),
    "glue-qqp": ({"question1": "Why?", "question2": "How so?", "label": 1, "idx": 0}, "yes"),
    "glue-mnli": ({"premise": "It snows.", "hypothesis": "It is cold.", "label": 1}, "Neither"),
    "glue-qnli": ({"question": "When?", "sentence": "At noon.", "label": 0, "idx": 0}, "yes"),
    "glue-rte": ({**PAIR, "label": 1, "idx": 0}, "False"),
    "glue-wnli": ({**PAIR, "label": 1, "idx": 0}, "True"),
    "csqa": (
        {"question": "Where do boats go?", "answerKey": "B",
         "choices": {"label": list("ABCDE"), "text": ["oven", "sea", "shelf", "tree", "cup"]}},
        "sea",
    ),
    "strategyqa": ({"question": "Is ice water?", "answer": False}, "no"),
    "scienceqa": (
        {"hint": "", "question": "What melts?", "choices": ["ice", "iron"], "answer": 0}, "ice",
    ),
    "winogender": (
        {"sentence": "The baker paid the guest because he lost.", "pronoun": "he",
         "occupation": "baker", "participant": "guest", "label": 0},
        "baker",
    ),
    "medqa": (
        {"sent1": "What carries blood?", "ending0": "bone", "ending1": "hair", "ending2": "veins",
         "ending3": "nails", "label": 2},
        "veins",
    ),
    "medmcqa": (
        {"question": "What hears?", "opa": "ear", "opb": "eye", "opc": "toe", "opd": "arm",
         "cop": 0},
        "ear",
    ),
    "pubmedqa": (
        {"question": "Does it help?", "context": {"contexts": ["It did.", "Twice."]},
         "final_decision": "maybe"},
        "maybe",
    ),
    "ceval": ({"question": "一加二是____", **LETTERED, "answer": "C"}, "3"),
    "cmmlu": ({"Question": "一加三是", **LETTERED, "Answer": "D"}, "4"),
    "humaneval": ({"task_id": "x/0", "prompt": "def f():", "test": "", "entry_point": "f"}, None),
    "mbpp": ({"task_id": 1, "text": "Add.", "code": "", "test_list": ["assert 1"]}, None),
    "mt-bench": ({"prompt_id": 1, "category": "math", "prompt": ["a", "b"], "reference": []}, None),
    "crows-pairs": ({"sent_more": "a", "sent_less": "b", "bias_type": "age"}, None),
}  # fmt: skip
TASKS = [name for name, (_, solution) in ROWS.items() if solution is not None]


class FakeSplit(list):
    """What `load_dataset` returns, as far as it is used."""

    def __init__(self, rows, commit=COMMIT):
        super().__init__(rows)
        self.cache_files = [{"filename": f"/cache/a___b/default/0.0.0/{commit}/b-test.arrow"}]


def use(monkeypatch, load_dataset):
    """Let the library have this function."""
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))


@pytest.fixture
def hub(monkeypatch):
    """A library whose hub has one row of each set; it notes what was asked for."""
    asked = []

    def load_dataset(path, name, *, split, revision):
        asked.append((path, name, split, revision))
        entries = [entry for entry in public_sets() if entry.hub == path]
        [entry] = [entry for entry in entries if entry.config == name] or entries
        return FakeSplit([ROWS[entry.name][0]] * 3)

    use(monkeypatch, load_dataset)
    return asked


def test_a_real_row_becomes_an_item_with_its_right_answer_that_can_be_asked(hub, subtests):
    assert [entry.name for entry in public_sets()] == list(ROWS)
    for name in TASKS:
        with subtests.test(name=name):
            entry = find_public_set(name)
            loaded = load_public_set(name)
            assert hub.pop() == (entry.hub, entry.config, entry.split, "main")
            assert loaded.revision == COMMIT and loaded.rows == () and len(loaded.items) == 3
            item = loaded.items[0]
            assert item.solution == ROWS[name][1]
            assert item.fields["question"].strip() and "{" not in item.fields["question"]
            task = public_task(f"public:{name}")
            assert len(make_requests(task, tokenizer=None)) == 3 and COMMIT in task.description
            assert task.settings["kind"] == entry.kind
            hub.clear()


def test_sets_that_need_more_than_texts_give_rows(hub, subtests):
    for name in sorted(ROWS.keys() - set(TASKS)):
        with subtests.test(name=name):
            loaded = load_public_set(name)
            assert loaded.items == () and loaded.rows[0] == ROWS[name][0]
            with pytest.raises(TaskError, match="load its rows"):
                public_task(name)


def test_a_config_a_split_and_a_revision_are_passed_on(hub, monkeypatch):
    task = public_task("public:ceval/accountant", split="val", revision="v1")
    assert hub == [("ceval/ceval-exam", "accountant", "val", "v1")]
    assert task.name == "public-ceval-accountant"
    split = FakeSplit([ROWS["gsm8k"][0]])
    split.cache_files = []
    use(monkeypatch, lambda *_, **__: split)
    assert load_public_set("gsm8k", revision="v2").revision == "v2"


def test_a_template_joins_nested_lists(hub):
    item = load_public_set("pubmedqa").items[0]
    assert item.fields["question"] == "It did.\nTwice.\nQuestion: Does it help?"


def test_a_row_that_does_not_fit_is_named(monkeypatch, subtests):
    for name, change, error in (
        ("gsm8k", {"question": None}, "no column 'question'; there are answer"),
        ("csqa", {"choices": {"label": []}}, "no column 'choices.text'"),
        ("gsm8k", {"answer": "four"}, "without what"),
        ("svamp", {"Answer": " "}, "empty"),
        ("mmlu", {"answer": 4}, "names none of the 4 options"),
        ("mmlu", {"answer": True}, "names none of the 4 options as index"),
        ("mmlu", {"choices": ["one"]}, "two or more texts"),
        ("mmlu", {"choices": ["one", ""]}, "two or more texts"),
        ("csqa", {"answerKey": "F"}, "names none of the 5 options as letter"),
        ("strategyqa", {"answer": 1}, "as boolean"),
        ("pubmedqa", {"final_decision": "perhaps"}, "as text"),
        ("glue-rte", {"label": -1}, "is -1: this split keeps its answers back"),
        ("csqa", {"answerKey": ""}, "is '': this split keeps its answers back"),
        ("humaneval", {"test": None}, "no column 'test'"),
    ):
        with subtests.test(name=name, change=change):
            row = {key: v for key, v in (ROWS[name][0] | change).items() if v is not None}
            rows = FakeSplit([ROWS[name][0], row])
            use(monkeypatch, lambda *_, rows=rows, **__: rows)
            with pytest.raises(TaskError, match=error) as caught:
                load_public_set(name)
            assert str(caught.value).startswith(f"{name} (") and "row 1:" in str(caught.value)


def test_a_set_that_cannot_be_loaded_is_one_clear_error(monkeypatch):
    def load_dataset(*_, **__):
        raise ConnectionError("Couldn't reach 'openai/gsm8k' on the Hub")

    use(monkeypatch, load_dataset)
    with pytest.raises(TaskError, match="needs a network, or a cache") as caught:
        load_public_set("gsm8k")
    assert "Couldn't reach" in str(caught.value) and "\n" not in str(caught.value)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(TaskError, match=r'pip install "course-pkg\[public\]"'):
        load_public_set("gsm8k")
    use(monkeypatch, lambda *_, **__: FakeSplit([]))
    with pytest.raises(TaskError, match="has no rows"):
        load_public_set("gsm8k")
    with pytest.raises(TaskError, match=r"no public set 'gsm9k'.*gsm8k"):
        public_task("public:gsm9k")


def test_the_command_takes_a_public_set(hub, tmp_path):
    from typer.testing import CliRunner

    from course_pkg.cli.main import app

    arguments = ["eval", "--model", "tiny", "--task", "public:glue-sst2", "--output", str(tmp_path)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0 and "public-glue-sst2" in result.output
    wrong = CliRunner().invoke(app, ["eval", "--model", "tiny", "--task", "public:mbpp"])
    assert wrong.exit_code == 2 and "load its rows" in wrong.output
