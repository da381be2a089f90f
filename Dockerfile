# rope_server and ropectl in a small image: no compiler, no root user, no shell needed.
#   docker build --target=runtime -t rope-server .
#   docker run --rm -p 127.0.0.1:50051:50051 -p 127.0.0.1:9464:9464 rope-server
# Without 127.0.0.1 every host of the network reaches it, and there is no TLS.
# For a GPU, name a CUDA image as the build image and its distribution as the runtime image:
#   docker build --target=runtime -t rope-server:cuda --build-arg DEVICE=cuda \
#     --build-arg BUILD_IMAGE=nvidia/cuda:13.0.1-devel-ubuntu24.04 \
#     --build-arg RUNTIME_IMAGE=ubuntu:24.04 .
# That wants a driver of at least 465, and one that knows the GPU.
#   docker run --rm --gpus all -p 127.0.0.1:50051:50051 -p 127.0.0.1:9464:9464 rope-server:cuda
# The tests, which leave nothing in the runtime image:
#   docker build --target=test .
# Stages: build -> programs -> cpu or cuda -> runtime; build -> test. The default is runtime.
# Without --target=runtime the classic builder also runs the test stage.
ARG BUILD_IMAGE=debian:bookworm-slim
ARG RUNTIME_IMAGE=debian:bookworm-slim
ARG DEVICE=cpu

FROM ${BUILD_IMAGE} AS build
WORKDIR /source
COPY deploy/install_dependencies.sh deploy/
RUN deploy/install_dependencies.sh
COPY CMakeLists.txt ./
COPY deploy/build.sh deploy/
COPY deploy/package deploy/package
COPY proto proto
COPY kernels kernels
COPY client client
COPY server server
# A build for cuda without nvcc fails here, instead of giving a server without kernels.
ARG DEVICE
RUN case "$DEVICE" in cpu) cuda=OFF ;; cuda) cuda=ON ;; \
      *) echo "DEVICE: got $DEVICE, want cpu or cuda" >&2; exit 1 ;; esac \
 && deploy/build.sh "-DROPE_CUDA=$cuda" rope_server ropectl rope_protoset
# The revision comes after the long step, which a new one would otherwise repeat.
ARG REVISION=unknown
RUN cmake "-DROPE_REVISION=$REVISION" build && deploy/build.sh rope_server
# The programs, and the distribution's packages whose code is in them.
COPY deploy/list_packages.sh deploy/
RUN mkdir /programs \
 && strip -o /programs/rope_server build/bin/rope_server \
 && strip -o /programs/ropectl build/bin/ropectl \
 && deploy/list_packages.sh /programs/rope_server /programs/ropectl >packages

FROM ${RUNTIME_IMAGE} AS programs
# deploy/sbom.py makes a bill of materials of this list and of the image's dpkg.
COPY --from=build /source/packages /usr/local/share/rope/
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
      $(sed -n 's/^linked \([^ ]*\) .*/\1/p' /usr/local/share/rope/packages) \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/log/apt /var/log/dpkg.log
COPY --from=build /programs/ /usr/local/bin/
# The schema with its comments: docker cp CONTAINER:/usr/local/share/rope/rope.protoset .
COPY --from=build /source/build/rope.protoset /usr/local/share/rope/
# Both programs must start here, which proves that no library is missing.
RUN ["/usr/local/bin/rope_server", "--version"]
RUN ["/usr/local/bin/ropectl", "help"]
ARG RUNTIME_IMAGE
ARG VERSION=0.9.0
ARG REVISION=unknown
ARG CREATED=1970-01-01T00:00:00Z
ARG SOURCE=unknown
LABEL org.opencontainers.image.title="RopeServe" \
      org.opencontainers.image.description="Rotary position embeddings over gRPC" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}" \
      org.opencontainers.image.source="${SOURCE}" \
      org.opencontainers.image.base.name="${RUNTIME_IMAGE}"
USER 65532:65532
EXPOSE 50051 9464
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=3s --start-period=10s --retries=3 \
  CMD ["/usr/local/bin/ropectl", "health", "--target=127.0.0.1:50051", "--timeout=2s"]

# The default flags are part of the entry point, and arguments of `docker run IMAGE ARGUMENTS...`
# follow them. With more arguments the server therefore still listens where published ports and the
# health check reach it. Publishing a port is what opens it; with --tls_cert and --tls_key it has
# TLS, and ROPE_TLS_CA and ROPE_TLS_SERVER_NAME tell the health check so.
FROM programs AS cpu
ENTRYPOINT ["/usr/local/bin/rope_server", "--listen=0.0.0.0:50051", "--insecure_listen", \
            "--metrics_listen=0.0.0.0:9464"]
CMD []

# `--gpus all` provides the driver.
FROM programs AS cuda
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
ENTRYPOINT ["/usr/local/bin/rope_server", "--listen=0.0.0.0:50051", "--insecure_listen", \
            "--metrics_listen=0.0.0.0:9464", "--device=cuda"]
CMD []

FROM ${DEVICE} AS runtime

FROM build AS test
RUN deploy/install_dependencies.sh --tests
COPY tests tests
RUN deploy/build.sh --tests \
 && ctest --test-dir build --parallel "$(nproc)" --output-on-failure --no-tests=error \
      -L 'unit|conformance'

FROM runtime
