"""`sepp-trio serve` as users run it: one ready line, graceful stops, one-line errors."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import h2.connection
import pytest
import trio
import trustme

from sepp_trio import (
    ConnectError,
    EnqueueRequest,
    ReserveOptions,
    UnauthenticatedError,
    open_client,
)
from sepp_trio.cli import main
from tests.cli.helpers import ready_address, started


def stopped_by(process: subprocess.Popen[str], number: signal.Signals = signal.SIGTERM) -> str:
    """Stop it; gives what it said on standard output after the ready line."""
    process.send_signal(number)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "Traceback" not in errors
    return output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda n: n.name)
async def test_it_says_one_line_and_stops_on_a_signal(number: signal.Signals) -> None:
    with started("serve", "--listen", "127.0.0.1:0") as process:
        address = ready_address(process)
        assert not address.endswith(":0")
        async with open_client(address) as client:
            await client.enqueue(EnqueueRequest("a", "b"))
        assert stopped_by(process, number) == ""


async def test_jobs_in_a_file_are_there_after_a_restart(tmp_path: Path) -> None:
    arguments = ["serve", "--db", str(tmp_path / "jobs.db"), "--listen", "127.0.0.1:0"]
    with started(*arguments) as process:
        async with open_client(ready_address(process)) as client:
            ack = await client.enqueue(EnqueueRequest("a", "b"))
        process.kill()
        process.wait()
    with started(*arguments) as process:
        async with open_client(ready_address(process)) as client:
            (job,) = await client.reserve(ReserveOptions(["a"], 10))
        assert job.id == ack.job_id
        stopped_by(process)


async def test_a_parked_reserve_is_answered_when_it_stops() -> None:
    with started("serve", "--listen", "127.0.0.1:0") as process:
        async with open_client(ready_address(process)) as client, trio.open_nursery() as nursery:

            async def reserve() -> None:
                assert await client.reserve(ReserveOptions(["a"], 10, wait_timeout=60)) == []

            nursery.start_soon(reserve)
            await trio.sleep(0.2)
            process.terminate()
        assert await trio.to_thread.run_sync(process.wait) == 0


def call_without_an_end(address: str) -> socket.socket:
    """A connection with a request whose body never ends: a drain waits for it."""
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)))
    peer = h2.connection.H2Connection()
    peer.initiate_connection()
    path = "/sepp.v1.QueueService/GetServerInfo"
    headers = {":method": "POST", ":scheme": "http", ":authority": "x", ":path": path}
    peer.send_headers(
        1, [*headers.items(), ("te", "trailers"), ("content-type", "application/grpc")]
    )
    connection.sendall(peer.data_to_send())
    connection.recv(1)  # it has our request before anything that comes later
    return connection


async def test_a_second_signal_ends_it_at_once() -> None:
    with (
        started("serve", "--listen", "127.0.0.1:0") as process,
        call_without_an_end(ready_address(process)),
    ):
        process.terminate()
        await trio.sleep(0.5)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)  # two of one kind may become one
        assert await trio.to_thread.run_sync(process.wait) == 0


async def test_a_unix_socket_is_an_address_and_is_gone_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "sepp.sock"
    with started("serve", "--listen", f"unix:{path}") as process:
        address = ready_address(process)
        assert address == f"unix:{path}"
        async with open_client(address) as client:
            await client.get_server_info()
        stopped_by(process)
    assert not path.exists()


async def test_the_file_s_keys_and_certificates_are_used(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    config = tmp_path / "sepp.toml"
    config.write_text(
        f"""
        [server]
        listen_addr = "127.0.0.1:0"
        tls_cert_path = "{tmp_path}/cert.pem"
        tls_key_path = "{tmp_path}/key.pem"
        [auth]
        api_keys = [{{ name = "tests", key = "k1" }}]
        """
    )
    trusted = authority.cert_pem.bytes()
    with started("serve", "--config", str(config)) as process:
        port = ready_address(process).rpartition(":")[2]
        address = f"https://localhost:{port}"
        async with open_client(address, ca_certificate=trusted, api_key="k1") as client:
            await client.get_server_info()
        async with open_client(address, ca_certificate=trusted, api_key="k2") as client:
            with pytest.raises(UnauthenticatedError):
                await client.get_server_info()
        with pytest.raises(ConnectError):
            async with open_client(f"localhost:{port}"):
                pytest.fail("connected without TLS")
        stopped_by(process)


def bad_toml(directory: Path) -> list[str]:
    (directory / "sepp.toml").write_text("[server")
    return ["--config", str(directory / "sepp.toml")]


def bad_value(directory: Path) -> list[str]:
    (directory / "sepp.toml").write_text("[limits]\nmax_enqueue_batch = 0")
    return ["--config", str(directory / "sepp.toml")]


def missing_certificate(directory: Path) -> list[str]:
    (directory / "sepp.toml").write_text(
        f'[server]\ntls_cert_path = "{directory}/c"\ntls_key_path = "{directory}/k"'
    )
    return ["--config", str(directory / "sepp.toml"), "--listen", "127.0.0.1:0"]


def no_certificate(directory: Path) -> list[str]:
    (directory / "c").write_text("none")
    (directory / "k").write_text("none")
    return missing_certificate(directory)


def no_database(directory: Path) -> list[str]:
    (directory / "jobs.db").write_bytes(os.urandom(8192))
    return ["--db", str(directory / "jobs.db"), "--listen", "127.0.0.1:0"]


@pytest.mark.parametrize(
    ("arguments_in", "word"),
    [
        (lambda _: ["--listen", "nowhere"], "nowhere"),
        (lambda _: ["--listen", "127.0.0.1:99999"], "127.0.0.1:99999"),
        (lambda directory: ["--listen", f"unix:{directory}/none/s"], "none/s"),
        (lambda directory: ["--config", f"{directory}/none.toml"], "none.toml"),
        (lambda directory: ["--db", f"{directory}/none/jobs.db"], "none/jobs.db"),
        (bad_toml, "sepp.toml"),
        (bad_value, "limits.max_enqueue_batch"),
        (missing_certificate, "server.tls_cert_path"),
        (no_certificate, "server.tls_cert_path"),
        (no_database, "jobs.db"),
    ],
)
def test_what_keeps_it_from_starting_is_one_line(
    arguments_in: Callable[[Path], list[str]],
    word: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["serve", *arguments_in(tmp_path)]) == 1
    output, errors = capsys.readouterr()
    assert errors.startswith("sepp-trio serve: ")
    assert errors.count("\n") == 1
    assert word in errors
    assert not output


def test_a_port_that_is_taken_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert main(["serve", "--listen", address]) == 1
    line = f"sepp-trio serve: cannot listen on {address}: the port is in use\n"
    assert capsys.readouterr() == ("", line)


def test_a_file_that_is_in_use_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["serve", "--db", str(tmp_path / "jobs.db"), "--listen", "127.0.0.1:0"]
    with started(*arguments) as process:
        ready_address(process)
        assert main(arguments) == 1
        output, errors = capsys.readouterr()
        assert not output
        assert "jobs.db" in errors
        assert errors.count("\n") == 1
        stopped_by(process)
