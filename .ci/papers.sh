#!/usr/bin/env bash
# Runs every test that docs/papers.md names, by name, and lists those that were skipped. A test that did not run fails.
# HETC_REQUIRE says what must not be skipped.
set -euo pipefail
cd "$(dirname "$0")/.."
names=$(grep -o '`[a-z0-9_/]*\.Test[A-Za-z0-9_]*`' docs/papers.md | tr -d '`' | sort -u)
for package in $(cut -d. -f1 <<<"$names" | sort -u); do
	tests=$(grep "^$package\." <<<"$names" | cut -d. -f2)
	out=$(${GO:-go} test -vet=off -timeout 30m -v -run "^($(paste -sd'|' <<<"$tests"))\$" "./$package") || { tail -40 <<<"$out"; exit 1; }
	for name in $tests; do
		grep -oE "^--- (PASS|SKIP): $name " <<<"$out" | sed "s|: |: $package.|" || { echo "$package.$name did not run"; exit 1; }
	done
done
