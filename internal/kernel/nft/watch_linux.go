package nft

import (
	"context"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"sluice/internal/kernel/netlink"
)

func (c *Conn) Watch(ctx context.Context, tables []Table, missed func(), changed func(what string)) error {
	begun := func() {
		if !c.undisturbed() {
			missed()
		}
	}
	w := watcher{tables: tables, changed: changed}
	if err := c.events.Listen(ctx, unix.NFNLGRP_NFTABLES, begun, w.read); err != nil {
		return fmt.Errorf("watch nf_tables: %w", err)
	}
	return nil
}

// watcher reads what the kernel announces: the changes of a transaction, and then
// who made it.
type watcher struct {
	tables  []Table
	changed func(what string)
	first   string // of the transaction that is being read; empty: nothing of ours yet
}

// read takes a datagram; nil: some were lost.
func (w *watcher) read(datagram []byte) {
	if datagram == nil {
		w.changed("changes were lost, there were more than could be read")
		w.first = ""
	}
	for m := range netlink.Messages(datagram) {
		switch {
		case m.Kind>>8 != unix.NFNL_SUBSYS_NFTABLES || len(m.Body) < 4:
		case m.Kind&0xff == unix.NFT_MSG_NEWGEN && w.first != "":
			a := m.Attrs()
			w.changed(fmt.Sprintf("%s by %s, process %d", w.first, a.Text(unix.NFTA_GEN_PROC_NAME), a.Number(unix.NFTA_GEN_PROC_PID)))
			w.first = ""
		case w.first == "":
			w.first = w.describe(m)
		}
	}
}

// watched are the objects that messages are about. Those on each kind of object have
// three numbers: to add, get and delete it.
var watched = []struct {
	name string
	at   string // what has it
	by   uint16 // the attribute that names that
}{
	{name: "table"},
	{name: "chain", by: unix.NFTA_CHAIN_NAME},
	{"rule", "chain", unix.NFTA_RULE_CHAIN},
	{name: "set", by: unix.NFTA_SET_NAME},
	{"element", "set", unix.NFTA_SET_ELEM_LIST_SET},
}

// describe tells what a message is about; empty: none of the tables.
func (w *watcher) describe(m netlink.Message) string {
	object, verb := int(m.Kind&0xff)/3, []string{"added", "", "deleted"}[m.Kind&0xff%3]
	if object >= len(watched) || verb == "" {
		return ""
	}
	t := Table{Family(m.Body[0]), m.Attrs().Text(tableAttribute)}
	if !slices.Contains(w.tables, t) {
		return ""
	}
	switch o := watched[object]; {
	case o.by == 0:
		return fmt.Sprintf("%v %s", t, verb)
	case o.at == "":
		return fmt.Sprintf("%s %s of %v %s", o.name, m.Attrs().Text(o.by), t, verb)
	default:
		return fmt.Sprintf("%s %s in %s %s of %v", o.name, verb, o.at, m.Attrs().Text(o.by), t)
	}
}
