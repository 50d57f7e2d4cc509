"""Import roots, packages and links from the list of packaged files."""

from __future__ import annotations

from pathlib import Path

import pytest

from hatch_lower.driver.context import DistributedFile, find_import_roots, find_packages, plan_links


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path


def packaged(root: Path, **files: str) -> list[DistributedFile]:
    """Return files by distributed path; `source` keys use `__` for `/` and `_py` for the suffix."""
    found = []
    for key, distributed in files.items():
        path = root / key.replace("__", "/").replace("_py", ".py").replace("_bin", ".bin")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
        found.append(DistributedFile(path, distributed))
    return found


def test_a_src_layout(root: Path) -> None:
    files = packaged(root, src__digits__init_py="digits/init.py", src__digits__sub__a_py="digits/sub/a.py")
    assert find_import_roots(files) == (root / "src",)
    assert find_packages(files) == ("digits",)
    assert plan_links(files) == ()


def test_a_flat_layout_with_two_roots_and_a_module(root: Path) -> None:
    files = packaged(root, digits__a_py="digits/a.py", lib__other__b_py="other/b.py", single_py="single.py")
    assert find_import_roots(files) == (root, root / "lib")
    assert find_packages(files) == ("digits", "other")
    assert plan_links(files) == ()


def test_data_gives_no_root(root: Path) -> None:
    files = packaged(root, data__w_bin="digits/w.bin")
    assert find_import_roots(files) == ()
    assert find_packages(files) == ()
    assert plan_links(files) == ()


def test_a_changed_prefix_links_the_whole_folder(root: Path) -> None:
    files = packaged(root, lib__impl__a_py="digits/a.py", lib__impl__sub__b_py="digits/sub/b.py")
    assert find_import_roots(files) == ()
    assert plan_links(files) == (("digits", root / "lib/impl"),)


def test_a_deeper_prefix_makes_folders_above_it(root: Path) -> None:
    files = packaged(root, impl__a_py="space/digits/a.py")
    assert find_packages(files) == ("space",)
    assert plan_links(files) == (("space/digits", root / "impl"),)


def test_a_package_from_two_places_is_linked_piece_by_piece(root: Path) -> None:
    files = packaged(
        root,
        src__digits__a_py="digits/a.py",
        src__digits__sub__b_py="digits/sub/b.py",
        made__c_py="digits/made/c.py",
        other__d_py="other/d.py",
    )
    (root / "src/digits/weights.bin").write_text("")
    assert find_import_roots(files) == (root / "src", root)
    assert plan_links(files) == (
        ("digits/a.py", root / "src/digits/a.py"),
        ("digits/made", root / "made"),
        ("digits/sub", root / "src/digits/sub"),
        ("digits/weights.bin", root / "src/digits/weights.bin"),
    )


def test_a_renamed_file_takes_the_place_of_another(root: Path) -> None:
    files = packaged(root, src__digits__a_py="digits/a.py", made__v_py="digits/version.py", lone_py="single.py")
    (root / "src/digits/version.py").write_text("old")
    assert plan_links(files) == (
        ("digits/a.py", root / "src/digits/a.py"),
        ("digits/version.py", root / "made/v.py"),
        ("single.py", root / "lone.py"),
    )
