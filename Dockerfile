# Digests name lists of images for all platforms. Dependabot keeps them and their tags together.
#
# The builder runs on the machine's own platform and compiles for the one that is asked for.
FROM --platform=$BUILDPLATFORM docker.io/library/golang:1.26.8-bookworm@sha256:a688600ca24f8a4d3ca77f95b0dd40704a9fc787c826660eb7ba0b641b8b175d AS build
WORKDIR /src
COPY . .
ARG TARGETOS
ARG TARGETARCH
ARG VERSION=dev
ARG REVISION=unknown
# The tag nodev leaves out the servers that `notifier dev` embeds.
RUN --mount=type=cache,target=/go/pkg/mod \
    --mount=type=cache,target=/root/.cache/go-build \
    CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH \
    go build -trimpath -tags nodev \
    -ldflags "-s -w -X main.version=$VERSION -X main.revision=$REVISION" \
    -o /out/notifier ./cmd/notifier

# Certificates, time zones (tzdata, for `notifier mute --every`) and a user, and neither a shell nor a package manager.
FROM gcr.io/distroless/static-debian12:nonroot@sha256:afa5c872c891853ca7fcf1f12c3edb23f7eeef36189728842dd51042ff57f7ab
ARG VERSION=dev
ARG REVISION=unknown
LABEL org.opencontainers.image.title="notifier" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION"
COPY --from=build /out/notifier /notifier
# The user nonroot, by number, so that Kubernetes can see that it is not root.
USER 65532:65532
# Metrics and health, and events over HTTP (`notifier ingest`).
EXPOSE 8080 8082
# It asks a worker or ingest. A container of `notifier page`, which serves no /healthz, needs NOTIFIER_HTTP_ADDR=off to count as healthy.
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s --retries=3 CMD ["/notifier", "health"]
ENTRYPOINT ["/notifier"]
