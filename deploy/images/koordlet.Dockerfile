# docker build --tag koordlet:0.1.0 --file deploy/images/koordlet.Dockerfile .
# `node` stops containers through the runtime; with --build-arg EXTRAS=node,gpu the library that asks NVIDIA's driver is in it, too.
FROM python:3.12-slim AS build
ARG EXTRAS=node
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN python -m venv /koordinator && /koordinator/bin/pip install --no-cache-dir ".[${EXTRAS}]" \
    && find /koordinator -depth \( -name tests -o -name __pycache__ \) -type d -exec rm -r {} + \
    && /koordinator/bin/python -m compileall -q /koordinator/lib

FROM python:3.12-slim
# lvm2 and util-linux tell which disk a volume is on (gate BlkIOReconcile); tc shapes traffic (gate TCNetworkQoS).
RUN apt-get update && apt-get install --yes --no-install-recommends lvm2 util-linux iproute2 \
    && rm -r /var/lib/apt/lists/*
COPY --from=build /koordinator /koordinator
ENV PATH=/koordinator/bin:$PATH
# Root: groups, kernel settings and performance counters of the host belong to it.
ENTRYPOINT ["koordlet"]
