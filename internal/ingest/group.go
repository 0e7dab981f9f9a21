package ingest

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-4578ace9/notifier/internal/event"
)

const (
	// groupTimeout is the longest time for reading a group, which may be much larger than an event.
	groupTimeout = 30 * time.Second
	maxAlerts    = 20_000
	// maxHeldBack is the number of bytes that are read before the first alert is published. Nothing of a smaller group is stored if its JSON is
	// broken. Alertmanager and Grafana write externalURL, the source of all alerts, after the alerts. A larger group takes its source from the
	// members before the alerts.
	maxHeldBack = 1 << 20
	// maxAlert is the size, as a multiple of an event's, up to which a too large alert is skipped. A larger alert ends the reading of a
	// group.
	maxAlert = 4
)

// group is a webhook body of Alertmanager or Grafana. Its alerts are published while it is read.
type group struct {
	asked  request
	room   *room
	input  *metered
	json   *json.Decoder
	outbox outbox

	externalURL, receiver string
	alerts                int
	truncated             int      // alerts that Alertmanager left out, by its own count
	back                  [][]byte // alerts that wait for the end of the body
	backBytes             int
	isFlowing             bool // alerts no longer wait
}

func (h *handler) acceptAlerts(w http.ResponseWriter, r *http.Request, asked request, in *room) ([]byte, *problem) {
	if r.ContentLength > int64(h.mostGroup) {
		return nil, tooLarge(h.mostGroup)
	}
	defer asked.conn.Answered()
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(groupTimeout)) // otherwise the deadline of an event applies
	return h.split(r.Body, asked, in)
}

// split publishes a message for each alert of a body. It succeeds only if all messages are stored. Undeliverable alerts, and an alert or a
// body that is too large do not prevent the valid alerts before them from being stored. A fault after the alerts may.
func (h *handler) split(body io.Reader, asked request, in *room) ([]byte, *problem) {
	from := &transfer{Reader: body}
	g := &group{
		asked: asked, room: in,
		input:  &metered{from: from, body: withoutMark(from), most: h.mostGroup, size: maxAlert * h.decoder.MaxBytes, room: in},
		outbox: outbox{store: &h.store, room: in, maker: asked.maker, client: asked.from.name},
	}
	g.json = json.NewDecoder(g.input)
	g.input.json = g.json
	refusal := g.read()
	g.asked.conn.Work()
	if refusal == nil || refusal.Status == http.StatusRequestEntityTooLarge { // Alertmanager does not repeat a body that is too large
		refusal = cmp.Or(g.flow(), refusal)
	}
	g.outbox.awaitAll()
	g.asked.from.owe(g.outbox.published - 1)
	switch {
	case g.outbox.refusals.failed != nil:
		refusal = g.outbox.refusals.failed
	case refusal == nil && g.outbox.refusals.bad > 0:
		refusal = g.outbox.refusals.firstBad
		refusal.Detail = fmt.Sprintf("%d of %d alerts are refused; %s", g.outbox.refusals.bad, g.alerts, refusal.Detail)
	}
	if refusal != nil {
		if stored := g.outbox.stored; stored > 0 {
			refusal.Detail += fmt.Sprintf("; stored alerts: %d", stored)
		}
		return nil, refusal
	}
	h.metrics.Bytes(g.input.read)
	if g.truncated > 0 {
		h.losses.truncated.Add(asked.from.name, g.truncated, "category", asked.category)
	}
	answer, _ := json.Marshal(groupReceipt{g.outbox.stored, g.outbox.duplicates, g.outbox.receipts}) // cannot fail: texts and numbers
	return answer, nil
}

// withoutMark skips a byte order mark.
func withoutMark(body io.Reader) io.Reader {
	start := make([]byte, len("\ufeff"))
	n, _ := io.ReadFull(body, start)
	return io.MultiReader(bytes.NewReader(bytes.TrimPrefix(start[:n], []byte("\ufeff"))), body)
}

// read reads the body. Its refusal concerns the body as a whole.
func (g *group) read() *problem {
	if token, err := g.token(); err != nil {
		return g.unreadable(err)
	} else if token != json.Delim('{') {
		return noAlerts()
	}
	found := false
	for g.more() {
		name, err := g.token()
		if err != nil {
			return g.unreadable(err)
		}
		var refusal *problem
		switch {
		case name != "alerts":
			refusal = g.readMember(name)
		case found:
			refusal = refused(event.NewFault(event.ReasonBadField, "alerts is given twice"))
		default:
			found, refusal = true, g.readAlerts()
		}
		if refusal != nil {
			return refusal
		}
	}
	if _, err := g.token(); err != nil { // the end of the object
		return g.unreadable(err)
	}
	switch _, err := g.token(); {
	case err == nil:
		return badJSON("the object is followed by other data")
	case !errors.Is(err, io.EOF):
		return g.unreadable(err)
	case !found:
		return noAlerts()
	case g.alerts == 0:
		return refused(event.NewFault(event.ReasonEmpty, "alerts is an empty array"))
	}
	return nil
}

// more reports whether the object or the array has another element or a read error.
func (g *group) more() bool {
	g.input.next()
	return g.json.More()
}

// token returns the next token of the body. The bound of an alert applies to a string too.
func (g *group) token() (json.Token, error) {
	g.input.next()
	return g.json.Token()
}

func (g *group) value() (value json.RawMessage, err error) {
	g.input.next()
	err = g.json.Decode(&value)
	return value, err
}

func (g *group) readMember(name json.Token) *problem {
	value, err := g.value()
	if err != nil {
		return g.unreadable(err)
	}
	var known *string
	switch name {
	case "externalURL":
		known = &g.externalURL
	case "receiver":
		known = &g.receiver
	case "truncatedAlerts":
		_ = json.Unmarshal(value, &g.truncated) // only for the log
		return nil
	default:
		return nil
	}
	if json.Unmarshal(value, known) != nil {
		return refused(event.NewFault(event.ReasonBadField, fmt.Sprintf("%s must be a string", name)))
	}
	return nil
}

func (g *group) readAlerts() *problem {
	if token, err := g.token(); err != nil {
		return g.unreadable(err)
	} else if token != json.Delim('[') {
		return noAlerts()
	}
	for g.more() {
		alert, err := g.value()
		if err != nil {
			return g.unreadable(err)
		}
		if g.alerts++; g.alerts > maxAlerts {
			return newProblem(http.StatusRequestEntityTooLarge, fmt.Sprintf("more than %d alerts", maxAlerts))
		}
		if refusal := g.take(alert); refusal != nil {
			return refusal
		}
	}
	if _, err := g.token(); err != nil {
		return g.unreadable(err)
	}
	return nil
}

// take publishes an alert, unless it must wait for the end of the body.
func (g *group) take(alert []byte) *problem {
	if !g.isFlowing && g.backBytes+len(alert) <= maxHeldBack && g.room.take(len(alert)) == nil {
		g.back, g.backBytes = append(g.back, alert), g.backBytes+len(alert)
		return nil
	}
	if refusal := g.flow(); refusal != nil {
		return refusal
	}
	return g.publish(g.alerts-1, alert)
}

// flow publishes the waiting alerts and lets no more alerts wait.
func (g *group) flow() *problem {
	waiting := g.back
	g.isFlowing, g.back = true, nil
	for i, alert := range waiting {
		if refusal := g.publish(i, alert); refusal != nil {
			return refusal
		}
		g.room.give(len(alert))
	}
	return nil
}

// publish publishes the alert at a place in the body, unless no worker could deliver it.
func (g *group) publish(place int, element []byte) *problem {
	alert, fault := g.asked.decoder.ReadAlert(element, cmp.Or(g.externalURL, g.receiver))
	if fault != nil {
		g.outbox.refusals.add(place, refused(fault))
		return nil
	}
	header, key := g.asked.forwarded(plainForm), first(g.asked.header, headerKey)
	if key != "" {
		key += "/" + strconv.Itoa(place)
	}
	g.asked.identify(header, alert.ID, key)
	return g.outbox.publish(place, &nats.Msg{Subject: g.asked.decoder.Prefix + "." + g.asked.category, Header: header, Data: alert.Data})
}

// unreadable is the answer to a body after a read error.
func (g *group) unreadable(err error) *problem {
	switch {
	case g.input.refusal != nil:
		return g.input.refusal
	case g.input.from.failed != nil:
		return unread(g.input.from.failed, groupTimeout)
	}
	return badJSON(err.Error())
}

func noAlerts() *problem {
	return refused(event.NewFault(event.ReasonBadField, "the body has no alerts; expected a webhook body of Alertmanager or Grafana"))
}

func badJSON(detail string) *problem {
	return refused(event.NewFault(event.ReasonBadJSON, "the body is not valid JSON: "+detail))
}

// errRefused stops the reading of a refused body.
var errRefused = errors.New("the body is refused")

// transfer is a body as it arrives. It keeps the error with which it broke off, since the decoder returns io.ErrUnexpectedEOF for an incomplete
// JSON text too.
type transfer struct {
	io.Reader
	failed error
}

func (t *transfer) Read(p []byte) (int, error) {
	n, err := t.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		t.failed = err
	}
	return n, err
}

// metered reads a body within the bounds of the request.
type metered struct {
	from  *transfer
	body  io.Reader // from without its byte order mark
	most  int       // bytes of the body
	room  *room
	json  *json.Decoder
	read  int
	size  int // of the largest value
	until int // the end of the bytes that may be read for the present value
	taken int // of the room, for the decoder's buffer

	refusal *problem
}

// next allows the decoder to read one more value.
func (m *metered) next() { m.until = int(m.json.InputOffset()) + m.size }

// Read reads into the free part of the decoder's buffer, which has the bytes that were read but not used.
func (m *metered) Read(p []byte) (int, error) {
	unused := m.read - int(m.json.InputOffset())
	if more := unused + len(p) - max(m.taken, firstBuffer); more > 0 {
		if m.refusal = m.room.take(more); m.refusal != nil {
			return 0, errRefused
		}
		m.taken += more
	}
	if m.read >= m.until {
		m.refusal = refused(event.NewFault(event.ReasonTooLarge, fmt.Sprintf("an alert is larger than %d bytes", m.size)))
		return 0, errRefused
	}
	n, err := m.body.Read(p[:min(len(p), m.until-m.read)])
	if m.read += n; m.read > m.most {
		m.refusal = tooLarge(m.most)
		return 0, errRefused
	}
	return n, err
}
