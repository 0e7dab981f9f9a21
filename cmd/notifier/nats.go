package main

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"os/user"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/consume"
	"github.com/seed-4578ace9/notifier/internal/requirements"
)

// dialTimeout bounds how long a command waits for its connection to NATS.
const dialTimeout = 5 * time.Second

// connectNATS starts to connect, under a name that NATS lists; "" for that of workers and commands.
func connectNATS(settings config.NATS, name string, logger *slog.Logger) (*consume.Connection, error) {
	tls, err := settings.TLS.ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("reading the TLS files for nats: %w", err)
	}
	return consume.Connect(consume.ConnectOptions{
		Name: name, URL: settings.URL.Reveal(), CredsFile: settings.CredsFile, User: settings.User,
		Password: settings.Password.Reveal(), Token: settings.Token.Reveal(), TLS: tls, Inbox: settings.Inbox, Logger: logger,
	})
}

// dialNATS connects for a command, and returns once the connection is there. A server that is too old is an error.
func dialNATS(ctx context.Context, settings config.NATS) (*consume.Connection, error) {
	connection, err := connectNATS(settings, "", slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	for !connection.Conn.IsConnected() {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			err := fmt.Errorf("connecting to nats: %w", cmp.Or(connection.Failure(), context.Cause(ctx)))
			connection.Conn.Close()
			return nil, err
		}
	}
	if err := requirements.NATS().Check(connection.Conn.ConnectedServerVersion(), connection.Conn.ConnectedAddr()); err != nil {
		connection.Conn.Close()
		return nil, err
	}
	return connection, nil
}

// jetStream is a client of JetStream on a connection.
func jetStream(connection *consume.Connection, options ...jetstream.JetStreamOpt) jetstream.JetStream {
	js, err := jetstream.New(connection.Conn, options...)
	if err != nil {
		panic(err) // only options can be wrong
	}
	return js
}

// withNATS reads the settings of a command, connects, and closes the connection after the work.
func withNATS(ctx context.Context, work func(settings config.Config, connection *consume.Connection) error) error {
	settings, _, err := config.Load(config.Options{Sink: config.SinkConsole})
	if err != nil {
		return &usageError{err}
	}
	connection, err := dialNATS(ctx, settings.NATS)
	if err != nil {
		return fmt.Errorf("nats: %s", explainNATS(err))
	}
	defer connection.Conn.Close()
	return work(settings, connection)
}

// explainNATS names the settings to look at.
func explainNATS(err error) string {
	if _, tooOld := errors.AsType[requirements.TooOld](err); tooOld {
		return err.Error()
	}
	if errors.Is(err, nats.ErrAuthorization) {
		return err.Error() + " (check NOTIFIER_NATS_CREDS_FILE, NOTIFIER_NATS_USER and NOTIFIER_NATS_PASSWORD, or NOTIFIER_NATS_TOKEN)"
	}
	return err.Error() + " (check NOTIFIER_NATS_URL)"
}

// explainDenied adds to an error what the server did not permit. A client gets no answer to such a request.
func explainDenied(err error, connection *consume.Connection) error {
	denied := strings.Join(connection.Denied(), "; ")
	if !errors.Is(err, context.DeadlineExceeded) || denied == "" {
		return err
	}
	if strings.Contains(denied, "for Subscription to") {
		denied += "; NOTIFIER_NATS_INBOX is the prefix below which this user may listen"
	}
	return fmt.Errorf("%w (%s)", err, denied)
}

// natsUser is the name of the user as whom these settings connect, "" for none. A token is no name.
func natsUser(settings config.NATS) string {
	return cmp.Or(settings.User, userInURL(settings.URL.Reveal()), userInCreds(settings.CredsFile))
}

// userAtHost names who runs this program, or "" if the system does not know.
func userAtHost() string {
	current, err := user.Current()
	if err != nil {
		return ""
	}
	host, err := os.Hostname()
	if err != nil {
		return current.Username
	}
	return current.Username + "@" + host
}

// userInURL is the user in the first of several URLs that has one. A user without a password is a token.
func userInURL(urls string) string {
	for text := range strings.SplitSeq(urls, ",") {
		parsed, err := url.Parse(strings.TrimSpace(text))
		if err != nil || parsed.User == nil {
			continue
		}
		if _, hasPassword := parsed.User.Password(); hasPassword {
			return parsed.User.Username()
		}
	}
	return ""
}

// userInCreds is the name that a credentials file gives its user, "" where it cannot be read.
func userInCreds(path string) string {
	text, err := os.ReadFile(path) //nolint:gosec // who runs the program names the file
	if err != nil {
		return ""
	}
	token, err := nkeys.ParseDecoratedJWT(text)
	if err != nil {
		return ""
	}
	var claims struct {
		Name string `json:"name"`
	}
	_, payload, _ := strings.Cut(token, ".")
	payload, _, _ = strings.Cut(payload, ".")
	decoded, err := base64.RawURLEncoding.DecodeString(payload)
	if err != nil || json.Unmarshal(decoded, &claims) != nil {
		return ""
	}
	return claims.Name
}
