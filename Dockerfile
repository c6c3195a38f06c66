# syntax=docker/dockerfile:1
# The broker in a container. docs/install.md has the commands.
ARG PYTHON=3.11

FROM python:${PYTHON}-slim-bookworm AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY src ./src
RUN python -m venv /opt/penstock \
    && /opt/penstock/bin/pip install --no-cache-dir -c constraints.txt .

FROM python:${PYTHON}-slim-bookworm
RUN groupadd --system --gid 10001 penstock \
    && useradd --system --uid 10001 --gid penstock --no-create-home --shell /usr/sbin/nologin penstock \
    && install --directory --owner penstock --group penstock --mode 0750 /var/lib/penstock
COPY --from=build /opt/penstock /opt/penstock
COPY deploy/container.yaml /etc/penstock/penstock.yaml
ENV PATH=/opt/penstock/bin:$PATH
USER 10001:10001
WORKDIR /var/lib/penstock
VOLUME /var/lib/penstock
EXPOSE 9092 19092
STOPSIGNAL SIGTERM
# A Metadata request, answered by the broker itself: an open port alone would not prove that it serves.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["penstock", "topics", "list", "--bootstrap", "127.0.0.1:9092"]
ENTRYPOINT ["penstock"]
CMD ["serve", "--config", "/etc/penstock/penstock.yaml"]
