package ct

// Plain reports whether the kernel refused to filter by protocol.
func (c *Conn) Plain() bool { return c.plain }

// SetPlain makes the connection one to a kernel that refuses to.
func (c *Conn) SetPlain() { c.plain = true }

// Parsed returns how many messages of dumps were decoded.
func (c *Conn) Parsed() int { return c.parsed }
