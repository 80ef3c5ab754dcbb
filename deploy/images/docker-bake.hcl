# All images for all architectures:
#   docker buildx bake --file deploy/images/docker-bake.hcl --push
# with a registry and a tag of your own:
#   REGISTRY=registry.example.com/team TAG=1.2 docker buildx bake --file deploy/images/docker-bake.hcl --push

variable "REGISTRY" {
  default = ""
}

variable "TAG" {
  default = "0.1.0"
}

# Extras of the node agent: node, or node,gpu
variable "EXTRAS" {
  default = "node"
}

group "default" {
  targets = ["koordinator", "koordlet"]
}

target "common" {
  context    = "."
  dockerfile = "deploy/images/Dockerfile"
  platforms  = ["linux/amd64", "linux/arm64"]
  labels = {
    "org.opencontainers.image.version" = TAG
  }
}

target "koordinator" {
  inherits = ["common"]
  target   = "koordinator"
  tags     = [REGISTRY == "" ? "koordinator:${TAG}" : "${REGISTRY}/koordinator:${TAG}"]
}

target "koordlet" {
  inherits = ["common"]
  target   = "koordlet"
  tags     = [REGISTRY == "" ? "koordlet:${TAG}" : "${REGISTRY}/koordlet:${TAG}"]
  args = {
    EXTRAS = EXTRAS
  }
}
