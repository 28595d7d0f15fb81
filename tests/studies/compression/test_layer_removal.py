"""A student without some layers computes what the teacher does when it skips them."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from course_pkg.adapters.accounting import count_parameters
from course_pkg.lm.decoder import Decoder
from course_pkg.studies.compression.layer_removal import (
    block_influence,
    evenly_spaced,
    keep_layers,
    most_influential,
)
from tests.refusals import require_refusals

IDS = torch.randint(256, (2, 11), generator=torch.Generator().manual_seed(0))
CONFIG = LlamaConfig(
    vocab_size=259,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=5,
    num_attention_heads=4,
    num_key_value_heads=2,
    tie_word_embeddings=True,
)


@pytest.fixture
def deep():
    """A random model of five layers, whose weights are large enough for the layers to matter."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(CONFIG).eval()
    with torch.no_grad():
        for parameter in model.model.layers.parameters():
            if parameter.ndim == 2:
                parameter *= 5
    return model


def skip(layer):
    """Make a layer return what it reads: both of its branches add 0."""
    with torch.no_grad():
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()


@given(st.data())
def test_evenly_spaced_layers_have_gaps_that_differ_by_at_most_one(data):
    layers = data.draw(st.integers(1, 80))
    keep = data.draw(st.integers(1, layers))
    kept = evenly_spaced(layers, keep)
    gaps = {after - before for before, after in pairwise(kept)}
    assert len(kept) == keep and kept[0] == 0
    if keep > 1:
        assert kept[-1] == layers - 1 and min(gaps) >= 1 and max(gaps) - min(gaps) <= 1


def test_layers_to_keep_by_hand():
    assert evenly_spaced(5, 3) == [0, 2, 4]
    assert evenly_spaced(4, 3) == [0, 1, 3]  # 1.5 rounds down
    assert most_influential([0.9, 0.1, 0.3, 0.2], 3) == [0, 2, 3]
    assert most_influential([0.1, 0.1, 0.1], 2) == [0, 1], "of equal ones the earlier stay"


@torch.no_grad()
def test_influence_is_one_minus_the_cosine_and_the_last_layer_is_read_before_the_norm(deep):
    deep.train()
    influence = block_influence(deep, [IDS, IDS[:1, :4]])
    assert deep.training and not any(part._forward_hooks for part in deep.modules())
    deep.eval()
    cosines = [[] for _ in influence]
    for ids in (IDS, IDS[:1, :4]):
        states = [each.double() for each in deep(ids, output_hidden_states=True).hidden_states]
        for index, found in enumerate(cosines):
            read = states[index]
            returned = states[index + 1]
            found += torch.cosine_similarity(read, returned, dim=-1).flatten().tolist()
    expected = [1 - sum(found) / len(found) for found in cosines]  # each token counts the same
    assert influence[:-1] == pytest.approx(expected[:-1], rel=1e-5)
    with torch.no_grad():  # then the norm of transformers' last state changes its direction
        deep.model.norm.weight[:16] = 9.0
    assert block_influence(deep, [IDS, IDS[:1, :4]]) == pytest.approx(influence)


@torch.no_grad()
@pytest.mark.parametrize("kept", [[0, 2, 4], [3, 4]])
def test_the_student_computes_what_the_teacher_does_without_these_layers(deep, kept):
    student = keep_layers(deep, kept)
    decoded = Decoder.from_transformers(student)(IDS)
    expected = deep(IDS).logits
    if len(kept) < 5:
        assert not torch.allclose(student(IDS).logits, expected, atol=1e-2)
    for index in set(range(5)) - set(kept):
        skip(deep.model.layers[index])
    torch.testing.assert_close(student(IDS).logits, deep(IDS).logits)
    torch.testing.assert_close(decoded, student(IDS).logits, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_the_students_cache_is_its_own(deep):
    student = keep_layers(deep, [1, 3, 4])
    assert [layer.self_attn.layer_idx for layer in student.model.layers] == [0, 1, 2]
    assert [layer.self_attn.layer_idx for layer in deep.model.layers] == [0, 1, 2, 3, 4]
    past = student(IDS, use_cache=True).past_key_values
    assert len(past) == 3 and all(past.get_seq_length(layer) == 11 for layer in range(3))
    options = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 256}
    with_cache = student.generate(IDS, **options)
    assert with_cache.tolist() == student.generate(IDS, use_cache=False, **options).tolist()


def test_the_student_shares_nothing_with_the_teacher_and_ties_its_own_embeddings(deep):
    before = {name: p.detach().clone() for name, p in deep.named_parameters()}
    student = keep_layers(deep, [0, 2]).train()
    assert not deep.training
    assert student.lm_head.weight is student.model.embed_tokens.weight
    with torch.no_grad():
        for parameter in student.parameters():
            parameter.zero_()
    assert all(torch.equal(p, before[name]) for name, p in deep.named_parameters())
    assert deep.config.num_hidden_layers == 5 == len(deep.model.layers)


def test_parameters_are_counted_exactly(deep):
    layer = 32 * 32 + 2 * 32 * 16 + 32 * 32 + 3 * 32 * 48 + 2 * 32  # q, k and v, o, SwiGLU, norms
    rest = 259 * 32 + 32
    assert deep.num_parameters() == 5 * layer + rest
    student = keep_layers(deep, [0, 4])
    assert student.num_parameters() == 2 * layer + rest
    assert count_parameters(student.config).base == 2 * layer + rest


def test_layers_that_do_not_exist_or_are_out_of_order_are_refused(deep):
    for layers in ([], [2, 0], [1, 1], [0, 5], [-1], [0.0], [True]):
        with pytest.raises(ValueError, match="layer"):
            keep_layers(deep, layers)


def test_other_mistakes_are_named(deep):
    decoder = Decoder.from_transformers(deep)
    require_refusals(
        (lambda: keep_layers(decoder, [0]), "TypeError: .*LlamaForCausalLM.*got Decoder"),
        (lambda: evenly_spaced(5, 6), "at most the number of layers, 5, got 6"),
        (lambda: most_influential([0.1, 0.2], 3), "at most the number of layers, 2, got 3"),
        (lambda: block_influence(deep, []), "no tokens"),
        errors=(TypeError, ValueError),
    )
