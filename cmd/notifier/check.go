package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/consume"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/throttle"
)

// checkTimeout bounds the check of one server.
const checkTimeout = 15 * time.Second

func newCheckCommand() *cobra.Command {
	offline := false
	command := &cobra.Command{
		Use:   "check",
		Short: "Find what would keep the worker from working",
		Long: "Check the settings, then NATS, Redis and Slack as the worker would use them, and print the limit tree. The command\n" +
			"changes nothing, takes no event and posts nothing. The status is 1 if a server or a permission is missing, 2 if\n" +
			"the settings are wrong.",
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return runCheck(cmd.Context(), cmd.OutOrStdout(), offline) },
	}
	command.Flags().BoolVar(&offline, "offline", false, "check the settings alone")
	return command
}

func runCheck(ctx context.Context, out io.Writer, offline bool) error {
	settings, warnings, err := config.Load(config.Options{CheckTemplate: checkTemplate})
	if err != nil {
		return &usageError{err}
	}
	r := &report{out: out}
	r.ok("settings", "")
	for _, warning := range warnings {
		r.warn("settings", warning)
	}
	rules, err := limits.NewRuleset(settings.Limits.Plan(), nil, settings.Limits.ShadowLimits, nil)
	if err != nil {
		return err
	}
	tree := rules.Tree
	if !offline {
		checkNATS(ctx, r, settings)
		checkRedis(ctx, r, settings, tree)
		checkLimits(ctx, r, settings)
		checkSink(ctx, r, settings)
	}
	_, _ = fmt.Fprintf(out, "\nlimits\n%s", indent(tree.String()))
	if r.failures > 0 {
		return errReported
	}
	return nil
}

func indent(text string) string {
	return "  " + strings.TrimSuffix(strings.ReplaceAll(text, "\n", "\n  "), "  ")
}

// report prints what was found, a line each.
type report struct {
	out      io.Writer
	failures int
}

func (r *report) ok(subject, detail string)   { r.line("ok", subject, detail) }
func (r *report) warn(subject, detail string) { r.line("warn", subject, detail) }

func (r *report) fail(subject, detail string) {
	r.failures++
	r.line("FAIL", subject, detail)
}

func (r *report) line(mark, subject, detail string) {
	if detail != "" {
		subject += ": " + strings.ReplaceAll(detail, "\n", "; ")
	}
	_, _ = fmt.Fprintf(r.out, "%-4s  %s\n", mark, subject)
}

func checkNATS(ctx context.Context, r *report, settings config.Config) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	connection, err := connectNATS(settings.NATS, slog.New(slog.DiscardHandler))
	if err == nil {
		defer connection.Conn.Close()
		err = awaitConnection(ctx, connection)
	}
	if err != nil {
		r.fail("nats", explainNATS(err))
		return
	}
	r.ok("nats", "connected to "+connection.Conn.ConnectedUrlRedacted())
	for _, finding := range consume.Check(ctx, connection, names(settings), settings.NATS.Provision, settings.NATS.AckWait) {
		switch {
		case finding.Err == nil:
			r.ok(finding.Subject, finding.Note)
		case finding.Warning:
			r.warn(finding.Subject, finding.Err.Error())
		default:
			r.fail(finding.Subject, finding.Err.Error())
		}
	}
}

func explainNATS(err error) string {
	if errors.Is(err, nats.ErrAuthorization) {
		return err.Error() + " (check NOTIFIER_NATS_CREDS_FILE, NOTIFIER_NATS_USER and NOTIFIER_NATS_PASSWORD, or NOTIFIER_NATS_TOKEN)"
	}
	return err.Error() + " (check NOTIFIER_NATS_URL)"
}

func checkRedis(ctx context.Context, r *report, settings config.Config, tree *limits.Tree) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	client, err := newRedisClient(settings.Redis, slog.New(slog.DiscardHandler))
	if err != nil {
		r.fail("redis", err.Error())
		return
	}
	defer func() { _ = client.Close() }()
	if err := client.Ping(ctx).Err(); err != nil {
		r.fail("redis", explainRedis(err))
		return
	}
	r.ok("redis", "answers")
	store := newStore(client, settings.Redis, throttle.Settings{
		Tree: tree, Lease: settings.NATS.AckWait, Retention: retention(0, settings.Event.MaxAge),
	})
	if err := store.SelfTest(ctx, selfTests()...); err != nil {
		r.fail("redis scripts", explainRedis(err))
	} else {
		r.ok("redis scripts", "run as this user")
	}
	if err := store.Probe(ctx); err != nil {
		r.fail("redis keys", explainRedis(err))
	}
	checkRedisKeeps(ctx, r, client)
}

// checkRedisKeeps finds settings by which Redis loses what the limits are counted from.
func checkRedisKeeps(ctx context.Context, r *report, client redis.UniversalClient) {
	policy, known := evictionPolicy(ctx, client)
	switch {
	case !known:
		r.warn("redis eviction", "this user may not ask for it (info); make sure that maxmemory-policy is "+noEviction)
	case policy != noEviction:
		r.fail("redis eviction", fmt.Sprintf("maxmemory-policy is %s: a log that is evicted lets a whole limit through once more; set %s", policy, noEviction))
	default:
		r.ok("redis eviction", "maxmemory-policy is "+noEviction)
	}
	if info, err := client.Info(ctx, "persistence").Result(); err == nil && strings.Contains(info, "aof_enabled:0") {
		r.warn("redis persistence", "there is no append-only file: a restart forgets what was admitted; set appendonly yes")
	}
}

func explainRedis(err error) string {
	text := err.Error()
	switch {
	case strings.Contains(text, "NOAUTH"), strings.Contains(text, "WRONGPASS"):
		text += " (check NOTIFIER_REDIS_PASSWORD and the user in NOTIFIER_REDIS_URL)"
	case strings.Contains(text, "NOPERM"), strings.Contains(text, "ACL failure"), strings.Contains(text, "The user executing the script can't"):
		text += " (the user lacks a command or the keys; configs/redis has one with what is needed)"
	case strings.Contains(text, "WRONGTYPE"):
		text += " (something else uses the keys of NOTIFIER_REDIS_PREFIX)"
	case strings.Contains(text, "MOVED"), strings.Contains(text, "CROSSSLOT"):
		text += " (the server is a cluster: name another node as ?addr=host:port in NOTIFIER_REDIS_URL)"
	default:
		if _, answered := errors.AsType[redis.Error](err); !answered {
			text += " (check NOTIFIER_REDIS_URL)"
		}
	}
	return text
}

func checkSink(ctx context.Context, r *report, settings config.Config) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	if settings.Sink == config.SinkConsole {
		r.ok("sink", "console")
		return
	}
	destination, err := newSink(settings, io.Discard, false, func(string, time.Duration) {}, slog.New(slog.DiscardHandler))
	if err != nil {
		r.fail("slack", err.Error())
		return
	}
	defer destination.close()
	failures := r.failures
	for _, problem := range destination.Check(ctx) {
		if problem.Warning {
			r.warn(problem.Subject, problem.Err.Error())
			continue
		}
		r.fail(problem.Subject, problem.Err.Error())
	}
	if r.failures == failures {
		r.ok("slack", "nothing found that would keep messages from being posted")
	}
}
