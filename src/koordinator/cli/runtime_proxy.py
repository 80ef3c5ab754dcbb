"""`koord-runtime-proxy`: between kubelet and container runtime, with the reference's flags."""

from typing import Any

import click

from koordinator import __version__
from koordinator.cli import flag_kinds, flag_settings, logs, options, running
from koordinator.cli.flag_kinds import GoFlagCommand
from koordinator.cli.flag_settings import InertFlags

_ENDPOINT = "/var/run/koord-runtimeproxy/runtimeproxy.sock"
_CONTAINERD = "/var/run/containerd/containerd.sock"
_HOOKS = "/etc/runtime/hookserver.d"
_INERT = InertFlags(flag_settings.LOG_FLAGS, flag_settings.LOG_SWITCHES)
_SKIP_LABEL, _SKIP_VALUE = "runtimeproxy.koordinator.sh/skip-hookserver", "true"


@click.command(cls=GoFlagCommand, context_settings=flag_kinds.SETTINGS)
@flag_kinds.text("koord-runtimeproxy-endpoint", _ENDPOINT, "Socket on which the kubelet calls.")
@flag_kinds.text("remote-runtime-service-endpoint", _CONTAINERD, "Socket of the container runtime.")
@click.option(
    "--backend-runtime-mode",
    type=click.Choice(("Containerd", "Docker")),
    default="Containerd",
    show_default=True,
    help="The protocol of the runtime: Containerd is CRI, which CRI-O and cri-dockerd speak as well; Docker is "
    "Docker's own, for a kubelet with dockershim or cri-dockerd behind this proxy.",
)
@flag_kinds.text("runtime-hook-server-key", _SKIP_LABEL, "Label of pods that never reach hook servers.")
@flag_kinds.text("runtime-hook-server-val", _SKIP_VALUE, "Value of that label.")
@flag_kinds.text(
    "hook-server-directory", _HOOKS, "Directory of the files of hook servers (not in the reference)."
)
@options.together(*flag_settings.LOGGING, *_INERT.options())
@click.version_option(__version__, prog_name="koord-runtime-proxy")
def main(**values: Any) -> None:
    """Hand the kubelet's calls to the container runtime, and ask hook servers (koordlet) before and after some of them.

    Flags may have one dash or two.
    """
    with running.one_line_errors():
        logs.set_up_by_flags(values | {"v": max(values["v"], 1)}, _INERT.given(values))
        from koordinator.cluster import garbage
        from koordinator.host.syscalls import LinuxSyscalls
        from koordinator.runtime_proxy.docker_proxy import DockerProxy
        from koordinator.runtime_proxy.proxy import ProxyConfig, RuntimeProxy

        proxy = DockerProxy if values["backend_runtime_mode"] == "Docker" else RuntimeProxy
        config = ProxyConfig(
            endpoint=values["koord_runtimeproxy_endpoint"],
            backend=values["remote_runtime_service_endpoint"],
            hook_directory=values["hook_server_directory"],
            skip=(values["runtime_hook_server_key"], values["runtime_hook_server_val"]),
        )

        async def work() -> None:
            garbage.set_aside()  # modules: going through them would hold calls up
            await proxy(config, LinuxSyscalls()).run()

        running.run(work())


if __name__ == "__main__":
    main()
