package app

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"

	"sluice/internal/apiobject"
	"sluice/internal/proxy"
)

// servesFamilyOf returns an error if an address is of a family that is not served.
// The node's first one is of the family that its cluster uses: a proxy without it
// would serve next to nothing, and be healthy.
func (s *ProxyServer) servesFamilyOf(first netip.Addr, whose string) error {
	f := proxy.FamilyOf(first)
	if !first.IsValid() || first.IsUnspecified() || slices.Contains(s.families, f) {
		return nil
	}
	_, missing := enabledFamilies()
	return fmt.Errorf("%s is %v, but %v cannot be served on this node: %s", whose, first, f,
		cmp.Or(missing, "mode "+string(s.mode.Name)+" cannot do it"))
}

// checkNode has the proxy end if it cannot serve the Node's family. Once it serves,
// whatever the Node says is no reason to end.
func (s *ProxyServer) checkNode(n *v1.Node) {
	select {
	case <-s.ready:
		return
	default:
	}
	node, _ := apiobject.ParseNode(n)
	if bind := s.plan.config.BindAddress; len(node.IPs) == 0 || bind.IsValid() && !bind.IsUnspecified() {
		return
	}
	err := s.servesFamilyOf(node.IPs[0], "the first address of Node "+n.Name)
	if err != nil && len(s.unservable) == 0 { // nobody else says it
		s.unservable <- err
	}
}

// served ends when the Node turns out to be of a family that is not served.
func (s *ProxyServer) served(ctx context.Context) error {
	select {
	case err := <-s.unservable:
		return err
	case <-ctx.Done():
		return nil
	}
}
