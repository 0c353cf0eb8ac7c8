// Package dataplane is the table of proxy modes: for each, how to ask whether
// the kernel can do it, how to open it and how to remove its rules.
//
// It renders nothing itself and knows neither Kubernetes objects nor the
// kernel; the packages below it do the work, one for each mode.
package dataplane
