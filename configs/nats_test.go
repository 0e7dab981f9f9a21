package configs_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nats.go/micro"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/deadletters"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/overrides"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/servertest"
)

// wait bounds what a test waits for, and is no expectation of how long it takes.
const wait = 30 * time.Second

// parseNATS reads the configuration as the server does.
func parseNATS(t *testing.T, file string) *server.Options {
	t.Helper()
	for _, user := range []string{"OPERATOR", "NOTIFIER", "LIMITS", "REPLAYER", "PRODUCER"} {
		t.Setenv("NATS_"+user+"_PASSWORD", strings.ToLower(user)+"-secret")
	}
	parsed, err := server.ProcessConfigFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

func loadNATSConfiguration(t *testing.T, file string) {
	parsed := parseNATS(t, file)
	parsed.HTTPPort = 0 // a fixed port, which may be taken
	running := servertest.StartNATS(t, func(o *server.Options) { *o = *parsed.Clone() })
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()

	if connection, err := nats.Connect(running.URL); err == nil {
		connection.Close()
		t.Error("a client without a user gets in")
	}

	settings := load(t, map[string]string{"NOTIFIER_SINK": config.SinkConsole})
	operator := signIn(t, running, "operator")
	streams := operator.jetStream(t)
	rooms := room.Under(settings.NATS.Subject)
	for _, stream := range []jetstream.StreamConfig{
		{Name: settings.NATS.Stream, Subjects: []string{settings.NATS.Subject, settings.NATS.Subject + ".>"}},
		{Name: settings.Room.Stream, Subjects: []string{rooms.All()}, AllowMsgSchedules: true, Retention: jetstream.WorkQueuePolicy},
		{Name: settings.DLQ.Stream, Subjects: []string{settings.DLQ.Subject + ".>"}},
	} {
		if _, err := streams.CreateStream(ctx, stream); err != nil {
			t.Fatal(err)
		}
	}
	consumer := jetstream.ConsumerConfig{Durable: settings.NATS.Consumer, AckPolicy: jetstream.AckExplicitPolicy}
	if _, err := streams.CreateConsumer(ctx, settings.NATS.Stream, consumer); err != nil {
		t.Fatal(err)
	}
	requireInboxes(t, running, settings)

	producer := signIn(t, running, "producer")
	for _, subject := range []string{settings.NATS.Subject, settings.NATS.Subject + ".payments.refunds"} {
		if _, err := producer.jetStream(t).Publish(ctx, subject, []byte("hello")); err != nil {
			t.Fatalf("publish on %s: %v", subject, err)
		}
	}

	worker := signIn(t, running, "notifier")
	work := worker.jetStream(t)
	for _, stream := range []string{settings.NATS.Stream, settings.Room.Stream, settings.DLQ.Stream} {
		if _, err := work.Stream(ctx, stream); err != nil {
			t.Errorf("look at the stream %s: %v", stream, err)
		}
	}
	shared, err := work.Consumer(ctx, settings.NATS.Stream, settings.NATS.Consumer)
	if err != nil {
		t.Fatal(err)
	}
	for _, settle := range []func(jetstream.Msg) error{
		func(m jetstream.Msg) error { return errors.Join(m.InProgress(), m.DoubleAck(ctx)) },
		func(m jetstream.Msg) error {
			_, err := work.Publish(ctx, settings.DLQ.Subject+".bad_json._", m.Data())
			return errors.Join(err, m.TermWithReason("bad_json"))
		},
	} {
		message, err := shared.Next(jetstream.FetchMaxWait(wait))
		if err != nil {
			t.Fatal(err)
		}
		if err := settle(message); err != nil {
			t.Errorf("settle an event: %v", err)
		}
	}
	worker.requireNoDenial(t)
	info, err := streams.Consumer(ctx, settings.NATS.Stream, settings.NATS.Consumer)
	if err != nil {
		t.Fatal(err)
	}
	if state := info.CachedInfo(); state.NumAckPending != 0 || state.NumPending != 0 {
		t.Errorf("after settling, %d events are unacknowledged and %d wait, want none", state.NumAckPending, state.NumPending)
	}

	requireCounting(t, running, worker, operator)
	requireLiveLimits(t, running, settings.Limits.Bucket, worker, operator)
	requireReplays(t, running, settings, worker)
	requireRoom(t, worker, settings)
	requireDenials(t, worker, []string{
		settings.NATS.Subject,
		settings.NATS.Subject + ".payments",
		settings.NATS.Subject + "-room",
		"$JS.API.STREAM.DELETE." + settings.NATS.Stream,
		"$JS.API.STREAM.PURGE." + settings.NATS.Stream,
		"$JS.API.STREAM.PURGE." + settings.Room.Stream,
		"$JS.API.STREAM.MSG.DELETE." + settings.Room.Stream,
		"$JS.API.STREAM.MSG.GET." + settings.DLQ.Stream,
		"$JS.API.CONSUMER.DELETE." + settings.NATS.Stream + "." + settings.NATS.Consumer,
		"$JS.API.CONSUMER.CREATE." + settings.NATS.Stream + ".another",
		"$JS.API.CONSUMER.CREATE." + settings.Room.Stream + ".another",
		"$KV." + settings.Limits.Bucket + ".global",
		"$JS.API.STREAM.PURGE.KV_" + settings.Limits.Bucket,
		"$JS.API.STREAM.CREATE.KV_" + settings.Limits.Bucket,
		"other",
	}, []string{settings.NATS.Subject + ".>", settings.NATS.Subject + "-room.>", settings.DLQ.Subject + ".>", "_INBOX.>", "_INBOX_operator.>", ">"})
	requireDenials(t, producer, []string{
		settings.DLQ.Subject + ".bad_json._",
		settings.NATS.Subject + "-room.part.payments",
		settings.NATS.Subject + "-room.replay.payments",
		"$JS.API.CONSUMER.MSG.NEXT." + settings.NATS.Stream + "." + settings.NATS.Consumer,
		"$JS.API.STREAM.INFO." + settings.NATS.Stream,
		"$JS.API.STREAM.MSG.GET." + settings.DLQ.Stream,
		"$JS.API.STREAM.PURGE." + settings.NATS.Stream,
		"$JS.ACK." + settings.NATS.Stream + "." + settings.NATS.Consumer + ".1",
		"_INBOX_notifier.forged",
		"$SRV.PING.notifier",
		"$KV." + settings.Limits.Bucket + ".global",
	}, []string{settings.NATS.Subject + ".>", "$KV." + settings.Limits.Bucket + ".>", "_INBOX.>", "_INBOX_notifier.>", "_INBOX_replayer.>", "_INBOX_operator.>", ">"})
}

// requireInboxes has a user ask for something, and every other one try to read the answer.
func requireInboxes(t *testing.T, running *servertest.NATS, settings config.Config) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	const body = "a body that is nobody else's business"
	users := []string{"operator", "notifier", "limits", "replayer", "producer"}
	heard := make(chan string, 100)
	for _, listener := range users {
		c := signIn(t, running, listener)
		for _, owner := range append(slices.Clone(users), "") {
			prefix := "_INBOX_" + owner
			if owner == "" {
				prefix = "_INBOX"
			}
			if owner == listener || owner == "" && listener == "operator" {
				continue
			}
			if _, err := c.Subscribe(prefix+".>", func(m *nats.Msg) { heard <- listener + " hears what " + owner + " is answered: " + string(m.Data) }); err != nil {
				t.Fatal(err)
			}
			c.requireDenial(t, "subscribe to "+prefix+".>")
		}
	}

	producer := signIn(t, running, "producer").jetStream(t)
	if _, err := producer.Publish(ctx, settings.NATS.Subject+".security", []byte(body)); err != nil {
		t.Fatal(err)
	}
	worker := signIn(t, running, "notifier").jetStream(t)
	events, err := worker.Consumer(ctx, settings.NATS.Stream, settings.NATS.Consumer)
	if err != nil {
		t.Fatal(err)
	}
	m, err := events.Next(jetstream.FetchMaxWait(wait))
	if err != nil || string(m.Data()) != body {
		t.Fatalf("the worker gets %v, %v", m, err)
	}
	stored, err := worker.Publish(ctx, settings.DLQ.Subject+".bad_json.security", m.Data())
	if err != nil {
		t.Fatal(err)
	}
	if err := m.DoubleAck(ctx); err != nil {
		t.Fatal(err)
	}
	for _, reader := range []string{"replayer", "operator"} {
		letters, err := signIn(t, running, reader).jetStream(t).Stream(ctx, settings.DLQ.Stream)
		if err != nil {
			t.Fatal(err)
		}
		letter, err := letters.GetMsg(ctx, stored.Sequence)
		if err != nil || string(letter.Data) != body {
			t.Errorf("the %s gets %v, %v", reader, letter, err)
		}
	}
	select {
	case what := <-heard:
		t.Error(what)
	case <-time.After(100 * time.Millisecond): // what is delivered to others is delivered at the same time
	}
}

// requireRoom has the worker store what waits, and take it from there.
func requireRoom(t *testing.T, worker *client, settings config.Config) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	work, rooms, token := worker.jetStream(t), room.Under(settings.NATS.Subject), room.Token("#payments")
	consumer, err := work.CreateConsumer(ctx, settings.Room.Stream, jetstream.ConsumerConfig{
		Durable: settings.NATS.Consumer + "-channel-" + token, AckPolicy: jetstream.AckExplicitPolicy, FilterSubject: rooms.ChannelFilter(token),
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := work.Publish(ctx, rooms.Channel(token, "payments"), []byte("waits")); err != nil {
		t.Fatal(err)
	}
	m, err := consumer.Next(jetstream.FetchMaxWait(wait))
	if err != nil {
		t.Fatal(err)
	}
	if err := m.DoubleAck(ctx); err != nil {
		t.Error(err)
	}
	if _, err := work.Consumer(ctx, settings.Room.Stream, settings.NATS.Consumer+"-channel-"+token); err != nil {
		t.Error(err)
	}
	stream, err := work.Stream(ctx, settings.Room.Stream)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.GetMsg(ctx, 1, jetstream.WithGetMsgSubject(rooms.All())); err != nil && !errors.Is(err, jetstream.ErrMsgNotFound) {
		t.Errorf("looking into the room: %v", err)
	}
	worker.requireNoDenial(t)
}

// requireLiveLimits has the operator create the bucket, and the user for limits change what the worker follows.
func requireLiveLimits(t *testing.T, running *servertest.NATS, bucket string, worker, operator *client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	o := overrides.Options{Name: bucket, Provision: true, Logger: slog.New(slog.DiscardHandler)}
	if _, err := overrides.Open(ctx, operator.jetStream(t), o); err != nil {
		t.Fatal(err)
	}
	o.Provision = false
	snapshots := make(chan overrides.Snapshot, 10)
	watcher := overrides.NewWatcher(worker.jetStream(t), o, func(s overrides.Snapshot) { snapshots <- s })
	watching, stop := context.WithCancel(ctx)
	var ended sync.WaitGroup
	ended.Go(func() { watcher.Run(watching) })
	defer ended.Wait()
	defer stop()

	limits := signIn(t, running, "limits")
	opened, err := overrides.Open(ctx, limits.jetStream(t), o)
	if err != nil {
		t.Fatal(err)
	}
	name := overrides.Name{Pattern: "payments.*"}
	first, err := opened.Set(ctx, name, "1/1m")
	if err != nil {
		t.Fatal(err)
	}
	last, err := opened.Unset(ctx, name)
	if err != nil {
		t.Fatal(err)
	}
	if changes, err := opened.History(ctx); err != nil || len(changes) != 2 {
		t.Errorf("the history is %v, %v", changes, err)
	}
	if changed, err := opened.Rollback(ctx, first); err != nil || len(changed) != 1 {
		t.Errorf("rolled back: %v, %v", changed, err)
	}
	for revision := uint64(0); revision <= last; {
		select {
		case s := <-snapshots:
			revision = s.Revision
		case <-ctx.Done():
			t.Fatalf("the worker does not see all changes: %v", watcher.Away())
		}
	}
	if err := watcher.Refresh(ctx); err != nil {
		t.Errorf("the worker asks for the newest limits: %v", err)
	}
	worker.requireNoDenial(t)
	limits.requireNoDenial(t)
	requireDenials(t, limits, []string{
		"notify.payments",
		"$JS.API.STREAM.DELETE.KV_" + bucket,
		"$JS.API.STREAM.PURGE.KV_" + bucket,
		"$JS.API.STREAM.INFO.NOTIFICATIONS",
		"$KV.other.global",
		"_INBOX_notifier.forged",
	}, []string{"notify.>", "_INBOX.>", "_INBOX_notifier.>", ">"})
}

// requireReplays has the user for dead letters look at what the worker stores, and replay and drop it.
func requireReplays(t *testing.T, running *servertest.NATS, settings config.Config, worker *client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	work := worker.jetStream(t)
	for range 3 {
		origin := room.Origin{Stream: settings.NATS.Stream, Sequence: 1, Stored: time.Now()}
		letter := &nats.Msg{Subject: settings.DLQ.Subject + ".slack_rejected.payments", Data: []byte("text"), Header: nats.Header{
			room.HeaderSubject: {settings.NATS.Subject + ".payments"}, room.HeaderID: {"id"}, room.HeaderOrigin: {origin.String()},
		}}
		if _, err := work.PublishMsg(ctx, letter); err != nil {
			t.Fatal(err)
		}
	}
	replayer := signIn(t, running, "replayer")
	store, err := deadletters.Open(ctx, replayer.Conn, deadletters.Options{
		Stream: settings.DLQ.Stream, Subject: settings.DLQ.Subject, Room: settings.Room.Stream, Decoder: event.Decoder{Prefix: settings.NATS.Subject},
	})
	if err != nil {
		t.Fatal(err)
	}
	letters, err := store.List(ctx, func(int64, int64) {})
	if err != nil {
		t.Fatal(err)
	}
	letters = letters[len(letters)-3:]
	// The mark of a replay that was interrupted has the next one look for its event.
	interrupted := fmt.Sprintf("%s.replaying.%d", settings.DLQ.Subject, letters[0].Number)
	stream, err := replayer.jetStream(t).Stream(ctx, settings.Room.Stream)
	if err != nil {
		t.Fatal(err)
	}
	mark, err := json.Marshal(map[string]any{"name": "another", "after": 0, "created": stream.CachedInfo().Created})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := replayer.jetStream(t).Publish(ctx, interrupted, mark); err != nil {
		t.Fatal(err)
	}
	for _, l := range letters[:2] {
		if outcome, err := store.Replay(ctx, l, true); outcome != deadletters.Replayed || err != nil {
			t.Errorf("replay a dead letter: %q, %v", outcome, err)
		}
	}
	if err := store.Drop(ctx, letters[2]); err != nil {
		t.Error(err)
	}
	if left, err := store.List(ctx, func(int64, int64) {}); err != nil || slices.ContainsFunc(left, func(l deadletters.Letter) bool { return l.Number >= letters[0].Number }) {
		t.Errorf("dead letters are left: %v, %v", left, err)
	}
	replayer.requireNoDenial(t)
	requireDenials(t, replayer, []string{
		settings.DLQ.Subject + ".slack_rejected.payments",
		settings.NATS.Subject,
		settings.NATS.Subject + ".payments",
		settings.NATS.Subject + "-room.part.payments",
		settings.NATS.Subject + "-room.due.slot.payments.1",
		settings.NATS.Subject + "-room.channel.1.payments",
		"$JS.API.STREAM.PURGE." + settings.DLQ.Stream,
		"$JS.API.STREAM.DELETE." + settings.DLQ.Stream,
		"$JS.API.STREAM.MSG.DELETE." + settings.NATS.Stream,
		"$JS.API.CONSUMER.MSG.NEXT." + settings.NATS.Stream + "." + settings.NATS.Consumer,
		"$JS.ACK." + settings.NATS.Stream + "." + settings.NATS.Consumer + ".1",
		"$KV." + settings.Limits.Bucket + ".global",
	}, []string{settings.NATS.Subject + ".>", settings.DLQ.Subject + ".>", "_INBOX.>", "_INBOX_notifier.>", "_INBOX_operator.>", ">"})
}

// requireCounting has two workers find each other, and the operator both of them.
func requireCounting(t *testing.T, running *servertest.NATS, worker, operator *client) {
	t.Helper()
	second := signIn(t, running, "notifier")
	var ids []string
	for _, instance := range []*client{worker, second} {
		service, err := micro.AddService(instance.Conn, micro.Config{Name: "notifier", Version: "1.0.0"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = service.Stop() })
		ids = append(ids, service.Info().ID)
		instance.requireNoDenial(t)
	}
	for _, asker := range []*client{worker, second, operator} {
		replies, err := asker.SubscribeSync(asker.NewRespInbox())
		if err != nil {
			t.Fatal(err)
		}
		if err := asker.PublishRequest("$SRV.PING.notifier", replies.Subject, nil); err != nil {
			t.Fatal(err)
		}
		for range ids {
			reply, err := replies.NextMsg(wait)
			if err != nil {
				t.Fatalf("answers to %s: %v", asker.user, err)
			}
			if !slices.ContainsFunc(ids, func(id string) bool { return strings.Contains(string(reply.Data), id) }) {
				t.Errorf("answer to %s = %s, want one of %v", asker.user, reply.Data, ids)
			}
		}
		asker.requireNoDenial(t)
	}
}

func requireDenials(t *testing.T, c *client, publish, subscribe []string) {
	t.Helper()
	for _, subject := range publish {
		if err := c.Publish(subject, nil); err != nil {
			t.Fatal(err)
		}
		c.requireDenial(t, "publish on "+subject)
	}
	for _, subject := range subscribe {
		subscription, err := c.SubscribeSync(subject)
		if err != nil {
			t.Fatal(err)
		}
		c.requireDenial(t, "subscribe to "+subject)
		_ = subscription.Unsubscribe()
	}
}

// client is one user's connection, with what the server denied it.
type client struct {
	*nats.Conn
	user    string
	denials chan error
}

// signIn connects a user with the inbox prefix that is its own.
func signIn(t *testing.T, running *servertest.NATS, user string) *client {
	t.Helper()
	c := &client{user: user, denials: make(chan error, 100)}
	connection, err := nats.Connect(running.URL, nats.UserInfo(user, user+"-secret"), nats.CustomInboxPrefix("_INBOX_"+user),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { c.denials <- err }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(connection.Close)
	c.Conn = connection
	return c
}

func (c *client) jetStream(t *testing.T) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(c.Conn)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

func (c *client) requireNoDenial(t *testing.T) {
	t.Helper()
	if err := c.FlushTimeout(wait); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-c.denials:
		t.Errorf("the user %s: %v", c.user, err)
	default:
	}
}

func (c *client) requireDenial(t *testing.T, what string) {
	t.Helper()
	if err := c.FlushTimeout(wait); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-c.denials:
		if !errors.Is(err, nats.ErrPermissionViolation) {
			t.Errorf("the user %s: %s: %v, want a denial", c.user, what, err)
		}
	case <-time.After(wait):
		t.Errorf("the user %s: %s: no denial", c.user, what)
	}
}

// The scaler of Kubernetes asks for an account of this configuration.
func TestScalerAsksForTheAccount(t *testing.T) {
	account := decodeYAML[scaledObject](t, "kubernetes/scaled-object.yaml").Spec.Triggers[0].Metadata.Account
	parsed := parseNATS(t, path.Join("nats", "notifier.conf"))
	if !slices.ContainsFunc(parsed.Accounts, func(a *server.Account) bool { return a.Name == account }) {
		t.Errorf("nats/notifier.conf has no account %q", account)
	}
}
