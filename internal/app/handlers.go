package app

import (
	v1 "k8s.io/api/core/v1"

	"sluice/internal/engine"
	"sluice/internal/source"
)

// handlers feed the provider, and whoever else wants to know of the Node.
type handlers struct {
	engine.Provider
	node source.NodeHandler
}

// OnNodeAdd passes a new Node on.
func (h handlers) OnNodeAdd(n *v1.Node) { h.Provider.OnNodeAdd(n); h.node.OnNodeAdd(n) }

// OnNodeUpdate passes a changed Node on.
func (h handlers) OnNodeUpdate(old, cur *v1.Node) {
	h.Provider.OnNodeUpdate(old, cur)
	h.node.OnNodeUpdate(old, cur)
}

// OnNodeDelete passes on that the Node is gone.
func (h handlers) OnNodeDelete(n *v1.Node) { h.Provider.OnNodeDelete(n); h.node.OnNodeDelete(n) }

// OnNodeSynced passes on that the Node has come, if there is one.
func (h handlers) OnNodeSynced() { h.Provider.OnNodeSynced(); h.node.OnNodeSynced() }
