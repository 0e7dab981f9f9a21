package cli

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/seed-4578ace9/notifier/internal/certificate"
	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/inspect"
	"github.com/seed-4578ace9/notifier/internal/layout"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/overrides"
	"github.com/seed-4578ace9/notifier/internal/screen"
	"github.com/seed-4578ace9/notifier/internal/setup"
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/status"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
	"github.com/seed-4578ace9/notifier/lua"
)

const checkTimeout = 15 * time.Second

func newCheckCommand() *cobra.Command {
	c := &check{}
	command := &cobra.Command{
		Use:   "check",
		Short: "Find what would keep the worker from working",
		Long: "Check the settings, then NATS, Redis and Slack as the worker would use them, and print the limits of the running\n" +
			"workers or, if no worker answers, of the settings here. The command changes nothing, takes no event and posts\n" +
			"nothing, except a test message with --post. The status is 1 if a server or a permission is missing, 2 if the\n" +
			"settings are wrong.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := emptyFlag(cmd, "post"); err != nil {
				return usageOf(cmd, err)
			}
			if c.post != "" && c.offline {
				return usageOf(cmd, errors.New("--offline posts nothing: leave out --offline or --post"))
			}
			c.out, c.width = cmd.OutOrStdout(), screen.Width(cmd.OutOrStdout())
			return c.run(cmd.Context())
		},
	}
	command.Flags().BoolVar(&c.offline, "offline", false, "check the settings alone")
	command.Flags().BoolVar(&c.asJSON, "json", false, "print one line of JSON")
	command.Flags().StringVar(&c.post, "post", "", "post a test message to this channel (a webhook: to its own), update it and look it up")
	return command
}

func (c *check) run(ctx context.Context) error {
	settings, warnings, err := Settings(config.Options{CheckTemplate: setup.CheckTemplate})
	if err != nil {
		return err
	}
	rules, err := limits.NewRuleset(settings.Limits.Plan(), nil, settings.Limits.ShadowLimits, nil)
	if err != nil {
		return err
	}
	c.settings, c.shown, c.ended = settings, checkedLimits{rules.Tree, "this shell's settings"}, ctx.Done()
	c.ok("settings", "")
	for _, warning := range warnings {
		c.warn("settings", warning)
	}
	// Settings leave this warning to ingest.
	if pair, err := tls.LoadX509KeyPair(settings.Ingest.TLS.CertFile, settings.Ingest.TLS.KeyFile); err == nil {
		if end := certificate.EndingSoon(pair); end != nil {
			c.warn("settings", "NOTIFIER_INGEST_TLS_CERT_FILE: "+end.Error())
		}
	}
	if !c.offline {
		c.servers(ctx)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	err = c.limitTree()
	if c.failures > 0 {
		err = cmp.Or(err, errReported)
	}
	return err
}

// check prints its findings, one on each line or all as JSON.
type check struct {
	out      io.Writer
	width    int // of the terminal; 0: out is none
	asJSON   bool
	offline  bool
	post     string // the channel for a test message; "": none
	settings config.Config
	shown    checkedLimits
	findings []finding
	failures int
	ended    <-chan struct{} // closed when somebody has ended the command: what fails then is no finding; nil: never
}

func (c *check) ok(subject, detail string)   { c.line("ok", subject, detail) }
func (c *check) warn(subject, detail string) { c.line("warn", subject, detail) }

func (c *check) fail(subject, detail string) {
	c.failures++
	c.line("FAIL", subject, detail)
}

// found adds what a part of the program found: a note or an error.
func (c *check) found(f sink.Checked) {
	switch {
	case f.Err == nil:
		c.ok(f.Subject, f.Note)
	case f.Warning:
		c.warn(f.Subject, f.Err.Error())
	default:
		c.fail(f.Subject, f.Err.Error())
	}
}

func (c *check) line(mark, subject, detail string) {
	select {
	case <-c.ended:
		return
	default:
	}
	detail = strings.ReplaceAll(detail, "\n", "; ")
	c.findings = append(c.findings, finding{mark, subject, detail})
	if c.asJSON {
		return
	}
	if detail != "" {
		subject += ": " + detail
	}
	p := statusPrinter{width: cmp.Or(c.width, math.MaxInt)} // elsewhere a line is whole, for grep
	for _, row := range p.wrapped(fmt.Sprintf("%-4s  ", mark), subject) {
		_, _ = fmt.Fprintln(c.out, row[0])
	}
}

func (c *check) servers(ctx context.Context) {
	tree := c.shown.tree
	bounded := func(part func(context.Context)) {
		ctx, cancel := context.WithTimeout(ctx, checkTimeout)
		defer cancel()
		part(ctx)
	}
	connection, err := setup.DialNATS(ctx, c.settings.NATS)
	if err != nil {
		c.fail("nats", setup.ExplainNATS(err))
	} else {
		defer connection.Conn.Close()
		bounded(func(ctx context.Context) { c.nats(ctx, connection) })
		bounded(func(ctx context.Context) { c.workers(ctx, connection) })
	}
	client, err := setup.Redis(c.settings.Redis)
	if err != nil {
		c.fail("redis", err.Error())
	} else {
		defer func() { _ = client.Close() }()
		shared := setup.Store(client, c.settings.Redis, store.Settings{
			Tree: tree, Lease: c.settings.NATS.AckWait, Retention: inspect.Retention(c.settings),
		})
		bounded(func(ctx context.Context) { c.redis(ctx, client, shared) })
		if connection != nil {
			bounded(func(ctx context.Context) { c.limits(ctx, connection, shared) })
			bounded(func(ctx context.Context) { c.power(ctx, connection, client) })
		}
	}
	bounded(func(ctx context.Context) { c.slack(ctx, client) })
}

func (c *check) nats(ctx context.Context, connection *stream.Connection) {
	c.ok("nats", "connected to "+connection.Conn.ConnectedUrlRedacted())
	options := stream.Options{
		Connection: connection, Names: setup.Names(c.settings), Provision: c.settings.NATS.Provision, AckWait: c.settings.NATS.AckWait,
		Longest: c.settings.SendTimeout(),
	}
	further := stream.Further{
		Channels: setup.Channels(c.settings), Bucket: c.settings.Limits.Bucket, MaxBody: c.settings.Event.MaxBytes,
	}
	for _, finding := range stream.Check(ctx, options, further) {
		c.found(sink.Checked(finding))
	}
	c.found(sink.Checked{
		Subject: "layout", Note: fmt.Sprintf("%d, and no worker of another layout is running", lua.Layout),
		Err: layout.Others(ctx, connection.Conn, c.settings.Redis.Prefix),
	})
}

func (c *check) redis(ctx context.Context, client redis.UniversalClient, shared *store.Redis) {
	if err := client.Ping(ctx).Err(); err != nil {
		c.fail("redis", setup.ExplainRedis(err, c.settings.Redis))
		return
	}
	c.ok("redis", "answers")
	if err := shared.SelfTest(ctx, setup.SelfTests()...); err != nil {
		c.fail("redis scripts", setup.ExplainRedis(err, c.settings.Redis))
	} else {
		c.ok("redis scripts", "run as this user")
		if err := shared.Probe(ctx); err != nil {
			c.fail("redis keys", setup.ExplainRedis(err, c.settings.Redis))
		}
	}
	info, _ := setup.RedisInfo(ctx, client, c.settings.Redis)                   // the user may not be allowed to ask
	mode := cmp.Or(info["Server"]["redis_mode"], info["Server"]["server_mode"]) // in Redis' words, and in those of Valkey 8
	if _, isSingle := client.(*redis.Client); isSingle && mode == "cluster" {
		c.warn("redis cluster", "the server is a node of a cluster, which may give the keys to another node: name a second node as ?addr=host:port in NOTIFIER_REDIS_URL")
	}
	switch policy := setup.EvictionPolicy(info); policy {
	case "":
		c.warn("redis eviction", "this user may not ask for it (info); make sure that maxmemory-policy is "+setup.NoEviction)
	case setup.NoEviction:
		c.ok("redis eviction", "maxmemory-policy is "+setup.NoEviction)
	default:
		c.fail("redis eviction", fmt.Sprintf("maxmemory-policy is %s: a log that is evicted lets a whole limit through once more; set %s", policy, setup.NoEviction))
	}
	if info["Persistence"]["aof_enabled"] == "0" {
		c.warn("redis persistence", "there is no append-only file: a restart forgets what was admitted; set appendonly yes")
	}
}

// limits checks whether a worker would read the limits in force. It adds no finding without JetStream, and none if Redis does not answer.
func (c *check) limits(ctx context.Context, connection *stream.Connection, shared *store.Redis) {
	inForce, _, err := shared.Positions.InForce(ctx)
	if err != nil {
		return
	}
	options := setup.Overrides(c.settings, slog.New(slog.DiscardHandler))
	options.Provision = false
	js := setup.JetStream(connection)
	var s overrides.Snapshot
	bucket, err := overrides.Open(ctx, js, options)
	if err == nil {
		s, err = bucket.Load(ctx)
	}
	if stream.LacksJetStream(err) { // the check of the streams reports it
		return
	}
	const subject = "live limits"
	if differs, applyErr := overrides.Apply(ctx, js, options); applyErr == nil && len(differs.Changes) > 0 {
		c.warn("bucket of live limits", fmt.Sprintf("notifier provision would change %s: %s; a ttl deletes live limits and mutes, "+
			"and a short history forgets the older ones", options.Name, strings.Join(differs.Changes, "; ")))
	}
	used := setup.Position(s).Before(inForce) // by others
	switch {
	case errors.Is(err, overrides.ErrNoBucket) && c.settings.NATS.Provision && used:
		c.warn(subject, fmt.Sprintf("bucket %s is absent; the worker creates it, and its limits replace %s: another deployment with this Redis "+
			"needs a NOTIFIER_REDIS_PREFIX of its own", options.Name, inForce))
	case errors.Is(err, overrides.ErrNoBucket) && c.settings.NATS.Provision:
		c.ok(subject, fmt.Sprintf("bucket %s is absent, the worker creates it", options.Name))
	case err != nil && used:
		c.fail(subject, fmt.Sprintf("%v; others use %s, so a worker would take no events", err, inForce))
	case err != nil:
		c.warn(subject, fmt.Sprintf("%v; limits that are changed while workers run would not be known", err))
	case used:
		c.fail(subject, fmt.Sprintf("bucket %s holds %s, which is older than what is in force, %s: a worker takes no events; "+
			"after a restore, notifier limits adopt puts the bucket's state in force", options.Name, setup.Position(s), inForce))
	default:
		c.readable(js, options, s)
	}
}

// readable checks whether a worker that starts could read each live limit.
func (c *check) readable(js jetstream.JetStream, options overrides.Options, s overrides.Snapshot) {
	const subject = "live limits"
	live := setup.Live(js, c.settings, options)
	_, err := live.Ruleset(s.Generation, s.Revision, setup.LiveEntries(s))
	unreadable := live.Unreadable()
	if errors.Is(err, limits.ErrEarlier) {
		unreadable = err
	}
	if unreadable != nil {
		c.fail(subject, fmt.Sprintf("a worker that starts takes no events: %v", unreadable))
		return
	}
	if err != nil {
		c.warn(subject, fmt.Sprintf("they conflict, so workers keep the previous ones: %v", err))
		return
	}
	c.ok(subject, fmt.Sprintf("bucket %s holds %s", options.Name, setup.Position(s)))
}

// slack checks the sink. Without a client of Redis it does not know what the workers know.
func (c *check) slack(ctx context.Context, client redis.UniversalClient) {
	if c.settings.Sink == config.SinkConsole {
		c.ok("sink", "console")
		if c.post != "" {
			c.fail("post", "the settings have no Slack to post to")
		}
		return
	}
	o := setup.SinkOptions{Observe: func(context.Context, sink.Request) {}, Logger: slog.New(slog.DiscardHandler)}
	if client != nil {
		o.IDs = setup.ChannelIDs(client, c.settings.Redis)
	}
	destination, done, err := setup.Slack(c.settings, o)
	if err != nil {
		c.fail("slack", err.Error())
		return
	}
	defer done()
	failures := c.failures
	checked := destination.Check(ctx)
	if c.post != "" {
		checked = append(checked, destination.Try(ctx, c.post)...)
	}
	for _, found := range checked {
		c.found(found)
	}
	if c.failures == failures {
		c.ok("slack", "nothing found that would keep messages from being posted")
	}
}

type checkedLimits struct {
	tree *limits.Tree
	from string
}

// checkReport is what check prints as JSON.
type checkReport struct {
	OK         bool         `json:"ok"` // no finding is marked FAIL
	Findings   []finding    `json:"findings"`
	LimitsFrom string       `json:"limits_from"`
	Limits     []shownLevel `json:"limits"` // without their use
}

type finding struct {
	Mark    string `json:"mark"` // ok, warn or FAIL
	Subject string `json:"subject"`
	Detail  string `json:"detail,omitempty"`
}

// workers finds settings that differ between the running workers, and between them and the settings here. Limits that are not set here are
// not compared. If a worker answers, check prints the limits of the workers.
func (c *check) workers(ctx context.Context, connection *stream.Connection) {
	const subject = "settings of the workers"
	theirs, err := inspect.Workers(ctx, connection, c.settings)
	if err != nil {
		c.warn(subject, err.Error())
		return
	}
	if theirs.Failed != nil {
		c.warn(subject, theirs.Failed.Error())
	}
	if len(theirs.Reports) == 0 { // no worker runs yet
		c.shown.from += ": no worker answers"
		return
	}
	var reporting []status.Worker
	for _, report := range theirs.Reports {
		reporting = append(reporting, report.Worker)
	}
	for _, problem := range status.Problems(reporting, time.Now()) {
		subject := "worker "
		if len(problem.Workers) > 1 {
			subject = "workers "
		}
		c.warn(subject+problem.Who(), problem.What+": "+problem.Why)
	}
	mismatches := inspect.Mismatches(theirs.Reports, status.Worker{Settings: c.compared(), Name: "your side"})
	if differences := inspect.DescribeMismatches(mismatches); differences != "" {
		c.warn(subject, differences)
	} else {
		c.ok(subject, fmt.Sprintf("%s the settings here", screen.Numbered(len(theirs.Reports), "worker has", "workers have")))
	}
	plan, err := theirs.Plan(connection)
	if err != nil {
		c.warn("limits of the workers", err.Error())
		return
	}
	tree, err := limits.NewTree(plan)
	if err != nil {
		c.warn("limits of the workers", err.Error())
		return
	}
	c.shown = checkedLimits{tree, theirs.String()}
}

// compared returns the settings that a worker started here would share, without limits if none is set here: check prints those of the workers.
func (c *check) compared() map[string]string {
	shared := c.settings.Shared
	if !c.settings.Limits.Set {
		for _, variable := range []string{"GLOBAL_LIMIT", "CATEGORY_LIMIT", "LIMITS", "GUARANTEES"} {
			delete(shared, "NOTIFIER_"+variable)
		}
	}
	return shared
}

// limitTree finds limits that never deny anything, and prints all limits.
func (c *check) limitTree() error {
	for _, pointless := range c.shown.tree.Pointless() {
		c.warn("limit without effect", pointless.String())
	}
	if c.asJSON {
		levels := limitsView{rules: limits.Ruleset{Tree: c.shown.tree}}.levels(nil).Levels
		return screen.PrintJSON(c.out, checkReport{OK: c.failures == 0, Findings: c.findings, LimitsFrom: c.shown.from, Limits: levels})
	}
	text := strings.TrimSuffix(c.shown.tree.String(), "\n")
	_, err := fmt.Fprintf(c.out, "\nlimits: from %s\n  %s\n", c.shown.from, strings.ReplaceAll(text, "\n", "\n  "))
	return err
}

// power names the row of docs/delivery.md that shows what a power failure costs this deployment, or the settings that are not known. It adds
// no finding without JetStream.
func (c *check) power(ctx context.Context, connection *stream.Connection, client redis.UniversalClient) {
	var row, unknown []string
	note := func(setting, value, remedy string) {
		if value == "" {
			unknown = append(unknown, setting+" ("+remedy+")")
		} else {
			row = append(row, setting+" "+value)
		}
	}
	servers := "" // that keep the events
	events, err := setup.JetStream(connection).Stream(ctx, setup.Names(c.settings).Stream)
	if stream.LacksJetStream(err) { // the check of the streams reports it
		return
	}
	if err == nil {
		servers = fmt.Sprint(events.CachedInfo().Config.Replicas)
	}
	fsync := c.appendfsync(ctx, client)
	interval, _ := stream.SyncInterval(ctx, connection.Conn)
	note("servers of NATS", servers, "the stream cannot be read")
	note("sync_interval", interval, "the NATS user may not ask for it")
	note("appendfsync", fsync, "the Redis user may not ask for it")
	text := strings.Join(row, ", ")
	if len(unknown) > 0 {
		c.ok("power failures", fmt.Sprintf("%s; the table of docs/delivery.md#power-failures has what each setting loses",
			strings.TrimPrefix(text+"; unknown: "+strings.Join(unknown, ", "), "; ")))
		return
	}
	c.ok("power failures", fmt.Sprintf("%s: %s of docs/delivery.md#power-failures", text, powerRow(servers, interval, fsync)))
}

// powerRow names the row of docs/delivery.md#power-failures for these settings. If there is none, it names the next row that loses less.
func powerRow(servers, interval, fsync string) string {
	row, more := []string{"1", "always", "everysec"}, ""
	if servers >= "3" { // JetStream keeps at most five replicas
		row[0] = "3"
	}
	if every, err := time.ParseDuration(interval); err == nil {
		row[1] = "10s"
		if every > 10*time.Second {
			row[1] = "2m"
		}
		if every > 2*time.Minute {
			more = "more than "
		}
	}
	switch fsync {
	case "always":
		row[2] = fsync
	case "everysec":
	default:
		more = "more than "
	}
	return more + "row " + strings.Join(row, ", ")
}

// appendfsync is how often Redis syncs its append-only file, "none" without such a file, and "" if the user may not ask.
func (c *check) appendfsync(ctx context.Context, client redis.UniversalClient) string {
	node, err := setup.RedisOwner(ctx, client, c.settings.Redis)
	if err != nil {
		return ""
	}
	settings, err := node.ConfigGet(ctx, "append*").Result()
	switch {
	case err != nil:
		return ""
	case settings["appendonly"] == "no":
		return "none"
	}
	return settings["appendfsync"]
}
