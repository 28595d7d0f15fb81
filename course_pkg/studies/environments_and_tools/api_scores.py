"""Scores of calls: valid, the same as the solution's, and with the same outcome.

Comparing calls as text or by their arguments punishes another way to the same effect: 9:30 and
09:30, an optional argument written out. Comparing what they did doesn't: all results and the state
at the end are equal. API-Bank counts a call as correct in this sense. It has a danger of its own: a
state that doesn't record something can't tell two calls apart.

Sources: Li et al. 2023, API-Bank, on correctness and ROUGE-L; Patil et al. 2025, BFCL, on comparing
arguments and comparing states. Chapter: evaluation/environments-and-tools.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from course_pkg.common.arguments import require_list
from course_pkg.metrics.rouge import rouge_l
from course_pkg.studies.environments_and_tools.api_calls import CallError, check_call, extract_call
from course_pkg.studies.environments_and_tools.api_dialogues import ApiDialogue
from course_pkg.studies.environments_and_tools.mock_apis import known_apis, run_calls


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
    >>> doctor = next(each for each in load_dialogues() if "doctor" in each.user)
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
