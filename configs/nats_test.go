package configs_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/fleet"
	"github.com/seed-4578ace9/notifier/internal/testing/hostile"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func startNATS(t *testing.T) *servertest.NATS {
	t.Helper()
	return servertest.StartSampleNATS(t, "nats/notifier.conf")
}

// signIn connects a user with its own inbox prefix.
func signIn(t *testing.T, running *servertest.NATS, user string) *nats.Conn {
	t.Helper()
	return servertest.Connect(t, running.URL, nats.UserInfo(user, "secret"), nats.CustomInboxPrefix("_INBOX_"+user),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})) // deniedLast reads LastError
}

// mayPublish and maySubscribe have the subjects of each user. The operator may publish anything. Nobody has the rights of "".
var (
	mayPublish = map[string]string{
		"producer": "notify notify.payments",
		"ingest":   "notify.payments",
		"limits": "$KV.notifier-limits.global $JS.API.STREAM.INFO.KV_notifier-limits " +
			"$JS.API.CONSUMER.CREATE.KV_notifier-limits.x.$KV.notifier-limits.> $JS.API.STREAM.INFO.NOTIFICATIONS_JOURNAL " +
			"$JS.API.CONSUMER.CREATE.NOTIFICATIONS_JOURNAL.x $JS.API.CONSUMER.CREATE.NOTIFICATIONS_JOURNAL.x.notify-journal.payments " +
			"$JS.API.CONSUMER.MSG.NEXT.NOTIFICATIONS_JOURNAL.x $SRV.STATUS.notifier " +
			"$JS.API.STREAM.INFO.NOTIFICATIONS $JS.API.STREAM.INFO.NOTIFICATIONS_ROOM $JS.API.STREAM.INFO.NOTIFICATIONS_DLQ " +
			"$JS.API.CONSUMER.INFO.NOTIFICATIONS.notifier $JS.API.CONSUMER.INFO.NOTIFICATIONS_ROOM.notifier-room " +
			"$JS.API.STREAM.MSG.GET.NOTIFICATIONS $JS.API.STREAM.MSG.GET.NOTIFICATIONS_ROOM $JS.API.STREAM.MSG.GET.NOTIFICATIONS_DLQ",
		"provisioner": "$JS.API.INFO " + perStream("$JS.API.STREAM.INFO.") + perStream("$JS.API.STREAM.CREATE.") + perStream("$JS.API.STREAM.UPDATE.") +
			"$JS.API.CONSUMER.INFO.NOTIFICATIONS.notifier $JS.API.CONSUMER.INFO.NOTIFICATIONS_ROOM.notifier-room " +
			"$JS.API.CONSUMER.CREATE.NOTIFICATIONS.notifier $JS.API.CONSUMER.CREATE.NOTIFICATIONS_ROOM.notifier-room " +
			"$JS.API.CONSUMER.DELETE.NOTIFICATIONS.notifier $JS.API.CONSUMER.DELETE.NOTIFICATIONS_ROOM.notifier-room",
		"replayer": "notify-room.replay.payments $JS.API.STREAM.INFO.NOTIFICATIONS_DLQ $JS.API.STREAM.MSG.GET.NOTIFICATIONS_DLQ " +
			"$JS.API.STREAM.MSG.DELETE.NOTIFICATIONS_DLQ " +
			"$JS.API.STREAM.INFO.NOTIFICATIONS_ROOM $JS.API.STREAM.MSG.GET.NOTIFICATIONS_ROOM " +
			"notify-room.slot.payments.x notify-room.pair.payments.x notify-room.redis.payments.x notify-room.body.payments.x",
		"notifier": "notify-room.part.payments notify-room.replay.payments notify-room.slot.payments.x notify-room.pair.payments.x " +
			"notify-room.redis.payments.x notify-room.body.payments.x notify-dlq.bad_json._ $SRV.PING.notifier $SRV.STATUS.notifier " +
			"$JS.API.CONSUMER.INFO.NOTIFICATIONS.notifier $JS.API.CONSUMER.INFO.NOTIFICATIONS_ROOM.notifier-room " +
			"$JS.API.STREAM.INFO.NOTIFICATIONS $JS.API.STREAM.INFO.NOTIFICATIONS_ROOM $JS.API.STREAM.INFO.NOTIFICATIONS_DLQ " +
			"$KV.notifier-limits.global $JS.API.STREAM.INFO.KV_notifier-limits " +
			"$JS.API.CONSUMER.CREATE.KV_notifier-limits.x.$KV.notifier-limits.> " +
			"$JS.API.STREAM.MSG.GET.NOTIFICATIONS $JS.API.STREAM.MSG.GET.NOTIFICATIONS_ROOM $JS.API.STREAM.PURGE.NOTIFICATIONS_DLQ " +
			"$JS.API.STREAM.MSG.DELETE.NOTIFICATIONS $JS.API.STREAM.MSG.DELETE.NOTIFICATIONS_ROOM $JS.API.STREAM.MSG.DELETE.NOTIFICATIONS_DLQ " +
			"$JS.API.STREAM.MSG.DELETE.NOTIFICATIONS_JOURNAL $JS.API.INFO $SYS.REQ.USER.INFO $SYS.REQ.ACCOUNT.PING.CONNZ " +
			"notify-journal.payments $JS.API.STREAM.INFO.NOTIFICATIONS_JOURNAL $JS.API.STREAM.MSG.GET.NOTIFICATIONS_DLQ " +
			"$JS.API.CONSUMER.CREATE.NOTIFICATIONS_JOURNAL.x $JS.API.CONSUMER.CREATE.NOTIFICATIONS_JOURNAL.x.notify-journal.payments " +
			"$JS.API.CONSUMER.MSG.NEXT.NOTIFICATIONS_JOURNAL.x " +
			"$JS.API.CONSUMER.MSG.NEXT.NOTIFICATIONS.notifier $JS.ACK.NOTIFICATIONS.notifier.1",
		"": "notify-room $SYS.REQ.SERVER.PING $KV.other.global _INBOX_notifier.forged _INBOX_operator.forged other " +
			"$JS.API.STREAM.PURGE.NOTIFICATIONS $JS.API.STREAM.PURGE.NOTIFICATIONS_ROOM $JS.API.STREAM.PURGE.KV_notifier-limits " +
			"$JS.API.STREAM.DELETE.NOTIFICATIONS $JS.API.STREAM.DELETE.NOTIFICATIONS_DLQ $JS.API.STREAM.DELETE.KV_notifier-limits " +
			"$JS.API.STREAM.DELETE.NOTIFICATIONS_JOURNAL $JS.API.STREAM.PURGE.NOTIFICATIONS_JOURNAL " +
			"$JS.API.STREAM.CREATE.OTHER $JS.API.CONSUMER.CREATE.NOTIFICATIONS.another " +
			"$JS.API.CONSUMER.CREATE.NOTIFICATIONS_ROOM.another $JS.API.CONSUMER.DELETE.NOTIFICATIONS_DLQ.another",
	}
	maySubscribe = map[string]string{
		"operator": "> notify.> notify-room.> notify-dlq.> $KV.notifier-limits.> $SRV.> _INBOX.> _INBOX_operator.> _INBOX_ingest.> _INBOX_producer.>",
		"notifier": "_INBOX_notifier.> $SRV.>", "limits": "_INBOX_limits.>", "replayer": "_INBOX_replayer.>", "ingest": "_INBOX_ingest.>", "producer": "_INBOX_producer.>", "provisioner": "_INBOX_provisioner.>",
	}
)

// perStream returns a request for each stream and for the bucket's.
func perStream(request string) (all string) {
	for _, stream := range []string{"NOTIFICATIONS", "NOTIFICATIONS_ROOM", "NOTIFICATIONS_DLQ", "NOTIFICATIONS_JOURNAL", "KV_notifier-limits"} {
		all += request + stream + " "
	}
	return all
}

// deniedLast reports whether the last error is this denial. The server sends the denial before it answers the flush.
func deniedLast(t *testing.T, c *nats.Conn, what string) bool {
	t.Helper()
	testkit.NoError(t, c.FlushTimeout(testkit.Patience))
	return c.LastError() != nil && strings.Contains(c.LastError().Error(), what)
}

// Each user has the rights of the tables and no others. There are no streams, so an allowed request changes nothing.
func TestNATSRights(t *testing.T) {
	names := "NOTIFICATIONS notify notifier NOTIFICATIONS_ROOM NOTIFICATIONS_DLQ notify-dlq notifier-limits NOTIFICATIONS_JOURNAL"
	variables := "NATS_STREAM NATS_SUBJECT NATS_CONSUMER ROOM_STREAM DLQ_STREAM DLQ_SUBJECT LIMITS_BUCKET JOURNAL_STREAM"
	for i, variable := range strings.Fields(variables) {
		if !slices.ContainsFunc(config.Table(), func(s config.Setting) bool {
			return s.Variable == "NOTIFIER_"+variable && s.Default == strings.Fields(names)[i]
		}) {
			t.Errorf("the sample is for the names %s, and NOTIFIER_%s has another default", names, variable)
		}
	}
	running := startNATS(t)
	if connection, err := nats.Connect(running.URL); err == nil {
		connection.Close()
		t.Error("got a connection without a user, want none")
	}
	for _, user := range servertest.SampleUsers {
		c := signIn(t, running, user)
		for _, subject := range subjects(mayPublish) {
			testkit.NoError(t, c.Publish(subject, nil))
			allowed := user == "operator" || slices.Contains(strings.Fields(mayPublish[user]), subject)
			testkit.Equal(t, deniedLast(t, c, fmt.Sprintf("Publish to %q", subject)), !allowed, "%s is denied to publish on %s", user, subject)
		}
		for _, subject := range subjects(maySubscribe) {
			subscription := testkit.Must(c.SubscribeSync(subject))(t)
			allowed := slices.Contains(strings.Fields(maySubscribe[user]), subject)
			testkit.Equal(t, deniedLast(t, c, fmt.Sprintf("Subscription to %q", subject)), !allowed, "%s is denied to subscribe to %s", user, subject)
			_ = subscription.Unsubscribe()
		}
	}
}

// subjects returns the subjects of all users.
func subjects(rights map[string]string) []string {
	return strings.Fields(strings.Join(slices.Collect(maps.Values(rights)), " "))
}

// Workers and the operator count the workers. The user limits reads their reports, and producers do not. The operator receives no
// answer to another user.
func TestNATSCounting(t *testing.T) {
	running := startNATS(t)
	operator := signIn(t, running, "operator")
	everything := testkit.Must(operator.SubscribeSync(">"))(t)
	workers := []*nats.Conn{signIn(t, running, "notifier"), signIn(t, running, "notifier")}
	report := func(instance string, _ int64) ([]byte, error) { return json.Marshal(instance) }
	for _, worker := range workers {
		instance := testkit.Must(fleet.Join(worker, fleet.Options{Deployment: "notifier", Version: "1.0.0", Report: report, Logger: slog.New(slog.DiscardHandler)}))(t)
		t.Cleanup(instance.Leave)
		testkit.NoError(t, worker.FlushTimeout(testkit.Patience))
	}
	for _, asker := range append(workers, operator) {
		replies := testkit.Must(asker.SubscribeSync(asker.NewRespInbox()))(t)
		testkit.NoError(t, asker.PublishRequest("$SRV.PING.notifier", replies.Subject, nil))
		for range workers {
			testkit.Must(replies.NextMsg(testkit.Patience))(t)
		}
		testkit.NoError(t, asker.LastError())
	}
	for asker, want := range map[*nats.Conn]int{workers[0]: 2, operator: 2, signIn(t, running, "limits"): 2, signIn(t, running, "producer"): 0} {
		reports := testkit.Must(fleet.Ask(t.Context(), asker, "notifier"))(t)
		testkit.Equal(t, len(reports), want, "reports")
	}
	for heard := 0; ; heard++ {
		m, err := everything.NextMsg(100 * time.Millisecond) // messages to others would have arrived
		if err != nil && heard > 0 {
			break
		}
		if err != nil || strings.HasPrefix(m.Subject, "_INBOX_") && !strings.HasPrefix(m.Subject, "_INBOX_operator.") {
			t.Fatalf("the operator receives %v, %v, want no inbox of another user", m, err)
		}
	}
}

// streams are those of a deployment with the names of the sample, and what an event is stored on in each.
var streams = map[string]struct{ subjects, sample string }{
	"NOTIFICATIONS":         {"notify notify.>", "notify.fence"},
	"NOTIFICATIONS_ROOM":    {"notify-room.>", "notify-room.part.fence"},
	"NOTIFICATIONS_DLQ":     {"notify-dlq.>", "notify-dlq.bad_json.fence"},
	"NOTIFICATIONS_JOURNAL": {"notify-journal.>", "notify-journal.fence"},
	"KV_notifier-limits":    {"$KV.notifier-limits.>", "$KV.notifier-limits.fence"},
}

// TestNATSForgedReplies has a producer publish its events with reply subjects of others. The server publishes nothing there: every stream
// has what the operator and the producer have stored in it, and the operator hears no message on these subjects.
func TestNATSForgedReplies(t *testing.T) {
	running := startNATS(t)
	operator := signIn(t, running, "operator")
	js := testkit.Must(jetstream.New(operator))(t)
	for name, stream := range streams {
		testkit.Must(js.CreateStream(t.Context(), jetstream.StreamConfig{
			Name: name, Subjects: strings.Fields(stream.subjects), AllowDirect: name == "KV_notifier-limits", AllowRollup: name == "NOTIFICATIONS_ROOM",
		}))(t)
		for range 3 {
			testkit.Must(js.Publish(t.Context(), stream.sample, []byte("3/1m")))(t)
		}
	}
	consumer := testkit.Must(js.CreateConsumer(t.Context(), "NOTIFICATIONS", jetstream.ConsumerConfig{Durable: "notifier"}))(t)
	pending := testkit.Must(consumer.Next(jetstream.FetchMaxWait(testkit.Patience)))(t)
	heard := testkit.Must(operator.SubscribeSync(">"))(t)

	producer := testkit.Must(jetstream.New(signIn(t, running, "producer")))(t)
	attack := &hostile.Producer{JetStream: producer, Subject: "notify.payments.alerts", Victim: "notify.security.alerts"}
	forged := hostile.Replies(attack.Victim)
	testkit.NoError(t, attack.ForgeReplies(t.Context(), 3*len(forged)))
	testkit.NoError(t, producer.Conn().PublishMsg(&nats.Msg{Subject: attack.Subject, Reply: pending.Reply()}))
	own := testkit.Must(producer.Publish(t.Context(), attack.Subject, nil))(t)
	// The server itself refuses the reply subjects of acknowledgements to consumers. It stores the other events.
	accepted := len(slices.DeleteFunc(slices.Clone(forged), func(subject string) bool { return strings.HasPrefix(subject, "$JS.ACK.") }))
	testkit.Equal(t, own.Sequence, uint64(3+3*accepted+1), "sequence of the last event of the producer")
	for name, stream := range streams {
		stored := testkit.Must(js.Publish(t.Context(), stream.sample, []byte("end")))(t) // behind what was published before
		want := uint64(4)
		if name == "NOTIFICATIONS" {
			want = own.Sequence + 1
		}
		testkit.Equal(t, stored.Sequence, want, "next sequence of %s", name)
		state := testkit.Must(js.Stream(t.Context(), name))(t).CachedInfo().State
		testkit.Equal(t, state.Msgs, want, "messages of %s", name)
	}
	testkit.Equal(t, testkit.Must(consumer.Info(t.Context()))(t).NumAckPending, 1, "messages that are not acknowledged")
	for {
		m := testkit.Must(heard.NextMsg(testkit.Patience))(t)
		if string(m.Data) == "end" && m.Subject == "notify.fence" {
			break
		}
		if slices.Contains(forged, m.Subject) || m.Subject == pending.Reply() {
			t.Errorf("the operator hears %s on %s, which the producer has named as its reply subject", m.Data, m.Subject)
		}
	}
}

// TestNATSAcknowledgements has the users of the producers' account publish. Acknowledgements come through any inbox below their prefixes, and
// JetStream knows a repeated Nats-Msg-Id.
func TestNATSAcknowledgements(t *testing.T) {
	running := startNATS(t)
	js := testkit.Must(jetstream.New(signIn(t, running, "operator")))(t)
	testkit.Must(js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "NOTIFICATIONS", Subjects: []string{"notify", "notify.>"}}))(t)
	sequence := uint64(0)
	for _, user := range []string{"producer", "ingest"} {
		publisher := testkit.Must(jetstream.New(signIn(t, running, user)))(t)
		for _, isDuplicate := range []bool{false, true} {
			if !isDuplicate {
				sequence++
			}
			ack := testkit.Must(publisher.Publish(t.Context(), "notify.payments", nil, jetstream.WithMsgID(user)))(t)
			testkit.Equal(t, *ack, jetstream.PubAck{Stream: "NOTIFICATIONS", Sequence: sequence, Duplicate: isDuplicate}, "acknowledgement of %s", user)
		}
		for range 100 {
			testkit.Must(publisher.PublishAsync("notify.payments", nil))(t)
		}
		select {
		case <-publisher.PublishAsyncComplete():
			sequence += 100
		case <-time.After(testkit.Patience):
			t.Fatalf("%s: %d of 100 acknowledgements are missing", user, publisher.PublishAsyncPending())
		}
	}
}

// TestNATSAccountsInACluster has producers on each server of a cluster, of which one leads the stream. Acknowledgements come from there to all of them, and
// forged replies reach nothing.
func TestNATSAccountsInACluster(t *testing.T) {
	t.Parallel()
	cluster := servertest.StartNATSCluster(t, 3, `accounts {
		NOTIFIER { jetstream: enabled, exports: [{ service: "notify.>", accounts: [PRODUCERS] }], users: [{ user: operator, password: secret }] }
		PRODUCERS { imports: [{ service: { account: NOTIFIER, subject: "notify.>" } }], users: [{ user: producer, password: secret }] } }
		no_auth_user: operator`)
	js := servertest.JetStream(t, cluster.URL)
	testkit.Must(js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "NOTIFICATIONS", Subjects: []string{"notify.>"}, Replicas: 3}))(t)
	testkit.Must(js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "OTHERS", Subjects: []string{"other.>"}, Replicas: 3}))(t)
	const events = 100
	stored := uint64(0)
	for _, node := range cluster.Nodes {
		producer := testkit.Must(jetstream.New(signIn(t, node, "producer")))(t)
		testkit.NoError(t, producer.Conn().PublishMsg(&nats.Msg{Subject: "notify.payments", Reply: "other.forged"}))
		for range events {
			testkit.Must(producer.PublishAsync("notify.payments", nil))(t)
		}
		select {
		case <-producer.PublishAsyncComplete():
		case <-time.After(testkit.Patience):
			t.Fatalf("%s: %d of %d acknowledgements are missing", node.URL, producer.PublishAsyncPending(), events)
		}
		stored += events + 1
	}
	testkit.Equal(t, testkit.Must(js.Stream(t.Context(), "NOTIFICATIONS"))(t).CachedInfo().State.Msgs, stored, "stored events")
	testkit.Equal(t, testkit.Must(js.Publish(t.Context(), "other.own", nil))(t).Sequence, 1, "sequence of the first message of the operator")
}

// TestComposeNATS signs in to the NATS of compose.yaml. A client without a user is a producer. It publishes events, reaches nothing else, and
// forges nothing.
func TestComposeNATS(t *testing.T) {
	running := servertest.StartSampleNATS(t, "compose/nats.conf")
	worker := servertest.Connect(t, running.URL, nats.UserInfo("worker", "compose"))
	js := testkit.Must(jetstream.New(worker))(t)
	testkit.Must(js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "NOTIFICATIONS", Subjects: []string{"notify", "notify.>"}}))(t)
	testkit.Must(js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "OTHERS", Subjects: []string{"other.>"}}))(t)
	producer := testkit.Must(jetstream.New(servertest.Connect(t, running.URL)))(t)
	testkit.NoError(t, producer.Conn().PublishMsg(&nats.Msg{Subject: "notify.a", Reply: "other.forged"}))
	testkit.NoError(t, producer.Conn().Publish("other.x", nil))
	for i, subject := range []string{"notify", "notify.payments"} {
		testkit.Equal(t, testkit.Must(producer.Publish(t.Context(), subject, nil))(t).Sequence, uint64(i+2), "sequence of the event on %s", subject)
	}
	testkit.Equal(t, testkit.Must(js.Publish(t.Context(), "other.own", nil))(t).Sequence, 1, "sequence of the first message of the worker")
	_, err := producer.AccountInfo(t.Context())
	testkit.Fails(t, "JetStream of the producers' account", err, nil)
}
