"""Synonyms and irregular forms of English: from WordNet's files if installed, or your own sets.

Two words are synonyms if they have a sense in common. Not included: parts of speech, definitions,
relations, multi-word entries. Sources: the manual pages wndb(5) and morphy(7).
"""

import os
import zipfile
from collections.abc import Hashable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Protocol

from course_pkg.common.arguments import require_string

# (ending, what replaces it) for each part of speech, as morphy(7) lists them.
ENDINGS = {
    "noun": "s: ses:s xes:x zes:z ches:ch shes:sh men:man ies:y",
    "verb": "s: ies:y es:e es: ed:e ed: ing:e ing:",
    "adj": "er: est: er:e est:e",
    "adv": "",
}
RULES = {
    part: [tuple(rule.split(":")) for rule in rules.split()] for part, rules in ENDINGS.items()
}
SYSTEM_FOLDERS = ("/usr/share/wordnet", "/usr/local/WordNet-3.0/dict", "/usr/local/share/wordnet")


class Synonyms(Protocol):
    """A source of synonyms."""

    def senses(self, word: str) -> frozenset[Hashable]:
        """The senses of a lower-case word; empty for an unknown word."""
        ...


class SynonymSets:
    """Synonyms from your own sets, whatever their case; a word may be in several sets."""

    def __init__(self, sets: Iterable[Iterable[str]]) -> None:
        self._senses: dict[str, set[int]] = {}
        for number, group in enumerate(sets):
            if isinstance(group, str) or not isinstance(group, Iterable):
                raise TypeError(f"each set of synonyms must be a set of words, got {group!r:.80}")
            for word in group:
                word = require_string(word, "each word of a set of synonyms")
                self._senses.setdefault(word.lower(), set()).add(number)

    def senses(self, word: str) -> frozenset[Hashable]:
        return frozenset(self._senses.get(word, ()))


class WordNet:
    """Senses from the files of WordNet 3.0; "cars" also has the senses of its base form "car"."""

    def __init__(self, folder: Path | zipfile.Path) -> None:
        self.folder = folder
        self._index: dict[str, dict[str, str]] = {}  # part of speech, word -> index line
        self._exceptions = {part: read_exceptions(folder, part) for part in RULES}
        self._known: dict[str, frozenset[Hashable]] = {}
        for part in RULES:
            lines = (folder / f"index.{part}").read_text("utf-8").splitlines()
            self._index[part] = {line.split(" ", 1)[0]: line for line in lines}

    def senses(self, word: str) -> frozenset[Hashable]:
        """The synsets of a word and of its base forms, as (part of speech, offset)."""
        if word not in self._known:
            synsets = {
                (part, offset)
                for part in RULES
                for form in self._forms(word, part)
                for offset in self._offsets(form, part)
            }
            self._known[word] = frozenset(synsets)
        return self._known[word]

    def _forms(self, word: str, part: str) -> Iterator[str]:
        """The word and its possible base forms, from the exceptions or else by the rules."""
        yield word
        if word in self._exceptions[part]:
            yield from self._exceptions[part][word]
            return
        for ending, replacement in RULES[part]:
            if word.endswith(ending) and len(word) > len(ending):
                yield word.removesuffix(ending) + replacement

    def _offsets(self, word: str, part: str) -> list[str]:
        line = self._index[part].get(word)
        if not word or line is None:
            return []
        fields = line.split()
        return fields[-int(fields[2]) :]


def read_exceptions(folder: Path | zipfile.Path, part: str) -> dict[str, list[str]]:
    """Read an exception file: the base forms of each irregular form of a part of speech."""
    lines = (folder / f"{part}.exc").read_text("utf-8").splitlines()
    return {inflected: bases for inflected, *bases in map(str.split, lines)}


def find_wordnet() -> Path | zipfile.Path | None:
    """The folder of WordNet's files on this machine, or None.

    It looks at $WNSEARCHDIR and $WNHOME, in NLTK's data folders (unpacked or zipped), and in the
    system's folders: Debian's and Ubuntu's package wordnet-base uses /usr/share/wordnet.
    """
    import nltk.data  # imported here because nltk is slow to import

    folders = [Path(os.environ["WNSEARCHDIR"])] if os.environ.get("WNSEARCHDIR") else []
    if os.environ.get("WNHOME"):
        folders.append(Path(os.environ["WNHOME"], "dict"))
    for base in nltk.data.path:
        folders.append(Path(base, "corpora", "wordnet"))
        if zipfile.is_zipfile(archive := Path(base, "corpora", "wordnet.zip")):
            folders.append(zipfile.Path(archive, "wordnet/"))
    folders += map(Path, SYSTEM_FOLDERS)
    return next((folder for folder in folders if (folder / "index.noun").is_file()), None)


@cache
def open_wordnet() -> WordNet | None:
    """Open this machine's WordNet, once per process; None if it is not installed."""
    folder = find_wordnet()
    return None if folder is None else WordNet(folder)


@cache
def irregular_forms() -> dict[str, str] | None:
    """The first base form of each irregular form; None if WordNet is not installed.

    If parts of speech disagree, the last in the alphabet counts, as in ROUGE-1.5.5's database.
    """
    folder = find_wordnet()
    if folder is None:
        return None
    files = [read_exceptions(folder, part) for part in sorted(RULES)]
    return {form: bases[0] for forms in files for form, bases in forms.items()}
