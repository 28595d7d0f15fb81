"""The defaults of `course finetune`, and the records that they rest on."""

from pathlib import Path

from course_pkg.finetuning.config import learning_rate_at
from course_pkg.finetuning.own_data import FinetuneError
from course_pkg.finetuning.own_data import settings as module
from course_pkg.finetuning.own_data.settings import FinetuneSettings, default_learning_rate
from course_pkg.pages.experiments import load_experiment
from tests.refusals import require_refusals


def settings(**given):
    return FinetuneSettings(Path("mine.jsonl"), Path("adapter"), **given)


def test_the_default_rate_is_safe_in_the_records_and_the_docstring_says_what_they_say():
    text = " ".join(module.__doc__.split())
    record = load_experiment("sft_settings")
    [base] = record.select(steps=0)
    usual = record.select(items=64, steps=16, batch=4, loss="answers")
    loss = {row["rate"]: row["nll"] for row in usual}
    rate = default_learning_rate("lora", 135_000_000)
    assert loss[rate] < base["nll"] < loss[10 * rate], "a tenth of a rate that fails"
    for value in (*loss.values(), base["nll"]):
        assert f"{value:.2f}" in text
    methods = load_experiment("peft_methods")
    lora = {row["rate"]: row["nll"] for row in methods.select(method="LoRA", split="validation")}
    assert lora[rate] - min(lora.values()) < 0.11 and "0.11 nats" in text
    ia3 = {row["rate"]: row["nll"] for row in methods.select(method="IA³", steps=20, seed=0)}
    assert min(ia3, key=ia3.get) == 3e-2 and default_learning_rate("ia3", 135_000_000) == 1e-2
    [run] = record.select(items=64, steps=48)
    first, second, third = run["validation"]
    assert second < first and second < third, "two epochs"
    assert settings().epochs == 2


def test_steps_follow_from_epochs_and_the_rate_rises_and_falls():
    config = settings(epochs=0.5, batch_size=3).train_config(pieces=100, parameters=10**9)
    assert (config.steps, config.learning_rate) == (17, 2e-4)
    rates = [learning_rate_at(step, config) for step in range(1, 18)]
    assert max(rates) == rates[config.warmup_steps - 1] == 2e-4
    assert settings(steps=7).train_config(10**6, 10**6).steps == 7
    assert default_learning_rate("dora", 70 * 10**9) == 1e-4


def test_ia3_and_dora_have_their_own_configs():
    assert type(settings(method="ia3").adapter_config()).__name__ == "IA3Config"
    dora = settings(method="dora", rank=2).adapter_config()
    assert (type(dora).__name__, dora.rank, dora.alpha) == ("DoRAConfig", 2, 4.0)


def test_a_setting_out_of_range_is_named_as_its_option():
    require_refusals(
        (lambda: settings(method="prefix"), "--method prefix: expected lora, dora, ia3"),
        (lambda: settings(rank=0), "--rank 0: expected at least 1"),
        (lambda: settings(epochs=0.0), "--epochs 0.0: expected a number above 0"),
        (lambda: settings(learning_rate=float("nan")), "--learning-rate nan"),
        (lambda: settings(validation_share=1.0), "--validation-share 1.0"),
        errors=FinetuneError,
    )
