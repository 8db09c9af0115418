"""Runs h2spec against the server role: ``python -m tests.transport.h2spec [H2SPEC]``.

Ends with 1 if a case fails that is not in ``EXPECTED``, or if one of those
passes.  Build the tool with
``go install github.com/summerwind/h2spec/cmd/h2spec@latest``.
"""

from __future__ import annotations

import functools
import shutil
import sys
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path

import trio

from sepp_trio.transport.server import GrpcServer
from tests.transport.server_tools import BytesCodec, Service, open_port

SECTIONS = ("generic", "http2")

# Package and case, as in the tool's report: why we do not pass it.
EXPECTED = {
    ("generic/2", "Sends a WINDOW_UPDATE frame on half-closed (remote) stream"): (
        "it wants DATA in the answer; a gRPC refusal (a GET is no call) is headers only"
    ),
    ("generic/2", "Sends a PRIORITY frame on half-closed (remote) stream"): (
        "it wants DATA in the answer, as above"
    ),
    (
        "http2/5.1.2",
        "Sends HEADERS frames that causes their advertised concurrent stream limit to be exceeded",
    ): (
        "its requests are refused, and over, as they come: the limit is never reached "
        "(test_calls_over_the_limit_are_refused reaches it)"
    ),
}


async def failures(tool: str) -> dict[tuple[str, str], str]:
    """The cases that fail, with what the tool says of each."""
    server = GrpcServer(Service().handlers(), codec=BytesCodec())
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory, "report.xml")
        async with open_port(server) as port:
            # What should come is waited for so long; two seconds would be its own choice.
            command = [tool, *SECTIONS, "-p", str(port), "-o", "4", "-S", "-j", str(report)]
            run = functools.partial(trio.run_process, command, check=False, capture_stdout=True)
            with trio.fail_after(300):
                await run()
        suites = ET.parse(report).getroot().iter("testsuite")
    failed: dict[tuple[str, str], str] = {}
    for suite in suites:
        for case in suite.iter("testcase"):
            problem = case.find("failure")
            if problem is None:
                problem = case.find("error")
            if problem is not None:
                key = (case.get("package", ""), case.get("classname", ""))
                failed[key] = " ".join((problem.text or "").split())
    return failed


def main() -> int:
    tool = sys.argv[1] if len(sys.argv) > 1 else shutil.which("h2spec")
    if tool is None:
        print("h2spec is not on PATH")
        return 1
    failed = trio.run(failures, tool)
    for (package, case), text in failed.items():
        if (package, case) in EXPECTED:
            print(f"expected  {package}: {case}: {EXPECTED[package, case]}")
        else:
            print(f"FAILED    {package}: {case}: {text}")
    for package, case in EXPECTED.keys() - failed.keys():
        print(f"PASSED    {package}: {case}: take it off the list")
    return int(failed.keys() != EXPECTED.keys())


if __name__ == "__main__":
    sys.exit(main())
