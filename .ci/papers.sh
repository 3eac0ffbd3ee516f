#!/usr/bin/env bash
# papers.sh [FILE]: runs every test that docs/papers.md names, by name, and lists those that were skipped. A test that did
# not run fails. Tests of packages that FILE tells of, which make test PART=1/3 or make test-long wrote, are not run again.
# HETC_REQUIRE says what must not be skipped.
set -euo pipefail
cd "$(dirname "$0")/.."
names=$(grep -o '`[a-z0-9_/]*\.Test[A-Za-z0-9_]*`' docs/papers.md | tr -d '`' | sort -u)
for package in $(cut -d. -f1 <<<"$names" | sort -u); do
	tests=$(grep "^$package\." <<<"$names" | cut -d. -f2)
	out=
	if [ $# -gt 0 ]; then # what stands above the package's own line, below that of another one
		out=$(awk -F'\t' -v "package=$package" '
			/^--- / { lines[n++] = $0 }
			/^(ok  |FAIL)\t/ {
				if ($1 == "ok  " && substr($2, length($2) - length(package)) == "/" package)
					for (i = 0; i < n; i++) print lines[i]
				n = 0
			}' "$1")
	fi
	if [ -z "$out" ]; then
		out=$("${GO:-go}" test -vet=off -timeout 30m -v -run "^($(paste -sd'|' <<<"$tests"))\$" "./$package") || { tail -40 <<<"$out"; exit 1; }
	fi
	for name in $tests; do
		grep -oE "^--- (PASS|SKIP): $name " <<<"$out" | sed "s|: |: $package.|" || { echo "$package.$name did not run"; exit 1; }
	done
done
