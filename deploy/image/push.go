package main

import (
	"context"
	"fmt"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// push writes both tags and the documents about them to a registry, with the
// credentials of "docker login" or of $REGISTRY_AUTH_FILE.
func (b *images) push(ctx context.Context, repository string) error {
	repo, err := name.NewRepository(repository)
	if err != nil {
		return fmt.Errorf("--push: %w", err)
	}
	options := []remote.Option{remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)}
	for _, tag := range b.tags() {
		index := b.index(tag)
		if err := remote.WriteIndex(repo.Tag(tag), index, options...); err != nil {
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
