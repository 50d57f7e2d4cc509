"""`hatch-lower oci` and `hatch-lower oci-unpack`: wheels in OCI layouts, and out of them."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from support.sides import PLAIN, record_members, write_wheel
from support.weights import checkpoint, write_outside

import hatch_lower
from hatch_lower.canonical import sha256_bytes
from hatch_lower.cli.entry import main
from hatch_lower.driver import opened_wheel
from hatch_lower.driver.oci import pack
from hatch_lower.driver.oci.layout import BlobWriter
from hatch_lower.driver.oci.pack import CODE_TYPE, WEIGHTS_TYPE

EMPTY: Mapping[str, bytes] = MappingProxyType({})
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, list(map(str, arguments)))


def wheel_of(folder: Path, version: str = "1.0", more: Mapping[str, bytes] = EMPTY) -> Path:
    """Write a wheel with a model, constants, code, a check file, an SBOM and a RECORD."""
    path = write_wheel(folder / f"digits-{version}-py3-none-any.whl", {"net": PLAIN}, version=version)
    files = {
        "digits/_lowered/net/constants.safetensors": b"weights" * 1000,
        "digits/_lowered/net/check.safetensors": b"check",
        "digits/__init__.py": b"",
        "digits/code.py": f"VERSION = {version!r}\n".encode(),
        f"digits-{version}.dist-info/sboms/hatch-lower.cdx.json": b"{}",
    }
    return record_members(path, files | dict(more))


def files_below(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def packed(folder: Path, *options: str, more: Mapping[str, bytes] = EMPTY) -> tuple[Path, dict[str, Any]]:
    """Return a layout with an artifact, and what the command says of the artifact."""
    done = run("oci", wheel_of(folder, more=more), "--to", folder / "layout", "--json", *options)
    assert done.exit_code == 0, done.output
    return folder / "layout", json.loads(done.stdout)


def replace_blob(layout: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the manifest of a layout's first artifact, with a digest that fits."""
    index = json.loads((layout / "index.json").read_text())
    entry = index["manifests"][0]
    manifest = json.loads((layout / "blobs/sha256" / entry["digest"].removeprefix("sha256:")).read_text())
    change(manifest)
    data = json.dumps(manifest).encode()
    entry |= {"digest": f"sha256:{write_blob(layout, data)}", "size": len(data)}
    (layout / "index.json").write_text(json.dumps(index))


def write_blob(layout: Path, data: bytes) -> str:
    digest = hashlib.sha256(data).hexdigest()
    (layout / "blobs/sha256" / digest).write_bytes(data)
    return digest


def replace_layer(layout: Path, kind: str, data: bytes, **annotations: str) -> None:
    """Replace the layer of a media type in the first artifact, with a digest that fits."""

    def change(manifest: dict[str, Any]) -> None:
        (layer,) = [each for each in manifest["layers"] if each["mediaType"] == kind]
        layer |= {"digest": f"sha256:{write_blob(layout, data)}", "size": len(data)}
        layer["annotations"] |= annotations

    replace_blob(layout, change)


def tar_of(name: str, kind: bytes = tarfile.REGTYPE) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        information = tarfile.TarInfo(name)
        information.type, information.linkname = kind, "/etc/passwd"
        archive.addfile(information)
    return file.getvalue()


def tar_header(kind: bytes, size: int, data: bytes = b"") -> bytes:
    """Return a header for a member of any size, and a block of data."""
    information = tarfile.TarInfo("x")
    information.type, information.size = kind, size
    return information.tobuf(tarfile.GNU_FORMAT) + (data.ljust(tarfile.BLOCKSIZE, b"\0") if data else b"")


def test_an_unpacked_artifact_has_the_files_of_the_wheel(tmp_path: Path) -> None:
    layout, report = packed(tmp_path)
    assert report["tag"] == "1.0"
    done = run("oci-unpack", layout, "--to", tmp_path / "site")
    assert done.exit_code == 0, done.output
    with zipfile.ZipFile(tmp_path / "digits-1.0-py3-none-any.whl") as archive:
        assert files_below(tmp_path / "site") == {name: archive.read(name) for name in archive.namelist()}


def test_the_artifact_names_what_the_specification_requires(tmp_path: Path) -> None:
    layout, report = packed(tmp_path)
    blobs = layout / "blobs/sha256"
    manifest = json.loads((blobs / report["digest"].removeprefix("sha256:")).read_text())
    assert (manifest["schemaVersion"], manifest["mediaType"]) == (2, MANIFEST_TYPE)
    assert manifest["artifactType"] == "application/vnd.cncf.model.manifest.v1+json"
    assert manifest["config"]["mediaType"] == "application/vnd.cncf.model.config.v1+json"
    config = json.loads((blobs / manifest["config"]["digest"].removeprefix("sha256:")).read_text())
    digests = [layer["digest"] for layer in manifest["layers"]]
    assert config == {
        "descriptor": {"name": "digits", "version": "1.0", "title": "digits"},
        "config": {"format": "hatch-lower"},
        "modelfs": {"type": "layers", "diffIds": digests},
    }
    kinds = ("weight", "weight.config", "dataset", "doc", "code")
    assert [layer["mediaType"].split(".v1.")[0] for layer in manifest["layers"]] == [
        f"application/vnd.cncf.model.{kind}" for kind in kinds
    ]
    for path in blobs.iterdir():
        assert sha256_bytes(path.read_bytes()) == path.name


def test_two_layouts_of_a_wheel_are_equal(tmp_path: Path) -> None:
    one, _ = packed(tmp_path / "one")
    two, _ = packed(tmp_path / "two")
    assert files_below(one) == files_below(two)


def test_two_versions_in_a_layout_share_their_weights(tmp_path: Path) -> None:
    layout, first = packed(tmp_path)
    done = run("oci", wheel_of(tmp_path, "2.0"), "--to", layout, "--json")
    second = json.loads(done.stdout)
    assert first["layers"][0] == second["layers"][0]
    assert len(list((layout / "blobs/sha256").iterdir())) < len(first["layers"]) * 2 + 4
    assert "known: `1.0`, `2.0`" in run("oci-unpack", layout, "--to", tmp_path / "site").output
    assert run("oci-unpack", layout, "--to", tmp_path / "site", "--tag", "2.0").exit_code == 0
    assert "2.0" in (tmp_path / "site/digits/code.py").read_text()


def test_other_artifacts_of_a_layout_stay_as_they_are(tmp_path: Path) -> None:
    layout, _ = packed(tmp_path)
    index = json.loads((layout / "index.json").read_text())
    other = {**index["manifests"][0], "platform": {"os": "linux"}, "annotations": {}}
    index |= {"annotations": {"kept": "yes"}, "manifests": [other]}
    (layout / "index.json").write_text(json.dumps(index))
    assert run("oci", wheel_of(tmp_path, "2.0"), "--to", layout).exit_code == 0
    found = json.loads((layout / "index.json").read_text())
    assert found["annotations"] == {"kept": "yes"}
    assert found["manifests"][0] == other
    assert len(found["manifests"]) == 2


def test_a_tag_of_another_artifact_is_refused_and_the_layout_stays(tmp_path: Path) -> None:
    layout, _ = packed(tmp_path)
    before = files_below(layout)
    done = run("oci", wheel_of(tmp_path, "2.0"), "--to", layout, "--tag", "1.0")
    assert "the layout has another artifact with the tag" in done.output
    assert files_below(layout) == before
    assert run("oci", wheel_of(tmp_path), "--to", layout).exit_code == 0  # the same artifact again
    assert files_below(layout) == before


def test_a_layout_is_locked_while_an_artifact_is_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fcntl = pytest.importorskip("fcntl")
    layout, _ = packed(tmp_path)
    write = pack.write_artifact

    def write_while_another_process_tries(*arguments: Any) -> Any:
        descriptor = os.open(layout, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(descriptor)
        return write(*arguments)

    monkeypatch.setattr(pack, "write_artifact", write_while_another_process_tries)
    done = run("oci", wheel_of(tmp_path, "2.0"), "--to", layout)
    assert done.exit_code == 0, done.output


def test_parts_that_a_killed_writer_has_left_are_removed(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    layout, _ = packed(tmp_path)
    before = files_below(layout)
    (layout / "blobs/sha256/.part-0123456789abcdef").write_bytes(b"half a blob")
    assert run("oci", wheel_of(tmp_path), "--to", layout).exit_code == 0
    assert files_below(layout) == before


def test_two_writers_of_a_layout_do_not_mix_their_bytes(tmp_path: Path) -> None:
    one, two = BlobWriter(tmp_path), BlobWriter(tmp_path)

    def pieces() -> Iterator[bytes]:
        yield b"a"
        two.write("x/y", [b"other"], {})
        yield b"b"

    assert (tmp_path / "blobs/sha256" / one.write("x/y", pieces(), {}).sha256).read_bytes() == b"ab"


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full/note").touch()
    layout, _ = packed(tmp_path)
    for arguments in (("oci", wheel_of(tmp_path)), ("oci-unpack", layout)):
        done = run(*arguments, "--to", tmp_path / "full")
        assert "the folder for the artifact has other files" in done.output
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["note"]


@pytest.mark.parametrize("tag", [None, "1.0+cpu", "", "a/b", "x" * 129])
def test_a_tag_that_oci_does_not_allow_is_refused(tmp_path: Path, tag: str | None) -> None:
    wheel = wheel_of(tmp_path, version="1+local")
    done = run("oci", wheel, "--to", tmp_path / "layout", *([] if tag is None else ["--tag", tag]))
    assert (
        f"OCI does not allow the tag\n  where: {wheel}\n  found: `{tag or ('1+local' if tag is None else '')}`"
        in done.output
    )
    assert not (tmp_path / "layout").exists()


def test_a_folder_stands_for_its_newest_wheel(tmp_path: Path) -> None:
    dist = tmp_path / "dist"
    dist.mkdir()
    done = run("oci", dist, "--to", tmp_path / "layout")
    assert done.output == (
        f"error: the command takes a wheel, or a folder with wheels\n  where: {dist}\n"
        "  found: a folder without wheels\n"
        "  to do: run `hatch build -t wheel`, and name the wheel or its folder, such as `dist/`\n"
    )
    wheel_of(dist)
    done = run("oci", dist, "--to", tmp_path / "layout")
    assert f"{tmp_path / 'layout'}:1.0  sha256:" in done.output


def test_a_wheel_with_scripts_is_refused(tmp_path: Path) -> None:
    wheel = wheel_of(tmp_path, more={"digits-1.0.data/scripts/serve": b"#!python"})
    done = run("oci", wheel, "--to", tmp_path / "layout")
    assert "the wheel installs files outside of its packages" in done.output
    assert not (tmp_path / "layout").exists()


def test_a_wheel_without_lowered_models_is_refused(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path / "digits-1.0-py3-none-any.whl", {})
    done = run("oci", wheel, "--to", tmp_path / "layout")
    assert (done.exit_code, (tmp_path / "layout").exists()) == (1, False)


def rewritten(wheel: Path, change: Callable[[dict[str, bytes]], object]) -> Path:
    """Change the members of a wheel, and leave its RECORD as it is."""
    with zipfile.ZipFile(wheel) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    change(files)
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return wheel


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda files: files.update({"digits/code.py": b""}), "other contents of `digits/code.py`"),
        (
            lambda files: files.pop("digits/_lowered/net/constants.safetensors"),
            "no file `digits/_lowered/net/constants",
        ),
        (lambda files: files.update({"digits/more.py": b""}), "`digits/more.py`, which the RECORD does not list"),
        (lambda files: files.pop("digits-1.0.dist-info/RECORD"), "0 files `RECORD` of wheels"),
        (lambda files: files.update({"digits-1.0.dist-info/RECORD": b"x" * 200_000}), "a RECORD that is no table"),
        (lambda files: files.pop("digits-1.0.dist-info/METADATA"), "no field `Name` in METADATA"),
        (lambda files: files.update({"digits/../more.py": b""}), "the wheel has a file that an artifact cannot have"),
    ],
)
def test_a_wheel_that_could_not_be_unpacked_is_refused(
    tmp_path: Path, change: Callable[[dict[str, bytes]], object], found: str
) -> None:
    done = run("oci", rewritten(wheel_of(tmp_path), change), "--to", tmp_path / "layout")
    assert (done.exit_code, found in done.output) == (1, True), done.output
    assert not (tmp_path / "layout").exists()


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_wheel_with_a_file_twice_is_refused(tmp_path: Path) -> None:
    wheel = wheel_of(tmp_path)
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("digits/code.py", b"")
    assert "`digits/code.py` twice" in run("oci", wheel, "--to", tmp_path / "layout").output


def test_a_compressed_file_of_any_size_is_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opened_wheel, "MOST_BYTES", 4096)
    wheel = wheel_of(tmp_path, more={"digits/words.txt": b"word " * 1000})
    with zipfile.ZipFile(wheel) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    assert run("oci", wheel, "--to", tmp_path / "layout").exit_code == 0
    assert run("oci-unpack", tmp_path / "layout", "--to", tmp_path / "site").exit_code == 0
    assert files_below(tmp_path / "site") == files


def test_changed_bytes_are_refused_and_nothing_is_left(tmp_path: Path) -> None:
    layout, report = packed(tmp_path)
    before = sorted(path.name for path in tmp_path.iterdir())
    for layer in report["layers"]:
        blob = layout / "blobs/sha256" / layer["digest"].removeprefix("sha256:")
        data = blob.read_bytes()
        for other in (bytes([data[0] ^ 1]) + data[1:], data[:-1], data + b"\0"):
            blob.write_bytes(other)
            done = run("oci-unpack", layout, "--to", tmp_path / "site")
            assert "a blob of the artifact is not the one that its descriptor names" in done.output
        blob.write_bytes(data)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


@pytest.mark.parametrize("name", ["../outside", "/tmp/outside", "digits/../../outside", "a\\b", ""])
def test_a_path_out_of_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    layout, _ = packed(tmp_path)
    replace_layer(layout, WEIGHTS_TYPE, b"x", **{"org.cncf.model.filepath": name})
    done = run("oci-unpack", layout, "--to", tmp_path / "site")
    assert (done.exit_code, (tmp_path / "site").exists()) == (1, False)
    assert "is damaged" in done.output


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (tar_of("../outside"), "instead of a relative path"),
        (tar_of("digits/link", tarfile.SYMTYPE), "`digits/link` is not a plain file"),
        (tar_of("digits/link", tarfile.LNKTYPE), "`digits/link` is not a plain file"),
        (tar_of("digits/device", tarfile.CHRTYPE), "`digits/device` is not a plain file"),
        (tar_of("digits/_lowered/manifest.json"), "`digits/_lowered/manifest.json` is there twice"),
        (tar_of("digits/_lowered/manifest.json/x"), "is there twice, as a file or as a folder"),
        (tar_of("digits/_lowered/manifest.json/x/y"), "is there twice, as a file or as a folder"),
        (tar_of("digits/more.py"), "files `RECORD` of wheels"),
        (tar_header(tarfile.XHDTYPE, 1 << 40), "no tar archive: "),
        (tar_header(tarfile.REGTYPE, 1 << 80), "no tar archive: "),
        (tar_header(tarfile.GNUTYPE_LONGNAME, 5, b"name") * 2000, "error: the artifact"),
        (b"no archive", "no tar archive"),
    ],
)
def test_an_archive_of_other_files_is_refused(tmp_path: Path, data: bytes, found: str) -> None:
    layout, _ = packed(tmp_path)
    replace_layer(layout, CODE_TYPE, data)
    done = run("oci-unpack", layout, "--to", tmp_path / "site")
    assert (done.exit_code, (tmp_path / "site").exists()) == (1, False)
    assert found in done.output


@pytest.mark.parametrize("name", ["hatch-lower-weights/more.py", f"hatch-lower-weights/{'0' * 64}.safetensors"])
def test_a_file_beside_weights_that_is_not_named_by_its_contents_is_refused(tmp_path: Path, name: str) -> None:
    for kind, data in ((CODE_TYPE, tar_of(name)), (WEIGHTS_TYPE, b"other")):
        layout, _ = packed(tmp_path / kind.rsplit(".", 1)[-1])
        layer = {"mediaType": kind, "size": len(data), "digest": f"sha256:{write_blob(layout, data)}"}
        layer["annotations"] = {"org.cncf.model.filepath": name}
        replace_blob(layout, lambda manifest, layer=layer: manifest["layers"].append(layer))
        done = run("oci-unpack", layout, "--to", tmp_path / "site")
        assert f"found: `{name}`, which the RECORD does not list" in done.output


def test_files_that_differ_from_the_record_are_refused(tmp_path: Path) -> None:
    layout, _ = packed(tmp_path)
    replace_layer(layout, WEIGHTS_TYPE, b"other")
    done = run("oci-unpack", layout, "--to", tmp_path / "site")
    assert "other contents of `digits/_lowered/net/constants.safetensors`" in done.output
    replace_layer(layout, WEIGHTS_TYPE, b"other", **{"org.cncf.model.filepath": "digits/more.bin"})
    done = run("oci-unpack", layout, "--to", tmp_path / "site")
    assert "no file `digits/_lowered/net/constants.safetensors`" in done.output


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"artifactType": "application/x"}, "the artifact is not a model of the ModelPack specification"),
        ({"layers": "none"}, "no list `layers`"),
        ({"layers": [{"mediaType": "x/y", "size": 1, "digest": "sha256:" + "0" * 64}]}, "a layer of the type 'x/y'"),
        ({"layers": [{"mediaType": "x/y", "size": 1, "digest": "md5:0"}]}, "a digest 'md5' instead of sha256"),
        ({"layers": [{"mediaType": "x/y", "size": -1, "digest": "sha256:" + "0" * 64}]}, "instead of an integer"),
    ],
)
def test_a_manifest_of_another_form_is_refused(tmp_path: Path, change: dict[str, Any], found: str) -> None:
    layout, _ = packed(tmp_path)
    replace_blob(layout, lambda manifest: manifest.update(change))
    done = run("oci-unpack", layout, "--to", tmp_path / "site")
    assert done.exit_code == 1
    assert found in done.output


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "no JSON: "),
        ('{"manifests": [', "no JSON: "),
        ("null", "no JSON object"),
        ("[" * 100_000, "JSON that nests too deeply"),
        (" " * (1 << 22), "no JSON: "),
        (" " * (1 << 22) + " ", "more than 4194304 bytes"),
        ("{}", "no list `manifests`"),
    ],
)
def test_an_index_of_another_form_is_refused(tmp_path: Path, text: str, found: str) -> None:
    layout, _ = packed(tmp_path)
    (layout / "index.json").write_text(text)
    for arguments in (("oci-unpack", layout, "--to", tmp_path / "site"), ("oci", wheel_of(tmp_path), "--to", layout)):
        done = run(*arguments)
        assert (done.exit_code, "error: the artifact is damaged" in done.output, found in done.output) == (
            1,
            True,
            True,
        )
        assert "fetch the artifact again" in done.output


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes in folders")
def test_a_pipe_in_a_layout_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    layout, report = packed(tmp_path)
    for path in (
        layout / "blobs/sha256" / report["layers"][0]["digest"].removeprefix("sha256:"),
        layout / "index.json",
    ):
        path.unlink()
        os.mkfifo(path)
        assert "found: not a regular file" in run("oci-unpack", layout, "--to", tmp_path / "site").output


def test_an_artifact_with_several_tags_is_the_only_artifact(tmp_path: Path) -> None:
    layout, _ = packed(tmp_path)
    assert run("oci", wheel_of(tmp_path), "--to", layout, "--tag", "latest").exit_code == 0
    done = run("oci-unpack", layout, "--to", tmp_path / "site")
    assert done.exit_code == 0, done.output


def test_a_layout_without_models_says_what_it_has(tmp_path: Path) -> None:
    layout, _ = packed(tmp_path)
    index = json.loads((layout / "index.json").read_text())
    index["manifests"][0]["mediaType"] = "application/vnd.docker.distribution.manifest.v2+json"
    (layout / "index.json").write_text(json.dumps(index))
    done = run("oci-unpack", layout, "--to", tmp_path / "site")
    assert f"found: manifests: 1, of the type {MANIFEST_TYPE}: none" in done.output
    assert "to do: fetch the artifact alone into a new layout" in done.output


def test_a_folder_that_is_no_layout_is_refused(tmp_path: Path) -> None:
    done = run("oci-unpack", tmp_path, "--to", tmp_path / "site")
    assert "the folder is not an OCI image layout" in done.output


def test_weights_outside_of_the_wheel_are_a_layer_that_load_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HATCH_LOWER_WEIGHTS", str(tmp_path / "cache"))
    file = checkpoint({"w": ("F32", 2, np.array([1, 2], np.float32).tobytes())})
    (tmp_path / "model.safetensors").write_bytes(file.data)
    lowered = write_outside(tmp_path / "made/_lowered", {"model.safetensors": file})
    more = {f"sums/_lowered/{name}": data for name, data in files_below(lowered).items()}
    layout, report = packed(tmp_path, "--from", f"{tmp_path}/", more=more)
    assert [layer["name"].split("/")[0] for layer in report["layers"]].count("hatch-lower-weights") == 1
    done = run("oci-unpack", layout, "--to", tmp_path / "site")
    weights = tmp_path / "site/hatch-lower-weights"
    assert f"set HATCH_LOWER_WEIGHTS to {weights}" in done.output
    monkeypatch.setenv("HATCH_LOWER_WEIGHTS", str(weights))
    result = hatch_lower.load(tmp_path / "site/sums/_lowered")(torch.zeros(2))
    assert result.tolist() == [1, 2]


def test_skopeo_copies_the_artifact_and_keeps_its_digests(tmp_path: Path) -> None:
    if shutil.which("skopeo") is None:
        pytest.skip("skopeo is not installed")
    layout, report = packed(tmp_path)
    copied = tmp_path / "copied"
    command = ["skopeo", "--insecure-policy", "copy", f"oci:{layout}:1.0", f"oci:{copied}:production"]
    subprocess.run(command, check=True, capture_output=True)
    index = json.loads((copied / "index.json").read_text())
    assert [entry["digest"] for entry in index["manifests"]] == [report["digest"]]
    done = run("oci-unpack", copied, "--to", tmp_path / "site", "--tag", "production")
    assert done.exit_code == 0, done.output
    code = "import digits.code; print(digits.code.VERSION)"
    command = [sys.executable, "-c", code]
    shown = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path / "site")
    assert shown.stdout == "1.0\n"
