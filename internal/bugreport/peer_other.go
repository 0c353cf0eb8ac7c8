//go:build !linux

package bugreport

import "errors"

// peer is not implemented on this operating system.
func peer(string) (int32, error) {
	return 0, errors.New("the process of a socket cannot be found on this operating system")
}
