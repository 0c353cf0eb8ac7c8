//go:build !windows

package hns_test

import (
	"testing"

	"sluice/internal/kernel/hns"
)

func implementations() map[string]func(*testing.T) (hns.Interface, string) {
	return map[string]func(*testing.T) (hns.Interface, string){"fake": openFake}
}
