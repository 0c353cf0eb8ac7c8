package mode

import (
	"fmt"
	"os"
	"strings"
)

// RelaySocket is the socket on which a daemon of mode userspace, which relays connections,
// waits for its successor. It is in the abstract namespace, which belongs to the network
// namespace, so that the daemons need not share a file system.
const RelaySocket = "@sluice-userspace"

// SocketMark is the bit of the packet mark of untranslated packets to a socket of such a
// daemon. The rules of a mode that takes over must not refuse them.
const SocketMark = 1 << 12

// RelayRuns reports whether such a daemon runs in the calling thread's network namespace.
func RelayRuns() (bool, error) {
	all, err := os.ReadFile("/proc/thread-self/net/unix")
	if err != nil {
		return false, fmt.Errorf("find a daemon of mode userspace: %w", err)
	}
	for line := range strings.Lines(string(all)) {
		// The name of a socket may contain line breaks, so a line need not be a whole entry.
		if fields := strings.Fields(line); len(fields) > 7 && fields[7] == RelaySocket {
			return true, nil
		}
	}
	return false, nil
}
