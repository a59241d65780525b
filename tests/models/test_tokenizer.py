import json
import random

import pytest
from tokenizers import Tokenizer

from sharpen.errors import SharpenError, WeightsError
from sharpen.models.tokenizer import (
    BYTE_OF_SYMBOL,
    ENGLISH,
    LANGUAGES,
    MULTILINGUAL,
    V3,
    WhisperTokenizer,
    language_code,
)

TEXTS = [
    "",
    " ",
    "   ",
    " Mister Quilter is an apostle of middle classes.",
    "don't we'll they've I'd it's 'tis rock'n'roll DON'T",
    "1,234.56 on 12/03/2024 at 9:05pm; 100%!",
    "tabs\tand\nnew lines\r\n\n  and   runs  of   spaces   ",
    "Grüße aus Köln, señor; œuvre, naïve, Ångström",
    "日本語のテキスト、中文文本。한국어 텍스트",
    "Привет, мир! Γειά σου Κόσμε. שלום עולם مرحبا بالعالم नमस्ते",
    "emoji 🎉👩‍👩‍👧‍👦🇩🇪 and ♪ music ♪♪",
    "\u0000\u0001\u007f\u00a0\u200b\ufeff combining é ạ̈",
    "<|endoftext|> is text here",
    "snake_case camelCase http://example.org/a?b=c&d=e#f",
]


def random_texts(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    alphabet = "".join(TEXTS) + "    tttheaoinsrh"
    return ["".join(draw.choices(alphabet, k=draw.randint(1, 60))) for _ in range(count)]


@pytest.mark.parametrize(("name", "size"), [("tiny.en", ENGLISH), ("base", MULTILINGUAL)])
def test_shipped_vocabulary_encodes_as_the_tokenizer_json_of_the_packages(package_files, name, size):
    path = package_files(name) / "tokenizer.json"
    tree = json.loads(path.read_text(encoding="utf-8"))
    if name == "base":  # it has lost its first merge: token 256 exists and nothing makes it
        assert tree["model"]["vocab"]["Ġt"] == 256
        assert tree["model"]["merges"][0] == "Ġ a"
        tree["model"]["merges"].insert(0, "Ġ t")
    tree["added_tokens"] = []  # so that specials written out stay text, as they do in ours
    tree["post_processor"] = None
    oracle = Tokenizer.from_str(json.dumps(tree))
    ours = WhisperTokenizer.of_kind(size)
    for text in TEXTS + random_texts(300, seed=1):
        tokens = ours.encode(text)
        assert tokens == oracle.encode(text, add_special_tokens=False).ids, text
        assert ours.decode(tokens) == text
        assert ours.decode(tokens) == oracle.decode(tokens)


def test_missing_merge_is_repaired_when_the_tokenizer_json_is_read(package_files):
    ours = WhisperTokenizer.from_json(package_files("base") / "tokenizer.json", MULTILINGUAL)
    assert ours.encode(" the time") == [264, 565]  # as OpenAI's tokeniser; the file itself would give four tokens


@pytest.mark.parametrize("size", [ENGLISH, MULTILINGUAL])
def test_encodes_as_bpe_by_rank(size):
    """OpenAI's tokeniser merges whatever pair makes the smallest token; merge rules must not differ from that."""
    ours = WhisperTokenizer.of_kind(size)
    rank = {piece: token for token, piece in enumerate(ours.pieces)}
    words = [word for text in TEXTS + random_texts(100, seed=2) for word in text.split(" ") if word]
    for word in words:
        for text in (word, " " + word):
            pretokens = [piece for piece, _ in ours._engine.pre_tokenizer.pre_tokenize_str(text)]
            expected = []
            for pretoken in pretokens:
                parts = [bytes([BYTE_OF_SYMBOL[symbol]]) for symbol in pretoken]
                while len(parts) > 1:
                    best = min(range(len(parts) - 1), key=lambda i: rank.get(parts[i] + parts[i + 1], 10**9))
                    if parts[best] + parts[best + 1] not in rank:
                        break
                    parts[best : best + 2] = [parts[best] + parts[best + 1]]
                expected += [rank[part] for part in parts]
            assert ours.encode(text) == expected


@pytest.mark.parametrize(("name", "size"), [("tiny.en", ENGLISH), ("base", MULTILINGUAL)])
def test_tokenizer_json_and_kind_agree(package_files, name, size):
    read = WhisperTokenizer.from_json(package_files(name) / "tokenizer.json", size)
    kind = WhisperTokenizer.of_kind(size)
    assert dict(read.specials) == dict(kind.specials)
    assert read.pieces[:50256] == kind.pieces
    assert read.languages == kind.languages
    for text in TEXTS:
        assert read.encode(text) == kind.encode(text)


@pytest.mark.parametrize(("name", "size"), [("tiny.en", ENGLISH), ("base", MULTILINGUAL)])
def test_suppression_derived_from_symbols_equals_the_list_in_the_packages(package_files, name, size):
    config = json.loads((package_files(name) / "config.json").read_text())
    tokenizer = WhisperTokenizer.of_kind(size)
    assert list(tokenizer.suppressed()) == sorted(config["suppress_ids"])
    assert list(tokenizer.suppressed_first()) == config["suppress_ids_begin"]


@pytest.mark.parametrize(
    ("size", "eot", "no_speech", "timestamp_begin", "languages"),
    [(ENGLISH, 50256, 50361, 50363, 0), (MULTILINGUAL, 50257, 50362, 50364, 99), (V3, 50257, 50363, 50365, 100)],
)
def test_special_tokens_of_the_three_kinds(size, eot, no_speech, timestamp_begin, languages):
    tokenizer = WhisperTokenizer.of_kind(size)
    assert (tokenizer.eot, tokenizer.sot) == (eot, eot + 1)
    assert (tokenizer.no_speech, tokenizer.timestamp_begin) == (no_speech, timestamp_begin)
    assert len(tokenizer.languages) == languages
    assert tokenizer.multilingual == (languages > 0)
    assert timestamp_begin + 1501 == size
    assert tokenizer.token_bytes(size - 1) == b"<|30.00|>"
    if languages:
        assert tokenizer.languages["en"] == tokenizer.sot + 1
        assert tokenizer.token_bytes(tokenizer.languages["de"]) == b"<|de|>"


def test_decode_of_partial_characters_and_specials():
    tokenizer = WhisperTokenizer.of_kind(MULTILINGUAL)
    tokens = tokenizer.encode("日本語 🎉")
    for cut in range(len(tokens) + 1):
        assert isinstance(tokenizer.decode(tokens[:cut]), str)
    party = tokenizer.encode("🎉")
    assert len(party) > 1
    assert "�" in tokenizer.decode(party[:1])
    assert b"".join(map(tokenizer.token_bytes, party)).decode() == "🎉"
    mixed = [tokenizer.sot, tokenizer.timestamp_begin + 64, *tokenizer.encode(" hi"), tokenizer.eot]
    assert tokenizer.decode(mixed) == " hi"
    assert tokenizer.decode(mixed, skip_special=False) == "<|startoftranscript|><|1.28|> hi<|endoftext|>"


def test_every_byte_sequence_decodes():
    draw = random.Random(3)
    for size in (ENGLISH, MULTILINGUAL, V3):
        tokenizer = WhisperTokenizer.of_kind(size)
        for _ in range(200):
            tokens = [draw.randrange(size) for _ in range(20)]
            assert isinstance(tokenizer.decode(tokens, skip_special=draw.random() < 0.5), str)
        with pytest.raises(ValueError, match="outside the vocabulary"):
            tokenizer.token_bytes(size)


def test_unknown_vocabulary_size_is_refused_with_the_sizes_that_are_known():
    with pytest.raises(WeightsError, match=r"51864.*51865.*51866"):
        WhisperTokenizer.of_kind(32000)


@pytest.mark.parametrize("text", ["", "[]", "{}", "{broken", '{"model": {"vocab": {"a": "b"}}, "added_tokens": []}'])
def test_foreign_tokenizer_json_is_one_clear_error(tmp_path, text):
    path = tmp_path / "tokenizer.json"
    path.write_text(text)
    with pytest.raises(WeightsError, match=r"tokenizer\.json"):
        WhisperTokenizer.from_json(path, MULTILINGUAL)


def test_a_tokenizer_json_that_does_not_fit_the_model_is_refused(package_files, tmp_path):
    path = package_files("base") / "tokenizer.json"
    with pytest.raises(WeightsError, match="needs 51865 tokens and the model has 51864"):
        WhisperTokenizer.from_json(path, ENGLISH)
    tree = json.loads(path.read_text(encoding="utf-8"))
    tree["added_tokens"] = tree["added_tokens"][:50]
    (tmp_path / "tokenizer.json").write_text(json.dumps(tree))
    with pytest.raises(WeightsError, match=r"it lacks <\|translate\|>"):
        WhisperTokenizer.from_json(tmp_path / "tokenizer.json", MULTILINGUAL)


def test_languages():
    assert len(LANGUAGES) == 100
    assert list(LANGUAGES)[:3] == ["en", "zh", "de"]
    assert LANGUAGES["yue"] == "cantonese"
    given = ["de", "German", " GERMAN ", "en-GB", "en_us", "Mandarin", "haitian creole", "Haitian-Creole", "iw"]
    assert [language_code(name) for name in given] == ["de", "de", "de", "en", "en", "zh", "ht", "ht", "he"]
    with pytest.raises(SharpenError, match="german"):
        language_code("germann")
    with pytest.raises(SharpenError, match="unknown language 'klingon'"):
        language_code("klingon")


@pytest.fixture
def with_added_words(package_files, tmp_path):
    """The multilingual tokeniser after `add_tokens(["Zürich", "hotword"])` and one more special token."""
    tree = json.loads((package_files("base") / "tokenizer.json").read_text(encoding="utf-8"))
    for token, (text, special) in enumerate([("Zürich", False), ("[laughs]", True), ("hotword", False)], MULTILINGUAL):
        tree["added_tokens"].append({"id": token, "content": text, "special": special})
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(tree))
    return path


def test_words_added_behind_the_timestamps_are_text(with_added_words):
    tokenizer = WhisperTokenizer.from_json(with_added_words, MULTILINGUAL + 7)  # padded, as some trainers do
    zurich, laughs, hotword, padding = range(MULTILINGUAL, MULTILINGUAL + 4)
    assert tokenizer.encode("Zürich") == [zurich]
    assert tokenizer.encode(" the") == WhisperTokenizer.of_kind(MULTILINGUAL).encode(" the")
    said = [tokenizer.timestamp_end - 1, *tokenizer.encode(" in "), zurich, laughs, padding, hotword]
    assert tokenizer.decode(said) == " in Zürichhotword"
    assert [tokenizer.is_text(token) for token in (zurich, laughs, hotword, padding)] == [True, False, True, False]
    assert [tokenizer.is_timestamp(token) for token in (zurich - 1, zurich)] == [True, False]
    with pytest.raises(WeightsError, match="needs 51868 tokens and the model has 51866"):
        WhisperTokenizer.from_json(with_added_words, MULTILINGUAL + 1)
    assert tokenizer.text_mask().tolist() == [tokenizer.is_text(token) for token in range(tokenizer.vocab_size)]


@pytest.mark.parametrize("vocab_size", [ENGLISH, MULTILINGUAL, V3])
def test_the_mask_of_text_tokens(vocab_size):
    tokenizer = WhisperTokenizer.of_kind(vocab_size)
    assert tokenizer.text_mask().tolist() == [tokenizer.is_text(token) for token in range(vocab_size)]


def test_a_character_that_stands_for_no_byte_is_refused(with_added_words):
    tree = json.loads(with_added_words.read_text())
    tree["model"]["vocab"]["a b"] = tree["model"]["vocab"].pop("Ġthe")
    with_added_words.write_text(json.dumps(tree))
    with pytest.raises(WeightsError, match="' ' stands for no byte"):
        WhisperTokenizer.from_json(with_added_words, MULTILINGUAL + 7)
