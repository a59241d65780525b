"""The settings of a run: what is varied, what makes a difference, and the keys of the rows that are kept."""

from dataclasses import replace
from pathlib import Path

import pytest

from sharpen import products
from sharpen.cli import evaluate, reproduce, transcribe, tune
from sharpen.cli.parser import Parser
from sharpen.cli.runs import run_from, settings_from
from sharpen.errors import SharpenError
from sharpen.evaluation.corpora.corpus import Corpus, Utterance
from sharpen.evaluation.report.tuning import grid
from sharpen.evaluation.runs.plan import Part, plan
from sharpen.evaluation.runs.settings import decoding, settings
from sharpen.evaluation.runs.store import read_rows
from sharpen.method.adaptation import Adaptation
from sharpen.method.objectives import METHODS, Method
from sharpen.speech.options import Options

RESULTS = Path(__file__).parents[3] / "results"


def parse(command, *arguments):
    parser = Parser()
    command.arguments(parser)
    return parser.parse_args([str(a) for a in arguments])


def test_settings_multiply_only_where_it_makes_a_difference():
    methods = ["source", "beam", "greedy-em", "em-tok", "em-tok-b"]
    chosen = settings(methods, samples=(4, 16), steps=(10, 1, 3), seed=(0, 1))
    assert [(s.method, s.samples, s.at, s.seed) for s in chosen] == [
        ("source", 0, (0,), 0),
        ("beam", 4, (0,), 0),
        ("beam", 16, (0,), 0),
        ("greedy-em", 1, (1, 3, 10), 0),
        ("em-tok", 4, (1, 3, 10), 0),
        ("em-tok", 4, (1, 3, 10), 1),
        ("em-tok", 16, (1, 3, 10), 0),
        ("em-tok", 16, (1, 3, 10), 1),
        ("em-tok-b", 4, (1, 3, 10), 0),
        ("em-tok-b", 16, (1, 3, 10), 0),
    ]
    assert [(s.method, s.seed) for s in settings(["source", "em-tok-b", "em-tok"], seed=(7,))] == [
        ("source", 0),  # nothing is drawn: with other seeds it is the same row
        ("em-tok-b", 0),
        ("em-tok", 7),
    ]
    assert chosen[4].options("exact").adapt == Adaptation("em-tok", samples=4, greedy_at=(1, 3))
    assert [s.seed for s in settings(["source"], temperature=((0.0,), (0.5,)), seed=(0, 1))] == [0, 0, 1]


@pytest.mark.parametrize(
    ("methods", "values", "message"),
    [
        (["em-tik"], {}, "method is 'em-tik'; expected one of source, beam"),
        (["em-tok"], {"lr": (-1.0,)}, "lr is -1.0; expected a finite number, above 0"),
        (["em-tok"], {"stop": ("certain",)}, "stop is 'certain'; expected a tuple"),
        (["em-tok"], {"language": ("de",)}, "language cannot be varied"),
        (["em-tok"], {"nonsense": (1,)}, "nonsense cannot be varied; expected one of steps, samples, search_every"),
    ],
)
def test_impossible_settings_are_refused(methods, values, message):
    with pytest.raises(SharpenError, match=message):
        settings(methods, **values)


def test_a_rate_that_depends_on_the_number_of_steps_needs_an_episode_for_each():
    chosen = settings(["em-tok"], steps=(1, 2), schedule=("constant", "linear"))
    assert [(one.adapt.schedule, one.at) for one in chosen] == [
        ("constant", (1, 2)),
        ("linear", (1,)),
        ("linear", (2,)),
    ]


def test_a_beam_at_the_end_needs_an_episode_for_each_number_of_steps():
    """On its way an episode decodes greedily, without timestamps: anything else is its end."""
    chosen = settings(["source", "beam", "em-tok"], steps=(1, 2), decode=("greedy", "beam"), beam_size=(5, 8))
    assert [
        (s.method, s.at, s.recorded("exact").get("decode"), s.recorded("exact").get("beam_size")) for s in chosen
    ] == [
        ("source", (0,), None, None),
        ("source", (0,), "beam", None),
        ("source", (0,), "beam", 8),
        ("beam", (0,), None, None),
        ("em-tok", (1, 2), None, None),
        ("em-tok", (1,), "beam", None),
        ("em-tok", (2,), "beam", None),
        ("em-tok", (1,), "beam", 8),
        ("em-tok", (2,), "beam", 8),
    ]
    last = chosen[-1].options("exact")
    assert (last.decode, last.beam_size, last.adapt.steps, last.adapt.greedy_at) == ("beam", 8, 2, ())
    assert [s.at for s in settings(["em-tok"], steps=(1, 2), timestamps=(True,))] == [(1,), (2,)]


def test_all_doors_lead_to_the_same_beam():
    """The method beam is the paper's, 16 wide; decode beam is Whisper's own, 5 wide."""

    def command(*arguments):
        options = transcribe.make_options(parse(transcribe, "f.wav", *arguments))
        return options.adapt, options.final_decode, options.beam_size

    def python(**options):
        made = Options(**options)
        return made.adapt, made.final_decode, made.beam_size

    def evaluation(method, **values):
        made = settings([method], **values)[0].options("exact")
        return made.adapt, made.final_decode, made.beam_size

    paper, narrow, whisper = (None, "beam", 16), (None, "beam", 4), (None, "beam", 5)
    assert command("--method", "beam") == python(adapt="beam") == evaluation("beam") == paper
    assert command("--method", "beam", "--samples", 4) == evaluation("beam", samples=(4,)) == narrow
    assert python(adapt=Adaptation("beam", samples=4)) == narrow
    source = command("--method", "source", "--decode", "beam")
    assert source == python(decode="beam") == evaluation("source", decode=("beam",)) == whisper
    assert command("--effort", "plain") == command("--method", "source") == whisper
    adapted = Adaptation("em-tok", guard=True)
    both = command("--method", "em-tok", "--decode", "beam", "--beam-size", 7)
    assert both == python(adapt=adapted, decode="beam", beam_size=7) == (adapted, "beam", 7)
    assert evaluation("em-tok", decode=("beam",), beam_size=(7,)) == both
    own = Method("sample", METHODS["em-tok"].objective, decode="beam")
    assert python(adapt=own) == (Adaptation(own), "beam", 5)


def test_what_the_preset_says_is_not_recorded_again():
    (setting,) = settings(["source"], padding=("condensed",))
    assert setting.recorded("exact") == {"padding": "condensed"}
    assert setting.recorded("fast") == {}
    assert settings(["source"])[0].options("fastest").padding == "sparse"
    assert (decoding("exact").timestamps, decoding("exact").temperature) == (False, (0.0,))


NOISY = ["--guard", "off", "--threads", 1]
FIVE = "source,beam,greedy-em,em-tok,em-tok-b"
KEPT = {  # folder -> the commands of scripts/results.sh that made it
    "ls-source": [["--methods", "source"]],
    "ls-gs10": [["--preset", "fastest", "--methods", "source,beam,em-tok-b,em-tok,greedy-em,em-seq"]],
    "ls-gs10-exact": [["--methods", "source,beam,em-tok-b"]],
    "ls-gs10-fast": [["--preset", "fast", "--methods", "source,beam"]],
    "ls-gs10-togo": [["--preset", "fastest", "--methods", "em-tok-togo,em-tok-togo-b"]],
    "ls-gs10-norms": [["--preset", "fastest", "--methods", "em-tok-b", "--adapt-norms", "decoder,encoder"]],
    "ls-gs10-steps": [["--preset", "fastest", "--methods", f"{FIVE},em-seq", "--steps-at", "1,3,5,10,20"]],
    "ls-gs10-samples": [
        ["--preset", "fastest", "--methods", "em-tok,em-tok-b", "--samples", "1,4,16,64"],
        ["--preset", "fastest", "--methods", "source,beam", "--samples", "16"],
    ],
    "ls-gs10-ablations": [
        ["--preset", "fastest", "--methods", "pg-tok,ent-tok,pg-tok-b,ent-tok-b", "--samples", "1,4,16"]
    ],
    "ls-gs10-tiny": [["--preset", preset, "--model", "tiny", "--methods", FIVE] for preset in ("fastest", "fast")],
    "ls-gs10-tiny-beam": [
        ["--preset", preset, "--model", "tiny", "--methods", "source,beam"] for preset in ("exact", "fast")
    ],
    "ls-noises": [["--preset", "fastest", "--methods", FIVE]],
    "accents": [["--preset", "fastest", "--methods", FIVE]],
    "languages": [["--preset", "fastest", "--methods", FIVE]],
    "tune": [["--preset", "fastest"]],
}


def parts(rows):
    """The corpora of kept rows, under each of their noises."""
    found = {}
    for row in rows:
        u = Utterance(row.corpus, row.domain, row.id, row.reference, row.language, row.speaker, row.duration, Path("x"))
        found.setdefault((row.options.get("noise", ""), row.options.get("snr")), {})[row.corpus, row.domain, row.id] = u
    return [Part(Corpus("kept", tuple(some.values())), *condition) for condition, some in found.items()]


@pytest.mark.parametrize("name", KEPT)
def test_the_rows_that_are_kept_keep_their_keys(name, monkeypatch):
    """The commands that made them plan the same keys: all of the folder's, and no others."""
    monkeypatch.setattr(products, "multiplies_bfloat16", lambda device: False)  # as on the machine that made them
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    rows = read_rows(RESULTS / name)
    planned = set()
    for arguments in KEPT[name]:
        command = tune if name == "tune" else evaluate
        args = parse(command, "corpus", "--out", "x", *NOISY, *arguments)
        values = settings_from(args, command.DEFAULTS)
        method = values.pop("method")
        chosen = grid(method, **values) if command is tune else settings(method, **values)
        work = plan(parts(rows), chosen, run_from(args, args.model))
        planned |= {key for batch in work.batches for key in batch.keys(work.run)}
    kept = {row.key for row in rows}
    assert kept == planned


def test_recipes_take_every_other_setting():
    args = parse(reproduce, "fig-steps", "--out", "x", "--stop", "none,agreed", "--no-guard")
    values = settings_from(args, reproduce.DEFAULTS)
    assert values == {"guard": (False,), "stop": ((), ("agreed",))}
    assert settings_from(parse(reproduce, "fig-steps"), reproduce.DEFAULTS) == {"guard": (False,)}
    assert len(settings(["source", "em-tok"], **values)) == 3


def test_the_order_of_stop_rules_is_no_setting():
    chosen = settings(["em-tok"], stop=(("agreed", "certain"), ("certain", "agreed"), ("certain",)))
    assert [s.recorded("exact")["stop"] for s in chosen] == ["certain+agreed", "certain"]
    assert replace(chosen[0].adapt, stop=()) == Adaptation("em-tok")
