// Package page tests the page that the daemon serves, in Debian's Chromium: that
// it shows what the API tells and follows it, asks nobody else, runs nothing that
// an object's name holds, and works with the keyboard, on a phone and with 30,000
// Services. It has no other code, and is a module of its own so that what drives
// the browser never enters the daemon's graph.
//
//	go test -run TestScreenshots -screenshots ../../docs/images
//
// writes the pictures that README.md shows, of the demo.
package page
