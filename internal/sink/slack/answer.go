package slack

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"github.com/slack-go/slack"

	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/sink/client"
)

// codes holds Slack's error codes that are not the message's fault, by their class. Transient are only codes with which Slack refuses a
// request before it does anything. After the codes of Unknown, part of the request may have been done.
var codes = map[sink.Class][]string{
	sink.RateLimited: {"ratelimited", "rate_limited"},
	sink.Transient: {
		"service_unavailable",
		"team_added_to_org", // the workspace is being moved
	},
	sink.Unknown: {"internal_error", "fatal_error", "request_timeout"},
	sink.Misconfigured: append([]string{
		"invalid_auth", "not_authed", "token_revoked", "token_expired", "not_allowed_token_type", "account_inactive",
		"missing_scope", "org_login_required", "access_denied", "accesslimited", "two_factor_setup_required", "enterprise_is_restricted",
		"metadata_must_be_sent_from_app", "deprecated_endpoint", "method_deprecated",
		"message_limit_exceeded", // the whole workspace sends too much
	}, channelCodes...),
}

// channelCodes are the codes of Misconfigured that say nothing about other channels.
var channelCodes = []string{
	"channel_not_found", "not_in_channel", "is_archived", "no_permission",
	"restricted_action", "restricted_action_read_only_channel", "restricted_action_thread_only_channel",
	"ekm_access_denied", "team_access_not_granted", "team_not_found", "messages_tab_disabled", "external_channel_migrating",
}

// classOf returns the class of an error code. Every other code, documented or not, is Rejected: it may concern one message, which must not stop
// a channel. Such an event can be replayed from the dead letters.
func classOf(code string) sink.Class {
	for class, of := range codes {
		if slices.Contains(of, code) {
			return class
		}
	}
	return sink.Rejected
}

// lostCodes holds the error codes of updates and replies that mean that the first message or its channel is out of reach. A reply
// would reach nobody.
var lostCodes = []string{
	"message_not_found", "thread_not_found", "invalid_thread_ts", "cannot_reply_to_message",
	"restricted_action_thread_locked", "restricted_action_non_threadable_channel",
	"channel_not_found", "not_in_channel", "is_archived", "is_inactive",
}

// isLost reports whether a failed post shows that its thread is permanently out of reach or, without a thread, all threads of its channel.
func isLost(e *sink.Error, to place) bool {
	class := sink.Misconfigured
	if to.timestamp != "" {
		class = sink.Rejected
	}
	return e.Class == class && slices.Contains(lostCodes, e.Code)
}

// rejectLost rejects an update or a reply whose channel is out of reach. Nothing waits for the channel, so the setup does not count as
// misconfigured, unless Slack refuses new posts too.
func rejectLost(v client.Verdict) client.Verdict {
	if v.Class == sink.Misconfigured && slices.Contains(lostCodes, v.Code) {
		v.Class, v.OfChannel = sink.Rejected, false
	}
	return v
}

// answer is the part of an answer that proves a post or names a fault.
type answer struct {
	ok      bool
	channel string // ID of the channel that took a message
	ts      string
	code    string
	proves  bool // with ok, the answer proves that Slack did what it was asked for; set by the judge of the method
}

// decodeAnswer reads the members of the outermost object one by one, up to the first fault: an answer that was cut short counts
// if its first members prove a post. slack-go reports an error for such an answer. It stops before the posted message, which
// may be large and which Slack sends last.
func decodeAnswer(body []byte) answer {
	var a answer
	decoder := json.NewDecoder(bytes.NewReader(body))
	if start, err := decoder.Token(); err != nil || start != json.Delim('{') {
		return a
	}
	for (!a.ok || a.channel == "" || a.ts == "") && decoder.More() {
		name, err := decoder.Token()
		if err != nil {
			return a
		}
		var value json.RawMessage
		if decoder.Decode(&value) != nil {
			return a
		}
		switch name {
		case "ok":
			err = json.Unmarshal(value, &a.ok)
		case "ts":
			err = json.Unmarshal(value, &a.ts)
		case "error":
			err = json.Unmarshal(value, &a.code)
		case "channel":
			_ = json.Unmarshal(value, &a.channel) // other methods put an object here
		}
		if err != nil {
			return answer{}
		}
	}
	return a
}

// judgePost classifies a decoded answer of chat.postMessage: only a timestamp proves a post.
func judgePost(r client.Reply, err error, a answer) client.Verdict {
	a.proves = a.ts != ""
	return judge(r, err, a)
}

// judgeUpdate classifies the answer of chat.update.
func judgeUpdate(r client.Reply, err error) client.Verdict { return rejectLost(judgeShort(r, err)) }

// judgeShort classifies an answer that may be cut short.
func judgeShort(r client.Reply, err error) client.Verdict {
	a := decodeAnswer(r.Body)
	a.proves = true
	return judge(r, err, a)
}

// judgeLookUp classifies the answer of a look-up. An error code counts only in the form of Slack's answers: a proxy that refuses for a while
// must not be taken for Slack.
func judgeLookUp(r client.Reply, err error, proves bool) client.Verdict {
	var a answer
	if r.Successful() {
		a = decodeAnswer(r.Body)
	}
	a.proves = proves
	return judge(r, err, a)
}

// judgeMethod classifies the answer of a method that has to be complete.
func judgeMethod(r client.Reply, err error) client.Verdict {
	a := decodeAnswer(r.Body)
	a.proves = err == nil
	return judge(r, err, a)
}

// judge classifies an answer of the Web API that slack-go returned err for.
func judge(r client.Reply, err error, a answer) client.Verdict {
	refusal, refused := errors.AsType[slack.SlackErrorResponse](err)
	if !refused && !a.ok {
		refusal.Err = a.code
	}
	v := r.Judge()
	switch {
	case r.Successful() && a.ok && a.proves:
		return client.Verdict{Class: sink.OK}
	case r.Successful() && refusal.Err != "", v.Class == sink.Rejected && refusal.Err != "" && classOf(refusal.Err) != sink.Rejected:
		return judgeRefusal(r, refusal)
	case r.Successful():
		v.Detail = "the answer is not one of Slack's"
	case a.code != "":
		v.Code, v.Detail = a.code, r.Words()
	}
	return v
}

// judgeRefusal classifies an answer by its error code.
func judgeRefusal(r client.Reply, refusal slack.SlackErrorResponse) client.Verdict {
	v := client.Verdict{Class: classOf(refusal.Err), OfChannel: slices.Contains(channelCodes, refusal.Err), Code: refusal.Err}
	if v.Class == sink.RateLimited {
		v.RetryAfter = r.RetryAfter()
	}
	if refusal.Needed != "" {
		v.Detail = "the token lacks the scope " + refusal.Needed
	} else if hints := refusal.ResponseMetadata.Messages; len(hints) > 0 {
		v.Detail = hints[0]
	}
	return v
}

// judgeWebhook classifies the answer of an incoming webhook: "ok" or a code as plain text. Webhooks of workflows answer with the
// Web API's JSON instead.
func judgeWebhook(r client.Reply, err error) client.Verdict {
	text := strings.TrimSpace(string(r.Body))
	if !r.Successful() {
		v := r.Judge()
		v.Code = textCode(r, text)
		return v
	}
	if text == "ok" {
		return client.Verdict{Class: sink.OK}
	}
	return judgeShort(r, err)
}

// textCode returns the first line of a plain text answer. If the body is empty or markup, it returns the status.
func textCode(r client.Reply, text string) string {
	if code := decodeAnswer(r.Body).code; code != "" {
		return code
	}
	line, _, _ := strings.Cut(text, "\n")
	if line == "" || strings.ContainsAny(line[:1], "<{[") {
		return r.Words()
	}
	return line
}
