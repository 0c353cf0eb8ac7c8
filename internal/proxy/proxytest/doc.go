// Package proxytest drives dataplanes in tests: by steps, with refused rows as
// an error. It imports proxy only.
package proxytest
