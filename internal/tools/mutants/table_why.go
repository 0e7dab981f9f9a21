package main

// ofWhy are the bugs in what notifier why says of events.
var ofWhy = []mutant{
	{
		name: "why-guesses-a-counted-event",
		bug:  "An event that may be among counted ones is told of as the first of them.",
		file: "internal/why/ask.go",
		old:  `if a.question.asksFor(single.ID, single.Category, single.Title, single.Sequence) {`,
		new:  `if single.ID != "" {`,
		test: "./internal/why -run ^TestCountsAreNoAnswers$",
	},
	{
		name: "why-takes-an-early-digest",
		bug:  "A digest that was counted before a drop is said to have told of it.",
		file: "internal/why/sentences.go",
		old:  `tells := digest.Decided.After(dropped.Decided) && !digest.LastStored.Before(dropped.Decided)`,
		new:  `tells := digest.Decided.After(dropped.Decided)`,
		test: "./internal/why -run ^TestSentences$",
	},
	{
		name: "why-says-waiting-of-what-ended",
		bug:  "An event that gets its outcome while the question is asked is said to wait.",
		file: "internal/why/event.go",
		old: `e.pending = nil
	}
	isSplit`,
		new: `e.State = ""
	}
	isSplit`,
		test: "./internal/why -run ^TestSentences$",
	},
	{
		name: "why-makes-a-bucket",
		bug:  "A question about an event makes what is absent in NATS.",
		file: "cmd/notifier/why.go",
		old:  `settings.NATS.Provision = false // nothing is created for a question`,
		new:  ``,
		test: "./cmd/notifier -run ^TestWhyWithoutRedis$",
	},
}
