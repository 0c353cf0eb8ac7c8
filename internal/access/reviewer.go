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
	// yesLasts and noLasts are how long an answer of the API server counts: how
	// late a right that was taken, or given, shows.
	yesLasts = time.Minute
	noLasts  = 10 * time.Second

	maxUsers    = 256  // tokens that are good
	maxRejected = 1024 // tokens that are not
	maxRights   = 1024 // who may get what, or may not

	// reviewTimeout is how long the API server has, and reviewsAtOnce how many
	// answers are waited for.
	reviewTimeout = 5 * time.Second
	reviewsAtOnce = 8

	// Reviews a second, and how many more now and then: of tokens that nobody has
	// seen before, which anybody can make up, and of users who have no right, as each
	// pod has a token; and on behalf of known readers, whom those must not lock out.
	strangersRate, strangersBurst = 5, 20
	knownRate, knownBurst         = 20, 100

	maxReview = 1 << 20 // bytes of an answer
)

// Reviewer asks the API server.
type Reviewer struct {
	client rest.Interface
	key    []byte        // of hashes, so that nobody outside can aim at one
	atOnce chan struct{} // a place for each review under way

	strangers, known *rate.Limiter

	users    cache[hash, *authenticationv1.UserInfo] // of good tokens
	rejected cache[hash, struct{}]
	rights   cache[hash, bool] // by token and path
	readers  cache[hash, bool] // tokens that had a right to something

	mu        sync.Mutex
	complaint string // the last one, which is not repeated
}

// hash stands for a token, so that none is kept, or for one and a path, which
// may be long.
type hash [sha256.Size]byte

// New returns a reviewer. Its client should have no rate limit of its own that
// others wait for, too.
func New(client rest.Interface) *Reviewer {
	key := make([]byte, sha256.Size)
	_, _ = rand.Read(key) // never fails
	return &Reviewer{
		client: client, key: key, atOnce: make(chan struct{}, reviewsAtOnce),
		strangers: rate.NewLimiter(strangersRate, strangersBurst), known: rate.NewLimiter(knownRate, knownBurst),
		users:    cache[hash, *authenticationv1.UserInfo]{limit: maxUsers},
		rejected: cache[hash, struct{}]{limit: maxRejected},
		rights:   cache[hash, bool]{limit: maxRights},
		readers:  cache[hash, bool]{limit: maxUsers},
	}
}

// Allow returns nil if the user that a token belongs to may get a path, and else
// what to answer: 401 if the token is no good, 403 if the user may not, 503 if
// the API server does not tell.
func (r *Reviewer) Allow(ctx context.Context, token, path string) error {
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	who := r.hash(token)
	user, err := r.authenticate(ctx, who, token)
	if err != nil {
		return err
	}
	may, err := r.authorize(ctx, who, user, path)
	if err == nil && !may {
		err = refuse(http.StatusForbidden, "user %q may not get %s: a ClusterRole with that path in nonResourceURLs gives the right",
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

// authenticate returns whose a token is.
func (r *Reviewer) authenticate(ctx context.Context, who hash, token string) (*authenticationv1.UserInfo, error) {
	user, counts := r.users.get(who)
	if counts {
		return user, nil
	}
	unknown := refuse(http.StatusUnauthorized, "the API server does not accept this token: it may have expired")
	if _, no := r.rejected.get(who); no {
		return nil, unknown
	}
	review := authenticationv1.TokenReview{
		TypeMeta: metav1.TypeMeta{APIVersion: authenticationv1.SchemeGroupVersion.String(), Kind: "TokenReview"},
		Spec:     authenticationv1.TokenReviewSpec{Token: token},
	}
	if err := r.review(ctx, r.limit(who), authenticationv1.GroupName, "tokenreviews", &review); err != nil {
		return nil, err
	}
	if s := &review.Status; !s.Authenticated || s.Error != "" || s.User.Username == "" {
		r.rejected.set(who, struct{}{}, noLasts)
		return nil, unknown
	}
	r.users.set(who, &review.Status.User, yesLasts)
	return &review.Status.User, nil
}

// limit returns whose reviews are waited for.
func (r *Reviewer) limit(who hash) *rate.Limiter {
	if reader, _ := r.readers.get(who); reader { // also if that was a while ago
		return r.known
	}
	return r.strangers
}

// authorize reports whether a user may get a path, which is remembered.
func (r *Reviewer) authorize(ctx context.Context, who hash, user *authenticationv1.UserInfo, path string) (bool, error) {
	key := r.hash(string(who[:]) + path)
	if may, counts := r.rights.get(key); counts {
		return may, nil
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
	may, lasts := review.Status.Allowed && !review.Status.Denied, noLasts
	if may {
		lasts = yesLasts
		r.readers.set(who, true, yesLasts)
	}
	r.rights.set(key, may, lasts)
	return may, nil
}

// review has the API server fill in the status of an object.
func (r *Reviewer) review(ctx context.Context, limit *rate.Limiter, group, resource string, object any) error {
	if !limit.Allow() {
		return refuse(http.StatusServiceUnavailable, "the API server was asked about too many requests: try again in a second")
	}
	select {
	case r.atOnce <- struct{}{}:
		defer func() { <-r.atOnce }()
	case <-ctx.Done():
		return refuse(http.StatusServiceUnavailable, "the API server is slow to say who may read this: try again")
	}
	err := r.post(ctx, group, resource, object)
	r.complain(ctx, err)
	if apierrors.IsForbidden(err) {
		return refuse(http.StatusServiceUnavailable, "the API server does not let this daemon create %s: "+
			"bind ClusterRole system:auth-delegator to its user", resource)
	}
	if err != nil {
		return refuse(http.StatusServiceUnavailable, "the API server cannot be asked who may read this: try again later")
	}
	return nil
}

// post sends an object and reads the answer into it. The client's own encoding
// would write both to the log at high verbosity, and with them the token.
func (r *Reviewer) post(ctx context.Context, group, resource string, object any) error {
	text, err := json.Marshal(object)
	if err != nil {
		return err
	}
	answer, err := r.client.Post().AbsPath(apiclient.Path(group)).Resource(resource).
		SetHeader("Content-Type", "application/json").SetHeader("Accept", "application/json").
		Body(io.Reader(bytes.NewReader(text))).Stream(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Close() }()
	return json.NewDecoder(io.LimitReader(answer, maxReview)).Decode(object)
}

// complain logs why the API server cannot be asked, once until that changes.
func (r *Reviewer) complain(ctx context.Context, err error) {
	if errors.Is(err, context.Canceled) {
		return // the client has gone
	}
	text := ""
	if err != nil {
		text = err.Error()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if text != "" && text != r.complaint {
		klog.FromContext(ctx).Error(err, "Nobody may read the status at the TCP address while the API server cannot be asked")
	}
	r.complaint = text
}

func refuse(code int, format string, args ...any) error {
	return &statusapi.ResponseError{Code: code, Message: fmt.Sprintf(format, args...)}
}
