"""The decoder's arguments, and what `attend` sees.

Equality with transformers is tested in tests/parity/test_transformers_decoder.py.
"""

import pytest
import torch

from course_pkg.lm.decoder import Decoder, RMSNorm, causal_attend
from course_pkg.lm.model_errors import ModelError
from course_pkg.lm.tiny import tiny_model
from tests.refusals import require_refusals

IDS = torch.tensor([[5, 6, 7, 8], [1, 2, 3, 4]])


@pytest.fixture(scope="module")
def model():
    """The tiny model's decoder: 2 layers, 4 heads of 16, 2 kv heads."""
    return Decoder.from_transformers(tiny_model()).requires_grad_(False)


def test_rms_norm_of_half_precision_is_computed_in_fp32():
    # 300² overflows fp16, whose largest value is 65504.
    assert RMSNorm(2, eps=0.0).half()(torch.full((2,), 300.0).half()).tolist() == [1.0, 1.0]


def test_attend_is_called_once_in_each_layer_with_rotated_heads(model):
    calls = []

    def attend(layer, query, key, value):
        calls.append((layer, query.shape, key.shape, value.shape))
        return torch.zeros_like(query)

    model(IDS, attend=attend)
    narrow = torch.Size([2, 2, 4, 16])
    assert calls == [(layer, torch.Size([2, 4, 4, 16]), narrow, narrow) for layer in range(2)]


def test_logits_may_be_those_of_some_tokens_or_of_none(model):
    rows = torch.tensor([2, 0])
    assert torch.allclose(model(IDS, last_only=True), model(IDS)[:, -1:], atol=1e-6)
    assert torch.allclose(model(IDS, rows=rows), model(IDS)[:, rows], atol=1e-6)
    assert model(torch.empty(2, 0, dtype=torch.long)).shape == (2, 0, 259)


def test_positions_may_be_shared_or_differ_between_rows(model):
    order = torch.arange(4)
    shared = model(IDS, order)
    assert torch.equal(shared, model(IDS)) and torch.equal(shared, model(IDS, order.expand(2, 4)))
    # RoPE is relative: the same shift of all positions changes nothing but rounding.
    assert torch.allclose(shared, model(IDS, order + 7), atol=1e-5)
    apart = model(IDS, torch.stack((order, 3 * order)))
    assert torch.allclose(shared[0], apart[0], atol=1e-5)
    assert not torch.allclose(shared[1], apart[1], atol=1e-3)


def test_arguments_of_the_wrong_shape(model):
    attend = causal_attend(model.config, torch.ones(2, 3))
    shapes = r"expected ids of shape \(batch, tokens\) and positions"
    require_refusals(
        (lambda: model(IDS[0]), shapes),
        (lambda: model(IDS, torch.arange(3)), shapes),
        (lambda: model(IDS, torch.zeros(1, 4)), shapes),
        (lambda: model(IDS, torch.tensor(0)), shapes),
        (lambda: model(IDS, attend=attend), r"key_mask is \(2, 3\), expected \(2, 4\)"),
    )


def test_from_transformers_shares_tensors_and_from_folder_converts_the_type(tmp_path):
    theirs = tiny_model()
    ours = Decoder.from_transformers(theirs)
    assert ours.embed_tokens.weight.data_ptr() == theirs.model.embed_tokens.weight.data_ptr()
    with pytest.raises(TypeError, match="expected a transformers model, got Linear"):
        Decoder.from_transformers(torch.nn.Linear(1, 1))
    tiny_model().save_pretrained(tmp_path)
    half = Decoder.from_folder(tmp_path, dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in half.parameters()} == {torch.bfloat16}
    assert not half.training and half(IDS).dtype == torch.bfloat16
    with pytest.raises(ModelError, match='device "abacus"'):
        Decoder.from_folder(tmp_path, device="abacus")
