package ipvs

import (
	"encoding/binary"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"sluice/internal/kernel/netlink"
)

// Numbers of the generic netlink family IPVS (linux/ip_vs.h).
const (
	familyName, version = "IPVS", 1

	newService, getService, newReal, getReal, setConfig = 1, 4, 5, 8, 12 // set and delete follow new

	attrService, attrReal, attrTimeoutTCP = 1, 2, 4

	serviceFamily, serviceProtocol, serviceAddr, servicePort          = 1, 2, 3, 4
	serviceScheduler, serviceFlags, serviceTimeout, serviceNetmask    = 6, 7, 8, 9
	realAddr, realPort, realForward, realWeight, realUpper, realLower = 1, 2, 3, 4, 5, 6
	realActive, realInactive                                          = 7, 8
	serverStats                                                       = 12 // of virtual and real servers, in 64 bits

	flagPersistent, flagFallback, flagHashPorts = 1, 0x08, 0x10
	forwardNAT                                  = 0
)

func (o *Op) command() byte {
	if o.Real.Addr.IsValid() {
		return newReal + byte(o.Verb)
	}
	return newService + byte(o.Verb)
}

// encode writes the attributes of an operation. To add or set a server, the kernel
// requires all of them.
func (o *Op) encode(b *netlink.Builder) {
	if !o.Real.Addr.IsValid() && o.Verb != Delete {
		encodeServer(b, o.Server, &o.Settings)
		return
	}
	if encodeServer(b, o.Server, nil); !o.Real.Addr.IsValid() {
		return
	}
	b.Nest(attrReal, func() {
		b.Raw(realAddr, union(o.Real.Addr.Addr()))
		b.U16(realPort, o.Real.Addr.Port())
		number(b, realForward, forwardNAT)
		number(b, realWeight, o.Real.Weight)
		number(b, realUpper, 0)
		number(b, realLower, 0)
	})
}

// encodeServer writes the address of a virtual server and, unless nil, its settings.
func encodeServer(b *netlink.Builder, s Server, settings *Settings) {
	family, netmask := uint16(unix.AF_INET), ^uint32(0)
	if s.Addr.Addr().Is6() {
		family, netmask = unix.AF_INET6, 128
	}
	short := func(kind, v uint16) { b.Raw(kind, string(binary.NativeEndian.AppendUint16(nil, v))) }
	b.Nest(attrService, func() {
		short(serviceFamily, family)
		short(serviceProtocol, uint16(s.Protocol))
		b.Raw(serviceAddr, union(s.Addr.Addr()))
		b.U16(servicePort, s.Addr.Port())
		if settings == nil {
			return
		}
		flags := uint32(0)
		if settings.Persistence > 0 {
			flags |= flagPersistent
		}
		if settings.Fallback {
			flags |= flagFallback
		}
		if settings.HashPorts {
			flags |= flagHashPorts
		}
		b.Text(serviceScheduler, settings.Scheduler)
		number(b, serviceFlags, flags, ^uint32(0)) // flags and mask
		number(b, serviceTimeout, uint32(settings.Persistence/time.Second))
		number(b, serviceNetmask, netmask)
	})
}

// union returns an address in the 16 bytes that IPVS uses for both families.
func union(a netip.Addr) string {
	b := make([]byte, 16)
	copy(b, a.AsSlice())
	return string(b)
}

// number writes numbers in host byte order.
func number(b *netlink.Builder, kind uint16, v ...uint32) {
	var raw []byte
	for _, n := range v {
		raw = binary.NativeEndian.AppendUint32(raw, n)
	}
	b.Raw(kind, string(raw))
}

// native decodes a number in host byte order, and returns 0 if there is none.
func native(b []byte) uint32 {
	switch len(b) {
	case 2:
		return uint32(binary.NativeEndian.Uint16(b))
	case 4, 8: // flags are followed by a mask
		return binary.NativeEndian.Uint32(b)
	}
	return 0
}

// decodeServer reads a virtual server. It returns false for one that is defined by a
// firewall mark and has no address.
func decodeServer(message netlink.Attrs) (Server, Settings, bool) {
	service := message.Get(attrService)
	protocol := native(service.Get(serviceProtocol))
	addr, ok := decodeAddr(service.Get(serviceAddr), native(service.Get(serviceFamily)) == unix.AF_INET)
	s := Server{uint8(protocol), netip.AddrPortFrom(addr, uint16(service.Number(servicePort)))}
	flags := native(service.Get(serviceFlags))
	settings := Settings{Scheduler: service.Text(serviceScheduler), HashPorts: flags&flagHashPorts != 0, Fallback: flags&flagFallback != 0}
	if flags&flagPersistent != 0 {
		settings.Persistence = time.Duration(native(service.Get(serviceTimeout))) * time.Second
	}
	return s, settings, ok && protocol != 0
}

func decodeReal(message netlink.Attrs, four bool) (RealState, bool) {
	a := message.Get(attrReal)
	addr, ok := decodeAddr(a.Get(realAddr), four)
	r := Real{netip.AddrPortFrom(addr, uint16(a.Number(realPort))), native(a.Get(realWeight))}
	active := native(a.Get(realActive))
	return RealState{r, active + native(a.Get(realInactive)), active, decodeStats(a)}, ok
}

// decodeStats reads the counters of a server.
func decodeStats(server netlink.Attrs) Stats {
	var n [6]uint64 // from index 1: connections, packets in and out, bytes in and out
	for kind, v := range server.Get(serverStats).All() {
		if int(kind) < len(n) && len(v) == 8 {
			n[kind] = binary.NativeEndian.Uint64(v)
		}
	}
	return Stats{n[1], [2]uint64{n[2], n[3]}, [2]uint64{n[4], n[5]}}
}

func decodeAddr(b []byte, four bool) (netip.Addr, bool) {
	if len(b) == 16 && four {
		b = b[:4]
	}
	return netip.AddrFromSlice(b)
}
