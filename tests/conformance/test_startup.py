"""Sections 7, 8.1, 8.2, 8.4: which configurations both servers start with, and which not."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sepp_trio.cli import main
from tests.conformance.servers import (
    EMBEDDED,
    HOW_TO_GET_IT,
    REAL,
    Server,
    ServerError,
    certificates,
    real_binary,
)

BAD = {
    "no toml": "[limits\n",
    "a number as text": '[limits]\nmax_enqueue_batch = "many"\n',
    "a batch of zero": "[limits]\nmax_enqueue_batch = 0\n",
    "a negative limit": "[limits]\nmax_payload_bytes = -1\n",
    "a retry delay over its maximum": "[limits]\nretry_delay_ms = 2\nretry_delay_max_ms = 1\n",
    "a payload over the message limit": "[limits]\nmax_payload_bytes = 16777217\n",
    "default attempts over the ceiling": (
        "[limits]\ndefault_max_attempts = 5\nmax_attempts_ceiling = 4\n"
    ),
    "a default priority of ten": "[limits]\ndefault_priority = 10\n",
    "an unknown backoff": '[limits]\nretry_backoff = "linear"\n',
    "an unknown persist mode": '[storage]\npersist_mode = "never"\n',
    "a sweep limit of zero": "[storage]\nsweep_limit = 0\n",
    "a window of zero": "[storage]\ndedup_window_ms = 0\n",
    "a queue name beyond the key format": "[limits]\nmax_queue_name_bytes = 65536\n",
    "a queue twice": '[[queues]]\nname = "a"\n[[queues]]\nname = "a"\n',
    "a queue without a name": "[[queues]]\nmax_queue_depth = 1\n",
    "a queue with a bad name": '[[queues]]\nname = "a/b"\n',
    "a queue that allows no job types": '[[queues]]\nname = "a"\nallowed_job_types = []\n',
    "a queue's payload over the message limit": (
        '[[queues]]\nname = "a"\nmax_payload_bytes = 16777217\n'
    ),
    "a queue's attempts over its ceiling": (
        '[[queues]]\nname = "a"\ndefault_max_attempts = 5\nmax_attempts_ceiling = 4\n'
    ),
    "a queue's retry delay over its maximum": (
        '[[queues]]\nname = "a"\nretry_delay_ms = 2\nretry_delay_max_ms = 1\n'
    ),
    "keys as a list of strings": '[auth]\napi_keys = ["k"]\n',
    "a key without a name": '[auth]\napi_keys = [{ key = "k" }]\n',
    "a key with an extra member": '[auth]\napi_keys = [{ name = "n", key = "k", role = "r" }]\n',
    "an empty key": '[auth]\napi_keys = [{ name = "n", key = "" }]\n',
    "a key with a blank": '[auth]\napi_keys = [{ name = "n", key = "a b" }]\n',
    "one key twice": '[auth]\napi_keys = [{ name = "m", key = "k" }, { name = "n", key = "k" }]\n',
    "one key name twice": (
        '[auth]\napi_keys = [{ name = "n", key = "k" }, { name = "n", key = "l" }]\n'
    ),
    "half of TLS": '[server]\ntls_cert_path = "server.crt"\n',
}
GOOD = {
    "nothing": "",
    "unknown keys and sections": (
        '[limits]\nnew = 1\n[cluster]\na = 1\n[[queues]]\nname = "a"\nb = 2\n'
    ),
    "every limit at its least": (
        "[limits]\nmax_lease_duration_ms = 1\ndefault_max_attempts = 1\nmax_attempts_ceiling = 1\n"
        "retry_delay_max_ms = 1\nmax_reserve_batch = 1\nmax_reserve_queues = 1\n"
        "max_wait_timeout_ms = 1\nmax_enqueue_batch = 1\nmax_queue_depth = 0\n"
        "max_payload_bytes = 1\nmax_message_bytes = 1\nmax_custom_entries = 1\n"
        "max_custom_total_bytes = 1\nmax_custom_key_bytes = 1\nmax_queue_name_bytes = 1\n"
        "max_job_type_bytes = 1\nmax_idempotency_key_bytes = 1\nmax_schedule_horizon_ms = 1\n"
        "allowed_encodings = []\n"
    ),
    "sections that only the real server uses": (
        '[admin]\nenabled = false\n[logging]\nlevel = "info"\n[storage]\nsweep_interval_ms = 5\n'
    ),
}


def _starts(kind: str, config: str) -> bool:
    server = Server(kind, config)
    try:
        server.start()
    except ServerError as error:
        refusal = str(error)
    else:
        return True
    finally:
        server.close()
    # It says why, and that it was its own decision.
    assert "(1)" in refusal, refusal
    assert server.log
    return False


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "kind",
    [
        EMBEDDED,
        pytest.param(
            REAL,
            marks=[
                pytest.mark.real_server,
                pytest.mark.skipif(real_binary() is None, reason=HOW_TO_GET_IT),
            ],
        ),
    ],
)
def test_a_bad_configuration_stops_the_start_and_a_good_one_does_not(kind: str) -> None:
    # A start of our own costs a third of a second: the test below has the others.
    bad = BAD if kind == REAL else {"no toml": BAD["no toml"]}
    configs = bad | GOOD
    with ThreadPoolExecutor(4) as pool:
        started = pool.map(lambda name: _starts(kind, configs[name]), configs)
        assert dict(zip(configs, started, strict=True)) == {name: name in GOOD for name in configs}


def test_our_command_refuses_every_bad_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, pem in certificates().items():
        (tmp_path / name).write_bytes(pem)
    for name, config in BAD.items():
        (tmp_path / "sepp.toml").write_text(config)
        assert main(["serve", "--config", "sepp.toml", "--listen", "127.0.0.1:0"]) == 1, name
        [line] = capsys.readouterr().err.splitlines()
        assert line.startswith("sepp-trio serve: "), name
