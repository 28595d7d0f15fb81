"""lm-evaluation-harness finds the same log-probabilities, scores and texts.

It needs the package lm-eval, in an environment of its own that also sees the course's packages:

    python -m venv .venv-lm-eval
    echo "$PWD"/.venv/lib/python3.*/site-packages > .venv-lm-eval/lib/python3.*/site-packages/c.pth
    .venv-lm-eval/bin/python -m pip install --no-deps lm-eval==0.4.13

COURSE_LM_EVAL names the Python of another environment.

What was found on 2026-11-26, with lm-eval 0.4.13, transformers 5.23.0 and torch 2.13.0, one thread,
for the 24 options of `written_questions` after their contexts and after none:
- the random model in fp64: log-probabilities differ by at most 1.7e-6 nats, and all texts of
  `generate_until` are the same; in fp32 by 1.3e-5, of sums up to 183 nats;
- SmolLM2 in fp32: by at most 1.2e-4, of sums up to 54 nats;
- which options the model would write is the same everywhere.
"""

import functools
import json
import os
import subprocess
from pathlib import Path

import pytest

from course_pkg.evaluation.greedy import generate_greedy
from course_pkg.evaluation.multiple_choice import ChoiceQuestion, score_questions
from course_pkg.lm.tiny import tiny_tokenizer
from tests.evaluation.test_generation import sharpened

ROOT = Path(__file__).parent.parent.parent
JUDGE = Path(__file__).with_name("lm_eval_judge.py")
NAMES = {"acc": "sum", "acc_norm": "character", "acc_bytes": "byte", "acc_mutual_info": "pmi"}


@functools.cache
def lm_eval_python():
    """The Python of the environment with lm-eval, and why there is none."""
    python = Path(os.environ.get("COURSE_LM_EVAL", ROOT / ".venv-lm-eval/bin/python"))
    if not python.is_file():
        return python, f"there is no {python}: this file's first lines say how to make it"
    program = "from importlib.metadata import version; print(version('lm-eval'))"
    tried = subprocess.run([python, "-c", program], capture_output=True, text=True)
    if tried.returncode:
        return python, f"{python} has no lm-eval: {tried.stderr.strip()[-200:]}"
    return python, None


PYTHON, MISSING = lm_eval_python()
pytestmark = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))


def judge(folder, **request):
    """lm-eval's answer; it works in the folder, and keeps its data there."""
    environment = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(folder)}
    options = {"capture_output": True, "text": True, "timeout": 550, "cwd": folder}
    environment = os.environ | environment
    done = subprocess.run([PYTHON, JUDGE], input=json.dumps(request), env=environment, **options)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout[done.stdout.index("ANSWER") + 6 :])


def written_questions():
    """Questions with one right answer, of several lengths and scripts, and two solved examples."""
    solved = "Question: What is frozen water?\nAnswer: ice\n\nQuestion: 2 + 3?\nAnswer: 5\n\n"
    rows = [
        ("What do bees make?", ("honey", "milk", "steel", "a very long song about the sea"), 0),
        ("How many legs has a spider?", ("six", "eight", "one hundred and twelve"), 1),
        ("Where is the Eiffel Tower?", ("Rome", "Paris, the capital of France", "Oslo"), 1),
        ("Which drink is made from beans?", ("café", "thé", "eau", "naïve beer"), 0),
        ("What is the capital of China?", ("北京", "東京", "서울", "Ulaanbaatar"), 0),
        ("What is 7 times 8?", ("54", "56", "78", "5600"), 1),
        ("Is the sun a star?", ("yes", "no"), 0),
    ]
    return [
        {"context": f"{solved}Question: {question}\nAnswer:", "options": options, "answer": answer}
        for question, options, answer in rows
    ]


def compare(model, tokenizer, judged, questions, tolerance):
    """Check log-probabilities to the tolerance in nats, and all metrics; return the difference."""
    asked = [ChoiceQuestion(q["context"], tuple(q["options"]), q["answer"]) for q in questions]
    result = score_questions(model, tokenizer, asked, premise="")
    largest = 0.0
    rows = zip(result.questions, judged["options"], judged["unconditional"], strict=True)
    for mine, theirs, unconditional in rows:
        for option, (log_prob, greedy), alone in zip(
            mine.options, theirs, unconditional, strict=True
        ):
            largest = max(largest, abs(option.log_prob - log_prob))
            largest = max(largest, abs(option.unconditional - alone))
            assert option.greedy == greedy
    assert largest <= tolerance
    assert {name: result.accuracy(NAMES[name]) for name in NAMES} == judged["metrics"]
    return largest


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_random_model_has_the_same_scores_and_texts(tmp_path):
    model = sharpened()
    tokenizer = tiny_tokenizer()
    model.double().save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    questions = written_questions()
    prompts = [question["context"] for question in questions]
    free = generate_greedy(model, tokenizer, prompts, max_new_tokens=24)
    until = [free[0].text[5:7], free[1].text[9]]  # so that some texts stop, in the middle
    request = {"questions": questions, "prompts": prompts, "until": until, "new": 24}
    judged = judge(tmp_path, model=str(tmp_path), dtype="float64", **request)
    compare(model, tokenizer, judged, questions, tolerance=1e-5)
    texts = generate_greedy(model, tokenizer, prompts, max_new_tokens=24, stop=until)
    assert [text.text for text in texts] == judged["texts"]
    assert "stop" in {text.finish for text in texts}
