"""Configuration of the embedded server: the keys, defaults and limits of the real server's file.

Names are those of the TOML file, so milliseconds stay milliseconds here. Every value is checked
when it is set; the error names the key as it stands in the file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, TypeAlias

from sepp_trio.errors import ConfigError
from sepp_trio.transport.server import ServerConfig
from sepp_trio.types._checks import shown

from . import _config_file as _file
from ._names import queue_name_problem

PersistMode: TypeAlias = Literal["sync_all", "sync_data", "buffer"]
RetryBackoff: TypeAlias = Literal["none", "exponential"]

_UINT32 = 2**32 - 1
# SQLite's integers, and the ones TOML promises.
_INT64 = 2**63 - 1


def _number(default: int | None, low: int, high: int = _INT64) -> Any:
    return field(default=default, metadata={"range": (low, high)})


_PERSIST_MODES = {"choices": ("sync_all", "sync_data", "buffer")}
_BACKOFFS = {"choices": ("none", "exponential")}


def _check(section: object, where: str) -> None:
    """Check the types and ranges that the fields of a section declare."""
    for item in fields(section):  # type: ignore[arg-type]
        value = getattr(section, item.name)
        key = f"{where}.{item.name}"
        if value is None and item.default is None:
            continue
        if "range" in item.metadata:
            low, high = item.metadata["range"]
            if isinstance(value, bool) or not isinstance(value, int):
                raise ConfigError(key, f"must be a whole number, not {value!r}")
            if not low <= value <= high:
                raise ConfigError(key, f"must be between {low} and {high}, not {shown(value)}")
        elif "choices" in item.metadata and value not in item.metadata["choices"]:
            allowed = " or ".join(map(repr, item.metadata["choices"]))
            raise ConfigError(key, f"must be {allowed}, not {value!r}")


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _check_texts(value: object, key: str) -> None:
    if value is not None and not (
        isinstance(value, tuple) and all(isinstance(item, str) for item in value)
    ):
        raise ConfigError(key, f"must be a list of strings, not {value!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsConfig:
    """``[limits]``: what the server takes, and the defaults of what a request leaves out.

    ``max_queue_depth`` ``None`` is no cap, ``allowed_encodings`` ``None`` is any.
    """

    max_lease_duration_ms: int = _number(300_000, 1)
    default_max_attempts: int = _number(3, 1, _UINT32)
    max_attempts_ceiling: int = _number(100, 1, _UINT32)
    default_priority: int = _number(0, 0, 9)
    retry_delay_ms: int = _number(0, 0)
    retry_backoff: RetryBackoff = field(default="none", metadata=_BACKOFFS)
    retry_delay_max_ms: int = _number(3_600_000, 1)
    max_reserve_batch: int = _number(256, 1, _UINT32)
    max_reserve_queues: int = _number(32, 1, _UINT32)
    max_wait_timeout_ms: int = _number(300_000, 1)
    max_enqueue_batch: int = _number(256, 1, _UINT32)
    max_queue_depth: int | None = _number(None, 0)
    max_payload_bytes: int = _number(1_048_576, 1)
    max_message_bytes: int = _number(16_777_216, 1)
    max_custom_entries: int = _number(64, 1, _UINT32)
    max_custom_total_bytes: int = _number(16_384, 1)
    max_custom_key_bytes: int = _number(256, 1, _UINT32)
    max_queue_name_bytes: int = _number(512, 1, 65_535)
    max_job_type_bytes: int = _number(256, 1, _UINT32)
    max_idempotency_key_bytes: int = _number(256, 1, _UINT32)
    max_schedule_horizon_ms: int = _number(2_592_000_000, 1)
    allowed_encodings: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        _check(self, "limits")
        _check_texts(self.allowed_encodings, "limits.allowed_encodings")


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageConfig:
    """``[storage]``: how durable, and for how long.

    ``persist_mode``: ``sync_all`` and ``sync_data`` are the same here, a sync before every
    reply, so that a reply survives the loss of power; with ``buffer`` it survives the end of the
    process, while the loss of power may take the last replies back (never more: the file stays
    sound). ``dead_letter_retention_ms`` 0 keeps no dead letters.
    """

    persist_mode: PersistMode = field(default="sync_all", metadata=_PERSIST_MODES)
    sweep_limit: int = _number(10_000, 1)
    dedup_window_ms: int = _number(86_400_000, 1)
    dead_letter_retention_ms: int = _number(0, 0)

    def __post_init__(self) -> None:
        _check(self, "storage")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenConfig:
    """``[server]``: where to listen (``host:port`` or ``unix:/path``), and the TLS files (PEM)."""

    listen_addr: str = "0.0.0.0:50051"
    tls_cert_path: str | None = None
    tls_key_path: str | None = None

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if value is not None and not _is_text(value):
                raise ConfigError(f"server.{item.name}", f"must be a text, not {value!r}")
        if (self.tls_cert_path is None) != (self.tls_key_path is None):
            missing = "tls_cert_path" if self.tls_cert_path is None else "tls_key_path"
            raise ConfigError(f"server.{missing}", "is missing: set both TLS files or neither")


@dataclass(frozen=True, slots=True)
class ApiKey:
    """An entry of ``auth.api_keys``; only the key is secret."""

    name: str
    key: str = field(repr=False)

    def __post_init__(self) -> None:
        if not _is_text(self.name):
            raise ConfigError("auth.api_keys.name", f"must be a text, not {self.name!r}")
        if not _is_text(self.key):
            raise ConfigError("auth.api_keys.key", f"of {self.name!r} must be a text")
        if not all("\x21" <= character <= "\x7e" for character in self.key):
            raise ConfigError(
                "auth.api_keys.key", f"of {self.name!r} must be visible ASCII without blanks"
            )


@dataclass(frozen=True, slots=True)
class QueueConfig:
    """An entry of ``[[queues]]``: a declared queue, and what differs from the global limits."""

    name: str
    max_lease_duration_ms: int | None = _number(None, 1)
    default_max_attempts: int | None = _number(None, 1, _UINT32)
    max_attempts_ceiling: int | None = _number(None, 1, _UINT32)
    default_priority: int | None = _number(None, 0, 9)
    retry_delay_ms: int | None = _number(None, 0)
    retry_backoff: RetryBackoff | None = field(default=None, metadata=_BACKOFFS)
    retry_delay_max_ms: int | None = _number(None, 1)
    max_payload_bytes: int | None = _number(None, 1)
    allowed_encodings: tuple[str, ...] | None = None
    allowed_job_types: tuple[str, ...] | None = None
    max_schedule_horizon_ms: int | None = _number(None, 1)
    max_custom_entries: int | None = _number(None, 1, _UINT32)
    max_custom_total_bytes: int | None = _number(None, 1)
    max_custom_key_bytes: int | None = _number(None, 1, _UINT32)
    dedup_window_ms: int | None = _number(None, 1)
    max_queue_depth: int | None = _number(None, 0)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise ConfigError("queues.name", f"must be a text, not {self.name!r}")
        if problem := queue_name_problem(self.name):
            raise ConfigError("queues.name", f"{self.name!r} {problem}")
        where = f"queues[{self.name!r}]"
        _check(self, where)
        _check_texts(self.allowed_encodings, f"{where}.allowed_encodings")
        _check_texts(self.allowed_job_types, f"{where}.allowed_job_types")
        if self.allowed_job_types == ():
            raise ConfigError(f"{where}.allowed_job_types", "must not be empty")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """What holds for one queue: its own values where it has them, else the global ones."""

    max_lease_duration_ms: int
    default_max_attempts: int
    max_attempts_ceiling: int
    default_priority: int
    retry_delay_ms: int
    retry_backoff: RetryBackoff
    retry_delay_max_ms: int
    max_payload_bytes: int
    allowed_encodings: tuple[str, ...] | None
    allowed_job_types: tuple[str, ...] | None
    max_schedule_horizon_ms: int
    max_custom_entries: int
    max_custom_total_bytes: int
    max_custom_key_bytes: int
    dedup_window_ms: int
    max_queue_depth: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """All settings of an embedded server.

    ``api_keys`` ``None`` lets everyone in, an empty tuple nobody. ``strict_queues`` refuses
    queues that are not declared in ``queues``. ``transport`` bounds what peers may do to the
    server; it has no part in the file, and its ``max_message_bytes`` is that of the limits.

    :raises ConfigError: a value is wrong, alone or beside the others; names the key.
    """

    server: ListenConfig = field(default_factory=ListenConfig)
    strict_queues: bool = False
    api_keys: tuple[ApiKey, ...] | None = None
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    storage: StorageConfig = field(default_factory=StorageConfig)
    queues: tuple[QueueConfig, ...] = ()
    transport: ServerConfig = field(default_factory=ServerConfig)
    _declared: dict[str, QueueSettings] = field(init=False, repr=False, compare=False)
    _undeclared: QueueSettings = field(init=False, repr=False, compare=False)

    # Keys of a queue that have no global default.
    _OWN: ClassVar[tuple[str, ...]] = ("allowed_job_types",)

    def __post_init__(self) -> None:
        if not isinstance(self.strict_queues, bool):
            raise ConfigError("server.strict_queues", f"must be a bool, not {self.strict_queues!r}")
        self._check_keys()
        undeclared = self._settings(None)
        declared = {}
        for queue in self.queues:
            if queue.name in declared:
                raise ConfigError("queues.name", f"{queue.name!r} is declared twice")
            size = len(queue.name.encode())
            if size > self.limits.max_queue_name_bytes:
                raise ConfigError(
                    "queues.name",
                    f"{queue.name!r} of {size} bytes is over limits.max_queue_name_bytes "
                    f"({self.limits.max_queue_name_bytes})",
                )
            declared[queue.name] = self._settings(queue)
        object.__setattr__(self, "_undeclared", undeclared)
        object.__setattr__(self, "_declared", declared)

    def _check_keys(self) -> None:
        names: set[str] = set()
        secrets: set[str] = set()
        for entry in self.api_keys or ():
            if entry.name in names:
                raise ConfigError("auth.api_keys.name", f"{entry.name!r} is there twice")
            if entry.key in secrets:
                raise ConfigError("auth.api_keys.key", f"of {entry.name!r} is another one's too")
            names.add(entry.name)
            secrets.add(entry.key)

    def _settings(self, queue: QueueConfig | None) -> QueueSettings:
        where = "limits" if queue is None else f"queues[{queue.name!r}]"
        values: dict[str, Any] = {}
        for item in fields(QueueSettings):
            value = None if queue is None else getattr(queue, item.name)
            if value is None and item.name not in self._OWN:
                section = self.storage if item.name == "dedup_window_ms" else self.limits
                value = getattr(section, item.name)
            values[item.name] = value
        settings = QueueSettings(**values)
        if settings.max_payload_bytes > self.limits.max_message_bytes:
            raise ConfigError(
                f"{where}.max_payload_bytes",
                f"{settings.max_payload_bytes} is over limits.max_message_bytes "
                f"({self.limits.max_message_bytes})",
            )
        if settings.default_max_attempts > settings.max_attempts_ceiling:
            raise ConfigError(
                f"{where}.default_max_attempts",
                f"{settings.default_max_attempts} is over max_attempts_ceiling "
                f"({settings.max_attempts_ceiling})",
            )
        if settings.retry_delay_ms > settings.retry_delay_max_ms:
            raise ConfigError(
                f"{where}.retry_delay_ms",
                f"{settings.retry_delay_ms} is over retry_delay_max_ms "
                f"({settings.retry_delay_max_ms})",
            )
        return settings

    def is_declared(self, queue: str) -> bool:
        """Whether ``[[queues]]`` has an entry of this name."""
        return queue in self._declared

    def settings_of(self, queue: str) -> QueueSettings:
        """What holds for this queue, declared or not."""
        return self._declared.get(queue, self._undeclared)

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str]) -> BrokerConfig:
        """Read the real server's configuration file; see :meth:`from_mapping`."""
        return cls.from_mapping(_file.load(path))

    @classmethod
    def from_mapping(cls, document: Mapping[str, object]) -> BrokerConfig:
        """Take the parsed file. As the real server does, ignore keys that are not known, except
        in the entries of ``auth.api_keys``.

        ``server.db_path`` is not used: the database is the argument of ``open_broker``.

        :raises ConfigError: names the key.
        """
        server = _file.section(document, "server")
        auth = _file.section(document, "auth")
        _file.check_unused(_file.section(document, "storage"))
        keys = _file.tables(auth, "api_keys", "auth.api_keys")
        return cls(
            server=_file.build(ListenConfig, server),
            strict_queues=server.get("strict_queues", False),  # type: ignore[arg-type]
            api_keys=None if keys is None else tuple(map(_api_key, keys)),
            limits=_file.build(LimitsConfig, _file.section(document, "limits")),
            storage=_file.build(StorageConfig, _file.section(document, "storage")),
            queues=tuple(map(_queue, _file.tables(document, "queues", "queues") or ())),
        )


def _api_key(entry: Mapping[str, object]) -> ApiKey:
    if entry.keys() != {"name", "key"}:
        raise ConfigError("auth.api_keys", f"an entry has name and key, not {sorted(entry)}")
    return _file.build(ApiKey, entry)


def _queue(entry: Mapping[str, object]) -> QueueConfig:
    if "name" not in entry:
        raise ConfigError("queues.name", "is missing in an entry")
    return _file.build(QueueConfig, entry)
