"""Text from tokens, one at a time: it is given out only when no later token can change it.

Two things are held back: an incomplete character, because the bytes of one may be split over
several tokens, and text that may be the beginning of a stop string.
Chapter: serving/continuous-batching.
"""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase as Tokenizer

REPLACEMENT = "\ufffd"  # what a decoder writes for bytes that are no character


class TextStream:
    """The text of a growing list of tokens, up to a stop string. stopped: whether there was one.

    >>> from course_pkg.lm.tiny import tiny_tokenizer
    >>> stream = TextStream(tiny_tokenizer(), stop=["END"])
    >>> [stream.add(token) for token in "é. EX END".encode()]
    ['', 'é', '.', ' ', '', 'EX', ' ', '', '', '']
    >>> stream.stopped
    True
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()):
        self.tokenizer, self.stop, self.stopped = tokenizer, stop, False
        self._tokens: list[int] = []  # the last ones that were given out, and all after them
        self._context = self._given = 0  # how many of them were given out, as how many characters
        self._held = ""  # decoded; possibly the beginning of a stop string

    def add(self, token: int) -> str:
        """The text that became certain."""
        self._tokens.append(token)
        text = self._decode()
        if len(text) <= self._given or text.endswith(REPLACEMENT):
            return ""
        return self._until_stop(text)

    def finish(self) -> str:
        """What was held back, because no token follows."""
        text = self._until_stop(self._decode())
        text, self._held = text + self._held, ""
        return text

    def _decode(self) -> str:
        return self.tokenizer.decode(
            self._tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )

    def _until_stop(self, text: str) -> str:
        """Give out the new text without a stop string, or what may become one."""
        self._held += text[self._given :]
        # Some decoders drop a space before the first token, so the last ones stay as context.
        self._tokens = self._tokens[self._context :]
        self._context, self._given = len(self._tokens), len(self._decode())
        ends = [place for string in self.stop if (place := self._held.find(string)) >= 0]
        if ends:
            text, self._held, self.stopped = self._held[: min(ends)], "", True
            return text
        beginnings = (s[:size] for s in self.stop for size in range(1, len(s)))
        keep = max((len(b) for b in beginnings if self._held.endswith(b)), default=0)
        cut = len(self._held) - keep
        text, self._held = self._held[:cut], self._held[cut:]
        return text
