package main

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/status"
)

// addCompletions tells the shell which words can follow. What cannot be found out in time is left out without a message, as a message
// would be taken for words.
func addCompletions(root *cobra.Command) {
	for line, words := range map[string]func(deployment) []string{
		"publish":      deployment.categories,
		"why":          deployment.categories,
		"limits":       deployment.categories,
		"limits set":   deployment.rules,
		"limits unset": deployment.live,
	} {
		below(root, line).ValidArgsFunction = onlyFirst(words)
	}
	flag(root, "publish", "severity", values(event.SeverityInfo, event.SeverityWarning, event.SeverityError, event.SeverityCritical))
	flag(root, "publish", "status", values(event.StatusFiring, event.StatusResolved))
	flag(root, "why", "category", anywhere(deployment.categories))
	for _, line := range []string{"dlq list", "dlq replay", "dlq drop"} {
		flag(root, line, "reason", values(event.Reasons()...))
		flag(root, line, "category", anywhere(deployment.categories))
	}
}

// below is the command of a command line.
func below(root *cobra.Command, line string) *cobra.Command {
	command, rest, err := root.Find(strings.Fields(line))
	if err != nil || len(rest) > 0 {
		panic("no command " + line)
	}
	return command
}

func flag(root *cobra.Command, line, name string, words cobra.CompletionFunc) {
	if err := below(root, line).RegisterFlagCompletionFunc(name, words); err != nil {
		panic(err)
	}
}

// values completes to the members of a closed set.
func values[T ~string](all ...T) cobra.CompletionFunc {
	return cobra.FixedCompletions(texts(all), cobra.ShellCompDirectiveNoFileComp)
}

func texts[T ~string](all []T) []string {
	texts := make([]string, len(all))
	for i, value := range all {
		texts[i] = string(value)
	}
	return texts
}

// anywhere completes to words of the deployment of the settings.
func anywhere(words func(deployment) []string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
		found := slices.DeleteFunc(words(askDeployment(cmd.Context())), func(word string) bool { return !strings.HasPrefix(word, typed) })
		slices.Sort(found)
		return slices.Compact(found), cobra.ShellCompDirectiveNoFileComp
	}
}

// onlyFirst completes the first argument, and no other.
func onlyFirst(words func(deployment) []string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, arguments []string, typed string) ([]string, cobra.ShellCompDirective) {
		if len(arguments) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return anywhere(words)(cmd, arguments, typed)
	}
}

// deployment is what is known of the words of a deployment.
type deployment struct {
	limits  config.Limits // of a running worker, or of the settings here
	reports []status.Report
}

// askDeployment asks the workers. The answer is empty where the settings are wrong.
func askDeployment(ctx context.Context) (d deployment) {
	settings, _, err := config.Load(config.Options{Sink: config.SinkConsole})
	if err != nil {
		return d
	}
	d.limits = settings.Limits
	ctx, cancel := context.WithTimeout(ctx, askWorkersFor)
	defer cancel()
	connection, err := dialNATS(ctx, settings.NATS)
	if err != nil {
		return d
	}
	defer connection.Conn.Close()
	if d.reports, err = status.Workers(ctx, connection.Conn, settings.Redis.Prefix, 0); err != nil || len(d.reports) == 0 {
		return d
	}
	if theirs, err := settings.Limits.WithShared(d.reports[0].Settings); err == nil {
		d.limits = theirs
	}
	return d
}

// rules are the rules that a limit can be set for, and the categories.
func (d deployment) rules() []string {
	words := []string{limits.LevelGlobal, limits.LevelCategory}
	if tree, err := limits.NewTree(d.limits.Plan()); err == nil {
		for _, pattern := range tree.Patterns() {
			words = append(words, pattern.String())
		}
		for _, guarantee := range tree.Guarantees() {
			words = append(words, guarantee.Path)
		}
	}
	for _, report := range d.reports {
		for _, limit := range report.Limits {
			words = append(words, cmp.Or(limit.Path, limits.LevelGlobal))
		}
		for _, suppressed := range report.Suppressed {
			words = append(words, suppressed.Category)
		}
	}
	return append(words, d.live()...)
}

// categories are those that have limits of their own, that use limits now, or of which events are dropped now.
func (d deployment) categories() []string {
	return slices.DeleteFunc(d.rules(), func(word string) bool {
		return word == limits.LevelGlobal || word == limits.LevelCategory || event.ValidatePath(word) != nil
	})
}

// live are the rules whose limits were changed while workers run.
func (d deployment) live() (words []string) {
	for _, report := range d.reports {
		for _, change := range report.Changes {
			words = append(words, change.Path)
		}
	}
	return words
}

// mistyped is how many letters a word may differ from a command's name to be taken for it.
const mistyped = 2

// didYouMean asks for the commands below one that the first argument is like. It is "" if there is none.
func didYouMean(command *cobra.Command, arguments []string) string {
	if len(arguments) == 0 || len(arguments[0]) <= mistyped {
		return ""
	}
	command.SuggestionsMinimumDistance = mistyped
	names := command.SuggestionsFor(arguments[0])
	if len(names) == 0 {
		return ""
	}
	return "did you mean '" + command.CommandPath() + " " + strings.Join(names, "' or '"+command.CommandPath()+" ") + "'?"
}
