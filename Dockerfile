# SPDX-License-Identifier: Apache-2.0
# The agent's image: Debian, bcc with LLVM (which makes up most of the size), ebpflb in a virtual
# environment that can import bcc, and the programs compiled for common kernels. With RUNTIME=slim it
# comes without bcc and LLVM. `make image` builds it; docs/install.md lists its contents.
# PIP_INDEX_URL and the usual proxy build arguments select the sources of packages.
ARG BASE_IMAGE=docker.io/library/debian:bookworm-slim
ARG RUNTIME=base

FROM ${BASE_IMAGE} AS slim
# All except libbpf1, python3 and python3-seccomp are for `ebpflb takeover`.
RUN --mount=type=bind,source=.ci/image_packages,target=/mnt/image_packages \
    /mnt/image_packages iproute2 ipset iptables ipvsadm libbpf1 nftables python3 python3-seccomp

FROM slim AS base
RUN --mount=type=bind,source=.ci/image_packages,target=/mnt/image_packages \
    /mnt/image_packages python3-bpfcc

FROM base AS dependencies
ARG PIP_INDEX_URL
RUN apt-get -q update \
 && DEBIAN_FRONTEND=noninteractive apt-get -q -y --no-install-recommends install python3-pip tcc
WORKDIR /src
RUN python3 -m venv --system-site-packages --without-pip /opt/ebpflb \
 && python3 -m venv --without-pip /opt/build
# `make lock` writes the locks: each package in one version, each file of it by its hash.
COPY .ci/locks locks
# The Kubernetes client contains a second copy for asyncio, which ebpflb does not use.
RUN python3 -m pip --python /opt/ebpflb/bin/python install --no-cache-dir --no-compile --require-hashes \
    -r locks/image.txt \
 && python3 -m pip --python /opt/build/bin/python install --no-cache-dir --require-hashes -r locks/build.txt \
 && rm -r /opt/ebpflb/lib/python3*/site-packages/kubernetes/aio

FROM dependencies AS build
COPY LICENSE README.md pyproject.toml ./
COPY bpf bpf
COPY ebpflb ebpflb
# Importing every module writes the bytecode now, because the root file system may be read-only at
# run time.
RUN python3 -m pip --python /opt/build/bin/python wheel --no-deps --no-build-isolation --wheel-dir dist . \
 && python3 -m pip --python /opt/ebpflb/bin/python install --no-cache-dir --no-compile --no-deps dist/*.whl \
 && cd / && /opt/ebpflb/bin/python -c "import ebpflb, importlib, pkgutil; \
    [importlib.import_module(found.name) for found in \
    pkgutil.walk_packages(ebpflb.__path__, 'ebpflb.') if found.name != 'ebpflb.__main__']"
COPY .ci/no_maps.c ./
ARG KERNELS="6.1 5.15 5.10"
RUN tcc -nostdlib -shared -o no_maps.so no_maps.c \
 && LD_PRELOAD=/src/no_maps.so /opt/ebpflb/bin/python -m ebpflb.dataplane.load.precompile \
    /opt/ebpflb/share/ebpflb ${KERNELS}

FROM ${RUNTIME}
ARG VERSION=0.1.0
ARG REVISION=
LABEL org.opencontainers.image.title="ebpflb" \
      org.opencontainers.image.description="Kubernetes Services without kube-proxy, with eBPF" \
      org.opencontainers.image.licenses="Apache-2.0 AND (GPL-2.0-only OR BSD-2-Clause)" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /opt/ebpflb /opt/ebpflb
ENV PATH=/opt/ebpflb/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    LC_ALL=C.UTF-8 \
    PYTHONDONTWRITEBYTECODE=1
ENTRYPOINT ["ebpflb"]
