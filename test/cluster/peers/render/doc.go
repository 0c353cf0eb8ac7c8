// Package render writes figures for people: a Markdown page and pictures. It
// computes nothing that the figures do not say themselves.
package render
