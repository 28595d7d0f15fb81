import json
import random
import subprocess
import sys

import numpy as np
import pytest
from rouge_score.rouge_scorer import RougeScorer
from rouge_score.scoring import BootstrapAggregator
from typer.testing import CliRunner

from course_pkg.cli import app
from course_pkg.metrics.rouge.rouge_measures import USUAL, text_scores
from course_pkg.metrics.significance import mean_intervals
from tests.tables import each_row

WORDS = ("the", "a", "Cat", "cat", "sat", "mat.", "3.5", "re-use", "(so)", "rain,", "all", "day")
OPTIONS = [
    "",
    "-lc",
    "-tok char -s floor -sv 0.2",
    "-tok none -s add-k",
]


def corpus(size=60, seed=0):
    """Two reference files, and two systems that repeat one of them with errors."""
    rng = random.Random(seed)
    one, two = (
        [" ".join(rng.choices(WORDS, k=rng.randint(3, 14))) for _ in range(size)] for _ in "12"
    )

    def system(share):
        return [" ".join(w for w in text.split() if rng.random() > share) or "x" for text in one]

    return {"ref.txt": one, "ref2.txt": two, "worse.txt": system(0.2), "better.txt": system(0.15)}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, lines in corpus().items():
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    return tmp_path


def printed(*arguments, theirs=()):
    """The JSON of our program and of sacrebleu's; theirs: options that it needs beside ours."""
    ours = CliRunner().invoke(app, ["score", "bleu", *arguments])
    assert ours.exit_code == 0, ours.output
    command = [sys.executable, "-m", "sacrebleu", *arguments, *theirs]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(ours.stdout), json.loads(done.stdout)


@each_row("options", OPTIONS)
def test_one_system_has_sacrebleus_score_settings_and_interval(folder, options):
    files = ["ref.txt", "ref2.txt", "-w", "3", *options.split(), "-i", "better.txt"]
    ours, theirs = printed(*files, theirs=["--confidence"])
    assert ours["score"] == theirs["score"]
    for name in ("nrefs", "bs", "seed", "case", "eff", "tok", "smooth"):
        assert ours[name] == theirs[name]
    # sacrebleu leaves out 25 of 1000 draws at each end; we interpolate between two of them.
    margin = (ours["high"] - ours["low"]) / 2
    assert margin == pytest.approx(theirs["confidence_var"], rel=0.02)


@each_row("test", ["--paired-bs", "--paired-ar"])
def test_the_paired_tests_have_sacrebleus_p_values(folder, test):
    files = ["ref.txt", test, "-w", "5", "-i", "worse.txt", "better.txt"]
    ours, theirs = printed(*files, theirs=["-parn", "1000"])
    for one, other in zip(ours, theirs, strict=True):
        assert one["bleu"]["score"] == pytest.approx(other["BLEU"]["score"], abs=1e-5)
    # In the bootstrap sacrebleu sums in float32, so one tie may go either way.
    p_value = ours[1]["bleu"]["p_value"]
    assert p_value == pytest.approx(theirs[1]["BLEU"]["p_value"], abs=1.5 / 1001)
    assert 0.005 < p_value < 0.9  # not extreme, so that an error would show


def test_rouge_of_texts_has_rouge_scores_means_and_intervals_as_wide():
    texts = corpus()
    pair = (texts["better.txt"], texts["ref.txt"])
    scorer = RougeScorer(list(USUAL))
    aggregator = BootstrapAggregator(n_samples=4000)
    theirs = [scorer.score(reference, text) for text, reference in zip(*pair, strict=True)]
    for scores in theirs:
        aggregator.add_scores(scores)
    np.random.seed(0)
    drawn = aggregator.aggregate()
    parts = ("precision", "recall", "fmeasure")
    for kind, scores in text_scores(*pair).items():
        rows = np.array([[getattr(score, part) for part in parts] for score in scores])
        for part, ours in zip(parts, mean_intervals(rows, samples=4000), strict=True):
            assert ours.mean == pytest.approx(np.mean([getattr(s[kind], part) for s in theirs]))
            width = ours.high - ours.low
            for level in ("low", "high"):
                expected = getattr(getattr(drawn[kind], level), part)
                assert getattr(ours, level) == pytest.approx(expected, abs=width / 8 + 1e-12)
