// Package access decides who may read what the daemon tells other hosts: it asks
// the API server whose a bearer token is (TokenReview), and whether that user may
// get a path (SubjectAccessReview). In doubt nobody may.
//
// Anybody can send tokens. So answers are remembered for a while, and there are
// bounds on what is remembered and on how often the API server is asked.
package access
