package main

// ofWhy are the bugs in what notifier why says of events.
var ofWhy = []mutant{
	{
		name: "why-guesses-a-counted-event",
		bug:  "An event that may be among counted ones is reported as the first of them.",
		file: "internal/why/ask.go",
		old:  `if a.query.Matches(&single) {`,
		new:  `if single.ID != "" {`,
		test: "./internal/why -run ^TestAggregatedEntriesAreNoAnswer$",
	},
	{
		name: "why-takes-an-early-digest",
		bug:  "A digest that was posted after a drop is said to have reported it, whatever it counts.",
		file: "internal/why/sentences.go",
		old:  `digest.Rounds.Hold(dropped.Instance, dropped.Round)`,
		new:  `digest.Decided.After(dropped.Decided)`,
		test: "./internal/why -run ^TestSentences$",
	},
	{
		name: "digest-without-the-failed-rounds",
		bug:  "A digest that takes over the counts of a failed one does not have the rounds of these.",
		file: "lua/summary/claim_digest.lua",
		old:  `add_rounds(digest.rounds, of.instance, of.first, of.last)`,
		new:  `add_rounds({}, of.instance, of.first, of.last)`,
		test: "./internal/summary -run TestDigestHasItsRounds/eval",
	},
	{
		name: "digest-keeps-rounds",
		bug:  "A digest has the rounds of the digest before too.",
		file: "lua/summary/claim_digest.lua",
		old:  `redis.call('HDEL', counts_key, ROUNDS)`,
		new:  ``,
		test: "./internal/summary -run TestDigestHasItsRounds/eval",
	},
	{
		name: "why-says-waiting-of-what-ended",
		bug:  "An event that gets its outcome while the question is asked is said to wait.",
		file: "internal/why/event.go",
		old: `e.waits.event = nil
	}
	isSplit`,
		new: `e.State = ""
	}
	isSplit`,
		test: "./internal/why -run ^TestSentences$",
	},
	{
		name: "why-knows-no-long-ids",
		bug:  "An event whose ID was replaced by its hash is not found by its producer's ID.",
		file: "internal/event/named.go",
		old:  `named := []Event{{ID: stableID(id)}}`,
		new:  `named := []Event{{ID: id}}`,
		test: "./internal/event -run ^TestShownAs$",
	},
	{
		name: "why-keeps-the-first-that-wait",
		bug:  "Of many events that wait, the newest are said to wait nowhere.",
		file: "internal/why/ask.go",
		old:  `slices.Delete(a.pending, 0, max(0, len(a.pending)-keptEvents))`,
		new:  `a.pending[:min(keptEvents, len(a.pending))]`,
		test: "./internal/why -run ^TestWaitingEventsBeyondTheBound$",
	},
	{
		name: "why-groups-by-times",
		bug:  "Events of one reason that were decided at different times stand apart.",
		file: "internal/why/event.go",
		old:  `a.words.reasonFor(entry))`,
		new:  `a.words.stamp(entry.Decided)+a.words.reasonFor(entry))`,
		test: "./internal/why -run ^TestGroups$",
	},
	{
		name: "why-makes-a-bucket",
		bug:  "A question about an event makes what is absent in NATS.",
		file: "internal/inspect/asker.go",
		old:  `settings.NATS.Provision = false // a question creates nothing`,
		new:  ``,
		test: "./internal/cli -run ^TestWhyWithoutRedis$",
	},
	{
		name: "journal-loses-in-silence",
		bug:  "Entries that a worker keeps when it stops are lost uncounted.",
		file: "internal/journal/recorder.go",
		old: `			r.lose(r.unpublished)
`,
		new:  ``,
		test: "./internal/journal -run ^TestEndWithoutAJournal$",
	},
	{
		name: "why-says-nothing-of-a-failing-journal",
		bug:  "While workers cannot write the journal, an event is not known without a reason.",
		file: "internal/inspect/asker.go",
		old:  `Workers: workers,`,
		new:  `Workers: why.Workers{Paused: workers.Paused},`,
		test: "./tests -run ^TestJournalCannotBeWritten$",
	},
	{
		name: "journal-counts-without-a-range",
		bug:  "An entry that counts events names those that a worker came to first and last, not those between which the others are.",
		file: "internal/journal/recorder.go",
		old:  `if first < counted.Sequence {`,
		new:  `if so.Count == 0 {`,
		test: "./internal/journal -run ^TestCountsHaveARange$",
	},
	{
		name: "journal-forgets-a-field",
		bug:  "A field of an entry is not written.",
		file: "internal/journal/entry.go",
		old:  "`json:\"trace,omitempty\"`",
		new:  "`json:\"-\"`",
		test: "./internal/journal -run ^TestLinesHoldEntries$",
	},
	{
		name: "why-takes-delays-of-the-shell",
		bug:  "What would become of an event is reported by the settings of the shell, not of the workers.",
		file: "internal/inspect/asker.go",
		old:  `	settings, err = a.settings.WithShared(reports[0].Settings)`,
		new:  `	settings, err = a.settings, error(nil)`,
		test: "./tests -run ^TestWhy$",
	},
}
