package trial

import (
	"context"
	"errors"
	"fmt"

	"sluice/test/cluster/peers/load"
	"sluice/test/cluster/peers/traffic"
	"sluice/test/cluster/pki"
	"sluice/test/cluster/testbed"
)

// site is a fresh node with a client and a host that answers for all endpoints.
type site struct {
	cluster *testbed.Cluster
	node    *testbed.Node
	user    pki.User // of the proxy
	client  *traffic.Client
	server  *traffic.Server
}

func (b *Bench) newSite(ctx context.Context) (_ *site, err error) {
	s := &site{cluster: b.Cluster}
	if s.node, err = b.Cluster.AddNode(ctx); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close(ctx))
		}
	}()
	if s.user, err = b.Cluster.NewUser(testbed.ProxyIdentity(s.node)); err != nil {
		return nil, err
	}
	client, err := s.node.AddPod("client")
	if err != nil {
		return nil, err
	}
	server, err := s.node.AddPod("server")
	if err != nil {
		return nil, err
	}
	if err := server.Answer(load.Pods); err != nil {
		return nil, err
	}
	if s.server, err = traffic.Serve(server.Host); err != nil {
		return nil, err
	}
	s.client, err = traffic.NewClient(client.Host)
	return s, err
}

// close takes the site away, also when ctx has ended.
func (s *site) close(ctx context.Context) error {
	if s.server != nil {
		s.server.Close()
	}
	if err := s.cluster.RemoveNode(context.WithoutCancel(ctx), s.node); err != nil {
		return fmt.Errorf("clear the site: %w", err)
	}
	return nil
}
