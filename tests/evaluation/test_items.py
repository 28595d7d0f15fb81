import json
import re
import string
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path

DATA = Path(__file__).parents[2] / "course_pkg" / "data"
FOLDER = DATA / "evaluation"
CHOICE_FIELDS = {"id", "topic", "group", "question", "options", "answer"}
SHORT_FIELDS = {"id", "topic", "group", "question", "answers"}
OVERLAP = 8  # words: a run of so many that is also in a training text counts as leaked


def read(name: str) -> list[dict]:
    return [json.loads(line) for line in (FOLDER / name).read_text(encoding="utf-8").splitlines()]


CHOICE = read("multiple-choice.jsonl")
CHOICE_EXAMPLES = read("multiple-choice-examples.jsonl")
SHORT = read("short-answers.jsonl")
SHORT_EXAMPLES = read("short-answers-examples.jsonl")
TEMPLATES = json.loads((FOLDER / "templates.json").read_text(encoding="utf-8"))
ALL = CHOICE + CHOICE_EXAMPLES + SHORT + SHORT_EXAMPLES


def normalized(answer: str) -> str:
    """An answer as SQuAD's scorer compares it: no case, punctuation, article or extra space."""
    plain = answer.lower().translate(str.maketrans("", "", string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", plain).split())


def word_runs(text: str, size: int = OVERLAP) -> set[tuple[str, ...]]:
    """The runs of `size` words, without case and punctuation; none of a shorter text."""
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[start : start + size]) for start in range(len(words) - size + 1)}


def strings(value) -> list[str]:
    """Every string in a JSON value."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [text for part in value for text in strings(part)] if isinstance(value, list) else []


def faults_of_choice(item: dict) -> list[str]:
    faults = []
    if item.keys() != CHOICE_FIELDS:
        return ["fields"]
    if len(item["options"]) != 4 or len(set(map(normalized, item["options"]))) != 4:
        faults.append("options")
    if type(item["answer"]) is not int or item["answer"] not in range(4):
        faults.append("answer")
    lengths = [len(option) for option in item["options"]]
    if max(lengths) - min(lengths) > 10 or any(o != o.strip() or not o for o in item["options"]):
        faults.append("lengths")
    return faults


def faults_of_short(item: dict) -> list[str]:
    if item.keys() != SHORT_FIELDS:
        return ["fields"]
    faults = []
    accepted = [normalized(answer) for answer in item["answers"]]
    if not accepted or not all(accepted) or len(set(accepted)) != len(accepted):
        faults.append("answers")
    if any("\n" in answer or len(answer.split()) > 5 for answer in item["answers"]):
        faults.append("long")
    # A number is accepted in digits and in words.
    if any(answer.isdigit() for answer in accepted) and all(map(str.isdigit, accepted)):
        faults.append("number")
    return faults


def spread_of_keys(items: list[dict]) -> int:
    counts = Counter(item["answer"] for item in items)
    return max(counts[i] for i in range(4)) - min(counts[i] for i in range(4))


def by_topic(items: list[dict]) -> dict[str, list[dict]]:
    topics = defaultdict(list)
    for item in items:
        topics[item["topic"]].append(item)
    return topics


def test_the_readme_states_the_number_of_items_and_groups_of_each_topic():
    readme = (DATA / "README.md").read_text(encoding="utf-8")
    for name, items in (("multiple-choice", CHOICE), ("short-answers", SHORT)):
        assert f"| `evaluation` | `{name}` | {len(items)} |" in readme
        assert f"| `evaluation` | `{name}-examples` | 8 |" in readme
        for topic, part in by_topic(items).items():
            groups = len({item["group"] for item in part})
            assert f"| `{name}` | {topic} | {len(part)} | {groups} |" in readme, topic
    assert len(CHOICE) >= 160 and len(SHORT) >= 110
    assert len(CHOICE_EXAMPLES) == len(SHORT_EXAMPLES) == 8


def test_the_files_are_ascii_lines_without_spaces_at_the_ends(subtests):
    for name in sorted(path.name for path in FOLDER.glob("*.*")):
        with subtests.test(name=name):
            text = (FOLDER / name).read_bytes().decode("ascii")
            assert text.endswith("\n") and "\r" not in text and "\t" not in text
            for item in ALL:
                for value in strings(item):
                    assert value and value == " ".join(value.split()), item["id"]


def test_every_item_has_its_fields_and_options_or_answers_that_stay_apart_when_normalized():
    faults = {item["id"]: faults_of_choice(item) for item in CHOICE + CHOICE_EXAMPLES}
    faults |= {item["id"]: faults_of_short(item) for item in SHORT + SHORT_EXAMPLES}
    assert {id: wrong for id, wrong in faults.items() if wrong} == {}


def test_ids_number_the_items_of_a_group_and_no_question_is_asked_twice():
    assert len({item["id"] for item in ALL}) == len(ALL)
    for items, prefix in ((CHOICE + CHOICE_EXAMPLES, "choice"), (SHORT + SHORT_EXAMPLES, "short")):
        seen = Counter()
        for item in items:
            seen[item["group"]] += 1
            assert item["id"] == f"{prefix}-{item['group']}-{seen[item['group']]:02}"

    def plain(item):
        return tuple(re.findall(r"\w+|\.\.\.", item["question"].lower()))

    repeated = [words for words, count in Counter(map(plain, ALL)).items() if count > 1]
    assert repeated == []


def test_groups_are_contiguous_of_one_topic_and_apart_from_those_of_the_examples():
    for items in (CHOICE, SHORT):
        groups = Counter(item["group"] for item in items)
        assert min(groups.values()) >= 3
        assert len({(item["group"], item["topic"]) for item in items}) == len(groups)
        changes = sum(left["group"] != right["group"] for left, right in pairwise(items))
        assert changes == len(groups) - 1
        assert len(groups) >= 30  # enough clusters for a clustered standard error
    for items, examples in ((CHOICE, CHOICE_EXAMPLES), (SHORT, SHORT_EXAMPLES)):
        assert {item["topic"] for item in examples} == {item["topic"] for item in items}
        assert not {item["group"] for item in examples} & {item["group"] for item in items}


def test_the_right_option_is_equally_often_at_each_position_in_every_topic():
    assert all(spread_of_keys(items) <= 1 for items in by_topic(CHOICE).values())
    assert spread_of_keys(CHOICE) <= 4


def test_no_run_of_eight_words_is_in_the_course_s_other_texts():
    texts = []
    for path in DATA.rglob("*.jsonl"):
        if path.parent != FOLDER:
            lines = path.read_text(encoding="utf-8").splitlines()
            texts += [text for line in lines for text in strings(json.loads(line))]
    assert len(texts) > 1000
    corpus = set().union(*map(word_runs, texts))
    assert [i["id"] for i in ALL if any(word_runs(text) & corpus for text in strings(i))] == []


def test_there_are_ten_different_templates_and_an_answer_can_follow_each():
    assert len({template["id"] for template in TEMPLATES}) == len(TEMPLATES) == 10
    for form, fields in (("open", ["question"]), ("listed", ["question", "options"])):
        assert len({template[form] for template in TEMPLATES}) == 10
        for template in TEMPLATES:
            text = template[form]
            # In this order, once each; no space at the end, because the option brings its own.
            assert re.findall(r"{(.*?)}", text) == fields
            assert text == text.strip() and not text.endswith("}")
            shown = text.format(question="Is {it}?", options="A. yes\nB. no")
            assert "Is {it}?" in shown
