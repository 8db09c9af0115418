"""The examples run as they stand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def start(name: str, *arguments: str, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        (sys.executable, "-u", str(EXAMPLES / name), *arguments), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd,
    )  # fmt: skip


def test_the_producer_s_jobs_reach_the_worker_which_drains(
    served_address: str, tmp_path: Path
) -> None:
    with start("worker.py", served_address, cwd=tmp_path) as worker:
        assert worker.stdout is not None
        for stored in ("20 stored, 0 stored before", "0 stored, 20 stored before"):
            with start("producer.py", served_address, "20", cwd=tmp_path) as producer:
                output, errors = producer.communicate(timeout=60)
            assert (output, errors) == (f"{stored}, 0 refused\n", "")
        seen = {worker.stdout.readline() for _ in range(20)}
        assert seen == {f"image {n} is 200 wide now, on attempt 1\n" for n in range(20)}
        worker.terminate()
        output, errors = worker.communicate(timeout=60)
        assert (worker.returncode, output, errors) == (0, "", "")


def test_a_service_with_its_queue_inside(tmp_path: Path) -> None:
    with start("embedded.py", str(tmp_path / "greetings.db"), cwd=tmp_path) as service:
        output, errors = service.communicate(timeout=60)
    assert (service.returncode, errors) == (0, "")
    assert sorted(output.splitlines()) == ["hello, Ada", "hello, Grace", "hello, Mary"]
