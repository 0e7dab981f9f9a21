package cli

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/screen"
	"github.com/seed-4578ace9/notifier/internal/setup"
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/sink/render"
	"github.com/seed-4578ace9/notifier/internal/sink/slack"
)

// publishTimeout bounds the wait until all events are stored.
const publishTimeout = 10 * time.Second

// accountTimeout bounds the check for JetStream, which the user may not be permitted to make.
const accountTimeout = 2 * time.Second

const maxPending = 512

func newPublishCommand() *cobra.Command {
	var p publisher
	command := &cobra.Command{
		Use:   "publish CATEGORY TEXT",
		Short: "Publish an event",
		Long: "Publish one event to CATEGORY, or with --stdin one event for each line of standard input: a JSON object as the\n" +
			"worker takes it. With --stdin CATEGORY may be left out, and each line names its own. A line without a category,\n" +
			"or that workers would reject, is reported and not published. A line with several alerts, of which workers\n" +
			"would reject some, is reported and published.\n\n" +
			"With --preview the command publishes nothing: it prints the message for Slack and a picture of it.",
		Example: "  notifier publish payments \"card declined\"\n" +
			"  notifier publish payments.refunds \"refund failed\" --severity error --field order=4711\n" +
			"  notifier publish payments.refunds \"refund failed\" --status firing --key refunds\n" +
			"  notifier publish payments \"card declined\" --preview\n" +
			"  notifier publish --stdin < events.jsonl",
		Args: p.checkArguments,
		RunE: p.run,
	}
	flags := command.Flags()
	flags.BoolVar(&p.stdin, "stdin", false, "read events from standard input, a JSON object on each line")
	flags.IntVar(&p.count, "count", 1, "publish the event this many times")
	flags.BoolVar(&p.preview, "preview", false, "print the message instead of publishing the event")
	flags.StringVar(&p.body.Title, "title", "", "title of the event")
	flags.StringVar(&p.body.Severity, "severity", "", "info, warning, error or critical")
	flags.StringVar(&p.body.Source, "source", "", "where the event comes from")
	flags.StringVar(&p.body.Link, "link", "", "an http or https address")
	flags.StringVar(&p.body.ID, "id", "", "ID of the event: another event of the category with this ID is a duplicate")
	flags.StringVar(&p.body.Status, "status", "", "firing or resolved; with --key")
	flags.StringVar(&p.body.Key, "key", "", "what the event is about: a resolved event ends the firing event with its key")
	flags.IntVar(&p.body.Cost, "cost", 0, "how many slots the event takes (default 1)")
	flags.StringArrayVar(&p.fields, "field", nil, "a field, as `name=value`; may be repeated")
	return command
}

// publisher has the flags of the command. run sets the remaining fields.
type publisher struct {
	stdin   bool
	preview bool
	count   int
	fields  []string // each name=value
	body    publishedEvent

	decoder  event.Decoder // as a worker has it
	subject  string
	largest  int64 // body that NATS takes; 0 if nothing is published
	in       io.Reader
	problems io.Writer
}

type publishedEvent struct {
	ID       string            `json:"id,omitempty"`
	Title    string            `json:"title,omitempty"`
	Text     string            `json:"text,omitempty"`
	Severity string            `json:"severity,omitempty"`
	Source   string            `json:"source,omitempty"`
	Link     string            `json:"link,omitempty"`
	Status   string            `json:"status,omitempty"`
	Key      string            `json:"key,omitempty"`
	Cost     int               `json:"cost,omitempty"`
	Fields   map[string]string `json:"fields,omitempty"`
}

func (p *publisher) checkArguments(cmd *cobra.Command, arguments []string) error {
	others := cmd.Flags().NFlag() - 1 // beside --stdin
	if cmd.Flags().Changed("preview") {
		others--
	}
	switch {
	case p.stdin && len(arguments) > 1:
		return errors.New("--stdin takes at most a category")
	case p.stdin && others > 0:
		return errors.New("--stdin goes with no other flag than --preview: each line is an event")
	case !p.stdin && len(arguments) != 2:
		return errors.New("expected a category and a text")
	case p.count < 1:
		return errors.New("--count is below 1")
	case p.count > 1 && p.body.ID != "":
		return errors.New("--count with --id would publish duplicates")
	case cmd.Flags().Changed("cost") && p.body.Cost < 1: // the body leaves a cost of 0 out
		return errors.New("--cost is below 1")
	}
	p.body.Fields = make(map[string]string, len(p.fields))
	for _, field := range p.fields {
		name, value, isField := strings.Cut(field, "=")
		if !isField {
			return fmt.Errorf("--field %s is not name=value", field)
		}
		p.body.Fields[name] = value
	}
	if len(arguments) > 0 {
		return event.ValidatePath(strings.ToLower(arguments[0])) // as the worker does
	}
	return nil
}

func (p *publisher) run(cmd *cobra.Command, arguments []string) error {
	settings, _, err := Settings(config.Options{Sink: config.SinkConsole, CheckTemplate: setup.CheckTemplate})
	if err != nil {
		return err
	}
	p.in, p.problems = cmd.InOrStdin(), cmd.ErrOrStderr()
	p.decoder = setup.Decoder(settings)
	p.subject = settings.NATS.Subject
	if len(arguments) > 0 {
		p.subject += "." + strings.ToLower(arguments[0])
	}
	var body input
	if !p.stdin {
		p.body.Text = arguments[1]
		if body.data, err = json.Marshal(p.body); err != nil {
			return err
		}
		if body.events, err = p.read(body.data); err != nil {
			return &UsageError{fmt.Errorf("workers would reject this event: %w", err)}
		}
	}
	if p.preview {
		return p.show(cmd.Context(), settings, body, cmd.OutOrStdout())
	}
	return p.publish(cmd.Context(), settings, body, cmd.OutOrStdout())
}

func (p *publisher) publish(ctx context.Context, settings config.Config, body input, out io.Writer) error {
	connection, err := setup.DialNATS(ctx, settings.NATS)
	if err != nil {
		return fmt.Errorf("nats: %s", setup.ExplainNATS(err))
	}
	defer connection.Conn.Close()
	session := &publishing{connection: connection, js: setup.JetStream(connection, jetstream.WithPublishAsyncTimeout(publishTimeout))}
	p.largest = connection.Conn.MaxPayload()
	publish := func(body input) error { return session.publish(ctx, p.subject, body.data) }
	if p.stdin {
		err = p.lines(ctx, publish)
	} else {
		for n := 0; n < p.count && err == nil; n++ {
			err = publish(body)
		}
	}
	stored, storeErr := session.await(ctx)
	_, _ = fmt.Fprintf(out, "published %d\n", stored)
	return errors.Join(err, storeErr)
}

// input is a body and the events that a worker makes of it: one for each alert that the worker accepts.
type input struct {
	data   []byte
	events []event.Event
}

// read returns the events that a worker makes of a body, and an error about alerts that it refuses. Without events, nothing is published.
func (p *publisher) read(body []byte) ([]event.Event, error) {
	switch {
	case body[0] != '{':
		return nil, errors.New("not a JSON object")
	case p.largest > 0 && int64(len(body)) > p.largest:
		return nil, fmt.Errorf("it has %d bytes, and NATS takes %d at most (max_payload)", len(body), p.largest)
	}
	messages, bad := event.MessagesOf(p.decoder, event.Message{Subject: p.subject, Data: body, Stream: "preview", Sequence: 1})
	var events []event.Event
	for _, m := range messages {
		e, err := p.decoder.Decode(m)
		if err != nil {
			return nil, err
		}
		if !event.IsGroup(body) && e.Category == event.Default && m.Subject == p.decoder.Prefix && !namesDefault(m.Data) {
			return nil, errors.New("no category: name one in the line, or one for all lines behind --stdin")
		}
		events = append(events, e)
	}
	if bad != nil {
		return events, bad
	}
	return events, nil
}

func namesDefault(body []byte) bool {
	var named struct {
		Category string `json:"category"`
	}
	return json.Unmarshal(body, &named) == nil && strings.EqualFold(named.Category, event.Default)
}

// publishing has the events that are not acknowledged yet.
type publishing struct {
	connection *stream.Connection
	js         jetstream.JetStream
	pending    []jetstream.PubAckFuture
	stored     int
}

func (p *publishing) publish(ctx context.Context, subject string, body []byte) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if len(p.pending) == maxPending {
		if _, err := p.await(ctx); err != nil {
			return err
		}
	}
	future, err := p.js.PublishMsgAsync(&nats.Msg{Subject: subject, Data: body})
	if err != nil {
		return fmt.Errorf("publishing to %s: %w", subject, err)
	}
	p.pending = append(p.pending, future)
	return nil
}

// await waits until all published events are stored or have timed out, also after the end of the context, and returns how many are stored.
func (p *publishing) await(ctx context.Context) (stored int, err error) {
	for _, future := range p.pending {
		select {
		case <-future.Ok():
			p.stored++
		case failure := <-future.Err():
			err = fmt.Errorf("publishing to %s: %w", future.Msg().Subject, p.explain(ctx, failure))
		}
	}
	p.pending = p.pending[:0]
	return p.stored, err
}

// explain adds the likely cause to the error of a denied subject or a missing stream.
func (p *publishing) explain(ctx context.Context, err error) error {
	if errors.Is(err, jetstream.ErrAsyncPublishTimeout) {
		return setup.WithDenied(err, p.connection)
	}
	if !errors.Is(err, nats.ErrNoResponders) && !errors.Is(err, jetstream.ErrNoStreamResponse) {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, accountTimeout)
	defer cancel()
	_, answer := p.js.AccountInfo(ctx)
	switch {
	case errors.Is(answer, jetstream.ErrJetStreamNotEnabled):
		return fmt.Errorf("%w (the NATS server runs without JetStream: start it with -js, or jetstream {} in its configuration)", err)
	case errors.Is(answer, jetstream.ErrJetStreamNotEnabledForAccount):
		return fmt.Errorf("%w (JetStream is not enabled for this account of the NATS server)", err)
	}
	return fmt.Errorf("%w (no stream takes this subject at present: start a worker or run notifier provision; a cluster that elects a leader takes it in a moment)", err)
}

// lines passes on each line that a worker would accept, at least in part. It prints faults of lines, and returns an error if there are any.
func (p *publisher) lines(ctx context.Context, take func(input) error) error {
	lines, ended := make(chan []byte), make(chan error, 1)
	go func() { // a read from a silent input cannot be interrupted
		ended <- p.readLines(ctx, lines)
		close(lines)
	}()
	refused, partly := 0, 0
	for number := 1; ; number++ {
		var line input
		var more bool
		select {
		case line.data, more = <-lines:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if !more {
			break
		}
		if len(line.data) == 0 {
			continue
		}
		var fault error
		if line.events, fault = p.read(line.data); fault != nil {
			_, _ = fmt.Fprintf(p.problems, "line %d: %v\n", number, fault)
		}
		switch {
		case line.events == nil:
			refused++
			continue
		case fault != nil:
			partly++
		}
		if err := take(line); err != nil {
			return err
		}
	}
	return cmp.Or(<-ended, faultsOf(refused, partly))
}

// faultsOf returns an error that counts the lines that workers would reject, and the lines with alerts that they would reject.
func faultsOf(refused, partly int) error {
	var faults []string
	if refused > 0 {
		faults = append(faults, screen.Numbered(refused, "line was", "lines were")+" not published")
	}
	if partly > 0 {
		faults = append(faults, screen.Numbered(partly, "line has", "lines have")+" alerts that workers would reject")
	}
	if faults == nil {
		return nil
	}
	return errors.New(strings.Join(faults, "; "))
}

// readLines passes on each line, without blanks around it and without the byte order mark of an editor.
func (p *publisher) readLines(ctx context.Context, lines chan<- []byte) error {
	scanner := bufio.NewScanner(p.in)
	scanner.Buffer(nil, event.MaxLine)
	for scanner.Scan() {
		select {
		case lines <- bytes.TrimSpace(event.TrimStart(bytes.Clone(scanner.Bytes()))):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if err := scanner.Err(); err != nil {
		return fmt.Errorf("reading standard input: %w", err)
	}
	return nil
}

// show prints the Slack message of each event and publishes nothing.
func (p *publisher) show(ctx context.Context, settings config.Config, body input, out io.Writer) error {
	template, err := setup.SlackTemplate(settings)
	if err != nil {
		return err
	}
	preview := func(body input) error {
		for _, e := range body.events {
			d := sink.Delivery{Event: e, Mention: slack.MentionPreview(settings.Slack.Mentions, e.Category)}
			rendered, picture, err := render.Preview(template, d)
			if err != nil {
				return err
			}
			if _, err := fmt.Fprintf(out, "%s\n%s\n", rendered, picture); err != nil {
				return err
			}
		}
		return nil
	}
	if !p.stdin {
		return preview(body)
	}
	return p.lines(ctx, preview)
}
