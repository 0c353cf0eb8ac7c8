package nft

import (
	"context"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"sluice/internal/kernel/netlink"
)

// Watch implements [Interface].
func (c *Conn) Watch(ctx context.Context, tables []Table, missed func(), changed func(what string)) error {
	begun := func() {
		if !c.onlyOwnCommits() {
			missed()
		}
	}
	w := watcher{tables: tables, changed: changed}
	if err := c.events.Listen(ctx, unix.NFNLGRP_NFTABLES, begun, w.read); err != nil {
		return fmt.Errorf("watch nf_tables: %w", err)
	}
	return nil
}

// watcher reads the kernel's notifications: the changes of a transaction, followed by the
// process that made it.
type watcher struct {
	tables      []Table
	changed     func(what string)
	firstChange string // the first change of our tables in the transaction being read; empty if none yet
}

// read handles a datagram; nil means that some were lost.
func (w *watcher) read(datagram []byte) {
	if datagram == nil {
		w.changed("unknown changes, because notifications of the kernel were lost")
		w.firstChange = ""
	}
	for m := range netlink.Messages(datagram) {
		switch {
		case m.Kind>>8 != unix.NFNL_SUBSYS_NFTABLES || len(m.Body) < 4:
		case m.Kind&0xff == unix.NFT_MSG_NEWGEN && w.firstChange != "":
			a := m.Attrs()
			w.changed(fmt.Sprintf("%s by %s, process %d", w.firstChange, a.Text(unix.NFTA_GEN_PROC_NAME), a.Number(unix.NFTA_GEN_PROC_PID)))
			w.firstChange = ""
		case w.firstChange == "":
			w.firstChange = w.describe(m)
		}
	}
}

// watchedObjects are the kinds of objects in the order of their messages. Each kind has
// three message numbers: to add, get and delete an object.
var watchedObjects = []struct {
	name      string
	container string // what contains the object, if it has no name itself
	nameAttr  uint16 // the attribute with the name of the object or of its container
}{
	{name: "table"},
	{name: "chain", nameAttr: unix.NFTA_CHAIN_NAME},
	{"rule", "chain", unix.NFTA_RULE_CHAIN},
	{name: "set", nameAttr: unix.NFTA_SET_NAME},
	{"element", "set", unix.NFTA_SET_ELEM_LIST_SET},
}

// describe returns the change that a message reports; empty if it is not in one of the tables.
func (w *watcher) describe(m netlink.Message) string {
	object, verb := int(m.Kind&0xff)/3, []string{"added", "", "deleted"}[m.Kind&0xff%3]
	if object >= len(watchedObjects) || verb == "" {
		return ""
	}
	t := Table{Family(m.Body[0]), m.Attrs().Text(tableAttribute)}
	if !slices.Contains(w.tables, t) {
		return ""
	}
	switch o := watchedObjects[object]; {
	case o.nameAttr == 0:
		return fmt.Sprintf("%v %s", t, verb)
	case o.container == "":
		return fmt.Sprintf("%s %s of %v %s", o.name, m.Attrs().Text(o.nameAttr), t, verb)
	default:
		return fmt.Sprintf("%s %s in %s %s of %v", o.name, verb, o.container, m.Attrs().Text(o.nameAttr), t)
	}
}
