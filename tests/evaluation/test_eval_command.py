import json
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from course_pkg.cli import app, eval_command
from course_pkg.common.http_client import ServerError
from course_pkg.evaluation.local_model import LocalModel, load_model
from course_pkg.evaluation.task_file import load_task
from course_pkg.evaluation.task_run import run_task
from tests.tables import each_row

TASK = ["eval", "--task", "multiple-choice", "--model", "tiny", "--limit", "6"]


def course(*arguments):
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_run_prints_its_table_and_progress_and_comparing_it_with_itself_is_no_difference(folder):
    done = course(*TASK)
    assert done.exit_code == 0, done.output
    assert "multiple-choice, tiny: 6 items" in done.stdout
    assert "sum" in done.stdout.splitlines()[2]
    assert done.stderr.splitlines() == ["0 of 6 items", "6 of 6 items"]
    written = folder / "evaluations" / "multiple-choice" / "tiny"
    names = ".lock record.json report.html samples.jsonl"
    assert sorted(path.name for path in written.iterdir()) == names.split()
    again = course(*TASK)
    assert (again.exit_code, again.stdout) == (0, done.stdout)
    assert again.stderr.splitlines() == ["6 of 6 items"]
    compared = course("eval", "--compare", str(written), str(written))
    assert "the scores of all 6 items are the same" in compared.stdout
    assert course(*TASK[:-1], "5", "--output", "fewer").exit_code == 0
    compared = course("eval", "--compare", str(written), "fewer")
    assert "the scores of all 5 items are the same" in compared.stdout
    assert "left out: 1 items" in compared.stdout


def test_what_a_run_s_record_says_is_shown_and_never_obeyed(folder):
    assert course(*TASK, "--output", "run").exit_code == 0
    path = folder / "run" / "record.json"
    record = json.loads(path.read_text())
    record["model"]["model"] = "\x1b[2Jevil\u202e"
    path.write_text(json.dumps(record))
    done = course("eval", "--compare", "run", "run")
    assert done.exit_code == 0 and "\\x1b[2Jevil\\u202e" in done.stdout
    assert not {"\x1b", "\u202e"} & set(done.output)


@each_row(
    "change",
    [
        {"scores": "high"},
        {"scores": [{"name": "sum", "mean": "x", "low": None, "high": None, "items": 6}]},
        {"samples": [5]},
        {"samples": [{"id": 7}]},
        {"task": []},
        {"model": {"model": None}},
        {"versions": 3},
        {"metric": ["sum"]},
        {"format": True},
    ],
)
def test_a_record_of_other_types_is_one_line_and_exit_code_2(change, tmp_path):
    assert course(*TASK, "--output", str(tmp_path)).exit_code == 0
    path = tmp_path / "record.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    done = course("eval", "--compare", str(tmp_path), str(tmp_path))
    assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1), done.output
    assert "record.json can't be read (" in done.stderr


def test_failed_items_have_exit_code_1_and_a_server_that_fails_4(monkeypatch):
    compute = LocalModel._compute

    def failing(self, task, batch, *progress):
        if any(request.item.id == failed for request in batch):
            raise FloatingPointError("the logits are NaN")
        return compute(self, task, batch, *progress)

    failed = load_task("multiple-choice").chosen(1)[0].id
    monkeypatch.setattr(LocalModel, "_compute", failing)
    done = course(*TASK)
    assert done.exit_code == 1
    assert "1 items failed" in done.stdout
    assert "1 × FloatingPointError: the logits are NaN" in done.stdout

    def gone(*_):
        raise ServerError("it does not answer")

    monkeypatch.setattr(LocalModel, "answers", gone)
    done = course(*TASK)
    assert (done.exit_code, done.stderr.splitlines()[-1]) == (4, "error: it does not answer")


def test_an_impossible_request_has_exit_code_2_and_leaves_nothing(folder, subtests):
    for arguments, says in (
        (["eval"], "give --task"),
        (["eval", "--task", "nothing"], "there is no task 'nothing'"),
        ([*TASK, "--served-model-name", "x"], "is for a --model that is an http(s) address"),
        ([*TASK, "--adapter", "nowhere"], "the adapter nowhere can't be used with tiny"),
        ([*TASK, "--dtype", "int8"], "give one of float32"),
        (["eval", "--compare", "a", "b"], "a has no record.json"),
        ([*TASK, "--timeout", "5"], "--timeout is for a --model that is an http(s) address"),
        ([*TASK, "--extra-body", "{}"], "--extra-body is for a --model that is an http(s)"),
        (
            ["eval", "--task", "short-answers", "--model", "http://h/v1", "--extra-body", "[1]"],
            "it must be an object",
        ),
        (
            ["eval", "--task", "short-answers", "--model", "http://h/v1", "--adapter", "a"],
            "name the adapter with --served-model-name",
        ),
    ):
        with subtests.test(arguments=arguments, says=says):
            done = course(*arguments)
            assert (done.exit_code, says in done.stderr) == (2, True), done.output
            assert list(folder.iterdir()) == []


def test_a_task_is_written_for_lm_eval_without_a_model(folder):
    done = course("eval", "--task", "short-answers", "--lm-eval", "tasks")
    assert done.exit_code == 0
    assert "lm_eval run --include_path tasks --tasks short-answers" in done.stdout
    written = {path.suffix: path.stem for path in (folder / "tasks").iterdir()}
    assert written == {".yaml": "short-answers", ".jsonl": "short-answers.lm-eval"}


def test_progress_says_the_time_left_from_what_this_process_has_done(monkeypatch, capsys):
    clock = iter([0.0, 0.0, 10.0, 40.0, 60.0])
    monkeypatch.setattr(eval_command, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    progress = eval_command._Progress()
    for done in (50, 51, 54, 56):  # 50 items have samples of an earlier process
        progress.show(done, 56)
    lines = ["50 of 56 items", "54 of 56 items, about 20 s left", "56 of 56 items"]
    assert capsys.readouterr().err.splitlines() == lines


def test_items_are_counted_within_a_batch_too(tmp_path):
    for name in ("multiple-choice", "short-answers"):
        seen = []
        run_task(
            load_task(name),
            load_model("tiny"),
            tmp_path / name,
            limit=12,  # one batch
            progress=lambda done, total, seen=seen: seen.append(done),
        )
        assert seen == sorted(seen) and (seen[0], seen[-1]) == (0, 12)
        assert set(range(3, 12)) & set(seen), "nothing is said before the batch has ended"
