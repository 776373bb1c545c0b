# The Copilot's service and its pages. docker compose up starts them beside a PostgreSQL.
FROM python:3.12-slim-bookworm AS build
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.12-slim-bookworm
# Captures, estimates and plans of models need torch and transformers too: EXTRAS=service,ui,torch,llm
ARG EXTRAS=service,ui
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir "$(echo /wheels/accelera_engine-*.whl)[${EXTRAS}]" \
    && useradd --home-dir /data --create-home --uid 1000 accelera
USER 1000
WORKDIR /data
VOLUME /data
EXPOSE 8080 8501
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s CMD ["python", "-c", \
    "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/health', timeout=2)"]
ENTRYPOINT ["accelera", "serve", "--host", "0.0.0.0", "--port", "8080"]
CMD ["--token-file", "/run/secrets/copilot_token", "--ui", "--ui-port", "8501"]
