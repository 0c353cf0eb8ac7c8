// Package access decides who may read the status API over TCP. It asks the API server
// which user a bearer token belongs to (TokenReview), and whether that user may get a
// path (SubjectAccessReview). If the API server does not answer, access is denied.
//
// Anybody can send tokens, so answers are cached, and both the size of the caches and
// the rate of requests to the API server are bounded.
package access
