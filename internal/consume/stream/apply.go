package stream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/replicas"
)

// Provisioning creates the streams and consumers of a deployment and updates the existing ones that differ from the settings. Workers also
// create them if allowed, but never alter existing ones.
type Provisioning struct {
	JetStream jetstream.JetStream
	Names     Names
	AckWait   time.Duration
	MaxBody   int  // bytes of the largest event without its headers; 0: not known
	DryRun    bool // report the changes without making them
}

// Provisioned is the result for one stream or consumer.
type Provisioned struct {
	Subject string
	Created bool
	Changes []string // the changes or the bounds of a created stream; empty if nothing was done
	Err     error
}

// Apply provisions the streams and consumers one by one. After a failure it continues with the next one.
func (p Provisioning) Apply(ctx context.Context) []Provisioned {
	events, subjects := p.stream(ctx, p.Names.StreamConfig(), p.Names.fitStream)
	room, _ := p.stream(ctx, p.Names.RoomConfig(), p.Names.fitRoom)
	letters, _ := p.stream(ctx, p.Names.DeadLetterConfig(), nil)
	all := []Provisioned{
		events, p.consumer(ctx, p.Names.Stream, p.Names.ConsumerConfig(p.AckWait, subjects), p.Names.Subjects(), p.Names.fitConsumer),
		room, p.consumer(ctx, p.Names.RoomStream, p.Names.RoomConsumerConfig(p.AckWait), p.Names.Room().Ready(), p.Names.fitRoomConsumer),
		letters,
	}
	if p.Names.Journal.Age > 0 {
		entries, _ := p.stream(ctx, p.Names.Journal.Config(), nil)
		all = append(all, entries)
	}
	return all
}

// stream provisions a stream, and returns the stream's resulting subjects. fit reports why the result cannot be used; nil accepts all.
func (p Provisioning) stream(ctx context.Context, wanted jetstream.StreamConfig, fit func(jetstream.StreamConfig) error) (done Provisioned, subjects []string) {
	ctx, cancel := context.WithTimeout(ctx, APITimeout)
	defer cancel()
	done.Subject = fmt.Sprintf("stream %s", wanted.Name)
	found, err := p.JetStream.Stream(ctx, wanted.Name)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		done.Created = true
		if !p.DryRun {
			found, err = p.Names.ensureStream(ctx, p.JetStream, wanted, slog.New(slog.DiscardHandler))
			if err != nil {
				return failed(done, err), wanted.Subjects
			}
			wanted = found.CachedInfo().Config
		}
		done.Changes = []string{bounds(wanted)}
		return done, wanted.Subjects
	case err != nil:
		return failed(done, err), wanted.Subjects
	}
	config, changes := p.Names.changedStream(found.CachedInfo().Config, sized(wanted, p.MaxBody))
	if fit != nil {
		err = fit(config)
	}
	if err == nil && len(changes) > 0 && !p.DryRun {
		_, err = p.JetStream.UpdateStream(ctx, config)
	}
	if err != nil {
		return failed(done, err), config.Subjects
	}
	done.Changes = changes
	return done, config.Subjects
}

func failed(done Provisioned, err error) Provisioned {
	return Provisioned{Subject: done.Subject, Err: withHint(err)}
}

// consumer provisions a consumer. fit reports why the result cannot be used. A consumer whose filter left out some of the needed subjects is
// created anew, since an updated one never delivers the older messages of its new filter. Messages that are under way are delivered again.
func (p Provisioning) consumer(
	ctx context.Context, stream string, wanted jetstream.ConsumerConfig, needed []string, fit func(jetstream.ConsumerConfig) error,
) Provisioned {
	ctx, cancel := context.WithTimeout(ctx, APITimeout)
	defer cancel()
	done := Provisioned{Subject: fmt.Sprintf("consumer %s of stream %s", wanted.Durable, stream)}
	found, err := p.JetStream.Consumer(ctx, stream, wanted.Durable)
	streamIsPlanned := p.DryRun && errors.Is(err, jetstream.ErrStreamNotFound)
	switch {
	case streamIsPlanned, errors.Is(err, jetstream.ErrConsumerNotFound):
		done.Created, err = true, nil
		if !p.DryRun {
			_, _, err = ensureConsumer(ctx, p.JetStream, stream, wanted)
		}
		if err != nil {
			return failed(done, err)
		}
		return done
	case err != nil:
		return failed(done, err)
	}
	before := found.CachedInfo().Config
	config, changes := changedConsumer(before, wanted)
	isAnew := !Takes(before, needed)
	if isAnew {
		changes = append(changes, "created anew")
	}
	err = fit(config)
	switch {
	case err != nil || p.DryRun:
	case isAnew:
		err = p.recreate(ctx, stream, before, config)
	case len(changes) > 0:
		_, err = p.JetStream.UpdateConsumer(ctx, stream, config)
	}
	if err != nil {
		return failed(done, err)
	}
	done.Changes = changes
	return done
}

// recreate replaces a consumer. If the server refuses the new one, which may overlap with another consumer, recreate restores the old one.
func (p Provisioning) recreate(ctx context.Context, stream string, before, after jetstream.ConsumerConfig) error {
	if err := p.JetStream.DeleteConsumer(ctx, stream, after.Durable); err != nil {
		if !isRefusal(err) {
			err = fmt.Errorf("deleting the consumer: %w; it may be absent now: run notifier provision again, which creates it", err)
		}
		return err
	}
	err := p.create(ctx, stream, after)
	if isRefusal(err) {
		restoreErr := p.create(ctx, stream, before)
		if restoreErr == nil {
			return err
		}
		err = errors.Join(err, restoreErr)
	}
	if err != nil {
		return fmt.Errorf("the consumer was deleted to be created anew and is absent now, so no worker gets events: run notifier provision again, which creates it: %w", err)
	}
	return nil
}

// Tries to create a consumer that was deleted.
const (
	createTries = 5
	createPause = 200 * time.Millisecond
)

// create creates a consumer that was deleted. Each try has a time of its own, and the end of the context ends none of them: a person who interrupts
// the command now would leave the workers without a consumer.
func (p Provisioning) create(ctx context.Context, stream string, config jetstream.ConsumerConfig) (err error) {
	for range createTries {
		creating, cancel := context.WithTimeout(context.WithoutCancel(ctx), APITimeout)
		_, err = p.JetStream.CreateConsumer(creating, stream, config)
		cancel()
		if err == nil || isRefusal(err) {
			return err
		}
		time.Sleep(createPause)
	}
	return err
}

// isRefusal reports whether the server has answered that it does not do what was requested. A cluster without a leader may do so later.
func isRefusal(err error) bool {
	_, answered := errors.AsType[*jetstream.APIError](err)
	return answered && !isUnavailable(err)
}

// change sets a field to a value, and records a change if the field had another value.
func change[T comparable](changes *[]string, name string, field *T, to T, text func(T) string) {
	if *field == to {
		return
	}
	*changes = append(*changes, fmt.Sprintf("%s %s, was %s", name, text(to), text(*field)))
	*field = to
}

// changedStream applies the settings to the configuration of an existing stream, and lists the differences. Other subjects and replicas stay.
func (n Names) changedStream(found, wanted jetstream.StreamConfig) (config jetstream.StreamConfig, changes []string) {
	config = found
	config.Subjects = slices.Clone(found.Subjects)
	for _, subject := range wanted.Subjects {
		if !slices.Contains(config.Subjects, subject) {
			config.Subjects = append(config.Subjects, subject)
			changes = append(changes, "subject "+subject)
		}
	}
	change(&changes, "max_bytes", &config.MaxBytes, unlimited(wanted.MaxBytes), boundText(bytesText[int64]))
	change(&changes, "max_age", &config.MaxAge, wanted.MaxAge, boundText(ageText))
	change(&changes, "max_msgs_per_subject", &config.MaxMsgsPerSubject, unlimited(wanted.MaxMsgsPerSubject), boundText(text[int64]))
	change(&changes, "discard_new_per_subject", &config.DiscardNewPerSubject, wanted.DiscardNewPerSubject, text[bool])
	if found.MaxMsgSize > 0 { // a larger bound stays
		change(&changes, "max_msg_size", &config.MaxMsgSize, max(found.MaxMsgSize, wanted.MaxMsgSize), boundText(bytesText[int32]))
	}
	if found.SubjectTransform != nil {
		changes = append(changes, "no subject_transform")
		config.SubjectTransform = nil
	}
	if found.RePublish != nil {
		changes = append(changes, "no republish")
		config.RePublish = nil
	}
	if wanted.Discard == jetstream.DiscardOld && wanted.MaxBytes <= 0 { // it would lose its oldest messages
		change(&changes, "max_msgs", &config.MaxMsgs, -1, boundText(text[int64]))
	}
	change(&changes, "no_ack", &config.NoAck, false, text[bool])
	change(&changes, "discard", &config.Discard, wanted.Discard, jetstream.DiscardPolicy.String)
	change(&changes, "allow_msg_schedules", &config.AllowMsgSchedules, wanted.AllowMsgSchedules || found.AllowMsgSchedules, text[bool])
	change(&changes, "allow_rollup_hdrs", &config.AllowRollup, wanted.AllowRollup, text[bool])
	change(&changes, "deny_purge", &config.DenyPurge, wanted.DenyPurge || found.DenyPurge, text[bool])
	duplicates := cmp.Or(wanted.Duplicates, found.Duplicates)
	if config.MaxAge > 0 {
		duplicates = min(duplicates, config.MaxAge)
	}
	change(&changes, "duplicate_window", &config.Duplicates, duplicates, ageText)
	if n.Replicas != replicas.Auto {
		change(&changes, "num_replicas", &config.Replicas, n.Replicas, text[int])
	}
	return config, changes
}

// changedConsumer returns the configuration of an existing consumer with the values of the settings, and lists the differences.
func changedConsumer(found, wanted jetstream.ConsumerConfig) (config jetstream.ConsumerConfig, changes []string) {
	config = found
	filters := filtersOf(found)
	if before, after := strings.Join(filters, ", "), strings.Join(filtersOf(wanted), ", "); before != after {
		changes = append(changes, fmt.Sprintf("filter %s, was %s", cmp.Or(after, "none"), cmp.Or(before, "none")))
		config.FilterSubject, config.FilterSubjects = "", wanted.FilterSubjects
	}
	if len(found.BackOff) > 0 {
		changes = append(changes, "no backoff")
		config.BackOff = nil
	}
	if len(found.PriorityGroups) > 0 {
		changes = append(changes, "no priority_groups")
		config.PriorityGroups, config.PriorityPolicy, config.PinnedTTL = nil, jetstream.PriorityPolicyNone, 0
	}
	change(&changes, "ack_wait", &config.AckWait, wanted.AckWait, ageText)
	change(&changes, "max_deliver", &config.MaxDeliver, wanted.MaxDeliver, boundText(text[int]))
	change(&changes, "max_ack_pending", &config.MaxAckPending, wanted.MaxAckPending, text[int])
	change(&changes, "headers_only", &config.HeadersOnly, wanted.HeadersOnly, text[bool])
	change(&changes, "max_batch", &config.MaxRequestBatch, wanted.MaxRequestBatch, boundText(text[int]))
	change(&changes, "max_bytes", &config.MaxRequestMaxBytes, wanted.MaxRequestMaxBytes, boundText(text[int]))
	change(&changes, "max_expires", &config.MaxRequestExpires, wanted.MaxRequestExpires, boundText(ageText))
	return config, changes
}

// filtersOf returns the sorted filter subjects of a consumer; none: it takes the whole stream.
func filtersOf(c jetstream.ConsumerConfig) []string {
	filters := slices.Sorted(slices.Values(c.FilterSubjects))
	if c.FilterSubject != "" {
		filters = []string{c.FilterSubject}
	}
	if slices.Contains(filters, ">") {
		return nil
	}
	return filters
}

// unlimited converts a bound to the server's form, in which -1 means no bound.
func unlimited(bound int64) int64 {
	if bound <= 0 {
		return -1
	}
	return bound
}

// boundText returns a function for the text of a bound that may be unlimited.
func boundText[T int | int32 | int64 | time.Duration](text func(T) string) func(T) string {
	return func(bound T) string {
		if bound <= 0 {
			return "unlimited"
		}
		return text(bound)
	}
}

func text[T any](value T) string { return fmt.Sprint(value) }
