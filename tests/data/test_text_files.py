import bz2
import gzip
import lzma
import tracemalloc

import pyarrow
import pytest

from residual_hf.base.errors import InputError
from residual_hf.data import text_files
from residual_hf.data.text_files import LineReader, count_lines, in_batches, iter_lines, sample_hash
from residual_hf.model.checksums import file_hash

LINES = ["Straße", "", "end\u2028of line", "last"]


COMPRESS = {
    "plain": bytes,
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstd": lambda content: pyarrow.compress(content, "zstd", asbytes=True),
}


@pytest.fixture(params=COMPRESS)
def file(request, tmp_path):
    content = ("\ufeff" + "\r\n".join(LINES)).encode()
    path = tmp_path / "text"  # known by its content
    path.write_bytes(COMPRESS[request.param](content))
    return path


def test_only_line_feeds_end_a_line(file):
    assert list(iter_lines(file)) == LINES
    assert count_lines(file) == 4


def test_reading_continues_from_a_position(file):
    first = LineReader(file)
    lines = iter(first)
    assert [next(lines), next(lines)] == LINES[:2]
    second = LineReader(file, first.number, first.offset)
    assert list(second) == LINES[2:] and second.number == 4


def test_an_endless_line_is_refused_before_it_fills_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "LONGEST_LINE", 1 << 20)
    path = tmp_path / "endless.gz"
    path.write_bytes(gzip.compress(b"first\n" + b"x" * ((1 << 20) - 1) + b"\n" + bytes(30 << 20), 1))
    reader, lines = LineReader(path), []
    tracemalloc.start()
    with pytest.raises(InputError, match="line 3 has more than 1 MiB"):
        lines += (len(line) for line in reader)
    assert tracemalloc.get_traced_memory()[1] < 16 << 20
    tracemalloc.stop()
    assert reader.number == 3
    assert [len(batch) for batch in in_batches(["12", "345", "6", "7890123", "", "4"], 5)] == [2, 1, 1, 2]


def test_a_sample_tells_large_files_apart(tmp_path):
    content = b"".join(b"line %d\n" % number for number in range(10_000))
    hashes = set()
    for changed in (content, content[::-1], b"x" + content[1:], content[:-1] + b"x", content[7:] + content[:7]):
        (tmp_path / "text").write_bytes(changed)
        hashes.add(sample_hash(tmp_path / "text", blocks=16, size=256))
    assert len(hashes) == 5
    assert sample_hash(tmp_path / "text") == file_hash(tmp_path / "text")  # a small file, read completely


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("latin", "ok\nStraße\n".encode("latin-1"), "line 2, byte 5 (0xDF) is not UTF-8"),
        ("utf16", "text\n".encode("utf-16"), "line 1, byte 1 (0xFF) is not UTF-8 text; the file looks like UTF-16"),
        ("no_mark", "one\ntwo\n".encode("utf-16-le"), "line 1, byte 2 (0x00) is not UTF-8 text; the file looks like"),
        ("no_mark", "zwölf äß\n".encode("utf-16-be"), "is not UTF-8 text; the file looks like UTF-16"),
        ("binary", b"one\ntwo\0three\n", "line 2, byte 4 (0x00) is not UTF-8 text"),
        ("cut.gz", gzip.compress(b"line\n" * 1000)[:-12], "damaged gzip file"),
        ("cut.xz", lzma.compress(b"line\n" * 1000)[:-12], "damaged xz file"),
        ("no.bz2", b"plain text", "damaged bzip2 file, cannot be read past line 0: Invalid data stream"),
        ("no.xz", b"plain text", "damaged xz file, cannot be read past line 0"),
        ("cut.zst", pyarrow.compress(b"line\n" * 1000, "zstd", asbytes=True)[:-2], "damaged Zstandard file"),
        ("no.zst", b"plain text", "damaged Zstandard file, cannot be read past line 0"),
        ("no.gz", b"plain text", "damaged gzip file, cannot be read past line 0"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_read_is_named(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError) as error:
        list(iter_lines(tmp_path / name))
    assert message in str(error.value) and name in str(error.value)
    if "damaged" in message:
        with pytest.raises(InputError, match="damaged"):
            count_lines(tmp_path / name)


def test_streams_of_xz_are_joined_and_a_large_window_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "a.xz"
    path.write_bytes(lzma.compress(b"one\n") + b"\0" * 8 + lzma.compress(b"") + lzma.compress(b"two\n" * 50_000))
    assert list(iter_lines(path)) == ["one"] + ["two"] * 50_000
    path.write_bytes(lzma.compress(b"one\n", preset=9))
    assert list(iter_lines(path)) == ["one"]
    monkeypatch.setattr(text_files, "LARGEST_WINDOW", 2**24)
    with pytest.raises(InputError, match="damaged xz file.*[Mm]emory usage limit"):
        list(iter_lines(path))


def test_counting_stops_early_and_a_missing_file_and_a_folder_are_named(tmp_path):
    (tmp_path / "many").write_text("x\n" * 2_000_000)
    assert 10 < count_lines(tmp_path / "many", most=10) < 2_000_000
    with pytest.raises(InputError, match="no such file: .*absent"):
        list(iter_lines(tmp_path / "absent"))
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        list(iter_lines(tmp_path))
