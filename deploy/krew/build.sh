#!/bin/bash
# Builds kubectl sluice for all systems, and the manifest by which Krew finds the
# archives, into a folder:
#
#   VERSION=v1.2.3 RELEASES=https://example.org/releases deploy/krew/build.sh dist
#
# The archives are the same for whoever builds them with the same Go.
set -euo pipefail
: "${VERSION:?say which version, like v1.2.3}" "${RELEASES:?say below which URL the archives will be, by version}"
[[ $VERSION =~ ^v[0-9]+\.[0-9]+\.[0-9]+ ]] || { echo "VERSION $VERSION: Krew wants one like v1.2.3" >&2; exit 1; }
mkdir -p "$1" && dist=$(cd "$1" && pwd)
cd "$(dirname "$0")/../.."

manifest=$(sed "s|VERSION|$VERSION|; s|RELEASES|$RELEASES|; s|HOMEPAGE|${HOMEPAGE:-$RELEASES}|" deploy/krew/sluice.yaml)
for platform in ${PLATFORMS:-linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64 windows/arm64}; do
	os=${platform%/*} arch=${platform#*/}
	name=kubectl-sluice-$os-$arch
	folder=$(mktemp -d)
	program=kubectl-sluice$([ "$os" != windows ] || echo .exe)
	# What a builder's environment could change about it, as in deploy/image/program.go.
	CGO_ENABLED=0 GOOS=$os GOARCH=$arch GOAMD64=v1 GOARM64=v8.0 GOFLAGS=-mod=readonly GOEXPERIMENT='' GOWORK=off \
		go build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=$VERSION" -o "$folder/$program" ./cmd/kubectl-sluice
	cp LICENSE "$folder"
	tar -C "$folder" --sort=name --mode=u=rwX,go=rX --mtime=@0 --owner=0 --group=0 --numeric-owner -c LICENSE "$program" | gzip -n >"$dist/$name.tar.gz"
	rm -r "$folder"
	sum=$(sha256sum "$dist/$name.tar.gz")
	manifest=${manifest//SHA256-$os-$arch/${sum%% *}}
done
printf '%s\n' "$manifest" >"$dist/sluice.yaml"
