import zipfile

import nltk.data
import pytest

from course_pkg.metrics import wordnet
from course_pkg.metrics.wordnet import SynonymSets, WordNet, find_wordnet, irregular_forms

# The format of wndb(5): lemma, part, number of synsets, pointers, …, and the offsets at the end.
FILES = {
    "index.noun": "  1 A license line starts with spaces\n"
    "automobile n 1 2 @ ~ 1 1 02958343  \n"
    "car n 2 2 @ ~ 2 1 02958343 02959942  \n"
    "car_door n 1 1 @ 1 0 02960352  \n"
    "man n 1 1 @ 1 1 10287213  \n"
    "railcar n 1 1 @ 1 0 02959942  \n",
    "index.verb": "go v 2 1 @ 2 2 01835496 01846658  \n"
    "move v 1 1 @ 1 1 01835496  \n"
    "stop v 1 1 @ 1 1 01859586  \n",
    "index.adj": "big a 1 1 & 1 1 01382086  \nlarge a 1 1 & 1 1 01382086  \n",
    "index.adv": "quickly r 1 1 ! 1 1 00085811  \n",
    "noun.exc": "men man\n",
    "verb.exc": "went go\n",
    "adj.exc": "bigger big\n",
    "adv.exc": "",
}


@pytest.fixture
def folder(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, "utf-8")
    return tmp_path


def related(source, one, other):
    return bool(source.senses(one) & source.senses(other))


def test_words_of_one_synset_are_synonyms_also_from_a_zip_file(folder, tmp_path_factory):
    base = WordNet(folder)
    assert related(base, "car", "automobile")
    assert related(base, "car", "railcar")
    assert not related(base, "automobile", "railcar")
    assert not related(base, "car", "man")
    assert related(base, "cars", "automobiles")
    assert related(base, "men", "man")
    assert related(base, "went", "moving")  # go and move
    assert related(base, "bigger", "larger")
    assert related(base, "going", "moved")
    for word in ("", "s", "ing", "xyz", "ca", "carr", "1", ".", "license"):
        assert base.senses(word) == frozenset(), word
    archive = tmp_path_factory.mktemp("zipped") / "wordnet.zip"
    with zipfile.ZipFile(archive, "w") as target:
        for name in FILES:
            target.write(folder / name, f"wordnet/{name}")
    assert related(WordNet(zipfile.Path(archive, "wordnet/")), "cars", "automobile")


def test_wordnet_is_found_in_the_documented_folders(folder, monkeypatch, tmp_path_factory):
    monkeypatch.setattr(wordnet, "SYSTEM_FOLDERS", ())
    monkeypatch.setattr(nltk.data, "path", [])
    for name in ("WNSEARCHDIR", "WNHOME"):
        monkeypatch.delenv(name, raising=False)
    assert find_wordnet() is None
    assert irregular_forms.__wrapped__() is None
    monkeypatch.setattr(wordnet, "SYSTEM_FOLDERS", (str(folder),))
    assert find_wordnet() == folder
    data = tmp_path_factory.mktemp("nltk_data")
    (data / "corpora").mkdir()
    (data / "corpora" / "wordnet").symlink_to(folder)
    monkeypatch.setattr(nltk.data, "path", [str(data)])
    assert find_wordnet() == data / "corpora" / "wordnet"
    monkeypatch.setenv("WNSEARCHDIR", str(folder))
    assert find_wordnet() == folder


def test_irregular_forms_are_of_all_parts_of_speech_whose_files_are_needed(folder, monkeypatch):
    (folder / "adj.exc").write_text("better good well\nbest good\n")
    (folder / "adv.exc").write_text("better well\n")
    monkeypatch.setattr(wordnet, "find_wordnet", lambda: folder)
    forms = {"best": "good", "better": "well", "men": "man", "went": "go"}
    assert irregular_forms.__wrapped__() == forms
    (folder / "verb.exc").unlink()
    with pytest.raises(FileNotFoundError, match=r"verb\.exc"):
        WordNet(folder)


def test_synonym_sets_ignore_case_and_raise_an_error_for_other_values():
    own = SynonymSets([{"Car", "automobile"}])
    assert related(own, "car", "automobile")
    with pytest.raises(TypeError, match="set of synonyms"):
        SynonymSets(["car"])
    with pytest.raises(TypeError, match="set of synonyms"):
        SynonymSets([{1, 2}])
