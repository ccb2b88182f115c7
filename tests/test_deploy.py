"""What is in `deploy/`, checked by the programs and schemas that it is for.

No PyPI package has the schema of a RayCluster. The models here hold those of its fields that the
chart uses, by KubeRay's reference of ray.io/v1; pods and policies are checked by Kubernetes' own.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, Literal

import kubernetes_validate
import pytest
import yaml
from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from kernelcast.farm import _registry

DEPLOY = Path(__file__).parents[1] / "deploy"
GPUS = {
    "name": "gpu",
    "device": "h100",
    "nodes": 4,
    "slots": 8,
    "cpu": "16",
    "memory": "64Gi",
    "limits": {"nvidia.com/gpu": 8},
    "nodeSelector": {"accelerator": "h100"},
}


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, alias_generator=to_camel)


class AuthOptions(Strict):
    mode: Literal["disabled", "token"]
    secret_name: str = ""


class Group(Strict):
    ray_start_params: dict[str, str]
    template: dict[str, Any]
    labels: dict[str, str] = {}
    resources: dict[str, str] = {}


class WorkerGroup(Group):
    group_name: str
    replicas: int = Field(ge=0)
    min_replicas: int = Field(ge=0)
    max_replicas: int = Field(ge=0)


class RayClusterSpec(Strict):
    ray_version: str
    auth_options: AuthOptions
    head_group_spec: Group
    worker_group_specs: list[WorkerGroup]


class RayCluster(Strict):
    api_version: Literal["ray.io/v1"]
    kind: Literal["RayCluster"]
    metadata: dict[str, str]
    spec: RayClusterSpec


def render(*options: str) -> dict[str, Any]:
    """Return what Helm makes of the chart, by kind."""
    helm = ["helm", "template", "farm", str(DEPLOY / "helm"), *options]
    made = subprocess.run(helm, check=True, capture_output=True, text=True)
    return {document["kind"]: document for document in yaml.safe_load_all(made.stdout)}


def check(documents: dict[str, Any]) -> RayCluster:
    """Check documents by their schemas, and return the cluster."""
    cluster = RayCluster.model_validate(documents["RayCluster"])
    pods = [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, **group.template}
        for group in (cluster.spec.head_group_spec, *cluster.spec.worker_group_specs)
    ]
    for resource in (documents["NetworkPolicy"], *pods):
        kubernetes_validate.validate(resource, kubernetes_validate.latest_version(), strict=True)
    return cluster


def test_the_manifest_is_what_the_chart_makes_by_default() -> None:
    written = yaml.safe_load_all((DEPLOY / "kuberay.yaml").read_text())
    documents = {document["kind"]: document for document in written}
    assert documents == render(), "run: helm template farm deploy/helm > deploy/kuberay.yaml"
    cluster = check(documents)
    assert cluster.spec.auth_options.mode == "token"
    (group,) = cluster.spec.worker_group_specs
    assert group.labels.keys() == {_registry.DEVICE}
    assert group.resources == {_registry.UNIT: "1"}


def test_the_chart_makes_a_group_for_each_type_of_device() -> None:
    documents = render("--set-json", f"groups={json.dumps([GPUS])}", "--set", "tokenSecret=mine")
    cluster = check(documents)
    assert cluster.spec.auth_options.secret_name == "mine"
    (group,) = cluster.spec.worker_group_specs
    assert (group.replicas, group.labels) == (4, {_registry.DEVICE: "h100"})
    assert group.resources == {_registry.UNIT: "8"}
    pod = group.template["spec"]
    assert pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == 8
    assert pod["nodeSelector"] == {"accelerator": "h100"}


def test_a_field_that_kubernetes_does_not_know_is_refused() -> None:
    documents = render()
    group = documents["RayCluster"]["spec"]["headGroupSpec"]
    group["template"]["spec"]["containers"][0]["imagge"] = "x"
    with pytest.raises(kubernetes_validate.ValidationError):
        check(documents)


@pytest.mark.parametrize("checker", [["bash", "-n"], ["shellcheck"], ["helm", "lint", "--strict"]])
def test_the_checkers_find_nothing(checker: list[str]) -> None:
    path = DEPLOY / ("helm" if checker[0] == "helm" else "slurm.sh")
    done = subprocess.run([*checker, str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
