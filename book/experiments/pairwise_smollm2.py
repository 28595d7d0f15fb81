"""SmolLM2 answers, and SmolLM2 judges: can a small model compare answers?

    python book/experiments/pairwise_smollm2.py            run what is missing of the record
    python book/experiments/pairwise_smollm2.py --confirm  after an edit: run one short row again

The model is SmolLM2-135M-Instruct in float32. Answerers: "plain" (greedy), "brief" (greedy, with a
system message that asks for one short sentence), and "reference" (the course's own answers). The
judge is the same model; its preference is the probability of "A" against "B", in both orders.

"answers": what the two answerers write. "compare": two answerers on a set of questions. "known":
the course's answer against a changed copy: padded (the same sentences twice), shuffled words,
or the answer to another question. "grades": single answers, from 1 to 10.
"""

import random
from dataclasses import asdict
from functools import cache

from record import main

from course_pkg.lm.load import load
from course_pkg.studies.chat_benchmarks.held_conversations import (
    HeldConversation,
    compare_all,
    grade_conversation,
    greedy_writer,
    hold_conversations,
    load_chat_questions,
    reference_conversations,
)
from course_pkg.studies.judge.local import LocalJudge

SETS = ("two-turn", "single-turn")
DATA = tuple(f"evaluation/chat-{name}.jsonl" for name in SETS)
BRIEF = "Answer in one short sentence."
MOST_TOKENS = 48
PROBE = {"kind": "known", "change": "shuffled"}
PLAN = [
    *(
        {"kind": "answers", "answerer": who, "set": name}
        for who in ("plain", "brief")
        for name in SETS
    ),
    PROBE,
    *({"kind": "known", "change": change} for change in ("padded", "other question")),
    *(
        {"kind": "compare", "set": "two-turn", "first": first, "second": second}
        for first, second in (("plain", "reference"), ("brief", "reference"), ("plain", "brief"))
    ),
    *(
        {"kind": "compare", "set": "single-turn", "first": first, "second": "reference"}
        for first in ("plain", "brief")
    ),
    *({"kind": "grades", "answerer": who} for who in ("plain", "brief", "reference")),
]


class Model:
    """The model as answerer and as judge; answers are written once."""

    def __init__(self) -> None:
        self.model, self.tokenizer = load("smollm2-135m")
        self.judge = LocalJudge(self.model, self.tokenizer, reuse_prompt=True)
        self.conversations = cache(self._conversations)

    def _conversations(self, answerer: str, name: str) -> list[HeldConversation]:
        questions = load_chat_questions(name)
        if answerer == "reference":
            return reference_conversations(questions)
        system = BRIEF if answerer == "brief" else None
        write = greedy_writer(self.model, self.tokenizer, max_new_tokens=MOST_TOKENS, system=system)
        return hold_conversations(write, questions, answerer)


def _changed(change: str) -> list[HeldConversation]:
    """The course's single-turn answers, made worse or longer without adding anything."""
    questions = load_chat_questions("single-turn")
    generator = random.Random(0)
    found = []
    for number, question in enumerate(questions):
        text = question.references[0]
        if change == "padded":
            text = f"{text} {text}"
        elif change == "shuffled":
            words = text.split()
            generator.shuffle(words)
            text = " ".join(words)
        else:  # the answer to a question of another category
            text = questions[(number + len(questions) // 2) % len(questions)].references[0]
        found.append(HeldConversation(question, change, (text,)))
    return found


def measure(model: Model, key: dict) -> dict:
    """What a row of this kind records."""
    if key["kind"] == "answers":
        return {
            "texts": [each.answers for each in model.conversations(key["answerer"], key["set"])]
        }
    if key["kind"] == "grades":
        asked = model.conversations(key["answerer"], "single-turn")
        return {"grades": [grade_conversation(model.judge, each)[0] for each in asked]}
    if key["kind"] == "known":
        first = model.conversations("reference", "single-turn")
        second = _changed(key["change"])
    else:
        first, second = (model.conversations(key[side], key["set"]) for side in ("first", "second"))
    found = compare_all(model.judge, first, second)
    return {"comparisons": [list(asdict(each).values()) for each in found]}


if __name__ == "__main__":
    settings = {"model": "smollm2-135m", "brief": BRIEF, "most_tokens": MOST_TOKENS}
    main(__file__, PLAN, Model, measure, probe=PROBE, settings=settings, data=DATA)
