// Package config is what the daemon can be told: the proxy modes, the
// Configuration with its defaults, the checks that name a wrong field and its
// value, the KubeProxyConfiguration file as operators write it, and which
// differences between two configurations a running daemon can take over.
//
// What flags or a file say arrives as an [Input], zero where nothing was said;
// [Input.Configuration] turns it into the one [Configuration] that the rest of
// the daemon reads. The package knows neither flags nor how a file is read,
// neither a client nor the kernel.
package config
