package slackstub

import (
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testing/slacktest"
)

// view is what the page shows.
type view struct {
	Taken, Refused int        // all posts
	Forgotten      int        // older posts, which are not in Messages
	Messages       []*message // the newest first
}

// message is the present state of a message or a reply.
type message struct {
	Channel string // as the client named it; "webhook" for the webhook's
	At      string
	Updated string // when it was updated last; "" if never
	Refused string // the error code of a post that was refused; "" for a message
	Parts   []part
	Replies []*message // the oldest first
}

// part is a group of texts, beside a bar if Color is set.
type part struct {
	Color string
	Lines []line
}

// line is a text of a message. Kind is header, section, field or context.
type line struct{ Kind, Text string }

// viewOf returns what a server was sent and remembers.
func viewOf(s *slacktest.Server) view {
	received, accepted := s.Counts()
	posts := s.Posts() // perhaps with later ones
	return view{Taken: accepted, Refused: received - accepted, Forgotten: max(0, received-len(posts)), Messages: arranged(posts, s.Updates())}
}

// arranged returns the messages, the newest first, of posts and updates, each in the order of their arrival.
func arranged(posts []slacktest.Post, updates []slacktest.Update) (messages []*message) {
	type place struct{ channel, timestamp string }
	taken := make(map[place]*message)
	for i := range posts {
		post := &posts[i]
		shown := &message{Channel: post.Channel, At: clock(post.Received), Parts: partsOf(post.Message)}
		if post.Method == slacktest.MethodWebhook {
			shown.Channel = "webhook"
		}
		if !post.Accepted {
			shown.Refused = post.Fault
			if shown.Refused == "" {
				shown.Refused = "no answer yet"
			}
		} else {
			taken[place{post.ChannelID, post.Timestamp}] = shown
		}
		if parent := taken[place{post.ChannelID, post.Thread}]; post.Thread != "" && parent != nil {
			parent.Replies = append(parent.Replies, shown)
			continue
		}
		messages = append(messages, shown)
	}
	for _, update := range updates {
		if shown := taken[place{update.Channel, update.Timestamp}]; shown != nil {
			shown.Updated, shown.Parts = clock(update.Received), partsOf(update.Message)
		}
	}
	slices.Reverse(messages)
	return messages
}

func clock(at time.Time) string { return at.Format(time.TimeOnly) }

var colour = regexp.MustCompile(`^#[0-9a-fA-F]{6}$`)

// partsOf returns the texts of a message's blocks and attachments. A message without them has one text.
func partsOf(m slacktest.Message) []part {
	var parts []part
	if len(m.Blocks) > 0 {
		parts = append(parts, part{Lines: linesOf(m.Blocks)})
	}
	for _, attachment := range m.Attachments {
		if !colour.MatchString(attachment.Color) {
			attachment.Color = ""
		}
		parts = append(parts, part{Color: attachment.Color, Lines: linesOf(attachment.Blocks)})
	}
	if len(parts) == 0 {
		parts = append(parts, part{Lines: []line{{"section", plain(m.Text)}}})
	}
	return parts
}

func linesOf(blocks []slacktest.Block) (lines []line) {
	for _, block := range blocks {
		if block.Text != nil {
			lines = append(lines, line{block.Type, plain(block.Text.Text)})
		}
		for _, field := range block.Fields {
			lines = append(lines, line{"field", plain(field.Text)})
		}
		for _, element := range block.Elements {
			lines = append(lines, line{"context", plain(element.Text)})
		}
	}
	return lines
}

// date is a date in a message. Slack shows it in the time zone of its reader.
var date = regexp.MustCompile(`<!date\^[^|>]*\|([^>]*)>`)

// plain replaces dates by their fallback texts, and undoes the escapes of Slack's texts. The template escapes the result for HTML.
func plain(text string) string {
	return strings.NewReplacer("&lt;", "<", "&gt;", ">", "&amp;", "&").Replace(date.ReplaceAllString(text, "$1"))
}
