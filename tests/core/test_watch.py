"""Every reader that an export can use is seen, with the preloaded library and without it."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.recorded import Project

from hatch_lower.driver.inputs.preload import built_library
from hatch_lower.driver.inputs.strict import PausingReporter
from hatch_lower.events import Event

pytestmark = pytest.mark.processes


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = built_library(tmp_path_factory.mktemp("cache"))
    if found is None:
        pytest.skip("there is no C compiler, or no GNU C library")
    return found


@pytest.fixture
def project(tmp_path: Path, library: Path) -> Project:
    return Project(tmp_path / "project", library)


@pytest.fixture
def unaided(tmp_path: Path) -> Project:
    """A project that is recorded without the preloaded library."""
    return Project(tmp_path / "project", None)


@pytest.fixture(params=["preloaded", "unaided"])
def either(request: pytest.FixtureRequest, tmp_path: Path) -> Project:
    preloaded = request.param == "preloaded"
    return Project(tmp_path / "project", request.getfixturevalue("library") if preloaded else None)


READERS = {
    "open": "open('FILE', 'rb').read()",
    "bytes": "open(b'FILE', 'rb').read()",
    "pathlib": "from pathlib import Path; Path('FILE').read_bytes()",
    "os": "os.close(os.open('FILE', os.O_RDONLY))",
    "both": "open('FILE', 'r+b').read()",
    "relative": "os.chdir('src'); open('../FILE', 'rb').read(); os.chdir('..')",
    "map": "import mmap; f = open('FILE', 'rb'); mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)[0]",
    "resource": "import importlib.resources as r; (r.files('digits') / '../../FILE').read_bytes()",
    "exec": "exec(compile(open('FILE').read(), 'FILE', 'exec'))",
    "runpy": "import runpy; runpy.run_path('FILE')",
    "copy": "import shutil, tempfile; shutil.copyfile('FILE', tempfile.mktemp())",
    "thread": "import threading; t = threading.Thread(target=lambda: open('FILE').read()); t.start(); t.join()",
}


def test_a_file_that_is_read_is_an_input(either: Project) -> None:
    for name in READERS:
        either.write(name, "x = 1\n")
    inputs = either.record("\n".join(code.replace("FILE", name) for name, code in READERS.items()))
    assert {f"project/{name}" for name in READERS} - set(inputs["files"]) == set()
    assert inputs["unknown"] == []


def test_a_pipe_is_no_input(either: Project) -> None:
    inputs = either.record("a, b = os.pipe(); os.close(b); open(a, 'rb').read()")
    assert [path for path in inputs["absent"] if "pipe:" in path] == []


NATIVE_READERS = {
    "subprocess": "import subprocess; subprocess.run(['cat', 'FILE'], check=True, stdout=subprocess.DEVNULL)",
    "a-shell": "os.system('cat FILE > /dev/null')",
    "fopen": "import ctypes; assert ctypes.CDLL(None).fopen(b'FILE', b'r')",
    "fork": "pid = os.fork() or (open('FILE').read(), os._exit(0)); os.waitpid(pid, 0)",
}


def test_a_file_that_native_code_or_another_process_reads_is_an_input(project: Project) -> None:
    for name in NATIVE_READERS:
        project.write(name, "x = 1\n")
    inputs = project.record("\n".join(code.replace("FILE", name) for name, code in NATIVE_READERS.items()))
    assert {f"project/{name}" for name in NATIVE_READERS} - set(inputs["files"]) == set()
    assert inputs["unknown"] == []


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import subprocess; subprocess.run(['cat', 'data.bin'])", "a subprocess ran: cat"),
        ("os.system('cat data.bin')", "a subprocess ran: sh"),
        ("os.waitpid(os.fork() or os._exit(0), 0)", "a subprocess ran: a fork of the build's process"),
        ("os.waitpid(os.posix_spawn('/bin/cat', ['cat', 'data.bin'], os.environ), 0)", "a subprocess ran: cat"),
    ],
)
def test_without_the_library_a_subprocess_is_a_reason_to_doubt(unaided: Project, code: str, reason: str) -> None:
    unaided.write("data.bin", "x = 1\n")
    assert unaided.record(code)["unknown"] == [reason]


def test_a_pool_of_processes_is_noticed_without_the_library(unaided: Project) -> None:
    code = """
        import multiprocessing
        from multiprocessing import resource_tracker
        resource_tracker.ensure_running()
    """
    (reason,) = unaided.record(code)["unknown"]
    assert reason.startswith("a subprocess ran: python")


def test_a_subprocess_with_an_environment_of_its_own_is_a_reason_to_doubt(project: Project) -> None:
    code = "import subprocess; subprocess.run(['cat', 'data.bin'], env={'PATH': os.environ['PATH']})"
    project.write("data.bin")
    assert any("cat" in reason for reason in project.record(code)["unknown"])


def test_a_database_is_an_input(either: Project) -> None:
    import sqlite3

    with sqlite3.connect(either.write("x.db")) as connection:
        connection.execute("create table t (a)")
    connection.close()
    inputs = either.record("import sqlite3; print(sqlite3.connect('x.db').execute('select * from t').fetchall())")
    assert "project/x.db" in inputs["files"]
    assert inputs["unknown"] == []


def test_a_native_library_that_is_loaded_is_an_input(either: Project) -> None:
    import _ctypes
    import shutil

    shutil.copyfile(_ctypes.__file__, either.write("native.so"))
    inputs = either.record("import ctypes; ctypes.CDLL(os.path.abspath('native.so'))")
    assert "project/native.so" in inputs["files"]


WEIGHTS = {
    "open": "from safetensors import safe_open\nwith safe_open('FILE', 'pt') as file: file.get_tensor('a')",
    "named": "import safetensors\nwith safetensors.safe_open(filename='FILE', framework='pt') as file: file.keys()",
    "torch": "from safetensors.torch import load_file; load_file('FILE')",
    "numpy": "from safetensors.numpy import load_file; load_file('FILE')",
    "from_file": "import torch; recorder.wrap_torch(); torch.from_file('FILE', size=4, dtype=torch.uint8)",
    "storage": "import torch; torch.UntypedStorage.from_file('FILE', False, 4)",
    "mapped": "import torch; recorder.wrap_torch(); torch.load('FILE', mmap=True)['a'].sum()",
}


@pytest.mark.torch
def test_weights_that_native_code_or_torch_maps_are_inputs(either: Project) -> None:
    import torch
    from safetensors.torch import save

    for name in WEIGHTS:
        either.write(name, save({"a": torch.ones(2)}))
    torch.save({"a": torch.ones(2)}, either.folder / "mapped")
    inputs = either.record("\n".join(code.replace("FILE", name) for name, code in WEIGHTS.items()))
    assert {f"project/{name}" for name in WEIGHTS} - set(inputs["files"]) == set()
    assert inputs["unknown"] == []


def test_the_stand_in_for_safe_open_is_still_its_class(unaided: Project) -> None:
    unaided.write("w.safetensors", (8).to_bytes(8, "little") + b"{}      ")
    unaided.record(
        """
        from safetensors import safe_open
        file = safe_open('w.safetensors', 'np')
        assert isinstance(file, safe_open) and safe_open.__name__ == 'safe_open'
        recorder.stop()
        import safetensors
        assert safetensors.safe_open is type(file)
        """
    )


def test_modules_are_inputs(either: Project) -> None:
    either.write("src/digits/layers.py", "x = 1\n")
    either.write("src/digits/extra/deep.py", "x = 1\n")  # a namespace package
    inputs = either.record("import digits.layers, digits.extra.deep; sys.modules.pop('digits.layers')")
    assert {"project/src/digits/model.py", "project/src/digits/extra/deep.py"} <= set(inputs["files"])
    assert "project/src/digits/layers.py" in inputs["files"]
    assert inputs["modules"]["digits"] == "project/src/digits"
    assert not any("__pycache__" in path for path in inputs["files"])


def test_a_module_that_is_not_there_is_an_input(either: Project) -> None:
    inputs = either.record(
        """
        import importlib, importlib.util
        try: import missing_one
        except ImportError: pass
        try: importlib.import_module('missing_two')
        except ImportError: pass
        importlib.util.find_spec('missing_three')
        """
    )
    assert {inputs["modules"][f"missing_{each}"] for each in ("one", "two", "three")} == {""}


def test_a_distribution_that_is_asked_for_by_name_is_an_input(either: Project) -> None:
    inputs = either.record(
        """
        import importlib.metadata
        importlib.metadata.version('platformdirs')
        try: importlib.metadata.version('No.Such_Thing')
        except importlib.metadata.PackageNotFoundError: pass
        """
    )
    assert inputs["distributions"]["platformdirs"].partition(" ")[2]
    assert inputs["distributions"]["no-such-thing"] == ""


LISTERS = {
    "listdir": "os.listdir('FOLDER')",
    "bytes": "os.listdir(b'FOLDER')",
    "scandir": "list(os.scandir('FOLDER'))",
    "walk": "list(os.walk('FOLDER'))",
    "glob": "import glob; glob.glob('FOLDER/*.txt')",
    "pathlib": "from pathlib import Path; list(Path('FOLDER').glob('*.txt'))",
    "descriptor": "handle = os.open('FOLDER', os.O_RDONLY); os.listdir(handle)",
    "here": "os.chdir('FOLDER'); os.listdir(); os.chdir('..')",
}


def test_a_folder_that_is_listed_is_an_input(either: Project) -> None:
    for name in LISTERS:
        either.write(f"{name}/a.txt")
    inputs = either.record("\n".join(code.replace("FOLDER", name) for name, code in LISTERS.items()))
    assert set(inputs["listings"]) == {f"project/{name}" for name in LISTERS}
    assert inputs["unknown"] == []


def test_a_folder_that_another_process_lists_is_an_input(project: Project) -> None:
    project.write("data/a.txt")
    assert "project/data" in project.record("os.system('ls data > /dev/null')")["listings"]


def test_a_folder_of_modules_that_another_process_lists_is_an_input_whole(project: Project) -> None:
    inputs = project.record("os.system('ls src/digits > /dev/null')")
    assert "project/src/digits" in inputs["listings"]
    assert "project/src/digits" not in project.record("pass")["listings"]


LOOKS = {
    "exists": "assert os.path.exists('PATH') and not os.path.exists('no-PATH')",
    "is_file": "from pathlib import Path; assert Path('PATH').is_file() and not Path('no-PATH').exists()",
    "access": "assert os.access('PATH', os.R_OK) and not os.access('no-PATH', os.R_OK)",
    "size": "os.path.getsize('PATH'); os.path.lexists('no-PATH')",
}


def test_a_look_is_an_input(either: Project) -> None:
    for name in LOOKS:
        either.write(name, "12345")
    inputs = either.record("\n".join(code.replace("PATH", name) for name, code in LOOKS.items()))
    assert {inputs["looks"].get(f"project/{name}") for name in LOOKS} == {"file 5"}
    assert {f"project/no-{name}" for name in LOOKS} - set(inputs["absent"]) == set()


def test_a_file_that_could_not_be_opened_is_an_input(either: Project) -> None:
    inputs = either.record("try: open('missing')\nexcept OSError: pass")
    assert "project/missing" in inputs["absent"]


def test_a_file_that_was_only_looked_at_in_native_code_is_an_input(project: Project) -> None:
    project.write("there", "12345")
    inputs = project.record("import ctypes; assert ctypes.CDLL(None).access(b'there', 0) == 0")
    assert inputs["looks"]["project/there"] == "file 5"


NAMED = {
    "ITEM": "assert os.environ['ITEM'] == 'red'",
    "GET": "assert os.environ.get('GET') == 'red'",
    "IN": "assert 'IN' in os.environ",
    "GETENV": "assert os.getenv('GETENV') == 'red'",
    "BYTES": "assert os.getenvb(b'BYTES') == b'red'",
    "POP": "os.environ.pop('POP')",
    "DEFAULT": "os.environ.setdefault('DEFAULT', 'blue')",
}


def test_a_variable_that_is_read_is_an_input(either: Project) -> None:
    variables = dict.fromkeys([*NAMED, "UNREAD"], "red")
    environment = either.record("\n".join(NAMED.values()), **variables)["environment"]
    assert set(environment) == set(NAMED)
    assert not {"", "red"} & set(environment.values())


def test_a_variable_that_is_not_set_is_an_input(either: Project) -> None:
    assert either.record("os.environ.get('COLOUR')")["environment"]["COLOUR"] == ""


def test_a_variable_that_native_code_reads_is_an_input(project: Project) -> None:
    code = "import ctypes; ctypes.CDLL(None).getenv(b'COLOUR')"
    assert project.record(code, COLOUR="red")["environment"]["COLOUR"]


COPIES = {
    "dict": "dict(os.environ)",
    "copy": "os.environ.copy()",
    "unpacking": "{**os.environ}",
    "items": "{k: v for k, v in os.environ.items()}",
    "names": "sorted(os.environ)",
    "text": "repr(os.environ)",
    "union": "os.environ | {}",
}


FAILING = {
    "link": "os.link('other.bin', 'link')",
    "nothing": "os.rename('nothing.bin', 'nothing')",
    "elsewhere": "os.rename('/dev/shm/FILE', 'elsewhere')",
    "folder": "os.mkdir('folder')",
}


def test_a_file_that_could_not_be_written_is_an_input(project: Project) -> None:
    for name in (*FAILING, "other.bin"):
        project.write(name, "1")
    elsewhere = Path("/dev/shm") / f"hatch-lower-{project.folder.parent.name}"
    elsewhere.touch()
    calls = {name: call.replace("FILE", elsewhere.name) for name, call in FAILING.items()}
    try:
        inputs = project.record(
            "\n".join(f"try: {call}\nexcept OSError: open('{name}').read()" for name, call in calls.items())
        )
    finally:
        elsewhere.unlink()
    assert {f"project/{name}" for name in FAILING} - set(inputs["files"]) == set()


def test_a_file_is_an_input_where_a_program_took_the_library_out(project: Project) -> None:
    project.write("data.bin", "1")
    inputs = project.record("open('data.bin').read()", through=("env", "-u", "LD_PRELOAD"))
    assert "project/data.bin" in inputs["files"]


def test_a_file_that_could_not_be_linked_to_is_an_input(either: Project) -> None:
    either.write("data.bin", "1")
    either.write("other.bin")
    inputs = either.record("try:\n    os.link('other.bin', 'data.bin')\nexcept OSError:\n    open('data.bin').read()")
    assert "project/data.bin" in inputs["files"]
    assert inputs["unknown"] == [] or either.library is None


def test_a_file_that_is_made_because_it_is_not_there_is_known_to_be_absent(either: Project) -> None:
    inputs = either.record("try:\n    open('made')\nexcept OSError:\n    open('made', 'w').close()\nopen('made')")
    assert "project/made" in inputs["absent"]
    assert "project/made" not in inputs["files"]
    assert inputs["unknown"] == []


def test_a_look_at_what_the_export_made_is_no_input(either: Project) -> None:
    inputs = either.record("open('made', 'w').close()\nos.stat('made')\nos.remove('made')")
    assert "project/made" not in inputs["absent"]
    assert inputs["unknown"] == []


def test_what_was_there_and_is_removed_is_a_reason_to_doubt(either: Project) -> None:
    either.write("data.bin", "1")
    inputs = either.record("os.path.exists('data.bin')\nopen('data.bin', 'w').close()\nos.remove('data.bin')")
    assert "project/data.bin" not in inputs["absent"]
    assert inputs["unknown"] != []


def test_what_is_removed_where_nothing_is_gives_no_reason_to_doubt(either: Project) -> None:
    inputs = either.record("from pathlib import Path\nos.path.exists('x')\nPath('x').unlink(missing_ok=True)")
    assert "project/x" in inputs["absent"]
    assert inputs["unknown"] == []


TIMES = {
    "beside": "folder = os.open('.', os.O_RDONLY)\nos.stat('beside', dir_fd=folder)",
    "by-name": "os.stat(follow_symlinks=True, path='by-name')",
}


def test_a_time_that_is_asked_for_is_an_input(either: Project) -> None:
    for name in TIMES:
        either.write(name, "1")
    assert {f"project/{name}" for name in TIMES} - set(either.record("\n".join(TIMES.values()))["times"]) == set()


@pytest.mark.parametrize("code", COPIES.values(), ids=COPIES)
def test_whoever_takes_all_variables_reads_all_if_it_is_the_project(unaided: Project, code: str) -> None:
    assert {"COLOUR", "HOME"} <= set(unaided.record(code, COLOUR="red", HOME="/h")["environment"])


def test_code_of_an_environment_in_the_project_is_not_the_projects_own(unaided: Project) -> None:
    site = unaided.folder / ".venv" / "lib" / "site-packages"
    unaided.write(".venv/lib/site-packages/helper.py", "import os\nos.environ.get('HOME'), dict(os.environ)\n")
    environment = unaided.record("import helper", site=site, HOME="/h", COLOUR="red")["environment"]
    assert "HOME" not in environment
    assert environment["COLOUR"]


CLOCKS = {
    "time.time()": "time.time",
    "time.localtime()": "time.localtime",
    "uuid.uuid4()": "random numbers of the system",
    "secrets.token_hex()": "random numbers of the system",
    "numpy.random.default_rng()": "random numbers of the system",
}
NO_CLOCKS = ("time.localtime(0)", "time.perf_counter()", "logging.error('x')", "tempfile.mkdtemp()", "uuid.UUID(int=1)")


def test_who_asks_for_the_time_or_for_random_numbers_of_the_system_is_known(unaided: Project) -> None:
    lines = "".join(f"        {code}\n" for code in [*CLOCKS, *NO_CLOCKS, "numpy.random.default_rng(0)"])
    code = f"""
        import logging, numpy, secrets, tempfile, time, uuid
{lines}
        with recorder.unwatched(): time.time()
        recorder.stop()
        time.time()
        assert type(time.time).__name__ == 'builtin_function_or_method'
        open('clocks', 'w').write('\\n'.join(recorder.clocks))
        """
    unaided.record(code)
    found = (unaided.folder / "clocks").read_text().splitlines()
    assert found == [f"src/digits/model.py:{number} {what}" for number, what in enumerate(CLOCKS.values(), 6)]


PAST = {
    "open": "ctypes.CDLL('libc.so.6').open(b'data.bin', os.O_RDONLY)",
    "getenv": "ctypes.CDLL('libm.so.6').getenv(b'COLOUR')",
    "fopen": "_ctypes.dlsym(ctypes.CDLL('libc.so.6')._handle, 'fopen')",
    "environ": "ctypes.c_void_p.in_dll(ctypes.CDLL(None), 'environ')",
    "syscall": "ctypes.CDLL(None).syscall(39)",
}


def test_the_c_library_past_the_preloaded_one_is_a_reason_to_doubt(project: Project) -> None:
    unknown = project.record("\n".join(["import _ctypes, ctypes", *PAST.values()]))["unknown"]
    assert sorted(unknown) == sorted(f"the C library was called past the recording: {name}" for name in PAST)


def test_without_the_library_any_function_of_the_c_library_is_a_reason_to_doubt(unaided: Project) -> None:
    unknown = unaided.record("import ctypes; ctypes.CDLL(None).getenv(b'COLOUR')")["unknown"]
    assert unknown == ["the C library was called past the recording: getenv"]


def test_asking_for_libraries_that_are_loaded_is_no_reason_to_doubt(either: Project) -> None:
    assert either.record("import ctypes; ctypes.CDLL('libdl.so.2').dlerror")["unknown"] == []


def test_what_reads_nothing_is_no_reason_to_doubt(project: Project) -> None:
    functions = "CDLL('libc.so.6').strlen(b'a'), CDLL(None).getenv(b'A'), pythonapi.PyErr_Print"
    assert project.record(f"from ctypes import CDLL, pythonapi; {functions}")["unknown"] == []


TRACED = {
    "GET": "os.environ.get('GET', '1')",
    "ITEM": "os.environ['ITEM']",
    "IN": "'IN' in os.environ",
    "GETENV": "os.getenv('GETENV')",
    "HOME": "os.environ['HOME']",
}


@pytest.mark.torch
def test_what_a_strict_export_follows_may_read_variables(unaided: Project) -> None:
    """Dynamo follows the code of `forward`, and of what it calls."""
    lines = "".join(f"        read.append(len(str({code})))\n" for code in [*TRACED.values(), *COPIES.values()])
    unaided.write(
        "src/digits/net.py",
        "import os\nimport torch\n\n\nclass Net(torch.nn.Module):\n    def forward(self, x):\n"
        f"        read = []\n{lines}        return x * sum(read)\n",
    )
    code = """
        import torch
        from digits.net import Net
        program = torch.export.export(Net(), (torch.ones(1),), strict=True)
        assert program.module()(torch.ones(1)) > 0
        """
    environment = unaided.record(code, **dict.fromkeys(TRACED, "red"), UNREAD="red")["environment"]
    assert all(environment[name] for name in (*TRACED, "UNREAD"))
    assert "*" in environment


def test_the_environment_can_be_copied_deeply(unaided: Project) -> None:
    unaided.record("import copy; assert copy.deepcopy(os.environ)['COLOUR'] == 'red'", COLOUR="red")


def test_what_was_looked_at_before_the_start_is_an_input_if_it_is_looked_at_again(project: Project) -> None:
    for name in ("looked", "opened", "listed/a.txt", "unread"):
        project.write(name, "12345")
    # a `.pth` file or `sitecustomize` runs before the recorder starts
    project.write(
        "before/sitecustomize.py",
        f"""
import ctypes, os
os.chdir({str(project.folder)!r})
libc = ctypes.CDLL(None)
def look():
    libc.access(b'looked', 0), libc.access(b'missing', 0), libc.getenv(b'COLOUR')
    libc.open(b'opened', os.O_RDONLY), libc.opendir(b'listed')
look()
libc.open(b'unread', os.O_RDONLY)
""",
    )
    inputs = project.record("import sitecustomize; sitecustomize.look()", site=project.folder / "before", COLOUR="red")
    assert inputs["looks"].get("project/looked") == "file 5"
    assert "project/missing" in inputs["absent"]
    assert "project/opened" in inputs["files"]
    assert "project/listed" in inputs["listings"]
    assert inputs["environment"]["COLOUR"]
    assert "project/unread" not in inputs["files"]
    assert inputs["unknown"] == []


def test_a_variable_that_was_read_before_the_start_and_then_set_is_none(project: Project) -> None:
    project.write("before/sitecustomize.py", "import ctypes; ctypes.CDLL(None).getenv(b'COLOUR')\n")
    code = "import ctypes; os.environ['COLOUR'] = 'blue'; ctypes.CDLL(None).getenv(b'COLOUR')"
    assert "COLOUR" not in project.record(code, site=project.folder / "before", COLOUR="red")["environment"]


UNWATCHED = {
    "native": "import ctypes; ctypes.CDLL(None).open(b'native', os.O_RDONLY)",
    "safetensors": "import safetensors; safetensors.safe_open('safetensors', 'np')",
    "python": "open('python', 'rb').read()",
}


def test_what_was_read_unwatched_is_an_input_if_it_is_read_again(project: Project) -> None:
    for name in UNWATCHED:
        project.write(name, (8).to_bytes(8, "little") + b"{}      ")
    paths = {f"project/{name}" for name in UNWATCHED}
    within = "\n".join(["with recorder.unwatched():", *(f"    {code}" for code in UNWATCHED.values())])
    assert not paths & set(project.record(within)["files"])
    assert paths - set(project.record("\n".join([within, *UNWATCHED.values()]))["files"]) == set()


def test_what_another_thread_reads_while_the_recorder_itself_looks_is_an_input(either: Project) -> None:
    for name in ("plain", "native", "own"):
        either.write(name)
    inputs = either.record(
        """
        import ctypes, threading
        libc = ctypes.CDLL(None)
        def read():
            open('plain').read(), os.listdir('src')
            libc.open(b'native', os.O_RDONLY)
        with recorder._notes.silent():
            open('own').read(), libc.open(b'own', os.O_RDONLY)
            thread = threading.Thread(target=read)
            thread.start(), thread.join()
        """
    )
    assert "project/plain" in inputs["files"]
    assert ("project/native" in inputs["files"]) == (either.library is not None)
    assert "project/own" not in inputs["files"]
    assert "project/src" in inputs["listings"]


def test_no_thread_is_watched_while_nothing_is(either: Project) -> None:
    either.write("data.bin")
    inputs = either.record(
        """
        import ctypes, threading
        def read(): open('data.bin').read(), ctypes.CDLL(None).open(b'data.bin', os.O_RDONLY)
        with recorder.unwatched():
            thread = threading.Thread(target=read)
            thread.start(), thread.join()
        """
    )
    assert "project/data.bin" not in inputs["files"]


def test_what_native_code_makes_unwatched_is_no_input(project: Project) -> None:
    inputs = project.record(
        """
        import ctypes
        libc = ctypes.CDLL(None)
        with recorder.unwatched():
            file = libc.open(b'made.bin', os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            assert os.write(file, b'1') == 1
        assert open('made.bin').read() == '1'
        libc.open(b'made.bin', os.O_RDONLY)
        """
    )
    assert "project/made.bin" not in inputs["files"]
    assert inputs["unknown"] == []


def test_nothing_is_noted_after_the_end(either: Project) -> None:
    either.write("data.bin")
    looks = "open('data.bin').read(), os.path.exists('missing'), os.listdir('.'), os.system('cat data.bin')"
    inputs = either.record(f"recorder.stop(); {looks}")
    assert "project/data.bin" not in inputs["files"]
    assert "project/missing" not in inputs["absent"]
    assert inputs["listings"] == {}


def test_a_process_that_is_started_may_read_all_variables(project: Project) -> None:
    environment = project.record("os.system('true')", COLOUR="red")["environment"]
    assert environment["COLOUR"]
    assert "HOME" not in environment


def test_a_variable_that_the_process_sets_itself_is_none(either: Project) -> None:
    inputs = either.record("os.environ['COLOUR'] = 'blue'; os.environ['COLOUR']; os.getenv('COLOUR')", COLOUR="red")
    assert "COLOUR" not in inputs["environment"]


def test_a_variable_is_an_input_if_native_code_read_it_before_the_process_set_it(project: Project) -> None:
    first = "import ctypes; get = ctypes.CDLL(None).getenv; get(b'COLOUR'); os.environ['COLOUR'] = 'blue'"
    assert project.record(first, COLOUR="red")["environment"]["COLOUR"]
    later = "import ctypes; get = ctypes.CDLL(None).getenv; os.environ['COLOUR'] = 'blue'; get(b'COLOUR')"
    assert "COLOUR" not in project.record(later, COLOUR="red")["environment"]


NETWORK = """
    import socket, urllib.request
    socket.socket().connect_ex(('127.0.0.1', 9))
    socket.getaddrinfo('localhost', 80)
    socket.gethostname()
    try: urllib.request.urlopen('http://example.invalid/x')
    except OSError: pass
    """


def test_the_network_is_a_single_reason_to_doubt(either: Project) -> None:
    name, network = either.record(NETWORK)["unknown"]
    assert name == "the machine's name was asked for"
    uses = set(network.removeprefix("the network was used: ").split(", "))
    # only the audit hook knows the port
    assert {use.removesuffix(":9") for use in uses} >= {"127.0.0.1", "localhost", "example.invalid"}
    assert not {"127.0.0.1", "127.0.0.1:9"} <= uses


def test_a_reason_to_doubt_in_a_fork_is_known(project: Project) -> None:
    code = "import socket; pid = os.fork() or (socket.gethostname(), os._exit(0)); os.waitpid(pid, 0)"
    assert project.record(code)["unknown"] == ["the machine's name was asked for"]


def test_a_socket_of_another_process_is_a_reason_to_doubt(either: Project, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "door"))
        server.listen()
        reached = f"socket.socket(socket.AF_UNIX).connect({str(tmp_path / 'door')!r})"
        assert either.record(f"import socket; {reached}")["unknown"] == [f"the network was used: {tmp_path / 'door'}"]


def test_a_socket_of_the_export_itself_is_no_reason_to_doubt(either: Project) -> None:
    code = """
        import socket
        server = socket.socket(socket.AF_UNIX)
        server.bind('door'), server.listen()
        socket.socket(socket.AF_UNIX).connect('door')
        os.remove('door')
        """
    assert either.record(code)["unknown"] == []


def test_a_socket_of_a_worker_is_no_reason_to_doubt(project: Project) -> None:
    code = """
        import multiprocessing.managers
        fork = multiprocessing.get_context('fork')
        with multiprocessing.managers.SyncManager('door', ctx=fork) as manager:
            assert list(manager.list([1])) == [1]
        """
    assert project.record(code)["unknown"] == []


def test_a_socket_that_is_only_made_is_no_reason_to_doubt(either: Project) -> None:
    assert either.record("import socket; socket.socket().close(); socket.socketpair()")["unknown"] == []


def test_what_others_preload_stays_while_nothing_is_watched(either: Project) -> None:
    code = """
        with recorder.unwatched():
            assert os.environ.get('LD_PRELOAD') == 'libm.so.6', os.environ.get('LD_PRELOAD')
            assert 'HATCH_LOWER_RECORD' not in os.environ
        assert os.environ['LD_PRELOAD'].endswith('libm.so.6')
        """
    either.record(code, LD_PRELOAD="libm.so.6")


def test_what_a_shared_cache_reads_is_no_input(either: Project) -> None:
    either.write("entry.json")
    inputs = either.record(
        """
        from hatch_lower.driver.inputs.strict import PausingRemote

        class Remote:
            def fetch(self, key, keep):
                return open('entry.json').read(), os.path.exists('missing'), os.environ.get('COLOUR')

            def offer(self, key, record, blobs):
                open('pushed.json', 'a').close(), os.listdir('.')

        remote = PausingRemote(Remote(), recorder)
        assert remote.fetch('key', None) == ('', False, None)
        remote.offer('key', {}, {})
        """
    )
    assert not {"project/entry.json", "project/pushed.json"} & inputs["files"].keys()
    assert "project/missing" not in inputs["absent"]
    assert inputs["listings"] == {}
    assert "COLOUR" not in inputs["environment"]


def test_what_is_unwatched_is_not_recorded(either: Project) -> None:
    either.write("data.bin", "x = 1\n")
    inputs = either.record(
        """
        import subprocess
        with recorder.unwatched():
            open('data.bin').read(), os.environ.get('COLOUR'), os.listdir('.'), os.path.exists('missing')
            subprocess.run(['cat', 'data.bin'], check=True)
            open('made.bin', 'w').write('1')
            assert 'LD_PRELOAD' not in os.environ
        assert ('LD_PRELOAD' in os.environ) == (recorder._notes.log is not None)
        open('made.bin').read()
        open('src/digits/__init__.py').read()
        """
    )
    assert sorted(inputs["files"]) == [each for each in sorted(inputs["files"]) if "bin" not in each]
    assert "project/src/digits/__init__.py" in inputs["files"]
    assert "project/missing" not in inputs["absent"]
    assert inputs["listings"] == {}
    assert "COLOUR" not in inputs["environment"]
    assert inputs["unknown"] == []


def test_no_notes_are_taken_from_a_stage_of_the_backends_until_another_stage_starts() -> None:
    class StandIn:
        notes = True

        @contextlib.contextmanager
        def unwatched(self) -> Iterator[None]:
            self.notes = False
            yield
            self.notes = True

        def report(self, event: Event) -> None:
            taken.append(self.notes)

    taken: list[bool] = []
    stand_in: Any = StandIn()
    reporter = PausingReporter(stand_in, stand_in)
    for name in ("export", "compile", "decompose", "compare"):
        for state in ("start", "end"):
            reporter.report(Event(name, state, "digits"))
        taken.append(stand_in.notes)  # a backend may be asked here
    assert taken == [True] * 3 + [False] * 3 + [True] * 3 + [False] * 3
