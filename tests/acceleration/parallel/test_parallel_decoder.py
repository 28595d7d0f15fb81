"""A decoder on several ranks: what it computes, learns, sends and keeps equals one process's."""

import copy
import dataclasses
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from course_pkg.acceleration.parallel.collectives import Group, ring_bytes
from course_pkg.acceleration.parallel.launch import launch
from course_pkg.acceleration.parallel.parallel_decoder import (
    clip_gradients,
    finish_gradients,
    kept_bytes,
    tensor_parallel,
)
from course_pkg.acceleration.parallel.tensor_shards import gathered_tensors, local_config, placement
from course_pkg.acceleration.parallel.vocab_parallel import vocab_parallel_cross_entropy
from course_pkg.lm.decoder import Decoder, RMSNorm
from tests.acceleration.parallel.alone import (
    CLIP,
    IGNORED,
    LEARNING_RATE,
    WEIGHT_DECAY,
    all_equal,
    batches,
    small_decoder,
    train,
    train_alone,
)
from tests.tables import each_row

VOCAB = 48
HEADS = {"num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 4}
BIASES = {"attention_bias": True, "mlp_bias": True}
QWEN2 = {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 5}
QWEN2 |= {"max_window_layers": 1, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}
ODD = HEADS | BIASES | {"vocab_size": 47}  # which 3 doesn't divide
CASES = {  # by ranks: with sequence parallelism or without, changes to the decoder
    2: [
        (False, {}),
        (True, {"tie_word_embeddings": False}),
        (False, QWEN2),
    ],
    3: [
        (False, ODD),
        (True, ODD | {"tie_word_embeddings": False}),
    ],
    4: [
        (False, BIASES | {"num_key_value_heads": 1}),
        (True, BIASES | {"num_key_value_heads": 2}),
    ],
}


def decoder_of(changes):
    """In fp64: AdamW divides each gradient by its size, so fp32 would show its rounding."""
    return small_decoder(**{"num_hidden_layers": 2} | changes).double()


def _gathered(decoder, of=lambda parameter: parameter):
    own = {name: of(parameter) for name, parameter in decoder.named_parameters()}
    return gathered_tensors(own, decoder.whole_config, decoder.group)


def _train(group, sequence_parallel, changes, data):
    decoder = tensor_parallel(decoder_of(changes), group, sequence_parallel=sequence_parallel)
    optimizer = torch.optim.AdamW(decoder.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)

    def step(ids, labels):
        optimizer.zero_grad()
        own = decoder(ids, gather=False)
        vocab_size = decoder.config.vocab_size
        loss = vocab_parallel_cross_entropy(own, labels, group, vocab_size, ignore_index=IGNORED)
        loss.backward()
        finish_gradients(decoder)
        gradients = _gathered(decoder, lambda parameter: parameter.grad)
        norm = clip_gradients(decoder, CLIP)
        optimizer.step()
        return loss.item(), gradients, norm

    run = dataclasses.replace(train(decoder, data, step), parameters=_gathered(decoder))
    same = all(
        all_equal(parameter, group)
        for name, parameter in decoder.named_parameters()
        if placement(name, decoder.whole_config, group.size).dim is None
    )
    return run, same


def _train_all(group, cases):
    group = Group(algorithm="torch")  # faster; that rings are equal is tested elsewhere
    return [_train(group, *case) for case in cases]


@each_row("ranks", CASES)
def test_five_steps_equal_one_processs(ranks):
    cases = [
        (sequence_parallel, changes, batches(vocab=changes.get("vocab_size", VOCAB)))
        for sequence_parallel, changes in CASES[ranks]
    ]
    expected = [
        dataclasses.asdict(train_alone(decoder_of(changes), data)) for _, changes, data in cases
    ]
    for results in launch(_train_all, ranks, cases):
        for (run, same), alone, case in zip(results, expected, cases, strict=True):
            assert same, "what all ranks have whole stays equal to the last bit"
            for name, value in dataclasses.asdict(run).items():
                message = f"{name} of {case[:2]}"
                torch.testing.assert_close(value, alone[name], rtol=1e-9, atol=1e-9, msg=message)


IDS = batches()[0][0]  # (4, 12)


def _in_two_pairs(group):
    """Saved by four ranks, loaded by two pairs of ranks, and by one."""
    whole = decoder_of({"vocab_size": 50})
    state = _gathered(tensor_parallel(whole, group))
    loaded = Decoder(whole.config).double()
    loaded.load_state_dict(state)
    pair = Group(dist.new_subgroups_by_enumeration([[0, 2], [1, 3]])[0], algorithm="torch")
    part = tensor_parallel(loaded, pair)
    options = {"last_only": True}, {"rows": torch.tensor([3, 5])}, {}
    with torch.no_grad():
        outputs = [(part(IDS, **option), whole(IDS, **option)) for option in options]
    return state, whole.state_dict(), outputs, type(copy.deepcopy(part)(IDS)) is torch.Tensor


def test_what_four_ranks_save_two_and_one_load():
    for state, whole, outputs, can_copy in launch(_in_two_pairs, 4):
        assert list(state) == list(whole)
        torch.testing.assert_close(state, whole, rtol=0, atol=0)
        for part, expected in outputs:
            torch.testing.assert_close(part, expected)
        assert can_copy


def _costs(group, sequence_parallel):
    """Bytes that one layer sends, forward and backward; what the norms and all keep."""
    whole = small_decoder(num_attention_heads=6, num_key_value_heads=3, head_dim=4)
    decoder = tensor_parallel(whole, group, sequence_parallel=sequence_parallel)
    cos = sin = torch.ones(1, 1, 12, 2)
    tokens = 12 // group.size if sequence_parallel else 12
    x = torch.ones(4, tokens, 24, requires_grad=True)
    group.sent_bytes = 0
    y = decoder.layers[0](x, cos, sin, lambda layer, query, key, value: query)
    forward = group.sent_bytes
    y.sum().backward()
    return forward, group.sent_bytes - forward, *kept_bytes(decoder, lambda: decoder(IDS))


def test_a_layer_sends_four_all_reduces_and_norms_keep_one_part():
    whole = small_decoder(num_attention_heads=6, num_key_value_heads=3, head_dim=4)
    norms_alone, _ = kept_bytes(whole, lambda: whole(IDS))
    size = 4 * 12 * 24 * 4  # batch, tokens, hidden, bytes
    sent = 2 * ring_bytes("all_reduce", 3, size)
    results = launch(lambda group: [_costs(group, divided) for divided in (False, True)], 3)
    for (forward, backward, norms, everything), with_tokens in results:
        assert (forward, backward) == (sent, sent)
        assert norms == norms_alone
        assert with_tokens[:2] == (sent, sent)
        assert with_tokens[2] == norms_alone / 3
        # The inputs of the column-parallel layers, gathered, are kept whole as before.
        assert everything - with_tokens[3] == norms * 2 / 3


def test_each_norm_keeps_its_input_its_output_and_a_number_per_token():
    model = torch.nn.Sequential(RMSNorm(8, 1e-6), torch.nn.Linear(8, 5))
    x = torch.ones(2, 3, 8, requires_grad=True)
    norms = 2 * 6 * 8 * 4 + 6 * 4
    assert kept_bytes(model, lambda: model(x)) == (norms, norms + 6 * 8 * 4)


SMOLLM2 = {"num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 4}


@each_row(
    ("ranks", "config", "fitting"),
    [
        (2, SMOLLM2, "9 heads, 3 key-value heads and 36 features .* 2 ranks .*: use 1 or 3 or 9$"),
        (3, {"num_key_value_heads": 2, "num_attention_heads": 6, "head_dim": 4}, "use 1 or 2 or 6"),
        (5, {}, "use 1 or 2 or 4"),
    ],
)
def test_heads_that_ranks_cannot_share_are_refused_with_numbers_that_fit(ranks, config, fitting):
    with pytest.raises(ValueError, match=fitting):
        local_config(small_decoder(**config).config, ranks)


def test_three_ranks_share_smollm2s_heads():
    local = local_config(small_decoder(**SMOLLM2).config, 3)
    assert (local.heads, local.kv_heads, local.head_dim) == (3, 1, 4)
    assert (local.hidden_size, local.intermediate_size, local.vocab_size) == (24, 12, VOCAB)


SECOND_OF_TWO = SimpleNamespace(rank=1, size=2)  # enough of a Group for what sends nothing


def test_what_cannot_be_divided_is_refused():
    decoder = tensor_parallel(small_decoder(), SECOND_OF_TWO, sequence_parallel=True)
    with pytest.raises(ValueError, match="7 tokens can't be divided among 2 ranks: pad them to a"):
        decoder(IDS[:, :7])
    with pytest.raises(TypeError, match="expected a whole Decoder, got TensorParallelDecoder"):
        tensor_parallel(decoder, SECOND_OF_TWO)
    decoder = small_decoder()
    decoder.layers[1].mlp.up_proj = torch.nn.Identity()
    with pytest.raises(TypeError, match=r"expected an nn\.Linear .*, got Identity"):
        tensor_parallel(decoder, SECOND_OF_TWO)


@each_row("tied", [True, False])
def test_frozen_weights_stay_frozen(tied):
    decoder = small_decoder(tie_word_embeddings=tied, attention_bias=True)
    for name, parameter in decoder.named_parameters():
        parameter.requires_grad_("layers.1" in name or "lm_head" in name)
    own = tensor_parallel(decoder, SECOND_OF_TWO)
    trained = [{n for n, p in d.named_parameters() if p.requires_grad} for d in (decoder, own)]
    assert trained[0] == trained[1]
    assert trained[0]
