"""The settings of the sidecar: which there are, what they mean, and what they may be. Read by `bridge.config`.

Secrets are never settings: a setting names the environment variable or the file that holds one.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal, Self

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from .attach.plan import NOTIFYING
from .journal.opening import is_postgres
from .setting_types import (
    AttachDialect,
    Count,
    HttpUrl,
    JournalAddress,
    PathPrefix,
    Port,
    ReadableFile,
    RelayDialect,
    Seconds,
    SecretFile,
    SecretsFile,
    SecretsVariable,
    SecretVariable,
    Timeout,
    Url,
    Words,
    secret_of,
    secrets_of,
)
from .tools.mcp import McpServer, McpTable
from .tools.webhook import HttpTable

__all__ = [
    "PREFIX",
    "AdminTable",
    "AdminToken",
    "AttachTable",
    "JournalTable",
    "LimitsTable",
    "ListenTable",
    "LogTable",
    "RouteTable",
    "SessionTable",
    "Settings",
    "ToolsTable",
    "UpstreamTable",
    "is_loopback",
]

PREFIX: Final = "BRIDGE_"
"""Of the environment variables that set something: `BRIDGE_<TABLE>__<KEY>`."""


# ------------------------------------------------------------------------------------------------------- the tables


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class ListenTable(_Table):
    """Where applications connect."""

    host: str = "127.0.0.1"
    """Address to listen on. Beyond the loopback, a provider's key has to be guarded by tokens."""
    port: Port = 8787
    workers: Count = 1
    """Processes that share this port, about one for each core. The limits of `[limits]` are those of each of them."""
    certificate: ReadableFile | None = None
    """PEM file with the certificate chain, for TLS; needs `key`."""
    key: ReadableFile | None = None
    """PEM file with the private key."""
    origins: Words = ()
    """Browser origins that are let in, such as `https://app.example.com`. Others are refused."""
    hosts: Words = ()
    """Names by which applications may call this port; by default, on the loopback its own names, elsewhere any."""
    correlation_header: str = ""
    """Header of the application's request whose value is in every log line of its session, such as a call's id."""
    metadata_headers: dict[str, str] = {}
    """What tools find in the metadata of a session: names, and the headers of the application's request that hold the
    values, as in `{ caller = "X-Caller-Number" }`. A `hidden` parameter of a tool can be filled from there."""

    @model_validator(mode="after")
    def _pairs(self) -> Self:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key go together: set both, or neither")
        return self


class AdminToken(_Table):
    """A token that allows some of what can be done over the admin port."""

    name: Annotated[str, Field(pattern=r"^[\w.-]{1,40}$")]
    """Whose it is, for the record."""
    token_env: SecretVariable | None = None
    """Environment variable with the token itself."""
    token_file: SecretFile | None = None
    """File with it."""
    scopes: Annotated[tuple[Literal["read", "complete", "approve", "drain"], ...], Field(min_length=1)]
    """Look at sessions, complete calls that wait, approve calls, drain the process."""

    @property
    def token(self) -> str:
        """The secret itself."""
        return secret_of(self.token_env, self.token_file)


class AdminTable(_Table):
    """The port for metrics, health, sessions, and calls that wait for somebody outside."""

    host: str = "127.0.0.1"
    """Address to listen on. Beyond the loopback, sessions are shown to those with a token only."""
    port: Port = 9090
    token_env: SecretVariable | None = None
    """Environment variable with the token that allows everything."""
    token_file: SecretFile | None = None
    """File with this token."""
    tokens: tuple[AdminToken, ...] = ()
    """Tokens that allow less: one table `[[admin.tokens]]` each."""
    approvals: bool = False
    """Somebody decides over this port which calls may run, also while nobody is looking."""
    hosts: Words = ()
    """Names by which this port may be called; by default, on the loopback its own names, elsewhere any."""
    origins: Words = ()
    """Browser origins that may call it, such as `https://desk.example.com`. Others are refused."""

    @property
    def token(self) -> str:
        """The secret itself; empty if there is none."""
        return secret_of(self.token_env, self.token_file)

    @model_validator(mode="after")
    def _somebody_may_decide(self) -> Self:
        scopes = [scope for each in self.tokens for scope in each.scopes]
        if self.approvals and not (self.token_env or self.token_file or "approve" in scopes):
            raise ValueError('approvals: nobody could decide; set token_env, or a token with the scope "approve"')
        return self


class UpstreamTable(_Table):
    """The provider."""

    dialect: RelayDialect = "assemblyai"
    """Its protocol."""
    url: Url = ""
    """Its address; by default the dialect's own."""
    api_key_env: SecretVariable | None = None
    """Environment variable with the provider's key. Without one, the key that the application sends is passed on."""
    api_key_file: SecretFile | None = None
    """File with this key."""
    tokens_env: SecretsVariable | None = None
    """Environment variable with what applications must show instead of the key: tokens, separated by commas."""
    tokens_file: SecretsFile | None = None
    """File with these tokens, one a line."""
    ca_file: ReadableFile | None = None
    """PEM file with the certificates that are trusted, instead of the system's."""
    pings: Literal["pass", "answer"] = "pass"
    """Let pings through from end to end, or answer them here, and ping both sides."""

    @property
    def api_key(self) -> str:
        """The secret itself; empty if the application brings its own."""
        return secret_of(self.api_key_env, self.api_key_file)

    @property
    def tokens(self) -> tuple[str, ...]:
        """The secrets themselves."""
        return secrets_of(self.tokens_env, self.tokens_file)

    on_provider_loss: Literal["close", "resume"] = "close"
    """When the connection to the provider is lost: `close` the application's, too, or keep it and `resume` the session.

    To resume, the credentials of the connection are kept in memory for as long as it lasts.
    """

    @model_validator(mode="after")
    def _tokens_stand_for_a_key(self) -> Self:
        tokens = self.tokens_env or self.tokens_file
        if tokens and not (self.api_key_env or self.api_key_file):
            raise ValueError("tokens stand for the provider's key: set api_key_env or api_key_file, too")
        return self


class RouteTable(UpstreamTable):
    """One of several providers or tenants, by the beginning of the path."""

    path: PathPrefix
    """What the path begins with; the rest is carried to the provider."""


class AttachTable(_Table):
    """Sessions that run at a provider already, and whose tools are served here; one table each."""

    dialect: AttachDialect
    """Its protocol: `openai-sessions`, `hcompany` or `herm`."""
    sessions: Words = ()
    """Their ids, as the provider has them. What is added or taken away counts at the next reload."""
    url: HttpUrl = ""
    """The provider's address; by default the dialect's own."""
    api_key_env: SecretVariable | None = None
    """Environment variable with the key; by default the one that the provider's own clients use."""
    api_key_file: SecretFile | None = None
    """File with this key."""
    webhook_host: str = "127.0.0.1"
    """Address to take the provider's notifications at, which name further sessions; to be put behind HTTPS."""
    webhook_port: Port | None = None
    """Port for that; without one, none are taken. `hcompany` only."""
    webhook_secret_env: SecretsVariable | None = None
    """Environment variable with the secret that signs them; several, while one replaces another, with commas."""
    webhook_secret_file: SecretsFile | None = None
    """File with these, one a line."""
    max_sessions: Count = 1000
    """Served at once; further ones wait."""
    give_up: Timeout = 300.0
    """Seconds after which a provider that cannot be reached counts as lost."""

    @property
    def api_key(self) -> str | None:
        """The secret itself; None where the provider's own variable has it."""
        return secret_of(self.api_key_env, self.api_key_file) or None

    @property
    def webhook_secrets(self) -> tuple[str, ...]:
        """The secrets themselves."""
        return secrets_of(self.webhook_secret_env, self.webhook_secret_file)

    @model_validator(mode="after")
    def _notifications_are_signed(self) -> Self:
        if self.webhook_port is None:
            return self
        if self.dialect not in NOTIFYING:
            raise ValueError(f"webhook_port: {self.dialect} sends no notifications that could be verified")
        if not self.webhook_secrets:
            raise ValueError("webhook_port: set webhook_secret_env or webhook_secret_file, too")
        return self


class ToolsTable(_Table):
    """The tools that sessions get."""

    python: Words = ()
    """Files or modules; every Toolset in them."""
    http: tuple[HttpTable, ...] = ()
    """HTTP endpoints that are tools: one table `[[tools.http]]` each."""
    mcp: tuple[McpTable, ...] = ()
    """MCP servers whose tools are ours: one table `[[tools.mcp]]` each."""
    off: Words = ()
    """Names of tools that are switched off: calls of them are answered "not available now"."""
    show_calls: bool = False
    """Let applications see the calls of these tools, for information."""


class SessionTable(_Table):
    """How sessions are treated."""

    on_application_loss: Literal["end", "keep"] = "end"
    """When an application vanishes: `end` the provider's session, or `keep` it for as long as it may be resumed."""
    drain_seconds: Seconds = 60.0
    """After SIGTERM, for sessions to come to their end."""


class JournalTable(_Table):
    """Where it is written down what has happened, so that no tool with effects runs twice, whatever dies when."""

    address: JournalAddress = ""
    """A file, or a database: `postgresql://user@host/name`. Empty: no journal. One file is written by one process: with
    several workers, `{worker}` in its name stands for the number of each."""
    payloads: Literal["none", "redacted", "full"] = "redacted"
    """What stays of arguments and results once they are not owed any more: a digest, all but the fields that a tool
    names in `redact`, or all."""
    key_env: SecretVariable | None = None
    """Environment variable with a key, 32 bytes in base64 or hex, with which all of them are encrypted."""
    key_file: SecretFile | None = None
    """File with this key."""
    keep_days: Timeout = 30.0
    """Days after which a session is removed, counted from its end."""
    max_size: Count | None = None
    """Bytes of all sessions, about, beyond which the oldest are removed."""

    @property
    def key(self) -> str:
        """The secret itself; empty if there is none."""
        return secret_of(self.key_env, self.key_file)


class LimitsTable(_Table):
    """What the process takes on at most. Sizes in bytes, times in seconds."""

    max_sessions: Count = 1000
    """Sessions at once; one more is answered 503."""
    max_dials: Count = 32
    """Connections to providers that are being made at once; further ones wait."""
    max_message: Count = 4 * 1024 * 1024
    """Bytes of one message, in either direction."""
    max_head: Count = 16 * 1024
    """Bytes of the head of an HTTP request or response."""
    max_concurrent_tools: Count = 256
    """Tools that run at once in the process."""
    max_concurrent_tools_per_session: Count = 4
    """Tools that run at once in a session."""
    max_threads: Count = 32
    """Threads for tools that are plain functions."""
    max_tool_failures: Count = 5
    """Failures of a tool in a row after which it is not called for a while."""
    tool_pause: Timeout = 30.0
    """How long that is; one call is then let through, to see."""
    handshake_timeout: Timeout = 10.0
    """For an application's request."""
    dial_timeout: Timeout = 15.0
    """For a provider to accept a connection."""
    setup_timeout: Timeout = 5.0
    """After which an application that has not configured its session is reported."""
    ping_interval: Timeout = 20.0
    """Between two pings, where they are ours."""
    ping_timeout: Timeout = 20.0
    """For the answer to one of them."""
    stall_timeout: Timeout = 30.0
    """How long a peer may read nothing that is sent to it."""
    owed_timeout: Timeout = 5.0
    """For results that are still owed, when a session is to end."""
    end_timeout: Timeout = 2.0
    """For the provider to end a session that it was asked to end."""
    close_timeout: Timeout = 5.0
    """For a connection to be closed properly."""
    resume_timeout: Timeout = 30.0
    """How long a session is kept for an application that may come back."""


class LogTable(_Table):
    level: Literal["debug", "info", "warning", "error"] = "info"


class Settings(BaseSettings):
    """Everything that can be set. Made by `read`."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True, use_attribute_docstrings=True
    )

    listen: ListenTable = ListenTable()
    admin: AdminTable = AdminTable()
    upstream: UpstreamTable = UpstreamTable()
    route: tuple[RouteTable, ...] = ()
    """Further providers by path; what none of them fits goes to `[upstream]`."""
    tools: ToolsTable = ToolsTable()
    session: SessionTable = SessionTable()
    journal: JournalTable = JournalTable()
    limits: LimitsTable = LimitsTable()
    attach: tuple[AttachTable, ...] = ()
    """Sessions of agents that run already, at providers over HTTP."""
    log: LogTable = LogTable()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only what `read` has put together, so that it can say of each value where it came from."""
        return (init_settings,)

    @model_validator(mode="after")
    def _keys_are_guarded(self) -> Self:
        if not is_loopback(self.listen.host):
            for table, each in (("upstream", self.upstream), *(("route", each) for each in self.route)):
                if (each.api_key_env or each.api_key_file) and not each.tokens:
                    raise ValueError(
                        f"listen.host = {self.listen.host!r}: everybody could use the provider's key; "
                        f"set {table}.tokens_env or {table}.tokens_file, or listen on the loopback"
                    )
        paths = [each.path for each in self.route]
        if len(set(paths)) < len(paths):
            raise ValueError("route.path: two routes have the same one")
        return self

    @model_validator(mode="after")
    def _each_worker_has_a_file(self) -> Self:
        address = self.journal.address
        if self.listen.workers > 1 and address and not is_postgres(address) and "{worker}" not in address:
            raise ValueError(
                f"journal.address: {self.listen.workers} workers cannot write one file; "
                'put {worker} into its name, as in "calls-{worker}.db"'
            )
        return self

    def text(self) -> str:
        """What is in force, as TOML. Of a secret it says where it comes from, and never what it is."""
        return "\n".join(_toml(self))


def is_loopback(host: str) -> bool:
    """Can only this machine reach it?"""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _toml(settings: Settings) -> Iterator[str]:
    for table in Settings.model_fields:
        value = getattr(settings, table)
        for each in value if isinstance(value, tuple) else (value,):
            yield f"[[{table}]]" if isinstance(value, tuple) else f"[{table}]"
            fields = {name: getattr(each, name) for name in type(each).model_fields}
            inner = {name: field for name, field in fields.items() if _has_tables(field)}
            yield from (_line(name, field) for name, field in fields.items() if name not in inner)
            yield ""
            yield from (tomli_w.dumps({table: {name: _plain(field)}}) for name, field in inner.items())


def _has_tables(value: object) -> bool:
    return isinstance(value, Mapping) or (isinstance(value, tuple) and any(isinstance(v, BaseModel) for v in value))


def _plain(value: Any) -> Any:
    """As TOML can hold it: what differs from the defaults, and of what is given to a program only the names."""
    if isinstance(value, McpServer):
        value = value.model_copy(update={"env": dict.fromkeys(value.env, "(not shown)")})
    match value:
        case BaseModel():
            return value.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        case tuple():
            return [_plain(each) for each in value]
        case _:
            return value


def _line(name: str, value: object) -> str:
    if value is None:
        return f"# {name} is not set"
    text = json.dumps(value if isinstance(value, bool | int | float | tuple) else str(value))
    return f"{name} = {text}" + ("  # set; not shown" if name.endswith(("_env", "_file")) else "")
