package nft

// Port is the netlink port under which others see what the connection changes.
func (c *Conn) Port() uint32 { return c.nl.Port }
