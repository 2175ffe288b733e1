"""What a store asks of a place, of every kind: a directory, a folder behind a real sshd, a bucket
of a service.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.errors import ConfigError, OrchError, TransportError
from orchestrator.features.store.bucket import BucketPlace
from orchestrator.features.store.folder import FolderPlace
from orchestrator.features.store.place import Place
from tests.contract.rig import Rig
from tests.support import judge
from tests.support.buckets import make_bucket, service, web_server

NAME = "archives/x.tar"
WRITER = """
import sys
from pathlib import Path
from orchestrator.features.store.folder import FolderPlace
place = FolderPlace(sys.argv[1], sys.argv[1])
while True:
    place.publish("archives/x.tar", Path(sys.argv[2]))
    print("published", flush=True)
"""


@pytest.fixture(scope="module")
def bucket_service() -> Iterator[dict[str, str]]:
    pytest.importorskip("obstore")
    with service() as environment:
        yield environment


@pytest.fixture(params=["directory", "machine", "machine by openssh", "bucket"])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    if request.param == "directory":
        yield folder_of(tmp_path / "team")
    elif request.param == "bucket":
        for name, value in request.getfixturevalue("bucket_service").items():
            monkeypatch.setenv(name, value)
        name = f"bucket-{hashlib.md5(str(tmp_path).encode()).hexdigest()}"
        make_bucket(os.environ, name)
        yield BucketPlace(f"s3://{name}/team")
    else:
        rig: Rig = request.getfixturevalue("rig")
        rig.transport = "openssh" if "openssh" in request.param else "ssh"
        server = rig.serve()
        yield FolderPlace("me@head:/team", str(tmp_path / "team"), lambda: rig.connect(server))


def folder_of(path: Path) -> FolderPlace:
    return FolderPlace(str(path), str(path))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Three megabytes and a bit, of every byte."""
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 12288 + b"and a bit")
    return path


def content(place: Place, name: str, tmp_path: Path) -> bytes:
    target = tmp_path / f"fetched-{len(os.listdir(tmp_path))}"
    place.fetch(name, target, 1 << 30)
    return target.read_bytes()


def test_a_file_comes_out_as_it_went_in_whole_and_in_ranges(
    place: Place, file: Path, tmp_path: Path
) -> None:
    place.make()
    place.make()
    assert place.sizes("archives") == {}
    place.publish(NAME, file)
    place.publish("marker", file)
    data = file.read_bytes()
    assert content(place, NAME, tmp_path) == data
    for start, size in ((0, 1), (1, 700), (1 << 20, 1 << 20), (len(data) - 5, 5)):
        assert place.read(NAME, start, size) == data[start : start + size]
    assert place.sizes("archives") == {"x.tar": len(data)} and place.sizes("") == {
        "archives": None,
        "marker": len(data),
    }


def test_another_file_takes_the_place_of_the_first(
    place: Place, file: Path, tmp_path: Path
) -> None:
    place.make()
    place.publish(NAME, file)
    file.write_bytes(b"short")
    place.publish(NAME, file)
    assert content(place, NAME, tmp_path) == b"short" and place.sizes("archives") == {"x.tar": 5}


def test_what_is_missing_is_said_to_be_missing(place: Place, tmp_path: Path) -> None:
    place.make()
    with pytest.raises(FileNotFoundError):
        place.read(NAME, 0, 10)
    with pytest.raises(FileNotFoundError):
        place.fetch(NAME, tmp_path / "nothing", 1 << 30)


def test_readers_see_one_file_or_the_other_while_several_publish(
    place: Place, file: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"x" * 2_000_000)
    place.make()
    place.publish(NAME, file)
    errors: list[BaseException] = []

    def publish(path: Path) -> None:
        try:
            for _ in range(5):
                place.publish(NAME, path)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=publish, args=(path,)) for path in (file, other, file)]
    for thread in threads:
        thread.start()
    whole = {file.read_bytes(), other.read_bytes()}
    while any(thread.is_alive() for thread in threads):
        assert content(place, NAME, tmp_path) in whole
    assert errors == [] and content(place, NAME, tmp_path) in whole
    assert set(place.sizes("archives")) == {"x.tar"}


def test_a_writer_that_is_killed_publishes_nothing_and_the_next_one_cleans_up(
    file: Path, tmp_path: Path
) -> None:
    root = tmp_path / "team"
    root.mkdir()
    file.write_bytes(file.read_bytes() * 8)
    killed = 0
    while killed < 5:
        command = [sys.executable, "-c", WRITER, str(root), str(file)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
        judge.wait_for(
            lambda: list(root.glob("archives/.x.tar.*.part")), 30, lambda: "nothing is written"
        )
        process.kill()
        process.communicate()
        killed += bool(list(root.glob("archives/.x.tar.*.part")))
        place = folder_of(root)
        assert set(place.sizes("archives")) <= {"x.tar"}
        if place.sizes("archives"):
            assert content(place, NAME, tmp_path) == file.read_bytes()
    place.publish(NAME, file)
    assert os.listdir(root / "archives") == ["x.tar"]


def test_a_connection_that_breaks_while_sending_publishes_nothing(
    rig: Rig, file: Path, tmp_path: Path
) -> None:
    server, root = rig.serve(), tmp_path / "team"
    place = FolderPlace("head:team", str(root), lambda: rig.connect(server))
    place.make()
    with file.open("ab") as stream:
        stream.truncate(200 << 20)

    def cut() -> None:
        judge.wait_for(
            lambda: list(root.glob("archives/.x.tar.*.part")), 30, lambda: "nothing is written"
        )
        server.kill_connections()

    thread = threading.Thread(target=cut)
    thread.start()
    with pytest.raises(TransportError):
        place.publish(NAME, file)
    thread.join()
    assert not (root / NAME).exists()
    judge.wait_for(
        lambda: not list(root.glob("archives/.*")), 30, lambda: str(os.listdir(root / "archives"))
    )


@pytest.mark.parametrize("umask", [0o077, 0o022])
def test_what_one_user_writes_all_of_the_team_can_read_and_replace(
    rig: Rig, file: Path, tmp_path: Path, umask: int
) -> None:
    server = rig.serve()
    before = os.umask(umask)
    try:
        for number, kind in enumerate(("directory", "machine")):
            root = tmp_path / f"team{number}"
            root.mkdir()
            root.chmod(0o2775)
            place: Place = folder_of(root)
            if kind == "machine":
                place = FolderPlace("head:team", str(root), lambda: rig.connect(server))
            place.publish(NAME, file)
            assert (root / "archives").stat().st_mode & 0o7777 == 0o2775, kind
            assert (root / NAME).stat().st_mode & 0o7777 == 0o664, kind
    finally:
        os.umask(before)


def test_a_place_that_cannot_be_written_says_why(open_home: Path, rig: Rig, file: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("a full disk of its own needs root")
    small = open_home / "small"
    small.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)], capture_output=True
    ).returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        server = rig.serve()
        for place in (
            folder_of(small),
            FolderPlace("head:small", str(small), lambda: rig.connect(server)),
        ):
            with pytest.raises(OrchError, match=r"space"):
                place.publish(NAME, file)
            assert os.listdir(small / "archives") == []
            shutil.rmtree(small / "archives")
    finally:
        subprocess.run(["umount", str(small)], check=True)
    for place in (
        folder_of(open_home / "no/such"),
        FolderPlace("h:x", str(open_home / "no/such"), lambda: rig.connect(server)),
    ):
        with pytest.raises(ConfigError, match="make the folder above it first"):
            place.make()


def test_a_web_server_gives_and_does_not_take(tmp_path: Path, file: Path) -> None:
    pytest.importorskip("obstore")
    folder_of(tmp_path).publish(NAME, file)
    with web_server(tmp_path) as url:
        place = BucketPlace(url)
        assert content(place, NAME, tmp_path) == file.read_bytes()
        assert place.read(NAME, 5, 100) == file.read_bytes()[5:105]
        with pytest.raises(OrchError, match="expected archives.json, the list of archives"):
            place.sizes("archives")
        names = {"x.tar": file.stat().st_size, "folder": None}
        (tmp_path / "archives.json").write_text(json.dumps(names))
        assert place.sizes("archives") == names
        with pytest.raises(FileNotFoundError):
            place.fetch("nothing", tmp_path / "nothing", 10)
        with pytest.raises(ConfigError, match="a web server"):
            place.make()


def test_a_web_server_that_sends_nothing_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("obstore")
    monkeypatch.setattr("orchestrator.features.store.bucket._READ_TIMEOUT", "500ms")
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(OrchError, match="the service does not work: .*imeout.*is the web server up"),
    ):
        BucketPlace(f"http://127.0.0.1:{silent.getsockname()[1]}").fetch(
            NAME, tmp_path / "nothing", 1 << 30
        )


def test_a_library_that_is_missing_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "obstore"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "obstore", None)
    for url in ("s3://team/bench", "https://host/bench"):
        with pytest.raises(ConfigError, match=r"pip install 'orch-bench\[store\]'"):
            BucketPlace(url)


def test_a_service_that_cannot_be_used_says_what_to_do(
    bucket_service: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in bucket_service.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(
        ConfigError, match="expected a bucket, found none. create the bucket no-such-bucket first"
    ):
        BucketPlace("s3://no-such-bucket/team").sizes("")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(OrchError, match="the service does not work: .*AWS_ENDPOINT_URL"):
        BucketPlace("s3://no-such-bucket/team").sizes("")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "127.0.0.1:9")
    with pytest.raises(ConfigError, match="set AWS_ENDPOINT_URL to a URL such as https"):
        BucketPlace("s3://no-such-bucket/another").sizes("")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(ConfigError, match="set AWS_ACCESS_KEY_ID"):
        BucketPlace("s3://no-such-bucket/other").sizes("")


def test_keys_and_service_are_taken_from_a_profile_of_the_aws_tools(
    bucket_service: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, file: Path
) -> None:
    make_bucket(bucket_service, "profiles")
    for name in bucket_service:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_PROFILE", "team")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    folder = tmp_path / ".aws"
    folder.mkdir()
    service_of = f"endpoint_url = {bucket_service['AWS_ENDPOINT_URL']}\nregion = us-east-1\n"
    (folder / "config").write_text(f"[default]\nregion = no\n[profile team]\n{service_of}")
    with pytest.raises(ConfigError, match="expected access keys for the bucket, found none"):
        BucketPlace("s3://profiles/team")
    keys = "aws_access_key_id = team\naws_secret_access_key = not-a-secret\n"
    (folder / "credentials").write_text(f"[default]\n[team]\n{keys}")
    place = BucketPlace("s3://profiles/team")
    place.publish(NAME, file)
    assert place.sizes("archives") == {"x.tar": file.stat().st_size}
    (folder / "credentials").unlink()
    (folder / "config").write_text("[profile team]\nsso_session = corp\n")
    with pytest.raises(ConfigError, match="the profile team has none.*export-credentials"):
        BucketPlace("s3://profiles/team")
    (folder / "config").write_text("no section\n")
    with pytest.raises(ConfigError, match="config: cannot be read: File contains no section"):
        BucketPlace("s3://profiles/team")


def test_what_google_and_azure_need_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("obstore")
    for name in [name for name in os.environ if name.startswith(("AZURE", "GOOGLE"))]:
        monkeypatch.delenv(name)
    with pytest.raises(ConfigError, match="set AZURE_STORAGE_ACCOUNT_NAME"):
        BucketPlace("az://team/bench")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "nothing.json"))
    with pytest.raises(ConfigError, match="set GOOGLE_APPLICATION_CREDENTIALS"):
        BucketPlace("gs://team/bench")
