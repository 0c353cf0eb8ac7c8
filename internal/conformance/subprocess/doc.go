// Package subprocess follows a program that a test has started: what it says, and how
// it ends. It knows neither what the program does nor where it runs.
package subprocess
