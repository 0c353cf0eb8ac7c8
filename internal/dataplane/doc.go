// Package dataplane is the table of proxy modes: for each mode, how to find out whether the
// kernel supports it, how to open it and how to remove its rules.
//
// It renders nothing itself, and knows neither Kubernetes objects nor the kernel; the
// packages below it, one for each mode, do the work.
package dataplane
