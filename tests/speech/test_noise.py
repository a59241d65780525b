import json
import wave

import numpy as np
import pytest

from sharpen.errors import SharpenError
from sharpen.speech.audio import read_audio
from sharpen.speech.noise import (
    DOMAINS,
    Corruption,
    corruption,
    find_clip,
    find_clips,
    from_clip,
    gaussian,
    mix,
    sixteen_bits,
)

SPEECH = np.sin(np.arange(16000) / 7) * np.linspace(0, 1, 16000)


def write(path, samples):
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", ""))
        file.writeframes((samples * 32767).astype("<i2").tobytes())


def ratio(mixed, speech):
    """dB of the speech, at its level of -25 dBFS, over everything else in the mixture."""
    clean = speech * (10 ** (-25 / 20) / np.sqrt(np.mean(np.square(speech, dtype=np.float64))))
    return 10 * np.log10(np.mean(clean**2) / np.mean((mixed - clean) ** 2))


@pytest.mark.parametrize("snr", [-5.0, 0.0, 10.0])
def test_the_ratio_is_true(snr):
    noise = gaussian(16000, "u1")
    mixed = mix(SPEECH, noise, snr)
    assert ratio(mixed, SPEECH) == pytest.approx(snr, abs=1e-3)
    assert mixed.dtype == np.float32


def test_samples_that_published_rows_rest_on():
    """Made before there were any options; a change here would part every new row from the old ones."""
    samples = mix(SPEECH.astype(np.float32), gaussian(16000, "1688-142285-0003"), 10.0)
    assert samples[:4].tolist() == pytest.approx(
        [0.016258502, -0.041638706, 0.024116965, -0.0016317866], rel=0, abs=1e-9
    )
    assert np.array_equal(samples, corruption("GS", 10.0)(SPEECH.astype(np.float32), "1688-142285-0003"))


def test_noise_belongs_to_the_utterance():
    assert np.array_equal(gaussian(100, "u1"), gaussian(200, "u1")[:100])
    assert not np.array_equal(gaussian(100, "u1"), gaussian(100, "u2"))
    assert not np.array_equal(gaussian(100, "u1"), gaussian(100, "u1", draw=1))


def test_what_cannot_be_mixed_is_refused():
    with pytest.raises(SharpenError, match="speech is silent"):
        mix(np.zeros(10), np.ones(10), 10)
    with pytest.raises(SharpenError, match="noise is silent"):
        mix(np.ones(10), np.zeros(10), 10)
    with pytest.raises(SharpenError, match="cut or tile"):
        mix(np.ones(10), np.ones(11), 10)


def test_a_clip_starts_at_its_beginning_and_repeats(tmp_path):
    write(tmp_path / "Babble_4.wav", np.linspace(-0.5, 0.5, 6000))
    clip = read_audio(tmp_path / "Babble_4.wav").samples
    expected = mix(SPEECH, np.concatenate([clip, clip, clip])[:16000], 5.0)
    noisy = corruption("BA", 5.0, tmp_path)(SPEECH, "u1")
    assert np.array_equal(noisy, expected)
    assert np.array_equal(noisy, corruption("BA", 5.0, tmp_path)(SPEECH, "u2"))


def test_other_draws_of_a_clip_start_elsewhere_in_it(tmp_path):
    write(tmp_path / "Babble_4.wav", np.linspace(-0.5, 0.5, 6000))
    clip = read_audio(tmp_path / "Babble_4.wav").samples
    drawn = {name: from_clip(clip, 16000, name, draw=1) for name in ("u1", "u2")}
    for noise in drawn.values():
        (start,) = np.flatnonzero(clip == noise[0])
        assert np.array_equal(noise, np.tile(clip, 4)[start : start + 16000])
    assert not np.array_equal(drawn["u1"], drawn["u2"])
    noisy = [corruption("BA", 5.0, tmp_path, draw=draw)(SPEECH, "u1") for draw in (0, 1, 2, 1)]
    assert [np.array_equal(noisy[1], one) for one in noisy] == [False, True, False, True]
    assert ratio(noisy[1], SPEECH) == pytest.approx(5.0, abs=1e-3)
    with pytest.raises(SharpenError, match="the draw of the noise is -1; expected 0, 1, 2"):
        corruption("GS", 5.0, draw=-1)


def test_the_legacy_rule_halves_the_decibels(tmp_path):
    write(tmp_path / "Babble_4.wav", np.linspace(-0.5, 0.5, 6000))
    assert ratio(corruption("BA", 10.0, tmp_path, snr_rule="ms-snsd-legacy")(SPEECH, "u"), SPEECH) == pytest.approx(
        5.0, abs=1e-3
    )
    assert ratio(corruption("BA", 10.0, tmp_path)(SPEECH, "u"), SPEECH) == pytest.approx(10.0, abs=1e-3)


def test_sixteen_bits():
    loud = np.array([0.0, 0.5, 1.25, -1.25, 1.6 / 32768, -1.6 / 32768], np.float32)
    assert sixteen_bits(loud).tolist() == [0, 16384, 32767, -32768, 2, -2]
    # 1.25 * 32767 is 40958.75: truncated and taken modulo 65536 it changes its sign.
    assert sixteen_bits(loud, wrap=True).tolist() == [0, 16383, 40958 - 65536, 65536 - 40958, 1, -1]


@pytest.mark.parametrize(("overflow", "largest"), [("float", 1.2), ("clip", 32767 / 32768), ("wrap", 1.0)])
def test_loud_noise(overflow, largest):
    spikes = np.full(16000, 1e-3)
    spikes[8000] = 1.0  # 25 dB below full scale on average, so its one spike is far above it
    noisy = Corruption("GS", 100.0, overflow=overflow)(spikes, "u")
    assert noisy.dtype == np.float32
    assert noisy[8000] > largest if overflow == "float" else abs(noisy[8000]) <= largest
    if overflow != "float":
        assert np.array_equal(noisy * 32768, np.rint(noisy * 32768))
    assert (noisy[8000] < 0.9) == (overflow == "wrap")


def test_clips_are_found_by_name_in_folders_and_manifests(tmp_path):
    write(tmp_path / "AirConditioner_6.wav", SPEECH)
    write(tmp_path / "audio" / "Babble_4.wav", SPEECH)
    write(tmp_path / "elsewhere" / "Neighbor_6.wav", SPEECH)
    write(tmp_path / "elsewhere" / "clip17.wav", SPEECH)
    (tmp_path / "Typing_2.txt").write_text("not a sound")
    rows = [
        {"id": "n", "audio_filepath": "elsewhere/Neighbor_6.wav"},
        {"id": "Munching_3", "audio_filepath": "elsewhere/clip17.wav"},
        {"id": "ShuttingDoor_6", "audio_filepath": "elsewhere/gone.wav"},
    ]
    (tmp_path / "manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + "torn {")
    found = {code: path.relative_to(tmp_path).as_posix() for code, path in find_clips(tmp_path).items()}
    assert found == {
        "AC": "AirConditioner_6.wav",
        "BA": "audio/Babble_4.wav",
        "MU": "elsewhere/clip17.wav",
        "NB": "elsewhere/Neighbor_6.wav",
    }
    with pytest.raises(SharpenError, match=r"no clip Typing_2 .* available there: AC, BA, MU, NB, and GS"):
        find_clip("TP", tmp_path)


def test_bad_options_are_named(tmp_path):
    with pytest.raises(SharpenError, match="unknown noise 'XX'; choose from AA, AC"):
        corruption("XX", 10.0)
    with pytest.raises(SharpenError, match="the noise BA needs the clip Babble_4"):
        corruption("BA", 10.0)
    with pytest.raises(SharpenError, match="no such folder"):
        find_clips(tmp_path / "nowhere")
    with pytest.raises(SharpenError, match="unknown snr_rule 'half'"):
        corruption("GS", 10.0, snr_rule="half")
    with pytest.raises(SharpenError, match="unknown overflow 'loud'"):
        corruption("GS", 10.0, overflow="loud")
    with pytest.raises(SharpenError, match="is nan dB; expected a finite number"):
        corruption("GS", float("nan"))


def test_the_real_clips(data):
    assert list(find_clips(data / "ms-snsd")) == [code for code in DOMAINS if code not in ("GS", "TP")]
