package slack

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/slack-go/slack"

	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/sink/client"
)

const (
	// maxUserGroups bounds the list of user groups, in bytes. Slack sends it as a whole, and a group takes about 600 bytes.
	maxUserGroups   = 4 << 20
	channelsInPage  = 200
	maxChannelPages = 25
	// maxChannelPage bounds one page of channels, in bytes. A channel takes 1 to 1.5 KiB.
	maxChannelPage = 1 << 20
	// noteEvery is the time after which an instance notes the ID of a channel and its routes again: Redis may have lost them.
	noteEvery = time.Hour
	// failurePause is the time after a list of channels that failed.
	failurePause = 10 * time.Second
)

// web makes the requests of Slack's Web API that post nothing.
type web struct {
	api     *slack.Client
	client  *client.Client
	timeout time.Duration // of one request
	pacer   Pacer
}

// alone is the Pacer, the IDs and the Reading of a sink that shares nothing.
type alone struct{}

// AwaitLookUp implements Pacer.
func (alone) AwaitLookUp(ctx context.Context) error { return ctx.Err() }

// PauseLookUps implements Pacer.
func (alone) PauseLookUps(context.Context, time.Duration) {}

// ID implements IDs.
func (alone) ID(context.Context, string) (string, error) { return "", nil }

// Note implements IDs.
func (alone) Note(context.Context, string, string) error { return nil }

// Routes implements IDs.
func (alone) Routes(context.Context, string) ([]string, error) { return nil, nil }

// Await implements Reading.
func (alone) Await(context.Context, func() (int, time.Duration)) (map[string]string, int, error) {
	return nil, 0, nil
}

// Begin implements Reading.
func (alone) Begin(_ context.Context, ago time.Duration) time.Duration { return ago }

// End implements Reading.
func (alone) End(context.Context, map[string]string, bool) {}

// awaitTurn waits until one more look-up is allowed.
func (w *web) awaitTurn(ctx context.Context, method string) *sink.Error {
	if err := w.pacer.AwaitLookUp(ctx); err != nil {
		return notLookedUp(method, err)
	}
	return nil
}

// lookUp makes a request whose turn has come. If Slack limits it, all instances pause.
func (w *web) lookUp(ctx context.Context, call client.Call) (client.Reply, *sink.Error) {
	reply, failure := w.client.Ask(ctx, call)
	if failure != nil && failure.Class == sink.RateLimited {
		w.pacer.PauseLookUps(ctx, failure.RetryAfter)
	}
	return reply, failure
}

// notLookedUp is the failure of a look-up that made no request.
func notLookedUp(method string, err error) *sink.Error {
	return &sink.Error{Class: sink.Transient, Channel: method, Err: fmt.Errorf("not looked up: %w", err)}
}

// method returns the call of a method. do makes its request with w.api.
func (w *web) method(name string, do func(context.Context) error) client.Call {
	return client.Call{Method: name, Destination: name, Timeout: w.timeout, Do: do, Judge: judgeMethod}
}

// userGroups asks Slack for the IDs of the user groups in use, by handle.
func (w *web) userGroups(ctx context.Context) (map[string]string, *sink.Error) {
	var list []slack.UserGroup
	call := w.method("usergroups.list", func(ctx context.Context) (err error) {
		list, err = w.api.GetUserGroupsContext(ctx)
		return err
	})
	call.Limit = maxUserGroups
	if _, failure := w.client.Ask(ctx, call); failure != nil {
		return nil, failure
	}
	groups := make(map[string]string, len(list))
	for _, group := range list {
		if group.DateDelete == 0 && mentionedGroup.MatchString(group.ID) {
			groups[group.Handle] = group.ID
		}
	}
	return groups, nil
}

// memberships asks Slack for the channels that the bot is in, by name. The token needs the scopes for public and for private channels.
func (w *web) memberships(ctx context.Context) (map[string]slack.Channel, *sink.Error) {
	member := make(map[string]slack.Channel)
	parameters := slack.GetConversationsForUserParameters{
		Types: []string{"public_channel", "private_channel"}, Limit: channelsInPage, ExcludeArchived: true,
	}
	var page []slack.Channel
	list := w.method("users.conversations", func(ctx context.Context) (err error) {
		page, parameters.Cursor, err = w.api.GetConversationsForUserContext(ctx, &parameters)
		return err
	})
	list.Limit = maxChannelPage
	list.Judge = func(r client.Reply, err error) client.Verdict { return judgeLookUp(r, err, err == nil) }
	for range maxChannelPages {
		failure := w.awaitTurn(ctx, list.Method)
		if failure == nil {
			_, failure = w.lookUp(ctx, list)
		}
		if failure != nil {
			return nil, failure
		}
		for _, channel := range page {
			member[channel.Name] = channel
		}
		if parameters.Cursor == "" {
			return member, nil
		}
	}
	err := fmt.Errorf("the bot is in more than %d channels", channelsInPage*maxChannelPages)
	return nil, &sink.Error{Class: sink.Unknown, Code: codeTooMany, Channel: list.Method, Err: err}
}

// channels knows the IDs of channels by the names in the settings. The methods that read messages take IDs alone.
type channels struct {
	web    *web
	shared IDs

	listing chan struct{}            // holds an element during a list, so that concurrent look-ups share it
	member  map[string]slack.Channel // of the last list that succeeded, by name; guarded by listing
	failure *sink.Error              // of the last list; guarded by listing
	again   time.Time                // no list before then; guarded by listing

	mu    sync.Mutex
	known map[string]known // by destination
}

// known is the ID of a channel.
type known struct {
	id    string
	noted time.Time // when Redis last had it
}

func newChannels(w *web, shared IDs) *channels {
	return &channels{web: w, shared: shared, listing: make(chan struct{}, 1), known: make(map[string]known)}
}

// learn notes the ID of a channel, for all instances. The next instance may have to look before it posts.
func (c *channels) learn(ctx context.Context, destination, id string) {
	if id == destination || !sink.IsChannelID(id) {
		return
	}
	now := time.Now()
	c.mu.Lock()
	is := c.known[destination]
	isNoted := is.id == id && now.Sub(is.noted) < noteEvery
	c.known[destination] = known{id, is.noted}
	c.mu.Unlock()
	if isNoted || c.shared.Note(context.WithoutCancel(ctx), destination, id) != nil {
		return
	}
	c.mu.Lock()
	c.known[destination] = known{id, now}
	c.mu.Unlock()
}

// id returns the ID of a channel, "" if the bot is not in the channel. Redis has what the newest post of any instance has shown. What this instance
// knows may be older: the name may have gone to another channel since. If neither has the ID, id asks Slack for the bot's channels. If Slack's
// list lacks the channel and Redis does not answer, id fails: another instance may know the ID.
func (c *channels) id(ctx context.Context, destination string) (string, *sink.Error) {
	if sink.IsChannelID(destination) {
		return destination, nil
	}
	id, err := c.shared.ID(ctx, destination)
	c.mu.Lock()
	if id != "" {
		c.known[destination] = known{id, time.Now()}
	}
	id = c.known[destination].id
	c.mu.Unlock()
	if id != "" {
		return id, nil
	}
	id, failure := c.listed(ctx, destination)
	if err != nil && id == "" && (failure == nil || isHidden(failure)) {
		return "", notLookedUp(destination, fmt.Errorf("the channel's ID: %w", err))
	}
	c.learn(ctx, destination, id)
	return id, failure
}

// listed returns the ID of a channel from the list of the bot's channels, "" if the channel is not in it. After a failure no other list is
// asked for at once.
func (c *channels) listed(ctx context.Context, destination string) (string, *sink.Error) {
	select {
	case c.listing <- struct{}{}:
		defer func() { <-c.listing }()
	case <-ctx.Done():
		return "", notLookedUp(destination, ctx.Err())
	}
	name := strings.ToLower(strings.TrimPrefix(destination, "#"))
	if c.member[name].ID == "" && !time.Now().Before(c.again) {
		member, failure := c.web.memberships(ctx)
		if failure != nil && ctx.Err() != nil {
			return "", failure // it says nothing about Slack
		}
		pause := lookUpPause
		if failure != nil && !isHidden(failure) {
			pause = max(failurePause, failure.RetryAfter)
		}
		if failure == nil {
			c.member = member
		}
		c.failure, c.again = failure, time.Now().Add(pause)
	}
	if id := c.member[name].ID; id != "" {
		return id, nil
	}
	return "", c.failure
}
