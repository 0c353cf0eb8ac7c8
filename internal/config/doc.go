// Package config defines the daemon's configuration: a KubeProxyConfiguration, its
// defaults, and its validation, whose errors name each invalid field and its value.
//
// The values of flags or of a file are an [Input]; [Input.Configuration] fills in
// the defaults and parses addresses, CIDRs and the like. Fields have the names that
// they have in a file, like conntrack.min, and are accessed by them ([Field]), so
// that a new field needs a line of code only for its flag, its default or its
// bounds. The package does not define flags, read files, or use a client or the
// kernel.
package config
