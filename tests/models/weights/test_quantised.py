"""Quantised files: what they stand for, what they do to a model, and what is refused."""

import random
import warnings

import numpy as np
import pytest
import torch
from models.weights import onnx_writer
from models.weights.onnx_writer import write_onnx
from models.weights.quantisers import asymmetric, by_row, matrix
from models.weights.writers import (
    ctranslate2_variables,
    int8_variables,
    openai_sizes,
    openai_state,
    small_model,
    write_ctranslate2,
    write_ggml,
    write_ggml_tensors,
)

from sharpen.benchmarks.stock import named_tensors, stock_model
from sharpen.cli import main
from sharpen.errors import WeightsError, WeightsWarning
from sharpen.models.load import load_speech
from sharpen.models.weights import onnx
from sharpen.models.weights.load import load_checkpoint
from sharpen.models.weights.quantised import Quantised, Scaled
from sharpen.models.whisper import WhisperPolicy
from sharpen.models.whisper_speech import WhisperSpeech
from sharpen.speech.transcribe import Model

KINDS = ["ggml-q4_0", "ggml-q4_1", "ggml-q5_0", "ggml-q5_1", "ggml-q8_0", "ctranslate2-int8_float16"]
KINDS += ["ctranslate2-int8_float32", "ctranslate2-int16", "onnx-tensor", "onnx-channel", "onnx-float32"]


@pytest.fixture(scope="module")
def whisper():
    return small_model(d=32)


def write(model, kind, folder):
    name, _, variant = kind.partition("-")
    folder.mkdir(parents=True, exist_ok=True)
    if name == "ggml":
        return write_ggml(model, folder / "ggml-small.bin", quantised=variant)
    if name == "onnx":
        return write_onnx(
            model, folder, "" if variant == "float32" else variant, "" if variant == "float32" else "_quantized"
        )
    variables = ctranslate2_variables(model)
    if variant == "int16":
        for key in [key for key in variables if key.endswith("/weight")]:
            factor = 2**10 / variables[key].abs().max()
            variables[f"{key}_scale"] = factor.clone()
            variables[key] = (variables[key] * factor).round().to(torch.int16)
    else:
        variables = int8_variables(variables)
    half = variant == "int8_float16"
    write_ctranslate2(variables, folder / "model.bin", torch.float16 if half else torch.float32)
    return folder


def test_whole_numbers_are_read_back_within_half_a_step():
    x = matrix(shape=(6, 8, 3))
    q, factors = by_row(x)
    stored = Scaled("int8", x.shape, memoryview(bytearray(q.tobytes())), scale=1 / factors)
    read = stored.tensor().numpy()
    assert (np.abs(read - x) <= 0.5001 / factors[:, None, None]).all()
    assert torch.equal(stored.rows(2, 5).tensor(), stored.tensor()[2:5])
    assert torch.equal(stored.lines(torch.tensor([3, 3, 0])), stored.tensor()[[3, 3, 0]])
    for axis in (None, 0):
        flat = x.reshape(6, 24)
        q, scale, zero = asymmetric(flat, axis)
        turned = Scaled(
            "uint8", flat.shape, memoryview(bytearray(q.T.tobytes())), scale.reshape(-1), zero.reshape(-1), turned=True
        )
        worst = 1.001 * (scale if axis is None else scale[:, None])  # half a step, and half for the rounded zero
        assert (np.abs(turned.tensor().numpy() - flat) <= worst).all()
        assert torch.equal(turned.lines(torch.tensor([4, 1])), turned.tensor()[[4, 1]])


@pytest.mark.parametrize("kind", KINDS)
def test_whole_files_give_nearly_the_same_model(whisper, tmp_path, kind):
    checkpoint = load_checkpoint(write(whisper, kind, tmp_path / "model"))
    bits = {"int": 8, "ten": 8, "cha": 8, "flo": None}.get(kind.split("-")[1][:3], int(kind[-3]) if "q" in kind else 0)
    assert checkpoint.bits == (16 if kind.endswith("int16") else bits)
    expected = whisper.state_dict()
    quantised = 0
    for name, tensor in named_tensors(checkpoint.weights):
        original = expected[name]
        worst = {4: 0.15, 5: 0.07, 8: 0.009, 16: 0.002, None: 0.0}[checkpoint.bits] * float(original.abs().max())
        assert (tensor - original).abs().max() <= worst, name
        quantised += not torch.equal(tensor.float(), original)
    assert (quantised > 40) == (checkpoint.bits is not None)
    assert ("-bit: results differ slightly from the original" in checkpoint.note) == (checkpoint.bits is not None)


@pytest.mark.parametrize("kind", ["ggml-q5_1", "ctranslate2-int8_float16", "onnx-channel"])
def test_a_policy_computes_what_its_numbers_say(whisper, tmp_path, kind):
    checkpoint = load_checkpoint(write(whisper, kind, tmp_path / "model"))
    assert isinstance(checkpoint.weights.decoder.tokens, Quantised)  # nothing was converted yet
    policy, stock = WhisperPolicy(checkpoint), stock_model(checkpoint)
    features = torch.randn(1, 80, 3000, generator=torch.Generator().manual_seed(1))
    prompt = [50257, 50362, 11, 12, 13]
    with torch.no_grad():
        state = policy.begin(policy.encode(policy.prepare(features, [prompt])))
        ours = policy.logits(state.hidden[:, 0])
        theirs = stock(input_features=features, decoder_input_ids=torch.tensor([prompt])).logits[:, -1]
    assert torch.allclose(ours, theirs, atol=1e-4)


def test_a_warning_says_it_once_in_one_line(whisper, tmp_path):
    path = write(whisper, "ggml-q8_0", tmp_path)
    with pytest.warns(WeightsWarning, match="weights were 8-bit: results differ slightly from the original"):
        load_speech(path, "cpu", "float32")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_speech(write_ggml(whisper, tmp_path / "float.bin"), "cpu", "float32")


def test_the_command_line_prints_it(whisper, tmp_path, capsys):
    path = write(whisper, "ggml-q8_0", tmp_path)
    assert main(["transcribe", "examples/ferry.flac", "--model", str(path), "-q", "--effort", "plain"]) == 0
    first, *rest = capsys.readouterr().err.splitlines()
    assert first == f"sharpen: {path}: weights were 8-bit: results differ slightly from the original"
    assert not any("8-bit" in line for line in rest)


@pytest.mark.parametrize("kind", ["q8_0", "q5_0", "int8", "onnx"])
def test_tiny_en_says_the_same_when_it_is_quantised(tiny_en, tmp_path, kind):
    state = dict(named_tensors(tiny_en.weights))
    whisper = stock_model(tiny_en)
    if kind == "int8":
        path = write_ctranslate2(int8_variables(ctranslate2_variables(whisper)), tmp_path / "model.bin", torch.float16)
    elif kind == "onnx":
        path = write_onnx(whisper, tmp_path, "tensor", "_quantized")
    else:
        path = write_ggml(whisper, tmp_path / "tiny.bin", quantised=kind)
    copy = load_checkpoint(path)
    for name, tensor in named_tensors(copy.weights):
        error = (tensor - state[name].float()).norm() / state[name].float().norm()
        assert error < {"q8_0": 0.02, "q5_0": 0.15, "int8": 0.05, "onnx": 0.15}[kind], name
    texts = [
        Model(WhisperSpeech(checkpoint)).transcribe("examples/ferry.flac", effort="plain").text
        for checkpoint in (tiny_en, copy)
    ]
    # A capital or a full stop may change: results differ slightly.
    assert texts[0] == "The night ferry to Aberdeen leaves at half past nine."
    assert texts[1].lower().rstrip(".") == texts[0].lower().rstrip(".")


@pytest.mark.parametrize(
    ("file_type", "message"),
    [
        (7, r"q8_0 in the layout of version 0, expected 2.*f16"),
        (1008, r"q5_0 in the layout of version 1"),
        (2012, r"quantised as q4_k, which is not read.*f16, q4_0"),
        (2099, r"quantised as type 99"),
    ],
)
def test_other_ggml_files_are_refused_by_name(whisper, tmp_path, file_type, message):
    path = write_ggml(whisper, tmp_path / "ggml-small.bin", file_type)
    with pytest.raises(WeightsError, match=message):
        load_checkpoint(path)


def test_other_ggml_tensors_are_refused_by_name(whisper, tmp_path):
    state, sizes = openai_state(whisper), openai_sizes(whisper)
    path = write_ggml_tensors(state, sizes, tmp_path / "model.bin", quantised="q5_0")
    content = path.read_bytes()
    name = b"decoder.token_embedding.weight"
    start = content.index(name) - 5 * 4  # rank, length of the name and type, before two sizes
    for code, message in ((12, "stored as q4_k, which is not read"), (77, "stored as type 77")):
        path.write_bytes(content[: start + 8] + code.to_bytes(4, "little") + content[start + 12 :])
        with pytest.raises(WeightsError, match=message):
            load_checkpoint(path)
    narrow = small_model(d=16)
    state = {name: value[..., :16] if value.ndim == 2 else value for name, value in openai_state(narrow).items()}
    with pytest.raises(WeightsError, match="rows of 32"):
        load_checkpoint(_narrow_blocks(state, openai_sizes(narrow), tmp_path / "narrow.bin"))


def _narrow_blocks(state, sizes, path):
    """Claims blocks for a matrix of 16 columns."""
    content = write_ggml_tensors(state, sizes, path, 2008).read_bytes()
    start = content.index(b"decoder.token_embedding.weight") - 5 * 4
    path.write_bytes(content[: start + 8] + (6).to_bytes(4, "little") + content[start + 12 :])
    return path


def test_ctranslate2_scales_must_fit(whisper, tmp_path):
    variables = int8_variables(ctranslate2_variables(whisper))
    name = "decoder/layer_0/ffn/linear_0/weight"
    for change, message in [
        ({f"{name}_scale": torch.ones(3)}, "scales of shape"),
        ({f"{name}_scale": torch.zeros(64)}, "positive"),
        ({f"{name}_scale": torch.full((64,), torch.inf)}, "positive"),
        ({f"{name}_zero": torch.zeros(64)}, "such as AWQ"),
        ({name: variables[name].int()}, "only int8 and int16"),
    ]:
        write_ctranslate2(variables | change, tmp_path / "model.bin")
        with pytest.raises(WeightsError, match=message):
            load_checkpoint(tmp_path)
    del variables[f"{name}_scale"]
    write_ctranslate2(variables, tmp_path / "model.bin")
    with pytest.raises(WeightsError, match="with a float32 scale beside it"):
        load_checkpoint(tmp_path)


def test_the_most_exact_onnx_files_are_taken_and_either_stands_for_both(whisper, tmp_path):
    write_onnx(whisper, tmp_path / "onnx", "tensor", "_quantized")
    (tmp_path / "onnx" / "config.json").rename(tmp_path / "config.json")
    assert load_checkpoint(tmp_path).bits == 8
    assert load_checkpoint(tmp_path / "onnx" / "decoder_model_merged_quantized.onnx").bits == 8
    write_onnx(whisper, tmp_path / "onnx", "")
    assert load_checkpoint(tmp_path).bits is None
    with pytest.raises(WeightsError, match=r"are encoder_model\.onnx and decoder_model_merged\.onnx"):
        load_checkpoint(tmp_path / "onnx" / "encoder_model_quantized.onnx")


def test_other_onnx_files_are_refused_by_name(whisper, tmp_path):
    write_onnx(whisper, tmp_path, "", "_q4")
    with pytest.raises(WeightsError, match=r"no encoder_model and decoder_model_merged of one kind.*not 4-bit"):
        load_checkpoint(tmp_path)
    write = onnx_writer
    four = write.graph([write.node("MatMulNBits", "/layers.0/fc1/MatMul_Q4", ["x", "w"])], {})
    with pytest.raises(WeightsError, match=r"MatMulNBits, a product with 4 bits.*fp16 or quantized"):
        onnx.weights(onnx.parse(memoryview(write.model(four)), "x"), "")
    elsewhere = write.field(1, 4) + write.field(2, 1) + write.field(8, "a.b") + write.field(14, 1)
    for tensor, message in [
        (elsewhere, "external data"),
        (write.field(1, 4) + write.field(2, 1) + write.field(8, "a.b") + write.field(9, b"123"), "has 3 bytes"),
        (b"".join(write.field(1, 2**40) for _ in range(99)) + write.field(2, 1) + write.field(8, "a.b"), "damaged"),
    ]:
        with pytest.raises(WeightsError, match=message):
            onnx.parse(memoryview(write.model(write.field(5, tensor))), "x")
    unscaled = write.graph([], {"a.b_quantized": np.zeros((2, 2), np.uint8)})
    with pytest.raises(WeightsError, match=r"has no float32 a\.b_scale"):
        onnx.weights(onnx.parse(memoryview(write.model(unscaled)), "x"), "")
    nested = b""
    for _ in range(20):
        nested = write.graph([write.node("If", "n", [], write.field(5, write.field(6, nested)))], {})
    with pytest.raises(WeightsError, match="graphs inside of graphs"):
        onnx.parse(memoryview(write.model(nested)), "x")


@pytest.mark.parametrize("kind", ["ggml-q5_0", "ctranslate2-int8_float16", "onnx-channel"])
def test_truncated_and_damaged_files_load_or_are_refused(whisper, tmp_path, kind):
    folder = tmp_path / "model"
    write(whisper, kind, folder)
    path = max((path for path in folder.iterdir() if path.suffix != ".json"), key=lambda path: path.stat().st_size)
    content, rng = path.read_bytes(), random.Random(0)
    for length in [0, 1, 7, 100, *(rng.randrange(len(content)) for _ in range(12)), len(content) - 1]:
        path.write_bytes(content[:length])
        with pytest.raises(WeightsError, match=str(folder)):
            load_checkpoint(folder if path.suffix != ".bin" or path.name == "model.bin" else path)
    for _ in range(12):
        damaged = bytearray(content)
        for _ in range(20):
            damaged[rng.randrange(min(len(content), 200_000))] = rng.randrange(256)
        path.write_bytes(damaged)
        try:
            load_checkpoint(folder if path.suffix != ".bin" or path.name == "model.bin" else path)
        except WeightsError as error:
            assert str(folder) in str(error)  # noqa: PT017
