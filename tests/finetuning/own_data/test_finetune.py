"""`course finetune` from the file to the adapter: what it writes, and that a killed run resumes."""

import json
import os
import signal

import pytest
from safetensors.torch import load_file
from typer.testing import CliRunner

from course_pkg.cli import app
from course_pkg.deployment.export.merged import load_merged
from course_pkg.deployment.export.ollama import chat_parts
from course_pkg.evaluation.local_model import load_model
from course_pkg.finetuning import training_state
from course_pkg.finetuning.formats import chat_prompt, chat_text
from course_pkg.finetuning.own_data import FinetuneError, validation_losses
from course_pkg.finetuning.own_data.data_file import read_data
from course_pkg.finetuning.own_data.finetune import finetune
from course_pkg.finetuning.own_data.finetune_report import summary
from course_pkg.finetuning.own_data.result import FILE, read_file
from course_pkg.finetuning.own_data.settings import FinetuneSettings
from course_pkg.finetuning.own_data.token_examples import split_examples, tokenize_file
from course_pkg.finetuning.own_data.training_progress import Progress
from course_pkg.finetuning.own_data.validation_losses import Losses, change, example_losses
from course_pkg.lm.load import load
from course_pkg.lm.model_errors import ModelError
from course_pkg.lm.tiny import tiny_tokenizer
from course_pkg.serving.text_stream import end_tokens
from tests.finetuning.runs import dies, same

WORDS = ("red", "blue", "green", "black", "white", "brown", "pink", "gold", "gray", "lime")
USUAL = {"model": "tiny", "steps": 6, "max_length": 128, "learning_rate": 3e-2}


def records(count=10):
    return [{"prompt": f"Say {word}.", "completion": f"{word}!"} for word in WORDS[:count]]


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(map(json.dumps, records())))
    return path


@pytest.fixture(autouse=True)
def short_samples(monkeypatch):
    monkeypatch.setattr(validation_losses, "NEW_TOKENS", 6)


def quiet(text):
    pass


def settings(data, name="out", **given):
    return FinetuneSettings(data, data.with_name(name), **USUAL | given)


def weights(folder):
    return load_file(folder / "adapter_model.safetensors")


def course(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


def test_the_command_prints_the_format_the_sizes_and_the_result_and_writes_the_adapter(data):
    out = data.with_name("out")
    options = ["--model", "tiny", "--steps", 6, "--output", out, "--learning-rate", "3e-2"]
    done = course("finetune", data, *options)
    assert (done.exit_code, done.stderr) == (0, ""), done.output
    lines = done.stdout.splitlines()
    assert lines[0] == f"{data}: 10 examples, prompt and completion"
    assert lines[1].startswith("8 examples for training, 2 for validation; ")
    assert "0 cut by --max-length 512" in lines[1]
    assert "paired over 2 examples: lower." in done.stdout
    names = {path.name for path in out.iterdir()}
    adapter = {"adapter_config.json", "adapter_model.safetensors"}
    assert names == {".lock", "report.html", FILE, *adapter}, "no checkpoint is left"
    for command in ("chat", "serve", "eval --task short-answers", f"export {out}"):
        assert f"  course {command}" in done.stdout


def test_the_losses_of_the_result_are_those_of_the_base_and_of_the_saved_adapter(data):
    result = finetune(settings(data), say=quiet)
    split = validation_of(data)
    pad = 256
    for losses, adapter in ((result.before, None), (result.after, data.with_name("out"))):
        found = example_losses(load_model("tiny", adapter).model, split, pad)
        assert found.nats == pytest.approx(losses.nats, rel=1e-5)
    assert result.after.mean == pytest.approx(
        min(each.value for each in result.history.evaluations), rel=1e-5
    ), "the best weights are kept"
    assert read_file(data.with_name("out"))[1] == result
    assert [sample.reference for sample in result.samples] == [e.reference for e in split]


def validation_of(data):
    tokenized = tokenize_file(read_data(data), tiny_tokenizer(), 128)
    return split_examples(tokenized.examples, 0.1, 0).validation


def killed_at(step, work):
    """Run something in a child that kills itself while it writes the checkpoint of a step."""
    write = training_state.write_checkpoint

    def dying(path, content):
        if len(json.loads(content["history"])["steps"]) == step and path.name == "last.pt":
            os.kill(os.getpid(), signal.SIGKILL)
        write(path, content)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training_state, "write_checkpoint", dying)
        dies(work)


@pytest.mark.parametrize("step", [1, 4])
def test_a_killed_run_resumes_to_the_same_adapter_and_numbers(data, step):
    whole = finetune(settings(data, "whole"), say=quiet)
    killed_at(step, lambda: finetune(settings(data), say=quiet))
    out = data.with_name("out")
    assert (out / "checkpoints" / "last.pt").exists() is (step > 1)
    with pytest.raises(FinetuneError, match="not empty: add --resume"):
        finetune(settings(data), say=quiet)
    resumed = finetune(settings(data), resume=True, say=quiet)
    assert same(weights(out), weights(data.with_name("whole")))
    assert resumed.history.losses == whole.history.losses
    assert (resumed.after, resumed.samples, resumed.kept) == (
        whole.after,
        whole.samples,
        whole.kept,
    )
    assert finetune(settings(data), resume=True, say=quiet) == resumed, "finished: nothing is done"


@pytest.mark.parametrize("exists", [False, True])
def test_a_run_that_fails_at_the_start_leaves_its_folder_as_it_was(data, exists):
    out = data.with_name("out")
    if exists:
        out.mkdir()
    for wrong in ({"model": "no-such-model"}, {"max_length": 2}, {"dtype": "float64"}):
        with pytest.raises((FinetuneError, ModelError), match=r"no model|no example fits|--dtype"):
            finetune(settings(data, **wrong), say=quiet)
        assert out.exists() is exists and list(data.parent.rglob("*")) == (
            [data, out] if exists else [data]
        ), wrong
    assert finetune(settings(data), say=quiet).kept, "the corrected command works in that folder"


def test_resuming_with_other_settings_or_data_names_what_differs(data):
    killed_at(2, lambda: finetune(settings(data), say=quiet))
    with pytest.raises(FinetuneError, match="rank was 8, now 4"):
        finetune(settings(data, rank=4), resume=True, say=quiet)
    data.write_text(data.read_text() + "\n" + json.dumps(records()[0]))
    with pytest.raises(FinetuneError, match="data was"):
        finetune(settings(data), resume=True, say=quiet)
    with pytest.raises(FinetuneError, match="there is no run to resume"):
        finetune(settings(data, "new"), resume=True, say=quiet)


def test_a_folder_with_something_else_is_left_as_it_is(data):
    out = data.with_name("out")
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    done = course("finetune", data, "--model", "tiny", "--output", out)
    assert done.exit_code == 2
    assert "is not empty: give another --output" in done.stderr
    assert [path.name for path in out.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("method", ["dora", "ia3"])
def test_other_methods_and_a_validation_file_of_another_format(data, tmp_path, method):
    other = tmp_path / "other.jsonl"
    other.write_text(json.dumps({"instruction": "Say teal.", "output": "teal!"}))
    result = finetune(
        settings(data, method=method, validation=other, steps=2), say=quiet, report=None
    )
    assert result.formats == ("prompt and completion", "Alpaca")
    assert (result.sizes.train, result.sizes.validation) == (10, 1)
    assert change(result.before, result.after) is None
    assert load_model("tiny", data.with_name("out"))


SHARED = {
    "system": [
        {
            "messages": [
                {"role": "system", "content": 'Say it\'s "x" 😀\n{% if %}.'},
                {"role": "user", "content": f"{word}?"},
                {"role": "assistant", "content": f"{word}!"},
            ]
        }
        for word in WORDS
    ],
    "instruction": [
        {"instruction": "Shout 'it':\n", "input": word, "output": f"{word}!"} for word in WORDS
    ],
}


@pytest.mark.parametrize("kind", SHARED)
def test_what_all_examples_share_is_kept_with_the_adapter_and_added_where_it_is_missing(data, kind):
    records = SHARED[kind]
    data.write_text("\n".join(map(json.dumps, records)))
    said = []
    finetune(settings(data, steps=2), say=said.append)
    assert (
        sum("the adapter's chat template adds it where it is missing" in line for line in said) == 1
    )
    trained = [chat_prompt_of(each) for each in read_data(data).examples]
    question = (lambda word: f"{word}?") if kind == "system" else (lambda word: word)
    loaded = load_model("tiny", data.with_name("out"))
    _, merged = load_merged(data.with_name("out"), "tiny")
    for tokenizer in (loaded.tokenizer, merged):
        assert [chat_prompt(question(word), tokenizer) for word in WORDS] == trained
        assert [chat_prompt_of(each, tokenizer) for each in read_data(data).examples] == trained
    parts = chat_parts(merged)
    assert (
        (parts.system == records[0]["messages"][0]["content"])
        if kind == "system"
        else (parts.before["user"] == "<|im_start|>user\nShout 'it':\n\n\n")
    )


def chat_prompt_of(conversation, tokenizer=None):
    return chat_text(
        conversation.messages[:-1], tokenizer or tiny_tokenizer(), generation_prompt=True
    )


def test_without_a_shared_turn_the_models_template_stays(data, tmp_path):
    finetune(settings(data, steps=1), say=quiet)
    assert not (tmp_path / "out" / "chat_template.jinja").exists()


def test_the_answers_end_that_was_learned_is_where_the_adapter_stops(data, tmp_path):
    """A base model whose tokenizer ends texts with another token than its template does."""
    model, tokenizer = load("tiny")
    tokenizer.eos_token = "<|endoftext|>"
    model.generation_config.eos_token_id = model.config.eos_token_id = 256
    for each in (model, tokenizer):
        each.save_pretrained(tmp_path / "base")
    finetune(settings(data, steps=1, model=str(tmp_path / "base")), say=quiet)
    [example] = tokenize_file(read_data(data), tokenizer, 128).examples[:1]
    taught = example.pieces[0].labels[-1]
    merged, own = load_merged(data.with_name("out"))
    assert taught == 258 and taught in end_tokens(merged, own)


def test_replies_that_are_nearly_the_same_on_both_sides_are_said(data):
    rows = [
        {
            "prompt": f"Ticket {n}",
            "completion": f"Dear customer {n}, thank you for writing to us. We answer in 2 days.",
        }
        for n in range(10)
    ]
    data.write_text("\n".join(map(json.dumps, rows)))
    result = finetune(settings(data, steps=1), say=quiet)
    assert result.sizes.repeated == result.sizes.validation == 2
    assert summary(result).startswith("2 of 2 validation answers are in the training data")


def test_a_task_with_plain_prompts_says_so_for_an_adapter_that_was_trained_on_chats(data):
    finetune(settings(data, steps=1), say=quiet)
    given = ["--model", "tiny", "--adapter", data.with_name("out"), "--limit", 1]
    for task, said in (("short-answers", True), ("customer-service", False)):
        done = course("eval", "--task", task, "--output", data.with_name(task), *given)
        assert ("was trained on chats, and the task" in done.stderr) == said, done.output


def test_plain_text_is_learned_whole_and_its_report_has_no_chat_command(tmp_path):
    path = tmp_path / "verses.txt"
    path.write_text("\n\n".join(f"The {word} bird sings in the {word} tree." for word in WORDS))
    result = finetune(settings(path, max_length=24), say=quiet)
    assert (result.formats, result.sizes.lost) == (("plain text",), 0)
    assert result.sizes.pieces > result.sizes.train
    page = (path.with_name("out") / "report.html").read_text()
    assert "course chat" not in page and "course serve" in page


def test_a_run_that_diverges_or_a_limit_above_the_models_says_what_to_change(data):
    with pytest.raises(FinetuneError, match=r"--max-length 9999: the model takes 2048 tokens"):
        finetune(settings(data, "a", max_length=9999), say=quiet)
    with pytest.raises(FinetuneError, match=r"is (nan|inf).*\(--learning-rate\)"):
        finetune(settings(data, "b", learning_rate=1e30, steps=8), say=quiet)


def test_progress_reports_the_mean_loss_of_its_steps_and_is_quiet_without_a_terminal(data):
    lines = []
    result = finetune(settings(data, steps=25), say=quiet, report=lines.append)
    steps = [line for line in lines if line.startswith("step")]
    assert [line.split()[1] for line in steps] == [*map(str, range(2, 25, 2)), "25"]
    losses = result.history.losses
    mean = sum(losses[:2]) / 2
    assert f"loss {mean:.3f}" in steps[0] and "tokens/s" in steps[0] and "left" in steps[0]
    assert "left" not in steps[-1] and f"loss {losses[-1]:.3f}" in steps[-1]
    checked = [line.split()[-1] for line in lines if "validation loss" in line]
    assert checked == [f"{each.value:.3f}" for each in result.history.evaluations]


def test_the_hook_of_the_progress_is_removed(tiny):
    progress = Progress(tiny.model, None)
    assert tiny.model._forward_hooks
    progress.close()
    assert not tiny.model._forward_hooks


def test_an_interval_is_around_the_change_of_perplexity():
    before = Losses((10.0, 22.0, 31.0), (5, 10, 15))
    after = Losses((8.0, 18.0, 26.0), (5, 10, 15))
    found = change(before, after)
    assert found.nats == pytest.approx(after.mean - before.mean) and found.high < 0
