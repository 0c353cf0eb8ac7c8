// Package churn plays random histories with a whole daemon, wherever it hears of
// objects. It knows how a daemon is started, killed and asked whether it has heard of
// everything; where objects come from is the Source's.
package churn
