import hashlib
import json
import pickle
import random
import shutil
from pathlib import Path

import pytest
import torch
from models.weights.writers import (
    ctranslate2_variables,
    openai_sizes,
    openai_state,
    small_model,
    write_ctranslate2,
    write_ggml,
    write_openai,
)
from safetensors.torch import save_file

from sharpen.benchmarks.stock import named_tensors, stock_model
from sharpen.errors import WeightsError
from sharpen.method.norms import Affine
from sharpen.models.weights import formats
from sharpen.models.weights.ctranslate2 import Variables
from sharpen.models.weights.load import load_checkpoint
from sharpen.models.weights.openai import hugging_face_name
from sharpen.models.weights.stored import Content, Reader, Stored, open_content
from sharpen.models.whisper import WhisperPolicy

FORMATS = [
    *("ctranslate2-float16", "ctranslate2-float32", "ctranslate2-bfloat16", "openai-float16", "openai-float32"),
    *("ggml-float16", "ggml-float32", "safetensors-float32", "safetensors-float16", "safetensors-sharded"),
]


def test_what_no_whisper_stores_is_refused(model, tmp_path):
    with pytest.raises(WeightsError, match="400 axes"):
        Reader(Content([]), "x").tensor("float32", [2**47] * 400, "a tensor")
    many = {"encoder/num_heads": Stored("float16", (4000,), memoryview(bytes(8000)))}
    with pytest.raises(WeightsError, match="expected one number"):
        Variables("x", many).scalar("encoder/num_heads", 4)
    state, sizes = openai_state(model), openai_sizes(model)
    name = next(iter(state))
    for odd in (state[name].to_sparse(), torch.empty(3, device="meta")):
        torch.save({"dims": sizes, "model_state_dict": state | {name: odd}}, tmp_path / "odd.pt")
        with pytest.raises(WeightsError, match=r"expected plain numbers|claims"):
            load_checkpoint(tmp_path / "odd.pt")


def test_an_encoder_of_another_length_is_refused(model, tmp_path):
    state, sizes = openai_state(model), openai_sizes(model)
    short = {"encoder.positional_embedding": state["encoder.positional_embedding"][:750].clone()}
    torch.save({"dims": sizes | {"n_audio_ctx": 750}, "model_state_dict": state | short}, tmp_path / "short.pt")
    with pytest.raises(WeightsError, match="an encoder of 750 positions, and a window of 30 s has 1500"):
        load_checkpoint(tmp_path / "short.pt")


def write(model, kind: str, folder: Path) -> Path:
    """The model in one of the formats; returns its weights file."""
    name, _, variant = kind.partition("-")
    folder.mkdir(parents=True, exist_ok=True)
    dtype = torch.float32 if variant == "sharded" else getattr(torch, variant)
    if name == "ctranslate2":
        return write_ctranslate2(ctranslate2_variables(model), folder / "model.bin", dtype)
    if name == "openai":
        return write_openai(model, folder / "small.pt", dtype)
    if name == "ggml":
        return write_ggml(model, folder / "ggml-small.bin", int(variant == "float16"))
    if variant == "float16":
        model.save_pretrained(folder)
        tensors = {key: tensor.half() for key, tensor in model.state_dict().items() if key != "proj_out.weight"}
        save_file(tensors, folder / "model.safetensors")
    else:
        model.save_pretrained(folder, max_shard_size="3MB" if variant == "sharded" else "1GB")
    return next(folder.glob("*.safetensors"))


def logits(model) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(1, model.config.num_mel_bins, 3000, generator=generator)
    tokens = torch.tensor([[50257, 50362, 300, 400]])
    with torch.no_grad():
        return model(input_features=features, decoder_input_ids=tokens).logits


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_gives_the_same_model(model, tmp_path, kind):
    weights = write(model, kind, tmp_path)
    expected = {name: tensor.detach() for name, tensor in model.state_dict().items() if name != "proj_out.weight"}
    if kind.endswith("bfloat16"):
        expected = {name: tensor.bfloat16().float() for name, tensor in expected.items()}
    for path in {tmp_path, weights}:
        loaded = load_checkpoint(path)
        state = {name: tensor.float() for name, tensor in named_tensors(loaded.weights)}
        assert state.keys() == expected.keys()
        assert all(torch.equal(state[name], expected[name]) for name in expected)
        assert loaded.format == kind.split("-")[0]
        assert not loaded.verified
    if not kind.endswith("bfloat16"):
        assert torch.equal(logits(stock_model(loaded)), logits(model))


@pytest.mark.parametrize("kind", ["ctranslate2-float16", "openai-float16", "ggml-float16", "safetensors-sharded"])
def test_a_checkpoint_keeps_the_files_numbers_and_a_policy_has_its_own(model, tmp_path, kind):
    write(model, kind, tmp_path)
    loaded = load_checkpoint(tmp_path)
    stored = dict(named_tensors(loaded.weights))
    expected = torch.float32 if kind.endswith("sharded") else torch.float16
    assert stored["model.decoder.embed_tokens.weight"].dtype == expected
    assert not any(tensor.requires_grad for tensor in stored.values())
    assert sum(tensor.numel() for tensor in stored.values()) == loaded.dimensions.parameters
    assert loaded.dimensions == formats.dimensions(formats.identify(tmp_path))
    wide, narrow = WhisperPolicy(loaded), WhisperPolicy(loaded, dtype=torch.bfloat16)
    for policy, dtype in ((wide, torch.float32), (narrow, torch.bfloat16)):
        assert {norm.weight.dtype for norm in policy.norms()} == {policy.vocabulary.dtype} == {dtype}
    assert torch.equal(wide.vocabulary, model.proj_out.weight)
    before = {name: tensor.clone() for name, tensor in stored.items()}
    wide.vocabulary.zero_()
    assert all(torch.equal(before[name], tensor) for name, tensor in named_tensors(loaded.weights))


def test_weights_loaded_in_inference_mode_can_be_adapted(model, tmp_path):
    write(model, "ctranslate2-float16", tmp_path)
    with torch.inference_mode():
        policy = WhisperPolicy(load_checkpoint(tmp_path))
        policy.encode(policy.prepare(torch.zeros(1, 80, 100), [[50257]]))
    norms = {norm.name: Affine(norm.weight[None].clone().requires_grad_(), norm.bias[None]) for norm in policy.norms()}
    encoded = policy.adapted(norms).encode(policy.prepare(torch.zeros(1, 80, 100), [[50257]]))
    encoded.cross[0][1].square().sum().backward()
    assert norms["encoder.layers.0.self_attn_layer_norm"].weight.grad.any()


def test_a_file_that_is_replaced_does_not_disturb_a_loaded_model(model, tmp_path):
    """Its mapping stays valid where the new file takes the name; writing into the old file would change it."""
    for kind in ("ctranslate2-float32", "openai-float32", "ggml-float32", "safetensors-float32"):
        path = write(model, kind, tmp_path / kind)
        loaded = load_checkpoint(tmp_path / kind)
        (tmp_path / "new").write_bytes(b"\0" * path.stat().st_size)
        (tmp_path / "new").replace(path)
        assert torch.equal(logits(stock_model(loaded)), logits(model))


def test_a_file_in_parts_is_one_file(tmp_path):
    whole = bytes(range(256)) * 40
    for n, cuts in enumerate([(), (5000,), (1, 9999), (3000, 3001, 7000)]):
        edges = [0, *cuts, len(whole)]
        paths = [tmp_path / f"{n}-{i}" for i in range(len(edges) - 1)]
        for path, start, stop in zip(paths, edges, edges[1:], strict=False):
            path.write_bytes(whole[start:stop])
        content = open_content(paths)
        assert len(content) == len(whole)
        assert content.sha256() == hashlib.sha256(whole).hexdigest()
        for start, stop in [(0, 0), (0, 1), (4999, 5001), (2990, 7010), (0, len(whole)), (9999, 10000), (10000, 10240)]:
            assert content.view(start, stop) == whole[start:stop]


@pytest.mark.parametrize("kind", ["ctranslate2-float16", "openai-float16", "ggml-float16", "safetensors-float16"])
def test_large_v3_has_128_mel_bins_and_cantonese(tmp_path, kind):
    write(small_model(vocab_size=51866, n_mels=128), kind, tmp_path)
    loaded = load_checkpoint(tmp_path)
    assert loaded.mel.n_mels == 128
    assert loaded.tokenizer.languages["yue"] == 50358
    assert loaded.suppress == loaded.tokenizer.suppressed()


def test_a_vocabulary_of_large_v3s_size_with_80_mel_bands_is_not_large_v3s(tmp_path):
    write(small_model(vocab_size=51866), "safetensors-float16", tmp_path)
    with pytest.raises(WeightsError, match=r"128 mel bands and this model 80: .*; put its tokenizer\.json"):
        load_checkpoint(tmp_path)


def test_names_map_onto_the_state_dict(model):
    names = {hugging_face_name(name) for name in openai_state(model)}
    assert names == model.state_dict().keys() - {"proj_out.weight"}


def truncate(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)


@pytest.mark.parametrize("kind", ["ctranslate2-float16", "openai-float16", "ggml-float16", "safetensors-float16"])
def test_every_truncation_is_a_weights_error(model, tmp_path, kind):
    path = write(model, kind, tmp_path)
    size = path.stat().st_size
    draw = random.Random(4)
    cuts = {*range(24), 100, 1000, size - 1, size - 2, size - 21, size - 22, size - 100}
    cuts |= {draw.randrange(size) for _ in range(40)} | {draw.randrange(5000) for _ in range(10)}
    for cut in sorted(cuts, reverse=True):
        truncate(path, cut)
        with pytest.raises(WeightsError):
            load_checkpoint(path)


@pytest.mark.parametrize("kind", ["ctranslate2-float16", "openai-float16", "ggml-float16", "safetensors-float16"])
def test_trailing_bytes_are_refused(model, tmp_path, kind):
    path = write(model, kind, tmp_path)
    with path.open("ab") as file:
        file.write(b"\0" * 7)
    with pytest.raises(WeightsError):
        load_checkpoint(path)


@pytest.mark.parametrize("kind", ["ctranslate2-float16", "openai-float16", "ggml-float16", "safetensors-float16"])
def test_damaged_bytes_load_or_are_refused_and_nothing_else(model, tmp_path, kind):
    path = write(model, kind, tmp_path)
    whole = path.read_bytes()
    draw = random.Random(5)
    for _ in range(40):
        damaged = bytearray(whole)
        for _ in range(draw.choice([1, 4])):
            damaged[draw.randrange(draw.choice([24, 300, 3000, len(whole)]))] = draw.randrange(256)
        path.write_bytes(damaged)
        try:
            load_checkpoint(path)
        except WeightsError as error:
            assert str(path.parent) in str(error)  # noqa: PT017


def test_a_safetensors_file_is_that_file_or_none(model, tmp_path):
    write(model, "safetensors-float32", tmp_path)
    assert load_checkpoint(tmp_path / "model.safetensors").format == "safetensors"
    (tmp_path / "model-ema.safetensors").write_bytes((tmp_path / "model.safetensors").read_bytes())
    with pytest.raises(WeightsError, match=r"are model\.safetensors; copy the file"):
        load_checkpoint(tmp_path / "model-ema.safetensors")


def test_tensors_that_claim_more_than_they_store(model, tmp_path):
    path = write(model, "openai-float16", tmp_path)
    content = torch.load(path, weights_only=True)
    name = next(iter(content["model_state_dict"]))
    content["model_state_dict"][name] = torch.zeros(1).expand(10**16)
    torch.save(content, path)
    with pytest.raises(WeightsError, match="stores fewer"):
        load_checkpoint(path)


def test_quantised_safetensors_are_refused_with_advice(model, tmp_path):
    write(model, "safetensors-float32", tmp_path)
    tensors = {name: tensor.to(torch.int8) for name, tensor in model.state_dict().items()}
    save_file({name: tensor.clone() for name, tensor in tensors.items()}, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=r"I8.*float16"):
        load_checkpoint(tmp_path)


def test_ctranslate2_keys_must_have_no_bias(model, tmp_path):
    variables = ctranslate2_variables(model)
    bias = variables["decoder/layer_1/attention/linear_1/bias"].clone()
    bias[3] = 0.5
    variables["decoder/layer_1/attention/linear_1/bias"] = bias
    write_ctranslate2(variables, tmp_path / "model.bin")
    with pytest.raises(WeightsError, match="gives the keys a bias"):
        load_checkpoint(tmp_path)


def test_ctranslate2_of_another_version_or_kind(model, tmp_path):
    path = write_ctranslate2(ctranslate2_variables(model), tmp_path / "model.bin", version=5)
    with pytest.raises(WeightsError, match="version 5, expected 6"):
        load_checkpoint(tmp_path)
    write_ctranslate2(ctranslate2_variables(model), path)
    path.write_bytes(path.read_bytes().replace(b"WhisperSpec", b"AnotherSpec", 1))
    with pytest.raises(WeightsError, match="'AnotherSpec', expected WhisperSpec"):
        load_checkpoint(tmp_path)


def test_wrong_shapes_missing_and_foreign_tensors(model, tmp_path):
    variables = ctranslate2_variables(model)
    name = "decoder/layer_2/ffn/linear_1/weight"
    write_ctranslate2(variables | {name: variables[name][:, :-1]}, tmp_path / "model.bin")
    with pytest.raises(WeightsError, match=r"fc2\.weight has shape \(16, 63\), expected \(16, 64\)"):
        load_checkpoint(tmp_path)
    write_ctranslate2({key: value for key, value in variables.items() if key != name}, tmp_path / "model.bin")
    with pytest.raises(WeightsError, match=r"1 tensors are missing, such as model\.decoder\.layers\.2\.fc2\.weight"):
        load_checkpoint(tmp_path)
    write_ctranslate2(variables | {"decoder/extra": torch.ones(3)}, tmp_path / "model.bin")
    with pytest.raises(WeightsError, match="decoder/extra is not part of"):
        load_checkpoint(tmp_path)


def test_ggml_with_another_vocabulary_is_refused(model, tmp_path):
    path = write_ggml(model, tmp_path / "ggml.bin", pieces=[b"x%d" % token for token in range(50256)])
    with pytest.raises(WeightsError, match="token 0 is b'x0'"):
        load_checkpoint(path)


class Touch:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("zipped", [True, False])
def test_code_in_a_pickle_is_refused_and_never_runs(tmp_path, zipped):
    path, victim = tmp_path / "evil.pt", tmp_path / "victim"
    if zipped:
        torch.save({"dims": Touch(victim), "model_state_dict": {}}, path)
    else:
        path.write_bytes(pickle.dumps(Touch(victim)))
    with pytest.raises(WeightsError, match=r"never run|can run code"):
        load_checkpoint(path)
    assert not victim.exists()


def test_other_pytorch_files_are_told_apart(model, tmp_path):
    torch.save(model.state_dict(), tmp_path / "a.pt")
    with pytest.raises(WeightsError, match="expected dims and model_state_dict"):
        load_checkpoint(tmp_path / "a.pt")
    torch.save({"dims": openai_sizes(model) | {"n_mels": "x"}, "model_state_dict": {}}, tmp_path / "b.pt")
    with pytest.raises(WeightsError, match="not those of a Whisper model"):
        load_checkpoint(tmp_path / "b.pt")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("photo.jpg", b"\xff\xd8\xff\xe0\x00\x10JFIF\x00" + b"\x01" * 500, "not a Whisper checkpoint"),
        ("text.bin", b"hello, this is no model", "not a Whisper checkpoint"),
        ("empty.bin", b"", "the file is empty"),
        ("model.gguf", b"GGUF\x03\x00\x00\x00" + b"\0" * 100, "GGUF"),
        ("archive.pt", b"PK\x03\x04" + b"\0" * 100, "truncated"),
    ],
)
def test_foreign_files(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(WeightsError, match=message):
        load_checkpoint(path)


def test_foreign_directories(model, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(WeightsError, match="it holds nothing"):
        load_checkpoint(empty)
    write(model, "safetensors-float32", tmp_path / "hf")
    config = tmp_path / "hf" / "config.json"
    original = json.loads(config.read_text())
    for change, message in [
        ({"model_type": "bert"}, "model_type is 'bert', expected 'whisper'"),
        ({"d_model": None}, "no number for d_model"),
        ({"d_model": 32}, "has shape"),
        ({"encoder_layers": 3}, "tensors are missing"),
        ({"encoder_layers": 1}, "are not part of Whisper"),
        ({"encoder_attention_heads": 5}, "do not divide"),
        ({"vocab_size": 10**12}, "not a size"),
    ]:
        config.write_text(json.dumps(original | change))
        with pytest.raises(WeightsError, match=message):
            load_checkpoint(tmp_path / "hf")
    config.write_text("{broken")
    with pytest.raises(WeightsError, match="not valid JSON"):
        load_checkpoint(tmp_path / "hf")
    config.unlink()
    with pytest.raises(WeightsError, match=r"no config\.json"):
        load_checkpoint(tmp_path / "hf")
    (tmp_path / "hf" / "model.safetensors").rename(tmp_path / "hf" / "pytorch_model.bin")
    with pytest.raises(WeightsError, match="save_pretrained"):
        load_checkpoint(tmp_path / "hf")


def test_a_missing_shard_is_named(model, tmp_path):
    write(model, "safetensors-sharded", tmp_path)
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(shards) > 1
    shards[0].unlink()
    with pytest.raises(WeightsError, match=f"part of the weights is missing: {shards[0].name}"):
        load_checkpoint(tmp_path)


def test_several_checkpoints_in_a_directory_need_a_choice(model, tmp_path):
    write(model, "ggml-float16", tmp_path)
    write(model, "openai-float16", tmp_path)
    with pytest.raises(WeightsError, match=r"several checkpoints \(ggml-small\.bin, small\.pt\)"):
        load_checkpoint(tmp_path)


def test_lists_and_mel_settings_come_with_the_checkpoint(model, tmp_path):
    write(model, "safetensors-float32", tmp_path)
    specials = load_checkpoint(tmp_path).tokenizer.prompt_specials
    (tmp_path / "generation_config.json").write_text(
        json.dumps({"suppress_tokens": [5, 6], "begin_suppress_tokens": [220]})
    )
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"feature_size": 80, "chunk_length": 20}))
    loaded = load_checkpoint(tmp_path)
    assert loaded.suppress == tuple(sorted({5, 6} | specials))
    assert loaded.suppress_first == (220,)
    assert loaded.mel.seconds == 20
    for value in ([-1], None):  # conventions for "the usual list"
        (tmp_path / "generation_config.json").write_text(json.dumps({"suppress_tokens": value}))
        assert load_checkpoint(tmp_path).suppress == loaded.tokenizer.suppressed()
    (tmp_path / "generation_config.json").write_text(json.dumps({"suppress_tokens": [99999]}))
    with pytest.raises(WeightsError, match="names token 99999"):
        load_checkpoint(tmp_path)
    (tmp_path / "generation_config.json").unlink()
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"feature_size": 128}))
    with pytest.raises(WeightsError, match="128 mel bins, but the model takes 80"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("kind", "file"), [("safetensors-float32", "generation_config"), ("ctranslate2-float32", "config")]
)
def test_alignment_heads_come_with_the_checkpoint(model, tmp_path, kind, file):
    write(model, kind, tmp_path)
    assert load_checkpoint(tmp_path).alignment_heads == ((1, 0), (1, 1), (2, 0), (2, 1))  # the upper half of three
    (tmp_path / f"{file}.json").write_text(json.dumps({"alignment_heads": [[0, 1], [2, 0]]}))
    assert load_checkpoint(tmp_path).alignment_heads == ((0, 1), (2, 0))


def test_tiny_en_of_the_package_equals_openais_own_file(package_files, fetched_package):
    package_files("tiny.en")
    ours, openai = load_checkpoint("tiny.en"), load_checkpoint(fetched_package("tiny.en", "openai"))
    assert (ours.format, openai.format) == ("ctranslate2", "openai")
    assert ours.verified
    assert openai.verified
    assert ours.suppress == openai.suppress
    assert ours.suppress_first == openai.suppress_first
    expected, state = dict(named_tensors(openai.weights)), dict(named_tensors(ours.weights))
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[name], expected[name]) for name in expected)


def test_whisper_cpps_own_tiny_is_read(fetched_package):
    loaded = load_checkpoint(fetched_package("tiny", "ggml"))
    assert loaded.verified
    assert loaded.tokenizer.multilingual
    assert loaded.dimensions.parameters == 37_760_640
    # The first encoder position is sin(0) = 0 and cos(0) = 1 in halves.
    position = loaded.weights.encoder.positions[0]
    assert position.tolist() == [0.0] * 192 + [1.0] * 192


def test_a_copy_of_the_package_directory_is_the_same_checkpoint(package_files, tmp_path):
    shutil.copytree(package_files("tiny.en"), tmp_path / "copy", ignore=shutil.ignore_patterns("*.py"))
    loaded = load_checkpoint(tmp_path / "copy")
    assert loaded.verified
    assert loaded.source == str(tmp_path / "copy")
