package ipt

// SaveProgram returns the path of the iptables-save that Open chose.
func (c *Conn) SaveProgram() string { return c.save }
