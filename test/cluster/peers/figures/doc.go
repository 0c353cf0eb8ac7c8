// Package figures is what a comparison of service proxies found, as plain
// values: what was measured, what could not be and why, and whether the promises
// hold. It reads and writes them as JSON, and joins those of several runs.
//
// It measures nothing and draws nothing.
package figures
