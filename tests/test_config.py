"""Settings: what is in force, and what is said about what is wrong."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from bridge.config import read
from bridge.dialects.assemblyai import ASSEMBLYAI
from bridge.errors import ConfigError
from bridge.journal import Retention
from bridge.journal.payloads import Keep
from bridge.relay import Limits, Listen, OnLoss, OnProviderLoss, Pings, Relay, Upstream
from bridge.settings import AttachTable, LimitsTable, RouteTable, Settings, UpstreamTable

pytestmark = pytest.mark.anyio

EXAMPLE = Path(__file__).parents[1] / "examples" / "bridge.toml"
SECRET = "sk-a-secret-of-the-test"

TOOLS = '''
from bridge import Toolset

tools = Toolset()

@tools.tool
async def {name}() -> str:
    """Does something."""
    return "done"
'''

SMALLEST = """
[listen]
host = "127.0.0.1"
port = 8787                                   # applications connect here; the path is carried to the provider
[admin]
host = "127.0.0.1"
port = 9090
[upstream]
dialect = "assemblyai"
url = "wss://agents.assemblyai.com/v1/ws"     # default of the dialect
api_key_env = "ASSEMBLYAI_API_KEY"
[tools]
python = ["my_tools.py"]                      # files or modules; every Toolset found in them
"""


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory with tools, a key in the environment, and nothing else."""
    for name in [name for name in os.environ if name.startswith("BRIDGE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("ASSEMBLYAI_API_KEY", SECRET)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "my_tools.py").write_text(TOOLS.format(name="look_up"))


def written(directory: Path, text: str) -> Path:
    path = directory / "bridge.toml"
    path.write_text(text)
    return path


def faults(path: Path | None, **overrides: dict[str, object]) -> list[str]:
    with pytest.raises(ConfigError) as refused:
        read(path, overrides)
    return str(refused.value).splitlines()


# ------------------------------------------------------------------------------------------------- what is in force


def test_the_smallest_file_is_enough(tmp_path: Path) -> None:
    sidecar = read(written(tmp_path, SMALLEST))
    assert (sidecar.settings.listen.host, sidecar.settings.listen.port) == ("127.0.0.1", 8787)
    assert (sidecar.settings.admin.host, sidecar.settings.admin.port) == ("127.0.0.1", 9090)
    assert sidecar.settings.upstream.url == "wss://agents.assemblyai.com/v1/ws"
    assert sidecar.settings.upstream.api_key == SECRET
    assert list(sidecar.tools) == ["look_up"]


def test_no_file_at_all_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sidecar = read(None, {"tools": {"python": ["my_tools.py"]}, "upstream": {"dialect": "assemblyai"}})
    assert sidecar.settings.listen.port == 8787
    assert sidecar.settings.upstream.api_key == ""
    assert list(sidecar.tools) == ["look_up"]


def test_the_command_line_wins_over_the_environment_and_the_environment_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, "[listen]\nport = 1\nhost = '127.0.0.3'\n[admin]\nport = 1\n[limits]\nmax_threads = 7\n")
    monkeypatch.setenv("BRIDGE_LISTEN__PORT", "2")
    monkeypatch.setenv("BRIDGE_ADMIN__PORT", "2")
    sidecar = read(path, {"listen": {"port": 3}})
    assert (sidecar.settings.listen.port, sidecar.settings.admin.port, sidecar.settings.limits.max_threads) == (3, 2, 7)
    assert sidecar.settings.listen.host == "127.0.0.3"


def test_lists_in_the_environment_are_separated_by_commas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "more.py").write_text(TOOLS.format(name="more"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BRIDGE_TOOLS__PYTHON", "my_tools.py, more.py")
    monkeypatch.setenv("BRIDGE_LISTEN__ORIGINS", "https://a.example,https://b.example")
    sidecar = read(None)
    assert sidecar.settings.listen.origins == ("https://a.example", "https://b.example")
    assert list(sidecar.tools) == ["look_up", "more"]


def test_variables_that_orchestrators_add_by_themselves_are_no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRIDGE_PORT_9090_TCP_ADDR", "10.0.0.1")
    monkeypatch.setenv("BRIDGE_SERVICE_HOST", "10.0.0.1")
    sidecar = read(None)
    assert sidecar.settings == Settings()


def test_paths_in_a_file_are_relative_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token.txt").write_text(f"{SECRET}\n")
    path = written(tmp_path, '[admin]\ntoken_file = "token.txt"\n[tools]\npython = ["./my_tools.py"]\n')
    monkeypatch.chdir("/")
    sidecar = read(path)
    assert sidecar.settings.admin.token == SECRET
    assert list(sidecar.tools) == ["look_up"]


def test_tokens_come_from_the_environment_and_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENS", "one, two,")
    (tmp_path / "tokens").write_text("three\n\nfour\n")
    text = '[upstream]\napi_key_env = "ASSEMBLYAI_API_KEY"\ntokens_env = "TOKENS"\ntokens_file = "tokens"\n'
    (route,) = read(written(tmp_path, text)).routes
    assert route.upstream.tokens == ("one", "two", "three", "four")


def test_routes_have_providers_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACME_KEY", "of acme")
    monkeypatch.setenv("ACME_TOKENS", "one")
    text = """
[[route]]
path = "/acme"
api_key_env = "ACME_KEY"
tokens_env = "ACME_TOKENS"
[[route]]
path = "/b"
url = "ws://127.0.0.1:1/v1/ws"
pings = "answer"
on_provider_loss = "resume"
[session]
on_application_loss = "keep"
[tools]
show_calls = true
"""
    acme, other, rest = read(written(tmp_path, text)).routes
    assert (acme.prefix, other.prefix, rest.prefix) == ("/acme", "/b", "")
    assert (acme.upstream.api_key, acme.upstream.tokens) == ("of acme", ("one",))
    assert (other.upstream.url, other.upstream.pings) == ("ws://127.0.0.1:1/v1/ws", Pings.ANSWER)
    assert (acme.upstream.on_provider_loss, other.upstream.on_provider_loss) == (
        OnProviderLoss.CLOSE,
        OnProviderLoss.RESUME,
    )
    assert rest.upstream == Upstream(dialect=ASSEMBLYAI, on_application_loss=OnLoss.KEEP, show_calls=True)


def test_where_to_listen_is_handed_on(tmp_path: Path) -> None:
    text = '[listen]\nport = 1\norigins = ["https://a.example"]\nhosts = ["a"]\ncorrelation_header = "X-Call-Sid"\n'
    assert read(written(tmp_path, text)).listen == Listen(
        port=1, origins=("https://a.example",), hosts=("a",), correlation_header="X-Call-Sid"
    )


def test_the_limits_are_those_of_the_relay_with_its_own_defaults(tmp_path: Path) -> None:
    assert read(written(tmp_path, "")).limits == Limits()
    assert read(written(tmp_path, "[limits]\nend_timeout = 7\n")).limits == Limits(end_timeout=7.0)
    assert set(LimitsTable.model_fields) == {field.name for field in dataclasses.fields(Limits)}


async def test_a_relay_can_be_made_of_it(tmp_path: Path) -> None:
    sidecar = read(written(tmp_path, SMALLEST.replace("8787", "0")))
    async with Relay(sidecar.routes, sidecar.tools, limits=sidecar.limits) as relay:
        await relay.start(sidecar.listen)
        assert relay.ready == ""


def certificate(directory: Path, name: str) -> tuple[Path, Path]:
    cert, key = directory / f"{name}.pem", directory / f"{name}.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    subject = ["-subj", f"/CN={name}", "-days", "1"]
    subprocess.run([*command, *subject, "-keyout", key, "-out", cert], check=True, capture_output=True)
    return cert, key


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not there to make a certificate")
def test_certificates_are_loaded_and_a_wrong_key_is_said(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "one")
    _, other = certificate(tmp_path, "other")
    text = f'[listen]\ncertificate = "one.pem"\nkey = "{{}}"\n[upstream]\nca_file = "{cert.name}"\n'
    sidecar = read(written(tmp_path, text.format(key.name)))
    assert sidecar.listen.tls is not None
    trusted = sidecar.routes[0].upstream.tls
    assert trusted is not None
    assert len(trusted.get_ca_certs()) == 1
    (line,) = faults(written(tmp_path, text.format(other.name)))
    assert "listen.certificate and listen.key do not go together" in line
    (line,) = faults(written(tmp_path, '[upstream]\nca_file = "my_tools.py"\n'))
    assert "holds no certificates" in line


# --------------------------------------------------------------------------------------------------- what is wrong


def test_everything_that_is_wrong_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRIDGE_ADMIN__PORT", "ninety")
    monkeypatch.setenv("BRIDGE_LISTNE__PORT", "1")
    text = """
[listen]
prot = 8787
port = 99999
[upstream]
dialect = "assembly"
api_key_env = "NOT_SET_ANYWHERE"
url = "https://agents.assemblyai.com"
[session]
on_application_loss = "stay"
[tools]
python = ["missing.py"]
[lmits]
max_threads = 0
"""
    path = written(tmp_path, text)
    found = faults(path)
    for part in (
        f"{path}: listen.prot is unknown; did you mean listen.port?",
        f"{path}: listen.port must be less than or equal to 65535; found 99999",
        "the environment: admin.port must be a valid integer",
        "the environment: BRIDGE_LISTNE__PORT is unknown; did you mean listen.port?",
        f"{path}: upstream.dialect must be one of assemblyai; found 'assembly'",
        f"{path}: upstream.api_key_env must name an environment variable that is set; found 'NOT_SET_ANYWHERE'",
        f"{path}: upstream.url must be a WebSocket address",
        f"{path}: session.on_application_loss must be 'end' or 'keep'; found 'stay'",
        f"tools.python: {tmp_path / 'missing.py'}: there is no such file",
        f"{path}: lmits is unknown; did you mean limits?",
    ):
        assert any(line.startswith(part) for line in found), f"{part}\n---\n" + "\n".join(found)
    assert len(found) == 10


@pytest.mark.parametrize(
    ("written_key", "meant"),
    [
        ("listen.hostt", "listen.host"),
        ("upstream.api_key_evn", "upstream.api_key_env"),
        ("listen.max_sessions", "limits.max_sessions"),
        ("admin.drain_seconds", "session.drain_seconds"),
        ("tools.pyhton", "tools.python"),
        ("route.paht", "route.path"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_known_one(tmp_path: Path, written_key: str, meant: str) -> None:
    table, _, key = written_key.partition(".")
    header = f'[[{table}]]\npath = "/x"' if table == "route" else f"[{table}]"
    (line,) = faults(written(tmp_path, f"{header}\n{key} = 'x'\n"))
    assert "is unknown" in line
    assert line.endswith(f"did you mean {meant}?")


def test_a_key_that_is_like_no_other_is_refused_without_a_guess(tmp_path: Path) -> None:
    (line,) = faults(written(tmp_path, "[log]\nzzzzzzzz = 1\n"))
    assert line.endswith("log.zzzzzzzz is unknown")


@pytest.mark.parametrize(
    "text",
    [
        f'[upstream]\napi_key = "{SECRET}"\n',
        f'[admin]\ntoken = "{SECRET}"\n',
        f'[listen]\ntokens = ["{SECRET}"]\n',
        f'[upstream]\nurl = "wss://host/v1/ws?token={SECRET}"\n',
        f'[upstream]\nurl = "wss://user:{SECRET}@host/v1/ws"\n',
    ],
)
def test_a_secret_in_the_file_is_refused_and_not_repeated(tmp_path: Path, text: str) -> None:
    (line,) = faults(written(tmp_path, text))
    assert SECRET not in line
    assert "environment" in line or "variable" in line


def test_a_providers_key_is_not_left_open_to_the_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, '[listen]\nhost = "0.0.0.0"\n[upstream]\napi_key_env = "ASSEMBLYAI_API_KEY"\n')
    (line,) = faults(path)
    assert "everybody could use the provider's key" in line
    monkeypatch.setenv("TOKENS", "one")
    monkeypatch.setenv("BRIDGE_UPSTREAM__TOKENS_ENV", "TOKENS")
    assert read(path).listen.host == "0.0.0.0"
    monkeypatch.delenv("BRIDGE_UPSTREAM__TOKENS_ENV")
    monkeypatch.setenv("BRIDGE_LISTEN__HOST", "localhost")
    assert read(path).routes[0].upstream.tokens == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[listen]\ncertificate = "my_tools.py"\n', "certificate and key go together"),
        ('[listen]\ncertificate = "no.pem"\nkey = "my_tools.py"\n', "cannot be read: No such file or directory"),
        ('[[route]]\npath = "/a"\n[[route]]\npath = "/a"\n', "two routes have the same one"),
        ('[[route]]\npath = "a"\n', "must begin with /"),
        ('[upstream]\ntokens_file = "my_tools.py"\n', "tokens stand for the provider's key"),
        ("[[route]]\n", "path is missing"),
        ("[limits]\nmax_sessions = 0\n", "must be greater than or equal to 1; found 0"),
        ("[session]\ndrain_seconds = inf\n", "must be a finite number"),
        ("listen = 3\n", "found 3"),
        ("[tools]\npython = 3\n", "found 3"),
        ("[tools]\npython = [3]\n", "found 3"),
        ("tools = 3\n", "found 3"),
        ("[listen\n", "this is not TOML"),
        ('[journal]\naddress = "postgresql://me:pw@host/calls"\n', "it comes from the variable PGPASSWORD"),
        ('[journal]\npayloads = "some"\n', "must be 'none', 'redacted' or 'full'"),
        ("[journal]\nkeep_days = 0\n", "must be greater than 0"),
    ],
)
def test_what_cannot_work_is_said_with_the_file_and_the_reason(tmp_path: Path, text: str, said: str) -> None:
    path = written(tmp_path, text)
    (line,) = faults(path)
    assert said in line
    assert line.startswith(f"{path}: ") or "route" in line


@pytest.mark.parametrize(
    ("key", "held", "said"),
    [
        ("upstream.api_key", "", "is empty"),
        ("upstream.api_key", " \n", "is empty"),
        ("upstream.api_key", "one\ntwo", "in one line"),
        ("upstream.api_key", "schl\u00fcssel", "characters that a header can carry"),
        ("upstream.tokens", "", "is empty"),
        ("upstream.tokens", "one\n\u00fc", "characters that a header can carry"),
        ("admin.token", "", "is empty"),
        ("journal.key", "", "is empty"),
    ],
)
def test_a_secret_that_is_none_is_refused_wherever_it_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, held: str, said: str
) -> None:
    table, name = key.split(".")
    (tmp_path / "secret").write_text(held)
    (line,) = faults(written(tmp_path, f'[{table}]\n{name}_file = "secret"\n'))
    assert f"{key}_file" in line
    assert said in line
    assert "schl" not in line
    monkeypatch.setenv("SOMEWHERE", held.replace("\n", ",") if name == "tokens" and held else held or " ")
    (line,) = faults(written(tmp_path, f'[{table}]\n{name}_env = "SOMEWHERE"\n'))
    assert f"{key}_env" in line
    assert said in line


def test_what_is_wrong_with_the_schema_of_an_http_tool_is_said_with_the_file_for_all_of_them(tmp_path: Path) -> None:
    tool = '[[tools.http]]\nname = "{0}"\nurl = "https://x.example.com/"\nparameters = {{ a = {1} }}\n'
    text = tool.format("one", '{ pattern = "^(?!x)" }') + tool.format("two", '{ type = "strng" }')
    first, second = faults(path := written(tmp_path, text))
    assert first.startswith(f"{path}: tools.http: tool one: its schema cannot be used: the pattern '^(?!x)' cannot be")
    assert second.startswith(f"{path}: tools.http: tool two: its schema is not valid at properties.a.type: 'strng' is")


def test_a_file_that_is_not_there_is_said_in_one_line(tmp_path: Path) -> None:
    assert faults(tmp_path / "none.toml") == [f"{tmp_path / 'none.toml'}: No such file or directory"]


def test_a_table_is_not_set_as_a_whole_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRIDGE_LISTEN", "127.0.0.1:80")
    (line,) = faults(None)
    assert "set key by key, such as BRIDGE_LISTEN__PORT" in line


# --------------------------------------------------------------------------------------------------------- the tools


@pytest.mark.parametrize(
    "text",
    [
        '[upstream]\napi_key_env = "hush-5d2f"\n',
        '[upstream]\napi_key_file = "hush-5d2f"\n',
        '[upstream]\nurl = "wss://x/?token=hush"\n',
        '[admin]\ntokens = "hush"\n',
        '[admin]\ntoken_env = ["hush"]\n',
        '[listen]\nkey = "hush"\ncertificate = "hush"\n',
        '[[route]]\npath = "no"\n[[route.tokens]]\nname = "hush"\n',
        'route = [{ api_key = "hush" }]\n',
        'upstream = ["hush"]\n',
        '[[tools.mcp]]\nname = "a"\nurl = "https://x/"\nheaders_env = { Authorization = "Bearer hush" }\n',
        '[[tools.mcp]]\nname = "a"\ncommand = "x"\nenv = { KEY = ["hush"] }\n',
        '[[tools.mcp]]\nname = "a"\ncommand = "x"\nargs = "hush"\n',
        '[[tools.http]]\nname = "a"\nurl = "https://x/"\nheaders_env = { Authorization = "Bearer hush" }\n',
        '[[tools.http]]\nname = "a"\nurl = "https://x/"\nheaders = { Authorization = ["hush"] }\n',
        '[[tools.http]]\nname = "a"\nurl = "https://x/"\nsigning_key_env = "hush"\n',
        '[journal]\naddress = "postgresql://me:hush@localhost/x"\n',
    ],
)
def test_what_may_be_a_secret_in_the_wrong_place_is_not_repeated(tmp_path: Path, text: str) -> None:
    found = faults(written(tmp_path, text))
    assert found
    assert "hush" not in "".join(found)


def test_a_module_is_found_beside_the_file_and_a_shared_toolset_counts_once(tmp_path: Path) -> None:
    (tmp_path / "tools_of_the_shop.py").write_text(TOOLS.format(name="shop"))
    (tmp_path / "all_of_them.py").write_text("from tools_of_the_shop import tools\n")
    path = written(tmp_path, '[tools]\npython = ["tools_of_the_shop", "all_of_them", "tools_of_the_shop.py"]\n')
    assert list(read(path).tools) == ["shop"]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def (:\n", "this is not Python: invalid syntax (line 1 of broken.py)"),
        ("import os\nraise KeyError('x')\n", "broken.py:2: KeyError: 'x'"),
        ("raise SystemExit\n", "SystemExit:"),
        ("x = 1\n", "there is no Toolset in it"),
        ("from bridge import Toolset\nt = Toolset()\n@t.tool\nclass A: ...\n", "a class makes objects"),
        (TOOLS.format(name="look_up"), "two tools are called look_up"),
    ],
)
def test_tools_that_cannot_be_loaded_are_said_with_the_place(tmp_path: Path, source: str, said: str) -> None:
    (tmp_path / "broken.py").write_text(source)
    (line,) = faults(written(tmp_path, '[tools]\npython = ["my_tools.py", "broken.py"]\n'))
    assert line.startswith("tools.python: ")
    assert said in line


def test_a_module_that_does_not_exist_and_a_file_that_is_no_python_are_both_said(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    one, other = faults(written(tmp_path, '[tools]\npython = ["no_such_module_here", "./notes.txt"]\n'))
    assert "ModuleNotFoundError" in one
    assert "has to end in .py" in other


# ------------------------------------------------------------------------------------------------------- the journal


def test_without_an_address_there_is_no_journal(tmp_path: Path) -> None:
    assert read(written(tmp_path, SMALLEST)).journal is None


async def test_a_journal_is_opened_beside_the_file_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path.parent)
    plan = read(written(tmp_path, '[journal]\naddress = "calls-{worker}.db"\nkeep_days = 2\nmax_size = 5\n')).journal
    assert plan is not None
    assert (plan.keep, plan.retention) == (Keep.REDACTED, Retention(max_age=2 * 86_400.0, max_size=5))
    journal = plan.open(3, lambda tool: ())
    await journal.aclose()
    assert (tmp_path / "calls-3.db").is_file()


def test_the_key_of_the_journal_is_a_secret_and_has_to_be_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, '[journal]\naddress = "calls.db"\nkey_env = "OUR_KEY"\n')
    monkeypatch.setenv("OUR_KEY", "0f" * 32)
    sidecar = read(path)
    assert sidecar.journal is not None
    assert sidecar.journal.seal.closed
    assert "0f0f" not in repr(sidecar) + sidecar.settings.text()
    monkeypatch.setenv("OUR_KEY", "short")
    (line,) = faults(path)
    assert line.startswith("the journal's key is not 32 bytes")


def test_each_worker_needs_a_file_of_its_own_but_may_share_a_database(tmp_path: Path) -> None:
    workers = "[listen]\nworkers = 2\n[journal]\naddress = "
    (line,) = faults(written(tmp_path, workers + '"calls.db"\n'))
    assert "2 workers cannot write one file; put {worker} into its name" in line
    for address in ("calls-{worker}.db", "postgresql://me@host/calls"):
        assert read(written(tmp_path, f'{workers}"{address}"\n')).journal is not None


async def test_a_journal_that_cannot_be_opened_is_said_with_the_remedy(tmp_path: Path) -> None:
    plan = read(written(tmp_path, '[journal]\naddress = "no/such/calls.db"\n')).journal
    assert plan is not None
    with pytest.raises(ConfigError, match=r"journal\.address: the journal .* cannot be opened"):
        plan.open(1, lambda tool: ())


def test_a_password_in_the_address_of_a_journal_is_not_repeated(tmp_path: Path) -> None:
    (line,) = faults(written(tmp_path, '[journal]\naddress = "postgresql://me:hunter2@host/calls"\n'))
    assert "hunter2" not in line


# ---------------------------------------------------------------------------------------------------- what is shown


def test_what_is_shown_is_a_file_that_means_the_same(tmp_path: Path) -> None:
    sidecar = read(written(tmp_path, SMALLEST + '[[route]]\npath = "/x"\napi_key_env = "ASSEMBLYAI_API_KEY"\n'))
    shown = sidecar.settings.text()
    assert read(written(tmp_path, shown)).settings == sidecar.settings
    assert SECRET not in shown
    assert 'api_key_env = "ASSEMBLYAI_API_KEY"  # set; not shown' in shown


def test_secrets_are_in_no_representation(tmp_path: Path) -> None:
    sidecar = read(written(tmp_path, SMALLEST))
    assert SECRET not in repr(sidecar)
    assert SECRET not in sidecar.settings.model_dump_json()


# ------------------------------------------------------------------------------------------------------- the example


def test_the_annotated_example_works_and_shows_the_defaults(tmp_path: Path) -> None:
    sidecar = read(written(tmp_path, EXAMPLE.read_text()))
    changed = sidecar.settings.model_dump(exclude_defaults=True)
    assert changed.pop("tools") == {"python": (str(tmp_path / "my_tools.py"),)}
    assert changed.pop("upstream") == {
        "url": "wss://agents.assemblyai.com/v1/ws",
        "api_key_env": "ASSEMBLYAI_API_KEY",
    }
    assert changed == {}


def test_the_annotated_example_has_every_setting_and_no_other(tmp_path: Path) -> None:
    lines = [re.sub(r"^# ", "", line) for line in EXAMPLE.read_text().splitlines()]
    text = "\n".join(line for line in lines if re.match(r"\[|[a-z_]+ = ", line))
    tables = tomllib.loads(text)
    for table, field in Settings.model_fields.items():
        kind = {"route": RouteTable, "attach": AttachTable}.get(table, field.annotation)  # type: ignore[arg-type]  # a model
        shown = tables[table][0] if isinstance(tables[table], list) else tables[table]
        missing = set(kind.model_fields) - set(shown)  # type: ignore[union-attr]  # every table is a model
        assert missing <= (set(UpstreamTable.model_fields) if table == "route" else set())
        assert set(shown) <= set(kind.model_fields)  # type: ignore[union-attr]  # every table is a model


def test_every_setting_says_what_it_is_for_or_is_told_by_its_name() -> None:
    for table in ("listen", "admin", "session", "journal", "limits", "tools"):
        fields = Settings.model_fields[table].annotation.model_fields  # type: ignore[union-attr]  # a model
        silent = {name for name, field in fields.items() if not field.description}
        assert silent <= {"host", "port"}
