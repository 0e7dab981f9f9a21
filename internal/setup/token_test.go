package setup

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/seed-4578ace9/notifier/internal/oplog"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// A refusal holds until the service accepts the token. A service out of reach changes nothing.
func TestAwaitToken(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		answers, refused, unreachable := make(chan error), errors.New("invalid_auth"), errors.New("no answer")
		log := testkit.NewLog(t)
		refusal := oplog.NewCondition(log.Logger(), "refused", "accepted")
		go AwaitToken(t.Context(), func(context.Context) (bool, error) {
			err := <-answers
			return errors.Is(err, refused), err
		}, refusal)
		for _, step := range []struct{ answer, want error }{{unreachable, nil}, {refused, refused}, {unreachable, refused}, {nil, nil}} {
			answers <- step.answer
			synctest.Wait()
			testkit.Equal(t, refusal.Err(), step.want, "refusal after the answer %v", step.answer)
		}
		log.Want(t, "refused", "accepted")
	})
}
