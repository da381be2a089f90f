# The server and ropectl on Debian 12, without a compiler, not as root.
#   docker build -t rope-server .
#   docker run --rm -p 50051:50051 -p 9464:9464 rope-server
ARG DEBIAN_TAG=bookworm-slim

FROM debian:${DEBIAN_TAG} AS build
WORKDIR /source
COPY deploy/install_dependencies.sh deploy/
RUN deploy/install_dependencies.sh
COPY CMakeLists.txt ./
COPY deploy/build.sh deploy/
COPY proto proto
COPY kernels kernels
COPY client client
COPY server server
RUN deploy/build.sh rope_server ropectl && strip build/bin/rope_server build/bin/ropectl

FROM debian:${DEBIAN_TAG} AS runtime
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
      libabsl20220623 libfmt9 libgrpc++1.51 libhwy1 libprometheus-cpp-core1.0 \
      libprometheus-cpp-pull1.0 libprotobuf32 libspdlog1.10 \
 && rm -rf /var/lib/apt/lists/*
COPY --from=build /source/build/bin/rope_server /source/build/bin/ropectl /usr/local/bin/
USER 65532:65532
EXPOSE 50051 9464
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s --retries=3 \
  CMD ["/usr/local/bin/ropectl", "health", "--target=127.0.0.1:50051"]
ENTRYPOINT ["/usr/local/bin/rope_server"]
CMD ["--listen=0.0.0.0:50051", "--metrics_listen=0.0.0.0:9464"]
