"""Which words are synonyms: WordNet's index files where they are installed, or sets of your own.

Two words are synonyms if they have a sense in common. A source of synonyms is anything with
`senses(word)`, the set of that word's senses. WordNet's senses are its synsets; the index files
alone say which word is in which, so the much larger data files are not read.

What it does not do: parts of speech, definitions, relations between synsets; multi-word entries.

Sources: Fellbaum 1998, "WordNet: An Electronic Lexical Database"; the manual pages wndb(5) for the
files and morphy(7) for base forms. Chapter: metrics/meteor.
"""

import os
import zipfile
from bisect import bisect_left
from collections.abc import Hashable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Protocol

import nltk.data

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
    """Anything that knows the senses of a word."""

    def senses(self, word: str) -> frozenset[Hashable]:
        """The senses of a lower-case word; none for a word that is not known."""
        ...


class SynonymSets:
    """Synonyms from sets that you write down: words of one set are synonyms of each other.

    sets: groups of words; a word may be in several. Case is ignored.
    Raises TypeError if a set is a string or holds anything but strings.

    >>> own = SynonymSets([{"car", "automobile"}, {"auto", "automobile"}])
    >>> [bool(own.senses("car") & own.senses(word)) for word in ("automobile", "auto")]
    [True, False]
    """

    def __init__(self, sets: Iterable[Iterable[str]]) -> None:
        self._senses: dict[str, set[int]] = {}
        for number, group in enumerate(sets):
            words = [group] if isinstance(group, str) else list(group)
            if isinstance(group, str) or not all(isinstance(word, str) for word in words):
                raise TypeError(f"each set of synonyms must hold words, got {group!r:.80}")
            for word in words:
                self._senses.setdefault(word.lower(), set()).add(number)

    def senses(self, word: str) -> frozenset[Hashable]:
        """The numbers of the sets that hold the word."""
        return frozenset(self._senses.get(word, ()))


class WordNet:
    """Senses from the index and exception files of a WordNet database, version 3.0.

    folder: where index.noun, noun.exc and so on are; a folder, or one inside a zip file.
    An inflected word has the senses of its base forms too: "cars" those of "car".
    Reading takes some tenths of a second. Raises FileNotFoundError if a file is missing.
    Source: Fellbaum 1998; wndb(5), morphy(7).
    """

    def __init__(self, folder: Path | zipfile.Path) -> None:
        self.folder = folder
        self._index: dict[str, list[str]] = {}
        self._exceptions: dict[tuple[str, str], list[str]] = {}
        self._known: dict[str, frozenset[Hashable]] = {}
        for part in RULES:
            lines = (folder / f"index.{part}").read_text("utf-8").splitlines()
            self._index[part] = sorted(line for line in lines if not line.startswith(" "))
            for line in (folder / f"{part}.exc").read_text("utf-8").splitlines():
                inflected, *bases = line.split()
                self._exceptions[part, inflected] = bases

    def senses(self, word: str) -> frozenset[Hashable]:
        """The synsets of a word and of its base forms, as (part of speech, offset)."""
        if word not in self._known:
            found = {
                (part, offset)
                for part in RULES
                for form in self._forms(word, part)
                for offset in self._offsets(form, part)
            }
            self._known[word] = frozenset(found)
        return self._known[word]

    def _forms(self, word: str, part: str) -> Iterator[str]:
        """The word, and what it may be an inflection of: exceptions, or else the endings' rules."""
        yield word
        if (part, word) in self._exceptions:
            yield from self._exceptions[part, word]
            return
        for ending, replacement in RULES[part]:
            if word.endswith(ending) and len(word) > len(ending):
                yield word.removesuffix(ending) + replacement

    def _offsets(self, word: str, part: str) -> list[str]:
        """Where an entry's synsets stand in the data file: the last fields of its index line."""
        lines, start = self._index[part], f"{word} "
        at = bisect_left(lines, start)
        if not word or at == len(lines) or not lines[at].startswith(start):
            return []
        fields = lines[at].split()
        return fields[-int(fields[2]) :]


def find_wordnet() -> Path | zipfile.Path | None:
    """Where WordNet's files are on this machine, or None.

    Looks at $WNSEARCHDIR and $WNHOME, in the data folders of NLTK (unpacked or zipped), and where
    systems put them: Debian's and Ubuntu's package wordnet-base puts them in /usr/share/wordnet.

    >>> place = find_wordnet()
    >>> place is None or (place / "index.noun").is_file()
    True
    """
    folders = [Path(os.environ["WNSEARCHDIR"])] if os.environ.get("WNSEARCHDIR") else []
    if os.environ.get("WNHOME"):
        folders.append(Path(os.environ["WNHOME"], "dict"))
    for base in nltk.data.path:
        folders.append(Path(base, "corpora", "wordnet"))
        if zipfile.is_zipfile(archive := Path(base, "corpora", "wordnet.zip")):
            folders.append(zipfile.Path(archive, "wordnet/"))
    folders += map(Path, SYSTEM_FOLDERS)
    return next((place for place in folders if (place / "index.noun").is_file()), None)


@cache
def open_wordnet() -> WordNet | None:
    """The WordNet of this machine, read once per process, or None if there is none."""
    place = find_wordnet()
    return None if place is None else WordNet(place)
