package ct

import (
	"fmt"
	"math"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"sluice/internal/kernel/netlink"
)

// groupDestroy is NFNLGRP_CONNTRACK_DESTROY.
const groupDestroy = 3

// KernelEnds receives the ends of flows in the network namespace that it was opened in.
type KernelEnds struct {
	queue *netlink.Queue
}

// OpenEnds starts to listen, in the calling thread's network namespace. Since Linux 5.19 the kernel
// reports only the ends of flows that began while a socket was listening, unless
// net.netfilter.nf_conntrack_events is 1.
func OpenEnds() (*KernelEnds, error) {
	q, err := netlink.OpenQueue(unix.NETLINK_NETFILTER, groupDestroy, translatedOnly())
	if err != nil {
		return nil, fmt.Errorf("listen for conntrack events: %w", err)
	}
	return &KernelEnds{q}, nil
}

func (k *KernelEnds) Close() error { return k.queue.Close() }

func (k *KernelEnds) Take(each func(*Flow)) error {
	var flow Flow
	return k.queue.Take(func(datagram []byte) {
		if datagram == nil {
			each(nil)
		}
		for m := range netlink.Messages(datagram) {
			if decode(m.Attrs(), &flow) && flow.Translated {
				each(&flow)
			}
		}
	})
}

// translatedOnly returns a socket filter (BPF) that passes only events of translated flows, because
// the other flows of a node may be most of them. It looks up the status among the attributes of a
// message.
func translatedOnly() []unix.SockFilter {
	const (
		firstAttribute = unix.SizeofNlMsghdr + 4
		findAttribute  = math.MaxUint32 + 1 - 0x1000 + 12 // SKF_AD_OFF + SKF_AD_NLATTR
	)
	return []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_IMM, K: firstAttribute},
		{Code: unix.BPF_LDX | unix.BPF_IMM, K: nl.CTA_STATUS},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: findAttribute},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: 0, Jt: 3}, // the message has no status
		{Code: unix.BPF_MISC | unix.BPF_TAX},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_IND, K: unix.SizeofNlAttr},
		{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: statusDstNAT, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: math.MaxUint32},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	}
}
