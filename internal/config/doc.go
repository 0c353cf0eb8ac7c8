// Package config is what the daemon can be told: the proxy modes, the
// Configuration with its defaults, and the checks that name a wrong field and
// its value.
//
// It knows neither flags nor files, neither a client nor the kernel, and
// imports the standard library only.
package config
