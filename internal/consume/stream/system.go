package stream

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Subjects on which a client asks the server about itself and the connections of its account.
const (
	userInfoSubject    = "$SYS.REQ.USER.INFO"
	connectionsSubject = "$SYS.REQ.ACCOUNT.PING.CONNZ"
)

// globalAccount is the account of every user to whom the server's configuration assigns no other account.
const globalAccount = "$G"

// Bounds of the request for connected clients: each server of a cluster answers for itself.
const (
	firstAnswer     = 2 * time.Second
	furtherAnswers  = 300 * time.Millisecond
	mostConnections = 4096
	mostNamed       = 5
)

// forgery describes what a producer can do in the workers' account.
const forgery = "a producer in this account can forge live limits, dead letters and events of others through its reply subjects; " +
	"give producers and notifier ingest an account of their own (configs/nats/notifier.conf)"

// account warns if producers may share the workers' account. A client can see the connections of its account, but not what they publish.
func (c *check) account(ctx context.Context) Finding {
	found := about("nats account")
	account, err := c.ownAccount(ctx)
	if err != nil {
		return found("", warning{fmt.Errorf("which account this is cannot be seen (%w): make sure that producers have another one", err)})
	}
	if account == globalAccount {
		return found("", warn([]string{fmt.Sprintf("%s, which is the account of every user who has no other one: %s", account, forgery)}))
	}
	strangers, err := c.strangers(ctx)
	switch {
	case err != nil:
		return found("", warning{fmt.Errorf("%s; who else is connected to it cannot be seen (%w): make sure that no producer is", account, err)})
	case len(strangers) > 0:
		return found("", warn([]string{fmt.Sprintf("%s, to which others are connected too: %s. If one of them publishes events: %s",
			account, strings.Join(strangers, ", "), forgery)}))
	}
	return found(account+"; only programs of the notifier are connected to it now", nil)
}

// accountSubject is the subject of requests for the use and the limits of the own account.
const accountSubject = jetstream.DefaultAPIPrefix + "INFO"

// storage finds an account that has used up its storage. Without the right to ask there is no finding. The limit of a server and a full disk
// cannot be seen: what workers fail to store is in their reports.
func (c *check) storage(ctx context.Context) []Finding {
	found := about("nats storage")
	denied, err := c.denial(ctx, accountSubject, func(conn *nats.Conn) error { return conn.Publish(accountSubject, nil) })
	if err != nil || denied != "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, APITimeout)
	defer cancel()
	info, err := c.js.AccountInfo(ctx)
	if err != nil {
		return []Finding{found("", c.explain(err))}
	}
	tiers := maps.Clone(info.Tiers) // R1, R3: limits by the number of replicas, each of them for one replica
	if len(tiers) == 0 {
		tiers = map[string]jetstream.Tier{"R1": info.Tier}
	}
	var full []Finding
	for name, tier := range tiers {
		replicas, _ := strconv.ParseInt(strings.TrimPrefix(name, "R"), 10, 64)
		most, size := tier.Limits.MaxStore*max(replicas, 1), int64(c.further.MaxBody+headerBytes)
		if most >= 0 && int64(tier.Store)+size > most { //nolint:gosec // bytes on a disk
			full = append(full, found("", fmt.Errorf("the account has used %d of its %d bytes: JetStream refuses events, also those that wait, and dead letters; "+
				"raise the account's max_store, or remove streams", tier.Store, most)))
		}
	}
	return full
}

// isFull reports whether a stream has no place for a message of a size.
func isFull(c jetstream.StreamConfig, used jetstream.StreamState, size int64) bool {
	return c.MaxBytes > 0 && int64(used.Bytes)+size > c.MaxBytes || c.MaxMsgs > 0 && int64(used.Msgs) >= c.MaxMsgs //nolint:gosec // on a disk
}

type serverAnswer[T any] struct {
	Data T `json:"data"`
}

func (c *check) ownAccount(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, firstAnswer)
	defer cancel()
	message, err := c.Connection.Conn.RequestWithContext(ctx, userInfoSubject, nil)
	if err != nil {
		return "", c.unanswered(userInfoSubject, err)
	}
	var answer serverAnswer[struct {
		Account string `json:"account"`
	}]
	if err := json.Unmarshal(message.Data, &answer); err != nil || answer.Data.Account == "" {
		return "", fmt.Errorf("the server's answer to %s names no account", userInfoSubject)
	}
	return answer.Data.Account, nil
}

// unanswered names the missing permission if the server denied a request.
func (c *check) unanswered(subject string, err error) error {
	if last := c.Connection.Conn.LastError(); errors.Is(last, nats.ErrPermissionViolation) && strings.Contains(last.Error(), subject) {
		return fmt.Errorf("the right to publish %s is missing", subject)
	}
	return fmt.Errorf("asking %s: %w", subject, err)
}

// strangers names the connections of the account that belong neither to a worker nor to a command of the notifier.
func (c *check) strangers(ctx context.Context) ([]string, error) {
	inbox := c.Connection.Conn.NewRespInbox()
	answers, err := c.Connection.Conn.SubscribeSync(inbox)
	if err != nil {
		return nil, fmt.Errorf("listening for answers: %w", err)
	}
	defer func() { _ = answers.Unsubscribe() }()
	question := fmt.Sprintf(`{"auth": true, "limit": %d}`, mostConnections)
	if err := c.Connection.Conn.PublishRequest(connectionsSubject, inbox, []byte(question)); err != nil {
		return nil, fmt.Errorf("asking %s: %w", connectionsSubject, err)
	}
	var named []string
	for wait := firstAnswer; ; wait = furtherAnswers {
		waiting, cancel := context.WithTimeout(ctx, wait)
		message, err := answers.NextMsgWithContext(waiting)
		cancel()
		if err != nil && wait == firstAnswer {
			return nil, c.unanswered(connectionsSubject, err)
		}
		if err != nil {
			return shortened(named), nil
		}
		named = append(named, strangersIn(message.Data)...)
	}
}

func strangersIn(data []byte) (named []string) {
	var answer serverAnswer[struct {
		Connections []struct {
			Name string `json:"name"`
			User string `json:"authorized_user"`
			IP   string `json:"ip"`
		} `json:"connections"`
	}]
	if json.Unmarshal(data, &answer) != nil {
		return nil
	}
	for _, connection := range answer.Data.Connections {
		if connection.Name == programName {
			continue
		}
		name := fmt.Sprintf("%q", cmp.Or(connection.Name, "without a name"))
		if connection.User != "" {
			name += fmt.Sprintf(" (user %q)", connection.User)
		} else {
			name += " from " + connection.IP
		}
		named = append(named, name)
	}
	return named
}

func shortened(named []string) []string {
	slices.Sort(named)
	named = slices.Compact(named)
	if more := len(named) - mostNamed; more > 0 {
		return append(named[:mostNamed], fmt.Sprintf("and %d more", more))
	}
	return named
}

// varz is the subject on which a server answers with its state. Only the system account has it, and accounts that import it from there.
const varz = "$SYS.REQ.SERVER.PING.VARZ"

// SyncInterval returns the sync_interval of the first server that answers, "always" or a duration. Most users may not ask for it.
func SyncInterval(ctx context.Context, conn *nats.Conn) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	answer, err := conn.RequestWithContext(ctx, varz, nil)
	if err != nil {
		return "", fmt.Errorf("ask a server on %s: %w", varz, err)
	}
	var state struct {
		Data struct {
			JetStream struct {
				Config *struct {
					SyncInterval time.Duration `json:"sync_interval"`
					SyncAlways   bool          `json:"sync_always"`
				} `json:"config"`
			} `json:"jetstream"`
		} `json:"data"`
	}
	if err := json.Unmarshal(answer.Data, &state); err != nil {
		return "", fmt.Errorf("read the answer of a server on %s: %w", varz, err)
	}
	switch config := state.Data.JetStream.Config; {
	case config == nil:
		return "", fmt.Errorf("ask a server on %s: it does not run JetStream", varz)
	case config.SyncAlways:
		return "always", nil
	default:
		return config.SyncInterval.String(), nil
	}
}
