package slack

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
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/sink/client"
)

const (
	// postScope lets a token post. Older kinds of tokens have one of olderPostScopes instead.
	postScope = "chat:write"
	// publicScope lets a bot post to public channels that it is not in.
	publicScope = "chat:write.public"
)

var userID = regexp.MustCompile(`^(@.*|[UW][A-Z0-9]{2,})$`)

var olderPostScopes = []string{"chat:write:bot", "chat:write:user", "bot"}

var errNotMember = errors.New("not_in_channel: the bot is not in the channel; invite it there")

// Check asks Slack about the token, each channel and each user group's handle, within the scopes of the token. It posts
// nothing. A webhook cannot be tried without posting, which is a warning.
func (s *Sink) Check(ctx context.Context) []sink.Checked {
	if s.o.WebhookURL != "" {
		return []sink.Checked{{
			Subject: "Slack webhook",
			Err:     errors.New("an incoming webhook cannot be checked without posting a message"),
			Warning: true,
		}}
	}
	auth, failure := s.web.testToken(ctx)
	if failure != nil {
		return []sink.Checked{{Subject: "Slack token", Err: failure.Err, Warning: failure.Class == sink.RateLimited}}
	}
	granted := strings.ReplaceAll(auth.Header.Get("X-OAuth-Scopes"), " ", "")
	scopes := strings.Split(granted, ",")
	c := channelCheck{web: s.web, public: slices.Contains(scopes, publicScope), names: make(map[string]string)}
	var problems []sink.Checked
	mayPost := func(scope string) bool { return scope == postScope || slices.Contains(olderPostScopes, scope) }
	if granted != "" && !slices.ContainsFunc(scopes, mayPost) {
		err := fmt.Errorf("lacks the scope %s: it has %s; add the scope to the app and install the app again", postScope, plain.Line(granted))
		problems = append(problems, sink.Checked{Subject: "Slack token", Err: err})
	}
	for _, channel := range s.Destinations() {
		if warning, err := c.check(ctx, channel); err != nil {
			problems = append(problems, sink.Checked{Subject: "Slack channel " + channel, Err: err, Warning: warning})
		}
		c.unknownID = c.unknownID || s.o.LookUp && c.isUnknown(ctx, s.o.IDs, channel)
	}
	problems = append(problems, c.same(s.Destinations())...)
	if missing := c.missingScopes(scopes); granted != "" && s.o.LookUp && len(missing) > 0 {
		problems = append(problems, sink.Checked{Subject: "Slack look-up", Warning: true, Err: fmt.Errorf("the token lacks the scope %s: an event may be "+
			"posted a second time if a worker is killed or an answer is lost right after the post; with the scope the worker looks first", strings.Join(missing, ", "))})
	}
	return append(problems, s.mentions.check(ctx)...)
}

// CheckToken asks Slack whether it accepts the token. If Slack refuses it, refused is true. After any other error it is unknown.
func (s *Sink) CheckToken(ctx context.Context) (refused bool, err error) {
	_, failure := s.web.testToken(ctx)
	if failure == nil {
		return false, nil
	}
	return refusesToken(failure), failure.Err
}

// refusesToken reports whether the failure of auth.test has a code of Slack, and no HTTP status of another server.
func refusesToken(failure *sink.Error) bool { return classOf(failure.Code) == sink.Misconfigured }

func (w *web) testToken(ctx context.Context) (client.Reply, *sink.Error) {
	answer, failure := w.client.Ask(ctx, w.method("auth.test", func(ctx context.Context) error {
		_, err := w.api.AuthTestContext(ctx)
		return err
	}))
	if failure == nil {
		return answer, nil
	}
	advice := "check NOTIFIER_SLACK_API_URL, and the network or proxy in between"
	switch {
	case refusesToken(failure):
		advice = "check NOTIFIER_SLACK_TOKEN"
	case failure.Class == sink.RateLimited:
		advice = fmt.Sprintf("Slack limits the requests: check again in %v", failure.RetryAfter)
	}
	failure.Err = fmt.Errorf("auth.test: %w (%s)", failure.Err, advice)
	return answer, failure
}

// missingScopes returns the scopes that the token lacks for looking posts up in the checked channels. If the ID of a channel is unknown, the
// token also needs the scopes for the list of the bot's channels.
func (c *channelCheck) missingScopes(granted []string) (missing []string) {
	needed := []string{"channels:history"}
	if c.private {
		needed = append(needed, "groups:history")
	}
	if c.unknownID {
		needed = append(needed, "channels:read", "groups:read")
	}
	for _, scope := range needed {
		if !slices.Contains(granted, scope) {
			missing = append(missing, scope)
		}
	}
	return missing
}

// check looks for the user groups to mention.
func (m *mentions) check(ctx context.Context) []sink.Checked {
	handles := m.handles()
	if len(handles) == 0 {
		return nil
	}
	groups, failure := m.list(ctx)
	var problems []sink.Checked
	for _, handle := range handles {
		problem := sink.Checked{Subject: "Slack mention @" + handle}
		switch {
		case failure != nil:
			problem.Err = fmt.Errorf("could not be looked up with usergroups.list: %w", failure.Err)
			problem.Warning = failure.Class != sink.Misconfigured && failure.Class != sink.Rejected
		case groups[handle] == "":
			problem.Err = errNoUserGroup
		default:
			continue
		}
		problems = append(problems, problem)
	}
	return problems
}

// channelCheck checks the channels of a sink in sequence.
type channelCheck struct {
	web     *web
	public  bool                     // the token has publicScope
	private bool                     // one of the channels is private
	member  map[string]slack.Channel // the bot's channels by name; nil until loaded
	names   map[string]string        // of the channels that were checked by their IDs

	unknownID bool // for one of the channels, neither Slack nor a worker has reported the ID
}

// isUnknown reports whether the ID of a checked channel is not known.
func (c *channelCheck) isUnknown(ctx context.Context, shared IDs, channel string) bool {
	if sink.IsChannelID(channel) || userID.MatchString(channel) || c.member[strings.TrimPrefix(channel, "#")].ID != "" {
		return false
	}
	id, _ := shared.ID(ctx, channel)
	return id == ""
}

// check returns the reason why messages cannot reach channel. A warning is uncertain.
func (c *channelCheck) check(ctx context.Context, channel string) (warning bool, fault error) {
	if userID.MatchString(channel) {
		return true, errors.New("a direct message to a user cannot be checked")
	}
	var info *slack.Channel
	reply, failure := c.web.client.Ask(ctx, c.web.method("conversations.info", func(ctx context.Context) (err error) {
		info, err = c.web.api.GetConversationInfoContext(ctx, &slack.GetConversationInfoInput{ChannelID: channel})
		return err
	}))
	if failure != nil {
		switch failure.Code {
		case "channel_not_found":
			if sink.IsChannelID(channel) {
				return false, errors.New("channel_not_found: no such channel, or it is private and the bot is not in it")
			}
			return c.checkName(ctx, strings.TrimPrefix(channel, "#"))
		case "not_in_channel", "is_archived":
			return false, failure.Err
		default:
			return true, fmt.Errorf("could not be checked with conversations.info: %w", failure.Err)
		}
	}
	c.private = c.private || info.IsPrivate
	c.names[channel] = info.Name
	switch {
	case info.IsArchived:
		return false, errors.New("is_archived: the channel is archived")
	case isOutside(reply.Body) && (info.IsPrivate || !c.public):
		return false, errNotMember
	}
	return false, nil
}

// same returns a warning for each channel that the settings have by its name and by its ID.
func (c *channelCheck) same(channels []string) (problems []sink.Checked) {
	for _, id := range channels {
		for _, channel := range channels {
			name := strings.TrimPrefix(channel, "#")
			if sink.IsChannelID(id) && (c.member[name].ID == id || c.names[id] == name) {
				problems = append(problems, sink.Checked{Subject: "Slack channel " + channel, Warning: true, Err: fmt.Errorf(
					"is the same channel as %s: use one of the two in all settings, because each is paced for itself", id)})
			}
		}
	}
	return problems
}

// isOutside reports whether the answer of conversations.info shows that the bot is not in the channel. Answers about direct
// messages do not have this member, which slack-go does not show.
func isOutside(body []byte) bool {
	var info struct {
		Channel struct {
			Member *bool `json:"is_member"`
		} `json:"channel"`
	}
	return json.Unmarshal(body, &info) == nil && info.Channel.Member != nil && !*info.Channel.Member
}

// checkName looks for a channel among the bot's channels. chat.postMessage takes names, but conversations.info takes only IDs.
func (c *channelCheck) checkName(ctx context.Context, name string) (warning bool, fault error) {
	if c.member == nil {
		var failure *sink.Error
		if c.member, failure = c.web.memberships(ctx); failure != nil {
			err := fmt.Errorf("channel_not_found by name, and users.conversations failed: %w", failure.Err)
			rejected := failure.Class == sink.Rejected || failure.Class == sink.Misconfigured
			return !rejected || failure.Code == "missing_scope", err
		}
	}
	channel, isMember := c.member[name]
	switch {
	case isMember:
		c.private = c.private || channel.IsPrivate
		return false, nil
	case c.public:
		return true, errors.New("the bot is not in a channel of that name, so only a public one will do; give its ID to have it checked")
	}
	return false, errNotMember
}
