package sink

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/slack-go/slack"

	"github.com/seed-4578ace9/notifier/internal/plain"
)

const (
	// A page of channels has to fit in maxReply; one channel takes 1 to 1.5 KiB.
	channelsInPage  = 40
	maxChannelPages = 25
	// postScope lets a token post. Tokens of older kinds have one of olderPostScopes instead.
	postScope = "chat:write"
	// publicScope lets a bot post to public channels that it is not in.
	publicScope = "chat:write.public"
)

var (
	channelID = regexp.MustCompile(`^[CDG][A-Z0-9]{2,}$`)
	userID    = regexp.MustCompile(`^(@.*|[UW][A-Z0-9]{2,})$`)
)

var olderPostScopes = []string{"chat:write:bot", "chat:write:user", "bot"}

var errNotMember = errors.New("not_in_channel: the bot is not in the channel; invite it there")

// Check asks Slack who the token is, and about each channel and each user group's handle as far as the token may ask. It posts
// nothing. A webhook cannot be tried without posting, which is a warning.
func (s *Slack) Check(ctx context.Context) []Problem {
	if s.o.WebhookURL != "" {
		return []Problem{{
			Subject: "Slack webhook",
			Err:     errors.New("an incoming webhook cannot be checked without posting a message"),
			Warning: true,
		}}
	}
	auth, failure := s.call(ctx, s.method("auth.test", func(ctx context.Context, api *slack.Client) error {
		_, err := api.AuthTestContext(ctx)
		return err
	}))
	if failure != nil {
		return []Problem{{Subject: "Slack token", Err: fmt.Errorf("auth.test: %w", failure.Err)}}
	}
	granted := strings.ReplaceAll(auth.header.Get("X-OAuth-Scopes"), " ", "")
	scopes := strings.Split(granted, ",")
	c := channelCheck{Slack: s, public: slices.Contains(scopes, publicScope)}
	var problems []Problem
	mayPost := func(scope string) bool { return scope == postScope || slices.Contains(olderPostScopes, scope) }
	if granted != "" && !slices.ContainsFunc(scopes, mayPost) {
		err := fmt.Errorf("lacks the scope %s: it has %s; add the scope to the app and install the app again", postScope, plain.Line(granted))
		problems = append(problems, Problem{Subject: "Slack token", Err: err})
	}
	for _, channel := range s.Destinations() {
		if warning, err := c.check(ctx, channel); err != nil {
			problems = append(problems, Problem{Subject: "Slack channel " + channel, Err: err, Warning: warning})
		}
	}
	return append(problems, s.checkHandles(ctx)...)
}

// checkHandles looks for the user groups to mention.
func (s *Slack) checkHandles(ctx context.Context) []Problem {
	handles := s.mentions.handles()
	if len(handles) == 0 {
		return nil
	}
	groups, failure := s.userGroups(ctx)
	var problems []Problem
	for _, handle := range handles {
		problem := Problem{Subject: "Slack mention @" + handle}
		switch {
		case failure != nil:
			problem.Err = fmt.Errorf("could not be looked up with usergroups.list: %w", failure.Err)
			problem.Warning = failure.Class != Misconfigured && failure.Class != Rejected
		case groups[handle] == "":
			problem.Err = errNoUserGroup
		default:
			continue
		}
		problems = append(problems, problem)
	}
	return problems
}

// ask makes one request to a method that posts nothing, and decodes the answer.
func (s *Slack) ask(ctx context.Context, r request, answer any) *Error {
	got, failure := s.call(ctx, r)
	if failure == nil && json.Unmarshal(got.body, answer) != nil {
		failure = &Error{Class: Unknown, Channel: r.destination, Err: errors.New("the answer is not one of Slack's")}
	}
	return failure
}

// channelCheck checks the channels of one sink, one after the other.
type channelCheck struct {
	*Slack
	public bool            // the token has publicScope
	member map[string]bool // names of the channels that the bot is in; nil until asked for
}

// check returns what keeps messages from channel. A warning is less than certain.
func (c *channelCheck) check(ctx context.Context, channel string) (warning bool, fault error) {
	if userID.MatchString(channel) {
		return true, errors.New("a direct message to a user cannot be checked")
	}
	var info struct {
		Channel struct {
			Archived bool  `json:"is_archived"`
			Private  bool  `json:"is_private"`
			Member   *bool `json:"is_member"` // absent for direct messages
		} `json:"channel"`
	}
	failure := c.ask(ctx, c.method("conversations.info", func(ctx context.Context, api *slack.Client) error {
		_, err := api.GetConversationInfoContext(ctx, &slack.GetConversationInfoInput{ChannelID: channel})
		return err
	}), &info)
	if failure != nil {
		switch failure.Code {
		case "channel_not_found":
			if channelID.MatchString(channel) {
				return false, errors.New("channel_not_found: no such channel, or it is private and the bot is not in it")
			}
			return c.checkName(ctx, strings.TrimPrefix(channel, "#"))
		case "not_in_channel", "is_archived":
			return false, failure.Err
		default:
			return true, fmt.Errorf("could not be checked with conversations.info: %w", failure.Err)
		}
	}
	switch {
	case info.Channel.Archived:
		return false, errors.New("is_archived: the channel is archived")
	case info.Channel.Member != nil && !*info.Channel.Member && (info.Channel.Private || !c.public):
		return false, errNotMember
	}
	return false, nil
}

// checkName looks for a channel among those that the bot is in. chat.postMessage takes names, but conversations.info knows
// channels by their IDs alone.
func (c *channelCheck) checkName(ctx context.Context, name string) (warning bool, fault error) {
	if c.member == nil {
		if failure := c.loadMember(ctx); failure != nil {
			err := fmt.Errorf("channel_not_found by name, and users.conversations could not tell more: %w", failure.Err)
			rejected := failure.Class == Rejected || failure.Class == Misconfigured
			return !rejected || failure.Code == "missing_scope", err
		}
	}
	switch {
	case c.member[name]:
		return false, nil
	case c.public:
		return true, errors.New("the bot is not in a channel of that name, so only a public one will do; give its ID to have it checked")
	}
	return false, errNotMember
}

func (c *channelCheck) loadMember(ctx context.Context) *Error {
	member := make(map[string]bool)
	parameters := slack.GetConversationsForUserParameters{
		Types: []string{"public_channel", "private_channel"}, Limit: channelsInPage, ExcludeArchived: true,
	}
	list := c.method("users.conversations", func(ctx context.Context, api *slack.Client) error {
		_, _, err := api.GetConversationsForUserContext(ctx, &parameters)
		return err
	})
	for range maxChannelPages {
		var page struct {
			Channels []struct {
				Name string `json:"name"`
			} `json:"channels"`
			Metadata struct {
				Cursor string `json:"next_cursor"`
			} `json:"response_metadata"`
		}
		if failure := c.ask(ctx, list, &page); failure != nil {
			return failure
		}
		for _, channel := range page.Channels {
			member[channel.Name] = true
		}
		if page.Metadata.Cursor == "" {
			c.member = member
			return nil
		}
		parameters.Cursor = page.Metadata.Cursor
	}
	err := fmt.Errorf("the bot is in more than %d channels", channelsInPage*maxChannelPages)
	return &Error{Class: Unknown, Channel: "users.conversations", Err: err}
}
