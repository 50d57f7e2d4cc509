"""The preloaded library: whatever reads, and however, is in its log; and it changes nothing that a program sees."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from hatch_lower.driver.inputs.log import Kind, Observed, is_static, read_log, unrecorded_programs
from hatch_lower.driver.inputs.preload import (
    SOURCE,
    UNFINISHED,
    RecordingSwitch,
    built_library,
    find_c_compiler,
    preload_environment,
)

pytestmark = pytest.mark.processes

PLAIN = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if sys.platform != "linux" or "glibc" not in (os.confstr("CS_GNU_LIBC_VERSION") or ""):
        pytest.skip("only for the GNU C library on Linux")
    if find_c_compiler(os.environ) is None:
        pytest.skip("there is no C compiler")
    built = built_library(tmp_path_factory.mktemp("cache"))
    assert built is not None
    return built


Watch = Callable[..., Observed]


@pytest.fixture
def watch(library: Path, tmp_path: Path) -> Watch:
    """Return what runs Python code or a command with the library, in a folder of its own, and what was observed."""

    def run(code: str = "", command: Sequence[str | Path] = (), status: int = 0) -> Observed:
        log = tmp_path / "record.log"
        log.unlink(missing_ok=True)
        environment = {**PLAIN, **preload_environment(library, log, PLAIN)}
        work = tmp_path / "work"
        work.mkdir(exist_ok=True)
        done = subprocess.run(
            command or [sys.executable, "-c", code], env=environment, cwd=work, capture_output=True, text=True
        )
        assert done.returncode == status, done.stderr
        assert done.stderr == ""
        return read_log(log)

    return run


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture
def compiled(tmp_path: Path) -> Callable[..., Path]:
    """Return what compiles a C program with options."""

    def build(source: str, *options: str) -> Path:
        compiler = find_c_compiler(os.environ)
        assert compiler is not None
        file = tmp_path / "program.c"
        file.write_text(source)
        program = tmp_path / "program"
        done = subprocess.run([*compiler, "-o", program, file, *options], capture_output=True, text=True)
        if done.returncode != 0 and "-static" in options:
            pytest.skip("the C library cannot be linked statically here")
        assert done.returncode == 0, done.stderr
        return program

    return build


READERS = {
    "open": "open('data.bin', 'rb').read()",
    "os.open": "import os; os.open('data.bin', os.O_RDONLY)",
    "an absolute path": "import os; open(os.path.join(os.getcwd(), 'data.bin'))",
    "a way around": "open('.//./data.bin')",
    "a descriptor of the folder": "import os; folder = os.open('.', os.O_RDONLY); os.chdir('/');"
    "os.open('data.bin', os.O_RDONLY, dir_fd=folder)",
    "another folder": "import os; os.mkdir('in'); os.chdir('in'); os.chdir('..'); open('data.bin')",
    "opened to be changed": "open('data.bin', 'r+b').read()",
    "opened to be appended to": "open('data.bin', 'ab')",
    "mmap": "import mmap; file = open('data.bin', 'rb'); mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)",
    "C's fopen": "import ctypes; assert ctypes.CDLL(None).fopen(b'data.bin', b'r')",
    "C's freopen": "import ctypes; libc = ctypes.CDLL(None);"
    "libc.freopen.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p];"
    "libc.freopen(b'data.bin', b'r', ctypes.c_void_p.in_dll(libc, 'stdin'))",
    "another process": "import subprocess; subprocess.run(['cat', 'data.bin'], stdout=subprocess.DEVNULL)",
    "a shell": "import os; os.system('read line < data.bin')",
    "a fork": "import os; os.wait() if os.fork() else open('data.bin')",
    "a hard link": "import os; os.link('data.bin', 'linked.bin')",
    "after it was renamed": "import os; os.rename('data.bin', 'moved.bin'); open('moved.bin')",
    "read before it is written": "open('data.bin').close(); open('data.bin', 'w')",
    "no descriptors": "import os; os.closerange(3, 1000); open('data.bin')",
}


@pytest.mark.parametrize("code", READERS.values(), ids=READERS)
def test_every_way_to_read_is_seen(watch: Watch, work: Path, code: str) -> None:
    (work / "data.bin").write_bytes(b"12345678\n")
    observed = watch(code)
    assert str(work / "data.bin") in observed.opened
    assert observed.incomplete == ()
    assert unrecorded_programs(observed) == ()


def test_a_database_is_seen(watch: Watch, work: Path) -> None:
    import sqlite3

    connection = sqlite3.connect(work / "data.db")
    connection.execute("create table t (n)")
    connection.close()
    code = "import sqlite3; sqlite3.connect('data.db').execute('select * from t')"
    assert str(work / "data.db") in watch(code).opened


def test_safetensors_is_seen(watch: Watch, work: Path) -> None:
    import numpy
    from safetensors.numpy import save_file

    save_file({"w": numpy.zeros(3)}, work / "w.safetensors")
    observed = watch("from safetensors import safe_open; safe_open('w.safetensors', 'np').get_tensor('w')")
    assert str(work / "w.safetensors") in observed.opened


@pytest.mark.torch
def test_a_tensor_over_a_file_is_seen(watch: Watch, work: Path) -> None:
    (work / "raw.bin").write_bytes(bytes(16))
    assert str(work / "raw.bin") in watch("import torch; torch.from_file('raw.bin', size=4)").opened


@pytest.mark.parametrize(
    "code",
    [
        "import os; os.stat({0!r})",
        "import os; os.lstat({0!r})",
        "import os; os.path.getsize({0!r})",
        "import os; os.path.exists({0!r})",
        "import os; os.access({0!r}, os.R_OK)",
        "import os; folder = os.open('.', os.O_RDONLY); os.chdir('/'); os.stat({0!r}, dir_fd=folder)",
        "import os; os.access({0!r}, os.R_OK, dir_fd=os.open('.', os.O_RDONLY), effective_ids=True)",
        "import pathlib; pathlib.Path({0!r}).is_file()",
        "import os; os.open({0!r}, os.O_PATH)",
        "import subprocess; subprocess.run(['test', '-e', {0!r}])",
    ],
)
def test_every_look_is_seen_whether_anything_is_there_or_not(watch: Watch, work: Path, code: str) -> None:
    (work / "there").write_text("")
    observed = watch(code.format("there"))
    assert str(work / "there") in observed.looked_at
    assert str(work / "there") not in observed.missing
    tolerant = f"import contextlib\nwith contextlib.suppress(OSError):\n    {code.format('not')}"
    observed = watch(tolerant)
    assert str(work / "not") in observed.missing
    assert str(work / "not") not in observed.looked_at


def test_a_file_that_cannot_be_opened_is_missing(watch: Watch, work: Path) -> None:
    (work / "file").write_text("")
    code = "for name in ('not', 'not/below', 'file/below'):\n try: open(name)\n except OSError: pass"
    assert {str(work / name) for name in ("not", "not/below", "file/below")} <= set(watch(code).missing)


def test_a_file_looked_for_like_a_folder_is_looked_at(watch: Watch, work: Path) -> None:
    (work / "file").write_text("")
    for code in ("os.listdir('file')", "os.stat('file/')", "os.open('file', os.O_RDONLY | os.O_DIRECTORY)"):
        observed = watch(f"import os\ntry: {code}\nexcept OSError: pass")
        assert str(work / "file") in observed.looked_at, code
        assert str(work / "file") not in observed.missing


@pytest.mark.parametrize(
    "code",
    [
        "import os; os.listdir('folder')",
        "import os; list(os.scandir('folder'))",
        "import os; os.listdir(os.open('folder', os.O_RDONLY))",
        "import os; list(os.fwalk('folder'))",
        "import glob; glob.glob('folder/*')",
        "import pathlib; list(pathlib.Path().rglob('*'))",
        "import shutil; shutil.rmtree('folder')",
        "import subprocess; subprocess.run(['ls', 'folder'])",
        "import ctypes; ctypes.CDLL(None).scandir(b'folder', ctypes.byref(ctypes.c_void_p()), None, None)",
    ],
)
def test_every_listing_is_seen(watch: Watch, work: Path, code: str) -> None:
    (work / "folder").mkdir()
    observed = watch(code)
    assert str(work / "folder") in observed.listed
    assert observed.incomplete == ()


def test_what_the_c_library_walks_by_itself_makes_the_log_incomplete(watch: Watch) -> None:
    code = "import ctypes; ctypes.CDLL(None).glob(b'*.bin', 0, None, ctypes.create_string_buffer(200))"
    assert watch(code).incomplete == ("glob(3) was called: *.bin",)


def test_variables_asked_for_in_c_are_seen_with_their_values_unchanged(watch: Watch) -> None:
    code = """
import ctypes, os
get = ctypes.CDLL(None).getenv
get.restype = ctypes.c_char_p
assert get(b"ABSENT_ONE") is None
assert get(b"PATH") == os.environb[b"PATH"]
os.environ["SET_HERE"] = "value"
assert get(b"SET_HERE") == b"value"
"""
    observed = watch(code)
    assert {"ABSENT_ONE", "PATH", "SET_HERE"} <= set(observed.variables)
    assert "HATCH_LOWER_RECORD" not in observed.variables


def test_a_file_made_here_is_no_input(watch: Watch, work: Path) -> None:
    (work / "old").write_text("")
    observed = watch("""
import os
for name in ("new", "old"):
    open(name, "w").close()
    open(name).close()
open("temporary", "x").close()
os.replace("temporary", "final")
open("final").close()
os.open("exclusive", os.O_RDWR | os.O_CREAT | os.O_EXCL)
open("exclusive").close()
""")
    names = ("new", "old", "final", "exclusive")
    assert not {str(work / name) for name in names} & set(observed.opened)
    assert {str(work / name) for name in names} <= set(observed.written)


def test_a_file_read_and_then_written_is_both(watch: Watch, work: Path) -> None:
    (work / "data").write_text("")
    observed = watch("open('data').close(); open('data', 'w').close()")
    assert str(work / "data") in observed.opened
    assert str(work / "data") in observed.written


def test_what_links_led_to_is_seen_even_if_the_link_is_gone(watch: Watch, work: Path) -> None:
    (work / "real").write_text("")
    (work / "stays").symlink_to("real")
    observed = watch("import os; open('stays'); os.readlink('stays'); os.path.realpath('stays')")
    assert str(work / "stays") in observed.opened
    assert str(work / "stays") in observed.links
    assert str(work / "real") not in observed.opened, "the link still leads there"
    observed = watch("import os; os.symlink('real', 'goes'); open('goes'); os.unlink('goes')")
    assert str(work / "real") in observed.opened


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import socket; socket.socket().connect_ex(('127.0.0.1', 1))", "127.0.0.1:1"),
        ("import socket; socket.socket(socket.AF_INET6).connect_ex(('::1', 1))", "[::1]:1"),
        ("import socket; socket.socket(socket.AF_UNIX).connect_ex('door')", "door"),
        ("import socket; socket.socket(type=socket.SOCK_DGRAM).sendto(b'', ('127.0.0.1', 9))", "127.0.0.1:9"),
        ("import socket; socket.socket(type=socket.SOCK_DGRAM).sendmsg([b''], [], 0, ('127.0.0.1', 9))", "127.0.0.1:9"),
        ("import socket; socket.socket().bind(('127.0.0.1', 0))", "127.0.0.1:0"),
        ("import socket; socket.getaddrinfo('localhost', 1)", "localhost"),
        ("import socket; socket.gethostbyname_ex('localhost')", "localhost"),
    ],
)
def test_the_network_is_seen(watch: Watch, code: str, found: str) -> None:
    assert watch(code).network == (found,)


def test_a_pair_of_sockets_is_no_network(watch: Watch) -> None:
    assert watch("import socket; one, other = socket.socketpair(); one.send(b'1')").network == ()


def test_what_is_executed_is_seen_with_what_its_search_did_not_find(watch: Watch, work: Path) -> None:
    observed = watch(
        f"import os, subprocess; os.environ['PATH'] = {str(work)!r} + ':' + os.environ['PATH'];"
        "subprocess.run(['true']); os.spawnvp(os.P_WAIT, 'true', ['true'])"
    )
    found = shutil.which("true")
    assert found in observed.executed
    assert str(work / "true") in observed.missing
    assert os.path.realpath(found) in observed.processes
    assert os.path.realpath(sys.executable) in observed.processes


def test_a_process_with_another_environment_is_told_of(watch: Watch) -> None:
    observed = watch("import subprocess; subprocess.run(['/bin/true'], env={})")
    assert observed.incomplete == ("a process was started without the preloaded library: /bin/true",)
    observed = watch("import os, subprocess; del os.environ['LD_PRELOAD']; subprocess.run(['/bin/true'])")
    assert observed.incomplete == ("a process was started without the preloaded library: /bin/true",)


C_PROGRAM = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static const char *before_main;

static __attribute__((constructor)) void early(void) { before_main = getenv("EARLY_ONE"); }

#define CHECK(condition) do { if (!(condition)) { printf("%d\n", __LINE__); exit(1); } } while (0)
#define IN_CHILD(call) do { pid_t child = vfork(); if (child == 0) { call; _exit(127); } \
    int status; waitpid(child, &status, 0); CHECK(status == 0); } while (0)

int main(int argc, char **argv)
{
    int flags = argc > 5 ? O_WRONLY : O_RDONLY; /* what the compiler does not know goes through __open_2 */
    struct stat found;
    errno = 17;
    CHECK(open("data", flags) >= 0 && errno == 17);
    CHECK(getenv("PATH") && errno == 17);
    CHECK(open("not", flags) == -1 && errno == ENOENT);
    CHECK(stat("not there", &found) == -1 && errno == ENOENT);
    CHECK(stat("data/below", &found) == -1 && errno == ENOTDIR);
    CHECK(stat((char *)NULL, &found) == -1 && errno == EFAULT);
    CHECK(openat(999, "data", flags) == -1 && errno == EBADF);
    CHECK(opendir("data") == NULL && errno == ENOTDIR);
    CHECK(before_main == NULL);
    IN_CHILD(execl("bin/one", "cat", "one", (char *)NULL));
    IN_CHILD(execlp("two", "cat", "two", (char *)NULL));
    IN_CHILD(execle("bin/three", "cat", "three", (char *)NULL, environ));
    char *arguments[] = {"cat", "four", NULL};
    IN_CHILD(execvpe("four", arguments, environ));
    pid_t child;
    int status;
    arguments[1] = "five";
    CHECK(posix_spawnp(&child, "five", NULL, NULL, arguments, environ) == 0);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    arguments[1] = "six";
    int program = open("bin/six", O_RDONLY | O_CLOEXEC);
    IN_CHILD(fexecve(program, arguments, environ));
    arguments[1] = "seven";
    CHECK(posix_spawn(&child, "bin/seven", NULL, NULL, arguments, environ) == 0);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    arguments[1] = "eight";
    IN_CHILD(execv("bin/eight", arguments));
    arguments[1] = "nine";
    IN_CHILD(execvp("nine", arguments));
    FILE *output = popen("cat ten", "r");
    CHECK(output && pclose(output) == 0);
    CHECK(argv[1] == NULL);
    return 0;
}
"""


@pytest.mark.parametrize("options", [(), ("-O2", "-D_FORTIFY_SOURCE=2")], ids=["plain", "fortified"])
def test_a_c_program_sees_no_difference(
    watch: Watch,
    work: Path,
    compiled: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
) -> None:
    monkeypatch.setitem(PLAIN, "PATH", f"{work / 'bin'}:{PLAIN['PATH']}")
    names = ("data", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
    (work / "bin").mkdir()
    for name in names:
        (work / name).write_text("")
        (work / "bin" / name).symlink_to("/bin/cat")
    observed = watch(command=[compiled(C_PROGRAM, *options, "-Wno-nonnull")])
    assert {str(work / name) for name in names} <= set(observed.opened)
    started = {str(work / "bin" / name) for name in names[1:-1] if name != "six"}  # by its descriptor
    assert started | {os.path.realpath("/bin/cat"), "/bin/sh"} <= set(observed.executed)
    assert {str(work / name) for name in ("not", "not there", "data/below")} <= set(observed.missing)
    assert str(work / "data") in observed.looked_at  # opendir
    assert "EARLY_ONE" in observed.variables
    assert observed.incomplete == ()
    assert unrecorded_programs(observed) == ()


def test_a_log_that_cannot_be_written_changes_nothing(
    library: Path, tmp_path: Path, compiled: Callable[..., Path]
) -> None:
    program = compiled("""
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>
int main(void)
{
    errno = 17;
    if (open("/dev/null", O_RDONLY) < 0 || errno != 17)
        return 1;
    if (open("/absent", O_RDONLY) >= 0 || errno != ENOENT)
        return 2;
    errno = 17;
    return getenv("ABSENT_ONE") || errno != 17 ? 3 : 0;
}
""")
    log = tmp_path / "absent" / "record.log"
    environment = {**PLAIN, **preload_environment(library, log, PLAIN)}
    assert subprocess.run([program], env=environment).returncode == 0


def test_threads_and_forks_lose_and_tear_nothing(watch: Watch, work: Path) -> None:
    observed = watch("""
import os, threading

def look(prefix):
    for number in range(1000):
        try:
            os.open(f"{prefix}/{number}" + "x" * (number % 100), os.O_RDONLY)
        except OSError:
            pass

children = []
for fork in range(2):
    child = os.fork()
    if child == 0:
        look(f"fork{fork}")
        os._exit(0)
    children.append(child)
threads = [threading.Thread(target=look, args=(f"thread{thread}",)) for thread in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
for child in children:
    assert os.waitpid(child, 0)[1] == 0
""")
    prefixes = [f"thread{thread}" for thread in range(8)] + ["fork0", "fork1"]
    expected = {str(work / f"{prefix}/{n}{'x' * (n % 100)}") for prefix in prefixes for n in range(1000)}
    missing = {path for path in observed.missing if path.startswith(f"{work}/")}
    assert missing == expected
    assert observed.incomplete == ()


def test_more_than_the_table_holds_is_still_recorded(watch: Watch, work: Path) -> None:
    observed = watch("import os\nfor _ in range(2):\n for n in range(40000): os.path.exists(f'{n:05}')")
    assert {path for path in observed.missing if path.startswith(f"{work}/")} == {
        str(work / f"{number:05}") for number in range(40000)
    }


def test_a_repeated_look_is_recorded_once(watch: Watch, tmp_path: Path) -> None:
    watch("import os\nfor _ in range(1000): os.path.exists('never there')")
    assert (tmp_path / "record.log").read_bytes().count(b"never there") == 1


SWITCH = "import os; from hatch_lower.driver.inputs.preload import RecordingSwitch; switch = RecordingSwitch()\n"


def test_what_the_recorder_looks_at_is_not_noted_until_the_program_does(watch: Watch, work: Path) -> None:
    (work / "later").write_text("")
    (work / "never").write_text("")
    observed = watch(f"""{SWITCH}
import threading
def tolerant(path):
    try: os.stat(path)
    except OSError: pass
with switch.quiet():
    os.stat("later"), os.stat("never"), tolerant("gone")
    thread = threading.Thread(target=tolerant, args=("beside",)); thread.start(); thread.join()
    open("made", "w").close()
    with switch.quiet(everywhere=True):
        thread = threading.Thread(target=tolerant, args=("unseen",)); thread.start(); thread.join()
os.stat("later"), tolerant("gone"), open("made").close()
""")
    assert str(work / "later") in observed.looked_at
    assert str(work / "never") not in observed.looked_at
    assert str(work / "gone") in observed.missing
    assert str(work / "beside") in observed.missing, "another thread goes on"
    assert str(work / "unseen") not in observed.missing
    assert str(work / "made") in observed.written
    assert str(work / "made") not in observed.opened


def test_what_was_noted_before_the_part_of_interest_is_noted_again(watch: Watch, work: Path, tmp_path: Path) -> None:
    (work / "before").write_text("")
    (work / "both").write_text("")
    log = tmp_path / "record.log"
    code = f"""{SWITCH}
open("before").close(), open("both").close(), open("made", "w").close()
print(os.stat({str(log)!r}).st_size, file=open("size", "w"))
switch.forget()
open("both").close(), open("made").close()
"""
    assert str(work / "before") in watch(code).opened
    observed = read_log(log, int((work / "size").read_text()))
    assert str(work / "before") not in observed.opened
    assert str(work / "both") in observed.opened
    assert str(work / "made") not in observed.opened
    assert observed.incomplete == ()


def test_without_the_library_the_switch_does_nothing() -> None:
    switch = RecordingSwitch()
    assert not switch.is_there
    with switch.quiet():
        switch.forget()


def test_what_cannot_be_written_is_told_of(watch: Watch) -> None:
    observed = watch("""
import os, resource
os.stat("/")
resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
os.path.exists("unseen")
""")
    assert observed.incomplete == ("something could not be written into the log",)


def test_a_path_that_is_too_long_is_told_of(watch: Watch) -> None:
    observed = watch("import os\nfor _ in range(18): os.mkdir('d' * 250); os.chdir('d' * 250)\nopen('data', 'w')")
    assert observed.incomplete == ("a relative path could not be resolved",)


@pytest.mark.parametrize("value", [None, "", "relative.log"])
def test_without_a_log_nothing_is_done(library: Path, tmp_path: Path, value: str | None) -> None:
    environment = {**PLAIN, "LD_PRELOAD": str(library)}
    environment.pop("HATCH_LOWER_RECORD", None)
    if value is not None:
        environment["HATCH_LOWER_RECORD"] = value
    subprocess.run([sys.executable, "-c", "open('data', 'w')"], env=environment, cwd=tmp_path, check=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]


def test_programs_without_the_library_are_named(watch: Watch, compiled: Callable[..., Path], work: Path) -> None:
    program = compiled("int main(void) { return 0; }", "-static")
    assert is_static(program)
    observed = watch(f"import subprocess; subprocess.run([{str(program)!r}])")
    assert unrecorded_programs(observed) == (f"{program} is linked statically, so nothing is preloaded into it",)
    script = work / "script"
    script.write_text(f"#!{program}\n")
    script.chmod(0o755)
    observed = watch(f"import subprocess; subprocess.run([{str(script)!r}])")
    assert unrecorded_programs(observed) == (f"{script} is linked statically, so nothing is preloaded into it",)


def test_a_program_that_takes_its_owners_rights_is_named(watch: Watch, work: Path) -> None:
    program = work / "owned"
    shutil.copy("/bin/true", program)
    program.chmod(0o4755)
    observed = Observed(*[()] * 9, executed=(str(program),), processes=(), network=(), incomplete=())
    assert unrecorded_programs(observed) == (
        f"{program} runs with the rights of its owner, so nothing is preloaded into it",
    )
    gone = Observed(*[()] * 9, executed=(str(work / "gone"),), processes=(), network=(), incomplete=())
    assert unrecorded_programs(gone) == (f"{work / 'gone'} could not be read: No such file or directory",)


def test_an_interpreter_is_not_static_and_a_text_neither() -> None:
    assert not is_static(Path(sys.executable))
    assert not is_static(Path(__file__))


def test_a_log_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert read_log(log).incomplete == (
        "the log could not be read: No such file or directory",
        "the preloaded library was in no process",
    )
    log.write_bytes(b"P/bin/true\0R/a//b/./c/\0S/d\0S/")
    observed = read_log(log)
    assert observed.opened == ("/a/b/c",)
    assert observed.looked_at == ("/d",)
    assert observed.incomplete == ("the last record is torn",)
    log.write_bytes(b"P/bin/true\0Q/a\0Rb\0R/\xff\0")
    observed = read_log(log)
    assert observed.opened == ("/\udcff",)
    assert observed.incomplete == ("the log is damaged",)


def test_a_library_is_built_once(library: Path, tmp_path: Path) -> None:
    built = built_library(tmp_path)
    assert built is not None
    first = built.stat().st_mtime_ns
    assert built_library(tmp_path) == built
    assert built.stat().st_mtime_ns == first
    assert list(built.parent.iterdir()) == [built]
    assert built.parent == tmp_path / "v1" / "preload"


@pytest.mark.parametrize("damage", ["truncated", "one bit", "a pipe"])
def test_a_damaged_library_is_built_again(tmp_path: Path, damage: str) -> None:
    built = built_library(tmp_path)
    if built is None:
        pytest.skip("the library cannot be built here")
    data = built.read_bytes()
    built.unlink()
    if damage == "a pipe":
        os.mkfifo(built)
    else:
        built.write_bytes(data[: len(data) // 2] if damage == "truncated" else bytes([*data[:-1], data[-1] ^ 1]))
        built.chmod(0o700)
    assert built_library(tmp_path) == built
    assert built.read_bytes() == data


def test_where_it_cannot_be_built_there_is_none(tmp_path: Path) -> None:
    assert built_library(tmp_path, {"PATH": ""}) is None
    assert built_library(tmp_path, {**PLAIN, "CC": "false"}) is None
    assert built_library(tmp_path / "with space", PLAIN) is None
    (tmp_path / "file").write_text("")
    assert built_library(tmp_path / "file", PLAIN) is None


def test_a_cache_folder_that_cannot_be_listed_fails_no_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(folder: Path, pattern: str) -> None:
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr("hatch_lower.driver.inputs.preload.remove_abandoned", refuse)
    assert built_library(tmp_path, PLAIN) is None


def test_what_a_killed_process_has_left_of_a_library_goes(library: Path, tmp_path: Path) -> None:
    left = tmp_path / "v1" / "preload" / f"{UNFINISHED}left"
    left.mkdir(parents=True)
    shutil.copy2(library, left.parent)
    assert built_library(tmp_path) == left.parent / library.name
    assert list(left.parent.iterdir()) == [left.parent / library.name]


def test_a_library_that_does_not_work_is_not_used(tmp_path: Path) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\necho nonsense > "$2"\n')
    compiler.chmod(0o755)
    assert built_library(tmp_path, {**PLAIN, "CC": str(compiler)}) is None
    assert list((tmp_path / "v1" / "preload").iterdir()) == []


def test_the_compiler_is_what_cc_names_if_it_is_there(tmp_path: Path) -> None:
    for name in ("gcc", "special"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": str(tmp_path)}
    assert find_c_compiler({**environment, "CC": "special -m64"}) == (str(tmp_path / "special"), "-m64")
    assert find_c_compiler({**environment, "CC": "absent"}) == (str(tmp_path / "gcc"),)
    assert find_c_compiler({**environment, "CC": "'"}) == (str(tmp_path / "gcc"),)
    assert find_c_compiler({"PATH": str(tmp_path / "none")}) is None


def test_other_preloaded_libraries_stay(tmp_path: Path) -> None:
    library, log = Path("/cache/ours.so"), tmp_path / "log"
    assert preload_environment(library, log, {}) == {"LD_PRELOAD": str(library), "HATCH_LOWER_RECORD": str(log)}
    found = preload_environment(library, log, {"LD_PRELOAD": "/lib/theirs.so"})
    assert found["LD_PRELOAD"] == "/cache/ours.so:/lib/theirs.so"


def test_the_source_compiles_without_a_warning(tmp_path: Path, library: Path) -> None:
    compiler = find_c_compiler(os.environ)
    assert compiler is not None
    command = [*compiler, "-std=c99", "-O2", "-fPIC", "-shared", "-Wall", "-Wextra", "-o", tmp_path / "made", SOURCE]
    assert subprocess.run([*command, "-ldl"], check=True, capture_output=True, text=True).stderr == ""


def test_the_source_has_the_letters_of_the_log() -> None:
    letters = re.findall(r"(\w+) = '([A-Z])'", SOURCE.read_text())
    assert len(letters) == 20
    assert set(letters) <= {(kind.name, kind.value) for kind in Kind}
