package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/overrides"
)

// checkLimits finds out whether a worker would have the limits that are in force. Servers that do not answer are not its
// business.
func checkLimits(ctx context.Context, r *report, settings config.Config) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	l := &limitsCommand{settings: settings}
	inForce, _, err := l.inForce(ctx)
	if err != nil {
		return
	}
	connection, err := connectNATS(settings.NATS, slog.New(slog.DiscardHandler))
	if err != nil {
		return
	}
	defer connection.Conn.Close()
	if awaitConnection(ctx, connection) != nil {
		return
	}
	js, err := jetstream.New(connection.Conn)
	if err != nil {
		return
	}
	options := overridesOptions(settings)
	options.Provision, options.Logger = false, slog.New(slog.DiscardHandler) // nothing is changed
	bucket, err := overrides.Open(ctx, js, options)
	var s overrides.Snapshot
	if err == nil {
		s, err = bucket.Load(ctx)
	}
	const subject = "live limits"
	used := position(s).Before(inForce) // by others
	switch {
	case errors.Is(err, overrides.ErrNoBucket) && settings.NATS.Provision:
		r.ok(subject, fmt.Sprintf("bucket %s is absent, the worker creates it", settings.Limits.Bucket))
	case err != nil && used:
		r.fail(subject, fmt.Sprintf("%v; others use %s, so a worker would take no events", err, inForce))
	case err != nil:
		r.warn(subject, fmt.Sprintf("%v; limits that are changed while workers run would not be known", err))
	case used:
		r.fail(subject, fmt.Sprintf("bucket %s holds %s, which is older than what is in force, %s: a worker takes no events; "+
			"after a restore, notifier limits adopt puts the bucket's state in force", settings.Limits.Bucket, position(s), inForce))
	default:
		r.ok(subject, fmt.Sprintf("bucket %s holds %s", settings.Limits.Bucket, position(s)))
	}
}
