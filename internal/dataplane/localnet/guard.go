package localnet

import (
	"fmt"
	"strings"

	"sluice/internal/kernel/sysctl"
)

// Name is the setting, for all links.
const Name = "net/ipv4/conf/all/route_localnet"

// note ends the comment of a guard whose setting is a service proxy's.
const note = ", route_localnet is 1 because of this proxy"

// Guard says whether rules must keep others from loopback, and whether they
// must carry the note.
type Guard struct {
	InForce bool
	Noted   bool
}

// Comment returns the comment of the guard, which begins with a text.
func (g Guard) Comment(text string) string {
	if g.Noted {
		return text + note
	}
	return text
}

// Noted reports whether a guard's comment carries the note.
func Noted(comment string) bool { return strings.Contains(comment, note) }

// Traces is what service proxies left that tells who set the setting.
type Traces struct {
	Guarded bool // a guard of ours
	Noted   bool // which carries the note
	Proxied bool // a proxy that sets the setting and leaves no note
}

// And joins the traces of two places.
func (t Traces) And(o Traces) Traces {
	return Traces{t.Guarded || o.Guarded, t.Noted || o.Noted, t.Proxied || o.Proxied}
}

// Opened reports whether it was a service proxy that set the setting. A guard of
// ours without the note says that it was on before.
func (t Traces) Opened() bool { return t.Noted || !t.Guarded && t.Proxied }

// IsOn reports whether the setting is on. What cannot be read is not.
func IsOn(k sysctl.Interface) bool {
	v, err := sysctl.ReadInt(k, Name)
	return err == nil && v != 0
}

// PutBack switches the setting off. It returns what it did, empty if there was
// nothing to do. After an error the guard must stay.
func PutBack(k sysctl.Interface) (done string, err error) {
	if !IsOn(k) {
		return "", nil
	}
	if err := k.Write(Name, "0"); err != nil {
		return "", fmt.Errorf("net.ipv4.conf.all.route_localnet stays 1, set it to 0 on the host or its neighbours may reach loopback: %w", err)
	}
	return "net.ipv4.conf.all.route_localnet=1, which a service proxy had set", nil
}
