package trial

import (
	"context"
	"errors"
	"net/netip"

	"sluice/internal/conformance/traffic"
	"sluice/internal/proxy"
	"sluice/test/cluster/peers/client"
	"sluice/test/cluster/peers/load"
	"sluice/test/cluster/pki"
	"sluice/test/cluster/testbed"
)

// site is a fresh node with a client pod and a server pod that answers for all endpoints.
type site struct {
	cluster *testbed.Cluster
	node    *testbed.Node
	user    pki.User // of the proxy
	client  *client.Client
	server  *testbed.Pod
	sink    *traffic.Listener
}

func (b *Bench) newSite(ctx context.Context) (*site, error) {
	node, err := b.Cluster.AddNode(ctx)
	if err != nil {
		return nil, err
	}
	s := &site{cluster: b.Cluster, node: node}
	if err := s.addClientAndServer(); err != nil {
		return nil, errors.Join(err, s.close(ctx))
	}
	return s, nil
}

// addClientAndServer adds the proxy's user, the client and the server.
func (s *site) addClientAndServer() (err error) {
	if s.user, err = s.cluster.NewUser(testbed.ProxyIdentity(s.node)); err != nil {
		return err
	}
	from, err := s.node.AddPod("client")
	if err != nil {
		return err
	}
	if s.client, err = client.New(from.Host); err != nil {
		return err
	}
	if s.server, err = s.node.AddPod("server"); err != nil {
		return err
	}
	s.sink, err = s.server.Host.Sink(netip.AddrPortFrom(netip.IPv4Unspecified(), load.BulkTargetPort))
	if err != nil {
		return err
	}
	return s.server.Answer(load.Pods, testbed.Port{Protocol: proxy.TCP, Number: load.TargetPort}, testbed.Port{Protocol: proxy.UDP, Number: load.TargetPort})
}

// close removes the site, even if ctx has ended.
func (s *site) close(ctx context.Context) error {
	var errs []error
	if s.server != nil {
		errs = append(errs, s.server.StopAnswering())
	}
	if s.sink != nil {
		errs = append(errs, s.sink.Close())
	}
	return errors.Join(append(errs, s.cluster.RemoveNode(context.WithoutCancel(ctx), s.node))...)
}
