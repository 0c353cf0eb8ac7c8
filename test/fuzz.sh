#!/bin/bash
# Runs every fuzz target of the module for a while, one after the other: FUZZTIME
# for each (10s), or FUZZTOTAL seconds for all of them together. The first one that fails
# ends it; go test tells where it has put the input, which is a seed from then on.
set -euo pipefail
cd "$(dirname "$0")/.."

targets=$(grep -rho --include='*_test.go' '^func Fuzz[A-Za-z0-9]*' internal test | wc -l)
time=${FUZZTIME:-10s}
[ -z "${FUZZTOTAL:-}" ] || time=$((FUZZTOTAL * 1000 / targets))ms

grep -rl --include='*_test.go' '^func Fuzz' internal test | xargs -n1 dirname | sort -u | while read -r package; do
	binary=$(mktemp)
	trap 'rm -f "$binary"' EXIT
	go test -c -fuzz=Fuzz -o "$binary" "./$package"
	for target in $(grep -ho '^func Fuzz[A-Za-z0-9]*' "$package"/*_test.go | cut -d' ' -f2 | sort); do
		echo "$package $target $time"
		for try in 1 2 3; do
			(cd "$package" && "$binary" -test.run='^$' -test.fuzz="^$target\$" -test.fuzztime="$time" -test.parallel="$(nproc)" \
				-test.fuzzcachedir="$(go env GOCACHE)/fuzz/sluice/$package" -test.timeout=0 </dev/null) >"$binary.log" 2>&1 && break
			# Go calls it a failure when the time is over while a worker is busy: then there is no input, and it is played again.
			if [ $try = 3 ] || grep -q 'Failing input' "$binary.log" || ! grep -q '^ *context deadline exceeded$' "$binary.log"; then
				cat "$binary.log"
				rm -f "$binary" "$binary.log"
				exit 1
			fi
		done
		rm -f "$binary.log"
	done
	rm -f "$binary"
done
