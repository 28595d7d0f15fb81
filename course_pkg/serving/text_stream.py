"""Text from tokens, one at a time: it is given out only when no later token can change it.

Two things are held back: an incomplete character, because the bytes of one may be split over
several tokens, and text that may be the beginning of a stop string.
"""

from collections.abc import Sequence
from functools import lru_cache

from torch import nn
from transformers import PreTrainedTokenizerBase as Tokenizer

REPLACEMENT = "\ufffd"  # what a decoder writes for bytes that are no character
CHARACTER = 4  # bytes of the longest character, so one of 4 tokens in a row begins one
MOST_PENDING = 2 * CHARACTER  # tokens that wait for the rest of a character


@lru_cache(maxsize=4)
def special_tokens(tokenizer: Tokenizer) -> dict[int, str]:
    """The special tokens, which have no text of their own, by id."""
    added = tokenizer.added_tokens_decoder
    special = {id: token.content for id, token in added.items() if token.special}
    named = zip(tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=True)
    return dict(sorted((special | dict(named)).items()))


def end_tokens(model: nn.Module, tokenizer: Tokenizer) -> frozenset[int]:
    """The tokens that end a text: those of the model's generation config, or the tokenizer's."""
    settings = getattr(model, "generation_config", None)
    ends = tokenizer.eos_token_id if settings is None else settings.eos_token_id
    if ends is None:
        return frozenset()
    return frozenset(ends if isinstance(ends, list) else [ends])


class TextStream:
    """The text of a growing list of tokens, up to a stop string. stopped: whether there was one.

    Special tokens are left out, except for stop strings that contain one.

    Example:

        >>> from course_pkg.lm.tiny import tiny_tokenizer
        >>> stream = TextStream(tiny_tokenizer(), stop=["END"])
        >>> [stream.add(token) for token in "é. EX END".encode()]
        ['', 'é', '.', ' ', '', 'EX', ' ', '', '', '']
        >>> stream.stopped
        True
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()):
        self.tokenizer = tokenizer
        self.stopped = False
        self._special = special_tokens(tokenizer)
        self._special_stop = [s for s in stop if any(t in s for t in self._special.values())]
        self._stop = [s for s in stop if s not in self._special_stop]
        self._longest = max(map(len, stop), default=0)
        self._tokens: list[int] = []  # the last ones that were given out, and all after them
        self._context = 0  # how many of them were given out
        self._given = 0  # as how many characters
        self._held = ""  # decoded; possibly the beginning of a stop string
        self._shown: list[bool] = []  # for each character of it: not of a special token

    def add(self, token: int) -> str:
        """The text that became certain."""
        if token in self._special:
            return self._add_special(self._special[token]) if self._special_stop else ""
        self._tokens.append(token)
        text = self._decode(self._tokens)
        if len(text) > self._given and not text.endswith(REPLACEMENT):
            return self._until_stop(self._take(text, len(self._tokens)))
        if len(self._tokens) - self._context <= MOST_PENDING:
            return ""
        # Too many for one character. Its bytes are among the last tokens: give out those before.
        last = len(self._tokens) - CHARACTER
        for cut in range(last, last - CHARACTER, -1):
            head = self._decode(self._tokens[:cut])
            if head + self._decode(self._tokens[cut:]) == text:
                return self._until_stop(self._take(head, cut))
        return self._until_stop(self._take(text, len(self._tokens)))

    def finish(self) -> str:
        """What was held back, because no token follows."""
        text = self._until_stop(self._take(self._decode(self._tokens), len(self._tokens)))
        text += self._visible(len(self._held))
        self._held = ""
        self._shown = []
        return text

    def _decode(self, tokens: list[int]) -> str:
        return self.tokenizer.decode(
            tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )

    def _take(self, text: str, tokens: int) -> str:
        """The new part of `text`, which is that of the first `tokens` tokens."""
        new = text[self._given :]
        # Some decoders drop a space before the first token, so the last ones stay as context.
        if tokens > self._context:
            self._tokens = self._tokens[self._context :]
            self._context = tokens - self._context
            self._given = len(self._decode(self._tokens[: self._context]))
        return new

    def _add_special(self, written: str) -> str:
        text = self._until_stop(self._take(self._decode(self._tokens), len(self._tokens)))
        return text if self.stopped else text + self._until_stop(written, shown=False)

    def _visible(self, end: int) -> str:
        """The text of the first `end` characters that are held, without special tokens."""
        return "".join(self._held[at] for at in range(end) if self._shown[at])

    def _until_stop(self, text: str, *, shown: bool = True) -> str:
        """Give out the new text without a stop string, or what may become one."""
        self._held += text
        self._shown += [shown] * len(text)
        everything = list(range(len(self._held)))
        visible = [at for at in everything if self._shown[at]]
        ends = []
        keep = len(self._held)
        for stop, places in ((self._special_stop, everything), (self._stop, visible)):
            part = "".join(self._held[at] for at in places)
            ends += [places[at] for s in stop if (at := part.find(s)) >= 0]
            beginnings = (s[:size] for s in stop for size in range(1, len(s)))
            size = max((len(b) for b in beginnings if part.endswith(b)), default=0)
            if size:
                keep = min(keep, places[-size])
        if ends:
            text = self._visible(min(ends))
            self._held = ""
            self._shown = []
            self.stopped = True
            return text
        text = self._visible(keep)
        # Special tokens further back than the longest stop string can't be part of one any more.
        near = len(everything) - self._longest
        kept = [at for at in everything[keep:] if self._shown[at] or at >= near]
        self._held = "".join(self._held[at] for at in kept)
        self._shown = [self._shown[at] for at in kept]
        return text
