package iptables

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/internal/kernel/ipset"
	"sluice/internal/proxy"
)

// TestBusySets has a set that is in use for a moment, and one that stays in use.
func TestBusySets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		busy := map[string]time.Time{"KUBE-CLUSTER-IP": time.Now().Add(setWait / 2), "KUBE-IPVS-IPS": time.Now().Add(time.Hour)}
		removed, err := ipSets{
			func(context.Context) ([]string, error) {
				return []string{"KUBE-CLUSTER-IP", "KUBE-IPVS-IPS", "KUBE-LOOP-BACK", "KUBE-SRC-5M6VBQYA4MVW3SXO"}, nil
			},
			func(_ context.Context, name string) error {
				if time.Now().Before(busy[name]) {
					return ipset.ErrBusy
				}
				return nil
			},
		}.remove(t.Context())
		if diff := cmp.Diff([]string{"IP set KUBE-CLUSTER-IP", "IP set KUBE-LOOP-BACK"}, removed); diff != "" {
			t.Errorf("removed (-want +got):\n%s", diff)
		}
		if !errors.Is(err, proxy.ErrInUse) || !strings.Contains(err.Error(), "KUBE-IPVS-IPS") {
			t.Errorf("error %v, want KUBE-IPVS-IPS in use", err)
		}
	})
}

func TestIsKubeProxySet(t *testing.T) {
	for _, name := range []string{"KUBE-CLUSTER-IP", "KUBE-6-CLUSTER-IP", "KUBE-6-LOAD-BALANCER-SOURCE-CID", "KUBE-LOAD-BALANCER-SOURCE-CIDR", "KUBE-6-NODE-PORT-LOCAL-SCTP-HAS"} {
		if !isKubeProxySet(name) {
			t.Errorf("%s does not count as kube-proxy's", name)
		}
	}
	for _, name := range []string{"KUBE-SRC-5M6VBQYA4MVW3SXO", "KUBE-", "KUBE-CLUSTER-IP-OF-MINE", "CLUSTER-IP", "KUBE-6-CLUSTER", "kube-cluster-ip"} {
		if isKubeProxySet(name) {
			t.Errorf("%s counts as kube-proxy's", name)
		}
	}
}
