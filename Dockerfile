# docker build -t voice-tool-bridge .
# docker run --read-only -v ./config:/config:ro -p 127.0.0.1:8787:8787 \
#     -e ASSEMBLYAI_API_KEY -e BRIDGE_TOKENS -e BRIDGE_UPSTREAM__TOKENS_ENV=BRIDGE_TOKENS voice-tool-bridge

FROM python:3.13-slim AS build
RUN python -m venv /opt/bridge
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY bridge ./bridge
RUN /opt/bridge/bin/pip install --no-cache-dir '.[cli,sidecar,http,mcp]'

FROM python:3.13-slim
COPY --from=build /opt/bridge /opt/bridge
ENV PATH=/opt/bridge/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    BRIDGE_LISTEN__HOST=0.0.0.0 \
    BRIDGE_ADMIN__HOST=0.0.0.0
# Beyond the loopback a provider's key is guarded by tokens: set BRIDGE_UPSTREAM__TOKENS_ENV or _FILE.
USER 65532:65532
WORKDIR /config
EXPOSE 8787 9090
STOPSIGNAL SIGTERM
# It asks port 9090, or the one of BRIDGE_ADMIN__PORT: so change it there, not in the file.
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s CMD ["python", "-m", "bridge.admin.probe"]
ENTRYPOINT ["voice-tool-bridge"]
CMD ["serve", "/config/bridge.toml"]
