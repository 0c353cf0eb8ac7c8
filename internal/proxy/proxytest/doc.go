// Package proxytest drives dataplanes in tests: it turns a Delta into a call of Apply,
// and refused rows into an error. It imports proxy only.
package proxytest
