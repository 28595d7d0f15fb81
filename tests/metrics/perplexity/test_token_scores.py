import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel, T5Config
from transformers import T5ForConditionalGeneration as T5

from course_pkg.adapters.injection import inject
from course_pkg.adapters.lora import LoRAConfig
from course_pkg.lm.load import load
from course_pkg.metrics.perplexity import (
    plan_batches,
    target_log_probs,
    token_log_probs,
    token_scores,
)
from tests.refusals import require_refusals


def gpt2(**options):
    """A random GPT-2: its positions are absolute, so a wrong position id changes the result."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = GPT2Config(vocab_size=60, n_positions=64, n_embd=32, n_layer=2, n_head=2)
        config.update({"initializer_range": 0.3, **options})
        return GPT2LMHeadModel(config).eval()


def sequences(*lengths, vocabulary=60, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randint(vocabulary, (length,), generator=generator).tolist() for length in lengths
    ]


def one_by_one(model, ids):
    """The reference: no batch, no pads, float64 log-softmax."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids])).logits[0, :-1].double()
    return logits.log_softmax(-1).gather(-1, torch.tensor(ids[1:])[:, None])[:, 0]


LENGTHS = (7, 1, 40, 3, 2, 7, 19, 33, 2, 12)


@pytest.mark.parametrize(
    ("make", "batch_size", "side"),
    [(gpt2, 3, "left"), (gpt2, 16, "right"), (lambda: load("tiny").model, 3, "left")],
    ids=["GPT-2 left", "GPT-2 right", "Llama"],
)
def test_batches_padded_on_either_side_equal_single_sequences(make, batch_size, side):
    model = make()
    texts = sequences(*LENGTHS)
    scores = token_log_probs(model, texts, batch_size=batch_size, padding_side=side)
    for ids, score in zip(texts, scores, strict=True):
        assert score.dtype == torch.float32 and score.shape == (len(ids) - 1,)
        if len(ids) > 1:
            torch.testing.assert_close(score.double(), one_by_one(model, ids), rtol=0, atol=5e-5)


@pytest.mark.parametrize("side", ["left", "right"])
def test_the_value_of_a_pad_does_not_matter(side, monkeypatch):
    # With a high cost per pass, sequences of different lengths share a batch.
    monkeypatch.setattr(token_scores, "PASS_COST", {"cpu": 10**6, "other": 10**6})
    model = gpt2()
    texts = sequences(*LENGTHS)
    assert len(plan_batches(LENGTHS, 16, 10**6, 10**6)) == 1
    runs = [
        token_log_probs(model, texts, padding_side=side, pad_token_id=pad) for pad in (0, 59, 17)
    ]
    for scores in zip(*runs, strict=True):
        assert torch.equal(scores[0], scores[1]) and torch.equal(scores[0], scores[2])


def test_tokens_before_first_are_context_and_not_scored():
    model = gpt2()
    texts = sequences(9, 20, 5, 6)
    scores = token_log_probs(model, texts, first=[4, 1, 9, 5], padding_side="left")
    assert [len(score) for score in scores] == [5, 19, 0, 1]
    for ids, first, score in zip(texts, (4, 1, 9, 5), scores, strict=True):
        whole = one_by_one(model, ids).float()
        torch.testing.assert_close(score, whole[first - 1 :], rtol=0, atol=5e-5)


def test_scores_do_not_depend_on_the_chunk_size(monkeypatch):
    logits = torch.randn(2, 33, 97, generator=torch.Generator().manual_seed(0)) * 20
    targets = torch.arange(66).reshape(2, 33)
    expected = logits.double().log_softmax(-1).gather(-1, targets[..., None])[..., 0].float()
    for chunk in (1, 97, 200, 10**6):
        monkeypatch.setattr(token_scores, "CHUNK", chunk)
        scores = target_log_probs(logits, targets)
        torch.testing.assert_close(scores, expected, rtol=1e-6, atol=1e-5)


def test_extreme_logits_neither_overflow_nor_become_nan_and_halves_are_summed_in_fp32():
    logits = torch.tensor([[1e4, 0.0], [1e4, 0.0], [-1e4, -2e4], [0.0, -torch.inf]])
    scores = target_log_probs(logits, torch.tensor([0, 1, 1, 1]))
    assert scores.tolist() == [0, -1e4, -1e4, -torch.inf]
    logits = torch.zeros(1, 50_000, dtype=torch.bfloat16)
    scores = target_log_probs(logits, torch.tensor([3]))
    assert scores.item() == pytest.approx(-torch.tensor(50_000.0).log().item(), abs=1e-4)


def test_no_copy_of_the_logits_is_made(monkeypatch):
    monkeypatch.setattr(token_scores, "CHUNK", 4 * 1000)
    logits = torch.zeros(256, 1000)
    targets = torch.zeros(256, dtype=torch.long)
    with torch.profiler.profile(profile_memory=True) as profiler:
        target_log_probs(logits, targets)
    largest = max(event.self_cpu_memory_usage for event in profiler.events())
    assert largest < logits.nbytes / 8  # a log-softmax would be as large as the logits


def test_dropout_is_off_and_modes_are_restored_also_after_an_error():
    model = gpt2(resid_pdrop=0.5, embd_pdrop=0.5, attn_pdrop=0.5)
    texts = sequences(30)
    state = torch.get_rng_state()
    without_dropout = token_log_probs(model, texts)[0]
    assert torch.equal(torch.get_rng_state(), state) and not without_dropout.requires_grad
    model.train()
    model.transformer.h[0].eval()
    before = [module.training for module in model.modules()]
    assert torch.equal(token_log_probs(model, texts)[0], without_dropout)
    assert [module.training for module in model.modules()] == before
    model = gpt2().train()
    model.lm_head.register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        token_log_probs(model, [[1, 2, 3, 4]])
    assert model.training


def test_adapted_models_are_scored_with_their_adapter():
    from peft import LoraConfig, get_peft_model

    (ids,) = sequences(20)
    ours = load("tiny").model
    theirs = load("tiny").model
    plain = token_log_probs(ours, [ids])[0]
    inject(ours, LoRAConfig(rank=2, target_modules=["q_proj"]))
    theirs = get_peft_model(theirs, LoraConfig(r=2, target_modules=["q_proj"]))
    for model in (ours, theirs):
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                nn.init.constant_(parameter, 0.5)
        scores = token_log_probs(model, [ids, ids[:7]], padding_side="left")
        assert (scores[0] - plain).abs().max() > 1e-3
        torch.testing.assert_close(scores[0].double(), one_by_one(model, ids), rtol=0, atol=5e-5)


def test_invalid_arguments_raise_an_error():
    model = gpt2()
    encoder = BertForMaskedLM(BertConfig(vocab_size=60, hidden_size=12, num_hidden_layers=1))
    both = T5(T5Config(vocab_size=60, d_model=8, num_layers=1, num_heads=1, d_kv=8))
    four = sequences(4)
    logits = torch.zeros(2, 5)
    require_refusals(
        (lambda: token_log_probs(model, four, batch_size=0), "at least 1"),
        (lambda: token_log_probs(model, four, first=[0]), "at least 1"),
        (lambda: token_log_probs(model, four, first=[1, 1]), "at least 1"),
        (lambda: token_log_probs(model, four, padding_side="both"), "padding_side"),
        (lambda: token_log_probs(model, [[1], [1, 3000]]), "1 go from .* use the tokenizer"),
        (lambda: token_log_probs(model, [[1], [-1, 2]]), "1 go from .* use the tokenizer"),
        (lambda: token_log_probs(model, [[1], "12"]), "TypeError: sequence 1 must be a list of"),
        (lambda: token_log_probs(model, [[1], ["1", "2"]]), "TypeError: sequence 1 must be a list"),
        (lambda: token_log_probs("gpt2", four), "TypeError.*language model, got str"),
        (lambda: token_log_probs(encoder, four), "AutoModelForCausalLM"),
        (lambda: token_log_probs(both, four), "AutoModelForCausalLM"),
        (lambda: target_log_probs(logits, torch.tensor([1, 5])), "from 0 to 4, got 1 to 5"),
        (lambda: target_log_probs(logits, torch.tensor([1])), "the shape of targets and one more"),
        errors=(TypeError, ValueError),
    )


def test_nan_is_reported_and_nothing_to_score_needs_no_forward_pass():
    model = gpt2()
    with torch.no_grad():
        model.transformer.ln_f.weight[0] = torch.nan
    with pytest.raises(FloatingPointError, match="sequence 1 are NaN"):
        token_log_probs(model, [[1], [1, 2]])
    assert [score.tolist() for score in token_log_probs(gpt2(), [[], [3]])] == [[], []]
    assert token_log_probs(gpt2(), []) == []


@given(st.lists(st.integers(1, 200), max_size=40), st.integers(1, 9), st.integers(1, 500))
def test_batches_contain_every_sequence_once_within_their_limits(lengths, batch_size, most_tokens):
    batches = plan_batches(lengths, batch_size, most_tokens)
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        longest = max(lengths[i] for i in batch)
        assert len(batch) <= batch_size
        assert len(batch) == 1 or len(batch) * longest <= most_tokens


def divisions(items):
    """All ways to cut a list into consecutive pieces."""
    yield [items]
    for size in range(1, len(items)):
        yield from ([items[:size], *rest] for rest in divisions(items[size:]))


@given(st.lists(st.integers(1, 60), min_size=1, max_size=9), st.integers(0, 50))
def test_no_other_division_of_the_sorted_sequences_costs_less(lengths, pass_cost):
    planned = plan_batches(lengths, 16, 10**6, pass_cost)
    best = sum(pass_cost + len(batch) * max(lengths[i] for i in batch) for batch in planned)
    for batches in divisions(sorted(lengths)):
        assert best <= sum(pass_cost + len(batch) * batch[-1] for batch in batches)
