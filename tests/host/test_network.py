"""Network cards as sysfs tells them."""

from pathlib import Path

from koordinator.host import network
from koordinator.host.files import Files, HostRoots
from koordinator.host.network import Interface
from tests.host import host_tree


def test_interfaces_are_reported_by_name_with_what_is_known_of_them(tmp_path: Path) -> None:
    base = "sys/class/net"
    host_tree.write(
        tmp_path,
        {
            f"{base}/eth0/address": "02:00:00:00:00:01\n",
            f"{base}/eth0/operstate": "up\n",
            f"{base}/eth0/speed": "25000\n",
            f"{base}/eth0/mtu": "9000\n",
            f"{base}/eth0/device/vendor": "0x1\n",
            f"{base}/down0/operstate": "down\n",
            f"{base}/down0/speed": "-1\n",
            f"{base}/down0/mtu": "\n",
        },
    )
    assert network.interfaces(Files(), HostRoots.below(str(tmp_path))) == [
        Interface(name="down0", address="", mtu=0, is_up=False, is_physical=False, speed_mbit=None),
        Interface(
            name="eth0",
            address="02:00:00:00:00:01",
            mtu=9000,
            is_up=True,
            is_physical=True,
            speed_mbit=25000,
        ),
    ]
    assert network.interfaces(Files(), HostRoots.below(str(tmp_path / "nowhere"))) == []
