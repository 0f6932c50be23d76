# SPDX-License-Identifier: Apache-2.0
# The image of the agent: Debian, its bcc (which brings LLVM, most of the size), and ebpflb in a
# virtual environment that sees bcc. `make image` builds it; docs/install.md says what is in it.
# The builder says where packages come from: PIP_INDEX_URL, and the usual proxy arguments.
ARG BASE_IMAGE=docker.io/library/debian:bookworm-slim

FROM ${BASE_IMAGE} AS base
# All but libbpf1 and python3-bpfcc are for `ebpflb takeover`. Licences stay: */copyright.
RUN apt-get -q update \
 && DEBIAN_FRONTEND=noninteractive apt-get -q -y --no-install-recommends install \
    iproute2 ipset iptables ipvsadm libbpf1 nftables python3-bpfcc \
 && apt-get clean \
 && find /usr/share/doc -type f ! -name copyright -delete \
 && find /usr/share/doc -xtype l -delete \
 && find /usr/share/doc -depth -mindepth 1 -type d -empty -delete \
 && rm -rf /var/lib/apt/lists/* /var/cache/* /var/log/* /usr/share/man/* /usr/share/info/*

FROM base AS build
ARG PIP_INDEX_URL
RUN apt-get -q update \
 && DEBIAN_FRONTEND=noninteractive apt-get -q -y --no-install-recommends install python3-pip
WORKDIR /src
RUN python3 -m venv --system-site-packages --without-pip /opt/ebpflb
COPY LICENSE README.md pyproject.toml ./
COPY bpf bpf
COPY ebpflb ebpflb
# The client of Kubernetes has a second copy of itself for asyncio, which nothing here uses. What is
# imported is compiled here, because the root may be read-only where it runs.
RUN python3 -m pip --python /opt/ebpflb/bin/python install --no-cache-dir --no-compile . \
 && rm -r /opt/ebpflb/lib/python3*/site-packages/kubernetes/aio \
 && cd / && /opt/ebpflb/bin/python -c "import ebpflb, importlib, pkgutil; \
    [importlib.import_module(found.name) for found in \
    pkgutil.walk_packages(ebpflb.__path__, 'ebpflb.') if found.name != 'ebpflb.__main__']"

FROM base
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
