# docker build --tag koordinator:0.1.0 --file deploy/images/koordinator.Dockerfile .
FROM python:3.12-slim AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN python -m venv /koordinator && /koordinator/bin/pip install --no-cache-dir '.[scheduler]'

FROM python:3.12-slim
COPY --from=build /koordinator /koordinator
ENV PATH=/koordinator/bin:$PATH
USER 65532:65532
ENTRYPOINT ["koord-scheduler"]
