package deadletters

import (
	"context"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/consume/stream"
)

// Counts returns the number of dead letters by reason, with the state of their stream.
func Counts(ctx context.Context, js jetstream.JetStream, names stream.Names) (*jetstream.StreamInfo, map[string]int64, error) {
	info, err := stream.Info(ctx, js, names.DeadLetterStream, names.DeadLetterSubject+".>")
	if err != nil {
		return nil, nil, err
	}
	counts := make(map[string]int64)
	for subject, messages := range info.State.Subjects {
		reason, _, _ := strings.Cut(strings.TrimPrefix(subject, names.DeadLetterSubject+"."), ".")
		counts[reason] += int64(messages) //nolint:gosec // a count of messages on a disk
	}
	return info, counts, nil
}
