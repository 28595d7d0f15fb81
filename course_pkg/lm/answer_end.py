"""The token that ends an answer in a chat template, which need not be the tokenizer's own.

The base models of Qwen2.5, for example, end a text with ``<|endoftext|>``, and their template ends
an answer with ``<|im_end|>``. Generation must stop there too.
"""

from transformers import GenerationConfig, PreTrainedModel
from transformers import PreTrainedTokenizerBase as Tokenizer

ANSWER = "Yes indeed."
CHAT = [{"role": "user", "content": "Hello?"}, {"role": "assistant", "content": ANSWER}]


def answer_end(tokenizer: Tokenizer, template: str | None = None) -> int | None:
    """The first special token after an answer in the chat template; None if there is none.

    >>> from course_pkg.lm.tiny import tiny_tokenizer
    >>> tokenizer = tiny_tokenizer()
    >>> tokenizer.eos_token = "<|endoftext|>"
    >>> answer_end(tokenizer)
    258
    """
    if template is None and tokenizer.chat_template is None:
        return None
    try:
        text = tokenizer.apply_chat_template(CHAT, tokenize=False, chat_template=template)
    except Exception:  # a template may raise any
        return None
    _, answer, after = text.rpartition(ANSWER)
    special = {
        token.content: number
        for number, token in tokenizer.added_tokens_decoder.items()
        if token.special and token.content in after
    }
    if not answer or not special:
        return None
    return special[min(special, key=lambda token: (after.index(token), -len(token)))]


def end_ids(tokenizer: Tokenizer, config: GenerationConfig | None = None) -> list[int]:
    """The tokens that end a text: the config's, or else the tokenizer's, and the template's.

    >>> from course_pkg.lm.tiny import tiny_tokenizer
    >>> end_ids(tiny_tokenizer(), GenerationConfig(eos_token_id=256))
    [256, 258]
    """
    own = tokenizer.eos_token_id if config is None else config.eos_token_id
    own = own if isinstance(own, list) else [own]
    return [token for token in dict.fromkeys([*own, answer_end(tokenizer)]) if token is not None]


def stop_at_answer_end(model: PreTrainedModel, tokenizer: Tokenizer) -> None:
    """Let the model's generation stop where its chat template ends an answer, too."""
    config = model.generation_config
    ends = end_ids(tokenizer, config)
    if len(ends) > 1 or config.eos_token_id is None:
        config.eos_token_id = ends or None
