package app

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"sluice/internal/proxy"
)

// nodeName returns the name of this node as its Node object has it: the
// override if there is one, else the host's name.
func nodeName(override string) (string, error) {
	name := override
	if name == "" {
		host, err := os.Hostname()
		if err != nil {
			return "", fmt.Errorf("ask the host for its name (--hostname-override gives another): %w", err)
		}
		name = host
	}
	name = strings.ToLower(strings.TrimSpace(name))
	if name == "" {
		return "", errors.New("the host's name is blank (--hostname-override gives another)")
	}
	return name, nil
}

// hostFamilies returns the families that the host has switched on, and why one
// is missing. A kernel without IPv6 and one that has it disabled are alike.
func hostFamilies(proc fs.FS) (families []proxy.Family, missing string) {
	if _, err := fs.Stat(proc, "net/if_inet6"); err != nil {
		return []proxy.Family{proxy.IPv4}, "the kernel has no IPv6"
	}
	off, err := fs.ReadFile(proc, "sys/net/ipv6/conf/all/disable_ipv6")
	if err == nil && strings.TrimSpace(string(off)) == "1" {
		return []proxy.Family{proxy.IPv4}, "net.ipv6.conf.all.disable_ipv6 is 1"
	}
	return proxy.Families[:], ""
}
