package sink

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// minRetryAfter stands in where Slack names no usable time: a channel takes about one message a second.
	minRetryAfter = time.Second
	// maxRetryAfter keeps a broken or hostile answer from silencing a channel for good.
	maxRetryAfter = time.Hour
	// maxCode bounds Error.Code, in characters; Slack's own codes are below 50.
	maxCode = 100
	// maxDetail bounds what an error quotes from an answer, in characters.
	maxDetail = 200
)

// codes holds Slack's error codes that are not the message's fault, by their class.
var codes = map[Class][]string{
	RateLimited: {"ratelimited", "rate_limited"},
	Transient: {
		"service_unavailable", "internal_error", "fatal_error", "request_timeout",
		"team_added_to_org", // the workspace is being moved
	},
	Misconfigured: {
		"invalid_auth", "not_authed", "token_revoked", "token_expired", "not_allowed_token_type", "account_inactive",
		"missing_scope", "no_permission", "org_login_required", "team_access_not_granted", "restricted_action",
		"channel_not_found", "not_in_channel", "is_archived",
	},
}

// classOf returns the class of an error code. Every other code, known or not, is Rejected: such an event can be replayed from
// the dead letters.
func classOf(code string) Class {
	for class, of := range codes {
		if slices.Contains(of, code) {
			return class
		}
	}
	return Rejected
}

// lostCodes holds Slack's error codes for an update or a reply whose first message, or its channel, is out of reach. Nobody
// would see a reply there.
var lostCodes = []string{
	"message_not_found", "thread_not_found", "invalid_thread_ts", "cannot_reply_to_message",
	"restricted_action_thread_locked", "restricted_action_non_threadable_channel",
	"channel_not_found", "not_in_channel", "is_archived", "is_inactive",
}

// reply is an HTTP answer whose body was cut to the limit of its request.
type reply struct {
	status int
	header http.Header
	body   []byte
}

// verdict is the classification of a reply. The code and the detail are neither bounded nor redacted.
type verdict struct {
	class      Class
	code       string
	detail     string // in words; may be empty
	retryAfter time.Duration
}

// apiAnswer is the part of a Web API answer that decides.
type apiAnswer struct {
	ok       bool
	channel  string // the ID of the channel that took a message
	ts       string
	code     string
	needed   string // the scope that the token lacks
	metadata struct {
		Messages []string `json:"messages"` // hints at the refused part of a message
	}
}

// posted reports whether the answer told of a post all that there is to know.
func (a apiAnswer) posted() bool { return a.ok && a.channel != "" && a.ts != "" }

// decodeAnswer reads the members of the outermost object one by one, up to the first fault: an answer that was cut short still
// counts once it has said what matters. It stops before the posted message, which may be large and which Slack sends last.
func decodeAnswer(body []byte) apiAnswer {
	var answer apiAnswer
	decoder := json.NewDecoder(bytes.NewReader(body))
	if start, err := decoder.Token(); err != nil || start != json.Delim('{') {
		return answer
	}
	for !answer.posted() && decoder.More() {
		name, err := decoder.Token()
		if err != nil {
			return answer
		}
		var value json.RawMessage
		if decoder.Decode(&value) != nil {
			return answer
		}
		switch name {
		case "ok":
			err = json.Unmarshal(value, &answer.ok)
		case "ts":
			err = json.Unmarshal(value, &answer.ts)
		case "error":
			err = json.Unmarshal(value, &answer.code)
		case "needed":
			err = json.Unmarshal(value, &answer.needed)
		case "channel":
			_ = json.Unmarshal(value, &answer.channel) // other methods put an object here
		case "response_metadata":
			_ = json.Unmarshal(value, &answer.metadata) // no part of the verdict
		}
		if err != nil {
			return apiAnswer{}
		}
	}
	return answer
}

// classifyPost classifies the answer of chat.postMessage: only a timestamp proves a post.
func classifyPost(r reply) verdict {
	return classifyAPI(r, func(answer apiAnswer) bool { return answer.ts != "" })
}

// classifyMethod classifies the answer of a Web API method that posts nothing.
func classifyMethod(r reply) verdict {
	return classifyAPI(r, func(apiAnswer) bool { return true })
}

func classifyAPI(r reply, proven func(apiAnswer) bool) verdict {
	answer := decodeAnswer(r.body)
	switch {
	case !r.successful():
		v := classifyStatus(r)
		if v.class == Rejected && !answer.ok && classOf(answer.code) != Rejected {
			return r.classifyCode(answer)
		}
		if answer.code != "" {
			v.code, v.detail = answer.code, r.words()
		}
		return v
	case answer.ok && proven(answer):
		return verdict{class: OK}
	case !answer.ok && answer.code != "":
		return r.classifyCode(answer)
	default:
		return verdict{class: Unknown, code: r.words(), detail: "the answer is not one of Slack's"}
	}
}

func (r reply) classifyCode(answer apiAnswer) verdict {
	v := verdict{class: classOf(answer.code), code: answer.code}
	if v.class == RateLimited {
		v.retryAfter = retryAfter(r.header)
	}
	if answer.needed != "" {
		v.detail = "the token lacks the scope " + answer.needed
	} else if hints := answer.metadata.Messages; len(hints) > 0 {
		v.detail = hints[0]
	}
	return v
}

// classifyWebhook classifies the answer of an incoming webhook, whose body is "ok" or a code as plain text. Webhooks of workflows
// answer with the Web API's JSON instead.
func classifyWebhook(r reply) verdict {
	text := strings.TrimSpace(string(r.body))
	if !r.successful() {
		v := classifyStatus(r)
		v.code = r.textCode(text)
		return v
	}
	if text == "ok" {
		return verdict{class: OK}
	}
	return classifyMethod(r)
}

// textCode returns the first line of a plain text answer, or the status where the body is empty or markup.
func (r reply) textCode(text string) string {
	if code := decodeAnswer(r.body).code; code != "" {
		return code
	}
	line, _, _ := strings.Cut(text, "\n")
	if line == "" || strings.ContainsAny(line[:1], "<{[") {
		return r.words()
	}
	return line
}

// classifyStatus classifies an answer outside 200 to 299 by its status alone.
func classifyStatus(r reply) verdict {
	v := verdict{code: r.words()}
	switch {
	case r.status == http.StatusTooManyRequests:
		v.class, v.retryAfter = RateLimited, retryAfter(r.header)
	case r.status == http.StatusRequestTimeout, r.status >= 500 && r.status < 600:
		v.class = Transient
	case r.status == http.StatusUnauthorized, r.status == http.StatusForbidden,
		r.status == http.StatusNotFound, r.status == http.StatusGone:
		v.class = Misconfigured // this is not where messages are posted, or not with these rights
	case r.status >= 300 && r.status < 400:
		v.class, v.detail = Misconfigured, "redirects are not followed"
	case r.status >= 400 && r.status < 500:
		v.class = Rejected
	default:
		v.class = Unknown
	}
	return v
}

func (r reply) successful() bool { return r.status >= 200 && r.status < 300 }

// words returns the status as "503 Service Unavailable".
func (r reply) words() string {
	return strings.TrimSpace(fmt.Sprintf("%d %s", r.status, http.StatusText(r.status)))
}

// retryAfter reads the header of that name, in whole seconds, bounded by minRetryAfter and maxRetryAfter.
func retryAfter(header http.Header) time.Duration {
	seconds, err := strconv.ParseUint(strings.TrimSpace(header.Get("Retry-After")), 10, 32)
	if errors.Is(err, strconv.ErrRange) {
		return maxRetryAfter
	}
	if err != nil {
		return minRetryAfter
	}
	return min(max(time.Duration(seconds)*time.Second, minRetryAfter), maxRetryAfter)
}
