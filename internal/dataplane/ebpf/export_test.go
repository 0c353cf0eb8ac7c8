package ebpf

import "github.com/cilium/ebpf"

// Sockets returns the maps of sockets that were translated.
func (d *Dataplane) Sockets() []*ebpf.Map { return []*ebpf.Map{d.kernel.TCP, d.kernel.UDP} }
