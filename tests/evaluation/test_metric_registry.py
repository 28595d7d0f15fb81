import pytest

from course_pkg.evaluation.local_model import load_model
from course_pkg.evaluation.metric_registry import METRICS, OF_ANSWERS
from course_pkg.evaluation.task_file import load_task
from course_pkg.evaluation.task_run import run_task

TEXTS = ("the cat sat on the mat today", "the cat is on a mat", "it rained all day")


@pytest.mark.parametrize("name", OF_ANSWERS)
def test_a_score_of_an_answer_is_1_for_the_reference_and_less_the_less_it_shares(name):
    same, near, far = (OF_ANSWERS[name](text, TEXTS[0]) for text in TEXTS)
    # METEOR's penalty is at least gamma / words ** 3; BERTScore's vectors are in fp32.
    assert same == pytest.approx(1, abs=2e-3)
    assert same > near > far >= 0


def test_a_task_may_name_every_score(tmp_path):
    (tmp_path / "items.jsonl").write_text('{"question": "Ice is", "answers": ["cold", "water"]}\n')
    path = tmp_path / "all.toml"
    path.write_text(
        f'items = "items.jsonl"\n[prompt]\nquestion = "{{question}}"\n'
        f"[generation]\nmax_new_tokens = 4\nmetrics = {list(OF_ANSWERS)}\n"
    )
    [sample] = run_task(load_task(path), load_model("tiny"), tmp_path / "run").record.samples
    assert sample.error is None and set(OF_ANSWERS) < set(sample.scores)
    assert {name.partition("-")[0] for name in OF_ANSWERS} == set(METRICS) - {"perplexity"}
