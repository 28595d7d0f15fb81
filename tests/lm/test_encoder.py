"""Encoders: loading, batches, truncation and error messages."""

import pytest
import torch
from transformers import DistilBertConfig, DistilBertModel

from course_pkg.lm import encoder as encoder_module
from course_pkg.lm.encoder import Encoder, check_layer, encoder_folder, load_encoder, token_vectors
from course_pkg.lm.model_errors import CorruptModelError, MissingPackageError, UnknownModelError
from tests.refusals import require_refusals

SENTENCE = "The cat sat on the mat, and it rained all day."
TEXTS = ["a cat", "", SENTENCE, "a cat", "internationalization"]


@pytest.fixture(scope="module")
def minilm():
    return load_encoder()


def test_the_default_is_the_packages_encoder(minilm):
    model, tokenizer = minilm
    assert (encoder_folder() / "config.json").is_file()
    assert (minilm.layers, model.config.hidden_size, model.training) == (6, 384, False)
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert tokenizer("Cat").input_ids == tokenizer("cat").input_ids


def test_vectors_equal_the_layers_output_for_each_text(minilm, subtests):
    for layer in (0, 3, 6):
        with subtests.test(layer=layer):
            for text, found in zip(TEXTS, token_vectors(minilm, TEXTS, layer=layer), strict=True):
                inputs = minilm.tokenizer(text, return_tensors="pt")
                with torch.inference_mode():
                    expected = minilm.model(**inputs, output_hidden_states=True).hidden_states[
                        layer
                    ][0]
                assert found.ids.tolist() == inputs.input_ids[0].tolist()
                assert found.special.tolist() == [True, *[False] * (len(found.ids) - 2), True]
                torch.testing.assert_close(found.vectors, expected, atol=2e-5, rtol=0)


def test_the_batch_size_and_an_earlier_lower_layer_change_no_vector(minilm):
    assert token_vectors(minilm, []) == []
    whole = token_vectors(minilm, TEXTS)
    for size in (1, 7, 30, 10_000):
        for one, other in zip(whole, token_vectors(minilm, TEXTS, batch_tokens=size), strict=True):
            torch.testing.assert_close(one.vectors, other.vectors, atol=2e-5, rtol=0)
    before = token_vectors(minilm, ["a cat"])[0].vectors
    token_vectors(minilm, ["a dog"], layer=0)
    assert len(minilm.model.encoder.layer) == 6
    assert minilm.model.pooler is not None
    assert torch.equal(token_vectors(minilm, ["a cat"])[0].vectors, before)


def test_a_long_text_is_truncated_and_flagged(minilm):
    long, short = token_vectors(minilm, ["cat " * 2_000, "cat"])
    assert (len(long.ids), long.truncated, short.truncated) == (512, True, False)
    assert long.special[-1]
    [fits] = token_vectors(minilm, ["cat " * 510])
    assert (len(fits.ids), fits.truncated) == (512, False)


def test_another_architecture_works_through_hidden_states(minilm):
    sizes = {"vocab_size": 30522, "dim": 16, "hidden_dim": 32, "n_layers": 3, "n_heads": 2}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = DistilBertModel(DistilBertConfig(**sizes)).eval()
    other = Encoder(model, minilm.tokenizer)
    for layer in range(4):
        [found] = token_vectors(other, ["a cat"], layer=layer)
        ids = torch.tensor([found.ids.tolist()])
        with torch.inference_mode():
            states = model(input_ids=ids, output_hidden_states=True).hidden_states
        torch.testing.assert_close(found.vectors, states[layer][0])


def test_a_folder_is_loaded_in_any_precision_or_says_how_to_fix_it(minilm, tmp_path, monkeypatch):
    minilm.model.save_pretrained(tmp_path)
    minilm.tokenizer.save_pretrained(tmp_path)
    again = load_encoder(tmp_path, dtype=torch.float64)
    [one], [other] = (token_vectors(each, ["a cat"]) for each in (minilm, again))
    assert other.vectors.dtype == torch.float64
    torch.testing.assert_close(one.vectors.double(), other.vectors, atol=2e-5, rtol=0)
    with pytest.raises(UnknownModelError, match="no encoder"):
        load_encoder("minilm-l7")
    (tmp_path / "config.json").unlink()
    with pytest.raises(CorruptModelError, match="save_pretrained"):
        load_encoder(tmp_path)
    with pytest.raises(ValueError, match="floating-point"):
        load_encoder(dtype=torch.int8)
    monkeypatch.setattr(encoder_module, "MODULE", "no_such_module_here")
    with pytest.raises(MissingPackageError, match="pip install"):
        load_encoder()


def test_arguments_are_checked(minilm):
    require_refusals(
        (lambda: check_layer(minilm, True), "TypeError: layer must be"),
        (lambda: check_layer(minilm, -1), "ValueError.*0 to 6"),
        (lambda: check_layer(minilm, 7), "ValueError.*0 to 6"),
        (lambda: token_vectors(minilm, "a cat"), "TypeError.*list of strings"),
        (lambda: token_vectors(minilm, ["a cat", None]), "TypeError.*list of strings"),
        (lambda: token_vectors(minilm, ["a"], batch_tokens=0), "ValueError: batch_tokens"),
        errors=(TypeError, ValueError),
    )
