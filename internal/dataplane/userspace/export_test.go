package userspace

// In has a dataplane open its sockets by way of do, which does something in
// another network namespace than that of the process.
func (d *Dataplane) In(do func(func() error) error) {
	open := d.server.socket
	d.server.socket = func(domain, kind, protocol int) (fd int, err error) {
		err = do(func() error {
			fd, err = open(domain, kind, protocol)
			return err
		})
		return fd, err
	}
}
