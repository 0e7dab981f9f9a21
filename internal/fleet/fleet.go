// Package fleet tells how many instances of the notifier are alive, and asks each for a report of itself.
//
// Each instance announces itself as a NATS micro service named "notifier", so `nats micro ls` shows it. From time to time it asks
// which others of its deployment answer. The number needs no Redis: the limits are divided by it while Redis is unavailable. While
// NATS does not answer, the last number stands. [Fleet.Alive] may be called at any time by anyone.
//
// The announcement has a hash of the settings that all instances must share. An instance that sees another hash says so to its
// caller. The endpoint "status" of the service answers with the instance's report, which fits into NATS' max_payload; [Ask] collects the
// reports of a deployment. An instance that cannot report logs it once, and answers with the error.
package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
)

const serviceName = "notifier"

// How often the others are asked, and how long their answers are waited for. Answers come within a round trip; an
// instance that is slower is counted the next time.
const (
	askEvery = 5 * time.Second
	askFor   = 500 * time.Millisecond
)

// Options say what an instance announces.
type Options struct {
	Deployment string // instances of another deployment in the same NATS account are not counted
	Version    string // the protocol demands a semantic one; any other is announced as 0.0.0
	Settings   string // hash of the settings that must be equal on all instances; "" is not compared
	Layout     int    // number of the form in which the instance stores state

	// Report returns the instance's report of itself as JSON of at most so many bytes. Its error has one line.
	Report func(instance string, most int64) ([]byte, error)

	// Compared is told after each count whether another instance announces other settings.
	Compared func(ctx context.Context, differ bool)

	Logger *slog.Logger
}

// Fleet is this instance's view of all of them.
type Fleet struct {
	o       Options
	conn    *nats.Conn
	service micro.Service
	alive   atomic.Int64
	mixed   atomic.Bool // an instance of another layout was seen
}

// Keys of a service's metadata.
const (
	deploymentKey = "deployment"
	settingsKey   = "settings"
	layoutKey     = "layout"
)

// failedReport is the code of the answer of an instance that cannot report.
const failedReport = "500"

// StatusSubject is where the reports are asked for. Every instance of every deployment in the account gets the question.
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
	f := &Fleet{o: o, conn: conn, service: service}
	f.alive.Store(1)
	if err := f.addStatus(); err != nil {
		f.Leave()
		return nil, err
	}
	return f, nil
}

// addStatus adds the endpoint that every instance answers: it has no queue group. One goroutine answers.
func (f *Fleet) addStatus() error {
	failing := false
	answer := func(request micro.Request) {
		if string(request.Data()) != f.o.Deployment {
			return
		}
		err := f.report(request)
		switch {
		case err != nil && !failing:
			f.o.Logger.Warn("cannot report the status", "error", err)
		case err == nil && failing:
			f.o.Logger.Info("status is reported again")
		}
		failing = err != nil
	}
	err := f.service.AddEndpoint("status", micro.HandlerFunc(answer),
		micro.WithEndpointSubject(StatusSubject), micro.WithEndpointQueueGroupDisabled())
	if err != nil {
		return fmt.Errorf("adding the endpoint of the status: %w", err)
	}
	return nil
}

// report answers a question for the status. If there is no report, it answers with the error.
func (f *Fleet) report(request micro.Request) error {
	report, err := f.o.Report(f.service.Info().ID, f.conn.MaxPayload())
	if err != nil {
		return errors.Join(err, request.Error(failedReport, err.Error(), nil))
	}
	return request.Respond(report)
}

// Alive is how many instances answered last, this one included.
func (f *Fleet) Alive() int { return int(f.alive.Load()) }

// Watch keeps counting until the context ends.
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

// Leave withdraws the announcement.
func (f *Fleet) Leave() {
	if err := f.service.Stop(); err != nil && !f.conn.IsClosed() {
		f.o.Logger.Debug("the micro service did not stop cleanly", "error", err)
	}
}

// Member is an instance that is alive.
type Member struct {
	Instance string // name that no other start has
	Version  string
	Settings string // as in [Options]
	Layout   int    // as in [Options]; 0: the instance announces none
}

// Members asks which instances of a deployment are alive. An instance that is slower than half a second is missing.
func Members(ctx context.Context, conn *nats.Conn, deployment string) ([]Member, error) {
	subject, err := micro.ControlSubject(micro.PingVerb, serviceName, "")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, askFor)
	defer cancel()
	var members []Member
	err = ask(ctx, conn, subject, nil, func(answer *nats.Msg) bool {
		var who micro.Ping
		if json.Unmarshal(answer.Data, &who) == nil && who.Metadata[deploymentKey] == deployment { // else: another's, or nobody is there
			layout, _ := strconv.Atoi(who.Metadata[layoutKey])
			members = append(members, Member{Instance: who.ID, Version: who.Version, Settings: who.Metadata[settingsKey], Layout: layout})
		}
		return true
	})
	if err != nil {
		return nil, fmt.Errorf("asking which instances are alive: %w", err)
	}
	return members, nil
}

// count asks who is there. Without any answer, even this instance's own, the last number stands.
func (f *Fleet) count(ctx context.Context) {
	members, _ := Members(ctx, f.conn, f.o.Deployment)
	alive, differ := int64(len(members)), false
	for _, m := range members {
		differ = differ || m.Settings != "" && f.o.Settings != "" && m.Settings != f.o.Settings
		if m.Layout != f.o.Layout && !f.mixed.Swap(true) {
			f.o.Logger.Error("an instance of another layout is running, stop it", "instance", m.Instance, "its_layout", m.Layout, "layout", f.o.Layout)
		}
	}
	if alive == 0 || ctx.Err() != nil {
		return
	}
	if alive != f.alive.Swap(alive) {
		f.o.Logger.Info("number of instances has changed", "instances", alive)
	}
	f.o.Compared(ctx, differ)
}

// Ask collects the reports of the instances of a deployment, in the order in which they come. It returns when so many have answered as
// are expected, or when no more answer in time. 0 expects any number. If instances answer that they cannot report, the error is theirs,
// and the reports are those of the others.
func Ask(ctx context.Context, conn *nats.Conn, deployment string, expected int) ([]json.RawMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, askFor)
	defer cancel()
	var reports []json.RawMessage
	var failed []error
	err := ask(ctx, conn, StatusSubject, []byte(deployment), func(answer *nats.Msg) bool {
		why := answer.Header.Get(micro.ErrorHeader)
		switch {
		case why != "":
			failed = append(failed, fmt.Errorf("a worker cannot report: %s", why))
		case json.Valid(answer.Data):
			reports = append(reports, answer.Data)
		case len(answer.Data) == 0: // nobody is there
			return false
		}
		return expected == 0 || len(reports)+len(failed) < expected
	})
	if err != nil {
		return nil, fmt.Errorf("asking the workers: %w", err)
	}
	return reports, errors.Join(failed...)
}

// ask publishes a question, and hands each answer to take until take wants no more or the context ends.
func ask(ctx context.Context, conn *nats.Conn, subject string, question []byte, take func(answer *nats.Msg) (more bool)) error {
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
	for {
		answer, err := answers.NextMsgWithContext(ctx)
		if err != nil || !take(answer) {
			return nil // no more answers come in time
		}
	}
}
