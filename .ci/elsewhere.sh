#!/usr/bin/env bash
# Runs the tests the way other machines do: in a path with blanks, as another user, with another umask, without HOME and
# with narrow and wide terminals. It copies the tree first and leaves the checkout alone.
#
#	.ci/elsewhere.sh [PACKAGES AND FLAGS OF GO TEST...]   default: ./...
#
# ELSEWHERE names some of the configurations: root nobody wide home.
set -euo pipefail
cd "$(dirname "$0")/.."
export CGO_ENABLED=0
[ $# -gt 0 ] || set -- ./...
here=$(mktemp -d "${TMPDIR:-/tmp}/hetc else where.XXXXXX")
trap 'chmod -R u+w "$here"; rm -rf "$here"' EXIT
chmod 755 "$here"
tree="$here/a tree, ümläut"
mkdir "$tree" "$here/tmp files" "$here/cache"
git ls-files -z | tar --null --ignore-failed-read -cf - -T - | tar -xf - -C "$tree" # what git tracks, as it is now
[ ! -d .deps ] || cp -R .deps "$tree/.deps"
[ ! -d solver/highs/wasm ] || cp -R solver/highs/wasm "$tree/solver/highs/wasm"
go mod download
modules=$(go env GOMODCACHE)
go=$(command -v go)

# run NAME USER UMASK [NAME=VALUE...]: the tests in an environment of nothing else.
run() {
	local name=$1 user=$2 mask=$3 as=()
	shift 3
	case " ${ELSEWHERE:-root nobody wide home} " in *" $name "*) ;; *) return 0 ;; esac
	if [ "$user" != "$(id -un)" ]; then
		if [ "$(id -u)" != 0 ] || ! command -v setpriv >/dev/null; then
			echo "elsewhere: $name: skipped, becoming $user needs root and setpriv"
			return 0
		fi
		as=(setpriv "--reuid=$user" "--regid=$(id -g "$user")" --clear-groups)
	fi
	chown -R "$user" "$here"
	echo "elsewhere: $name: user $user, umask $mask, $*"
	(
		cd "$tree"
		umask "$mask"
		"${as[@]}" env -i PATH="$PATH" CGO_ENABLED=0 GOFLAGS="-trimpath -modcacherw" GOPROXY=off GOMODCACHE="$here/modules" GOCACHE="$here/cache" \
			TMPDIR="$here/tmp files" HETC_REQUIRE="${HETC_REQUIRE:-}" "$@" "$go" test -vet=off -timeout 60m "${tests[@]}"
	)
}
tests=("$@")
cp -R "$modules" "$here/modules" # not every user may read the first one

run root "$(id -un)" 077 COLUMNS=40 LANG=C LC_ALL=C
run nobody nobody 077 COLUMNS=40 LANG=C
run wide "$(id -un)" 022 COLUMNS=240 LANG=C.UTF-8
run home nobody 022 COLUMNS=240 HOME=/nonexistent
