package conformance

import (
	"fmt"
	"os"
)

// ShareVariable is the environment variable that says which cases of the crossed decision tables
// [Run] plays with packets: 3/10 is the third of ten shares. Each case is in one of them. Without the
// variable, all are played. [RunModel] evaluates all cases in any case.
const ShareVariable = "SLUICE_DECISION_TABLES"

// share is one of several shares of the cases of each crossed group.
type share struct{ number, of int }

// currentShare returns the share that the environment asks for.
func currentShare() (share, error) {
	text := os.Getenv(ShareVariable)
	if text == "" {
		return share{1, 1}, nil
	}
	var s share
	if _, err := fmt.Sscanf(text, "%d/%d", &s.number, &s.of); err != nil || s.number < 1 || s.number > s.of {
		return s, fmt.Errorf("%s is %q, not a share such as 3/10", ShareVariable, text)
	}
	return s, nil
}

// has reports whether a share has case i of a group. The cases of one Service are next to each other
// in the same order, so each Service starts with another share.
func (s share) has(i int) bool { return (i+i/s.of)%s.of == s.number-1 }

// groups returns groups with the cases of the share.
func (s share) groups(all []*Group) (out []*Group) {
	for _, g := range all {
		part := *g
		part.Cases = nil
		for i, c := range g.Cases {
			if s.has(i) {
				part.Cases = append(part.Cases, c)
			}
		}
		out = append(out, &part)
	}
	return out
}

// String returns the share for people.
func (s share) String() string {
	if s.of == 1 {
		return "all cases of the decision tables are played with packets"
	}
	return fmt.Sprintf("share %d of %d of the decision tables is played with packets", s.number, s.of)
}
