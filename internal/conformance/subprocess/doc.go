// Package subprocess runs a program for a test and records its output and how it ends. It knows
// neither what the program does nor where it runs.
package subprocess
