"""Hostile zip files: refused with a sentence, before anything is written."""

from __future__ import annotations

import io
import re
import stat
import struct
import zipfile

import pytest
from catalogue_files import small_catalogue, small_zip, zip_bytes

from shardlab.course.problem_lint import lint_problem
from shardlab.server import catalogue_archive
from shardlab.server.catalogue_archive import read_archive
from shardlab.server.catalogue_audit import audit_upload
from shardlab.server.people.refusals import Refusal
from shardlab.server.uploaded_catalogue import check_archive, load_untrusted

FILES = small_catalogue()
PROBLEM = "lecture-5/take-the-largest"


def refuse(data):
    with pytest.raises(Refusal) as caught:
        read_archive(data)
    return caught.value.message


def test_a_catalogue_is_read_and_written_in_one_form():
    archive = read_archive(small_zip())
    assert dict(archive.files) == FILES
    again = read_archive(archive.to_zip())
    assert again == archive
    assert again.to_zip() == archive.to_zip()
    assert archive.n_problems == 1


def test_the_digest_depends_on_every_name_and_content():
    digest = read_archive(small_zip()).digest
    other = {**FILES, f"{PROBLEM}/hints.md": b"other"}
    moved = {name.replace("hints.md", "audit.toml"): text for name, text in FILES.items()}
    digests = {digest, read_archive(zip_bytes(other)).digest, read_archive(zip_bytes(moved)).digest}
    assert len(digests) == 3


def test_a_folder_around_the_catalogue_is_left_out():
    extra = {"__MACOSX/x": b"", "mine/.DS_Store": b"", "mine/a/__pycache__/b.pyc": b""}
    files = {f"mine/{name}": content for name, content in FILES.items()}
    assert dict(read_archive(zip_bytes({**files, **extra})).files) == FILES


@pytest.mark.parametrize(
    "name",
    [
        "../tracks.toml",
        "lecture-5/../../evil.py",
        "/etc/passwd",
        "C:/evil.py",
        "lecture-5\\take\\problem.toml",
        "lecture-5//problem.toml",
        "./tracks.toml",
        "lecture-5/take-the-largest/evil.so",
        "lecture-5/take-the-largest/wrong/../../evil.py",
        "lecture-5/take-the-largest/wrong/a b.py",
        "lecture-5/take-the-largest/wrong/deep/er.py",
        "lecture-5/Take/problem.toml",
        "lecture-5/take-the-largest/conftest.py",
        "sitecustomize.py",
        "lecture-5/täke/problem.toml",
        f"{'a' * 61}/take/problem.toml",
    ],
)
def test_names_that_no_catalogue_has_are_refused(name, tmp_path):
    assert "not a file" in refuse(zip_bytes({**FILES, zipfile.ZipInfo(name): b"x"}))


def test_a_name_with_a_null_character_is_judged_as_it_is():
    data = zip_bytes({**FILES, "tracks.toml_.py": b"x"}).replace(b"toml_.py", b"toml\x00.py")
    assert "not a file" in refuse(data)


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFSOCK])
def test_links_and_special_files_are_refused(kind):
    info = zipfile.ZipInfo(f"{PROBLEM}/solution.py")
    info.external_attr = (kind | 0o777) << 16
    files = {name: text for name, text in FILES.items() if not name.endswith("solution.py")}
    assert "link or a special file" in refuse(zip_bytes({**files, info: b"/etc/passwd"}))


def test_a_name_twice_is_refused():
    with pytest.warns(UserWarning, match="Duplicate"):
        data = zip_bytes({**FILES, zipfile.ZipInfo("tracks.toml"): b"other"})
    assert "twice" in refuse(data)


def test_a_zip_bomb_is_refused_by_its_ratio():
    data = zip_bytes({**FILES, f"{PROBLEM}/audit.toml": b"#" * 19_000})
    assert "times its size" in refuse(data)


def test_sizes_are_counted_whatever_the_header_says(monkeypatch):
    content = b"".join(struct.pack("<I", n * 2654435761 % 2**32) for n in range(60_000))
    data = bytearray(zip_bytes({**FILES, f"{PROBLEM}/solution.py": content}))
    assert "more than 200 kB" in refuse(bytes(data))
    # The central directory and the local header claim ten bytes.
    size = struct.pack("<I", len(content))
    assert data.count(size) >= 2
    forged = bytes(data.replace(size, struct.pack("<I", 10)))
    assert refuse(forged)


def test_a_toml_file_is_small():
    text = "".join(f"# {n * 7919 % 10007}\n" for n in range(5000)).encode()
    assert "more than 20 kB" in refuse(zip_bytes({**FILES, "tracks.toml": text}))


def test_a_text_that_the_web_process_renders_is_small():
    name = next(name for name in FILES if name.endswith("statement.md"))
    text = "".join(f"line {number}\n" for number in range(5000)).encode()
    assert "more than 40 kB" in refuse(zip_bytes({**FILES, name: text}))


def test_the_number_of_files_and_their_sum_are_limited(monkeypatch):
    many = {f"a/b/wrong/w{n}.py": b"" for n in range(1001)}
    assert "entries" in refuse(zip_bytes({**FILES, **many}))
    monkeypatch.setattr(catalogue_archive, "MAX_TOTAL_BYTES", 5000)
    assert "MB" in refuse(small_zip())


def test_the_number_of_problems_is_limited():
    slugs = [f"problem-{'abcdefghijklmnopqrstuvwxyz'[n]}" for n in range(21)]
    assert "21 problems" in refuse(small_zip(*slugs))
    assert "0 problems" in refuse(zip_bytes({"tracks.toml": b"tracks = []\n"}))


def test_wrong_submissions_are_limited():
    wrong = {f"{PROBLEM}/wrong/w{n}.py": b"# WA: x\n" for n in range(21)}
    assert "wrong submissions" in refuse(zip_bytes({**FILES, **wrong}))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"PK",
        b"not a zip file",
        b"PK\x05\x06" + b"\x00" * 18,
        small_zip()[:-30],
        small_zip()[:200],
        b"\x1f\x8b" + b"\x00" * 100,
    ],
)
def test_damaged_files_are_refused(data):
    assert refuse(data)


def test_damaged_content_is_refused():
    data = bytearray(small_zip())
    data[60:90] = bytes(30)
    assert refuse(bytes(data))


def test_every_single_byte_changed_is_read_or_refused():
    data = small_zip()
    for position in range(0, len(data), 97):
        changed = bytearray(data)
        changed[position] ^= 0xFF
        try:
            read_archive(bytes(changed))
        except Refusal:
            continue


def test_encrypted_and_other_compressions_are_refused():
    data = bytearray(zip_bytes(FILES))
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        start = 0
        while (start := data.find(signature, start)) >= 0:
            data[start + offset] |= 1
            start += 4
    assert "encrypted" in refuse(bytes(data))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("tracks.toml", b"x")
    assert "not supported" in refuse(buffer.getvalue())


def test_a_large_file_is_refused_before_it_is_read():
    assert "MB" in refuse(bytes(catalogue_archive.MAX_ARCHIVE_BYTES + 1))


def test_no_reader_executes_code_of_the_catalogue(tmp_path):
    """Every Python file of the folder would leave a trace if it were executed or imported."""
    trace = tmp_path / "executed"
    line = f"open({str(trace)!r}, 'w').close()\n".encode()
    files = {
        name: (content + line if name.endswith(".py") else content)
        for name, content in FILES.items()
    }
    archive = read_archive(zip_bytes(files))
    check_archive(archive, tmp_path)
    catalogue = load_untrusted(tmp_path / "catalogues" / archive.digest)
    (problem,) = catalogue.problems.values()
    assert not problem.is_trusted
    assert problem.page
    assert problem.hints
    lint_problem(problem)
    assert not trace.exists()


def test_an_audit_ends_after_its_time_with_a_fault(tmp_path):
    archive = read_archive(zip_bytes(FILES))
    archive.write_folder(tmp_path / "catalogue")
    catalogue = load_untrusted(tmp_path / "catalogue")
    # No process is started: a pool would be used for the first problem.
    (fault,) = audit_upload(None, catalogue, lambda progress: None, max_seconds=0)
    assert fault.problem == catalogue.slugs[0]
    assert "took more than 0 minutes" in fault.message


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("[limits]", "", ""),
        ("", "\n[limits]\ncpu_seconds = 1e9\n", "cpu_seconds above"),
        ("", "\n[limits]\nmemory_bytes = 1000000000000000\n", "memory_bytes above"),
        ('axes = ["data"]', 'axes = ["data"]\nmeshes = ["data=100000000"]', "maximum is 8"),
        (
            'axes = ["data"]',
            'axes = ["data"]\nsimulated_meshes = ["data=4096"]',
            "maximum is 1024",
        ),
        ('axes = ["data"]', 'kind = "value"\ncases = 1000000000', "no meaning|cases|kind"),
        ("title = ", "title = 'x' # ", ""),
        ("difficulty", "difficulty_", "difficulty"),
        ("format_version = 1", f"format_version = {'[' * 5000}", "TOML"),
    ],
)
def test_figures_that_would_keep_a_worker_busy_are_refused(tmp_path, old, new, reason):
    name = f"{PROBLEM}/problem.toml"
    text = FILES[name].decode()
    changed = text.replace(old, new, 1) if old else text + new
    archive = read_archive(zip_bytes({**FILES, name: changed.encode()[:20_000]}))
    if not reason:
        check_archive(archive, tmp_path)
        return
    with pytest.raises(Refusal) as caught:
        check_archive(archive, tmp_path)
    assert re.search(reason, caught.value.message), caught.value.message
    assert str(tmp_path) not in caught.value.message
    assert not list((tmp_path / "catalogues").iterdir())
