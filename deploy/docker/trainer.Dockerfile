# syntax=docker/dockerfile:1
# The sample trainer: it trains nothing, at the pace of a table, and reports, saves and resumes as a real one does.
#   docker build -f deploy/docker/trainer.Dockerfile -t andreas.dev/trainer:dev .
# A static binary (musl) on nothing: no shell, no libraries.
FROM docker.io/library/rust:1.95.0-bookworm@sha256:6258907abe69656e41cd992e0b705cdcfabcbbe3db374f92ed2d47121282d4a1 AS build
RUN apt-get update && apt-get install --yes --no-install-recommends musl-tools \
    && rustup target add "$(uname -m)-unknown-linux-musl"
WORKDIR /src
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/src/target,sharing=locked \
    target="$(uname -m)-unknown-linux-musl" \
    && cargo build --release --locked --target "$target" --package andreas-trainer --bin andreas-trainer \
    && install -D --strip "target/$target/release/andreas-trainer" /out/andreas-trainer

FROM scratch
COPY --from=build /out/andreas-trainer /andreas-trainer
USER 65532:65532
ENTRYPOINT ["/andreas-trainer"]
