package configs_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/deadletters"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/fleet"
	"github.com/seed-4578ace9/notifier/internal/overrides"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/servertest"
	"github.com/seed-4578ace9/notifier/internal/testkit"
)

// wait bounds what a test waits for, and is no expectation of how long it takes.
const wait = 30 * time.Second

var natsUsers = []string{"operator", "notifier", "limits", "replayer", "producer"}

// startNATS starts a server with the sample, read as the server does.
func startNATS(t *testing.T) *servertest.NATS {
	t.Helper()
	for _, user := range natsUsers {
		t.Setenv("NATS_"+strings.ToUpper(user)+"_PASSWORD", user+"-secret")
	}
	sample := testkit.Must(server.ProcessConfigFile("nats/notifier.conf"))(t)
	// The scaler of Kubernetes asks for an account of this server.
	scaler := read(t, "kubernetes/scaled-object.yaml")
	if !slices.ContainsFunc(sample.Accounts, func(a *server.Account) bool { return strings.Contains(scaler, "account: "+a.Name+"\n") }) {
		t.Error("kubernetes/scaled-object.yaml names no account")
	}
	sample.HTTPPort = 0 // a fixed port, which may be taken
	return servertest.StartNATS(t, func(o *server.Options) { *o = *sample.Clone() })
}

// client is one user's connection.
type client struct {
	*nats.Conn
	js   jetstream.JetStream
	user string
}

// signIn connects a user with the inbox prefix that is its own.
func signIn(t *testing.T, running *servertest.NATS, user string) *client {
	t.Helper()
	connection := servertest.Connect(t, running.URL, nats.UserInfo(user, user+"-secret"), nats.CustomInboxPrefix("_INBOX_"+user),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})) // LastError has it
	js := testkit.Must(jetstream.New(connection))(t)
	return &client{connection, js, user}
}

// denial is what the server denied the user last; the server answers it before it answers the flush.
func (c *client) denial(t *testing.T) string {
	t.Helper()
	testkit.NoError(t, c.FlushTimeout(wait))
	return fmt.Sprint(c.LastError())
}

func (c *client) requireNoDenial(t *testing.T) {
	t.Helper()
	if denial := c.denial(t); c.LastError() != nil {
		t.Errorf("the user %s: %s", c.user, denial)
	}
}

// Who may publish and subscribe to what. The operator may publish anything.
var (
	mayPublish = map[string][]string{
		"notify":                      {"producer"},
		"notify.payments":             {"producer"},
		"notify-room":                 nil,
		"notify-room.part.payments":   {"notifier"},
		"notify-room.replay.payments": {"notifier", "replayer"},
		"notify-dlq.bad_json._":       {"notifier"},
		"$KV.notifier-limits.global":  {"limits"},
		"$KV.other.global":            nil,
		"$SRV.PING.notifier":          {"notifier"},
		"_INBOX_notifier.forged":      nil,
		"_INBOX_operator.forged":      nil,
		"other":                       nil,

		"$JS.API.STREAM.INFO.NOTIFICATIONS":                                  {"notifier"},
		"$JS.API.STREAM.INFO.NOTIFICATIONS_ROOM":                             {"notifier"},
		"$JS.API.STREAM.INFO.NOTIFICATIONS_DLQ":                              {"notifier", "replayer"},
		"$JS.API.STREAM.INFO.KV_notifier-limits":                             {"notifier", "limits"},
		"$JS.API.STREAM.MSG.GET.NOTIFICATIONS":                               {"notifier"},
		"$JS.API.STREAM.MSG.GET.NOTIFICATIONS_ROOM":                          {"notifier"},
		"$JS.API.STREAM.MSG.GET.NOTIFICATIONS_DLQ":                           {"replayer"},
		"$JS.API.STREAM.MSG.DELETE.NOTIFICATIONS":                            nil,
		"$JS.API.STREAM.MSG.DELETE.NOTIFICATIONS_ROOM":                       nil,
		"$JS.API.STREAM.MSG.DELETE.NOTIFICATIONS_DLQ":                        {"replayer"},
		"$JS.API.STREAM.PURGE.NOTIFICATIONS":                                 nil,
		"$JS.API.STREAM.PURGE.NOTIFICATIONS_ROOM":                            nil,
		"$JS.API.STREAM.PURGE.NOTIFICATIONS_DLQ":                             {"notifier"},
		"$JS.API.STREAM.PURGE.KV_notifier-limits":                            nil,
		"$JS.API.STREAM.DELETE.NOTIFICATIONS":                                nil,
		"$JS.API.STREAM.DELETE.NOTIFICATIONS_DLQ":                            nil,
		"$JS.API.STREAM.DELETE.KV_notifier-limits":                           nil,
		"$JS.API.STREAM.CREATE.KV_notifier-limits":                           nil,
		"$JS.API.CONSUMER.CREATE.NOTIFICATIONS.another":                      nil,
		"$JS.API.CONSUMER.CREATE.NOTIFICATIONS_ROOM.another":                 nil,
		"$JS.API.CONSUMER.DELETE.NOTIFICATIONS.notifier":                     nil,
		"$JS.API.CONSUMER.MSG.NEXT.NOTIFICATIONS.notifier":                   {"notifier"},
		"$JS.API.CONSUMER.CREATE.KV_notifier-limits.x.$KV.notifier-limits.>": {"notifier", "limits"},
		"$JS.ACK.NOTIFICATIONS.notifier.1":                                   {"notifier"},
	}
	maySubscribe = map[string][]string{
		">":                     {"operator"},
		"notify.>":              {"operator"},
		"notify-room.>":         {"operator"},
		"notify-dlq.>":          {"operator"},
		"$KV.notifier-limits.>": {"operator"},
		"$SRV.>":                {"operator", "notifier"},
		"_INBOX.>":              {"operator"},
		"_INBOX_operator.>":     {"operator"},
		"_INBOX_notifier.>":     {"notifier"},
		"_INBOX_limits.>":       {"limits"},
		"_INBOX_replayer.>":     {"replayer"},
		"_INBOX_producer.>":     {"producer"},
	}
)

// Each user has the rights of the tables, and no others. There are no streams, so that what is allowed changes nothing.
func TestNATSRights(t *testing.T) {
	settings := load(t, map[string]string{"NOTIFIER_SINK": config.SinkConsole})
	got := []string{settings.NATS.Stream, settings.NATS.Subject, settings.NATS.Consumer, settings.Room.Stream, settings.DLQ.Stream, settings.DLQ.Subject, settings.Limits.Bucket}
	if want := []string{"NOTIFICATIONS", "notify", "notifier", "NOTIFICATIONS_ROOM", "NOTIFICATIONS_DLQ", "notify-dlq", "notifier-limits"}; !slices.Equal(got, want) {
		t.Errorf("the default names are %q, and the sample is for %q", got, want)
	}
	running := startNATS(t)
	if connection, err := nats.Connect(running.URL); err == nil {
		connection.Close()
		t.Error("a client without a user gets in")
	}
	for _, user := range natsUsers {
		c := signIn(t, running, user)
		for subject, users := range mayPublish {
			testkit.NoError(t, c.Publish(subject, nil))
			denied := strings.Contains(c.denial(t), fmt.Sprintf("Publish to %q", subject))
			if allowed := user == "operator" || slices.Contains(users, user); allowed == denied {
				t.Errorf("%s may publish on %s: %t, want %t", user, subject, !denied, allowed)
			}
		}
		for subject, users := range maySubscribe {
			subscription := testkit.Must(c.SubscribeSync(subject))(t)
			denied := strings.Contains(c.denial(t), fmt.Sprintf("Subscription to %q", subject))
			if allowed := slices.Contains(users, user); allowed == denied {
				t.Errorf("%s may subscribe to %s: %t, want %t", user, subject, !denied, allowed)
			}
			_ = subscription.Unsubscribe()
		}
	}
}

// Each user does its work with its rights. The tests of consume have a worker do its own.
func TestNATSRightsAreEnough(t *testing.T) {
	running := startNATS(t)
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	clients := make(map[string]*client)
	for _, user := range natsUsers {
		clients[user] = signIn(t, running, user)
	}
	for _, stream := range []jetstream.StreamConfig{
		{Name: "NOTIFICATIONS", Subjects: []string{"notify", "notify.>"}},
		{Name: "NOTIFICATIONS_ROOM", Subjects: []string{"notify-room.>"}, AllowMsgSchedules: true, Retention: jetstream.WorkQueuePolicy},
		{Name: "NOTIFICATIONS_DLQ", Subjects: []string{"notify-dlq.>"}},
	} {
		testkit.Must(clients["operator"].js.CreateStream(ctx, stream))(t)
	}
	// The operator may listen to everything, and hears no answer to others.
	everything := testkit.Must(clients["operator"].SubscribeSync(">"))(t)
	for _, subject := range []string{"notify", "notify.payments.refunds"} {
		if _, err := clients["producer"].js.Publish(ctx, subject, []byte("hello")); err != nil {
			t.Fatalf("publish on %s: %v", subject, err)
		}
	}
	requireCounting(t, running, clients)
	requireLiveLimits(ctx, t, clients)
	requireReplays(ctx, t, clients)
	for _, c := range clients {
		c.requireNoDenial(t)
	}
	for heard := 0; ; heard++ {
		m, err := everything.NextMsg(100 * time.Millisecond) // all that was sent to others is here by then
		if err != nil && heard > 0 {
			break
		}
		if err != nil || strings.HasPrefix(m.Subject, "_INBOX_") && !strings.HasPrefix(m.Subject, "_INBOX_operator.") {
			t.Fatalf("the operator hears %v, %v", m, err)
		}
	}
}

// requireCounting has two workers find each other, and the operator both of them.
func requireCounting(t *testing.T, running *servertest.NATS, clients map[string]*client) {
	t.Helper()
	logger := slog.New(slog.DiscardHandler)
	workers := []*client{clients["notifier"], signIn(t, running, "notifier")}
	for _, worker := range workers {
		instance := testkit.Must(fleet.Join(worker.Conn, "notifier", "1.0.0", logger))(t)
		t.Cleanup(instance.Leave)
		worker.requireNoDenial(t)
	}
	for _, asker := range append(workers, clients["operator"]) {
		replies := testkit.Must(asker.SubscribeSync(asker.NewRespInbox()))(t)
		testkit.NoError(t, asker.PublishRequest("$SRV.PING.notifier", replies.Subject, nil))
		for range workers {
			if _, err := replies.NextMsg(wait); err != nil {
				t.Errorf("answers to %s: %v", asker.user, err)
			}
		}
		asker.requireNoDenial(t)
	}
}

// requireLiveLimits has the operator create the bucket, and the user for limits change what the worker follows.
func requireLiveLimits(ctx context.Context, t *testing.T, clients map[string]*client) {
	t.Helper()
	o := overrides.Options{Name: "notifier-limits", Provision: true, Logger: slog.New(slog.DiscardHandler)}
	testkit.Must(overrides.Open(ctx, clients["operator"].js, o))(t)
	o.Provision = false
	snapshots := make(chan overrides.Snapshot, 10)
	watcher := overrides.NewWatcher(clients["notifier"].js, o, func(s overrides.Snapshot) { snapshots <- s })
	watching, stop := context.WithCancel(ctx)
	var ended sync.WaitGroup
	ended.Go(func() { watcher.Run(watching) })
	defer ended.Wait()
	defer stop()

	opened := testkit.Must(overrides.Open(ctx, clients["limits"].js, o))(t)
	name := overrides.Name{Pattern: "payments.*"}
	first := testkit.Must(opened.Set(ctx, name, "1/1m"))(t)
	last := testkit.Must(opened.Unset(ctx, name))(t)
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
			t.Fatal("the worker does not see all changes")
		}
	}
	if err := watcher.Refresh(ctx); err != nil {
		t.Errorf("the worker asks for the newest limits: %v", err)
	}
}

// requireReplays has the user for dead letters look at what the worker stores, and replay and drop it.
func requireReplays(ctx context.Context, t *testing.T, clients map[string]*client) {
	t.Helper()
	worker, replayer := clients["notifier"], clients["replayer"]
	for range 3 {
		origin := room.Origin{Stream: "NOTIFICATIONS", Sequence: 1, Stored: time.Now()}
		letter := &nats.Msg{Subject: "notify-dlq.slack_rejected.payments", Data: []byte("text"), Header: nats.Header{
			room.HeaderSubject: {"notify.payments"}, room.HeaderID: {"id"}, room.HeaderOrigin: {origin.String()},
		}}
		testkit.Must(worker.js.PublishMsg(ctx, letter))(t)
	}
	store := testkit.Must(deadletters.Open(ctx, replayer.Conn, deadletters.Options{
		Stream: "NOTIFICATIONS_DLQ", Subject: "notify-dlq", Room: "NOTIFICATIONS_ROOM", Decoder: event.Decoder{Prefix: "notify"},
	}))(t)
	letters, err := store.List(ctx, func(int64, int64) {})
	if err != nil || len(letters) != 3 {
		t.Fatalf("letters = %v, %v, want 3", letters, err)
	}
	for _, l := range letters[:2] {
		if outcome, err := store.Replay(ctx, l); outcome != deadletters.Replayed || err != nil {
			t.Errorf("replay a dead letter: %q, %v", outcome, err)
		}
	}
	if err := store.Drop(ctx, letters[2]); err != nil {
		t.Error(err)
	}
	if left, err := store.List(ctx, func(int64, int64) {}); err != nil || len(left) > 0 {
		t.Errorf("dead letters are left: %v, %v", left, err)
	}
}
