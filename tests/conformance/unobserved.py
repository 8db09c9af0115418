"""What the suite leaves out, each with the reason: rules of the server, and skipped scenarios.

UNOBSERVED lists the rows of spec/server.md that no scenario proves. A row is there when it cannot
be seen from outside, when seeing it takes longer than a test may, or when it describes a choice
of the real server that the embedded one is free to make otherwise. Sections 9 to 12 (benchmarks,
installing, the cluster to come, documentation) hold no behaviour.
"""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """One row or rule: where it stands, what it says, why it is not proven here."""

    section: str
    rule: str
    reason: str


UNOBSERVED = (
    Row("1.2", "rejection 14, QueueClosing", "only the real server's admin API sets a tombstone"),
    Row("1.5", "cause 4, ADMIN", "only the real server's admin API makes one"),
    Row("1.2", "future rejections, causes and fields", "needs a newer server: tests of the wire"),
    Row("2.1", "16 MiB and one byte more as a job", "jobs end at 1 MiB: by an unknown field"),
    Row("2.2", "message texts", "not part of the contract, but for the names in them"),
    Row("2.2", "INTERNAL for a storage failure", "cannot be provoked from outside"),
    Row("2.3", "one stamp for a committer batch", "which calls share one is a matter of timing"),
    Row("2.4", "a failed batch is rolled back whole", "cannot be provoked from outside"),
    Row("2.4", "a full command queue blocks", "the embedded server has none"),
    Row("2.5", "the order of the sweep's phases", "their items do not meet"),
    Row("3.2", "a schedule exactly at the horizon", "the server's now is not known to the ms"),
    Row("3.3", "QueueClosing comes before a known key", "only the admin API sets a tombstone"),
    Row("3.4", "the closing stage of an atomic batch", "only the admin API sets a tombstone"),
    Row("3.7", "a deadline when the window shrinks", "read in the source of the real server only"),
    Row("3.7", "deleting a queue clears its keys", "an act of the admin API"),
    Row("3.9", "trace contexts made by the server", "left out of the embedded server on purpose"),
    Row("4.2", "the default longest wait of 300 s", "too long: shown with a maximum of 0.4 s"),
    Row(
        "4.6",
        "a reset that crosses the wake-up",
        "the real server strands jobs there, not ours",
    ),
    Row("4.6", "a reset right behind a reserve", "the real server strands jobs there, not ours"),
    Row("5.1", "acting between expiry and sweep", "under 1 ms wide, and either outcome is legal"),
    Row("5.4", "the hash behind the jitter", "clients cannot rely on it: only its range is shown"),
    Row("6", "the order of dead letters of one millisecond", "not promised, as above"),
    Row("6", "requeue through the admin API", "left out of the embedded server on purpose"),
    Row("6", "the default sweep limit of 10000 records", "too many: shown with a limit of 5"),
    Row("7", "hot reload", "left out of the embedded server on purpose"),
    Row("8.1", "defaults that no call shows", "storage and sweep settings work by their effects"),
    Row("8.3", "TCP_NODELAY, no maximum age, no client certificates", "not visible to a client"),
    Row("8.3", "health Watch", "a stream that keeps the real server from ending"),
    Row("8.4", "command line, environment, log lines", "each server has its own"),
    Row("8.5", "no limit on the drain", "the embedded server bounds it on purpose"),
    Row("8.5", "connects during the drain hear nothing", "a fault: ours may refuse them"),
    Row("8.6", "loss of power", "not tested by anyone"),
    Row("14.1", "the values of SETTINGS and windows", "the real server's choice"),
    Row("14.1", "3000 open streams", "the embedded server announces a limit: shown with 500"),
    Row("14.1", "a silent connection is kept", "the embedded server bounds the handshake"),
    Row("14.3", "sizes and order of header blocks", "the encoder's choice"),
    Row("14.4", "order of the headers of a refusal", "differs within the real server already"),
    Row("14.5", "units M and H", "nobody waits for them; that they parse is seen with m, u, n, S"),
    Row("14.5", "the 21st early reset", "depends on what one read brings: shown with 20 and 500"),
    Row("14.6", "the server's PING after 30 s", "too long for this suite"),
    Row("14.6", "20000 pings", "shown with 2000"),
    Row("14.6", "the debug data and PING bytes of goodbye", "the real server's choice"),
    Row("clients 4.8", "back-off of unhandled types by attempt", "too long: tests of the worker"),
    Row("clients 4.8", "jitter and the retry of keyless enqueues", "tests of the client"),
    Row("clients 4.8", "a drain of none makes no call", "not visible to a server"),
    Row("2.1", "wrong wire types and varints over 64 bits", "INTERNAL there, skipped by ours"),
    Row("14.7", "what the spec itself did not check", "see there"),
)

# Scenarios that a driver's library cannot pass, on any server.
SKIPPED: dict[str, dict[str, str]] = {
    "sepp_py": {
        "a_type_without_handler_is_nacked_once_and_comes_again_after_two_seconds": (
            "its worker nacks such a job by the queue's policy, which is at once"
        ),
    },
    "sepp_trio": {},
}
