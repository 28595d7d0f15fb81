"""Which words are synonyms: from WordNet's index files if installed, or from your own sets.

Two words are synonyms if they have a sense in common. A source of synonyms is any object with a
method `senses(word)` that returns the set of that word's senses. WordNet's senses are its synsets.
The index files list the synsets of each word, so the much larger data files are not read.

Not included: parts of speech, definitions, relations between synsets, multi-word entries.

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
    """A source of synonyms: it returns the senses of a word."""

    def senses(self, word: str) -> frozenset[Hashable]:
        """Return the senses of a lower-case word; empty for an unknown word."""
        ...


class SynonymSets:
    """Synonyms from your own sets: the words of one set are synonyms of each other.

    sets: groups of words; a word may be in several. Case is ignored.
    Raises TypeError if a set is a string or contains anything but strings.

    >>> own = SynonymSets([{"car", "automobile"}, {"auto", "automobile"}])
    >>> [bool(own.senses("car") & own.senses(word)) for word in ("automobile", "auto")]
    [True, False]
    """

    def __init__(self, sets: Iterable[Iterable[str]]) -> None:
        self._senses: dict[str, set[int]] = {}
        for number, group in enumerate(sets):
            words = [group] if isinstance(group, str) else list(group)
            if isinstance(group, str) or not all(isinstance(word, str) for word in words):
                raise TypeError(
                    "each set of synonyms must be a collection of words, such as "
                    f'{{"car", "automobile"}}, got {group!r:.80}'
                )
            for word in words:
                self._senses.setdefault(word.lower(), set()).add(number)

    def senses(self, word: str) -> frozenset[Hashable]:
        """Return the numbers of the sets that contain the word."""
        return frozenset(self._senses.get(word, ()))


class WordNet:
    """Senses from the index and exception files of a WordNet database, version 3.0.

    folder: the folder of index.noun, noun.exc and so on, possibly inside a zip file.
    An inflected word also has the senses of its base forms: "cars" has those of "car".
    Reading takes a few tenths of a second. Raises FileNotFoundError if a file is missing.
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
        """Return the synsets of a word and of its base forms, as (part of speech, offset)."""
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
        """Yield the word and its possible base forms, from the exceptions or else by the rules."""
        yield word
        if (part, word) in self._exceptions:
            yield from self._exceptions[part, word]
            return
        for ending, replacement in RULES[part]:
            if word.endswith(ending) and len(word) > len(ending):
                yield word.removesuffix(ending) + replacement

    def _offsets(self, word: str, part: str) -> list[str]:
        """Return the offsets of an entry's synsets: the last fields of its index line."""
        lines, start = self._index[part], f"{word} "
        at = bisect_left(lines, start)
        if not word or at == len(lines) or not lines[at].startswith(start):
            return []
        fields = lines[at].split()
        return fields[-int(fields[2]) :]


def find_wordnet() -> Path | zipfile.Path | None:
    """Find the folder of WordNet's files on this machine, or return None.

    It looks at $WNSEARCHDIR and $WNHOME, in NLTK's data folders (unpacked or zipped), and in the
    system's folders: Debian's and Ubuntu's package wordnet-base uses /usr/share/wordnet.

    >>> folder = find_wordnet()
    >>> folder is None or (folder / "index.noun").is_file()
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
    return next((folder for folder in folders if (folder / "index.noun").is_file()), None)


@cache
def open_wordnet() -> WordNet | None:
    """Open this machine's WordNet, once per process; None if it is not installed."""
    folder = find_wordnet()
    return None if folder is None else WordNet(folder)
