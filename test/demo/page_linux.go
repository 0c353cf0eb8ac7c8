package main

import (
	"context"
	"net"
	"net/http"
	"path/filepath"

	"sluice/internal/statusapi"
)

// socket is where the daemon answers.
func (m manifests) socket() string { return filepath.Join(m.dir, "status.sock") }

// servePage leads a port of this machine, which no other can reach, to the daemon's page, says where and looks whether it is there.
func (p *play) servePage(ctx context.Context) error {
	page, err := statusapi.AtSocket(p.socket()).Forward()
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { _ = l.Close() })
	go func() { _ = http.Serve(l, page) }() // until then
	link := "http://" + l.Addr().String()
	p.display.say("look at the node in a browser: %s/", link)
	var node statusapi.Node
	return statusapi.At(http.DefaultClient, link, link).Get(ctx, statusapi.NodePath, nil, &node)
}
