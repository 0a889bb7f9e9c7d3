"""The compose file has the form that the specification asks for, and fits what it refers to."""

from __future__ import annotations

import re
from math import ceil
from typing import Any

import jsonschema
import pytest
import yaml

from agentapp.config import Settings
from agentapp.parsing import settings_of
from agentapp.server import options
from agentapp.server.options import ServerOptions
from tests.support.documentation import ROOT
from tests.support.nginx import Nginx, needs_nginx

HOME = ROOT / "deploy/compose"
COMPOSE: dict[str, Any] = yaml.safe_load((HOME / "compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
APPS = ("app-a", "app-b")

TEXT = {"type": "string"}
TEXTS = {"type": "array", "items": TEXT}
DURATION = {"type": "string", "pattern": r"^(\d+(h|m|s))+$"}
# What the specification (compose-spec.json) says of the elements that are used here.
SCHEMA = {
    "type": "object",
    "required": ["services"],
    "additionalProperties": False,
    "patternProperties": {"^x-": {}},
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z0-9][a-z0-9_-]*$"},
        "volumes": {"type": "object", "additionalProperties": {"type": "object", "maxProperties": 0}},
        "networks": {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "additionalProperties": False,
                "properties": {
                    "ipam": {
                        "type": "object",
                        "additionalProperties": False,
                        "properties": {
                            "config": {
                                "type": "array",
                                "items": {"type": "object", "properties": {"subnet": TEXT}},
                            }
                        },
                    }
                },
            },
        },
        "services": {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "required": ["image"],
                "additionalProperties": False,
                "properties": {
                    "image": TEXT,
                    "build": {
                        "type": "object",
                        "additionalProperties": False,
                        "properties": {"context": TEXT, "dockerfile": TEXT},
                    },
                    "command": TEXTS,
                    "env_file": TEXT,
                    "environment": {"type": "object", "additionalProperties": TEXT},
                    "depends_on": {
                        "type": "object",
                        "additionalProperties": {
                            "type": "object",
                            "properties": {
                                "condition": {
                                    "enum": [
                                        "service_started",
                                        "service_healthy",
                                        "service_completed_successfully",
                                    ]
                                }
                            },
                            "required": ["condition"],
                            "additionalProperties": False,
                        },
                    },
                    "healthcheck": {
                        "type": "object",
                        "additionalProperties": False,
                        "properties": {
                            "test": TEXTS,
                            "interval": DURATION,
                            "timeout": DURATION,
                            "start_period": DURATION,
                            "retries": {"type": "integer"},
                        },
                    },
                    "read_only": {"type": "boolean"},
                    "init": {"type": "boolean"},
                    "tmpfs": TEXTS,
                    "cap_drop": TEXTS,
                    "security_opt": TEXTS,
                    "ports": {"type": "array", "items": {"type": "string", "pattern": r"^(\d+:)?\d+$"}},
                    "volumes": TEXTS,
                    "ulimits": {"type": "object", "additionalProperties": {"type": "integer"}},
                    "restart": {"enum": ["no", "always", "on-failure", "unless-stopped"]},
                    "shm_size": {"type": "string", "pattern": r"^\d+[kmg]$"},
                    "stop_grace_period": DURATION,
                    "networks": {
                        "oneOf": [
                            TEXTS,
                            {
                                "type": "object",
                                "additionalProperties": {
                                    "type": "object",
                                    "properties": {"ipv4_address": TEXT},
                                },
                            },
                        ]
                    },
                },
            },
        },
    },
}


def test_it_has_the_form_of_a_compose_file() -> None:
    jsonschema.validate(COMPOSE, SCHEMA)


@pytest.mark.parametrize(
    ("place", "wrong"),
    [
        ("read_only", "yes"),
        ("stop_grace_period", 140),
        ("depends_on", {"redis": {"condition": "up"}}),
        ("user_", 1),
    ],
)
def test_another_form_is_seen(place: str, wrong: Any) -> None:
    services = SERVICES | {"app-a": SERVICES["app-a"] | {place: wrong}}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(COMPOSE | {"services": services}, SCHEMA)


def test_what_it_refers_to_is_there() -> None:
    networks, volumes = COMPOSE["networks"].keys(), COMPOSE["volumes"].keys()
    for name, service in SERVICES.items():
        for other, how in service.get("depends_on", {}).items():
            assert how["condition"] == "service_healthy"
            assert "healthcheck" in SERVICES[other] or other in APPS, f"{other} never says that it is healthy"
        assert set(service["networks"]) <= networks
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert source in volumes or (HOME / source).exists(), f"{name}: {source}"
        if "build" not in service:
            assert re.search(r":\d", service["image"]), f"{name} is of no version"
    build = SERVICES["app-a"]["build"]
    assert (HOME / build["context"] / build["dockerfile"]).resolve() == ROOT / "deploy/docker/Dockerfile"


def test_both_hosts_are_those_of_nginx() -> None:
    addresses = [SERVICES[name]["networks"]["inside"]["ipv4_address"] for name in APPS]
    upstream = (ROOT / "deploy/nginx/agentapp-upstream.conf").read_text()
    assert re.findall(r"^ *server (\S+):8000 ", upstream, re.M) == addresses
    same = [{key: value for key, value in SERVICES[name].items() if key != "networks"} for name in APPS]
    assert same[0] == same[1]


def test_a_host_has_time_to_end_its_turns_and_nothing_else_to_write_to() -> None:
    turn = settings_of(Settings)["turn_deadline"].read({})
    for name in APPS:
        service = SERVICES[name]
        assert (
            int(service["stop_grace_period"].rstrip("s")) > ceil(turn) + options.GRACE_SECONDS_BEYOND_A_TURN
        )
        assert service["read_only"] is True
        assert service["ulimits"]["nofile"] >= options.open_files_of(
            int(settings_of(ServerOptions)["threads"].default)
        )


def test_the_variables_of_the_example_are_settings_and_secrets_are_empty() -> None:
    lines = (HOME / "agentapp.env.example").read_text().splitlines()
    values = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    declared = {each.variable for of in (Settings, ServerOptions) for each in settings_of(of).values()}
    assert {name for name in values if name.startswith("AGENTAPP_")} <= declared
    assert [name for name in values if re.search("KEY|PASSWORD|TOKEN", name) and values[name]] == []
    assert "agentapp.env" in (ROOT / ".gitignore").read_text().split()


@needs_nginx
def test_nginx_finds_no_fault_with_its_site(tmp_path_factory: pytest.TempPathFactory) -> None:
    proxy = Nginx(tmp_path_factory.mktemp("compose"), 20080, ["127.0.0.1:1", "127.0.0.1:2"])
    proxy.write()
    site = (HOME / "site.conf").read_text().replace("/etc/nginx/agentapp", str(proxy.home))
    (proxy.home / "site.conf").write_text(site.replace("listen 80;", "listen 127.0.0.1:20080;"))
    around = proxy.configuration.read_text()
    proxy.configuration.write_text(
        re.sub(r"include .*\}\n\}", f"include {proxy.home}/site.conf;\n}}", around, flags=re.S)
    )
    assert proxy.said_of_what_is_written() == ""
