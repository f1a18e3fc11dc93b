#!/usr/bin/env bash
# Builds the programs of the local control plane into bin/controlplane, from Go modules alone.
# Usage: hack/controlplane/build.sh [PROGRAM...]   (default: etcd kube-apiserver)
# Programs: etcd kube-apiserver kube-controller-manager kubectl
#
# A first build takes about six minutes on two cores, so each program shows how far it is. A program whose
# go.mod has not changed since it was built is not built again.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
out=${OUT:-$here/../../bin/controlplane}
mkdir -p "$out"
out=$(cd "$out" && pwd)

version() { # MODULE DIR: the version of a module that the go.mod in DIR asks for
	(cd "$2" && go list -m -f '{{.Version}}' "$1")
}

# progress TOTAL NAME: turns the package names that `go build -v` prints into one moving line on a terminal,
# and into a line every ten per cent elsewhere. Everything that is not a package name is an error message: shown.
progress() {
	awk -v total="$1" -v name="$2" -v tty="$([ -t 2 ] && echo 1 || echo 0)" '
		/^[a-zA-Z0-9_.\/~-]+$/ {
			n++; p = int(100 * n / total); if (p > 99) p = 99
			if (tty) { printf "\r  %-24s %3d %%  (%d of at most %d packages)", name, p, n, total; fflush() }
			else if (int(p / 10) > shown) { shown = int(p / 10); printf "  %-24s %3d %%\n", name, p; fflush() }
			next
		}
		{ print; fflush() }
		END { if (tty && n) printf "\n" }' >&2
}

build() { # NAME DIR PACKAGE LDFLAGS
	local name=$1 dir=$2 package=$3 ldflags=$4 stamp="$out/.$1.stamp" want total began
	want=$(cat "$dir/go.mod" "$dir/go.sum" "$here/build.sh" | sha256sum | cut -d' ' -f1)-$(go env GOVERSION)-$(go env GOOS)-$(go env GOARCH)
	if [ -x "$out/$name" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$want" ]; then
		return
	fi
	began=$SECONDS
	echo "Building $name (the first time this takes minutes: it compiles the real program)" >&2
	total=$(cd "$dir" && go list -deps "$package" | wc -l)
	rm -f "$stamp"
	(
		cd "$dir"
		CGO_ENABLED=0 go build -v -trimpath -ldflags "-s -w $ldflags" -o "$out/.$name.new" "$package" 2>&1
	) | progress "$total" "$name"
	mv "$out/.$name.new" "$out/$name"
	echo "$want" >"$stamp"
	echo "Built $out/$name in $((SECONDS - began)) s" >&2
}

kubernetes=$(version k8s.io/kubernetes "$here")
kubeflags="-X k8s.io/component-base/version.gitVersion=$kubernetes -X k8s.io/client-go/pkg/version.gitVersion=$kubernetes"

[ $# -gt 0 ] || set -- etcd kube-apiserver
for program in "$@"; do
	case $program in
	etcd) build etcd "$here/etcd" go.etcd.io/etcd/server/v3 "" ;;
	kube-apiserver | kube-controller-manager | kubectl) build "$program" "$here" "k8s.io/kubernetes/cmd/$program" "$kubeflags" ;;
	*)
		echo "error: unknown program \"$program\" (etcd, kube-apiserver, kube-controller-manager or kubectl)" >&2
		exit 2
		;;
	esac
done
