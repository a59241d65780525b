"""whisper.cpp's ggml files: float16, float32, or quantised in blocks of 32 numbers.

u32 magic, 11 x i32 sizes, the mel filters (2 x i32 shape, float32 data), the text tokens (i32 count, then u32 length
and bytes each), and tensors under OpenAI's names until the file ends: i32 rank, name length and type, i32 x rank shape
with the fastest axis first, name, data.
"""

from sharpen.errors import WeightsError
from sharpen.models.tokenizer import WhisperTokenizer
from sharpen.models.weights.blocks import FLOAT_CODES, FORMATS, SUPER, Blocks, read_blocks, type_name
from sharpen.models.weights.checkpoint import GET_AGAIN, Dimensions
from sharpen.models.weights.openai import dimensions_of, hugging_face_name
from sharpen.models.weights.stored import Content, Parsed, Reader, Stored

MAGIC = b"lmgg"  # 0x67676d6c
_SIZES = (
    *("n_vocab", "n_audio_ctx", "n_audio_state", "n_audio_head", "n_audio_layer"),
    *("n_text_ctx", "n_text_state", "n_text_head", "n_text_layer", "n_mels"),
)
# whisper.cpp also writes k-quants; no such file was at hand.
_BLOCKS = {form.code: form.name for form in FORMATS.values() if form.numbers < SUPER}  # by code, of a tensor
_QUANTISED_FILES = {2: "q4_0", 3: "q4_1", 7: "q8_0", 8: "q5_0", 9: "q5_1"}  # by code, of a file
_OTHER_FILES = {4: "q4_1 with some f16", 10: "q2_k", 11: "q3_k", 12: "q4_k", 13: "q5_k", 14: "q6_k"}
_LAYOUT = 2  # version of the blocks' layout; the thousands of a file's code
_ADVICE = f"read are f32, f16, {', '.join(_BLOCKS.values())}; use one of those files of this model"


def header(reader: Reader) -> Dimensions:
    """The sizes at the beginning of a file."""
    if bytes(reader.take(4, "the magic number")) != MAGIC:
        raise WeightsError(f"{reader.name}: not a ggml file; {GET_AGAIN}")
    *sizes, file_type = reader.numbers("11i", "the sizes")
    dims = dimensions_of(dict(zip(_SIZES, sizes, strict=True)), reader.name)
    layout, kind = divmod(file_type, 1000)
    if kind in (0, 1):
        return dims
    if kind not in _QUANTISED_FILES:
        raise WeightsError(
            f"{reader.name}: quantised as {_OTHER_FILES.get(kind, f'type {kind}')}, which is not read; {_ADVICE}"
        )
    if layout != _LAYOUT:
        raise WeightsError(
            f"{reader.name}: {_QUANTISED_FILES[kind]} in the layout of version {layout}, expected {_LAYOUT}: quantise "
            "the model again with a current whisper.cpp, or use its f16 file"
        )
    return dims


def read(content: Content, where: str) -> Parsed:
    reader = Reader(content, where)
    dims = header(reader)
    n_mels, bins = reader.numbers("2i", "the mel filters")
    if n_mels != dims.n_mels or bins != 201:  # n_fft / 2 + 1
        raise WeightsError(f"{where}: mel filters of {n_mels} x {bins}, expected {dims.n_mels} x 201; {GET_AGAIN}")
    reader.tensor("float32", (n_mels, bins), "the mel filters")
    _check_tokens(reader, dims.vocab_size)
    tensors: dict[str, Stored] = {}
    while reader.remaining:
        name, stored = _tensor(reader)
        if name in tensors:
            raise WeightsError(f"{where}: damaged: {name} appears twice; {GET_AGAIN}")
        tensors[name] = stored
    return Parsed(dims, tensors)


def _check_tokens(reader: Reader, vocab_size: int) -> None:
    """The text tokens must be those of our tokeniser for this kind of model."""
    (count,) = reader.numbers("i", "the number of tokens")
    known = WhisperTokenizer.of_kind(vocab_size, reader.name)
    for token in range(count):
        (length,) = reader.numbers("I", f"token {token}")
        piece = bytes(reader.take(length, f"token {token}"))
        # Older files also list the token after the text; converters disagree about what to call it.
        if token < len(known.pieces) and piece != known.pieces[token]:
            raise WeightsError(
                f"{reader.name}: token {token} is {piece!r}, but {known.pieces[token]!r} in Whisper's vocabulary of "
                f"{vocab_size}: a model with its own vocabulary needs its safetensors and tokenizer.json"
            )
    if count < len(known.pieces):
        raise WeightsError(f"{reader.name}: {count} tokens, expected {len(known.pieces)} or more; {GET_AGAIN}")


def _tensor(reader: Reader) -> tuple[str, Stored]:
    rank, length, code = reader.numbers("3i", "a tensor's header")
    if not 0 < rank <= 4:
        raise WeightsError(
            f"{reader.name}: damaged before byte {reader.offset}: a tensor with {rank} axes; {GET_AGAIN}"
        )
    shape = reader.numbers(f"{rank}i", "a tensor's shape")[::-1]
    name = reader.text(length, "a tensor's name")
    if code not in FLOAT_CODES and code not in _BLOCKS:
        raise WeightsError(f"{reader.name}: {name} is stored as {type_name(code)}, which is not read; {_ADVICE}")
    if min(shape) < 1:
        raise WeightsError(f"{reader.name}: damaged: {name} has shape {shape}; {GET_AGAIN}")
    if code in _BLOCKS:
        return hugging_face_name(name), _blocks(reader, _BLOCKS[code], shape, name)
    stored = reader.tensor(FLOAT_CODES[code], shape, name)
    if name.startswith("encoder.conv") and name.endswith(".bias"):
        stored = Stored(stored.dtype, shape[:1], stored.data)  # kept as a column, so that ggml can broadcast it
    return hugging_face_name(name), stored


def _blocks(reader: Reader, dtype: str, shape: tuple[int, ...], name: str) -> Blocks:
    if len(shape) != 2:
        raise WeightsError(f"{reader.name}: damaged: {name} of shape {shape} is {dtype}, not a matrix; {GET_AGAIN}")
    return read_blocks(reader, dtype, shape, name)
