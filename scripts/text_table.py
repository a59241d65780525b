"""The table of docs/generating.md, from the rows of `sharpen evaluate-text`.

python scripts/text_table.py results/text/smollm2-135m
"""

import sys

from sharpen.evaluation.runs.store import read_rows
from sharpen.evaluation.text.table import tables


def markdown(folder: str) -> list[str]:
    """One table for all tasks, the task in its first column.

    Seconds are left out, since machines differ: within a run they are compared with the source's.
    """
    lines: list[str] = []
    for task, (head, *rest) in tables(read_rows(folder)).items():
        if not lines:
            lines += ["| " + " | ".join(["task", *head[:-1]]) + " |", "|---|---|" + "---:|" * (len(head) - 2)]
        name = task.partition(",")[0]
        lines += ["| " + " | ".join([name, *line[:-1]]) + " |" for line in rest]
    return lines


if __name__ == "__main__":
    print(*markdown(sys.argv[1]), sep="\n")
