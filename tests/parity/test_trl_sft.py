"""Our training loop and masks compared with TRL's SFTTrainer, with loss on answers alone."""

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model

from course_pkg.adapters.injection import adapter_layers, inject
from course_pkg.adapters.lora import LoRAConfig
from course_pkg.datasets import Example
from course_pkg.finetuning.batches import batches
from course_pkg.finetuning.config import TrainConfig, learning_rate_at
from course_pkg.finetuning.formats import chat_prompt
from course_pkg.finetuning.masking import tokenize_example
from course_pkg.finetuning.trainer import train
from course_pkg.lm.load import load

from .small_models import error

trl = pytest.importorskip("trl", reason="trl is not installed")

PAIRS = [
    ("Hi", "Hello, how are you?"),
    ("Which planet is the largest?", "Jupiter."),
    ("2 + 2", "4"),
    ("Write a haiku about rain.", "Rain on the tin roof,\na slow drum at night;\nI sleep."),
    ("Is a whale a fish?", "No, a mammal."),
    ("Name a color.", "Blue"),
]
CONFIG = TrainConfig(
    steps=10, learning_rate=1e-2, accumulation=3, warmup_steps=2, shuffle=False, progress=False
)
# The tiny model's template, with the marks that TRL needs for a loss on the assistant's turns.
MARKED = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ message['content'] + '<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def turns(prompt, answer):
    return {"role": "user", "content": prompt}, {"role": "assistant", "content": answer}


def trainer(model, tokenizer, rows, folder, **options):
    """TRL's trainer for the settings above, on the CPU, in the order of the rows."""
    arguments = trl.SFTConfig(
        output_dir=str(folder),
        max_steps=CONFIG.steps,
        learning_rate=CONFIG.learning_rate,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=CONFIG.accumulation,
        train_sampling_strategy="sequential",
        weight_decay=0.0,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        bf16=False,
        use_cpu=True,
        **options,
    )
    optimizer = torch.optim.AdamW(
        [p for p in model.parameters() if p.requires_grad], lr=CONFIG.learning_rate, weight_decay=0
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda done: learning_rate_at(done + 1, CONFIG) / CONFIG.learning_rate
    )
    return trl.SFTTrainer(
        model,
        arguments,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        optimizers=(optimizer, schedule),
    )


def pair():
    """A model with our adapter, and one with PEFT's at the same weights."""
    ours, tokenizer = load("tiny")
    inject(ours, LoRAConfig(rank=4, alpha=8))
    config = LoraConfig(r=4, lora_alpha=8, lora_dropout=0.0, target_modules="all-linear")
    theirs = get_peft_model(load("tiny").model, config)
    with torch.no_grad():
        for name, layer in adapter_layers(ours).items():
            other = theirs.base_model.model.get_submodule(name)
            other.lora_A["default"].weight.copy_(layer.lora_A["default"])
    return ours, theirs, tokenizer


def examples(tokenizer):
    made = [Example(str(at), "any", *texts) for at, texts in enumerate(PAIRS)]
    return [tokenize_example(example, tokenizer) for example in made]


def test_ten_steps_of_lora_with_loss_on_answers_equal_trls(tmp_path):
    ours, theirs, tokenizer = pair()
    # TRL adds the end token to a completion that is a string.
    rows = [
        {"prompt": chat_prompt(prompt, tokenizer), "completion": answer} for prompt, answer in PAIRS
    ]
    data = batches(examples(tokenizer), 2, tokenizer.pad_token_id)
    history = train(ours, data, CONFIG)
    sft = trainer(theirs, tokenizer, rows, tmp_path)
    sft.train()
    for mine, yours in zip(data, sft.get_train_dataloader(), strict=True):
        assert mine.keys() <= yours.keys()
        assert all(torch.equal(mine[name], yours[name]) for name in mine)
    logged = [entry for entry in sft.state.log_history if "loss" in entry]
    assert history.losses == pytest.approx([entry["loss"] for entry in logged], abs=1e-4)
    norms = [record.grad_norm for record in history.steps]
    assert norms == pytest.approx([entry["grad_norm"] for entry in logged], rel=1e-3)
    assert history.losses[-1] < history.losses[0] - 0.1
    for name, layer in adapter_layers(ours).items():
        other = theirs.base_model.model.get_submodule(name)
        assert error(layer.lora_B["default"], other.lora_B["default"].weight) < 1e-2


@pytest.mark.parametrize("kind", ["completion", "assistant"])
def test_trls_labels_of_conversations(tmp_path, kind):
    """On the assistant's turns, TRL's labels are ours; on completions, they have more.

    A completion is what the template adds to the prompt: here also the line break after the end
    token, which a model never needs to write.
    """
    _, theirs, tokenizer = pair()
    if kind == "assistant":
        tokenizer.chat_template = MARKED
        rows = [{"messages": list(turns(*texts))} for texts in PAIRS]
    else:
        rows = [{"prompt": [user], "completion": [answer]}
                for user, answer in (turns(*texts) for texts in PAIRS)]  # fmt: skip
    options = {"assistant_only_loss": True} if kind == "assistant" else {}
    sft = trainer(theirs, tokenizer, rows, tmp_path, **options)
    (line_break,) = tokenizer("\n").input_ids
    last = line_break if kind == "completion" else -100
    for mine, row in zip(examples(tokenizer), sft.train_dataset, strict=True):
        assert row["input_ids"] == [*mine.input_ids, line_break]
        assert row["labels"] == [*mine.labels, last]
