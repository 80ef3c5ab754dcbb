"""Lives of pods that need volumes or devices before a scheduler can place them."""

from tests.real.lives.drawing import Draw, Json, Life, Step, body_of
from tests.real.lives.scheduling import SCHEDULED, World, led, on

MODES = ("ReadWriteOnce", "ReadWriteOnce", "ReadWriteOncePod")
CLASSES = {"late": "WaitForFirstConsumer", "now": "Immediate", "made": "WaitForFirstConsumer"}


def volumes(draw: Draw) -> Life:
    world, sizes = World(draw), iter(range(1, 100))

    def storage_class(name: str, mode: str) -> Json:
        provisioner = "life.example.com/none" if name == "made" else "kubernetes.io/no-provisioner"
        return {
            **body_of("StorageClass", f"$LIFE-{name}"),
            "volumeBindingMode": mode,
            "provisioner": provisioner,
        }

    classes = [storage_class(name, mode) for name, mode in CLASSES.items()]

    def reached() -> Json:
        terms = [{"matchExpressions": [on(draw.choice(world.letters))]}]
        return {"required": {"nodeSelectorTerms": terms}}

    def volume() -> Step:
        """No two of one size, so that there is one smallest."""
        size = next(sizes)
        spec: Json = {
            "capacity": {"storage": f"{size}Gi"},
            "accessModes": [draw.choice(MODES)],
            "storageClassName": f"$LIFE-{draw.choice(('late', 'late', 'late', 'now'))}",
            "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": {"path": "/data"},
        }
        if draw.often():
            spec["nodeAffinity"] = reached()
        return ["create", body_of("PersistentVolume", f"$LIFE-v{size}", spec, labels={"life": "$LIFE"})]

    def claim(name: str = "") -> Step:
        spec = {
            "accessModes": [draw.choice(MODES)],
            "storageClassName": f"$LIFE-{draw.choice(('late', 'late', 'late', 'late', 'now', 'made', 'made', 'none'))}",
            "resources": {"requests": {"storage": "1Gi"}},
        }
        return ["create", body_of("PersistentVolumeClaim", name or f"c{draw.randint(0, 2)}", spec)]

    def create() -> Step:
        names = draw.sample(range(3), draw.choice((1, 1, 1, 2)))
        mounted = [{"name": f"v{one}", "persistentVolumeClaim": {"claimName": f"c{one}"}} for one in names]
        return [
            "create",
            world.pod(volumes=mounted, **({"nodeSelector": {"disk": "ssd"}} if draw.seldom() else {})),
        ]

    def made() -> Step:
        """What a provisioner makes, not always on the node that was asked for."""
        spec: Json = {**volume()[1]["spec"]}
        spec["nodeAffinity"] = reached()
        body = body_of("PersistentVolume", f"$LIFE-m{next(sizes)}", spec, labels={"life": "$LIFE"})
        return ["provide", f"c{draw.randint(0, 2)}", body]

    def waits() -> list[Step]:
        """For a claim, for a volume, or for the claim's only user."""
        name = f"w{next(sizes)}"
        wanted = claim(name)
        spec = wanted[1]["spec"] | {"storageClassName": f"$LIFE-{draw.choice(('late', 'now'))}"}
        wanted[1]["spec"] = spec
        found = volume()
        found[1]["spec"] |= {name: spec[name] for name in ("storageClassName", "accessModes")}
        found[1]["spec"]["nodeAffinity"] = reached()
        mounted = [{"name": "v", "persistentVolumeClaim": {"claimName": name}}]
        user = ["create", world.pod("100m", volumes=mounted)]
        if spec["accessModes"] == ["ReadWriteOncePod"]:
            second, first = ["create", world.pod("100m", volumes=mounted)], world.pods[-2]
            return [
                ["all", wanted, found, ["wait", 2], user, ["wait", 2], second],
                ["delete", "Pod", first, "Background"],
            ]
        return draw.choice(([found, user, wanted], [["all", wanted, user], found]))

    first = ["all", world.first(*classes), volume(), volume(), volume(), claim("c0"), claim("c1")]
    steps: list[Step] = [first, create(), create()]
    steps += led(
        draw,
        draw.randint(7, 11),
        *[create] * 4,
        *[waits] * 5,
        *[volume, claim] * 2,
        *[made] * 2,
        *[world.delete] * 2,
        *[world.node_acts] * 2,
        lambda: ["delete", "PersistentVolumeClaim", f"c{draw.randint(0, 2)}", "Background"],
        lambda: ["create", storage_class("none", draw.choice(("Immediate", "WaitForFirstConsumer")))],
    )
    looks = ["Pod", "PersistentVolumeClaim", "PersistentVolume"]
    return {**SCHEDULED, "looks": looks, "nodes": world.nodes, "steps": steps}


DRIVER = "life.example.com"


def devices(draw: Draw) -> Life:
    world = World(draw)
    of_driver = [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}]
    device_class = body_of("DeviceClass", "$LIFE-card", {"selectors": of_driver})

    def slice_of(letter: str) -> Step:
        found = [
            {"name": f"d{number}", "attributes": {"size": {"int": draw.choice((1, 1, 2))}}}
            for number in range(draw.randint(1, 2))
        ]
        pool = {"name": f"$LIFE-{letter}", "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": DRIVER, "pool": pool, "nodeName": f"$LIFE-{letter}", "devices": found}
        return ["create", body_of("ResourceSlice", f"$LIFE-{letter}", spec)]

    def claim(name: str) -> Step:
        asked: Json = {"deviceClassName": "$LIFE-card", **draw.some(count=(1, 1, 2))}
        if draw.seldom():
            expression = f"device.attributes['{DRIVER}'].size == {draw.randint(1, 2)}"
            asked["selectors"] = [{"cel": {"expression": expression}}]
        requests = {"requests": [{"name": "r", "exactly": asked}]}
        return ["create", body_of("ResourceClaim", name, {"devices": requests})]

    def create() -> Step:
        """With claims of its own: one that others use, too, is freed and taken by who comes first."""
        names = [f"c{world.number}{letter}" for letter in "xy"[: draw.choice((1, 1, 1, 2))]]
        wanted = [{"name": name, "resourceClaimName": name} for name in names]
        claims = [claim(name) for name in names if draw.random() < 0.9]
        kept = {"nodeSelector": {"disk": "ssd"}} if draw.seldom() else {}
        return ["all", *claims, ["wait", 0.5], ["create", world.pod(resourceClaims=wanted, **kept)]]

    def waits() -> list[Step]:
        """For a claim, or for a class."""
        name = f"w{world.number}"
        wanted = claim(name)
        user = ["create", world.pod("100m", resourceClaims=[{"name": "v", "resourceClaimName": name}])]
        if draw.often():
            return [user, wanted]
        kind = {**device_class, "metadata": {"name": f"$LIFE-{name}"}}
        wanted[1]["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = f"$LIFE-{name}"
        return [["all", wanted, user], ["create", kind]]

    slices = [slice_of(each) for each in world.letters[:2]]
    first = ["all", world.first(device_class), *slices]
    steps: list[Step] = [first, create(), create()]
    steps += led(
        draw,
        draw.randint(7, 11),
        *[create] * 3,
        *[waits] * 4,
        *[world.delete] * 3,
        *[world.node_acts] * 2,
        *[lambda: slice_of(draw.choice(world.letters))] * 2,
        lambda: ["delete", "ResourceClaim", f"c{draw.randrange(world.number)}x", "Background"],
        lambda: ["delete", "ResourceSlice", f"$LIFE-{draw.choice(world.letters)}", "Background"],
        lambda: ["linger", draw.often()],
    )
    return {**SCHEDULED, "looks": ["Pod", "ResourceClaim"], "nodes": world.nodes, "steps": steps}
