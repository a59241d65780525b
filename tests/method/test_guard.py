import pytest

from sharpen.method.guard import check, compression_ratio, loop, repeats

SOURCE = "the quick brown fox jumps over the lazy dog and runs away"


@pytest.mark.parametrize(
    "adapted",
    [SOURCE, "the quick brown fox jumped over a lazy dog", "no, no, no, the quick brown fox jumps over the dog"],
)
def test_ordinary_changes_pass(adapted):
    assert check(SOURCE, adapted) == ""


@pytest.mark.parametrize(
    ("adapted", "reason"),
    [
        ("", "empty"),
        ("...", "no words: '...'"),
        ("♪ ♪", "no words"),
        ("so it goes on " * 30, "compression ratio"),
        ("the quick brown fox and the fox and the fox and the fox", "'fox and the' repeats 3 times"),
        ("the quick quick quick quick brown fox", "'quick' repeats"),
        ("dog", "1 words against the source's 12"),
        (SOURCE + " " + " ".join(f"word{i}" for i in range(20)), "32 words against the source's 12"),
    ],
)
def test_broken_texts_are_refused(adapted, reason):
    assert reason in check(SOURCE, adapted)


def test_a_source_that_loops_itself_is_no_reason():
    looping = "and so and so and so and so"
    assert check(looping, looping) == ""


def test_a_text_may_be_far_shorter_than_a_loop():
    """whisper-base, a beam of 5, 1272-135031-0022 of LibriSpeech dev-clean in babble at 2.5 dB."""
    looping = "True." + " Come on." * 13
    assert repeats(looping)
    assert check(looping, "True, a great chemical.") == ""
    assert check(looping, "") == "the adapted text is empty"
    assert "against the source's 12" in check(SOURCE, "true")


def test_short_and_empty_sources():
    assert check("", "") == ""
    assert check("", "a word") == ""
    assert check("yes", "yes it is so") == ""


def test_loops():
    assert loop("a b c a b c a b c") == "a b c"
    assert loop("no no no") == ""
    assert loop("no no no no") == "no"
    assert loop("") == ""


def test_scripts_without_spaces():
    source = "今天我们在这里讨论的是怎样把声音变成文字然后再翻译"
    assert check(source, "今天我们在这里谈论的是怎样把声音变成文字再翻译") == ""
    assert "2 words against the source's 25" in check(source, "今天")
    assert "words against" in check("今天", source)
    assert "'谢谢观看' repeats" in check(source, "今天我们谢谢观看谢谢观看谢谢观看就这样了")
    assert loop("字幕由志愿者提供,谢谢大家观看。" * 3) == "字幕由志愿者提供谢谢大家观看"
    assert loop("ご視聴ありがとうございました。" * 3) == "ご視聴ありがとうございました"
    assert loop("哈哈哈哈") == ""  # a laugh
    assert loop("哈哈哈哈哈哈哈哈") == "哈"
    assert loop("ขอบคุณครับขอบคุณครับขอบคุณครับ") == "ขอบคุณครับ"


def test_compression_ratio_sees_loops():
    assert compression_ratio("so it goes " * 30) > 2.4 > compression_ratio("The quick brown fox jumps over the dog.")
    assert compression_ratio("") == 0.0
