import json
import os
import re
import shlex
import subprocess
import sys
from typing import Annotated

import pytest
from typer.testing import CliRunner

from course_pkg.cli import app
from course_pkg.evaluation.metric_registry import METRICS
from course_pkg.lm.load import load
from course_pkg.metrics.bleu import corpus_bleu, sentence_bleu
from course_pkg.metrics.meteor import meteor
from course_pkg.metrics.metric import Metric, MetricOption, SystemScores
from course_pkg.metrics.perplexity import perplexity
from course_pkg.metrics.rouge import rouge_lsum
from course_pkg.metrics.text_files import ScoredTexts
from tests.tables import each_row

REFERENCE = ["the cat sat on the mat", "it rained all day long", "she sang to us"]
SYSTEM = ["the cat sat on a mat", "it rained all the day", "she sang for us"]
BASELINE = ["a cat is on a mat", "it rains all day", "she sings"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The files that the examples of the help name."""
    monkeypatch.chdir(tmp_path)
    texts = {"ref": REFERENCE, "ref2": BASELINE, "system": SYSTEM, "baseline": BASELINE}
    for name, lines in (texts | {"texts": REFERENCE}).items():
        (tmp_path / f"{name}.txt").write_text("\n".join(lines) + "\n")
    pairs = [{"prediction": s, "references": [r]} for s, r in zip(SYSTEM, REFERENCE, strict=True)]
    answers = [{"prompt": "What is ice? ", "answer": "Frozen water."}]
    for name, rows in {"system": pairs, "answers": answers}.items():
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


def score(*arguments, standard_input=None):
    return CliRunner().invoke(app, ["score", *arguments], input=standard_input)


def scores(*arguments, **more):
    done = score(*arguments, **more)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def examples():
    """The command lines in each command's help."""
    return [
        line.strip()
        for metric in METRICS.values()
        for line in metric.help.splitlines()
        if line.strip().startswith("course score ")
    ]


def test_each_example_of_the_help_runs_and_each_help_is_whole_at_80_columns(folder):
    assert len(examples()) > 10
    for example in examples():
        line, _, file = example.partition(" < ")
        arguments = shlex.split(line)[2:]
        if arguments[0] == "perplexity":
            arguments += ["--model", "tiny"]
        text = (folder / file).read_text() if file else None
        done = score(*arguments, standard_input=text)
        assert done.exit_code == 0 and re.search(r"\d\.\d", done.stdout), (example, done.output)
    for metric in METRICS:
        done = CliRunner().invoke(app, ["score", metric, "--help"], terminal_width=80)
        assert done.exit_code == 0 and "Examples:" in done.stdout, metric
        assert "…" not in done.stdout and max(map(len, done.stdout.splitlines())) <= 80, metric


def test_bleu_is_that_of_the_package_with_every_option():
    command = "bleu ref.txt ref2.txt -i system.txt -w 8 -lc -tok char -s floor -sv 0.3"
    printed = scores(*command.split(), "--effective-order")
    groups = list(zip(REFERENCE, BASELINE, strict=True))
    options = {"lowercase": True, "tokenize": "char", "smoothing": "floor", "smooth_value": 0.3}
    expected = corpus_bleu(SYSTEM, groups, **options, effective_order=True)
    assert printed["score"] == pytest.approx(100 * expected.score, abs=1e-8)
    assert printed["signature"].replace("|bs:1000|seed:12345", "") == expected.signature
    assert (printed["nrefs"], printed["smooth"]) == ("2", "floor[0.30]")
    assert printed["version"].startswith("course_pkg ")
    assert printed["low"] < printed["score"] < printed["high"]
    assert printed["precision_2"] == pytest.approx(100 * expected.precisions[1], abs=1e-8)


def test_files_and_standard_input_give_the_same_scores_and_an_encoding_can_be_named(folder):
    expected = scores("bleu", "ref.txt", "-i", "system.txt")
    assert scores("bleu", "-i", "system.jsonl") == expected
    for name in ("system.txt", "system.jsonl"):
        more = [] if name.endswith("jsonl") else ["ref.txt"]
        text = (folder / name).read_text()
        assert scores("bleu", *more, standard_input=text) == expected
    (folder / "latin.txt").write_bytes("déjà\n".encode("latin-1"))
    printed = scores("bleu", "latin.txt", "-i", "latin.txt", "-e", "latin-1", "--effective-order")
    assert printed["score"] == 100


def test_what_stands_beside_the_score_has_four_digits_and_counts_have_none(folder):
    (folder / "short.txt").write_text("the cat sat on mat\n")
    (folder / "long.txt").write_text("the cat sat on the mat\n")
    command = ("bleu", "long.txt", "-i", "short.txt")
    printed = scores(*command)
    assert (printed["brevity_penalty"], printed["reference_length"]) == (0.8187, 6)  # exp(1 - 6/5)
    lines = [line.split() for line in score(*command, "-f", "text").stdout.splitlines()]
    assert ["brevity_penalty", "0.8187"] in lines and ["reference_length", "6"] in lines


def test_sentence_level_bleu_has_effective_order_and_a_line_for_each_text():
    done = score("bleu", "ref.txt", "-i", "system.txt", "-sl", "-b", "-w", "3")
    expected = [sentence_bleu(s, [r]).score for s, r in zip(SYSTEM, REFERENCE, strict=True)]
    assert done.stdout.splitlines() == [f"{100 * value:.3f}" for value in expected]
    lines = score("bleu", "ref.txt", "-i", "system.txt", "-sl", "-f", "json").stdout.splitlines()
    assert [json.loads(line)["bleu"] for line in lines] == [round(100 * s, 1) for s in expected]


@each_row("metric", [name for name, metric in METRICS.items() if metric.has_references])
def test_several_systems_have_a_row_each_and_a_test_compares_them_with_the_first(metric):
    command = [metric, "ref.txt", "-i", "baseline.txt", "system.txt"]
    rows = scores(*command)
    assert [row["system"] for row in rows] == ["baseline.txt", "system.txt"]
    only = score(*command, "-b", "-w", "4").stdout.splitlines()
    for row, line in zip(scores(*command, "-w", "4"), only, strict=True):
        assert [f"{row[name]['score']:.4f}" for name in row if name != "system"] == line.split()
    for test in ("--paired-bs", "--paired-ar"):
        first, second = scores(*command, test)
        for name in second.keys() - {"system"}:
            assert first[name]["p_value"] is None and 0 < second[name]["p_value"] <= 1
        done = score(*command, "-f", "text", test, "-cin", "99")
        assert f"|{test[-2:]}:99|seed:12345|" in done.stdout and "(p = " in done.stdout


def test_another_seed_draws_other_sets_and_the_same_seed_the_same():
    command = ["bleu", "ref.txt", "-i", "system.txt", "-cin", "20", "-w", "6", "--seed"]
    one, again, other = (scores(*command, seed) for seed in ("1", "1", "2"))
    assert one == again != other
    assert one["score"] == other["score"] and one["low"] != other["low"]


def test_rouge_and_meteor_print_means_with_intervals_and_each_text():
    printed = scores("rouge", "ref.txt", "-i", "system.txt", "--kind", "rougeLsum", "-w", "9")
    of_texts = [rouge_lsum(s, r).fmeasure for s, r in zip(SYSTEM, REFERENCE, strict=True)]
    mean = printed["scores"]["rougeLsum_fmeasure"]
    assert mean["mean"] == pytest.approx(sum(of_texts) / 3, abs=1e-9)
    assert mean["low"] <= mean["mean"] <= mean["high"]
    lines = score("rouge", "ref.txt", "-i", "system.txt", "--kind", "rougeLsum", "-sl", "-b")
    assert lines.stdout.splitlines() == [f"{value:.4f}" for value in of_texts]
    printed = scores("meteor", "ref.txt", "-i", "system.txt", "--no-synonyms", "-w", "9")
    of_texts = [meteor(s, r, synonyms=None).score for s, r in zip(SYSTEM, REFERENCE, strict=True)]
    assert printed["scores"]["meteor"]["mean"] == pytest.approx(sum(of_texts) / 3, abs=1e-9)
    assert "synonyms:no" in printed["signature"]


def test_perplexity_of_texts_and_of_answers_with_a_record_of_what_was_scored(folder):
    printed = scores("perplexity", "-i", "texts.txt", "--model", "tiny", "-w", "6")
    expected = perplexity(*load("tiny"), REFERENCE)
    assert printed["score"] == pytest.approx(expected.perplexity, abs=1e-6)
    assert (printed["tokens"], printed["scored"]) == (expected.tokens, "text")
    answers = scores("perplexity", "-i", "answers.jsonl", "--model", "tiny")
    assert (answers["tokens"], answers["scored"]) == (len("Frozen water."), "answer")
    (folder / "texts.txt").write_text("x\nsome text\n")
    lines = score("perplexity", "-i", "texts.txt", "--model", "tiny", "-sl", "-f", "json")
    first, second = map(json.loads, lines.stdout.splitlines())
    assert first["perplexity"] is None and second["perplexity"] > 1


IMPOSSIBLE = [
    (["bleu", "-i", "system.txt"], "system.txt, line 1, has no references"),
    (["bleu", "-i", "system.txt", "ref.txt"], "before -i"),
    (["bleu", "no.txt", "-i", "system.txt"], "there is no file no.txt"),
    (["bleu", ".", "-i", "system.txt"], ". is a folder: give a file"),
    (["perplexity", "texts.txt", "-i", "ref.txt", "--model", "tiny"], "give one file"),
    (["bleu", "short.txt", "-i", "system.txt"], "system.txt has 3 texts, but short.txt has 1"),
    (["bleu", "empty.txt", "-i", "system.txt"], "empty.txt is empty"),
    (["bleu", "latin.txt", "-i", "system.txt"], "latin.txt, line 2, is not utf-8"),
    (["bleu", "ref.txt", "-i", "system.txt", "-e", "utf-99"], "no encoding 'utf-99'"),
    (["bleu", "ref.txt", "-i", "system.jsonl"], "has references of its own"),
    (["bleu", "-i", "bad.jsonl"], "bad.jsonl, line 2, is not JSON"),
    (["bleu", "-i", "answers.jsonl"], 'the field "prediction" must be a text'),
    (["bleu", "-i", "list.jsonl"], 'list.jsonl, line 1: "references" must be'),
    (["bleu", "ref.txt", "-i", "system.txt", "-sv", "0.1"], "smooth_value is not used"),
    (["bleu", "ref.txt", "-i", "system.txt", "--paired-bs"], "needs several systems"),
    (["bleu", "ref.txt", "-i", "system.txt", "system.txt"], "system.txt is given twice"),
    (["bleu", "ref.txt", "-i", "system.txt", "-par", "-pbs"], "are two tests: give one"),
    (["bleu", "ref.txt", "-sl", "-i", "system.txt", "baseline.txt"], "-sl prints one system"),
    (["bleu", "-i", "system.jsonl", "other.jsonl"], "have different references"),
    (["rouge", "ref.txt", "-i", "system.txt", "--kind", "rouge0"], "kind must be one of"),
    (["bertscore", "ref.txt", "-i", "system.txt", "--layer", "99"], "99"),
    (["bertscore", "ref.txt", "-i", "system.txt", "--encoder", "none"], "no encoder"),
    (["perplexity", "-i", "texts.txt", "--chat", "--model", "tiny"], "--chat is for JSON lines"),
    (["perplexity", "-i", "answers.jsonl", "--bos", "--model", "tiny"], "for texts without"),
    (["perplexity", "-i", "texts.txt", "--model", "nowhere at all"], "nowhere at all"),
]


def test_an_impossible_request_is_one_line_and_exit_code_2(folder):
    (folder / "short.txt").write_text("one line\n")
    (folder / "empty.txt").write_text("\n\n")
    (folder / "latin.txt").write_bytes("one\ndéjà\nthree\n".encode("latin-1"))
    (folder / "bad.jsonl").write_text('{"prediction": "a", "references": "a"}\n{"prediction": \n')
    (folder / "list.jsonl").write_text('{"prediction": "a", "references": []}\n')
    (folder / "other.jsonl").write_text('{"prediction": "a", "references": "b"}\n')
    for arguments, says in IMPOSSIBLE:
        done = score(*arguments)
        assert done.exit_code == 2, (arguments, done.output)
        assert says in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr


def test_a_file_is_read_before_torch_is_loaded_and_without_one_a_terminal_is_told():
    """A terminal is what `script` gives to the command; Ctrl-D follows one line."""
    import pty

    course = [sys.executable, "-m", "course_pkg", "score"]
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *course[1:], "bertscore", "no.txt", "-i", "no.txt"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and "there is no file no.txt" in done.stderr
    assert not re.search(r"\| +torch$", done.stderr, re.M)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*course, "bleu", "ref.txt"], stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stderr.readline().startswith(b"reading texts from the terminal, until Ctrl-D")
    os.write(ours, "\n".join(SYSTEM).encode() + b"\n\x04")
    stdout, _ = process.communicate(timeout=600)
    assert json.loads(stdout)["score"] == scores("bleu", "ref.txt", "-i", "system.txt")["score"]


def test_a_reader_that_stops_reading_ends_the_command_without_a_word(folder):
    for name in ("ref", "system"):
        (folder / f"{name}.txt").write_text("some words of a text\n" * 20_000)
    command = f"{sys.executable} -m course_pkg score rouge ref.txt -i system.txt -sl --kind rouge1"
    done = subprocess.run(f"{command} -cin 2 | head -1", shell=True, capture_output=True, text=True)
    assert done.stdout.startswith("rouge1_precision") and done.stderr == ""


def test_a_warning_is_one_line_once_and_no_zero_has_a_sign(folder):
    (folder / "zh.txt").write_text("北京\n")
    arguments = ["zh.txt", "-i", "zh.txt", "--kind", "rouge1", "--kind", "rouge2"]
    done = CliRunner().invoke(app, ["score", "rouge", *arguments])
    [line] = done.stderr.splitlines()
    assert line.startswith("warning: no token is left of 北京")


def test_a_new_metric_needs_nothing_but_its_entry_and_no_zero_has_a_sign(monkeypatch):
    def share(
        texts: ScoredTexts, *, least: Annotated[int, MetricOption("Of a word.", "-l")] = 1
    ) -> SystemScores:
        longest = [float(len(text) > least) - 1 - 1e-9 for text in texts.hypotheses]
        return SystemScores({"share": longest}, {"least": least})

    monkeypatch.setitem(METRICS, "share", Metric("share", "Share", "A share of texts.", share))
    printed = scores("share", "ref.txt", "-i", "system.txt", "-l", "2")
    assert str(printed["scores"]["share"]["mean"]) == "0.0" and printed["least"] == "2"
    lines = score("share", "ref.txt", "-i", "system.txt", "-sl").stdout
    assert lines.splitlines() == ["share", *["0.0000"] * 3]
    assert "Of a word." in score("share", "--help").stdout
    assert "A share of texts." in score("--help").stdout
