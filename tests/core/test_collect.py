"""What was observed becomes few inputs: the same for an unchanged project, others where something has changed."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.recorded import Project

from hatch_lower.canonical import sha256_bytes
from hatch_lower.driver.inputs.preload import built_library

pytestmark = pytest.mark.processes


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path | None:
    return built_library(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def project(tmp_path: Path, library: Path | None) -> Project:
    return Project(tmp_path / "project", library)


ALWAYS = {"safetensors", "setuptools"}
"""Distributions of which each interpreter here loads something: the recorder itself, and a `.pth` file."""


def install(site: Path, name: str, files: dict[str, str], *, record: bool = True) -> None:
    """Lay out an installed distribution."""
    information = f"{name}-1.0.dist-info"
    files = {**files, f"{information}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"}
    files[f"{information}/entry_points.txt"] = "[group]\nx = y:z\n"
    if record:
        files[f"{information}/RECORD"] = "".join(f"{path},,\n" for path in [*files, f"{information}/RECORD"])
    for path, text in files.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text)


def text_of(inputs: dict[str, Any]) -> str:
    return json.dumps(inputs)


EVERYTHING = """
    import glob, importlib.metadata, subprocess
    from pathlib import Path
    open('data.bin').read(), glob.glob('data/*'), os.path.exists('missing'), os.environ.get('COLOUR')
    subprocess.run(['cat', 'data.bin'], check=True)
    importlib.metadata.entry_points()
    Path('made.bin').write_text('x'), open('made.bin').read(), os.remove('made.bin')
    """


def test_an_unchanged_project_has_the_same_inputs_again(project: Project) -> None:
    project.write("data.bin")
    project.write("data/a.txt")
    first = project.record(EVERYTHING)
    assert text_of(project.record()) == text_of(first)
    assert {"project/data.bin", "project/src/digits/model.py"} <= set(first["files"])


def test_a_copy_of_the_project_in_another_folder_has_the_same_inputs(project: Project, tmp_path: Path) -> None:
    project.write("data.bin")
    project.write("data/a.txt")
    first = project.record(EVERYTHING)
    other = tmp_path / "elsewhere" / "copy"
    shutil.copytree(project.folder, other)
    assert text_of(Project(other, project.library).record()) == text_of(first)


MATRIX = """
    import ctypes, glob, importlib.metadata, importlib.util, sqlite3, subprocess
    from pathlib import Path
    import digits.layers, digits.space.deep
    from safetensors import safe_open
    open('data.bin').read(), os.path.getsize('sized.bin'), os.path.exists('missing'), os.listdir('listed')
    glob.glob('matched/*.txt'), os.environ.get('COLOUR'), os.getenv('SHAPE'), Path('looked').exists()
    safe_open('weights.safetensors', 'np').keys()
    sqlite3.connect('x.db').execute('select * from t').fetchall()
    try: open('optional.json')
    except OSError: pass
    importlib.util.find_spec('accelerator')
    with recorder.unwatched(): open('unread.bin').read()
    if recorder._notes.log is not None:
        subprocess.run(['cat', 'child.txt'], check=True, stdout=subprocess.DEVNULL)
        ctypes.CDLL(None).getenv(b'NATIVE'), ctypes.CDLL(None).fopen(b'native.bin', b'r')
    """
CHANGED_FILES = ("data.bin", "sized.bin", "weights.safetensors", "x.db", "src/digits/layers.py", "src/digits/model.py")
CHANGED_FILES += ("src/digits/__init__.py", "src/digits/space/deep.py", "declared/a.bin")
CHANGED_FILES_SEEN_BY_THE_LIBRARY = ("child.txt", "native.bin")
NEW_FILES = ("missing", "looked", "optional.json", "listed/b", "matched/b.txt", "accelerator.py", "json.py")
NEW_FILES += ("src/digits/json.py", "src/digits/layers/__init__.py", "src/accelerator/__init__.py", "declared/b.bin")
NO_INPUTS = ("README.md", "src/digits/notes.txt", "unread.bin", "src/digits/__pycache__/x.pyc", "matched.md")


def test_every_change_of_an_input_is_noticed_and_nothing_else_is(project: Project) -> None:
    import sqlite3

    with sqlite3.connect(project.write("x.db")) as connection:
        connection.execute("create table t (a)")
    connection.close()
    for path in ("data.bin", "sized.bin", "listed/a", "matched/a.txt", "unread.bin", "child.txt", "native.bin"):
        project.write(path, "1")
    for path in ("src/digits/layers.py", "src/digits/space/deep.py", "declared/a.bin"):
        project.write(path, "")
    project.write("weights.safetensors", (8).to_bytes(8, "little") + b"{}      ")
    before = project.record(MATRIX, globs=("declared/*",), NATIVE="1", COLOUR="red")
    assert before["unknown"] == []
    assert project.changes(before) == []
    seen = CHANGED_FILES_SEEN_BY_THE_LIBRARY if project.library else ()
    for path in (*CHANGED_FILES, *seen):
        file = project.folder / path
        contents = file.read_bytes()
        file.write_bytes(contents + b" ")
        assert len(project.changes(before)) == 1, path
        file.unlink()
        assert project.changes(before), path
        file.write_bytes(contents)
        assert project.changes(before) == [], path
    for path in NEW_FILES:
        file = project.write(path)
        assert project.changes(before), path
        file.unlink()
        if file.parent.name not in ("listed", "matched", "digits", "declared", "src", "project"):
            file.parent.rmdir()
        assert project.changes(before) == [], path
    for path in NO_INPUTS:
        project.write(path, "new")
        assert project.changes(before) == [], path
    assert project.changes(before, COLOUR="blue") == ["variable COLOUR"]
    assert project.changes(before, SHAPE="round") == ["variable SHAPE is set now"]
    assert project.changes(before, NATIVE="2") == (["variable NATIVE"] if project.library else [])


def test_an_input_is_its_contents(project: Project) -> None:
    project.write("data.bin", "contents")
    assert project.record("open('data.bin')")["files"]["project/data.bin"] == sha256_bytes(b"contents")


def test_the_standard_library_and_this_package_are_no_inputs(project: Project) -> None:
    inputs = project.record("import json.tool, hatch_lower.config.settings")
    assert [path for path in inputs["files"] if path.endswith(".py")] == [
        "project/src/digits/__init__.py",
        "project/src/digits/model.py",
    ]
    assert inputs["modules"]["json"] == "python"
    assert inputs["absent"] == []


def test_a_search_for_a_native_library_reads_the_list_of_all(project: Project) -> None:
    # CUDA's modules do it when torch imports them; nobody can watch the program that lists them
    inputs = project.record("import ctypes.util; assert ctypes.util.find_library('c')")
    assert inputs["unknown"] == []
    assert "/etc/ld.so.cache" in text_of(inputs["files"])


def test_files_of_a_distribution_stand_for_it(project: Project, tmp_path: Path) -> None:
    site = tmp_path / "venv" / "site-packages"
    install(site, "colours", {"colours/__init__.py": "", "colours/red.txt": "red", "colours/sub/a.txt": ""})
    code = """
        import colours
        folder = os.path.dirname(colours.__file__)
        open(folder + '/red.txt').read(), os.listdir(folder + '/sub'), os.path.exists(folder + '/blue.txt')
    """
    inputs = project.record(code, site=site)
    assert set(inputs["distributions"]) - ALWAYS == {"colours"}
    assert inputs["modules"]["colours"] == "dist colours"
    assert not any(
        "colours" in text_of(inputs[each]) for each in ("files", "absent", "looks", "listings", "importable")
    )
    (site / "colours-1.0.dist-info" / "RECORD").write_text("colours/__init__.py,,1\n")
    assert project.record(site=site)["distributions"] != inputs["distributions"]


def test_a_file_beside_distributions_that_none_installed_is_an_input(project: Project, tmp_path: Path) -> None:
    site = tmp_path / "venv" / "site-packages"
    install(site, "colours", {"colours/__init__.py": ""})
    (site / "stray.py").write_text("")
    (site / "colours" / "added.txt").write_text("")
    inputs = project.record("import stray, colours; open(colours.__path__[0] + '/added.txt')", site=site)
    assert {"site/stray.py", "site/colours/added.txt"} <= set(inputs["files"])
    assert inputs["modules"]["stray"] == "site/stray.py"


def test_a_distribution_without_a_list_of_files_is_known_by_its_files(project: Project, tmp_path: Path) -> None:
    site = tmp_path / "venv" / "site-packages"
    install(site, "colours", {"colours/__init__.py": ""}, record=False)
    inputs = project.record("import colours", site=site)
    assert "site/colours/__init__.py" in inputs["files"]
    assert set(inputs["distributions"]) <= ALWAYS


def test_who_asks_for_entry_points_does_not_depend_on_every_distribution(project: Project, tmp_path: Path) -> None:
    site = tmp_path / "venv" / "site-packages"
    install(site, "colours", {"colours/__init__.py": ""})
    inputs = project.record(
        """
        import importlib.metadata
        assert importlib.metadata.entry_points()
        importlib.metadata.packages_distributions()
        [each.metadata['Name'] for each in importlib.metadata.distributions()]
        """,
        site=site,
    )
    assert set(inputs["distributions"]) <= {*ALWAYS, "digits"}
    assert not any("dist-info" in text_of(inputs[each]) for each in inputs)


def test_only_importable_names_of_a_folder_that_was_imported_from_are_inputs(project: Project) -> None:
    before = project.record("pass")
    assert {"project/src", "project/src/digits", "project"} >= set(before["importable"]) > {"project/src"}
    assert before["listings"] == {}
    project.write("src/digits/README.md")
    assert text_of(project.record()) == text_of(before)
    project.write("src/digits/new.py")
    assert project.record()["importable"] != before["importable"]


def test_a_new_module_that_hides_another_is_noticed(project: Project) -> None:
    before = project.record("import colorsys")
    assert before["modules"]["colorsys"] == "python"
    project.write("src/colorsys.py")
    assert project.record()["modules"]["colorsys"] == "project/src/colorsys.py"


def test_what_the_export_made_itself_is_no_input(project: Project) -> None:
    inputs = project.record(
        """
        import tempfile
        for name in ('made.bin', tempfile.mktemp()):
            open(name, 'w').write('x')
            open(name).read()
        os.makedirs('made/deep', exist_ok=True)
        open('made/deep/part', 'w').close()
        os.rename('made/deep/part', 'made/deep/whole')
        open('made/deep/whole').read()
        with open('appended.txt', 'a') as file: file.write('x')
        open('appended.txt').read()
        handle = os.open('exclusive', os.O_RDWR | os.O_CREAT | os.O_EXCL); os.close(handle)
        open('exclusive').read()
        os.listdir('made')
        """
    )
    kept = [path for name in ("files", "absent", "looks", "listings") for path in inputs[name]]
    assert [path for path in kept if path.startswith("project") and "digits" not in path] == []
    assert inputs["unknown"] == []


def test_what_was_read_before_the_export_overwrote_it_is_not_known(project: Project) -> None:
    project.write("data.bin", "before")
    inputs = project.record("open('data.bin').read(); open('data.bin', 'w').write('after')")
    assert inputs["unknown"] == ["data.bin changed while the export ran"]


def test_what_another_process_read_before_the_export_overwrote_it_is_not_known(project: Project) -> None:
    if project.library is None:
        pytest.skip("what another process reads is not seen")
    project.write("data.bin", "before")
    code = "os.system('cat data.bin > other.bin'); open('data.bin', 'w').write('after'); open('other.bin').read()"
    inputs = project.record(code)
    assert inputs["unknown"] == ["data.bin changed while the export ran"]
    assert "project/other.bin" not in inputs["files"]


def test_a_file_that_was_overwritten_before_it_was_read_is_no_input(project: Project) -> None:
    project.write("data.bin", "before")
    inputs = project.record("open('data.bin', 'w').write('after'); open('data.bin').read()")
    assert "project/data.bin" not in inputs["files"]
    assert inputs["unknown"] == []


CHANGING = {
    "appended": "open('FILE').read(); open('FILE', 'a').write('x')",
    "read and written": "open('FILE', 'r+').write('x')",
    "touched": "open('FILE').read(); os.utime('FILE')",
    "replaced": "open('FILE').read(); open('x', 'w').close(); os.replace('x', 'FILE')",
    "old": "open('FILE').read(); open('FILE', 'a').write('x'); os.utime('FILE', (1, 1))",
}


def test_an_input_that_changes_during_the_export_is_not_known(project: Project) -> None:
    for name in CHANGING:
        project.write(name, "before")
    inputs = project.record("\n".join(code.replace("FILE", name) for name, code in CHANGING.items()))
    assert sorted(inputs["unknown"]) == sorted(f"{name} changed while the export ran" for name in CHANGING)


def test_a_file_from_the_future_is_known(project: Project) -> None:
    far = 4_000_000_000
    os.utime(project.write("data.bin", "before"), (far, far))
    inputs = project.record("open('data.bin').read()")
    assert "project/data.bin" in inputs["files"]
    assert inputs["unknown"] == []


def test_an_input_that_the_export_removes_is_not_known(project: Project) -> None:
    project.write("data.bin", "before")
    inputs = project.record("open('data.bin').read(); os.remove('data.bin')")
    assert inputs["unknown"] == ["data.bin was removed while the export ran"]


def test_a_folder_that_changes_after_it_was_listed_is_not_known(project: Project) -> None:
    project.write("data/a.txt")
    inputs = project.record("os.listdir('data'); open('data/b.txt', 'w').close()")
    assert inputs["unknown"] == ["data changed while the export ran"]


def test_a_module_that_comes_during_the_export_is_not_known(project: Project) -> None:
    code = "import subprocess; subprocess.run(['cp', 'src/digits/model.py', 'src/digits/other.py'], check=True)"
    if project.library is None:
        pytest.skip("what another process makes is not seen")
    made = project.record(code)
    assert made["unknown"] == []  # by the export itself
    unwatched = f"with recorder.unwatched():\n    {code}\nos.utime('src/digits/other.py')"
    (project.folder / "src/digits/other.py").unlink()
    assert project.record(unwatched)["unknown"] == ["src/digits/other.py changed while the export ran"]


def test_a_link_to_an_input_is_an_input(project: Project, tmp_path: Path) -> None:
    project.write("data.bin", "contents")
    code = "import tempfile; at = tempfile.mktemp(); os.symlink(os.path.abspath('data.bin'), at); open(at).read()"
    assert project.record(code)["files"]["project/data.bin"] == sha256_bytes(b"contents")


FLIPS = {
    "latest/data.bin": "os.remove('latest'); os.symlink('v2', 'latest')",
    "link.bin": "os.remove('link.bin'); os.symlink('v2/data.bin', 'link.bin')",
    "folder/data.bin": "os.rename('folder', 'old'); os.rename('v2', 'folder')",
}
LOOKS = {
    "open": "open(path).read()",
    "size": "os.path.getsize(path)",
    "exists": "os.path.exists(os.path.join(os.path.dirname(path), 'new.json'))",
    "list": "os.listdir(os.path.dirname(path))",
}


@pytest.mark.parametrize("watched", ["library", "events"])
def test_what_is_exchanged_while_the_export_runs_is_not_known(project: Project, watched: str) -> None:
    """Each look at each path has a folder of its own."""
    if watched == "events":
        project.library = None
    looks, flips = {}, {}
    for number, (path, (name, look)) in enumerate(itertools.product(FLIPS, LOOKS.items())):
        if "dirname" in look and "/" not in path:
            continue
        own = f"{name}-{number}"
        project.write(f"{own}/v1/data.bin", "before")
        project.write(f"{own}/v2/data.bin", "and after")
        project.write(f"{own}/v2/new.json")
        os.symlink("v1", project.folder / own / "latest")
        os.symlink("v1/data.bin", project.folder / own / "link.bin")
        shutil.copytree(project.folder / own / "v1", project.folder / own / "folder")
        looks[own] = f"path = '{own}/{path}'; {look}"
        flips[own] = f"os.chdir('{own}'); {FLIPS[path]}; os.chdir('..')"
    assert len(looks) == 10
    before = project.record("\n".join(looks.values()))
    assert before["unknown"] == []
    exchanged = "\n".join(f"    {flip}" for flip in flips.values())
    unknown = project.record("\n".join([*looks.values(), "with recorder.unwatched():", exchanged]))["unknown"]
    assert {own for own in looks if any(reason.startswith(f"{own}/") for reason in unknown)} == set(looks)


def test_a_file_that_changes_on_a_server_whose_clock_is_behind_is_not_known(project: Project, tmp_path: Path) -> None:
    project.write("data.bin", "before")
    code = "open('data.bin').read()\nwith recorder.unwatched(): open('data.bin', 'w').write('after!')"
    hour = 3600 * 10**9
    inputs = project.record(code, ahead_ns=hour)  # as if the server's clock were an hour behind
    assert inputs["unknown"] == ["data.bin changed while the export ran"]
    assert project.record("open('data.bin').read()", ahead_ns=hour)["unknown"] == []


def test_an_input_that_is_given_one_more_name_is_known(project: Project) -> None:
    for name in ("data.bin", "other.bin"):
        project.write(name, "contents")
    code = """
        import subprocess, tempfile
        with tempfile.TemporaryDirectory() as folder:
            os.link('data.bin', folder + '/data.bin')
            open(folder + '/data.bin').read()
            if recorder._notes.log is not None:
                subprocess.run(['ln', 'other.bin', folder + '/other.bin'], check=True)
        open('data.bin').read()
    """
    inputs = project.record(code)
    assert inputs["unknown"] == []
    assert inputs["files"]["project/data.bin"] == sha256_bytes(b"contents")
    assert project.changes(inputs) == []
    written = project.record(code + "\n        open('data.bin', 'a').write('x')")
    assert written["unknown"] == ["data.bin changed while the export ran"]


TIMES = {
    "mtime": "max(['FOLDER/a.pt', 'FOLDER/b.pt'], key=os.path.getmtime)",
    "ctime": "max(['FOLDER/a.pt', 'FOLDER/b.pt'], key=os.path.getctime)",
    "pathlib": "import pathlib; max(pathlib.Path('FOLDER').iterdir(), key=lambda path: path.stat().st_mtime)",
    "scandir": "max(os.scandir('FOLDER'), key=lambda entry: entry.stat().st_mtime).path",
    "stat": "max(['FOLDER/a.pt', 'FOLDER/b.pt'], key=lambda path: os.stat(path).st_mtime_ns)",
    "fstat": "[os.fstat(file.fileno()).st_mtime for path in ['FOLDER/a.pt', 'FOLDER/b.pt'] for file in [open(path)]]",
    "filecmp": "import filecmp; filecmp.cmp('FOLDER/a.pt', 'FOLDER/b.pt')",
}
TIMES_OF_OTHERS = {
    "ls": "import subprocess; subprocess.run(['ls', '-t', 'FOLDER'], check=True)",
    "pool": "import multiprocessing as m\n"
    "m.get_context('fork').Pool(1).map(os.path.getmtime, ['FOLDER/a.pt', 'FOLDER/b.pt'])",
}
"""What another process asks for is not seen without the library, and the result is not used again."""
NO_TIMES = """
    import glob, inspect, linecache, pathlib, shutil, digits.model
    for path in sorted(glob.glob('ckpt/*')):
        os.path.exists(path), os.path.isfile(path), os.path.getsize(path), os.path.realpath(path)
        pathlib.Path(path).exists(), pathlib.Path(path).is_file(), pathlib.Path(path).resolve(), open(path).read()
    list(os.walk('ckpt')), inspect.getsource(digits.model), linecache.checkcache()
    """


@pytest.mark.parametrize("watched", ["library", "events"])
def test_the_time_of_a_file_is_an_input_of_who_asks_for_it(project: Project, watched: str) -> None:
    asked = {**TIMES, **TIMES_OF_OTHERS}
    if watched == "events":
        project.library, asked = None, TIMES
    files = [f"{folder}/{name}.pt" for folder in asked for name in "ab"]
    for file in files:
        project.write(file, "weights")
    before = project.record("\n".join(code.replace("FOLDER", folder) for folder, code in asked.items()))
    assert before["unknown"] == []
    folders = {f"project/{folder}" for folder in asked}
    assert before["times"].keys() - folders == {f"project/{file}" for file in files}
    assert project.changes(before) == []
    changed = []
    for folder in asked:
        os.utime(project.folder / folder / "a.pt")
        changed.append(f"the time of {folder}/a.pt")
        assert sorted(project.changes(before)) == sorted(changed)


@pytest.mark.parametrize("watched", ["library", "events"])
def test_the_time_of_a_file_is_no_input_of_who_asks_what_it_is(project: Project, watched: str) -> None:
    if watched == "events":
        project.library = None
    for name in ("a.pt", "b.pt"):
        project.write(f"ckpt/{name}", "weights")
    assert project.record(NO_TIMES)["times"] == {}


def test_declared_inputs_are_inputs_by_name_and_contents(project: Project) -> None:
    project.write("weights/a.bin", "a")
    before = project.record("pass", globs=("weights/*", "none/*"))
    assert before["files"]["project/weights/a.bin"] == sha256_bytes(b"a")
    assert sorted(before["globs"]) == ["none/*", "weights/*"]
    project.write("weights/b.bin", "b")
    after = project.record("pass", globs=("weights/*", "none/*"))
    assert after["globs"]["weights/*"] != before["globs"]["weights/*"]
    assert after["globs"]["none/*"] == before["globs"]["none/*"]


def test_commands_are_inputs(project: Project) -> None:
    inputs = project.record("import subprocess; subprocess.run(['cat'], stdin=subprocess.DEVNULL)", tools=("no-such",))
    assert inputs["tools"]["no-such"] == ""
    if project.library is not None:
        assert inputs["tools"]["cat"]


def test_where_things_are_matters_only_to_the_project_itself(project: Project, tmp_path: Path) -> None:
    helper = tmp_path / "elsewhere" / "helper.py"
    helper.parent.mkdir()
    helper.write_text(
        "import os\nos.environ.get('HOME'), os.environ.get('COLOUR'), os.environ.get('OMP_NUM_THREADS')\n"
    )
    path = f"sys.path.append({str(helper.parent)!r})"
    assert list(project.record(f"{path}; import helper; os.path.expanduser('~')", HOME="/h")["environment"]) == [
        "COLOUR"
    ]
    assert "HOME" in project.record("os.environ.get('HOME')", HOME="/h")["environment"]


def test_a_fixed_variable_that_was_passed_on_after_all_is_an_input(project: Project, tmp_path: Path) -> None:
    helper = tmp_path / "elsewhere" / "helper.py"
    helper.parent.mkdir()
    helper.write_text("import os\nos.environ.get('OMP_NUM_THREADS')\n")
    code = f"sys.path.append({str(helper.parent)!r}); import helper"
    assert project.record(code)["environment"] == {}
    assert project.record(code, OMP_NUM_THREADS="4")["environment"]["OMP_NUM_THREADS"]


def test_another_value_of_a_credential_is_noticed(project: Project) -> None:
    inputs = project.record("os.environ['MODEL_KEY_DIM']", MODEL_KEY_DIM="3")
    assert project.changes(inputs, MODEL_KEY_DIM="3") == []
    assert project.changes(inputs, MODEL_KEY_DIM="4") == ["variable MODEL_KEY_DIM"]


@pytest.mark.parametrize(
    ("code", "read"),
    [
        ("importlib.metadata.version('Digits')", True),
        ("[each.metadata['Version'] for each in importlib.metadata.distributions()]", True),
        ("importlib.metadata.entry_points()", False),
        ("importlib.metadata.packages_distributions()", False),
    ],
)
def test_metadata_of_the_project_is_an_input_if_it_was_read(project: Project, code: str, read: bool) -> None:
    inputs = project.record(f"import importlib.metadata; {code}")
    assert project.changes(inputs) == []
    project.metadata += "License: MIT\n"
    assert project.changes(inputs) == (["digits 1.0: other files or metadata"] if read else [])


def test_a_library_that_comes_where_the_loader_looks_first_is_noticed(project: Project, tmp_path: Path) -> None:
    folder = tmp_path / "libraries"
    folder.mkdir()
    variables = {"LD_LIBRARY_PATH": f"{tmp_path / 'missing'}:{folder}"}
    inputs = project.record("pass", **variables)
    assert inputs["unknown"] == project.changes(inputs) == []
    (folder / "libm.so.6").touch()
    assert len(project.changes(inputs)) == 1


@pytest.mark.parametrize(
    "code",
    ["{name.lower(): value for name, value in os.environ.items()}", "os.environ.copy()", "os.system('true')"],
)
def test_whoever_takes_all_variables_reads_each(project: Project, tmp_path: Path, code: str) -> None:
    """`pydantic-settings` does; a library stands for it."""
    helper = tmp_path / "elsewhere" / "helper.py"
    helper.parent.mkdir()
    helper.write_text(f"import os\n{code}\n")
    inputs = project.record(f"sys.path.append({str(helper.parent)!r}); import helper", COLOUR="red", USER="me")
    assert project.changes(inputs) == []
    for name, said in (("COLOUR", ""), ("USER", ""), ("SHAPE", " is set now"), ("CC", " is set now")):
        assert project.changes(inputs, **{name: "other"}) == [f"variable {name}{said}"]
    elsewhere = {"HOME": "/h", "PATH": "/bin", "TMPDIR": "/t", "PYTHONPATH": "/p", "HATCH_LOWER_CACHE": "frozen"}
    assert project.changes(inputs, **elsewhere) == []


def test_a_module_that_takes_all_variables_of_one_beginning_reads_those(project: Project, tmp_path: Path) -> None:
    helper = tmp_path / "elsewhere" / "tqdm" / "utils.py"
    helper.parent.mkdir(parents=True)
    helper.write_text("import os\ntaken = {name for name in os.environ.items() if name[0].startswith('TQDM_')}\n")
    code = f"sys.path.insert(0, {str(helper.parents[1])!r}); import tqdm.utils"
    inputs = project.record(code, TQDM_ASCII="1", COLOUR="red")
    assert project.changes(inputs, COLOUR="blue", SHAPE="round") == []
    assert project.changes(inputs, TQDM_ASCII="0") == ["variable TQDM_ASCII"]
    assert project.changes(inputs, TQDM_DISABLE="1") == ["variable TQDM_DISABLE is set now"]


@pytest.mark.torch
def test_variables_that_the_standard_library_and_hubs_read_are_inputs(project: Project) -> None:
    pytest.importorskip("huggingface_hub")
    code = "import getpass, torch, huggingface_hub.constants; getpass.getuser(); torch.hub.get_dir()"
    names = ("LOGNAME", "XDG_CACHE_HOME", "TORCH_HOME", "HF_HOME")
    inputs = project.record(code, **dict.fromkeys(names, "/one"))
    assert project.changes(inputs) == []
    assert [project.changes(inputs, **{name: "/other"}) for name in names] == [[f"variable {name}"] for name in names]


@pytest.mark.torch
def test_the_inputs_of_an_export_with_torch_are_few_and_no_variable_that_is_set(project: Project) -> None:
    """A shared record names no variable that is set."""
    code = """
        import torch
        from hatch_lower.exir.lowering.process_state import process_restored
        recorder.wrap_torch()
        with process_restored():
            torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),))
        """
    inputs = project.record(code, USER="me", LOGNAME="me", SHELL="sh", COLOUR="red")
    assert {name for name, mark in inputs["environment"].items() if mark} == set()
    imported = {"NETWORKX_*"} | ({"TQDM_*"} if importlib.util.find_spec("tqdm") else set())  # torch needs no tqdm
    assert imported <= inputs["environment"].keys()
    assert inputs["unknown"] == []
    assert "torch" in inputs["distributions"]
    assert len(text_of(inputs)) < 100_000
    assert text_of(project.record()) == text_of(inputs)
