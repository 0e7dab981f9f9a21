package deadletters

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/trusted"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds each wait of a test.
const patience = 30 * time.Second

// unwatched ignores the progress.
func unwatched(int64, int64) {}

var options = Options{Stream: "LETTERS", Subject: "dead", Room: "ROOM", Decoder: event.Decoder{Prefix: "notify", MaxBytes: 1000}}

// fixture is a NATS server with the room, the dead letters and the consumer of a worker.
type fixture struct {
	*testing.T
	server *servertest.NATS
	conn   *nats.Conn
	js     jetstream.JetStream
	worker jetstream.Consumer
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{T: t, server: servertest.StartNATS(t)}
	f.conn = servertest.Connect(t, f.server.URL)
	f.js = testkit.Must(jetstream.New(f.conn))(t)
	f.createRoom(jetstream.StreamConfig{})
	f.createStream(jetstream.StreamConfig{Name: options.Stream, Subjects: []string{options.Subject + ".>"}})
	return f
}

func (f *fixture) createStream(config jetstream.StreamConfig) jetstream.Stream {
	f.Helper()
	config.Retention = jetstream.WorkQueuePolicy
	return testkit.Must(f.js.CreateStream(f.Context(), config))(f)
}

// createRoom replaces the room.
func (f *fixture) createRoom(config jetstream.StreamConfig) {
	f.Helper()
	testkit.Await(f, "the room before is gone", func() error {
		if err := f.js.DeleteStream(f.Context(), options.Room); !errors.Is(err, jetstream.ErrStreamNotFound) {
			return err
		}
		return nil
	})
	time.Sleep(50 * time.Millisecond) // the server forgets the message IDs a moment after its answer
	config.Name, config.Subjects = options.Room, []string{"notify-room.>"}
	f.worker = testkit.Must(f.createStream(config).CreateConsumer(f.Context(), jetstream.ConsumerConfig{
		Durable: "worker", AckPolicy: jetstream.AckExplicitPolicy,
	}))(f)
}

// restart makes the server forget the message IDs in its memory.
func (f *fixture) restart() {
	f.Helper()
	f.server.Restart()
	servertest.AwaitAnswer(f, f.js)
}

// open opens the dead letters again and lists them.
func (f *fixture) open() (*Store, []Letter) {
	f.Helper()
	store := testkit.Must(Open(f.Context(), f.conn, options))(f)
	letters := testkit.Must(store.List(f.Context(), unwatched))(f)
	return store, letters
}

// origin is the origin of each letter's event.
var origin = room.Origin{Stream: "EVENTS", Sequence: 7, Stored: time.Unix(1700000000, 123456789).UTC()}

// letter stores a dead letter as a worker does. The headers are pairs of a name and a value, and replace those of the worker.
func (f *fixture) letter(reason, body string, headers ...string) uint64 {
	f.Helper()
	header := nats.Header{
		HeaderReason: {reason}, HeaderError: {"no_text"}, HeaderSequence: {"7"}, HeaderDeliveries: {"2"},
		room.HeaderSubject: {"notify.payments.cards"}, room.HeaderID: {"EVENTS:7"}, room.HeaderOrigin: {origin.String()},
	}
	trusted.Mark(header)
	for i := 0; i < len(headers); i += 2 {
		header.Set(headers[i], headers[i+1])
	}
	message := &nats.Msg{Subject: options.Subject + "." + reason + ".payments", Header: header, Data: []byte(body)}
	return testkit.Must(f.js.PublishMsg(f.Context(), message))(f).Sequence
}

// rejected stores a letter of Slack's rejection.
func (f *fixture) rejected(id string) uint64 {
	f.Helper()
	return f.letter("rejected", `{"title": "card declined"}`, room.HeaderID, id)
}

// waiting lists the messages of a stream.
func (f *fixture) waiting(stream string) []*jetstream.RawStreamMsg {
	f.Helper()
	handle := testkit.Must(f.js.Stream(f.Context(), stream))(f)
	var messages []*jetstream.RawStreamMsg
	state := handle.CachedInfo().State
	for sequence := state.FirstSeq; sequence <= state.LastSeq; sequence++ {
		if m, err := handle.GetMsg(f.Context(), sequence); err == nil {
			messages = append(messages, m)
		}
	}
	return messages
}

// awaitTaken waits until the room has an event, and acknowledges it.
func (f *fixture) awaitTaken() {
	f.Helper()
	m := testkit.Must(f.worker.Next(jetstream.FetchMaxWait(patience)))(f)
	testkit.NoError(f, m.DoubleAck(f.Context()))
}

// replay opens the dead letters again and replays one.
func (f *fixture) replay(number uint64) (Outcome, error) {
	f.Helper()
	store, letters := f.open()
	chosen, _ := Filter{IDs: []string{fmt.Sprint(number)}}.Select(letters)
	testkit.Require(f, len(chosen) == 1, "letter %d: got %v, want one", number, chosen)
	return store.Replay(f.Context(), chosen[0])
}

func (f *fixture) requireOutcome(number uint64, want Outcome) {
	f.Helper()
	testkit.Equal(f, testkit.Must(f.replay(number))(f), want, "replay of letter %d", number)
}

// requireLetters compares the subjects in the dead-letter stream.
func (f *fixture) requireLetters(want ...string) {
	f.Helper()
	var subjects []string
	for _, m := range f.waiting(options.Stream) {
		subjects = append(subjects, m.Subject)
	}
	testkit.EqualSlices(f, subjects, want, "subjects of the letters")
}

// requireEvents compares the IDs of the taken events and of those in the room.
func (f *fixture) requireEvents(taken []string, want ...string) {
	f.Helper()
	ids := slices.Clone(taken)
	for _, m := range f.waiting(options.Room) {
		ids = append(ids, m.Header.Get(room.HeaderID))
	}
	testkit.EqualSlices(f, ids, want, "IDs of the events")
}
