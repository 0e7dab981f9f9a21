// Package fleet counts the live instances of the notifier, and asks each for a report about itself.
//
// Each instance announces itself as a NATS micro service named "notifier", so `nats micro ls` shows it. Every few
// seconds it counts the instances of its deployment that answer. While Redis is unavailable, the limits are divided by that number. It rises at
// once, and falls when three counts agree: right after a reconnect, other instances may still be without a connection. An instance that ends in
// order says goodbye, and is not counted from then on. While NATS does not answer, the last number stays. [Fleet.Alive] may be called at any time
// by any goroutine.
//
// The announcement has a hash of the settings that all instances must share. An instance that sees another hash calls
// Options.Compared. The endpoint "status" of the service answers with the instance's report, which fits into NATS' max_payload; [Ask] collects the
// reports of a deployment. An instance that cannot report logs it once, and answers with the error.
package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/seed-4578ace9/notifier/internal/oplog"
)

const serviceName = "notifier"

// The interval between two counts, and the wait for answers. Answers arrive within a round trip; a slower instance is counted the next time.
const (
	askEvery = 5 * time.Second
	askFor   = 500 * time.Millisecond

	// askLonger is how long [Ask] waits for the reports of all instances that are known. Many large reports need more than askFor if a processor or the
	// network is slow. It is less than status.Collect's bound for a part.
	askLonger = 1500 * time.Millisecond
)

// agreeing is how many successive counts must see fewer instances before the number falls.
const agreeing = 3

// Options are what an instance announces, and its callbacks.
type Options struct {
	Deployment string // only instances of this deployment are counted; a NATS account may have several
	Version    string // the protocol demands a semantic version; any other is announced as 0.0.0
	Settings   string // hash of the settings that must be equal on all instances; "" is not compared
	Layout     int    // version of the format in which the instance stores state

	// Report returns the report of the instance as JSON of at most the given number of bytes. Its error has one line.
	Report func(instance string, most int64) ([]byte, error)

	// Compared is called after each count, once one has been answered, with the number of instances that answered, and of those that announce other
	// settings.
	Compared func(ctx context.Context, answering, differing int)

	Logger *slog.Logger
}

// Fleet is this instance's view of all instances.
type Fleet struct {
	o       Options
	conn    *nats.Conn
	service micro.Service
	alive   atomic.Int64
	mixed   atomic.Bool // an instance of another layout was seen

	mu     sync.Mutex
	counts [agreeing][]string // the instances of the latest counts, the newest count first; nil before a count was answered
	left   map[string]int     // for how many further counts an instance that said goodbye is ignored
}

// Keys of a service's metadata.
const (
	deploymentKey = "deployment"
	settingsKey   = "settings"
	layoutKey     = "layout"
)

// failedReport is the code of the answer of an instance that cannot report.
const failedReport = "500"

// aliveHeader has the number of instances that are alive, as the instance that answers has counted them.
const aliveHeader = "Notifier-Alive"

// leavingHeader has the instance that says goodbye, in a message to StatusSubject, which reaches all instances.
const leavingHeader = "Notifier-Leaving"

// goodbyeHolds is for how many counts a goodbye holds: an instance may have answered the count that is under way before it left. A goodbye that
// another program forged is then forgotten, because the instance answers the next count.
const goodbyeHolds = 2

// headersSize bounds the bytes of the headers of a report, which count towards max_payload.
const headersSize = 64

// StatusSubject is the subject of requests for reports. Every instance of every deployment in the account receives them.
const StatusSubject = "$SRV.STATUS." + serviceName

// Join announces this instance.
func Join(conn *nats.Conn, o Options) (*Fleet, error) {
	config := micro.Config{
		Name: serviceName, Version: strings.TrimPrefix(o.Version, "v"), Description: "throttles notifications",
		Metadata: map[string]string{deploymentKey: o.Deployment, settingsKey: o.Settings, layoutKey: strconv.Itoa(o.Layout)},
	}
	service, err := micro.AddService(conn, config)
	if errors.Is(err, micro.ErrConfigValidation) {
		config.Version = "0.0.0"
		service, err = micro.AddService(conn, config)
	}
	if err != nil {
		return nil, fmt.Errorf("announcing the micro service %q: %w", serviceName, err)
	}
	f := &Fleet{o: o, conn: conn, service: service, left: make(map[string]int)}
	f.alive.Store(1)
	if err := f.addStatus(); err != nil {
		f.Leave()
		return nil, err
	}
	return f, nil
}

// addStatus adds the status endpoint. It has no queue group, so every instance answers. One goroutine answers.
func (f *Fleet) addStatus() error {
	reporting := oplog.NewCondition(f.o.Logger, "cannot report the status", "status is reported again")
	answer := func(request micro.Request) {
		if left := request.Headers().Get(leavingHeader); left != "" {
			f.forget(left)
			return
		}
		if string(request.Data()) != f.o.Deployment {
			return
		}
		reporting.Note(f.report(request))
	}
	err := f.service.AddEndpoint("status", micro.HandlerFunc(answer),
		micro.WithEndpointSubject(StatusSubject), micro.WithEndpointQueueGroupDisabled())
	if err != nil {
		return fmt.Errorf("adding the endpoint of the status: %w", err)
	}
	return nil
}

// report answers a request for the status with the report, or with the error that prevented it.
func (f *Fleet) report(request micro.Request) error {
	// Without knowing how many instances there are, nobody notices a report that is missing.
	alive := micro.WithHeaders(micro.Headers{aliveHeader: []string{strconv.Itoa(f.Alive())}})
	report, err := f.o.Report(f.service.Info().ID, f.conn.MaxPayload()-headersSize)
	if err != nil {
		return errors.Join(err, request.Error(failedReport, err.Error(), nil, alive))
	}
	return request.Respond(report, alive)
}

// Alive returns the largest number of instances that answered one of the latest counts and have not left since, including this one.
func (f *Fleet) Alive() int { return int(f.alive.Load()) }

// Watch counts again and again until the context ends.
func (f *Fleet) Watch(ctx context.Context) {
	ticker := time.NewTicker(askEvery)
	defer ticker.Stop()
	for {
		f.count(ctx)
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// Leave says goodbye, and withdraws the announcement. Other instances get the goodbye before this instance stops answering, so nobody waits for
// its report.
func (f *Fleet) Leave() {
	goodbye := nats.NewMsg(StatusSubject)
	goodbye.Header.Set(leavingHeader, f.service.Info().ID)
	_ = f.conn.PublishMsg(goodbye) // without it, other instances count this one until their counts agree
	if err := f.service.Stop(); err != nil && !f.conn.IsClosed() {
		f.o.Logger.Debug("the micro service did not stop cleanly", "error", err)
	}
}

// Member is an instance that is alive.
type Member struct {
	Instance string // unique name of one start
	Version  string
	Settings string // as in [Options]
	Layout   int    // as in [Options]; 0 if the instance announces none
}

// Members returns the live instances of a deployment. An instance that needs more than half a second to answer is missing.
func Members(ctx context.Context, conn *nats.Conn, deployment string) ([]Member, error) {
	subject, err := micro.ControlSubject(micro.PingVerb, serviceName, "")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, askFor)
	defer cancel()
	var members []Member
	err = ask(ctx, conn, subject, nil, func(answer *nats.Msg) (until time.Time) {
		var who micro.Ping
		if json.Unmarshal(answer.Data, &who) == nil && who.Metadata[deploymentKey] == deployment { // otherwise an instance of another deployment, or no responders
			layout, _ := strconv.Atoi(who.Metadata[layoutKey])
			members = append(members, Member{Instance: who.ID, Version: who.Version, Settings: who.Metadata[settingsKey], Layout: layout})
		}
		return never
	})
	if err != nil {
		return nil, fmt.Errorf("asking which instances are alive: %w", err)
	}
	return members, nil
}

// count counts the live instances. If not even this instance answers, the last number stays.
func (f *Fleet) count(ctx context.Context) {
	members, _ := Members(ctx, f.conn, f.o.Deployment)
	differing, answering := 0, make([]string, 0, len(members))
	for _, m := range members {
		answering = append(answering, m.Instance)
		if m.Settings != "" && f.o.Settings != "" && m.Settings != f.o.Settings {
			differing++
		}
		if m.Layout != f.o.Layout && !f.mixed.Swap(true) {
			f.o.Logger.Error("an instance of another layout is running, stop it", "instance", m.Instance, "its_layout", m.Layout, "layout", f.o.Layout)
		}
	}
	if ctx.Err() != nil {
		return
	}
	if f.note(answering) {
		f.o.Compared(ctx, len(members), differing)
	}
}

// note records the instances that answered a count. It reports whether any count was answered.
func (f *Fleet) note(answering []string) (counted bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(answering) > 0 {
		copy(f.counts[1:], f.counts[:])
		f.counts[0] = slices.DeleteFunc(answering, func(instance string) bool { return f.left[instance] > 0 })
		f.setAlive()
	}
	for instance := range f.left {
		if f.left[instance]--; f.left[instance] == 0 {
			delete(f.left, instance)
		}
	}
	return f.counts[0] != nil
}

// forget removes an instance that said goodbye from the counts. An instance does not forget itself.
func (f *Fleet) forget(instance string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if instance == f.service.Info().ID {
		return
	}
	for i, count := range f.counts {
		if at := slices.Index(count, instance); at >= 0 {
			f.counts[i], f.left[instance] = slices.Delete(count, at, at+1), goodbyeHolds
		}
	}
	f.setAlive()
}

// setAlive sets the number of live instances. The caller holds the lock.
func (f *Fleet) setAlive() {
	alive := int64(1)
	for _, count := range f.counts {
		alive = max(alive, int64(len(count)))
	}
	if alive != f.alive.Swap(alive) {
		f.o.Logger.Info("number of instances has changed", "instances", alive)
	}
}

// Ask collects the reports of the instances of a deployment for half a second, and longer if an instance that is alive has not answered, in the order
// of their arrival. The error joins the errors of instances that cannot report, and reports that are missing; all other reports are returned with it.
func Ask(ctx context.Context, conn *nats.Conn, deployment string) ([]json.RawMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, askLonger)
	defer cancel()
	var reports []json.RawMessage
	var failed []error
	answered, alive, enough := 0, 1, time.Now().Add(askFor)
	err := ask(ctx, conn, StatusSubject, []byte(deployment), func(answer *nats.Msg) (until time.Time) {
		why := answer.Header.Get(micro.ErrorHeader)
		switch {
		case why != "":
			failed = append(failed, fmt.Errorf("a worker cannot report: %s", why))
		case json.Valid(answer.Data):
			reports = append(reports, answer.Data)
		case len(answer.Data) == 0: // no responders
			return time.Time{}
		}
		answered++
		counted, _ := strconv.Atoi(answer.Header.Get(aliveHeader))
		if alive = max(alive, counted); answered < alive {
			return never
		}
		return enough
	})
	if err != nil {
		return nil, fmt.Errorf("asking the workers: %w", err)
	}
	if 0 < answered && answered < alive {
		failed = append(failed, fmt.Errorf("%d of the %d workers that were alive a moment ago did not report in time", alive-answered, alive))
	}
	return reports, errors.Join(failed...)
}

// never is a time that does not come.
var never = time.Unix(1<<40, 0)

// ask publishes a request, and passes each answer to take, which returns until when it wants another one. The context bounds that time.
func ask(ctx context.Context, conn *nats.Conn, subject string, question []byte, take func(answer *nats.Msg) (until time.Time)) error {
	if !conn.IsConnected() {
		return nats.ErrDisconnected
	}
	inbox := conn.NewRespInbox()
	answers, err := conn.SubscribeSync(inbox)
	if err != nil {
		return err
	}
	defer func() { _ = answers.Unsubscribe() }()
	if err := conn.PublishRequest(subject, inbox, question); err != nil {
		return err
	}
	for until := never; ; {
		waiting, cancel := context.WithDeadline(ctx, until)
		answer, err := answers.NextMsgWithContext(waiting)
		cancel()
		if err != nil {
			return nil // time has run out
		}
		until = take(answer)
	}
}
