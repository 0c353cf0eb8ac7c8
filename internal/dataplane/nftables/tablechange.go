package nftables

import (
	"context"
	"net/netip"
	"time"

	"sluice/internal/kernel/nft"
	"sluice/internal/proxy"
)

// tableChange is the part of a change that concerns one table. What it notes
// becomes true when the batch is committed.
type tableChange struct {
	c   *change
	t   *table
	key proxy.PortKey // of the row that is rendered

	shared   map[itemID]*sharedChange
	uses     map[class]int
	made     map[class]bool
	dropped  []droppedID
	released []blockKey
}

// sharedChange is how many rows more or less share an element.
type sharedChange struct {
	by    int
	owner proxy.PortKey // the last row that began to
}

type droppedID struct {
	block *block
	scope proxy.Scope
	addr  netip.AddrPort
}

func newTableChange(c *change, t *table) *tableChange {
	return &tableChange{c: c, t: t, shared: map[itemID]*sharedChange{}, uses: map[class]int{}, made: map[class]bool{}}
}

func (t *tableChange) add(s *nft.Set, e nft.Element) {
	if t.t.shared(s) {
		x := t.share(s, e)
		x.by++
		x.owner = t.key
		return
	}
	t.c.adds.AddElement(s, e)
}

func (t *tableChange) remove(s *nft.Set, e nft.Element) {
	if t.t.shared(s) {
		t.share(s, e).by--
		return
	}
	t.c.deletes.DeleteElement(s, e)
}

func (t *tableChange) share(s *nft.Set, e nft.Element) *sharedChange {
	id := item{s, e}.id()
	if t.shared[id] == nil {
		t.shared[id] = &sharedChange{}
	}
	return t.shared[id]
}

func (t *tableChange) use(c class, by int) {
	t.uses[c] += by
	if by < 0 {
		return
	}
	owner := classOwner{t.t, c}
	if t.t.classes.written[c] {
		return
	}
	t.c.users[owner] = append(t.c.users[owner], t.key)
	if !t.made[c] {
		t.made[c] = true
		t.c.chains.Owner = owner
		addClass(&t.c.chains, t.t, c)
		t.c.chains.Owner = nil
	}
}

func (t *tableChange) drop(b *block, scope proxy.Scope, a netip.AddrPort) {
	t.dropped = append(t.dropped, droppedID{b, scope, a})
}

func (t *tableChange) release(k blockKey) { t.released = append(t.released, k) }

// writeShared adds the elements of shared sets that get their first row, and
// deletes those that lose their last.
func (t *tableChange) writeShared() {
	for id, x := range t.shared {
		before := t.t.shares[id]
		e := nft.Element{Key: id.key}
		switch {
		case before == 0 && before+x.by > 0:
			t.c.adds.Owner = x.owner
			t.c.adds.AddElement(id.set, e)
			t.c.adds.Owner = nil
		case before > 0 && before+x.by == 0:
			t.c.deletes.DeleteElement(id.set, e)
		}
	}
}

// applied remembers what the kernel has now, and sweeps up.
func (t *tableChange) applied(ctx context.Context, conn nft.Interface) {
	for id, x := range t.shared {
		if t.t.shares[id] += x.by; t.t.shares[id] <= 0 {
			delete(t.t.shares, id)
		}
	}
	for c := range t.made {
		t.t.classes.written[c] = true
	}
	for c, by := range t.uses {
		t.t.classes.use(c, by)
	}
	for _, d := range t.dropped {
		d.block.drop(d.scope, d.addr)
	}
	for _, k := range t.released {
		t.t.blocks.remove(k)
	}
	for _, c := range t.t.classes.excess() {
		t.t.removeClass(ctx, conn, c)
	}
}

// removeClass takes a class out of the kernel, if it can: one that stays is
// made anew before it is used again. The chain goes after the element, since
// before Linux 6.2 a batch that deletes both is refused.
func (t *table) removeClass(ctx context.Context, conn nft.Interface, c class) {
	var b nft.Batch
	b.DeleteElement(t.classSet, t.classes.element(c))
	written := t.classes.written[c]
	delete(t.classes.written, c)
	if written && conn.Commit(ctx, &b) != nil {
		t.classes.unused[c] = time.Now() // it may be there still, with its number
		return
	}
	t.classes.forget(c)
	for i, out := range t.classChains(c) {
		if i > 0 && t.classes.remembers(c) {
			break
		}
		t.deleteChain(ctx, conn, out.Name)
	}
}

// classOwner owns the operations that make a class.
type classOwner struct {
	t *table
	c class
}

// classUsers are the rows of a batch that need a class which the batch makes.
type classUsers map[classOwner][]proxy.PortKey

// owners returns the rows on whose behalf an operation was asked for; none if it
// is not for single rows.
func (u classUsers) owners(owner any) []proxy.PortKey {
	switch o := owner.(type) {
	case proxy.PortKey:
		return []proxy.PortKey{o}
	case classOwner:
		return u[o]
	default:
		return nil
	}
}
