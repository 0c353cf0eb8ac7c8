#!/bin/bash
# Prints how many lines of Go there are outside tests, conformance and fakes,
# the share of each package, and the totals that have a limit.
set -euo pipefail
cd "$(dirname "$0")/.."

files() { find "$@" -name '*.go' ! -name '*_test.go' ! -name 'fake*.go' ! -path '*/*test/*'; }
daemon() { files cmd internal | grep -v '^internal/conformance/'; }
lines() { xargs cat | wc -l; }

all=$(daemon | lines)
daemon | xargs wc -l | awk -v all="$all" '
	$2 != "total" { sub("/[^/]*$", "", $2); n[$2] += $1 }
	END { for (p in n) printf "%7d %5.1f%%  %s\n", n[p], 100 * n[p] / all, p }' | sort -rn
echo
limit() { printf '%7d of at most %6d  %s\n' "$1" "$2" "$3"; }
new="/(kernel|dataplane)/(ipvs|userspace|ebpf|kernelspace|hns)/"
tells="^(internal/(access|bugreport|cli|explain|kubectl|status|statusapi|traffic)|cmd/kubectl-sluice)/"
limit "$(daemon | grep -vE "$new|$tells" | lines)" 15500 "the daemon with two modes: nftables, iptables and all that every mode needs"
printf '%7d  what tells of it: status, explain, top, the page, traffic, bug reports, kubectl sluice\n' "$(daemon | grep -E "$tells" | lines)"
for mode in ipvs userspace; do
	limit "$(daemon | grep -E "/(kernel|dataplane)/$mode/" | lines)" 1000 "mode $mode, with its kernel package"
done
limit "$(daemon | grep -E "/(kernel/hns|dataplane/kernelspace)/" | lines)" 1000 "mode kernelspace, with its kernel package"
printf '%7d, and %d of C  %s\n' "$(files internal/dataplane/ebpf | lines)" "$(wc -l <internal/dataplane/ebpf/bpf/sockets.c)" "mode ebpf"
limit "$(files internal/conformance | lines)" 3800 "internal/conformance"
limit "$(files test/demo | lines)" 1050 "test/demo"
limit "$(files test/cluster/peers | lines)" 3000 "test/cluster/peers"
