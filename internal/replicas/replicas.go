// Package replicas decides how many servers of a cluster keep a stream or a bucket that is created.
//
// No user of an ordinary account may ask how many servers there are, so it finds out by trying.
package replicas

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Auto means three replicas in a cluster that has as many servers, else one.
const (
	Auto = 0
	most = 3
)

// Error codes of the server.
const (
	errNoPeers      = jetstream.ErrorCode(10005)
	errNotClustered = jetstream.ErrorCode(10074)
)

// noPeers is the server's answer in a cluster that is too small. With a further reason, such as a full server, fewer replicas are no
// answer.
const noPeers = "no suitable peers for placement"

// A cluster that has just been started may not know all of its servers yet, so a cluster is too small only if it says so
// more than once.
const (
	tries = 3
	pause = time.Second
)

// Create calls create with the number of replicas that is wanted. With [Auto] and too few servers it calls create again with one. What
// create returns must wrap the server's error.
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
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return err
		}
	}
}

func tooFew(err error) (code jetstream.ErrorCode, few bool) {
	refusal, refused := errors.AsType[*jetstream.APIError](err)
	if !refused {
		return 0, false
	}
	return refusal.ErrorCode, refusal.ErrorCode == errNotClustered || refusal.ErrorCode == errNoPeers && refusal.Description == noPeers
}
