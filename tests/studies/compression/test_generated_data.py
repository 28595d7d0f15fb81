"""Generated answers are what the model writes, token by token, and on-policy ones are current."""

import pytest
import torch

from course_pkg.finetuning.config import TrainConfig
from course_pkg.finetuning.formats import chat_prompt
from course_pkg.finetuning.masking import IGNORE_INDEX, tokenize_conversations
from course_pkg.finetuning.trainer import train
from course_pkg.lm.tiny import tiny_model, tiny_tokenizer
from course_pkg.studies.compression.distillation import Distillation
from course_pkg.studies.compression.generated_data import (
    OnPolicyBatches,
    sample_examples,
    teacher_conversations,
)
from tests.refusals import require_refusals

PROMPTS = ["Hi", "What is a student?", "Why?", "How many layers?"]


def answer(example):
    """The answer's token ids; labels before it are masked."""
    ids = [label for label in example.labels if label != IGNORE_INDEX]
    start = len(example.labels) - len(ids)
    assert example.input_ids[start:] == tuple(ids)
    return ids


def ending(model, *tokens):
    """The model, which now ends an answer at these tokens too."""
    model.generation_config.eos_token_id = [258, *tokens]
    return model


@torch.no_grad()
def test_greedy_answers_equal_those_of_each_prompt_alone(tiny):
    model, tokenizer = tiny
    examples = sample_examples(model, tokenizer, PROMPTS, max_new_tokens=6, temperature=0)
    for prompt, example in zip(PROMPTS, examples, strict=True):
        ids = tokenizer(chat_prompt(prompt, tokenizer), return_tensors="pt").input_ids
        alone = model.generate(ids, max_new_tokens=6, do_sample=False)[0].tolist()
        assert list(example.input_ids) == alone
        assert answer(example) == alone[ids.shape[1] :]


def test_an_answer_ends_with_its_first_end_token(tiny):
    model, tokenizer = tiny
    [whole] = sample_examples(model, tokenizer, ["Hi"], max_new_tokens=8)
    third = answer(whole)[2]
    expected = answer(whole)[: answer(whole).index(third) + 1]
    both = sample_examples(ending(model, third), tokenizer, ["Hi", "Hi"], max_new_tokens=8)
    [short] = sample_examples(model, tokenizer, ["Hi"], max_new_tokens=8)
    assert answer(short) == expected
    assert all(third not in answer(each)[:-1] for each in both)
    model.generation_config.eos_token_id = None
    [endless] = sample_examples(model, tokenizer, ["Hi"], max_new_tokens=8)
    assert answer(endless) == answer(whole)


def test_answers_are_drawn_from_the_whole_distribution(tiny):
    model, tokenizer = tiny
    with torch.no_grad():
        model.model.norm.weight *= 1e-3  # every token is about equally probable
    examples = sample_examples(model, tokenizer, ["Hi"] * 200, max_new_tokens=1)
    drawn = {token for example in examples for token in answer(example)}
    assert len(drawn) > 100, "transformers draws from the 50 most probable by default"


def test_samples_follow_from_the_seed_and_leave_no_trace(tiny):
    model, tokenizer = tiny
    model.train()
    model.model.norm.eval()

    def draw(seed):
        return sample_examples(model, tokenizer, PROMPTS[:2], max_new_tokens=8, seed=seed)

    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    assert draw(1) == draw(1) != draw(2)
    assert torch.equal(torch.rand(2), expected)
    assert model.training and not model.model.norm.training


def test_the_teachers_conversations_hold_its_answers_and_the_report_says_what_is_missing(tiny):
    model, tokenizer = tiny
    end = tokenizer.eos_token_id
    written = {*b"ab ", end}
    model.generation_config.suppress_tokens = [id for id in range(259) if id not in written]
    prompts = [f"{prompt} {number}" for number in range(3) for prompt in PROMPTS]
    examples = []
    for start in (0, 8):  # a batch starts at the 8th prompt, and adds 8 to the seed
        part = prompts[start : start + 8]
        examples += sample_examples(model, tokenizer, part, max_new_tokens=6, seed=1 + start)
    options = {"batch_size": 8, "max_new_tokens": 6, "temperature": 1.0, "seed": 1}
    result = teacher_conversations(model, tokenizer, prompts, **options)
    texts = [tokenizer.decode(answer(example)[:-1]) for example in examples]
    kept = [i for i, text in enumerate(texts) if answer(examples[i])[-1] == end and text.strip()]
    assert 2 <= len(kept) <= 9
    assert [each.id for each in result.conversations] == [f"prompt {i}" for i in kept]
    for index, conversation in zip(kept, result.conversations, strict=True):
        assert [message.content for message in conversation.messages] == [
            prompts[index],
            texts[index],
        ]
    assert result.report.counts().keys() == {"too long", "empty answer"}
    assert len(result.report.problems) == 12 - len(kept) == 12 - result.report.kept
    again = tokenize_conversations(result.conversations, tokenizer).examples
    for index, example in zip(kept, again, strict=True):
        assert example == examples[index], "training data are the tokens that the teacher wrote"


def test_an_unfinished_answer_is_left_out(tiny):
    result = teacher_conversations(*tiny, PROMPTS[:1], max_new_tokens=2)
    assert result.conversations == ()
    assert str(result.report.problems[0]) == "prompt 0: too long: no end token in 2 tokens"


def on_policy(**settings):
    model = Distillation(tiny_model(1), tiny_model(0), alpha=0)
    settings = {"batch_size": 2, "max_new_tokens": 4} | settings
    return model, OnPolicyBatches(model, tiny_tokenizer(), PROMPTS, **settings)


def first(batches, count):
    iterator = iter(batches)
    return [next(iterator) for _ in range(count)]


def test_on_policy_batches_are_sampled_from_the_student_as_it_is_then():
    model, batches = on_policy()
    iterator = iter(batches)
    untouched = first(batches, 2)
    assert next(iterator)["input_ids"].tolist() == untouched[0]["input_ids"].tolist()
    with torch.no_grad():
        model.student.model.embed_tokens.weight *= 100  # it becomes sure of its tokens
    changed = next(iterator)
    prompts = changed["labels"] == IGNORE_INDEX
    assert torch.equal(prompts, untouched[1]["labels"] == IGNORE_INDEX)
    assert torch.equal(changed["input_ids"][prompts], untouched[1]["input_ids"][prompts])
    assert not torch.equal(changed["input_ids"], untouched[1]["input_ids"])


def test_a_resumed_run_samples_what_it_would_have_sampled(tmp_path):
    settings = {"learning_rate": 1e-2, "evaluate_every": 3, "checkpoint_every": 2}
    config = TrainConfig(steps=5, progress=False, **settings)
    model, batches = on_policy()
    whole = train(model, batches, config, evaluate=lambda model: 0.0)

    def stop(model):
        raise KeyboardInterrupt

    path = tmp_path / "run.pt"
    with pytest.raises(KeyboardInterrupt):
        model, batches = on_policy()
        train(model, batches, config, checkpoint=path, evaluate=stop)
    model, batches = on_policy()
    resumed = train(model, batches, config, resume_from=path, evaluate=lambda model: 0.0)
    losses = [[step.loss for step in each.steps] for each in (whole, resumed)]
    assert losses[0] == losses[1]


def test_bad_settings_are_named():
    labeled = Distillation(tiny_model(1), tiny_model())
    require_refusals(
        (lambda: OnPolicyBatches(labeled, None, PROMPTS), r"alpha is 0\.5, but the student's own"),
        (lambda: OnPolicyBatches(tiny_model(), None, PROMPTS), "TypeError: .*got LlamaForCausalLM"),
        (lambda: on_policy(batch_size=5), "batch_size=5 needs as many prompts, got 4"),
        (lambda: first(on_policy(temperature=-1)[1], 1), "temperature must be at least 0"),
        (lambda: sample_examples(tiny_model(), None, []), "prompts is empty"),
        errors=(TypeError, ValueError),
    )
