// Package config is what the daemon can be told: a KubeProxyConfiguration as
// operators write it, its defaults, and the checks that name a wrong field and
// its value.
//
// What flags or a file say arrives as an [Input]; [Input.Configuration] fills in
// the defaults and reads what is more than a number or a switch. Fields are
// named as a file names them, like conntrack.min, and reached by that name
// ([At]), so that a new one needs a line only where it has a flag, a default or
// a bound. The package knows neither flags nor how a file is read, neither a
// client nor the kernel.
package config
