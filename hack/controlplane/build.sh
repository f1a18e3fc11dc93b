#!/usr/bin/env bash
# Builds the programs of the local control plane into bin/controlplane, from Go modules alone.
# Usage: hack/controlplane/build.sh [PROGRAM...]   (default: etcd kube-apiserver kube-controller-manager)
# Programs: etcd kube-apiserver kube-controller-manager kubectl
#
# KUBERNETES=1.34 builds that version, of which versions.txt has the patch release, into bin/controlplane-1.34.
# KUBERNETES=1.34.3 does so with any patch release whose modules are served.
#
# A first build takes about seven minutes on two cores, so each program shows how far it is. A program whose sources
# have not changed since it was built is not built again; nor is one that stands in the folder KUBEBUILDER_ASSETS.
# OUT names another folder for the programs. Builds at the same time wait for each other, and an interrupted one
# leaves the programs as they were.
set -euo pipefail

# The caller's go.work knows nothing about the modules here.
export GOWORK=off CGO_ENABLED=0

here=$(cd "$(dirname "$0")" && pwd)
unfinished=

cleanup() { # removes what an interrupted build has written
	[ -z "$unfinished" ] || rm -f "$unfinished"
}
trap cleanup EXIT
trap 'echo >&2; exit 130' INT
trap 'exit 143' TERM HUP

fail() { # STATUS MESSAGE
	echo "error: $2" >&2
	exit "$1"
}

is_tty() { if [ -t 2 ]; then echo 1; else echo 0; fi; }

checksum() { # of the standard input
	if command -v sha256sum >/dev/null; then sha256sum; else shasum -a 256; fi | cut -d' ' -f1
}

# lock makes this build wait for others that write to the same folder. Where there is no flock, two builds at once
# do the work twice, without harm: a program is put in its place by a rename.
lock() {
	command -v flock >/dev/null || return 0
	exec 9>"$out/.lock"
	flock -n 9 && return
	echo "Waiting for another build in $out" >&2
	flock 9
}

# count reads what `go list -deps` says, and prints the number of packages. Modules that are fetched meanwhile are
# counted on a terminal; everything else is an error message: shown.
count() {
	awk -v tty="$(is_tty)" '
		/^go: downloading / {
			fetched++
			if (tty) printf "\r  fetching modules         %d", fetched >"/dev/stderr"
			next
		}
		/^[^ :]+$/ { n++; next }
		{ print >"/dev/stderr" }
		END {
			if (tty && fetched) printf "\n" >"/dev/stderr"
			print n + 0
		}'
}

# progress TOTAL NAME: turns the package names that `go build -v` prints into one moving line on a terminal, and
# into a line every ten per cent elsewhere. Everything that is not a package name is an error message: shown.
progress() {
	awk -v total="$1" -v name="$2" -v tty="$(is_tty)" '
		/^[a-zA-Z0-9_.\/~-]+$/ {
			n++
			p = total > 0 ? int(100 * n / total) : 0
			if (p > 99) p = 99
			if (tty) {
				printf "\r  %-24s %3d %%  (%d of at most %d packages)", name, p, n, total
				moved = 1
			} else if (int(p / 10) > shown) {
				shown = int(p / 10)
				printf "  %-24s %3d %%\n", name, p
			}
			fflush()
			next
		}
		{
			if (moved) printf "\n"
			moved = 0
			print
			fflush()
		}
		END { if (moved) printf "\n" }' >&2
}

# The linker throws debugging information away (-s -w), so the compiler need not make it: an eighth of its work.
gcflags=all=-dwarf=false

build() { # NAME PACKAGE LDFLAGS
	local name=$1 package=$2 ldflags="-s -w $3" exe stamp want total began
	exe=$name$(go env GOEXE)
	if [ -n "${KUBEBUILDER_ASSETS:-}" ] && [ -x "$KUBEBUILDER_ASSETS/$exe" ]; then
		echo "Using $KUBEBUILDER_ASSETS/$exe (KUBEBUILDER_ASSETS)" >&2
		return
	fi
	stamp=$out/.$name.stamp
	want=$({
		echo "$pinned"
		echo "$package $gcflags $ldflags"
		go env GOVERSION GOOS GOARCH
	} | checksum)
	if [ -x "$out/$exe" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$want" ]; then
		return
	fi
	began=$SECONDS
	echo "Building $name (the first time this takes minutes: it compiles the real program)" >&2
	# File 9 is the lock: a process that go leaves in the background must not hold it.
	total=$(cd "$module" && go list "$mod" -deps "$package" 2>&1 9>&- | count) ||
		fail 1 "listing the packages of $name: see the messages above"
	unfinished=$out/.$exe.$$
	(cd "$module" && go build "$mod" -v -trimpath -gcflags "$gcflags" -ldflags "$ldflags" -o "$unfinished" "$package" 2>&1 9>&-) |
		progress "$total" "$name" ||
		fail 1 "building $name: see the messages above"
	rm -f "$stamp"
	mv -f "$unfinished" "$out/$exe"
	unfinished=
	echo "$want" >"$stamp"
	echo "Built $out/$exe in $((SECONDS - began)) s" >&2
}

[ $# -gt 0 ] || set -- etcd kube-apiserver kube-controller-manager
for program in "$@"; do
	case $program in
	etcd | kube-apiserver | kube-controller-manager | kubectl) ;;
	*) fail 2 "unknown program \"$program\" (etcd, kube-apiserver, kube-controller-manager or kubectl)" ;;
	esac
done
command -v go >/dev/null || fail 1 "no go on the PATH: install Go (https://go.dev/dl)"

module=$here mod=-mod=readonly pinned=$(cat "$here/go.mod" "$here/go.sum")
if [ -n "${KUBERNETES:-}" ]; then
	version=$(awk -v minor="$KUBERNETES" '$1 "" == minor "" { print $2 }' "$here/versions.txt")
	[[ ${version:=$KUBERNETES} =~ ^1\.[0-9]+\.[0-9]+$ ]] ||
		fail 2 "hack/controlplane/versions.txt has no Kubernetes \"$KUBERNETES\": name a patch release, as in KUBERNETES=1.34.3"
fi

out=${OUT:-$here/../../bin/controlplane${KUBERNETES:+-$KUBERNETES}}
mkdir -p "$out"
out=$(cd "$out" && pwd)
lock

# Another version is built in a module whose go.mod is Kubernetes' own, with the staging modules as they are published.
# So it pins every dependency, and go.sum is made with the checksum database.
if [ -n "${KUBERNETES:-}" ]; then
	module=$out/module mod=-mod=mod pinned="k8s.io/kubernetes v$version"
	if ! grep -qxF "require $pinned" "$module/go.mod" 2>/dev/null; then
		rm -rf "$module" && mkdir "$module"
		upstream=$(cd "$module" && go list "$mod" -m -f '{{.GoMod}}' "${pinned/ /@}" 9>&-) ||
			fail 1 "fetching Kubernetes $version: see the messages above"
		sed -E "s|^module .*|module controlplane|; s|^(\t(k8s.io/.*) => )\./staging.*|\1\2 v0.${version#1.}|" "$upstream" >"$module/new"
		echo "require $pinned" >>"$module/new"
		mv "$module/new" "$module/go.mod"
	fi
fi

# etcd has the version of the client in kube-apiserver, so that they share most packages.
kubeflags=
for program in "$@"; do
	if [ "$program" = etcd ]; then
		build etcd go.etcd.io/etcd/server/v3 ""
		continue
	fi
	if [ -z "$kubeflags" ]; then
		# Without these the programs would say that they are v0.0.0.
		version=$(cd "$module" && go list "$mod" -m -f '{{.Version}}' k8s.io/kubernetes 9>&-)
		minor=${version#v*.}
		kubeflags="-X k8s.io/client-go/pkg/version.gitVersion=$version"
		kubeflags+=" -X k8s.io/component-base/version.gitVersion=$version"
		kubeflags+=" -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=${minor%%.*}"
	fi
	build "$program" "k8s.io/kubernetes/cmd/$program" "$kubeflags"
done
