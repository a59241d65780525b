"""Published numbers: the scripts that print them, and the results of the rows they rest on."""

import importlib
import sys
from functools import cache
from pathlib import Path

from sharpen.evaluation.report import document
from sharpen.evaluation.report.lines import read

ROOT = Path(__file__).parent.parent


def load_script(name):
    """A script as a module; it finds others beside it, as it does when it is run."""
    folder = str(ROOT / "scripts")
    if folder not in sys.path:
        sys.path.append(folder)
    return importlib.import_module(name)


@cache
def lines(run, against="source", without=""):
    """The results of a run by label."""
    folders = [ROOT / "results" / name for name in run.split(",")]
    made = document.build(read(folders), against.split(","), [without] if without else [])
    return {r.line.label: r for r in made.sections[0].results}
