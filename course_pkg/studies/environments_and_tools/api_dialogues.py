"""Dialogues that need one or two calls, the prompts for them, and the scores of calls and replies.

Three levels, after API-Bank: "call" (the prompt describes the one API that is needed), "find" (it
describes all eleven), and "two calls" (all eleven, and the second call needs the first one's
result). Each dialogue has the calls of a solution and a reply. A prompt says how many calls follow;
deciding that is left out here.

Comparing calls as text or by their arguments punishes another way to the same effect: 9:30 and
09:30, an optional argument written out. Comparing what they did doesn't: all results and the state
at the end are equal. API-Bank counts a call as correct in this sense. It has a danger of its own: a
state that doesn't record something can't tell two calls apart.

Sources: Li et al. 2023, API-Bank, on levels, correctness and ROUGE-L; Patil et al. 2025, BFCL, on
comparing arguments and comparing states. Chapter: evaluation/environments-and-tools.
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
    """What a user wants, the calls that do it, and a reply. group: of related APIs."""

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
    """The 42 dialogues, or with the name "api-dialogues-examples" the four for prompts.

    >>> dialogue = load_dialogues()[0]
    >>> dialogue.user, str(dialogue.calls[0])[:20]
    ('On which shelf is Gardens of Salt?', '{"name": "find_book"')
    """
    file = resources.files("course_pkg") / f"data/evaluation/{name}.jsonl"
    dialogues = []
    for line in file.read_text("utf-8").splitlines():
        row = json.loads(line)
        calls = tuple(ApiCall(**call) for call in row.pop("calls"))
        dialogues.append(ApiDialogue(calls=calls, **row))
    return tuple(dialogues)


def play_calls(texts: Sequence[str]) -> list[tuple[str, dict]]:
    """What a model wrote for each call, as it is shown, with the result of its execution.

    A text without a call is shown by its first line. A call that fails has an error as its result,
    and changes nothing. Raises TypeError unless texts is a list.

    >>> play_calls(['{"name": "set_timer", "arguments": {"minutes": 5}}', "Hello."])[1]
    ('Hello.', {'error': 'there is no JSON object with "name" and "arguments" in \\'Hello.\\''})
    """
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
    """A prompt that ends where the next call begins.

    texts: what the model wrote for the calls before. examples: how many solved dialogues it shows,
    from 0 to 4; ValueError otherwise.

    >>> print(call_prompt(load_dialogues()[0], [], 0))
    APIs:
    find_book(title): look up a book's id and shelf.
    Call an API in JSON, with "name" and "arguments". Then reply to the user.
    <BLANKLINE>
    User: On which shelf is Gardens of Salt?
    Call:
    """
    return _head(dialogue, examples) + _turns(dialogue, play_calls(texts)) + "Call:"


def reply_prompt(dialogue: ApiDialogue, examples: int) -> str:
    """A prompt that ends where the reply begins, after the calls of the solution.

    >>> print(reply_prompt(load_dialogues()[0], 0)[-49:])
    Result: {"book_id": "B07", "shelf": 2}
    Assistant:
    """
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

    valid: each text has a call that fits an API. same_calls: name and arguments are the solution's.
    same_outcome: results and state are. error: "" if the outcome is the same; otherwise the kind of
    a CallError, or "values" if the calls run and have another outcome.
    """

    valid: float
    same_calls: float
    same_outcome: float
    error: str


def score_calls(dialogue: ApiDialogue, texts: Sequence[str]) -> CallsScore:
    """What a model wrote for the calls of a dialogue, compared with the solution.

    texts: one for each call of the solution; ValueError for another number, TypeError unless it is
    a list.

    >>> from course_pkg.studies.environments_and_tools.api_dialogues import load_dialogues
    >>> doctor = next(dialogue for dialogue in load_dialogues() if "doctor" in dialogue.user)
    >>> text = str(doctor.calls[0]).replace('"9:30"', '"09:30"')
    >>> score_calls(doctor, [text])
    CallsScore(valid=1.0, same_calls=0.0, same_outcome=1.0, error='')
    """
    require_list(texts, "texts", "give what the model wrote for each call")
    if len(texts) != len(dialogue.calls):
        raise ValueError(
            f"{len(texts)} texts for the {len(dialogue.calls)} calls of {dialogue.id}: give one "
            "for each, also for one that failed"
        )
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
    """ROUGE-L (F) of a reply with the reference, as API-Bank scores responses, from 0 to 1.

    >>> from course_pkg.studies.environments_and_tools.api_dialogues import load_dialogues
    >>> round(score_reply(load_dialogues()[0], "It is on shelf 9."), 2)
    0.5
    """
    return rouge_l(text, dialogue.reply).fmeasure
