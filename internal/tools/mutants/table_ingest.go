package main

// ofIngest are the bugs in events over HTTP.
var ofIngest = []mutant{
	{
		name: "ingest-answers-before-the-ack",
		bug:  "A refusal of JetStream is answered as if the event were stored.",
		file: "internal/ingest/publish.go",
		old:  `return result{refusal: s.failed(err)}`,
		new:  `return result{ack: &jetstream.PubAck{Domain: s.failed(err).Detail}}`,
		test: "./internal/ingest -run ^TestUnavailable$",
	},
	{
		name: "ingest-token-of-any-category",
		bug:  "A token may write to every category.",
		file: "internal/ingest/tokens.go",
		old: `	return may
`,
		new: `	return may || category != ""
`,
		test: "./internal/ingest -run ^TestTokens$",
	},
	{
		name: "ingest-id-of-no-category",
		bug:  "The ID of an event over HTTP does not begin with its category.",
		file: "internal/ingest/message.go",
		old:  `m.category + "/" + named.ID`,
		new:  `named.ID`,
		test: "./internal/ingest -run ^TestIdentity$",
	},
	{
		name: "ingest-guessable-alert",
		bug:  "Anyone can guess the Nats-Msg-Id of an alert in a CloudEvent.",
		file: "internal/ingest/message.go",
		old:  `m.decoder.AlertID(asked)`,
		new:  `""`,
		test: "./internal/ingest -run ^TestGroup$",
	},
	{
		name: "ingest-bad-tokens-in-force",
		bug:  "A bad file of tokens takes the good ones out of force.",
		file: "internal/ingest/server.go",
		old: `	if err != nil {
		return err
	}
	for name := range clients {
`,
		new: `	s.handler.tokens.Store(&all)
	if err != nil {
		return err
	}
	for name := range clients {
`,
		test: "./internal/ingest -run ^TestTokensFileReplaced$",
	},
	{
		name: "ingest-closes-good-connections",
		bug:  "A connection with a good token is closed before those that never had one.",
		file: "internal/httpserver/connections.go",
		old:  `[]*list.List{&g.strangers, &g.clients}`,
		new:  `[]*list.List{&g.clients, &g.strangers}`,
		test: "./internal/ingest -run ^TestSlowClients$",
	},
	{
		name: "ingest-new-client-locked-out",
		bug:  "A new connection is closed itself while all others have sent a good token.",
		file: "internal/httpserver/connections.go",
		old:  `if evicted == nil && g.open > g.most {`,
		new:  `if g.open > g.most && g.strangers.Front() == conn.element {`,
		test: "./internal/ingest -run ^TestNewClientAmongGoodOnes$",
	},
	{
		name: "ingest-outlives-its-connection",
		bug:  "Ingest and the page run on after NATS has closed their connection for good.",
		file: "cmd/notifier/ingest.go",
		old:  `case <-connection.Closed():`,
		new:  `case <-chan struct{}(nil):`,
		test: "./tests -run ^TestConnectionClosedForGood$",
	},
	{
		name: "ingest-half-of-a-batch",
		bug:  "The events of a batch before a bad one are stored.",
		file: "internal/ingest/handler.go",
		old: `	if refusal != nil {
		read.release()`,
		new: `	if len(messages) > 1 {
		h.store.publish(messages[:1])
	}
	if refusal != nil {
		read.release()`,
		more: []edit{{"internal/ingest/message.go", `			return nil, refusal
		}
		messages[i]`, `			return messages, refusal
		}
		messages[i]`}},
		test: "./internal/ingest -run ^TestRefused$",
	},
	{
		name: "ingest-forwards-headers",
		bug:  "Headers of a request that begin with Nats- reach NATS.",
		file: "internal/ingest/message.go",
		old:  `strings.HasPrefix(name, "Ce-")`,
		new:  `strings.HasPrefix(name, "Ce-") || strings.HasPrefix(name, "Nats-")`,
		test: "./internal/ingest -run ^TestHeaders$",
	},
	{
		name: "ingest-stop-evicts",
		bug:  "The end of the listener is taken for a lack of room, and ends an upload.",
		file: "internal/httpserver/connections.go",
		old:  `err != nil && !errors.Is(err, net.ErrClosed)`,
		new:  `err != nil || errors.Is(err, net.ErrClosed)`,
		test: "./internal/ingest -run ^TestStoppingServer$",
	},
}
