// Package nfttest implements nf_tables in memory, for tests. It passes the contract test of
// package nft, as the kernel does.
package nfttest
