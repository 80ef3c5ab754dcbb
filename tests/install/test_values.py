"""What can be said about an installation, and how mistakes are told."""

from typing import Any

import msgspec
import pytest

from koordinator.api import crd
from koordinator.install import values
from koordinator.install.values import Values, ValuesError


def read(*settings: str, **layer: Any) -> Values:
    return values.read(
        [("file", layer), *((f"--set {text}", values.read_setting(text)) for text in settings)]
    )


def test_nothing_said_means_the_defaults() -> None:
    assert values.read([]) == Values()
    assert values.read([("empty.yaml", values.read_file("empty.yaml", ""))]) == Values()


def test_later_layers_win_and_mappings_merge() -> None:
    found = read("manager.replicas=4", manager={"replicas": 3, "resources": {"requests": {"cpu": "1"}}})

    assert found.manager.replicas == 4
    assert found.manager.resources.requests == {"cpu": "1", "memory": "256Mi"}


def test_null_takes_a_key_out() -> None:
    found = read(manager={"resources": {"requests": {"memory": None}}})

    assert found.manager.resources.requests == {"cpu": "500m"}


def test_a_setting_may_name_keys_with_dots_and_lists() -> None:
    found = read(r"manager.nodeSelector.kubernetes\.io/os=linux", "manager.extraArgs=[--v=5]")

    assert found.manager.node_selector == {"kubernetes.io/os": "linux"}
    assert found.manager.extra_args == ["--v=5"]


def test_an_empty_setting_is_an_empty_text() -> None:
    assert read("koordlet.featureGates=").koordlet.feature_gates == ""


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("manager.replicas=many", "manager.replicas: Expected `int`, got `str`"),
        ("manager.replica=3", "manager: Object contains unknown field `replica`"),
        ("installation.namespace=Upper", "installation.namespace"),
        ("webhookConfiguration.failurePolicy.pods=Maybe", "webhookConfiguration.failurePolicy.pods"),
        ("webhookConfiguration.timeoutSeconds=31", "webhookConfiguration.timeoutSeconds"),
        ("manager.webhook.port=0", "manager.webhook.port"),
        ("featureGates=NoSuch=true", "featureGates: feature gates: 'NoSuch=true'"),
        ("scheduler.featureGates=NoSuch=true", "scheduler.featureGates"),
        ("koordlet.featureGates=BECPUSuppress", "koordlet.featureGates"),
        ("yarnOperator.lendOnce=true", "yarnOperator.lendOnce: needs a yarnOperator.yarnShare below 100"),
        ("yarnOperator.kerberosSecret=s", "yarnOperator.kerberosSecret: goes together"),
        ("yarnOperator.kerberosPrincipal=koord@R", "yarnOperator.kerberosSecret: goes together"),
        ("manager", "expected something like manager.replicas=3"),
        ("manager..replicas=3", "expected something like"),
        ("manager.extraArgs=[", "the value is no YAML"),
    ],
)
def test_a_mistake_is_reported_with_its_source_and_field(setting: str, words: str) -> None:
    with pytest.raises(ValuesError) as error:
        read(setting)

    assert words in str(error.value)
    assert f"--set {setting}" in str(error.value)


def test_settings_that_go_together_may_be_said_one_after_the_other() -> None:
    own = read("yarnOperator.lendOnce=true", "yarnOperator.yarnShare=50").yarn_operator
    assert (own.lend_once, own.yarn_share) == (True, 50)


def test_gates_of_the_stock_scheduler_may_be_named() -> None:
    assert read("scheduler.featureGates='DynamicResourceAllocation=true,ResizePod=true'")


@pytest.mark.parametrize("text", ["[1]", "a: [", "text"])
def test_a_file_that_is_no_mapping_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValuesError, match=r"my\.yaml"):
        values.read_file("my.yaml", text)


def test_every_crd_has_a_switch_and_every_switch_a_crd() -> None:
    switches = {field.name for field in msgspec.structs.fields(values.Crds)} - {"managed"}

    assert switches == {manifest["spec"]["names"]["plural"] for manifest in crd.manifests()}
