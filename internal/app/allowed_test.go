package app

import (
	"fmt"
	"strings"
	"testing"
)

// TestAllowedReachesTheResolver checks that the ranges of flags reach the resolver.
// A configuration file has no field for them, so the flags apply with one, too.
func TestAllowedReachesTheResolver(t *testing.T) {
	for args, want := range map[string]string{
		"": "{ExternalIPs:[] LoadBalancerIPs:[]} true true",
		"--allowed-external-ips= --allowed-load-balancer-ips=none":                                        "{ExternalIPs:[] LoadBalancerIPs:[]} true false",
		"--allowed-external-ips=192.0.2.1/24,2001:db8::/32 --allowed-external-ips=10.0.0.0/8 --config=/f": "{ExternalIPs:[192.0.2.0/24 2001:db8::/32 10.0.0.0/8] LoadBalancerIPs:[]} false true",
	} {
		allowed, err := parse(t, strings.Fields(args)...).Allowed.read()
		if err != nil {
			t.Fatal(err)
		}
		rules, err := plan{config: configuration(t), allowed: allowed}.resolveSettings(t.Context(), nil)
		got := fmt.Sprintf("%+v %t %t", rules.Allowed, rules.Allowed.ExternalIPs == nil, rules.Allowed.LoadBalancerIPs == nil)
		if err != nil || got != want {
			t.Errorf("%s: %s, %v; want %s", args, got, err, want)
		}
	}
}

// TestAllowedRejectsInvalidCIDRs checks that an invalid CIDR is an error: a part of
// the list would be another policy.
func TestAllowedRejectsInvalidCIDRs(t *testing.T) {
	for _, text := range []string{"192.0.2.1", "192.0.2.0/33", "none,192.0.2.0/24", "::ffff:192.0.2.0/120", "all"} {
		for _, option := range []string{"--allowed-load-balancer-ips", "--ebpf-untracked-cidrs"} {
			o := parse(t, "--manifests=/m", "--hostname-override=n", option+"="+text)
			if _, err := o.plan(configuration(t)); err == nil || !strings.HasPrefix(err.Error(), option+": ") {
				t.Errorf("%s=%s: error %v", option, text, err)
			}
		}
	}
}
