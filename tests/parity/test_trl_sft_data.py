"""TRL prepares the same tokens, labels and packed rows, but for the differences named here.

TRL 1.16 also learns what a template writes after the end-of-turn token, cuts long samples and
drops those without an answer silently, and tells packed samples apart by their positions alone.
"""

import pytest
import torch
from datasets import Dataset

from course_pkg.finetuning.batches import collate
from course_pkg.finetuning.masking import IGNORE_INDEX, tokenize_conversation
from course_pkg.finetuning.packing import pack, packed_batches
from course_pkg.finetuning.records import read_conversations
from course_pkg.lm.tiny import CHAT_TEMPLATE, tiny_model, tiny_tokenizer

trl = pytest.importorskip("trl", reason="TRL is not installed")

MARKED = CHAT_TEMPLATE.replace(
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}",
    "{{ '<|im_start|>' + message['role'] + '\n' }}{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}{{ '\n' }}"
    "{% else %}{{ message['content'] + '<|im_end|>\n' }}{% endif %}",
)
CHATS = [
    [("user", "Hi"), ("assistant", "Yo")],
    [("user", "Why?"), ("assistant", "So it is."), ("user", "Bye"), ("assistant", "So long")],
]


def turns(chat):
    return [{"role": role, "content": text} for role, text in chat]


def batch_of(rows, tokenizer, folder, **settings):
    """The first batch that SFTTrainer makes of these rows."""
    config = trl.SFTConfig(
        output_dir=str(folder), report_to=[], use_cpu=True, bf16=False, disable_tqdm=True,
        per_device_train_batch_size=8, **settings,
    )  # fmt: skip
    trainer = trl.SFTTrainer(
        model=tiny_model(), args=config, train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
    )  # fmt: skip
    return next(iter(trainer.get_train_dataloader()))


def rows_of(batch):
    """The token ids and labels of each row, without padding, in a fixed order."""
    keep = batch["attention_mask"].bool()
    return sorted(
        (ids[kept].tolist(), labels[kept].tolist())
        for ids, labels, kept in zip(batch["input_ids"], batch["labels"], keep, strict=True)
    )


def tokenized(tokenizer, chats=CHATS):
    read = read_conversations([{"messages": turns(chat)} for chat in chats], strict=True)
    return [tokenize_conversation(each, tokenizer) for each in read.conversations]


def test_marked_answers_have_the_same_tokens_and_labels(tmp_path):
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = MARKED
    rows = [{"messages": turns(chat)} for chat in CHATS]
    found = rows_of(batch_of(rows, tokenizer, tmp_path, assistant_only_loss=True))
    ours = [(list(e.input_ids), list(e.labels)) for e in tokenized(tokenizer)]
    newline = ord("\n")  # which follows the last end token; TRL keeps it without a label
    assert found == sorted(([*ids, newline], [*labels, IGNORE_INDEX]) for ids, labels in ours)


def test_a_prompt_and_a_completion_differ_by_the_line_break_that_trl_learns(tmp_path):
    tokenizer = tiny_tokenizer()
    rows = [{"prompt": turns(chat[:-1]), "completion": turns(chat[-1:])} for chat in CHATS]
    found = rows_of(batch_of(rows, tokenizer, tmp_path))
    read = read_conversations([{"messages": turns(chat)} for chat in CHATS]).conversations
    ours = [tokenize_conversation(each, tokenizer, answers="last") for each in read]
    newline = ord("\n")
    assert found == sorted(([*each.input_ids, newline], [*each.labels, newline]) for each in ours)


def test_packed_rows_are_the_same_and_have_the_same_loss(tmp_path):
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = MARKED
    rows = [{"messages": turns(chat)} for chat in CHATS]
    batch = batch_of(
        rows, tokenizer, tmp_path, assistant_only_loss=True, packing=True, max_length=120
    )
    examples = tokenized(tokenizer)
    [row] = pack(examples, 120)
    # TRL's samples are one token longer, by the line break at their end
    assert batch["cu_seq_lens_q"].diff().tolist() == [length + 1 for length in row.lengths]
    starts = [index for index, at in enumerate(batch["position_ids"][0]) if at == 0]
    assert [batch["labels"][0, start].item() for start in starts] == [IGNORE_INDEX] * 2
    model = tiny_model()
    names = ("input_ids", "labels", "position_ids")
    theirs = model(**{name: batch[name] for name in names}, use_cache=False).loss
    with torch.no_grad():
        ours = model(**packed_batches(examples, 120, 1, 0)[0]).loss
        assert ours.item() == pytest.approx(model(**collate(examples, 0)).loss.item(), rel=1e-5)
    assert theirs.item() == pytest.approx(ours.item(), rel=1e-5)
