package tests

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/slacktest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// Names that are defaults of settings.
const (
	streamName      = "NOTIFICATIONS"
	subjectPrefix   = "notify"
	consumerName    = "notifier"
	roomStreamName  = "NOTIFICATIONS_ROOM"
	deadStreamName  = "NOTIFICATIONS_DLQ"
	rootLog         = "{notifier}:log"
	defaultChannel  = "#alerts"
	defaultSendings = 8 // NOTIFIER_CONCURRENCY
)

// callTimeout bounds one call of a test to NATS. A test repeats a publish after the timeout, and NATS may store both messages. So the
// timeout is longer than a busy machine takes.
const callTimeout = 10 * time.Second

// deployment is the servers that the workers of one test share.
type deployment struct {
	t     testing.TB
	nats  *servertest.NATS
	redis *servertest.Redis
	slack *slacktest.Server
	js    jetstream.JetStream
}

func newDeployment(t testing.TB) *deployment {
	t.Helper()
	return deploy(t, servertest.StartNATS(t))
}

// deploy starts Redis and Slack beside a NATS server. The options are for the test's connection to NATS.
func deploy(t testing.TB, n *servertest.NATS, options ...nats.Option) *deployment {
	t.Helper()
	return &deployment{t: t, nats: n, redis: servertest.StartRedis(t), slack: slacktest.New(t), js: servertest.JetStream(t, n.URL, options...)}
}

// newDurableDeployment starts servers that a test can kill and pause, and that keep their data.
func newDurableDeployment(t testing.TB) *deployment {
	t.Helper()
	d := deploy(t, servertest.StartNATSProcess(t, ""))
	d.redis = servertest.StartRedis(t, "--appendonly", "yes")
	return d
}

// settings returns the settings of a worker without pacing and digests.
func (d *deployment) settings(changes ...string) settings {
	return settings{
		"SLACK_TOKEN": slacktest.DefaultToken, "SLACK_CHANNEL": defaultChannel, "SLACK_API_URL": d.slack.APIURL(),
		"SLACK_RATE": "none", "SLACK_WORKSPACE_RATE": "none", "SLACK_UPDATE_RATE": "none", "SLACK_LOOKUP_RATE": "none", "SUMMARY_INTERVAL": "0",
		"NATS_URL": d.nats.URL, "REDIS_URL": d.redis.URL(),
	}.with(changes...)
}

// worker is a running worker.
type worker struct {
	*process
	address string // of metrics and probes
}

func freeAddress(t testing.TB) string {
	t.Helper()
	return "127.0.0.1:" + strconv.Itoa(servertest.ReservePort(t))
}

// startWorker starts a worker with changed settings, given as name, value, …
func (d *deployment) startWorker(name string, changes ...string) *worker {
	d.t.Helper()
	address := freeAddress(d.t)
	return &worker{start(d.t, name, d.settings("HTTP_ADDR", address).with(changes...)), address}
}

func (d *deployment) startReady(name string, changes ...string) *worker {
	d.t.Helper()
	w := d.startWorker(name, changes...)
	w.awaitReady()
	return w
}

func (d *deployment) startFleet(count int, changes ...string) fleet {
	d.t.Helper()
	workers := make(fleet, count)
	for i := range workers {
		workers[i] = d.startWorker(fmt.Sprintf("worker %d", i+1), changes...)
	}
	workers.awaitReady()
	return workers
}

var client = &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

// get asks the worker's HTTP server. The status is 0 without an answer.
func (w *worker) get(path string) (status int, body string) {
	response, err := client.Get("http://" + w.address + path)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err.Error()
	}
	return response.StatusCode, string(text)
}

// awaitStatus waits until a path is answered with a status and a body that contains a text.
func (w *worker) awaitStatus(path string, want int, containing string) {
	w.t.Helper()
	testkit.Await(w.t, fmt.Sprintf("%s of %s with status %d", path, w.name, want), func() error {
		select {
		case <-w.exited:
			w.t.Fatalf("%s has ended with status %d", w.name, w.command.ProcessState.ExitCode())
		default:
		}
		status, body := w.get(path)
		if status != want || !strings.Contains(body, containing) {
			return fmt.Errorf("status %d: %s", status, body)
		}
		return nil
	})
}

func (w *worker) awaitReady() {
	w.t.Helper()
	w.awaitStatus("/readyz", http.StatusOK, "")
}

func (w *worker) awaitUnready(says string) {
	w.t.Helper()
	w.awaitStatus("/readyz", http.StatusServiceUnavailable, says)
}

func (w *worker) wantHealthy() {
	w.t.Helper()
	status, body := w.get("/healthz")
	testkit.Check(w.t, status == http.StatusOK, "/healthz of %s has status %d, want 200: %s", w.name, status, body)
}

// samples are the metrics of one scrape.
type samples map[string]*dto.MetricFamily

func (w *worker) scrape() samples {
	w.t.Helper()
	status, body := w.get("/metrics")
	testkit.Require(w.t, status == http.StatusOK, "scrape %s: status %d: %s", w.name, status, body)
	parser := expfmt.NewTextParser(model.UTF8Validation)
	return testkit.Must(parser.TextToMetricFamilies(strings.NewReader(body)))(w.t)
}

// sum adds up the series of a counter or gauge that have all of the labels, given as name, value, …
func (s samples) sum(metric string, labels ...string) int {
	total := 0.0
	for _, series := range s[metric].GetMetric() {
		if has(series, labels) {
			total += series.GetCounter().GetValue() + series.GetGauge().GetValue()
		}
	}
	return int(total)
}

func has(series *dto.Metric, labels []string) bool {
	for label := range slices.Chunk(labels, 2) {
		if !slices.ContainsFunc(series.GetLabel(), func(l *dto.LabelPair) bool { return l.GetName() == label[0] && l.GetValue() == label[1] }) {
			return false
		}
	}
	return true
}

// fleet is several workers of one deployment.
type fleet []*worker

func (w *worker) alone() fleet { return fleet{w} }

func (f fleet) awaitReady() {
	for _, w := range f {
		w.t.Helper()
		w.awaitReady()
	}
}

func (f fleet) awaitUnready(says string) {
	for _, w := range f {
		w.t.Helper()
		w.awaitUnready(says)
	}
}

func (f fleet) stop() {
	for _, w := range f {
		w.t.Helper()
		w.stop()
	}
}

func (f fleet) logLines(containing string) (lines int) {
	for _, w := range f {
		lines += w.logLines(containing)
	}
	return lines
}

func (f fleet) sum(metric string, labels ...string) int {
	total := 0
	for _, w := range f {
		w.t.Helper()
		total += w.scrape().sum(metric, labels...)
	}
	return total
}

// awaitSum waits until a metric has a value. Workers count an event a moment after its effect.
func (f fleet) awaitSum(want int, metric string, labels ...string) {
	f[0].t.Helper()
	awaitNumber(f[0].t, want, fmt.Sprint(metric, labels), func() (int, error) { return f.sum(metric, labels...), nil })
}

func awaitNumber(t testing.TB, want int, of string, read func() (int, error)) {
	t.Helper()
	testkit.Await(t, fmt.Sprintf("%d as the number of %s", want, of), func() error {
		got, err := read()
		if err == nil && got != want {
			err = fmt.Errorf("it is %d", got)
		}
		return err
	})
}

// awaitEvents waits until the workers have counted this many outcomes.
func (f fleet) awaitEvents(want int, labels ...string) {
	f[0].t.Helper()
	f.awaitSum(want, "notifier_events_total", labels...)
}

// awaitOutcomes waits until the workers have counted exactly these events by outcome.
func (f fleet) awaitOutcomes(outcomes map[string]int) {
	f[0].t.Helper()
	total := 0
	for outcome, n := range outcomes {
		f.awaitEvents(n, "outcome", outcome)
		total += n
	}
	f.awaitEvents(total)
}

// createStream creates the producers' stream before any worker, with changes.
func (d *deployment) createStream(changes ...func(*jetstream.StreamConfig)) {
	d.t.Helper()
	stream := jetstream.StreamConfig{Name: streamName, Subjects: []string{subjectPrefix, subjectPrefix + ".>"}, Retention: jetstream.WorkQueuePolicy}
	for _, change := range changes {
		change(&stream)
	}
	testkit.Must(d.js.CreateStream(d.t.Context(), stream))(d.t)
}

// message makes a message of a producer. The headers are name, value, …
func message(subject, body string, headers ...string) *nats.Msg {
	m := nats.NewMsg(subject)
	m.Data = []byte(body)
	for header := range slices.Chunk(headers, 2) {
		m.Header[header[0]] = append(m.Header[header[0]], header[1])
	}
	return m
}

// publish publishes one event until NATS has stored it. The headers are name, value, …
func (d *deployment) publish(subject, body string, headers ...string) {
	d.t.Helper()
	testkit.Await(d.t, "the publishing of an event", func() error {
		ctx, cancel := context.WithTimeout(d.t.Context(), callTimeout)
		defer cancel()
		_, err := d.js.PublishMsg(ctx, message(subject, body, headers...))
		return err
	})
}

// publishUntil publishes one event, and waits until the workers have counted its outcome.
func (d *deployment) publishUntil(workers fleet, outcome, subject, body string, headers ...string) {
	d.t.Helper()
	before := workers.sum("notifier_events_total", "outcome", outcome)
	d.publish(subject, body, headers...)
	workers.awaitEvents(before+1, "outcome", outcome)
}

// eventBody makes an event with an ID, which its post shows.
func eventBody(id string) string { return fmt.Sprintf(`{"id":%q,"title":"event %s"}`, id, id) }

// publishEvents publishes count events of each category, in turns, and returns their IDs.
func (d *deployment) publishEvents(categories []string, count int) []string {
	d.t.Helper()
	var ids []string
	var stored []jetstream.PubAckFuture
	settle := func() {
		for _, future := range stored {
			select {
			case <-future.Ok():
			case err := <-future.Err():
				d.t.Fatalf("publish to %s: %v", future.Msg().Subject, err)
			}
		}
		stored = stored[:0]
	}
	for i := range count {
		for _, category := range categories {
			id := fmt.Sprintf("%s-%d", category, i)
			ids = append(ids, id)
			stored = append(stored, testkit.Must(d.js.PublishAsync(subjectPrefix+"."+category, []byte(eventBody(id))))(d.t))
			if len(stored) == 1000 {
				settle()
			}
		}
	}
	settle()
	return ids
}

func (d *deployment) awaitStored() {
	d.t.Helper()
	select {
	case <-d.js.PublishAsyncComplete():
	case <-time.After(patience):
		d.t.Fatalf("events are not stored after %v", patience)
	}
}

// numbered returns categories with a common name and a number.
func numbered(name string, count int) (categories []string) {
	for i := range count {
		categories = append(categories, fmt.Sprint(name, i))
	}
	return categories
}

func twentyCategories() []string { return numbered("category", 20) }

func (d *deployment) left(stream string) (int, error) {
	ctx, cancel := context.WithTimeout(d.t.Context(), callTimeout)
	defer cancel()
	s, err := d.js.Stream(ctx, stream)
	if err != nil {
		return 0, err
	}
	return int(s.CachedInfo().State.Msgs), nil
}

// awaitEmpty waits until every stored event has an outcome. A worker stores an event in the room before it removes the event from the
// stream, so the room is checked last.
func (d *deployment) awaitEmpty() {
	d.t.Helper()
	testkit.Await(d.t, "empty streams", func() error {
		for _, stream := range []string{streamName, roomStreamName} {
			left, err := d.left(stream)
			if err != nil {
				return err
			}
			if left > 0 {
				return fmt.Errorf("%d events are left in %s, %d posts were accepted", left, stream, len(d.slack.Accepted()))
			}
		}
		return nil
	})
}

func (d *deployment) awaitLeft(stream string, want int) {
	d.t.Helper()
	awaitNumber(d.t, want, "messages in "+stream, func() (int, error) { return d.left(stream) })
}

func (d *deployment) awaitInRoom(subjects string, want int) {
	d.t.Helper()
	awaitNumber(d.t, want, "messages on "+subjects, func() (int, error) { return d.onSubjects(roomStreamName, subjects) })
}

func (d *deployment) onSubjects(stream, subjects string) (messages int, err error) {
	ctx, cancel := context.WithTimeout(d.t.Context(), callTimeout)
	defer cancel()
	s, err := d.js.Stream(ctx, stream)
	if err != nil {
		return 0, err
	}
	info, err := s.Info(ctx, jetstream.WithSubjectFilter(subjects))
	if err != nil {
		return 0, err
	}
	for _, n := range info.State.Subjects {
		messages += int(n)
	}
	return messages, nil
}

func (d *deployment) awaitConsumer(what string, is func(*jetstream.ConsumerInfo) bool) {
	d.t.Helper()
	testkit.Eventually(d.t, "a consumer "+what, func() bool {
		consumer, err := d.js.Consumer(d.t.Context(), streamName, consumerName)
		return err == nil && is(consumer.CachedInfo())
	})
}

func (d *deployment) delivered() uint64 {
	d.t.Helper()
	return testkit.Must(d.js.Consumer(d.t.Context(), streamName, consumerName))(d.t).CachedInfo().Delivered.Consumer
}

// deadLetters reads all dead letters, the oldest first.
func (d *deployment) deadLetters() []*jetstream.RawStreamMsg {
	d.t.Helper()
	stream := testkit.Must(d.js.Stream(d.t.Context(), deadStreamName))(d.t)
	var letters []*jetstream.RawStreamMsg
	state := stream.CachedInfo().State
	for sequence := state.FirstSeq; sequence <= state.LastSeq && state.Msgs > 0; sequence++ {
		letters = append(letters, testkit.Must(stream.GetMsg(d.t.Context(), sequence))(d.t))
	}
	return letters
}
