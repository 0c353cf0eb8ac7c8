package main

import (
	"context"
	"net"
	"net/http"
	"path/filepath"

	"sluice/internal/statusapi"
)

// socket returns the path of the daemon's status socket.
func (m manifests) socket() string { return filepath.Join(m.dir, "status.sock") }

// servePage forwards a loopback port to the daemon's status page, prints its URL and checks that it
// answers.
func (p *demo) servePage(ctx context.Context) error {
	page, err := statusapi.AtSocket(p.socket()).Forward()
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { _ = l.Close() })
	go func() { _ = http.Serve(l, page) }() // until the listener is closed
	link := "http://" + l.Addr().String()
	p.display.say("The node's status page: %s/", link)
	var node statusapi.Node
	return statusapi.At(http.DefaultClient, link, link).Get(ctx, statusapi.NodePath, nil, &node)
}
