package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/consume"
	"github.com/seed-4578ace9/notifier/internal/event"
)

// publishTimeout bounds how long it takes to reach NATS and to have everything stored.
const publishTimeout = 10 * time.Second

// maxPending is how many events are on their way to JetStream at once.
const maxPending = 512

func newPublishCommand() *cobra.Command {
	var p publisher
	command := &cobra.Command{
		Use:   "publish CATEGORY TEXT",
		Short: "Publish an event",
		Long: "Publish one event to CATEGORY, or with --stdin one event for each line of standard input: a JSON object as the\n" +
			"worker takes it. With --stdin CATEGORY may be left out, and each line names its own. A line that the worker\n" +
			"would refuse is reported and not published.\n\n" +
			"With --preview the command publishes nothing: it prints the message for Slack and a picture of it.",
		Example: "  notifier publish payments \"card declined\"\n" +
			"  notifier publish payments.refunds \"refund failed\" --severity error --field order=4711\n" +
			"  notifier publish payments.refunds \"refund failed\" --status firing --key refunds\n" +
			"  notifier publish payments \"card declined\" --preview\n" +
			"  notifier publish --stdin < events.jsonl",
		Args: p.checkArguments,
		RunE: func(cmd *cobra.Command, arguments []string) error {
			return p.run(cmd.Context(), arguments, cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
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
	flags.StringToStringVar(&p.body.Fields, "field", nil, "a field, as name=value; may be repeated")
	return command
}

// publisher is the command's flags.
type publisher struct {
	stdin   bool
	preview bool
	count   int
	body    publishedEvent
}

// publishedEvent is an event's body.
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
	fault := ""
	switch {
	case p.stdin && len(arguments) > 1:
		fault = "--stdin takes at most a category"
	case !p.stdin && len(arguments) != 2:
		fault = "expected a category and a text"
	case p.count < 1:
		fault = "--count is below 1"
	case p.count > 1 && p.body.ID != "":
		fault = "--count with --id would publish duplicates"
	}
	if fault == "" && len(arguments) > 0 {
		arguments[0] = strings.ToLower(arguments[0]) // as the worker does
		if err := event.ValidatePath(arguments[0]); err != nil {
			fault = err.Error()
		}
	}
	if fault != "" {
		return &usageError{fmt.Errorf("%s\nSee '%s --help'", fault, cmd.CommandPath())}
	}
	return nil
}

func (p *publisher) run(ctx context.Context, arguments []string, in io.Reader, out, problems io.Writer) error {
	settings, _, err := config.Load(config.Options{Sink: config.SinkConsole, CheckTemplate: checkTemplate})
	if err != nil {
		return &usageError{err}
	}
	subject := settings.NATS.Subject
	if len(arguments) > 0 {
		subject += "." + arguments[0]
	}
	decoder := event.Decoder{Prefix: settings.NATS.Subject, MaxBytes: settings.Event.MaxBytes}
	var body []byte
	if !p.stdin {
		p.body.Text = arguments[1]
		if body, err = json.Marshal(p.body); err != nil {
			return err
		}
		if err := acceptable(decoder, subject, body); err != nil {
			return &usageError{fmt.Errorf("the worker would refuse this event: %w", err)}
		}
	}
	if p.preview {
		return p.show(settings, decoder, subject, body, in, out, problems)
	}
	session, err := openPublishing(ctx, settings)
	if err != nil {
		return err
	}
	defer session.close()
	refused := 0
	if p.stdin {
		refused, err = publishLines(decoder, subject, in, problems, func(body []byte) error {
			return session.publish(ctx, subject, body)
		})
	} else {
		for range p.count {
			err = errors.Join(err, session.publish(ctx, subject, body))
		}
	}
	stored, storeErr := session.await(ctx)
	_, _ = fmt.Fprintf(out, "published %d\n", stored)
	if err = errors.Join(err, storeErr); err != nil {
		return err
	}
	return notTaken(refused)
}

func notTaken(refused int) error {
	if refused > 0 {
		return fmt.Errorf("%d lines were not published", refused)
	}
	return nil
}

// acceptable tells why the worker would not take a body.
func acceptable(decoder event.Decoder, subject string, body []byte) error {
	_, err := decoder.Decode(event.Message{Subject: subject, Data: body, Stream: "stream", Sequence: 1})
	return err
}

// publishing is a connection with events on their way.
type publishing struct {
	js      jetstream.JetStream
	close   func()
	pending []jetstream.PubAckFuture
	stored  int
}

func openPublishing(ctx context.Context, settings config.Config) (*publishing, error) {
	connection, err := connectNATS(settings.NATS, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	if err := awaitConnection(ctx, connection); err != nil {
		connection.Conn.Close()
		return nil, err
	}
	js, err := jetstream.New(connection.Conn, jetstream.WithPublishAsyncTimeout(publishTimeout))
	if err != nil {
		connection.Conn.Close()
		return nil, fmt.Errorf("using jetstream: %w", err)
	}
	return &publishing{js: js, close: connection.Conn.Close}, nil
}

// awaitConnection waits for a connection that is being made, but not for ever.
func awaitConnection(ctx context.Context, connection *consume.Connection) error {
	ctx, cancel := context.WithTimeout(ctx, publishTimeout/2)
	defer cancel()
	for !connection.Conn.IsConnected() {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("connecting to nats: %w", cmp.Or(connection.Failure(), context.Cause(ctx)))
		}
	}
	return nil
}

func (p *publishing) publish(ctx context.Context, subject string, body []byte) error {
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

// await returns when everything published is stored, and how much was stored so far.
func (p *publishing) await(ctx context.Context) (stored int, err error) {
	for _, future := range p.pending {
		select {
		case <-future.Ok():
			p.stored++
		case failure := <-future.Err():
			err = fmt.Errorf("publishing to %s: %w", future.Msg().Subject, explain(failure))
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	p.pending = p.pending[:0]
	return p.stored, err
}

// explain says what is behind an error that newcomers meet.
func explain(err error) error {
	if errors.Is(err, nats.ErrNoResponders) || errors.Is(err, jetstream.ErrNoStreamResponse) {
		return fmt.Errorf("%w (no stream takes this subject; a worker creates it, so start one first)", err)
	}
	return err
}

var errNotObject = errors.New("not a JSON object")

// maxLine is the longest line of standard input: the largest body that a setting allows, and a line feed.
const maxLine = 64<<20 + 1

// publishLines publishes each line that the worker would take and reports the others.
func publishLines(
	decoder event.Decoder, subject string, in io.Reader, problems io.Writer, publish func(body []byte) error,
) (refused int, err error) {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxLine)
	for number := 1; lines.Scan(); number++ {
		body := bytes.TrimSpace(bytes.Clone(lines.Bytes()))
		if len(body) == 0 {
			continue
		}
		err := acceptable(decoder, subject, body)
		if body[0] != '{' {
			err = errNotObject
		}
		if err != nil {
			refused++
			_, _ = fmt.Fprintf(problems, "line %d: %v\n", number, err)
			continue
		}
		if err := publish(body); err != nil {
			return refused, err
		}
	}
	if err := lines.Err(); err != nil && !errors.Is(err, os.ErrClosed) {
		return refused, fmt.Errorf("reading standard input: %w", err)
	}
	return refused, nil
}
