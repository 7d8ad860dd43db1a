# syntax=docker/dockerfile:1
# Switches machines off and on.
#   docker build -f deploy/docker/node-power.Dockerfile -t andreas/andreas-node-power:$(git describe --always) .
# Build on no newer a Debian than it runs on.
FROM docker.io/library/rust:1.95.0-bookworm@sha256:6258907abe69656e41cd992e0b705cdcfabcbbe3db374f92ed2d47121282d4a1 AS build
WORKDIR /src
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/src/target,sharing=locked \
    cargo build --release --locked --package andreas-node-power --bin andreas-node-power \
    && install -D --strip -t /out target/release/andreas-node-power

# glibc and libgcc, no shell.
FROM gcr.io/distroless/cc-debian12:nonroot@sha256:9dac0a79194e45a7da0158a9c6da57b217585af0786db3845d1f0ec1a0dd182f
COPY --from=build /out/ /usr/local/bin/
USER 65532:65532
ENTRYPOINT ["/usr/local/bin/andreas-node-power"]
