package nftables

import (
	"fmt"
	"strings"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"sluice/internal/proxy"
)

// way is how a slot is chosen. The zero value is by chance.
type way struct {
	balancing proxy.Balancing
	// turns says whose turns round robin counts: a rule has one counter, and
	// Services that shared it would take each other's turns.
	turns string
}

// wayOf returns how one of several slots of a row is chosen. What only an
// overlay can do is replaced by what comes nearest.
func wayOf(sp *proxy.ServicePort, slots int) way {
	if slots < 2 {
		return way{}
	}
	switch sp.Balancing {
	case proxy.RoundRobin:
		// No two rows share a frontend.
		at := sp.Frontends[0].Addr
		addr := strings.ReplaceAll(at.Addr().String(), ":", ".") // nft reads no name with a colon
		return way{proxy.RoundRobin, fmt.Sprintf("%s-%s-%d", addr, strings.ToLower(sp.Key.Protocol.String()), at.Port())}
	case proxy.SourceHash, proxy.Maglev:
		return way{balancing: proxy.SourceHash}
	default:
		return way{}
	}
}

// suffix is what the name of a class has of it.
func (w way) suffix() string {
	switch {
	case w == way{}:
		return ""
	case w.turns == "":
		return "-" + w.balancing.String()
	default:
		return "-" + w.balancing.String() + "-" + w.turns
	}
}

// hashSeed is the same in every process, so that clients stay where they are
// after a restart.
const hashSeed = 0x51011ce

// chooseSlot sets the packet's priority to one of n numbers from an offset on.
func (r *rule) chooseSlot(w way, n, offset uint32) *rule {
	switch w.balancing {
	case proxy.RoundRobin:
		r.add(&expr.Numgen{Register: firstRegister, Modulus: n, Type: unix.NFT_NG_INCREMENTAL, Offset: offset})
	case proxy.SourceHash:
		r.load(true).add(&expr.Hash{
			SourceRegister: firstRegister, DestRegister: firstRegister, Length: 4 * r.words(),
			Modulus: n, Seed: hashSeed, Offset: offset, Type: expr.HashTypeJenkins,
		})
	default:
		r.add(&expr.Numgen{Register: firstRegister, Modulus: n, Type: unix.NFT_NG_RANDOM, Offset: offset})
	}
	return r.set(expr.MetaKeyPRIORITY)
}
