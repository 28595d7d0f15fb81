"""Dialogues that need one or two calls, the prompts for them, and the scores of calls and replies.

Sources: Li et al. 2023, API-Bank (levels, correctness, ROUGE-L); Patil et al. 2025, BFCL.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

from course_pkg.common.arguments import require_integer, require_list
from course_pkg.metrics.rouge import rouge_l
from course_pkg.studies.environments_and_tools.apis import (
    Api,
    ApiCall,
    CallError,
    check_call,
    extract_call,
    known_apis,
    run_calls,
)

LEVELS = ("call", "find", "two calls")


@dataclass(frozen=True)
class ApiDialogue:
    """What a user wants, the calls that do it, and a reply. level: one of LEVELS."""

    id: str
    level: str
    group: str
    user: str
    calls: tuple[ApiCall, ...]
    reply: str

    @property
    def apis(self) -> tuple[Api, ...]:
        """The APIs that the prompt describes, and that a constraint admits."""
        known = known_apis()
        if self.level == "call":
            return tuple(known[call.name] for call in self.calls)
        return tuple(known.values())


@cache
def load_dialogues(name: str = "api-dialogues") -> tuple[ApiDialogue, ...]:
    """The 42 dialogues, or with the name "api-dialogues-examples" the four for prompts."""
    file = resources.files("course_pkg") / f"data/evaluation/{name}.jsonl"
    dialogues = []
    for line in file.read_text("utf-8").splitlines():
        row = json.loads(line)
        calls = tuple(ApiCall(**call) for call in row.pop("calls"))
        dialogues.append(ApiDialogue(calls=calls, **row))
    return tuple(dialogues)


def play_calls(texts: Sequence[str]) -> list[tuple[str, dict]]:
    """What a model wrote for each call, as it is shown, and its result or error."""
    require_list(texts, "texts", "give what the model wrote for each call")
    state: dict = {}
    played = []
    for text in texts:
        shown = text.strip().split("\n")[0]
        try:
            call = extract_call(text)
            shown = str(call)
            outcome = run_calls([call], state)
        except CallError as error:
            played.append((shown, {"error": str(error)}))
        else:
            state = outcome.state
            played.append((shown, outcome.results[0]))
    return played


def call_prompt(dialogue: ApiDialogue, texts: Sequence[str], examples: int) -> str:
    """A prompt for the next call, after texts of the model; it shows 0 to 4 solved dialogues."""
    return _head(dialogue, examples) + _turns(dialogue, play_calls(texts)) + "Call:"


def reply_prompt(dialogue: ApiDialogue, examples: int) -> str:
    """A prompt that ends where the reply begins, after the calls of the solution."""
    return _head(dialogue, examples) + _turns(dialogue, _solved(dialogue)) + "Assistant:"


def _solved(dialogue: ApiDialogue) -> list[tuple[str, dict]]:
    return play_calls([str(call) for call in dialogue.calls])


def _head(dialogue: ApiDialogue, examples: int) -> str:
    require_integer(examples, "examples", least=0)
    solved = load_dialogues("api-dialogues-examples")
    if examples > len(solved):
        raise ValueError(f"examples is {examples}: there are {len(solved)}")
    lines = ["APIs:", *(api.signature for api in dialogue.apis)]
    lines.append('Call an API in JSON, with "name" and "arguments". Then reply to the user.')
    blocks = ["\n".join(lines)]
    for example in solved[:examples]:
        blocks.append(f"{_turns(example, _solved(example))}Assistant: {example.reply}")
    return "\n\n".join(blocks) + "\n\n"


def _turns(dialogue: ApiDialogue, played: Sequence[tuple[str, dict]]) -> str:
    lines = [f"User: {dialogue.user}"]
    for shown, result in played:
        lines += [f"Call: {shown}", f"Result: {json.dumps(result)}"]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class CallsScore:
    """The calls of one dialogue, scored 1 or 0, and the first thing that was wrong.

    Attributes:
        valid: each text has a call that fits an API.
        same_calls: name and arguments are the solution's.
        same_outcome: results and state are.
        error: "", the kind of a CallError, or "values" if the calls run and have another outcome.
    """

    valid: float
    same_calls: float
    same_outcome: float
    error: str


def score_calls(dialogue: ApiDialogue, texts: Sequence[str]) -> CallsScore:
    """What a model wrote for the calls of a dialogue, one text for each, against the solution."""
    require_list(texts, "texts", "give what the model wrote for each call")
    if len(texts) != len(dialogue.calls):
        raise ValueError(f"{len(texts)} texts for the {len(dialogue.calls)} calls of {dialogue.id}")
    calls = []
    try:
        for text in texts:
            calls.append(extract_call(text))
            check_call(calls[-1], known_apis())
    except CallError as error:
        return CallsScore(0.0, 0.0, 0.0, error.kind)
    same_calls = float(calls == list(dialogue.calls))
    try:
        same_outcome = run_calls(calls) == run_calls(dialogue.calls)
    except CallError as error:
        return CallsScore(1.0, same_calls, 0.0, error.kind)
    return CallsScore(1.0, same_calls, float(same_outcome), "" if same_outcome else "values")


def score_reply(dialogue: ApiDialogue, text: str) -> float:
    """ROUGE-L (F) of a reply with the reference, as API-Bank scores responses, from 0 to 1."""
    return rouge_l(text, dialogue.reply).fmeasure
