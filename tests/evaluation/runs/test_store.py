import json
import resource
from dataclasses import replace

import pytest
from evaluation.tiny import ROW

from sharpen.errors import SharpenError
from sharpen.evaluation.runs.store import NAME, Store, read_rows


def numbered(count, **changes):
    return [replace(ROW, id=str(i), **changes) for i in range(count)]


def written(folder, rows):
    with Store(folder) as store:
        store.add(rows)
    return folder / NAME


def test_rows_come_back_as_they_went_in(tmp_path):
    path = written(tmp_path / "new" / "folder", numbered(3))
    assert len(path.read_bytes().splitlines()) == 3
    assert read_rows(path) == read_rows(path.parent) == numbered(3)
    assert [json.loads(line)["id"] for line in path.read_text(encoding="utf-8").split("\n")[:-1]] == ["0", "1", "2"]


def test_a_key_is_written_once(tmp_path):
    written(tmp_path, numbered(2))
    with Store(tmp_path) as store:
        assert ROW.key in store
        other = [replace(ROW, text="another answer"), *numbered(4)]
        assert [row.id for row in store.add(other)] == ["2", "3"]
    assert read_rows(tmp_path) == numbered(4)


def test_every_row_is_on_the_disk_before_the_next(tmp_path):
    seen = []

    def watched():
        for row in numbered(3):
            yield row
            seen.append(len(read_rows(tmp_path)))

    with Store(tmp_path) as store:
        store.add(watched())
    assert seen == [1, 2, 3]


@pytest.mark.parametrize("cut", [1, 2, 40, "half", "all but one"])
def test_a_torn_last_line_is_repaired(tmp_path, cut):
    path = written(tmp_path, numbered(3))
    content = path.read_bytes()
    length = len(content) // 3  # all rows are equally long
    cut = {"half": length // 2, "all but one": length - 1}.get(cut, cut)
    path.write_bytes(content[:-cut])
    whole = 3 if cut == 1 else 2  # only the newline is missing: the row is there
    assert len(read_rows(path)) == whole
    with Store(tmp_path) as store:
        assert len(store.rows) == whole
        store.add(numbered(3))
    assert path.read_bytes() == content


def test_a_line_torn_inside_a_character_is_repaired(tmp_path):
    path = written(tmp_path, numbered(1))
    content = path.read_bytes()
    path.write_bytes(content + content[: content.index("ï".encode()) + 1])
    assert written(tmp_path, []).read_bytes() == content


def test_damage_elsewhere_is_named_and_nothing_is_touched(tmp_path):
    path = written(tmp_path, numbered(3))
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([lines[0], lines[1][:50], *lines[2:]]))
    before = path.read_bytes()
    for attempt in (Store, read_rows):
        with pytest.raises(SharpenError, match="line 2"):
            attempt(tmp_path)
    assert path.read_bytes() == before
    path.write_bytes(b"\n".join(lines))
    written(tmp_path, numbered(4))  # the failed attempts hold no lock


def test_failures_are_tried_again(tmp_path):
    bad, good = replace(ROW, failed="no audio"), numbered(3)[1:]
    path = written(tmp_path, [bad, *good])
    assert read_rows(path)[0].failed == "no audio"
    with Store(tmp_path) as store:
        assert bad.key not in store
        assert store.add([ROW]) == [ROW]
    assert read_rows(tmp_path) == [*good, ROW]
    assert sorted(p.name for p in tmp_path.iterdir()) == [NAME]


def test_failures_that_are_not_tried_again_stay_on_record(tmp_path):
    bad = replace(ROW, failed="no audio")
    path = written(tmp_path, [bad])
    before = path.read_bytes()
    written(tmp_path, [])  # a run that was killed at once
    assert path.read_bytes() == before
    written(tmp_path, numbered(3)[1:])  # one with another plan
    assert [row.failed for row in read_rows(tmp_path)] == ["no audio", "", ""]
    written(tmp_path, [replace(bad, failed="still none")])
    assert [row.failed for row in read_rows(tmp_path)] == ["", "", "still none"]


def test_an_answer_stands_before_a_failure_whichever_came_first(tmp_path):
    bad = replace(ROW, failed="no audio")
    for rows in ([bad, ROW], [ROW, bad]):
        path = tmp_path / "joined.jsonl"
        path.write_text("".join(row.as_json() + "\n" for row in rows), encoding="utf-8")
        assert read_rows(path) == [ROW]


def test_a_folder_has_one_writer(tmp_path):
    with Store(tmp_path), pytest.raises(SharpenError, match="in use by another run"):
        Store(tmp_path)
    Store(tmp_path).close()


def test_a_disk_that_is_full_is_told_and_loses_nothing(tmp_path):
    with Store(tmp_path) as store:
        store.add([ROW])
        size = (tmp_path / NAME).stat().st_size
        kept = resource.getrlimit(resource.RLIMIT_FSIZE)
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, kept[1]))
            with pytest.raises(SharpenError, match="make room, then run the same command again"):
                store.add([replace(ROW, id="1")])
        finally:
            store.close()
            resource.setrlimit(resource.RLIMIT_FSIZE, kept)
    with Store(tmp_path) as store:
        assert list(store.rows.values()) == [ROW]
        store.add([replace(ROW, id="1")])
    assert [row.id for row in read_rows(tmp_path)] == ["0", "1"]


def test_places_that_cannot_be(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SharpenError, match="give another folder to --out"):
        Store(tmp_path / "file" / "under")
    (tmp_path / "folder" / NAME).mkdir(parents=True)
    with pytest.raises(SharpenError, match="cannot write to"):
        Store(tmp_path / "folder")
    with pytest.raises(SharpenError, match="no such file"):
        read_rows(tmp_path / "nothing")
