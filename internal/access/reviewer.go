package access

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"golang.org/x/time/rate"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"sluice/internal/apiclient"
	"sluice/internal/statusapi"
)

const (
	// allowedTTL and deniedTTL are how long positive and negative answers of the API
	// server are cached, and so how late a revoked or granted permission takes effect.
	allowedTTL = time.Minute
	deniedTTL  = 10 * time.Second

	maxUsers    = 256  // cached valid tokens
	maxRejected = 1024 // cached invalid tokens
	maxRights   = 1024 // cached decisions by token and path

	// reviewTimeout bounds how long a request waits for the API server, and maxReviews
	// the number of reviews in progress.
	reviewTimeout = 5 * time.Second
	maxReviews    = 8

	// Rate limits of reviews, per second. The limit for others is for tokens that have
	// not been allowed anything: anybody can make up tokens, and each pod has a valid
	// one. They must not exhaust the limit of known readers.
	otherRate, otherBurst   = 5, 20
	readerRate, readerBurst = 20, 100

	maxResponse = 1 << 20 // bytes of a response of the API server
)

// Reviewer decides about tokens by asking the API server. It is safe for concurrent
// use.
type Reviewer struct {
	client  rest.Interface
	key     []byte        // of the hashes, so that nobody can construct a collision
	reviews chan struct{} // a semaphore of reviews in progress

	others, known *rate.Limiter // for tokens of other users, and of known readers

	users    cache[hash, *authenticationv1.UserInfo] // by valid token
	rejected cache[hash, struct{}]                   // invalid tokens
	rights   cache[hash, bool]                       // by token and path
	readers  cache[hash, bool]                       // tokens that were allowed a path

	mu        sync.Mutex
	lastError string // logged already; empty if the API server answers
}

// hash is the HMAC of a token, so that no token is kept in memory, or of a token's hash
// and a path, which may be long.
type hash [sha256.Size]byte

// New returns a Reviewer. The client should not share a rate limit with others, which
// would have to wait.
func New(client rest.Interface) *Reviewer {
	key := make([]byte, sha256.Size)
	_, _ = rand.Read(key) // never fails
	return &Reviewer{
		client: client, key: key, reviews: make(chan struct{}, maxReviews),
		others: rate.NewLimiter(otherRate, otherBurst), known: rate.NewLimiter(readerRate, readerBurst),
		users:    cache[hash, *authenticationv1.UserInfo]{limit: maxUsers},
		rejected: cache[hash, struct{}]{limit: maxRejected},
		rights:   cache[hash, bool]{limit: maxRights},
		readers:  cache[hash, bool]{limit: maxUsers},
	}
}

// Allow returns nil if the user that a token belongs to may get a path. Otherwise it
// returns a [statusapi.ResponseError] with code 401 if the token is not valid, 403 if
// the user may not get the path, or 503 if the API server does not answer. It blocks
// for at most reviewTimeout.
func (r *Reviewer) Allow(ctx context.Context, token, path string) error {
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	who := r.hash(token)
	user, err := r.authenticate(ctx, who, token)
	if err != nil {
		return err
	}
	allowed, err := r.authorize(ctx, who, user, path)
	if err == nil && !allowed {
		err = refuse(http.StatusForbidden, "user %q may not get %s: bind a ClusterRole with that path in nonResourceURLs to the user",
			user.Username, path)
	}
	return err
}

func (r *Reviewer) hash(text string) (h hash) {
	mac := hmac.New(sha256.New, r.key)
	_, _ = io.WriteString(mac, text) // never fails
	mac.Sum(h[:0])
	return h
}

// authenticate returns the user that a token belongs to. who is the token's hash.
func (r *Reviewer) authenticate(ctx context.Context, who hash, token string) (*authenticationv1.UserInfo, error) {
	user, valid := r.users.get(who)
	if valid {
		return user, nil
	}
	rejected := refuse(http.StatusUnauthorized, "the API server does not accept this token: it may have expired")
	if _, valid := r.rejected.get(who); valid {
		return nil, rejected
	}
	review := authenticationv1.TokenReview{
		TypeMeta: metav1.TypeMeta{APIVersion: authenticationv1.SchemeGroupVersion.String(), Kind: "TokenReview"},
		Spec:     authenticationv1.TokenReviewSpec{Token: token},
	}
	if err := r.review(ctx, r.limit(who), authenticationv1.GroupName, "tokenreviews", &review); err != nil {
		return nil, err
	}
	if s := &review.Status; !s.Authenticated || s.Error != "" || s.User.Username == "" {
		r.rejected.set(who, struct{}{}, deniedTTL)
		return nil, rejected
	}
	r.users.set(who, &review.Status.User, allowedTTL)
	return &review.Status.User, nil
}

// limit returns the rate limit for a token.
func (r *Reviewer) limit(who hash) *rate.Limiter {
	if reader, _ := r.readers.get(who); reader { // even if that has expired
		return r.known
	}
	return r.others
}

// authorize reports whether a user may get a path.
func (r *Reviewer) authorize(ctx context.Context, who hash, user *authenticationv1.UserInfo, path string) (bool, error) {
	key := r.hash(string(who[:]) + path)
	if allowed, valid := r.rights.get(key); valid {
		return allowed, nil
	}
	review := authorizationv1.SubjectAccessReview{
		TypeMeta: metav1.TypeMeta{APIVersion: authorizationv1.SchemeGroupVersion.String(), Kind: "SubjectAccessReview"},
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User: user.Username, UID: user.UID, Groups: user.Groups, Extra: map[string]authorizationv1.ExtraValue{},
			NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: path, Verb: "get"},
		},
	}
	for name, values := range user.Extra {
		review.Spec.Extra[name] = authorizationv1.ExtraValue(values)
	}
	if err := r.review(ctx, r.limit(who), authorizationv1.GroupName, "subjectaccessreviews", &review); err != nil {
		return false, err
	}
	allowed, ttl := review.Status.Allowed && !review.Status.Denied, deniedTTL
	if allowed {
		ttl = allowedTTL
		r.readers.set(who, true, allowedTTL)
	}
	r.rights.set(key, allowed, ttl)
	return allowed, nil
}

// review creates a review object, and decodes the response with its status into it.
func (r *Reviewer) review(ctx context.Context, limit *rate.Limiter, group, resource string, object any) error {
	if !limit.Allow() {
		return refuse(http.StatusServiceUnavailable, "too many requests need a review by the API server: try again in a second")
	}
	select {
	case r.reviews <- struct{}{}:
		defer func() { <-r.reviews }()
	case <-ctx.Done():
		return refuse(http.StatusServiceUnavailable, "the API server is too slow to review the request: try again")
	}
	err := r.post(ctx, group, resource, object)
	r.logOnce(ctx, err)
	if apierrors.IsForbidden(err) {
		return refuse(http.StatusServiceUnavailable, "the API server does not let this daemon create %s: "+
			"bind ClusterRole system:auth-delegator to its user", resource)
	}
	if err != nil {
		return refuse(http.StatusServiceUnavailable, "the API server cannot review the request: try again later")
	}
	return nil
}

// post sends an object and decodes the response into it. It encodes the object itself:
// at high verbosity the client logs what it encodes and decodes, here with the token.
func (r *Reviewer) post(ctx context.Context, group, resource string, object any) error {
	text, err := json.Marshal(object)
	if err != nil {
		return err
	}
	response, err := r.client.Post().AbsPath(apiclient.Path(group)).Resource(resource).
		SetHeader("Content-Type", "application/json").SetHeader("Accept", "application/json").
		Body(io.Reader(bytes.NewReader(text))).Stream(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = response.Close() }()
	return json.NewDecoder(io.LimitReader(response, maxResponse)).Decode(object)
}

// logOnce logs an error, unless it is the same as that of the last review.
func (r *Reviewer) logOnce(ctx context.Context, err error) {
	if errors.Is(err, context.Canceled) {
		return // The client disconnected.
	}
	text := ""
	if err != nil {
		text = err.Error()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if text != "" && text != r.lastError {
		klog.FromContext(ctx).Error(err, "The status API denies access over TCP while the API server cannot review requests")
	}
	r.lastError = text
}

func refuse(code int, format string, args ...any) error {
	return &statusapi.ResponseError{Code: code, Message: fmt.Sprintf(format, args...)}
}
