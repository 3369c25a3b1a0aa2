# Three images from one file. `docker build .` makes the whole server; `--target gateway` the gateway alone, without torch;
# `--target vllm` the worker that hosts vLLM, for NVIDIA GPUs.
#
#   docker build -t dots3 .                                  for the CPU
#   docker build -t dots3:cuda --build-arg DEVICE=cuda .     for NVIDIA GPUs
#
# Settings of pip that the build needs (a mirror, a proxy) come in as a secret and stay out of the image:
#   docker build --secret id=pip,src=$HOME/.config/pip/pip.conf .
#
# Any base will do that has Python 3.11 or newer with `venv`, and Debian's packages.
#
# hadolint global ignore=DL3013,DL3042
# (pyproject.toml and deploy/constraints.txt pin every package; pip's cache is a mount, which stays out of the image)
ARG BASE_IMAGE=python:3.11.14-slim-bookworm

# ---- What the gateway imports.
FROM ${BASE_IMAGE} AS build-gateway
ENV PATH=/opt/dots3/bin:$PATH PIP_CACHE_DIR=/var/cache/pip PIP_DISABLE_PIP_VERSION_CHECK=1
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
RUN python3 -m venv /opt/dots3
WORKDIR /src
# The dependencies alone first: they change seldom, and their layer is kept while only sources change. Tracing is among
# them, since nothing can be added to an image that runs.
COPY pyproject.toml deploy/constraints.txt deploy/requirements.py ./
RUN --mount=type=cache,target=/var/cache/pip --mount=type=secret,id=pip,target=/etc/pip.conf \
    python3 requirements.py tracing > requirements.txt && pip install -c constraints.txt -r requirements.txt
COPY . ./
RUN --mount=type=cache,target=/var/cache/pip --mount=type=secret,id=pip,target=/etc/pip.conf \
    pip install --no-deps . && \
    cp -r models deploy/healthcheck.py /opt/dots3/

# ---- What the worker imports besides.
FROM build-gateway AS build-server
ARG DEVICE=cpu
# Asked for the CPU build only where the configured index has none. For DEVICE=cuda the configured index is asked alone:
# what it calls torch brings CUDA's libraries with it.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN --mount=type=cache,target=/var/cache/pip --mount=type=secret,id=pip,target=/etc/pip.conf \
    torch=$(sed -nE 's/^ *"(torch==[0-9.]+)".*/\1/p' pyproject.toml); \
    case "$DEVICE" in \
      cpu) pip install --no-deps "$torch+cpu" || pip install --no-deps --index-url "$TORCH_INDEX" "$torch" ;; \
      cuda) pip install --no-deps "$torch,!=${torch#*==}+cpu" ;; \
      *) echo "DEVICE must be cpu or cuda, got $DEVICE" >&2; exit 1 ;; \
    esac && \
    pip install -c constraints.txt "$torch" && \
    python -c 'import sys, torch; assert (torch.version.cuda is None) == (sys.argv[1] == "cpu"), torch.__version__' "$DEVICE"

# ---- What both images run in.
FROM ${BASE_IMAGE} AS runtime
RUN useradd --uid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin dots3
# Nothing is written but below /tmp: `--read-only --tmpfs /tmp` is enough. Caches of compiled kernels go to $HOME.
ENV PATH=/opt/dots3/bin:$PATH \
    HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    DOTS3_HOST=0.0.0.0 \
    DOTS3_MODEL=/opt/dots3/models/dots3-note-tiny
LABEL org.opencontainers.image.title="dots3" org.opencontainers.image.licenses="Apache-2.0"
WORKDIR /tmp
EXPOSE 8000
# The first of these checks may come before the weights are loaded; none counts until a minute has passed.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 CMD ["python3", "/opt/dots3/healthcheck.py"]
ENTRYPOINT ["dots3"]
CMD ["serve"]

# ---- The other worker: vLLM brings all that it needs besides our code.
FROM ${BASE_IMAGE} AS build-vllm
ENV PATH=/opt/dots3/bin:$PATH PIP_CACHE_DIR=/var/cache/pip PIP_DISABLE_PIP_VERSION_CHECK=1
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
RUN python3 -m venv /opt/dots3
WORKDIR /src
COPY pyproject.toml ./
RUN --mount=type=cache,target=/var/cache/pip --mount=type=secret,id=pip,target=/etc/pip.conf \
    pip install "$(sed -nE 's/^ *"(vllm==[0-9.]+)".*/\1/p' pyproject.toml)"
COPY . ./
RUN --mount=type=cache,target=/var/cache/pip --mount=type=secret,id=pip,target=/etc/pip.conf \
    pip install --no-deps .

FROM runtime AS vllm
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
COPY --from=build-vllm /opt/dots3 /opt/dots3
USER 10001:10001
HEALTHCHECK NONE
ENTRYPOINT ["python3", "-m", "engine.vllm.worker"]
CMD ["--help"]

FROM runtime AS gateway
COPY --from=build-gateway /opt/dots3 /opt/dots3
USER 10001:10001

FROM runtime AS server
ARG DEVICE=cpu
# Triton compiles what launches its kernels on the machine that runs them. Debian keeps no old versions to pin.
# hadolint ignore=DL3008
RUN if [ "$DEVICE" = cuda ]; then \
      apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*; \
    fi
COPY --from=build-server /opt/dots3 /opt/dots3
USER 10001:10001
