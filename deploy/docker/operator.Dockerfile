# syntax=docker/dockerfile:1
# The operator.
#   docker build -f deploy/docker/operator.Dockerfile -t andreas/andreas-operator:$(git describe --always) .
# A static binary (musl) on nothing: no shell, no libraries, no CA certificates (it trusts the cluster's, which is mounted).
FROM docker.io/library/rust:1.95.0-bookworm@sha256:6258907abe69656e41cd992e0b705cdcfabcbbe3db374f92ed2d47121282d4a1 AS build
RUN apt-get update && apt-get install --yes --no-install-recommends musl-tools \
    && rustup target add "$(uname -m)-unknown-linux-musl"
WORKDIR /src
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/src/target,sharing=locked \
    target="$(uname -m)-unknown-linux-musl" \
    && cargo build --release --locked --target "$target" --package andreas-operator --bin andreas-operator \
    && install -D --strip "target/$target/release/andreas-operator" /out/andreas-operator

FROM scratch
COPY --from=build /out/andreas-operator /andreas-operator
USER 65532:65532
ENTRYPOINT ["/andreas-operator"]
