"""Our labels and packed rows compared with TRL's SFTTrainer, with loss on answers alone.

TRL 1.16 also learns what a template writes after the end-of-turn token, cuts long samples and
drops those without an answer silently, and tells packed samples apart by their positions alone.
"""

import pytest
import torch
from datasets import Dataset

from course_pkg.finetuning.batches import pack, packed_batches
from course_pkg.finetuning.formats import as_dicts, with_template
from course_pkg.finetuning.masking import tokenize_conversation
from course_pkg.lm.tiny import tiny_model, tiny_tokenizer
from tests.finetuning.runs import REFERENCE
from tests.finetuning.templates import MARKED, chat

from .small_models import EQUAL

trl = pytest.importorskip("trl", reason="trl is not installed")

PAIRS = [
    ("Hi", "Hello, how are you?"),
    ("Which planet is the largest?", "Jupiter."),
    ("2 + 2", "4"),
    ("Write a haiku about rain.", "Rain on the tin roof,\na slow drum at night;\nI sleep."),
    ("Is a whale a fish?", "No, a mammal."),
    ("Name a color.", "Blue"),
]
CHATS = [("Hi", "Yo"), ("Why?", "So it is.", "Bye", "So long")]
NEWLINE = ord("\n")  # a token of the tiny tokenizer


def turns(texts):
    return as_dicts(chat(*texts).messages)


def tokenized(chats, tokenizer, answers="all"):
    return [tokenize_conversation(chat(*texts), tokenizer, answers=answers) for texts in chats]


def trainer(model, tokenizer, rows, folder, **options):
    return trl.SFTTrainer(
        model,
        trl.SFTConfig(output_dir=str(folder), bf16=False, **REFERENCE, **options),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
    )


def test_trls_labels_of_completions_have_a_line_break_more(tmp_path):
    """A completion is what the template adds to the prompt: here also the line break at the end."""
    tokenizer = tiny_tokenizer()
    chats = [*CHATS, *PAIRS]
    split = [turns(texts) for texts in chats]
    rows = [{"prompt": each[:-1], "completion": each[-1:]} for each in split]
    sft = trainer(tiny_model(), tokenizer, rows, tmp_path)
    ours = tokenized(chats, tokenizer, "last")
    for mine, row in zip(ours, sft.train_dataset, strict=True):
        assert row["input_ids"] == [*mine.input_ids, NEWLINE]
        assert row["labels"] == [*mine.labels, NEWLINE]


def test_packed_rows_are_the_same_and_have_the_same_loss(tmp_path):
    tokenizer = with_template(tiny_tokenizer(), MARKED)
    rows = [{"messages": turns(texts)} for texts in CHATS]
    options = {"assistant_only_loss": True, "packing": True, "max_length": 120}
    sft = trainer(tiny_model(), tokenizer, rows, tmp_path, **options)
    batch = next(iter(sft.get_train_dataloader()))
    examples = tokenized(CHATS, tokenizer)
    [row] = pack(examples, 120)
    # TRL's samples are one token longer, by the line break at their end.
    assert batch["cu_seq_lens_q"].diff().tolist() == [length + 1 for length in row.lengths]
    starts = [index for index, at in enumerate(batch["position_ids"][0]) if at == 0]
    assert [batch["labels"][0, start].item() for start in starts] == [-100] * 2
    model = tiny_model()
    names = ("input_ids", "labels", "position_ids")
    theirs = model(**{name: batch[name] for name in names}, use_cache=False).loss
    with torch.no_grad():
        ours = model(**packed_batches(examples, 120, 1, 0)[0]).loss
    assert theirs.item() == pytest.approx(ours.item(), rel=4 * EQUAL)
