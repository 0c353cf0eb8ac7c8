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

// checkFamily returns an error if the node's primary address, which the error calls
// what, is of a family that is not served. The primary family is that of the
// cluster: a proxy without it would serve next to nothing, and yet be healthy.
func (s *ProxyServer) checkFamily(primary netip.Addr, what string) error {
	f := proxy.FamilyOf(primary)
	if !primary.IsValid() || primary.IsUnspecified() || slices.Contains(s.families, f) {
		return nil
	}
	_, missing := enabledFamilies()
	return fmt.Errorf("%s is %v, but %v cannot be served on this node: %s", what, primary, f,
		cmp.Or(missing, "mode "+string(s.mode.Name)+" does not support it"))
}

// checkNode ends the proxy if it cannot serve the Node's primary family. After the
// first successful sync the proxy does not end for that any more.
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
	err := s.checkFamily(node.IPs[0], "the first address of Node "+n.Name)
	if err != nil && len(s.familyErr) == 0 { // no race: this is the only sender
		s.familyErr <- err
	}
}

// watchNodeFamily is the job that ends when the Node's family cannot be served.
func (s *ProxyServer) watchNodeFamily(ctx context.Context) error {
	select {
	case err := <-s.familyErr:
		return err
	case <-ctx.Done():
		return nil
	}
}
