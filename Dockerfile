FROM python:3.11-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY bridge ./bridge
RUN python -m venv /opt/bridge && /opt/bridge/bin/pip install --no-cache-dir '.[cli]'

FROM python:3.11-slim
RUN useradd --system --uid 10001 bridge
COPY --from=build /opt/bridge /opt/bridge
USER bridge
ENTRYPOINT ["/opt/bridge/bin/voice-tool-bridge"]
CMD ["demo"]
