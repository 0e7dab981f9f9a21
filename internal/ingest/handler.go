package ingest

import (
	"bytes"
	"cmp"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/httpserver"
)

// Metrics counts the work of the server. Any number of goroutines may call it at once.
type Metrics interface {
	Request(status int)           // a request that this package answered
	Client(name string)           // a client that may send requests
	Count(client, what string)    // an event or a request of a client: Stored, Duplicate, Limited, Unstored or Refused
	Bytes(n int)                  // of a body that was stored
	Published(took time.Duration) // from the first publish of a request to its last acknowledgement; for a group, of the slowest alert
}

// What [Metrics] counts of a client.
const (
	Stored    = "stored"    // an event that JetStream has stored now
	Duplicate = "duplicate" // an event that JetStream had already stored
	Limited   = "limited"   // a request above the client's rate, or without memory for its body
	Unstored  = "unstored"  // a request that NATS did not store, or not completely
	Refused   = "refused"   // a request that would fail again, such as a request with an invalid body
)

func countedAs(ack *jetstream.PubAck) string {
	if ack.Duplicate {
		return Duplicate
	}
	return Stored
}

// Paths of the interface.
const (
	eventsPath  = "/v1/events/"
	alertsPath  = "/v1/alertmanager/"
	openAPIPath = "/openapi.json"
)

type handler struct {
	decoder   event.Decoder
	bodies    bodies
	mostGroup int // bytes of a body of alerts
	store     store
	tokens    atomic.Pointer[tokens] // nil: every client may write everything
	open      *client                // of a server without tokens
	metrics   Metrics
	losses    losses
	origin    *http.CrossOriginProtection
	host      string      // of the address to listen on
	leaving   atomic.Bool // clients should use another connection, because the server is about to stop
}

// receipt is the answer to one event.
type receipt struct {
	ID        string `json:"id,omitempty"`
	Stream    string `json:"stream,omitempty"`
	Sequence  uint64 `json:"sequence,omitempty"`
	Duplicate bool   `json:"duplicate"`
	Problem   string `json:"problem,omitempty"` // why it may not be stored
}

// ServeHTTP answers one request.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h.leaving.Load() {
		w.Header()["Connection"] = closeConnection
	}
	if r.URL.Path == openAPIPath && (r.Method == http.MethodGet || r.Method == http.MethodHead) {
		h.metrics.Request(http.StatusOK)
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(openAPI) // the client may have left
		return
	}
	answer, refusal := h.take(w, r)
	if refusal != nil {
		h.metrics.Request(refusal.Status)
		refusal.write(w)
		if refusal.Status == http.StatusRequestEntityTooLarge {
			h.linger(w, r)
		}
		return
	}
	h.metrics.Request(http.StatusAccepted)
	w.Header()["Content-Type"] = jsonType
	w.Header()["Content-Length"] = []string{strconv.Itoa(len(answer))} // a long answer would come in chunks
	w.WriteHeader(http.StatusAccepted)
	_, _ = w.Write(answer) //nolint:gosec // JSON, and of that type; the client may have left
}

// lingerTime is the time that a client has to finish a refused body.
const lingerTime = time.Second

// linger reads the rest of a body that is too large: if the connection ended at once, the system would reset it, and the client might not
// see the answer.
func (h *handler) linger(w http.ResponseWriter, r *http.Request) {
	controller := http.NewResponseController(w)
	if controller.Flush() != nil || controller.SetReadDeadline(time.Now().Add(lingerTime)) != nil {
		return // the client has left
	}
	_, _ = io.CopyN(io.Discard, r.Body, 2*int64(h.mostGroup)) // the rest is the client's loss
}

var (
	jsonType        = []string{"application/json"}
	closeConnection = []string{"close"}
)

// take handles a request, and returns the body of the answer. It counts and logs each refusal of a known client, even of a path that does
// not exist: a client with a mistyped URL loses all its events.
func (h *handler) take(w http.ResponseWriter, r *http.Request) ([]byte, *problem) {
	path, alerts, refusal := route(r)
	from, mayWrite := h.authenticate(r)
	category, _, fault := h.decoder.CategoryOf(h.decoder.Prefix + "." + path)
	var answer []byte
	switch {
	case headerBytes(r) > maxHeaderBytes:
		refusal = newProblem(http.StatusRequestHeaderFieldsTooLarge, headersTooLarge)
	case refusal != nil:
	case h.origin.Check(r) != nil:
		refusal = newProblem(http.StatusForbidden, "browsers may not send events for other sites")
	case h.isMisnamed(r):
		refusal = newProblem(http.StatusForbidden, "a server without tokens accepts requests to localhost, a loopback address or the host of NOTIFIER_INGEST_ADDR")
	case from == nil:
		refusal = newProblem(http.StatusUnauthorized, "expected the header Authorization: Bearer with a token of this server")
	case fault != nil:
		refusal = refused(fault)
	case !mayWrite(category):
		refusal = newProblem(http.StatusForbidden, "the token may not write to "+category)
	default:
		answer, refusal = h.admit(w, r, request{
			maker{decoder: h.decoder, category: category, header: r.Header}, from, httpserver.ConnectionOf(r.Context()), alerts,
		})
	}
	switch {
	case refusal == nil:
	case refusal.Status == http.StatusUnauthorized:
		h.losses.strangers.Add(struct{}{}, 1, "category", category, "address", r.RemoteAddr)
	case from == nil:
	case refusal.limited:
		h.metrics.Count(from.name, Limited)
	case refusal.Status == http.StatusServiceUnavailable:
		h.metrics.Count(from.name, Unstored)
	case refusal.isFinal():
		h.metrics.Count(from.name, Refused)
		h.losses.refusals.Add(from.name, 1, "path", r.URL.Path, "status", refusal.Status, "detail", refusal.Detail)
	}
	return answer, refusal
}

// isMisnamed reports whether a request calls a server without tokens by another host's name. If the name of a web page resolves to this host, a
// browser sends the page's requests under that name, as to the page's own site.
func (h *handler) isMisnamed(r *http.Request) bool {
	return h.tokens.Load() == nil && !httpserver.NamesThisHost(r.Host) && httpserver.HostOf(r.Host) != h.host
}

// headerBytes is the size of a request without its body, as clients usually write it.
func headerBytes(r *http.Request) int {
	const firstLine, perHeader = len("  HTTP/1.1\r\n\r\n"), len(": \r\n")
	size := firstLine + len(r.Method) + len(r.RequestURI) + len("Host") + perHeader + len(r.Host)
	for name, values := range r.Header {
		for _, value := range values {
			size += len(name) + perHeader + len(value)
		}
	}
	return size
}

// route returns the unchecked category of a path, and whether its bodies are alerts.
func route(r *http.Request) (category string, alerts bool, refusal *problem) {
	allow := http.MethodPost
	if r.URL.Path == openAPIPath {
		allow = "GET, HEAD" // which ServeHTTP has answered
	} else {
		known := false
		if category, alerts = strings.CutPrefix(r.URL.Path, alertsPath); !alerts {
			category, known = strings.CutPrefix(r.URL.Path, eventsPath)
		}
		if !alerts && !known || category == "" || strings.Contains(category, "/") {
			return "", false, newProblem(http.StatusNotFound, "expected "+eventsPath+"{category} or "+alertsPath+"{category}")
		}
	}
	if r.Method != allow {
		refusal = newProblem(http.StatusMethodNotAllowed, "the method must be "+allow)
		refusal.allow = allow
	}
	return category, alerts, refusal
}

// authenticate returns the client of a request, nil for none, and the categories that it may write to.
func (h *handler) authenticate(r *http.Request) (from *client, mayWrite func(category string) bool) {
	inForce := h.tokens.Load()
	if inForce == nil {
		return h.open, func(string) bool { return true }
	}
	scheme, secret, _ := strings.Cut(first(r.Header, "Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return nil, nil
	}
	known := inForce.find(strings.TrimSpace(secret))
	if known == nil {
		return nil, nil
	}
	return known.client, known.mayWrite
}

// request is a request of a client that may write to the category.
type request struct {
	maker
	from    *client
	conn    *httpserver.Connection
	isGroup bool // the body must be a group of alerts
}

// admit accepts a request if its client has some of its rate left. All events after the first are owed and delay the next request, because
// the size of a group is unknown until all of it is stored.
func (h *handler) admit(w http.ResponseWriter, r *http.Request, asked request) ([]byte, *problem) {
	if wait := asked.from.spend(); wait > 0 {
		return nil, newProblem(http.StatusTooManyRequests, "more events than the rate of this token allows").later(wait).tooMuch()
	}
	form, refusal := formOf(r.Header)
	if refusal != nil {
		return nil, refusal
	}
	room := &room{of: &h.bodies, from: asked.from}
	defer room.leave()
	if asked.isGroup {
		return h.acceptAlerts(w, r, asked, room)
	}
	return h.accept(r, form, asked, room)
}

func (h *handler) accept(r *http.Request, asked form, m request, room *room) ([]byte, *problem) {
	read, refusal := h.bodies.read(r, room)
	if refusal != nil {
		return nil, refusal
	}
	m.conn.Work()
	defer m.conn.Answered()
	if asked == plainForm && event.IsGroup(read.data) {
		return h.split(bytes.NewReader(read.data), m, room)
	}
	messages, refusal := m.messages(read.data, asked)
	if refusal != nil {
		read.release()
		return nil, refusal
	}
	m.from.owe(len(messages) - 1)
	receipts, refusal := h.receipts(messages, m)
	if refusal != nil {
		if asked == batchForm {
			refusal.Events = receipts
		}
		return nil, refusal // the client library may still send the data
	}
	h.metrics.Bytes(len(read.data))
	read.release()
	var answer any = receipts
	if asked != batchForm {
		answer = receipts[0]
	}
	encoded, _ := json.Marshal(answer) // cannot fail: texts and numbers
	return encoded, nil
}

// receipts publishes messages and returns the results. The refusal is the first message's that may not be stored.
func (h *handler) receipts(messages []*nats.Msg, m request) ([]receipt, *problem) {
	receipts := make([]receipt, len(messages))
	var refusal *problem
	for i, result := range h.store.publish(messages) {
		if result.refusal != nil {
			receipts[i].Problem = result.refusal.Detail
			refusal = cmp.Or(refusal, result.refusal)
			continue
		}
		h.metrics.Count(m.from.name, countedAs(result.ack))
		receipts[i] = m.receipt(messages[i], result.ack)
	}
	return receipts, refusal
}
