# syntax=docker/dockerfile:1
# The node agent: the agent, and the setter, which its containers name as their command.
#   docker build -f deploy/docker/node-agent.Dockerfile -t andreas/andreas-node-agent:$(git describe --always) .
# It loads NVIDIA's libnvidia-ml.so.1 at run time, which the container runtime mounts from the node and which is linked against
# glibc. Build on no newer a Debian than it runs on.
FROM docker.io/library/rust:1.95.0-bookworm@sha256:6258907abe69656e41cd992e0b705cdcfabcbbe3db374f92ed2d47121282d4a1 AS build
WORKDIR /src
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/src/target,sharing=locked \
    cargo build --profile small --locked --package andreas-node-agent --bins \
    && install -D --strip -t /out target/small/andreas-node-agent target/small/andreas-node-setter

# glibc and libgcc, no shell. Root, because the kubelet's socket is root's and capabilities reach no other user; the chart drops every
# capability but the setter's one.
FROM gcr.io/distroless/cc-debian12:nonroot@sha256:9dac0a79194e45a7da0158a9c6da57b217585af0786db3845d1f0ec1a0dd182f
USER 0:0
COPY --from=build /out/ /usr/local/bin/
ENTRYPOINT ["/usr/local/bin/andreas-node-agent"]
