"""Log-probabilities of options with SmolLM2: ours, and lm-eval's model for transformers.

Both get the same model in this process, the same contexts and options, and one thread; they take
turns. lm-eval has batches of 4, one question's options. The course doesn't need lm-eval otherwise:
`benchmarks/lm_eval_parity.py` says how to install it into an environment of its own.
"""

from collections.abc import Iterator
from importlib.util import find_spec

from benchmarks.compare import Comparison, NotMeasured, compare_times
from course_pkg.evaluation.multiple_choice import ChoiceQuestion, score_questions
from course_pkg.lm.load import load
from course_pkg.pages.datasets import Example, load_examples

QUESTIONS = 6
EXAMPLES = 2  # solved ones, in the few-shot prompt
TOLERANCE = 1e-3  # nats, of an option's sum in fp32
LIMIT = 1 / 1.5
ONE_TOKEN_LIMIT = 0.9  # lm-eval, too, reads a question once if its options are single tokens


def measure() -> Iterator[Comparison | NotMeasured]:
    """Time per call, for options of a sentence, with and without examples, and for letters."""
    if find_spec("lm_eval") is None:
        yield NotMeasured("options of questions", "lm-eval is not installed: see the module")
        return
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    model, tokenizer = load("smollm2-135m")
    harness = HFLM(model, tokenizer=tokenizer, batch_size=4)
    for what, questions in cases().items():
        pairs = [(q.context, f" {option}") for q in questions for option in q.options]
        requests = [Instance("loglikelihood", {}, pair, n) for n, pair in enumerate(pairs)]

        def ours(questions=questions) -> list[float]:
            found = score_questions(model, tokenizer, questions).questions
            return [option.log_prob for question in found for option in question.options]

        def theirs(requests=requests) -> list[float]:
            return [score for score, _ in harness.loglikelihood(requests, disable_tqdm=True)]

        largest = max(abs(a - b) for a, b in zip(ours(), theirs(), strict=True))
        if largest > TOLERANCE:
            raise AssertionError(f"{what}: the results differ by {largest:.1e} nats")
        limit = ONE_TOKEN_LIMIT if what.endswith("a letter") else LIMIT
        name = f"{what}, and lm-eval; they differ by at most {largest:.0e} nats"
        yield compare_times(name, ours, theirs, seconds=0, limit=limit, warmup=0)


def cases() -> dict[str, list[ChoiceQuestion]]:
    """Questions of the navigator data; the wrong options are the answers of other questions."""
    rows = load_examples("navigator", "held-out")[: QUESTIONS + EXAMPLES]
    answers = [_fact(row) for row in rows]
    options = [
        tuple(answers[(number + step) % len(rows)] for step in range(4))
        for number in range(len(rows))
    ]
    plain = [f"Question: {row.prompt}\nAnswer:" for row in rows]
    solved = "".join(
        f"{text} {answer}\n\n"
        for text, answer in zip(plain[QUESTIONS:], answers[QUESTIONS:], strict=True)
    )
    lettered = []
    for row, four in zip(rows, options, strict=True):
        lines = "\n".join(
            f"{letter}. {option}" for letter, option in zip("ABCD", four, strict=True)
        )
        lettered.append(f"Question: {row.prompt}\n{lines}\nAnswer:")
    shown = f"{QUESTIONS} questions, 4 options"
    return {
        f"{shown} of a sentence": [
            ChoiceQuestion(plain[number], options[number]) for number in range(QUESTIONS)
        ],
        f"{shown} of a sentence, {EXAMPLES} solved examples": [
            ChoiceQuestion(solved + plain[number], options[number]) for number in range(QUESTIONS)
        ],
        f"{shown} of a letter": [
            ChoiceQuestion(lettered[number], ("A", "B", "C", "D")) for number in range(QUESTIONS)
        ],
    }


def _fact(example: Example) -> str:
    """The first sentence of an answer, without its label."""
    return example.response.split("\n")[0].removeprefix("LOG: ")
