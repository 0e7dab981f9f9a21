package slack

import (
	"cmp"
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
	maxUserGroups = 4 << 20
	// A page of channels has to fit in client.DefaultLimit. A channel takes 1 to 1.5 KiB.
	channelsInPage  = 40
	maxChannelPages = 25
)

// web makes the requests of Slack's Web API that post nothing.
type web struct {
	api     *slack.Client
	client  *client.Client
	timeout time.Duration // of one request
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

// memberships asks Slack for the channels that the bot is in, by name.
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
	for range maxChannelPages {
		if _, failure := w.client.Ask(ctx, list); failure != nil {
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
	return nil, &sink.Error{Class: sink.Unknown, Code: codeTooMany, Channel: "users.conversations", Err: err}
}

// channels knows the IDs of channels by the names in the settings. The methods that read messages take IDs alone.
type channels struct {
	web *web

	listing sync.Mutex               // held during a request, so that concurrent look-ups share it
	member  map[string]slack.Channel // of the last list, by name; guarded by listing
	again   time.Time                // when a channel that is not in the list is worth another one; guarded by listing

	mu    sync.Mutex
	known map[string]string // of learn, by destination
}

// learn notes the ID of a channel, as an answer to a post has it.
func (c *channels) learn(destination, id string) {
	if !channelID.MatchString(id) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known[destination] = id
}

// id returns the ID of a channel. If no post to the channel has shown its ID, it asks Slack for the bot's channels. It returns "" if the
// bot is not in the channel.
func (c *channels) id(ctx context.Context, destination string) (string, *sink.Error) {
	if channelID.MatchString(destination) {
		return destination, nil
	}
	c.listing.Lock()
	defer c.listing.Unlock()
	c.mu.Lock()
	id := c.known[destination]
	c.mu.Unlock()
	name := strings.ToLower(strings.TrimPrefix(destination, "#"))
	if id == "" && c.member[name].ID == "" && !time.Now().Before(c.again) {
		member, failure := c.web.memberships(ctx)
		if failure != nil {
			return "", failure
		}
		c.member, c.again = member, time.Now().Add(lookUpPause)
	}
	return cmp.Or(id, c.member[name].ID), nil
}
