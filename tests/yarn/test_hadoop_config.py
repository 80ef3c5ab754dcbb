"""What Hadoop's configuration files say of clusters."""

from pathlib import Path

import msgspec
import pytest

from koordinator.yarn import hadoop_config, kerberos
from koordinator.yarn.amounts import DEFAULT_CLUSTER
from koordinator.yarn.hadoop_config import Dialect, FolderError, HadoopConfigError


def site(**properties: str) -> str:
    items = "".join(
        f"<property><name>{name.replace('_', '.')}</name><value>{value}</value></property>"
        for name, value in properties.items()
    )
    return f"<configuration>{items}</configuration>"


def address(text: str, environment: dict[str, str] | None = None) -> str:
    loaded = hadoop_config.load({"yarn-site.xml": text}, environment or {})
    if loaded.errors:
        raise loaded.errors[DEFAULT_CLUSTER]
    return loaded.clusters[DEFAULT_CLUSTER].managers[0].client


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param(" rm:1\n", "rm:1", id="values are trimmed"),
        pytest.param("rm", "rm:8032", id="a missing port is the usual one"),
        pytest.param("${my.host}:1", "h:1", id="other properties are variables"),
        pytest.param("${env.HOST}:1", "e:1", id="so is the environment"),
        pytest.param("${env.NONE:-d}:1", "d:1", id="which may have defaults"),
        pytest.param("${none}:1", "${none}:1", id="an unknown variable stays"),
    ],
)
def test_values_are_read_as_hadoop_reads_them(value: str, expected: str) -> None:
    assert address(site(yarn_resourcemanager_address=value, my_host="h"), {"HOST": "e"}) == expected


def test_variables_in_a_circle_are_an_error_of_their_cluster_only() -> None:
    files = {
        "yarn-site.xml": site(),
        "c.yarn-site.xml": site(yarn_resourcemanager_address="${a}", a="${b}", b="${a}"),
    }

    loaded = hadoop_config.load(files, {})

    assert list(loaded.clusters) == [DEFAULT_CLUSTER]
    assert "name each other" in str(loaded.errors["c"])
    assert not hadoop_config.start_fails(loaded, Dialect.HADOOP)
    assert hadoop_config.start_fails(loaded, Dialect.REFERENCE)


@pytest.mark.parametrize("text", ["", "<configuration>", "<other/>", "x"])
def test_a_file_that_is_no_configuration_is_named(text: str) -> None:
    with pytest.raises(HadoopConfigError, match=r"yarn-site\.xml"):
        address(text)


def test_kerberos_is_refused_with_what_to_do() -> None:
    files = {"yarn-site.xml": site(hadoop_security_authentication="Kerberos")}
    cluster = hadoop_config.load(files, {}).clusters[DEFAULT_CLUSTER]
    assert "--kerberos-keytab" in hadoop_config.refusal(cluster, has_keytab=False)
    assert hadoop_config.PRINCIPAL in hadoop_config.refusal(cluster, has_keytab=True)
    named = msgspec.structs.replace(cluster, principal="rm/_HOST@REALM")
    assert hadoop_config.refusal(named, has_keytab=True) == ""
    assert kerberos.expected_principal(named.principal, "Rm1.example.com:8033") == "rm/rm1.example.com"


def test_without_a_folder_the_one_where_the_process_runs_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "yarn-site.xml").write_text(site())
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FolderError, match=r"HADOOP_CONF_DIR \(not set\)"):
        hadoop_config.stamp(Path())


@pytest.mark.parametrize("value", ["rm:port", "rm:", ":8032", "rm:99999", "rm:-1", "r m:1", "rm:${none}"])
def test_an_address_that_is_none_is_an_error_of_its_cluster(value: str) -> None:
    with pytest.raises(HadoopConfigError, match="is not host:port"):
        address(site(yarn_resourcemanager_address=value))


def test_files_in_another_encoding_are_read_and_take_no_other_along(tmp_path: Path) -> None:
    name = "<property><name>yarn.resourcemanager.hostname</name><value>grün</value></property>"
    latin = f'<?xml version="1.0" encoding="ISO-8859-1"?><configuration>{name}</configuration>'
    (tmp_path / "a.yarn-site.xml").write_text(latin, encoding="latin-1")
    (tmp_path / "b.yarn-site.xml").write_text(latin.replace("ISO-8859-1", "UTF-8"), encoding="utf-8")
    (tmp_path / "c.yarn-site.xml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "yarn-site.xml").write_text(site())
    loaded = hadoop_config.load(hadoop_config.read_folder(tmp_path), {})
    assert {loaded.clusters[each].managers[0].client for each in "ab"} == {"grün:8032"}
    assert (set(loaded.clusters), set(loaded.errors)) == ({DEFAULT_CLUSTER, "a", "b"}, {"c"})
