"""What docker-compose.yml claims."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def compose():
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())


def test_compose_runs_what_the_example_needs(compose):
    assert set(compose["services"]) == {"redis", "rabbitmq", "postgres", "worker-1", "worker-2", "flower"}


def test_every_service_has_a_health_check_that_gives_up(compose):
    for name, service in compose["services"].items():
        check = service["healthcheck"]
        assert check["test"][0] in {"CMD", "CMD-SHELL"}, name
        assert {"interval", "timeout", "retries"} <= set(check), name


def test_redis_neither_evicts_nor_forgets(compose):
    command = compose["services"]["redis"]["command"]

    assert command[command.index("--maxmemory-policy") + 1] == "noeviction"
    assert command[command.index("--appendonly") + 1] == "yes"
    assert any(volume.endswith(":/data") for volume in compose["services"]["redis"]["volumes"])


@pytest.mark.parametrize("name", ["worker-1", "worker-2", "flower"])
def test_what_uses_a_server_waits_until_it_is_healthy(compose, name):
    waits = compose["services"][name]["depends_on"]

    assert {"redis", "rabbitmq"} <= set(waits)
    assert all(wait["condition"] == "service_healthy" for wait in waits.values())


@pytest.mark.parametrize("service", ["redis", "rabbitmq", "postgres", "flower"])
def test_compose_opens_no_port_to_the_network(compose, service):
    assert all(port.startswith("127.0.0.1:") for port in compose["services"][service]["ports"])


def test_compose_names_only_files_and_volumes_that_exist(compose):
    for service in compose["services"].values():
        if "build" in service:
            assert (ROOT / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
        for volume in service.get("volumes", []):
            assert volume.split(":")[0] in compose["volumes"]


def test_compose_is_valid_for_docker():
    docker = shutil.which("docker")
    probe = docker and subprocess.run(
        [docker, "compose", "version"], capture_output=True, timeout=20, check=False
    )
    if not probe or probe.returncode:
        pytest.skip("also on CI: no `docker compose` here")
    subprocess.run(["docker", "compose", "config", "--quiet"], cwd=ROOT, timeout=60, check=True)
