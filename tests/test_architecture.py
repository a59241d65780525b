"""The rooms and the direction of imports between them, and what a plain import costs."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import sharpen

SOURCE = Path(sharpen.__file__).parent
EXAMPLE = Path(__file__).parent.parent / "examples" / "ferry.flac"
ROOMS = [
    "errors",
    "options",
    "files",
    "terminal",
    "products",
    "method",
    "models",
    "explain",
    "speech",
    "text",
    "evaluation",
    "benchmarks",
    "serving",
    "cli",
    "__main__",
]  # each may import those before it


def room(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if parts[0] == "sharpen" and len(parts) > 1 else None


def imports(path: Path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} uses a relative import"
            yield node.module
            if node.module == "sharpen":
                yield from (f"sharpen.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_one_way(path):
    here = path.relative_to(SOURCE).with_suffix("").parts[0]
    if here == "__init__":
        return  # the public names: gathered from every room, on first use
    assert here in ROOMS, f"{path} is in no known room"
    for module in imports(path):
        there = room(module)
        if there in ROOMS:
            assert ROOMS.index(there) <= ROOMS.index(here), f"{path.name} in {here} imports {module}"


@pytest.mark.parametrize("path", sorted((SOURCE / "method").glob("*.py")), ids=lambda p: p.name)
def test_the_method_knows_no_model_library(path):
    assert not {m.split(".")[0] for m in imports(path)} & {"transformers", "tokenizers", "av"}


def test_only_the_oracle_imports_transformers():
    importing = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if any(module.split(".")[0] == "transformers" for module in imports(path))
    }
    assert importing == {"benchmarks/stock.py"}


def test_transcribing_does_not_import_transformers():
    arguments = ["transcribe", str(EXAMPLE), "--model", "tiny.en", "-q", "--method", "em-tok-b", "--steps", "1"]
    code = (
        "import sys\n"
        "sys.modules['transformers'] = None  # importing it fails\n"
        "from sharpen.cli import main\n"
        f"sys.exit(main({[*arguments, '--samples', '2']}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "night ferry" in done.stdout


def test_the_benchmark_says_which_extra_it_needs():
    code = (
        "import sys\n"
        "sys.modules['transformers'] = None\n"
        "from sharpen.benchmarks.stock import import_transformers\n"
        "import_transformers()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "pip install 'sharpen[transformers]'" in done.stderr


@pytest.mark.parametrize(
    "code",
    [
        "import sharpen",
        "from sharpen.cli import main; main(['--help'])",
        "from sharpen.cli import main; main(['serve', '--help'])",
    ],
)
def test_torch_is_not_imported_before_it_is_needed(code):
    check = f"import sys\ntry:\n    {code}\nexcept SystemExit:\n    pass\n"
    check += "assert not {'torch', 'starlette'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_public_names_exist():
    for name in sharpen.__all__:
        assert getattr(getattr(sharpen, name), "__name__", name) == name
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = sharpen.nonsense


def test_class_names_are_unique():
    places: dict[str, list[str]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(str(path.relative_to(SOURCE)))
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


OF_A_MODEL = {"whisper", "whisper_speech", "states", "tokenizer", "timestamps", "cache", "log_mel", "weights"}


@pytest.mark.parametrize("path", sorted((SOURCE / "speech").glob("*.py")), ids=lambda p: p.name)
def test_speech_knows_models_by_their_protocol_alone(path):
    """A second model must not need a change there."""
    for module in imports(path):
        parts = module.split(".")
        assert parts[:2] != ["sharpen", "models"] or parts[2] not in OF_A_MODEL, f"{path.name} imports {module}"


@pytest.mark.parametrize("here", ["speech", "text"])
def test_speech_and_text_do_not_know_each_other(here):
    other = "text" if here == "speech" else "speech"
    for path in sorted((SOURCE / here).glob("*.py")):
        assert not any(module.startswith(f"sharpen.{other}") for module in imports(path)), path.name


OF_A_TEXT_MODEL = {
    *("causal", "causal_states", "causal_text", "causal_weights", "architecture", "families", "cache", "weights"),
    *("seq2seq", "seq2seq_decoding", "seq2seq_families", "seq2seq_text", "seq2seq_weights", "states"),
}


@pytest.mark.parametrize("path", sorted((SOURCE / "text").glob("*.py")), ids=lambda p: p.name)
def test_text_knows_models_by_their_protocol_alone(path):
    for module in imports(path):
        parts = module.split(".")
        assert parts[:2] != ["sharpen", "models"] or parts[2] not in OF_A_TEXT_MODEL, f"{path.name} imports {module}"
