package iptables

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"sluice/internal/kernel/ipt"
)

// Needed says why a node needs this mode though it could do another; empty if it
// does not. Where chain FORWARD drops what none of its rules accepts, Services
// live on the rules that accept their traffic there, and a rule outside of that
// very chain cannot stand in for them. It writes nothing.
func Needed(ctx context.Context, s Settings) (string, error) {
	if err := s.settleVariant(ctx); err != nil {
		return "", err
	}
	if err := s.permission(); err != nil {
		return "", err
	}
	var errs []error
	for _, f := range s.Served() {
		why, err := forwardDrops(ctx, iptFamily(f), s.Variant)
		if why != "" {
			return why, nil
		}
		errs = append(errs, err)
	}
	return "", errors.Join(errs...)
}

func forwardDrops(ctx context.Context, f ipt.Family, v ipt.Variant) (string, error) {
	if v == ipt.Legacy {
		// Looking for a table of this variant makes one.
		if tables, err := ipt.LegacyTables(f); err != nil || len(tables) == 0 {
			return "", err
		}
	}
	conn, err := ipt.Open(ctx, f, v)
	if errors.Is(err, ipt.ErrMissing) {
		return "", nil // nobody has used them
	}
	if err != nil {
		return "", err
	}
	saved, err := conn.Save(ctx)
	if err != nil {
		return "", err
	}
	chain := index(saved)[chainRef{filter, "FORWARD"}]
	if chain == nil || drops(chain) == "" {
		return "", nil
	}
	return fmt.Sprintf("%s of chain FORWARD (%s) drops forwarded traffic of Services unless a rule in it accepts it", drops(chain), ipt.Name(f, v)), nil
}

var saysOnly = regexp.MustCompile(`^-m comment --comment ("(\\.|[^"\\])*"|\S+) `)

// drops says what of a chain drops all that comes to its end; empty if nothing
// does. Rules that match some packets only are no reason to hope.
func drops(c *ipt.Chain) string {
	for _, r := range c.Rules {
		switch r = saysOnly.ReplaceAllString(r, ""); {
		case r == "-j ACCEPT":
			return ""
		case r == "-j DROP", strings.HasPrefix(r, "-j REJECT"):
			return fmt.Sprintf("rule %q", r)
		}
	}
	if c.Policy == "DROP" {
		return "policy DROP"
	}
	return ""
}
