"""Vendors' tools as scripts that print what the vendors document, and a bus for their cards."""

import os
from pathlib import Path

from tests.host import host_tree

CHROOT = 'echo "$1" >> "$TOOLS/roots"; shift; exec "$@"'
NPU_SMI = r"""
case "$*" in
"info -m") cat <<END
	NPU ID                         Chip ID                        Chip Logic ID                  Chip Name
	0                              0                              0                              Ascend 910B3
	0                              1                              -                              Mcu
	2                              0                              1                              310P3
END
;;
"info -t board -i 0") printf '\tNPU ID                         : 0\n\tSerial Number                  : 102410SN\n' ;;
"info -t board -i 2") printf '\tNPU ID                         : 2\n\tSerial Number                  : NA\n' ;;
"info -t board -i 0 -c 0") printf '\tPCIe Bus Info                  : 0000:C1:00.0\n' ;;
"info -t board -i 2 -c 0") printf '\tPCIe Bus Info                  : 0000:C2:00.0\n' ;;
"info -t memory -i 0 -c 0") printf '\tDDR Capacity(MB)               : 0\n\tHBM Capacity(MB)               : 65536\n' ;;
"info -t memory -i 2 -c 0") printf '\tDDR Capacity(MB)               : 21527\n' ;;
"info -t common -i 0 -c 0") printf '\tAicore Freq(MHZ)               : 1800\n\tAicore Count                   : 20\n' ;;
"info -t cpu-num-cfg -i 2 -c 0") printf 'Current AI CPU number : 7\nCurrent control CPU number : 1\n' ;;
"info -t health -i 0 -c 0") printf '\tHealth                         : OK\n\tError Code                     : NA\n' ;;
"info -t health -i 2 -c 0") cat <<END
	Health                         : Alarm
	Error Code                     : 80E01801
	Error Information              : node type=SOC
END
;;
*) echo "unknown: $*"; exit 1 ;;
esac
"""
CNMON = r"""
cat <<END
================CNMON================
Card 0
    Product Name                   : MLU370 X8
    UUID                           : 20221210-1111-0000
    Health                         : Good
    PCIe Info
        Device ID                  : 0xcabc0370
        Domain ID                  : 0000
        Bus num                    : 1a
        Device                     : 00
        Function                   : 0
    Memory Channel
        Total                      : 4
    Physical Memory Usage
        Total                      : 24576 MiB
        Used                       : 10 MiB
END
"""
XPU_SMI = r"""
[ "$1" = -m ] || exit 1
echo 'XPU-SMI'
echo '00000000:03:00.0 0 0 02K15K624CV00304 36 0 0 0 86 1 1 1 1 1 1 2 96 90440 98304 0 1.0:2.6 "P800 OAM" 0 0 0 0'
"""
MX_SMI = r"""
case "$1" in
-L) cat <<END
mx-smi  version: 2.1.6
=================== MetaX System Management Interface Log ===================
Attached GPUs                          : 2
GPU#0  MXC500  0000:0f:00.0  Available (UUID: GPU-aaaa)
GPU#1  MXC500  0000:10:00.0  Not Available (UUID: GPU-bbbb)
END
;;
--show-memory) cat <<END
GPU#0  MXC500  0000:0f:00.0
    Memory
        vis_vram total                 : 67108864 KB
        vis_vram used                  : 874880 KB
        vram total                     : 67108864 KB
GPU#1  MXC500  0000:10:00.0
    Memory
        vis_vram total                 : 67108864 KB
END
;;
esac
"""
TOOLS = {"chroot": CHROOT, "npu-smi": NPU_SMI, "cnmon": CNMON, "xpu_smi": XPU_SMI, "mx-smi": MX_SMI}
CARDS = {
    "0000:c1:00.0": ("0x19e5", "0xd802"),
    "0000:c2:00.0": ("0x19e5", "0xd500"),
    "0000:00:01.0": ("0x19e5", "0x1711"),
    "0000:1a:00.0": ("0xcabc", "0x0370"),
    "0000:03:00.0": ("0x1d22", "0x3688"),
    "0000:0f:00.0": ("0x9999", "0x4000"),
    "0000:10:00.0": ("0x9999", "0x4000"),
    "0000:00:02.0": ("0x8086", "0x1234"),
}


def tool(directory: Path, name: str, script: str) -> None:
    """An executable in a directory that is on the path."""
    directory.mkdir(exist_ok=True)
    path = directory / name
    path.write_text("#!/bin/sh\n" + script)
    path.chmod(0o755)


def bus(root: Path, *vendors: str) -> None:
    """The cards of these PCI vendors, all on NUMA node 1."""
    (root / "sys/bus/pci/devices").mkdir(parents=True, exist_ok=True)
    for address, (vendor, product) in CARDS.items():
        if vendor not in vendors:
            continue
        where = root / f"sys/devices/pci0000:80/{address}"
        host_tree.write(where, {"vendor": vendor, "device": product, "numa_node": "1"})
        os.symlink(where, root / f"sys/bus/pci/devices/{address}")
