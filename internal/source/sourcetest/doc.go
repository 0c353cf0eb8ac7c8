// Package sourcetest helps to test sources: Recorder is a handler that writes down what it is told.
package sourcetest
