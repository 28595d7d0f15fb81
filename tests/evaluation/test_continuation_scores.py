import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GPT2Config, GPT2LMHeadModel, MistralConfig, MistralForCausalLM

from course_pkg.evaluation.continuation_scores import as_decoder, score_continuations
from course_pkg.lm.tiny import tiny_model
from tests.evaluation.test_generation import sharpened
from tests.refusals import require_refusals

MODEL = sharpened()


def alone(model, sequence, first):
    """One sequence by transformers, in fp64, without cache or batch."""
    with torch.no_grad():
        logits = model(torch.tensor([sequence])).logits[0].double()
    targets = torch.tensor(sequence[1:])[:, None]
    log_probs = logits[:-1].log_softmax(-1).gather(1, targets)[first - 1 :, 0]
    greedy = torch.equal(logits[first - 1 : -1].argmax(-1), targets[first - 1 :, 0])
    return log_probs.tolist(), greedy


def assert_as_alone(model, sequences, first, **options):
    scores = score_continuations(model, sequences, first, **options)
    for score, sequence, start in zip(scores, sequences, first, strict=True):
        log_probs, greedy = alone(model, sequence, start)
        # fp32: a sum of 64 products in another order differs by a few units in the last place
        assert score.log_probs == pytest.approx(log_probs, abs=2e-4)
        assert score.greedy == greedy


tokens = st.lists(st.integers(0, 2), min_size=2, max_size=9)  # few ids, so that many are shared


@settings(max_examples=15)
@given(st.data(), st.lists(tokens, min_size=1, max_size=8), st.sampled_from([1, 5, 12, 256]))
def test_a_tree_a_cache_and_one_sequence_alone_agree(data, sequences, tokens_per_pass):
    first = [data.draw(st.integers(1, len(ids) - 1)) for ids in sequences]
    assert_as_alone(MODEL, sequences, first, tokens_per_pass=tokens_per_pass)


@pytest.mark.parametrize("tokens_per_pass", [1, 7])
def test_sliding_windows_count_the_distance_in_the_sequence_not_in_the_tree(tokens_per_pass):
    sizes = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": 3}
    torch.manual_seed(0)
    model = MistralForCausalLM(MistralConfig(**sizes, initializer_range=0.3)).eval()
    assert as_decoder(model) is not None
    shared = [5, 6, 7, 8, 9, 10]
    sequences = [[*shared, 11, 12, 13], [*shared, 14, 15, 16], [*shared, 11, 17]]
    assert_as_alone(model, sequences, [6, 6, 6], tokens_per_pass=tokens_per_pass)


@pytest.fixture
def gpt2():
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=16)
    return GPT2LMHeadModel(config).eval()


def test_a_model_that_the_decoder_cannot_run_is_called_as_it_is(gpt2):
    assert as_decoder(gpt2) is None
    sequences = [[1, 2, 3], [1, 2, 3, 4, 5, 6, 7, 8], [9, 8], [1, 2, 4]]
    assert_as_alone(gpt2, sequences, [1, 5, 1, 2], tokens_per_pass=10)


def test_virtual_tokens_before_the_text_are_not_scored(gpt2):
    """PEFT's prompt tuning returns logits of its virtual tokens too."""
    peft = pytest.importorskip("peft")
    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    model = peft.get_peft_model(gpt2, config).eval()
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[1, 2, 3]])).logits[0, -3:]
    expected = logits.log_softmax(-1)[[1, 2], [3, 4]].tolist()
    [score] = score_continuations(model, [[1, 2, 3, 4]], [2])
    assert score.log_probs == pytest.approx(expected, abs=1e-5)


def computed_tokens(sequences, first, **options):
    decoder = as_decoder(MODEL)
    counted = []
    decoder.register_forward_pre_hook(lambda module, args: counted.append(args[0].numel()))
    score_continuations(decoder, sequences, first, **options)
    return counted


def test_each_token_that_sequences_share_is_computed_once():
    few_shot = list(range(30))
    questions = [[*few_shot, 40 + number, 41, 42] for number in range(5)]
    sequences = [[*question, 50, option, 51] for question in questions for option in range(4)]
    first = [33] * len(sequences)
    # The last token of a sequence is only predicted.
    distinct = {tuple(ids[: n + 1]) for ids in sequences for n in range(len(ids) - 1)}
    assert len(distinct) == 30 + 5 * (3 + 1 + 4)
    assert computed_tokens(sequences, first) == [len(distinct)]
    # Also in several passes, since the examples stay in the cache: 30 + 8, then 4 · 8.
    assert computed_tokens(sequences, first, tokens_per_pass=40) == [38, 32]


def test_a_divided_question_computes_only_the_last_token_of_its_context_again():
    context = list(range(20))
    sequences = [[*context, option, 60, 61] for option in range(30, 34)]
    # 20 + 2, then: token 19, which predicts the options, and their two tokens.
    assert computed_tokens(sequences, [20] * 4, tokens_per_pass=5) == [22, 5, 3]


def test_bad_input_is_one_clear_error():
    require_refusals(
        ([[1, 2]], [2], "it needs at least one token of context and one to score"),
        ([[1, 2]], [0], "it needs at least one token of context and one to score"),
        ([[1, 259]], [1], "the model knows 0 to 258"),
        ([[1, 2]], [1, 1], "first has 2 positions for 1 sequences"),
        ([[1] * 2050], [1], "use fewer examples"),
        of=lambda sequences, first: score_continuations(MODEL, sequences, first),
    )


def test_nan_and_dropout_are_errors_not_scores(gpt2):
    model = tiny_model()
    with torch.no_grad():
        model.model.norm.weight.fill_(torch.nan)
    with pytest.raises(FloatingPointError, match="sequence 0 are NaN"):
        score_continuations(model, [[1, 2]], [1])
    with pytest.raises(ValueError, match=r"call model\.eval"):
        score_continuations(gpt2.train(), [[1, 2]], [1])
