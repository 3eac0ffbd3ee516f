#!/usr/bin/env bash
# long.sh FILE [FLAGS AND PACKAGES...]: runs go test -v, keeps everything that it prints in FILE, where papers.sh finds
# which tests ran, and prints a line for each package, and everything of packages that fail.
set -euo pipefail
file=$1
shift
mkdir -p "$(dirname "$file")"
"${GO:-go}" test -v "$@" | tee "$file" | awk '
	/^ok  \t/ { print; fflush(); held = 0; next }
	{ lines[held++] = $0 }
	/^FAIL\t/ { for (i = 0; i < held; i++) print lines[i]; fflush(); held = 0 }
	END { for (i = 0; i < held; i++) print lines[i] }
'
