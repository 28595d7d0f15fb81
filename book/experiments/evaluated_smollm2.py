"""How far does SmolLM2's score depend on how one asks? Prompts, examples, typos, and constraints.

    python book/experiments/evaluated_smollm2.py            run what is missing of the record
    python book/experiments/evaluated_smollm2.py --confirm  after an edit: run one short row again

The model is SmolLM2-135M-Instruct in float32, the only version whose weights the course has. Most
rows use 128 multiple-choice questions, the first two of each group.

"options": the log-probabilities of the four options after an open question, which doesn't list
them. One row has all 256 questions, and the options after "Answer:" alone. The others differ from
it in one thing: the template, the number of examples, their answers or their template, the chat
template, or typing errors in the question.
"written": the options are listed, without letters, and the model writes 16 tokens greedily; with a
constraint, only one of the four options, and then a line break.
"letters": the three ways in which three programs scored MMLU (`lettered_questions`).
"number": short questions whose answer is a number. An instruction asks for digits, examples show
them, or a constraint admits nothing else, and all combinations.
"""

import json
import re
from itertools import product

from record import main
from torch import nn
from transformers import PreTrainedTokenizerBase as Tokenizer

from course_pkg.evaluation.greedy import generate_greedy
from course_pkg.evaluation.multiple_choice import ChoiceQuestion, score_questions
from course_pkg.evaluation.prompt_template import PromptTemplate
from course_pkg.lm.load import load
from course_pkg.pages.datasets import first_of_groups, read_records
from course_pkg.pages.experiments import ROOT
from course_pkg.pages.perturbations import add_typos
from course_pkg.serving.constrained.decoding import generate_greedily
from course_pkg.serving.constrained.guide import regex_guide
from course_pkg.serving.constrained.vocabulary import vocabulary_of
from course_pkg.studies.likelihood_and_generation.lettered_questions import (
    LetteredQuestion,
    three_ways,
)

FILES = ("multiple-choice", "multiple-choice-examples", "short-answers", "short-answers-examples")
DATA = (*(f"evaluation/{name}.jsonl" for name in FILES), "evaluation/templates.json")
FEW = 128  # the first two questions of each group
ALL = 256
TEMPLATE = "question-answer"
TEMPLATES = ["question-answer", "initials", "one-line", "request", "headings"]
TEMPLATES += ["classroom", "quiz", "dialogue", "report", "exam"]
MOST_TOKENS = 16
NUMBER = r" [0-9]{1,3}\n"
INSTRUCTION = "Answer with one number in digits.\n\n"


def options(**changes: object) -> dict:
    """The key of a row of option scores; every setting is named, so that no row includes another.

    answers: of the examples, "right" or those of the next example. shown_in: the examples'
    template.
    """
    key = {"kind": "options", "items": FEW, "template": TEMPLATE, "form": "plain"}
    key |= {"examples": 0, "answers": "right", "shown_in": TEMPLATE, "typos": 0.0, "seed": 0}
    return key | changes


PROBE = options(template="initials")
PLAN = [
    options(items=ALL),
    *(options(template=name) for name in TEMPLATES),
    *(options(examples=count) for count in (1, 2, 4, 8)),
    options(examples=8, answers="next"),
    options(examples=8, shown_in="exam"),
    *(options(form="chat", examples=count) for count in (0, 8)),
    *(options(typos=rate, seed=seed) for rate, seed in product((0.03, 0.1, 0.2), (0, 1, 2))),
    *({"kind": "letters", "examples": count} for count in (0, 4)),
    *(
        {"kind": "number", "told": told, "shown": shown, "constrained": constrained}
        for told, shown, constrained in product((False, True), repeat=3)
    ),
    *(
        {"kind": "written", "template": name, "constrained": constrained}
        for name, constrained in product(TEMPLATES, (False, True))
    ),
]


class Models:
    """The model, the items, and the templates."""

    def __init__(self) -> None:
        self.model, self.tokenizer = load("smollm2-135m")
        self.vocabulary = vocabulary_of(self.tokenizer)
        choices, choice_examples, short, short_examples = (read_records(name) for name in FILES)
        self.choices = choices
        self.few = first_of_groups(choices)
        self.choice_examples = choice_examples
        self.numbers = [item for item in short if _digits(item)]
        self.number_examples = [item for item in short_examples if _digits(item)]
        text = (ROOT / "course_pkg/data/evaluation/templates.json").read_text("utf-8")
        self.templates = {each["id"]: each for each in json.loads(text)}

    def written(self, prompts: list[str], patterns: list[str] | None) -> dict:
        """What the model writes greedily; with patterns, one for each prompt, a text that matches.

        texts: a constrained one without its line break. passes: forward passes, if constrained.
        """
        if patterns is None:
            found = generate_greedy(self.model, self.tokenizer, prompts, max_new_tokens=MOST_TOKENS)
            return {"texts": [each.text for each in found]}
        texts = []
        passes = []
        for prompt, pattern in zip(prompts, patterns, strict=True):
            guide = regex_guide(pattern, self.vocabulary)
            ids = self.tokenizer(prompt).input_ids
            found = generate_greedily(self.model, ids, guide, 4 * MOST_TOKENS)
            texts.append(self.tokenizer.decode(found.tokens, skip_special_tokens=True).rstrip("\n"))
            passes.append(found.passes)
            if not found.finished:
                raise RuntimeError(f"the constrained answer {texts[-1]!r} is cut off")
        return {"texts": texts, "passes": passes}


def _digits(item: dict) -> str | None:
    """The item's answer in digits, if it has one."""
    return next((answer for answer in item["answers"] if re.fullmatch("[0-9]+", answer)), None)


def _option_scores(models: Models, key: dict) -> dict:
    """For each question: its options' log-probabilities, tokens, and whether one is written."""
    items = models.choices if key["items"] == ALL else models.few
    template = PromptTemplate(models.templates[key["template"]]["open"])
    shown_in = PromptTemplate(models.templates[key["shown_in"]]["open"])
    examples = _examples(models.choice_examples[: key["examples"]], key["answers"])
    chat = models.tokenizer if key["form"] == "chat" else None
    before = ""
    if key["shown_in"] != key["template"]:
        # render has one template for all; the examples' text goes before the question's.
        blocks = (shown_in.render(each).text + " " + each["answer"] + "\n\n" for each in examples)
        before = "".join(blocks)
        examples = []
    questions = []
    for number, item in enumerate(items):
        asked = add_typos(item["question"], key["typos"], seed=1000 * key["seed"] + number)
        prompt = template.render({"question": asked}, examples, chat=chat)
        context = before + prompt.text
        questions.append(
            ChoiceQuestion(
                context, tuple(item["options"]), item["answer"], prompt.delimiter, item["id"]
            )
        )
    premise = "Answer:" if key["items"] == ALL else None
    found = score_questions(models.model, models.tokenizer, questions, premise=premise).questions
    result = {
        "log_probs": [[option.log_prob for option in each.options] for each in found],
        "tokens": [[len(option.log_probs) for option in each.options] for each in found],
        "writes": [each.writes_an_option for each in found],
    }
    if premise is not None:
        result["unconditional"] = [[o.unconditional for o in each.options] for each in found]
    return result


def _examples(items: list[dict], answers: str) -> list[dict]:
    """Fields of examples. answers: "next" gives each the next example's answer."""
    right = [item["options"][item["answer"]] for item in items]
    given = right if answers == "right" else right[1:] + right[:1]
    return [
        {"question": item["question"], "answer": answer}
        for item, answer in zip(items, given, strict=True)
    ]


def _written(models: Models, key: dict) -> dict:
    template = PromptTemplate(models.templates[key["template"]]["listed"])
    prompts = []
    patterns = []
    for item in models.few:
        lines = "\n".join(f"- {option}" for option in item["options"])
        prompts.append(template.render({"question": item["question"], "options": lines}).text)
        patterns.append(" (" + "|".join(map(re.escape, item["options"])) + r")\n")
    return models.written(prompts, patterns if key["constrained"] else None)


def _numbers(models: Models, key: dict) -> dict:
    template = PromptTemplate(description=INSTRUCTION if key["told"] else "")
    examples = []
    if key["shown"]:
        examples = [
            {"question": item["question"], "answer": _digits(item)}
            for item in models.number_examples
        ]
    prompts = [template.render(item, examples).text for item in models.numbers]
    found = models.written(prompts, [NUMBER] * len(prompts) if key["constrained"] else None)
    return {"ids": [item["id"] for item in models.numbers], **found}


def _letters(model: nn.Module, tokenizer: Tokenizer, models: Models, count: int) -> dict:
    def lettered(items: list[dict]) -> list[LetteredQuestion]:
        return [
            LetteredQuestion(item["question"], tuple(item["options"]), item["answer"], item["id"])
            for item in items
        ]

    asked = lettered(models.few)
    found = three_ways(model, tokenizer, asked, lettered(models.choice_examples[:count]))
    return {
        "correct": {way: list(map(int, column)) for way, column in found.correct().items()},
        "per_character": list(map(int, found.full_answers.correct("character"))),
        "letters": [each.choice() for each in found.letters.questions],
        "texts": [each.generation.text for each in found.generation.answers],
    }


def measure(models: Models, key: dict) -> dict:
    """What a row of this kind records."""
    match key["kind"]:
        case "options":
            return _option_scores(models, key)
        case "written":
            return _written(models, key)
        case "number":
            return _numbers(models, key)
        case "letters":
            return _letters(models.model, models.tokenizer, models, key["examples"])


if __name__ == "__main__":
    settings = {
        "model": "smollm2-135m",
        "templates": TEMPLATES,
        "number_pattern": NUMBER,
        "instruction": INSTRUCTION,
        "most_tokens": MOST_TOKENS,
    }
    main(__file__, PLAN, Models, measure, probe=PROBE, settings=settings, data=DATA)
