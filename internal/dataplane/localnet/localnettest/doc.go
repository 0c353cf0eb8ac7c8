// Package localnettest has what tests of all modes share about kernel setting route_localnet: the
// histories of a host, and how each must end.
package localnettest
