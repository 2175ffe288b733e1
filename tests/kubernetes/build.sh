#!/bin/bash
# build.sh FOLDER: build the servers of Kubernetes 1.20 from Debian's source package.
set -eu
packages="golang-go etcd-server containerd runc containernetworking-plugins iproute2 openssl golang-github-modern-go-reflect2-dev"
out=$(realpath "$1")
mkdir -p "$out/lists/partial" "$out/sources" "$out/gopath/src/k8s.io/kubernetes"
# shellcheck disable=SC2086
dpkg -s $packages >/dev/null 2>&1 || apt-get -qq install --no-install-recommends -y $packages >/dev/null

cd "$out"
if [ ! -e kubernetes_*.orig.tar.gz ]; then
    sed 's/^Types: deb$/Types: deb-src/' /etc/apt/sources.list.d/debian.sources >sources/source.sources
    apt=(-o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$out/sources" -o Dir::State::Lists="$out/lists")
    apt-get -qq "${apt[@]}" update
    apt-get -qq "${apt[@]}" source --download-only kubernetes
fi
tree=$out/gopath/src/k8s.io/kubernetes
tar xzf kubernetes_*.orig.tar.gz -C "$tree" --strip-components=1

# The package lacks one generated file, which only describes the API to kubectl explain. Its
# generator takes as long as everything else, so the server does without.
sed -i -e '/generatedopenapi /d' -e '/openapinamer/d' -e '/extensionsapiserver "/d' -e '/aggregatorscheme "/d' -e '/OpenAPIConfig = /d' -e '/OpenAPIConfig.Info/d' \
    -e '/Authentication.ApplyTo(&genericConfig/s/genericConfig.OpenAPIConfig/\&openapicommon.Config{}/' \
    -e 's|^\taggregatorapiserver "|\topenapicommon "k8s.io/kube-openapi/pkg/common"\n&|' \
    "$tree/cmd/kube-apiserver/app/server.go"

# Its reflect2 is older than Go 1.18, with which it writes over memory when it walks through a map:
# the API server then panics at the next JSON.
reflect=vendor/github.com/modern-go/reflect2
rm "$tree/$reflect"/*.go
cp /usr/share/gocode/src/${reflect#vendor/}/*.go "$tree/$reflect/"
rm -f "$tree/$reflect"/*_test.go

export GO111MODULE=off GOPATH=$out/gopath GOCACHE=$out/cache CGO_ENABLED=0
version=k8s.io/kubernetes/vendor/k8s.io/component-base/version
cd "$tree"
go build -trimpath -tags providerless,dockerless -o "$out/" \
    -ldflags "-s -w -X $version.gitVersion=v1.20.2 -X $version.gitMajor=1 -X $version.gitMinor=20" \
    ./cmd/kube-apiserver ./cmd/kube-controller-manager ./cmd/kube-scheduler ./cmd/kubelet
rm -rf "$out/cache" "$out/gopath" "$out/lists" "$out/sources"
