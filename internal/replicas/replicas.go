// Package replicas creates streams and buckets on as many servers of a cluster as wanted.
//
// Users of an ordinary account may not ask for the number of servers, so [Create] and [EnsureStream] find out by trying.
package replicas

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/await"
)

// Auto means three replicas in a cluster of three servers or more, and one replica in any other.
const (
	Auto = 0
	most = 3
)

// Error codes of the server.
const (
	errNoPeers      = jetstream.ErrorCode(10005)
	errNotClustered = jetstream.ErrorCode(10074)
)

// noPeers is the error of a cluster that is too small. If the description has a further reason, such as a full server, fewer replicas would
// not help.
const noPeers = "no suitable peers for placement"

// A cluster that has just started may not know all of its servers yet, so the first error is retried.
const (
	tries = 3
	pause = time.Second
)

// DeletionTime is how long a server may work on the deletion of a stream after it has reported it. A stream of that name that is created
// meanwhile exists, but stores nothing until the server restarts (seen with nats-server 2.15).
const DeletionTime = time.Second

// AwaitDeletion waits for [DeletionTime] if a stream that existed before is absent. The error is the context's cause.
func AwaitDeletion(ctx context.Context, js jetstream.JetStream, stream string) error {
	if _, err := js.Stream(ctx, stream); errors.Is(err, jetstream.ErrStreamNotFound) && !await.For(ctx, DeletionTime) {
		return context.Cause(ctx)
	}
	return nil
}

// Create calls create with the wanted number of replicas. With [Auto] and too few servers it calls create again with one replica. The error
// of create must wrap the server's error.
func Create(ctx context.Context, wanted int, create func(replicas int) error) error {
	if wanted != Auto {
		return create(wanted)
	}
	for try := 1; ; try++ {
		err := create(most)
		code, few := tooFew(err)
		switch {
		case !few:
			return err
		case code == errNotClustered || try == tries:
			return create(1)
		}
		if !await.For(ctx, pause) {
			return err
		}
	}
}

// EnsureStream finds a stream or creates it with the wanted number of replicas. created is the number of replicas of a stream that it has
// created, and 0 for an existing stream.
func EnsureStream(ctx context.Context, js jetstream.JetStream, config jetstream.StreamConfig, wanted int) (stream jetstream.Stream, created int, err error) {
	stream, err = js.Stream(ctx, config.Name)
	if !errors.Is(err, jetstream.ErrStreamNotFound) {
		return stream, 0, err
	}
	err = Create(ctx, wanted, func(count int) (err error) {
		config.Replicas = count
		stream, err = js.CreateStream(ctx, config)
		return err
	})
	switch {
	case errors.Is(err, jetstream.ErrStreamNameAlreadyInUse): // another instance was faster
		stream, err = js.Stream(ctx, config.Name)
		return stream, 0, err
	case err != nil:
		return nil, 0, fmt.Errorf("creating stream %q: %w", config.Name, err)
	}
	return stream, config.Replicas, nil
}

func tooFew(err error) (code jetstream.ErrorCode, few bool) {
	refusal, refused := errors.AsType[*jetstream.APIError](err)
	if !refused {
		return 0, false
	}
	return refusal.ErrorCode, refusal.ErrorCode == errNotClustered || refusal.ErrorCode == errNoPeers && refusal.Description == noPeers
}
