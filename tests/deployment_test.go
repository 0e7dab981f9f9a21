package tests

import (
	"context"
	"errors"
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

	"github.com/seed-4578ace9/notifier/internal/servertest"
	"github.com/seed-4578ace9/notifier/internal/slacktest"
	"github.com/seed-4578ace9/notifier/internal/testkit"
)

// The names that a worker uses unless it is told otherwise.
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

// callTimeout bounds one call of a test to NATS. A publish that is given up is made again, and may be stored twice: so it is
// longer than a busy machine takes.
const callTimeout = 10 * time.Second

// deployment is the servers that the workers of one test share.
type deployment struct {
	t     testing.TB
	nats  *servertest.NATS
	redis *servertest.Redis
	slack *slacktest.Server
	js    jetstream.JetStream
}

// newDeployment starts servers of each kind.
func newDeployment(t testing.TB) *deployment {
	t.Helper()
	return deploy(t, servertest.StartNATS(t), servertest.StartRedis(t))
}

func deploy(t testing.TB, n *servertest.NATS, r *servertest.Redis) *deployment {
	t.Helper()
	d := &deployment{t: t, nats: n, redis: r, slack: slacktest.New(t)}
	if n != nil {
		d.js = servertest.JetStream(t, n.URL)
	}
	return d
}

// settings are those of a worker of this deployment. It neither paces nor sums up: what is about that says so.
func (d *deployment) settings(changes ...string) settings {
	s := settings{
		"SLACK_TOKEN": slacktest.DefaultToken, "SLACK_CHANNEL": defaultChannel, "SLACK_API_URL": d.slack.APIURL(),
		"SLACK_RATE": "none", "SUMMARY_INTERVAL": "0",
	}
	if d.nats != nil {
		s["NATS_URL"] = d.nats.URL
	}
	if d.redis != nil {
		s["REDIS_URL"] = d.redis.URL()
	}
	return s.with(changes...)
}

// worker is a running worker.
type worker struct {
	*process
	address string // of metrics and probes
}

// startWorker starts a worker; changes to its settings are name, value, …
func (d *deployment) startWorker(name string, changes ...string) *worker {
	d.t.Helper()
	address := "127.0.0.1:" + strconv.Itoa(servertest.ReservePort(d.t))
	return &worker{start(d.t, name, d.settings("HTTP_ADDR", address).with(changes...)), address}
}

// startReady starts a worker and returns when it is ready.
func (d *deployment) startReady(name string, changes ...string) *worker {
	d.t.Helper()
	w := d.startWorker(name, changes...)
	w.awaitReady()
	return w
}

// startFleet starts workers of the same settings and returns when all are ready.
func (d *deployment) startFleet(count int, changes ...string) fleet {
	d.t.Helper()
	workers := make(fleet, count)
	for i := range workers {
		workers[i] = d.startWorker(fmt.Sprintf("worker %d", i+1), changes...)
	}
	for _, w := range workers {
		w.awaitReady()
	}
	return workers
}

var client = &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

// get asks the worker's HTTP server. The status is 0 if it does not answer.
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

// samples is what one scrape showed.
type samples map[string]*dto.MetricFamily

func (w *worker) scrape() samples {
	w.t.Helper()
	status, body := w.get("/metrics")
	if status != http.StatusOK {
		w.t.Fatalf("scrape %s: status %d: %s", w.name, status, body)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(body))
	if err != nil {
		w.t.Fatalf("scrape %s: %v", w.name, err)
	}
	return families
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
	for i := 0; i < len(labels); i += 2 {
		if !slices.ContainsFunc(series.GetLabel(), func(l *dto.LabelPair) bool {
			return l.GetName() == labels[i] && l.GetValue() == labels[i+1]
		}) {
			return false
		}
	}
	return true
}

// labels lists the values of one label of a metric.
func (s samples) labels(metric, label string) []string {
	var values []string
	for _, series := range s[metric].GetMetric() {
		for _, pair := range series.GetLabel() {
			if pair.GetName() == label && !slices.Contains(values, pair.GetValue()) {
				values = append(values, pair.GetValue())
			}
		}
	}
	return values
}

// fleet is several workers of one deployment.
type fleet []*worker

// alone is the fleet of one worker.
func (w *worker) alone() fleet { return fleet{w} }

// sum adds up a metric over all workers.
func (f fleet) sum(metric string, labels ...string) int {
	total := 0
	for _, w := range f {
		w.t.Helper()
		total += w.scrape().sum(metric, labels...)
	}
	return total
}

// awaitSum waits until a metric has a value. Workers count a moment after what they count has happened.
func (f fleet) awaitSum(want int, metric string, labels ...string) {
	f[0].t.Helper()
	testkit.Await(f[0].t, fmt.Sprintf("%s%v of %d", metric, labels, want), func() error {
		if got := f.sum(metric, labels...); got != want {
			return fmt.Errorf("%d", got)
		}
		return nil
	})
}

// awaitEvents waits until the workers have counted so many outcomes.
func (f fleet) awaitEvents(want int, labels ...string) {
	f[0].t.Helper()
	f.awaitSum(want, "notifier_events_total", labels...)
}

// createStream makes the stream as a worker does, for tests that publish before one runs.
func (d *deployment) createStream() {
	d.t.Helper()
	_, err := d.js.CreateStream(d.t.Context(), jetstream.StreamConfig{
		Name: streamName, Subjects: []string{subjectPrefix, subjectPrefix + ".>"}, Retention: jetstream.WorkQueuePolicy,
	})
	if err != nil {
		d.t.Fatalf("create the stream: %v", err)
	}
}

// createRoom makes the room as a worker does, for tests in which none may.
func (d *deployment) createRoom() {
	d.t.Helper()
	_, err := d.js.CreateStream(d.t.Context(), jetstream.StreamConfig{
		Name: roomStreamName, Subjects: []string{subjectPrefix + "-room.>"}, Retention: jetstream.WorkQueuePolicy, AllowMsgSchedules: true, AllowRollup: true,
	})
	if err != nil {
		d.t.Fatalf("create the room: %v", err)
	}
}

// publish stores one event and returns when it is stored, over any outage of NATS. The headers are name, value, …
func (d *deployment) publish(subject, body string, headers ...string) {
	d.t.Helper()
	message := nats.NewMsg(subject)
	message.Data = []byte(body)
	for i := 0; i < len(headers); i += 2 {
		message.Header[headers[i]] = append(message.Header[headers[i]], headers[i+1])
	}
	testkit.Await(d.t, "the publishing of an event", func() error {
		ctx, cancel := context.WithTimeout(d.t.Context(), callTimeout)
		defer cancel()
		_, err := d.js.PublishMsg(ctx, message)
		return err
	})
}

// eventBody is an event that can be told from others by its ID, which posts show.
func eventBody(id string) string { return fmt.Sprintf(`{"id":%q,"title":"event %s"}`, id, id) }

// publishEvents stores count events in each of the categories, in turns, and returns their IDs.
func (d *deployment) publishEvents(categories []string, count int) []string {
	d.t.Helper()
	var ids []string
	var stored []jetstream.PubAckFuture
	for i := range count {
		for _, category := range categories {
			id := fmt.Sprintf("%s-%d", category, i)
			ids = append(ids, id)
			future, err := d.js.PublishAsync(subjectPrefix+"."+category, []byte(eventBody(id)))
			if err != nil {
				d.t.Fatalf("publish %s: %v", id, err)
			}
			stored = append(stored, future)
		}
	}
	for _, future := range stored {
		select {
		case <-future.Ok():
		case err := <-future.Err():
			d.t.Fatalf("publish to %s: %v", future.Msg().Subject, err)
		}
	}
	return ids
}

// twentyCategories are the mission's.
func twentyCategories() []string {
	categories := make([]string, 20)
	for i := range categories {
		categories[i] = fmt.Sprintf("category%02d", i)
	}
	return categories
}

// left is how many messages a stream holds.
func (d *deployment) left(stream string) (int, error) {
	ctx, cancel := context.WithTimeout(d.t.Context(), callTimeout)
	defer cancel()
	s, err := d.js.Stream(ctx, stream)
	if err != nil {
		return 0, err
	}
	return int(s.CachedInfo().State.Msgs), nil
}

// awaitEmpty waits until every stored event has ended. What moves on is stored in the room before it leaves the place where it was:
// so the room is asked last.
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

// awaitLeft waits until a stream holds so many messages.
func (d *deployment) awaitLeft(stream string, want int) {
	d.t.Helper()
	testkit.Await(d.t, fmt.Sprintf("%d messages in %s", want, stream), func() error {
		left, err := d.left(stream)
		if err == nil && left != want {
			err = fmt.Errorf("%d", left)
		}
		return err
	})
}

// awaitInRoom waits until the room holds so many messages on the subjects that match.
func (d *deployment) awaitInRoom(subjects string, want int) {
	d.t.Helper()
	testkit.Await(d.t, fmt.Sprintf("%d messages on %s", want, subjects), func() error {
		got, err := d.inRoom(subjects)
		if err == nil && got != want {
			err = fmt.Errorf("%d", got)
		}
		return err
	})
}

// inRoom is how many messages the room holds on the subjects that match.
func (d *deployment) inRoom(subjects string) (int, error) {
	ctx, cancel := context.WithTimeout(d.t.Context(), callTimeout)
	defer cancel()
	stream, err := d.js.Stream(ctx, roomStreamName)
	if err != nil {
		return 0, err
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(subjects))
	if err != nil {
		return 0, err
	}
	total := 0
	for _, n := range info.State.Subjects {
		total += int(n)
	}
	return total, nil
}

// awaitPosts waits until Slack has accepted so many posts.
func (d *deployment) awaitPosts(n int) {
	d.t.Helper()
	awaitPosts(d.t, d.slack, n)
}

func awaitPosts(t testing.TB, slack *slacktest.Server, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	testkit.NoError(t, slack.Await(ctx, n))
}

// origin reads "category …" or "id …" from the last line of a message.
func origin(post slacktest.Post, name string) string {
	for _, text := range post.Message.Texts() {
		if value, found := strings.CutPrefix(text.Text, name+" "); found && text.Type == "plain_text" {
			return value
		}
	}
	return ""
}

// count counts posts by their event's ID or category.
func count(posts []slacktest.Post, by string) map[string]int {
	counts := make(map[string]int)
	for _, post := range posts {
		counts[origin(post, by)]++
	}
	return counts
}

// wantPostedOnce checks that each of the events, and no other one, was posted once.
func wantPostedOnce(t testing.TB, posts []slacktest.Post, ids []string) {
	t.Helper()
	counts := count(posts, "id")
	for _, id := range ids {
		if counts[id] != 1 {
			t.Errorf("%s was posted %d times, want once", id, counts[id])
		}
		delete(counts, id)
	}
	if len(counts) > 0 {
		t.Errorf("posts of events that were not published: %v", counts)
	}
}

// wantWithinLimits checks the events that were posted, however often each was, against the default limits.
func wantWithinLimits(t testing.TB, posts []slacktest.Post, global, perCategory int) {
	t.Helper()
	seen := make(map[string]bool)
	categories := make(map[string]int)
	for _, post := range posts {
		if id := origin(post, "id"); !seen[id] {
			seen[id] = true
			categories[origin(post, "category")]++
		}
	}
	if len(seen) > global {
		t.Errorf("%d events were posted, the global limit is %d", len(seen), global)
	}
	for category, n := range categories {
		if n > perCategory {
			t.Errorf("%d events of %s were posted, the limit is %d", n, category, perCategory)
		}
	}
}

// repeats is how many posts were of an event that had been posted before.
func repeats(posts []slacktest.Post) int { return len(posts) - len(count(posts, "id")) }

// log is a limit's log: the score of each member.
func (d *deployment) log(key string) map[string]string {
	d.t.Helper()
	text := d.redis.CLI("zrange", key, "0", "-1", "withscores")
	members := make(map[string]string)
	if text == "" {
		return members
	}
	lines := strings.Split(text, "\n")
	for i := 0; i+1 < len(lines); i += 2 {
		_, id, _ := strings.Cut(lines[i], " ") // behind the category
		members[id] = lines[i+1]
	}
	return members
}

// deadLetters reads every dead letter that is stored, oldest first.
func (d *deployment) deadLetters() []*jetstream.RawStreamMsg {
	d.t.Helper()
	stream, err := d.js.Stream(d.t.Context(), deadStreamName)
	if err != nil {
		d.t.Fatalf("read dead letters: %v", err)
	}
	var letters []*jetstream.RawStreamMsg
	state := stream.CachedInfo().State
	for sequence := state.FirstSeq; sequence <= state.LastSeq && state.Msgs > 0; sequence++ {
		letter, err := stream.GetMsg(d.t.Context(), sequence)
		if err != nil {
			d.t.Fatalf("read dead letter %d: %v", sequence, err)
		}
		letters = append(letters, letter)
	}
	return letters
}

// errMissing is for conditions that have nothing more to say.
var errMissing = errors.New("not yet")
