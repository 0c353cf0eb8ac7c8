package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

// push writes all tags and the documents about them to a registry, with the
// credentials of "docker login" or of $REGISTRY_AUTH_FILE.
func (b *images) push(ctx context.Context, repository string) error {
	repo, err := name.NewRepository(repository)
	if err != nil {
		return fmt.Errorf("--push: %w", err)
	}
	options := []remote.Option{remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)}
	for _, tag := range b.tags() {
		if err := b.unused(repo.Tag(tag), options); err != nil {
			return err
		}
	}
	for _, tag := range b.tags() {
		if err := remote.WriteIndex(repo.Tag(tag), b.index(tag), options...); err != nil {
			return fmt.Errorf("push %s: %w", repo.Tag(tag), err)
		}
	}
	referrers, err := b.referrers()
	if err != nil {
		return err
	}
	for _, r := range referrers {
		digest, err := r.Digest()
		if err != nil {
			return err
		}
		if err := remote.Write(repo.Digest(digest.String()), r, options...); err != nil {
			return fmt.Errorf("push a document about an image: %w", err)
		}
	}
	return nil
}

// unused returns an error if a tag already names another image: nodes that have pulled it would
// keep using that one, and others would not.
func (b *images) unused(tag name.Tag, options []remote.Option) error {
	digest, err := b.index(tag.TagStr()).Digest()
	if err != nil {
		return err
	}
	there, err := remote.Head(tag, options...)
	var answer *transport.Error
	switch {
	case errors.As(err, &answer) && answer.StatusCode == http.StatusNotFound:
		return nil
	case err != nil:
		return fmt.Errorf("look whether %s is taken: %w", tag, err)
	case there.Digest != digest:
		return fmt.Errorf("push %s: the tag is taken by %s; build with another VERSION", tag, there.Digest)
	}
	return nil
}
