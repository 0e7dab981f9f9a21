package journal

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/klauspost/compress/s2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/replicas"
)

// Names say where the journal is kept.
type Names struct {
	Stream   string
	Subject  string        // of the producers; the journal's subjects are <subject>-journal.<first level of the category>
	Age      time.Duration // of the oldest entries
	MaxBytes int64         // of the stream; newer entries push out older ones
	Replicas int           // see package replicas
}

// All matches every subject of the journal.
func (n Names) All() string { return n.Subject + "-journal.>" }

// SubjectOf is where entries of a first-level category are published.
func (n Names) SubjectOf(first string) string { return n.Subject + "-journal." + first }

// Config is the stream as it is provisioned.
func (n Names) Config() jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:       n.Stream,
		Subjects:   []string{n.All()},
		Retention:  jetstream.LimitsPolicy,
		Storage:    jetstream.FileStorage,
		Discard:    jetstream.DiscardOld,
		MaxAge:     n.Age,
		MaxBytes:   n.MaxBytes,
		Duplicates: min(duplicateWindow, n.Age),
	}
}

// duplicateWindow is how long the stream knows a batch again that is published a second time because its confirmation was lost.
const duplicateWindow = 2 * time.Minute

// apiTimeout bounds one request.
const apiTimeout = 5 * time.Second

// Provision creates the stream if it is absent. What exists is not altered.
func (n Names) Provision(ctx context.Context, js jetstream.JetStream) error {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	_, err := js.Stream(ctx, n.Stream)
	if !errors.Is(err, jetstream.ErrStreamNotFound) {
		return err
	}
	return replicas.Create(ctx, n.Replicas, func(replicas int) error {
		config := n.Config()
		config.Replicas = replicas
		if _, err := js.CreateStream(ctx, config); err != nil && !errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
			return fmt.Errorf("creating stream %q: %w", n.Stream, err)
		}
		return nil
	})
}

// headerInstance names the worker whose entries a message holds.
const headerInstance = "Notifier-Instance"

// encode makes a message of entries: one JSON object a line, compressed as S2.
func encode(subject, instance, name string, entries []Entry) (*nats.Msg, error) {
	var lines bytes.Buffer
	encoder := json.NewEncoder(&lines)
	encoder.SetEscapeHTML(false)
	for _, entry := range entries {
		if err := encoder.Encode(entry); err != nil {
			return nil, fmt.Errorf("encoding an entry of the journal: %w", err)
		}
	}
	message := nats.NewMsg(subject)
	message.Header.Set(headerInstance, instance)
	message.Header.Set(nats.MsgIdHdr, name)
	message.Data = s2.Encode(nil, lines.Bytes())
	return message, nil
}

// decode reads what encode wrote: the lines that are wanted, or all if wanted is nil.
func decode(header nats.Header, data []byte, wanted func(line []byte) bool) ([]Entry, error) {
	lines, err := s2.Decode(nil, data)
	if err != nil {
		return nil, fmt.Errorf("decompressing a message of the journal: %w", err)
	}
	var entries []Entry
	for line := range bytes.Lines(lines) {
		if wanted != nil && !wanted(line) {
			continue
		}
		var entry Entry
		if err := json.Unmarshal(line, &entry); err != nil {
			return nil, fmt.Errorf("decoding an entry of the journal: %w", err)
		}
		entry.Instance = header.Get(headerInstance)
		entries = append(entries, entry)
	}
	return entries, nil
}
