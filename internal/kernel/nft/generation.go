package nft

import "golang.org/x/sys/unix"

// generations tell whether anybody else commits: the kernel numbers its rules,
// of all tables together, and every commit that changes something adds one.
type generations struct {
	first uint32 // before we read or wrote anything; 0, which the kernel skips: not known
	ours  uint32 // how many commits were ours since
}

// begin notes the first generation, once.
func (c *Conn) begin() {
	if c.generations.first == 0 {
		c.generations = generations{first: c.generation()}
	}
}

// undisturbed reports whether all commits since begin were ours. It keeps us from
// committing meanwhile: that one could stand for one of somebody else's.
func (c *Conn) undisturbed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.generations
	return g.first != 0 && c.generation() == g.first+g.ours
}

// generation asks for the number; it is 0 if the kernel does not say.
func (c *Conn) generation() (id uint32) {
	e := &c.enc
	e.reset()
	e.begin(subsystem|unix.NFT_MSG_GETGEN, unix.NLM_F_ACK, 0, 0)
	e.end()
	err := c.exchange(func(m message) { id = number(attribute(m.payload(), unix.NFTA_GEN_ID)) })
	if err != nil {
		return 0
	}
	return id
}
