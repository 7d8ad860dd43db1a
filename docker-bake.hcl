# The images with a container engine, for both architectures:
#
#   REGISTRY=registry.example docker buildx bake --push
#   docker buildx bake --set '*.platform=linux/amd64' --load operator
#
# Their names are those of the chart's values image.registry and image.namespace. The programs are compiled under emulation for the
# architecture that the builder is not.
variable "REGISTRY" {
  default = "docker.io"
}
variable "NAMESPACE" {
  default = "andreas"
}
variable "VERSION" {
  default = "0.1.0"
}

group "default" {
  targets = ["image"]
}

target "image" {
  matrix = {
    image = [
      { part = "operator", name = "andreas-operator" },
      { part = "extender", name = "andreas-extender" },
      { part = "node-agent", name = "andreas-node-agent" },
      { part = "node-power", name = "andreas-node-power" },
      { part = "trainer", name = "andreas-trainer" },
      { part = "cli", name = "kubectl-andreas" },
    ]
  }
  name       = image.part
  context    = "."
  dockerfile = "deploy/docker/${image.part}.Dockerfile"
  platforms  = ["linux/amd64", "linux/arm64"]
  tags       = ["${REGISTRY}/${NAMESPACE}/${image.name}:${VERSION}"]
}
