"""Published numbers: the scripts that print them, and the results of the rows they rest on."""

import importlib.util
import sys
from functools import cache
from pathlib import Path

from sharpen.evaluation.report import document
from sharpen.evaluation.report.lines import read

ROOT = Path(__file__).parent.parent


def load_script(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def lines(run, against="source", without=""):
    """The results of a run by label."""
    folders = [ROOT / "results" / name for name in run.split(",")]
    made = document.build(read(folders), against.split(","), [without] if without else [])
    return {r.line.label: r for r in made.sections[0].results}
