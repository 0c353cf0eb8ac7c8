package iptables

import (
	"cmp"
	"context"
	"strings"

	"sluice/internal/kernel/ipt"
)

// uses is how many rules our chains have, and how many rules go to them, added
// up. The chains of all rows count as one, for there may be a hundred thousand.
type uses map[chainRef]int

// rowChains stands for the chains of all rows of a table.
const rowChains = "the chains of Services"

// counter returns where the uses of a chain are counted.
func counter(p chainRef) chainRef {
	for _, prefix := range []string{clusterChain, localChain, externalChain, sourceChain, endpointChain} {
		if strings.HasPrefix(p.chain, prefix) {
			return chainRef{p.table, rowChains}
		}
	}
	return p
}

// chain counts rules of a chain, n times.
func (u uses) chain(p chainRef, rules []string, n int) {
	u[counter(p)] += n * len(rules)
	for _, r := range rules {
		if to := ipt.Target(r); owns(p.table, to) {
			u[counter(chainRef{p.table, to})] += n
		}
	}
}

func (u uses) add(more uses) {
	for p, n := range more {
		u[p] += n
	}
}

// uses counts everything that a family should have.
func (t *target) uses() uses {
	u := uses{}
	for p, rules := range t.constants {
		u.chain(p, rules, 1)
		for _, l := range t.shared[p] {
			u.chain(p, []string{l.rule}, 1)
		}
	}
	for _, c := range t.own {
		u.chain(c.chainRef, c.rules, 1)
	}
	for _, j := range jumps() {
		to := counter(chainRef{j.table, ipt.Target(j.rule)})
		u[to]++ // the chain that it is in is others' too
	}
	return u
}

// count asks the kernel for the uses of our chains.
func (f *family) count(ctx context.Context) (uses, error) {
	tables, err := f.programs.Uses(ctx)
	if err != nil {
		return nil, err
	}
	u := uses{}
	for table, chains := range tables {
		for chain, n := range chains {
			if owns(table, chain) {
				u[counter(chainRef{table, chain})] += n
			}
		}
	}
	return u, nil
}

func compareChainRefs(a, b chainRef) int {
	return cmp.Or(cmp.Compare(a.table, b.table), cmp.Compare(a.chain, b.chain))
}
