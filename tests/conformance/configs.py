"""The configurations, as TOML that both servers read.

A server process is shared by all scenarios of one configuration, also by those of the other
driver. Queues that must be declared are therefore declared once for each driver; a scenario gets
its own by `env.declared(name)`.
"""

from __future__ import annotations

DRIVERS = ("sepp_trio", "sepp_py")


def _queues(name: str, settings: str = "") -> str:
    return "".join(f'[[queues]]\nname = "{name}-{driver}"\n{settings}\n' for driver in DRIVERS)


DEFAULT = ""

RETAINING = "[storage]\ndead_letter_retention_ms = 3600000\n"

SHORTLY = 4.0  # seconds
SHORT_RETENTION = f"[storage]\ndead_letter_retention_ms = {SHORTLY * 1000:.0f}\n"

SMALL_SWEEPS = "[storage]\nsweep_limit = 5\ndead_letter_retention_ms = 3600000\n"

STRICT = (
    "[server]\nstrict_queues = true\n[limits]\nmax_queue_name_bytes = 64\n"
    + "[storage]\ndead_letter_retention_ms = 3600000\n"
    + _queues("known")
    + _queues("familiar")
)

KEYS = (
    "[auth]\napi_keys = ["
    '{ name = "workers", key = "first-key" }, { name = "producers", key = "second-key" }]\n'
)

NO_KEYS = "[auth]\napi_keys = []\n"

LIMITS = (
    """[limits]
max_enqueue_batch = 20
max_reserve_batch = 3
max_reserve_queues = 2
max_payload_bytes = 32
max_custom_entries = 3
max_custom_total_bytes = 40
max_custom_key_bytes = 8
max_queue_name_bytes = 128
max_job_type_bytes = 16
max_idempotency_key_bytes = 16
max_schedule_horizon_ms = 60000
max_lease_duration_ms = 20000
max_wait_timeout_ms = 400
allowed_encodings = ["json", "text"]
default_priority = 4
default_max_attempts = 2
max_attempts_ceiling = 5
"""
    + _queues(
        "roomy",
        """max_payload_bytes = 64
allowed_encodings = ["bin"]
allowed_job_types = ["a", "b"]
max_schedule_horizon_ms = 120000
max_custom_entries = 4
max_custom_total_bytes = 60
max_custom_key_bytes = 12
default_priority = 7
default_max_attempts = 3
max_attempts_ceiling = 6
max_lease_duration_ms = 5000""",
    )
    + _queues("patient", "max_lease_duration_ms = 40000")
    + _queues("mute", "allowed_encodings = []")
)

CAPS = (
    "[limits]\nmax_queue_depth = 3\n[storage]\ndead_letter_retention_ms = 3600000\n"
    + _queues("shut", "max_queue_depth = 0\ndedup_window_ms = 60000")
    + _queues("wide", "max_queue_depth = 5")
)

RETRIES = (
    _queues("steady", "retry_delay_ms = 800")
    + _queues("slow", "retry_delay_ms = 60000")
    + _queues("slowest", "retry_delay_ms = 60000")
    + _queues(
        "growing",
        'retry_delay_ms = 400\nretry_backoff = "exponential"\nretry_delay_max_ms = 1000\n'
        "default_max_attempts = 10",
    )
    + _queues("near", "retry_delay_ms = 60000\nmax_schedule_horizon_ms = 800")
    + _queues("eager", 'retry_backoff = "exponential"')
)

DEDUP = "[storage]\ndedup_window_ms = 5000\n" + _queues("memorious", "dedup_window_ms = 60000")

SMALL_MESSAGES = "[limits]\nmax_message_bytes = 4096\nmax_payload_bytes = 2048\n"

# Paths are relative to the server's directory, where servers.py puts the files.
TLS = '[server]\ntls_cert_path = "server.crt"\ntls_key_path = "server.key"\n'
