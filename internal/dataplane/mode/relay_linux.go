package mode

import (
	"fmt"
	"os"
	"strings"
)

// RelaySocket is where a daemon that carries connections itself waits for its
// successor. It is of the network namespace, whatever the file systems of both.
const RelaySocket = "@sluice-userspace"

// SocketMark is the bit of the packet mark of what goes to a socket of such a daemon,
// untranslated. The rules of a mode that follows must not refuse it.
const SocketMark = 1 << 12

// RelayRuns reports whether such a daemon is there. The list is that of the calling
// thread's network namespace.
func RelayRuns() (bool, error) {
	all, err := os.ReadFile("/proc/thread-self/net/unix")
	if err != nil {
		return false, fmt.Errorf("look for a daemon that carries connections: %w", err)
	}
	for line := range strings.Lines(string(all)) {
		// Anybody may give a socket a name with line ends.
		if fields := strings.Fields(line); len(fields) > 7 && fields[7] == RelaySocket {
			return true, nil
		}
	}
	return false, nil
}
